package keyversion_test

import (
	"testing"

	"tidemark/internal/testing/allocbound"
	"tidemark/keyversion"
)

// Lengths inside a frame with valid checksums must not cause allocations beyond the data.
func TestLengthsBoundAllocations(t *testing.T) {
	batch, err := keyversion.AppendBatch(nil, goldenBatch())
	if err != nil {
		t.Fatal(err)
	}
	hello, err := keyversion.AppendHello(nil, &keyversion.Hello{Topic: "/maintenance", Bucket: "b", Connections: 2})
	if err != nil {
		t.Fatal(err)
	}
	ack := keyversion.AppendAck(nil, keyversion.Ack{Number: 4, Refused: "no"})
	decode := func(frame []byte) {
		var b keyversion.Batch
		_ = keyversion.Decode(frame, &b)
		_, _ = keyversion.DecodeHello(frame)
		_, _ = keyversion.DecodeAck(frame)
	}
	allocbound.Check(t, 0, decode, batch, hello, ack)
	allocbound.Check(t, 0, func(frame []byte) {
		if len(frame) >= keyversion.HeaderSize {
			decode(reseal(frame))
		}
	}, batch, hello, ack)
	allocbound.Check(t, 0, func(body []byte) { // and with the valid length of the body
		var e keyversion.Encoder
		frame := append(e.Finish(9), body...)
		frame[4], frame[5], frame[6], frame[7] = byte(len(body)), byte(len(body)>>8), byte(len(body)>>16), byte(len(body)>>24)
		decode(reseal(frame))
	}, batch[keyversion.HeaderSize:])
}
