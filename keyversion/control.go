package keyversion

import (
	"encoding/binary"
	"fmt"
	"strings"

	"tidemark/index"
)

// Ack is the receiver's answer: Number is the highest number up to which it has taken every batch (0: none yet, and
// in the answer to the hello). If Refused is not empty it is the reason for which the receiver ends the connection;
// the batches after Number were not taken.
type Ack struct {
	Number  uint64
	Refused string
}

// AppendHello appends the hello's frame to dst. An error wraps ErrTooLarge.
func AppendHello(dst []byte, h *Hello) ([]byte, error) {
	at := len(dst)
	out := append(dst, make([]byte, HeaderSize)...)
	for _, s := range [...]string{h.ClusterID, string(h.Projector), h.BootID, h.Topic, h.Bucket, h.BucketUUID} {
		if len(s) > MaxName {
			return dst, fmt.Errorf("%w: hello with a name of %d bytes, at most %d", ErrTooLarge, len(s), MaxName)
		}
		out = binary.AppendUvarint(out, uint64(len(s)))
		out = append(out, s...)
	}
	out = append(out, byte(h.Node))
	out = binary.AppendUvarint(out, uint64(h.Connection))
	out = binary.AppendUvarint(out, uint64(h.Connections))
	sealHeader(out[at:], frameHello, HelloFormat, 0)
	return out, nil
}

// DecodeHello decodes a hello; nothing in it aliases frame. Errors wrap ErrCorrupt or ErrFormat.
func DecodeHello(frame []byte) (h Hello, err error) {
	_, body, err := openHeader(frame, frameHello, HelloFormat, MaxHelloFrame)
	if err != nil {
		return Hello{}, fmt.Errorf("hello: %w", err)
	}
	r := reader{b: body}
	text := func() string { return string(r.bytes(MaxName)) }
	h.ClusterID, h.Projector, h.BootID = text(), index.ProjectorID(text()), text()
	h.Topic, h.Bucket, h.BucketUUID = text(), text(), text()
	h.Node = index.NodeID(r.byte())
	connection, connections := r.uvarint(), r.uvarint()
	switch {
	case r.bad || r.left() > 0:
		return Hello{}, fmt.Errorf("%w: hello: a length exceeds the data", ErrCorrupt)
	case connections == 0 || connections > 0xffff || connection >= connections:
		return Hello{}, fmt.Errorf("%w: hello: connection %d of %d", ErrCorrupt, connection, connections)
	case h.Node > index.MaxNodeID:
		return Hello{}, fmt.Errorf("%w: hello: node %d, at most %d", ErrCorrupt, h.Node, index.MaxNodeID)
	}
	h.Connection, h.Connections = uint16(connection), uint16(connections)
	return h, nil
}

// AppendAck appends the acknowledgement's frame to dst. A refusal's text longer than MaxReason is cut.
func AppendAck(dst []byte, a Ack) []byte {
	at := len(dst)
	// a projector passes it on as text, which has to be valid UTF-8 up to the end
	reason := strings.ToValidUTF8(a.Refused[:min(len(a.Refused), MaxReason)], "")
	dst = append(dst, make([]byte, HeaderSize)...)
	dst = binary.AppendUvarint(dst, a.Number)
	dst = binary.AppendUvarint(dst, uint64(len(reason)))
	dst = append(dst, reason...)
	sealHeader(dst[at:], frameAck, AckFormat, 0)
	return dst
}

// DecodeAck decodes an acknowledgement. Errors wrap ErrCorrupt or ErrFormat.
func DecodeAck(frame []byte) (Ack, error) {
	_, body, err := openHeader(frame, frameAck, AckFormat, MaxAckFrame)
	if err != nil {
		return Ack{}, fmt.Errorf("acknowledgement: %w", err)
	}
	r := reader{b: body}
	a := Ack{Number: r.uvarint(), Refused: string(r.bytes(MaxReason))}
	if r.bad || r.left() > 0 {
		return Ack{}, fmt.Errorf("%w: acknowledgement: a length exceeds the data", ErrCorrupt)
	}
	return a, nil
}
