// Package transport carries KeyVersions frames from routers to indexers over gRPC streams (RT-4). One connection is
// one TCP connection with one stream: the client sends a hello, then batches in order; the server answers the hello,
// then acknowledges batches with the highest number that its Sink has accepted, or refuses and ends the connection.
//
// It guarantees order and back-pressure: a slow sink slows only its own sender; a peer that is gone or frozen is
// detected within SilenceLimit on both sides, however full the connection is; bytes that are not a frame close the
// connection with a line in the log, and cost no more memory than MaxFrame of keyversion. It never repeats a batch,
// never reconnects and never interprets events: the router does.
//
// gRPC provides TLS, flow control and deadlines; messages are frames of package keyversion (a codec passes bytes
// through), so that no message is encoded or copied twice.
package transport

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"tidemark/keyversion"
)

// Limits and intervals.
const (
	// HeartbeatInterval is the longest pause between messages of a server on an idle connection.
	HeartbeatInterval = time.Second
	// SilenceLimit is how long either side waits for a sign of life before it closes the connection.
	SilenceLimit = 4 * time.Second
	// RenewAfter is the lifetime of a connection with TLS, give or take a tenth. Then the router reconnects, and both
	// sides present their certificates again.
	RenewAfter = 50 * time.Minute
	// maxAge is how long the router keeps a connection with TLS. A server of this package renews it earlier; one that
	// does not would otherwise receive data for ever, whatever becomes of its certificate.
	maxAge = time.Hour
	// HelloTimeout is how long a server waits for the hello of a new stream.
	HelloTimeout = 5 * time.Second
	// DefaultMaxConnections is the limit of concurrent connections of a server unless configured otherwise.
	DefaultMaxConnections = 1024

	// ackSpacing is the least time between two acknowledgements of a connection: two hundred per second suffice to
	// free the sender's queue, and each costs a system call on both sides. With less than ackBytes to acknowledge it
	// is ackRest, because the sender does not need the space.
	ackSpacing = 5 * time.Millisecond
	ackRest    = 25 * time.Millisecond
	ackBytes   = 32 << 10
	// windowBytes is the flow-control window of a connection: bytes sent but not yet read by the sink. A larger frame
	// still passes.
	windowBytes = 1 << 20
	// ioBufferBytes is the size of the socket buffers in the process, per connection and direction.
	ioBufferBytes = 64 << 10
	// maxMessage is the largest gRPC message, that is the largest frame, to which gRPC adds nothing that counts.
	maxMessage = keyversion.MaxFrame
)

const (
	serviceName = "tidemark.Data"
	methodName  = "Stream"
	fullMethod  = "/" + serviceName + "/" + methodName
	codecName   = "tidemark-frame"
)

var (
	// ErrRefused is wrapped when the other side ended the connection with a reason.
	ErrRefused = errors.New("refused by the receiver")
	// ErrSilent is wrapped when the other side gave no sign of life for SilenceLimit.
	ErrSilent = errors.New("no message from the receiver in time")
	// ErrClosed is wrapped when the connection was closed on this side.
	ErrClosed = errors.New("connection closed")
)

// outbound is a frame to be sent. gRPC reads its bytes until they are sent.
type outbound struct{ frame []byte }

// inbound is a received frame. The holder must free buf.
type inbound struct{ buf mem.Buffer }

// codec passes frames through. Frames that arrive in pieces are joined in buffers of the pool.
type codec struct{ pool mem.BufferPool }

// newCodec returns a codec whose buffers are less than twice as large as their frame. gRPC's own pool has no sizes
// between 32 KiB and 1 MiB: a receiver with a full queue holds more than a hundred frames, and each would take 1 MiB.
func newCodec() codec {
	return codec{pool: mem.NewTieredBufferPool(256, 4<<10, 16<<10, 32<<10, 64<<10, 128<<10, 256<<10, 512<<10, 1<<20)}
}

// Name returns the codec's name, which is part of the content type.
func (codec) Name() string { return codecName }

// Marshal returns the frame itself.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*outbound)
	if !ok {
		return nil, fmt.Errorf("cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.frame)}, nil
}

// Unmarshal keeps the bytes without copying if they arrived in one piece; otherwise it joins them in a pooled buffer.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*inbound)
	if !ok {
		return fmt.Errorf("cannot receive a %T", v)
	}
	m.buf = data.MaterializeToBuffer(c.pool)
	return nil
}

// streamDesc describes the one method to the client.
func streamDesc() *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: methodName, ServerStreams: true, ClientStreams: true}
}
