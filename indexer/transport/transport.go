// Package transport carries KeyVersions frames from routers to indexers over gRPC streams (RT-4). One connection is one
// TCP connection with one stream: the client sends a hello, then batches in order; the server answers the hello, then
// acknowledges batches with the highest number that its Sink has taken, or refuses and ends the connection.
//
// It promises order and back-pressure: a sink that takes its time slows its own sender and nobody else; a peer that is
// gone or frozen is noticed within SilenceLimit on both sides, however full the connection is; bytes that are no frame
// close the connection with a line in the log, and cost no more memory than MaxFrame of keyversion. It never repeats a
// batch, never reconnects and never looks into events: that is the router's work.
//
// gRPC gives TLS, flow control and deadlines; messages are our own frames (a codec that passes bytes through), so that
// no message is encoded or copied twice.
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
	// HeartbeatInterval is how often a server speaks on an idle connection.
	HeartbeatInterval = time.Second
	// SilenceLimit is how long either side waits for a sign of life before it gives the connection up.
	SilenceLimit = 4 * time.Second
	// RenewAfter is how long a connection with TLS lives, give or take a tenth: then the router opens a new one, and both
	// sides show their certificates again.
	RenewAfter = 50 * time.Minute
	// HelloTimeout is how long a server waits for the hello of a new stream.
	HelloTimeout = 5 * time.Second
	// DefaultMaxConnections is the most connections that a server accepts at a time unless configured otherwise.
	DefaultMaxConnections = 1024

	// ackSpacing is the least time between two acknowledgements of a connection: two hundred a second are enough for
	// credits, and each costs a system call on both sides. With less than ackBytes to acknowledge it is ackRest: nobody
	// needs the room.
	ackSpacing = 5 * time.Millisecond
	ackRest    = 25 * time.Millisecond
	ackBytes   = 32 << 10
	// windowBytes is the flow-control window of a connection: what may be under way and not yet read by the sink. A
	// larger frame passes all the same.
	windowBytes = 1 << 20
	// ioBufferBytes is the size of the socket buffers in the process, per connection and direction.
	ioBufferBytes = 64 << 10
	// maxMessage is the largest gRPC message; gRPC adds nothing to a frame that counts.
	maxMessage = keyversion.MaxFrame
)

const (
	serviceName = "tidemark.Data"
	methodName  = "Stream"
	fullMethod  = "/" + serviceName + "/" + methodName
	codecName   = "tidemark-frame"
)

var (
	// ErrRefused is wrapped when the other side ended the connection for a reason that it gave.
	ErrRefused = errors.New("refused by the receiver")
	// ErrSilent is wrapped when the other side gave no sign of life for SilenceLimit.
	ErrSilent = errors.New("no sign of life from the receiver")
	// ErrClosed is wrapped when the connection was closed on this side.
	ErrClosed = errors.New("connection closed")
)

// outbound is a frame to be sent; gRPC reads the bytes until they are on the wire.
type outbound struct{ frame []byte }

// inbound is a frame received; the holder frees buf.
type inbound struct{ buf mem.Buffer }

// codec passes frames through. Those that arrive in pieces are joined in buffers of the pool.
type codec struct{ pool mem.BufferPool }

// newCodec returns one whose buffers are less than twice as large as their frame. The sizes of gRPC's own pool go from
// 32 KiB to 1 MiB at once: a receiver that has no room holds more than a hundred frames, and each would take 1 MiB.
func newCodec() codec {
	return codec{pool: mem.NewTieredBufferPool(256, 4<<10, 16<<10, 32<<10, 64<<10, 128<<10, 256<<10, 512<<10, 1<<20)}
}

// Name is part of the content type.
func (codec) Name() string { return codecName }

// Marshal returns the frame itself.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*outbound)
	if !ok {
		return nil, fmt.Errorf("cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.frame)}, nil
}

// Unmarshal keeps the bytes without copying them when they arrived in one piece, else joins them in a pooled buffer.
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
