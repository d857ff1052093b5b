package transport

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"tidemark/index"
	"tidemark/internal/testing/allocbound"
	"tidemark/keyversion"
)

// framesStream is a stream that receives the given messages and drops what is sent.
type framesStream struct {
	grpc.ServerStream
	frames [][]byte
}

func (s *framesStream) Context() context.Context { return context.Background() }
func (s *framesStream) SendMsg(any) error        { return nil }

func (s *framesStream) RecvMsg(m any) error {
	if len(s.frames) == 0 {
		return io.EOF
	}
	frame := s.frames[0]
	s.frames = s.frames[1:]
	half := len(frame) / 2 // it comes in pieces
	return newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(frame[:half]), mem.SliceBuffer(frame[half:])}, m)
}

// countingSink checks the batches that it gets, and releases them at once.
type countingSink struct {
	last   uint64
	wrong  string
	closed int
}

func (s *countingSink) Receive(_ context.Context, b *keyversion.Batch, release func()) error {
	if b.Number != 0 {
		if s.last != 0 && b.Number != s.last+1 {
			s.wrong = "a batch that does not follow the one before"
		}
		s.last = b.Number
	}
	release()
	return nil
}

func (s *countingSink) Closed(err error) {
	if err == nil {
		s.wrong = "closed without a reason"
	}
	s.closed++
}

// serveFrames gives a server the frames of one connection, and returns what its sink has seen, or nil if the hello
// was refused.
func serveFrames(s *Server, frames [][]byte) *countingSink {
	var sink *countingSink
	s.accept = func(context.Context, keyversion.Hello) (Sink, error) {
		sink = &countingSink{}
		return sink, nil
	}
	_ = s.serve(&framesStream{frames: frames})
	return sink
}

// cutFrames splits fuzzed bytes into frames, by lengths of two bytes each. With sealed it makes their checksums
// right.
func cutFrames(b []byte, sealed bool) (frames [][]byte) {
	table := crc32.MakeTable(crc32.Castagnoli)
	for len(b) >= 2 {
		n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
		frame := append([]byte(nil), b[2:2+n]...)
		b = b[2+n:]
		if sealed && n >= keyversion.HeaderSize {
			binary.LittleEndian.PutUint32(frame[16:], crc32.Checksum(frame[keyversion.HeaderSize:], table))
			binary.LittleEndian.PutUint32(frame[20:], crc32.Checksum(frame[:20], table))
		}
		frames = append(frames, frame)
	}
	return frames
}

func joinFrames(frames ...[]byte) (b []byte) {
	for _, f := range frames {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(f))), f...)
	}
	return b
}

// connectionSeeds returns a hello and batches, as a router sends them.
func connectionSeeds(t testing.TB) (hello []byte, batches [][]byte) {
	hello, err := keyversion.AppendHello(nil, &keyversion.Hello{Topic: "/maintenance", Bucket: "b", Connections: 2})
	for n := uint64(1); n <= 2 && err == nil; n++ {
		var batch []byte
		batch, err = keyversion.AppendBatch(nil, &keyversion.Batch{Number: n, Events: []keyversion.Event{{
			Kind: keyversion.Insert, VBucket: 5, Incarnation: index.Incarnation{Epoch: 1, Term: 1, Counter: 1}, Seqno: 3,
			DocID: []byte("d"), Statements: []keyversion.Statement{{Index: 9, Slice: 0, Keys: [][]byte{[]byte("k")}}},
		}}})
		batches = append(batches, batch)
	}
	if err != nil {
		t.Fatal(err)
	}
	return hello, batches
}

// FuzzServe checks that nothing panics whatever the messages of a connection are, and that the sink gets batches in
// order and is closed once, with a reason. The client gets the same bytes as acknowledgements.
func FuzzServe(f *testing.F) {
	hello, batches := connectionSeeds(f)
	f.Add(joinFrames(hello, batches[0], batches[1]), true)
	f.Add(joinFrames(hello, batches[1], batches[0]), false)
	f.Add(joinFrames(hello, hello), false)
	f.Add(joinFrames(keyversion.AppendAck(nil, keyversion.Ack{Number: 3}),
		keyversion.AppendAck(nil, keyversion.Ack{Refused: "no"})), true)
	f.Add([]byte{0, 0, 0, 1, 'G'}, false)
	s := NewServer(ServerConfig{Logger: hclog.NewNullLogger()}, nil)
	f.Cleanup(s.Stop)
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		frames := cutFrames(b, sealed)
		if sink := serveFrames(s, frames); sink != nil && (sink.closed != 1 || sink.wrong != "") {
			t.Fatalf("closed %d times, %s", sink.closed, sink.wrong)
		}
		c := &Conn{stream: &framesClient{framesStream: framesStream{frames: frames}}, onAck: func(uint64) {}}
		for range len(frames) + 1 {
			_, _ = c.receive()
		}
	})
}

// framesClient is the other end of a framesStream.
type framesClient struct {
	grpc.ClientStream
	framesStream
}

func (s *framesClient) Context() context.Context { return s.framesStream.Context() }
func (s *framesClient) RecvMsg(m any) error      { return s.framesStream.RecvMsg(m) }
func (s *framesClient) SendMsg(m any) error      { return s.framesStream.SendMsg(m) }

// TestLengthsBoundAllocations checks that lengths inside messages do not make a reader allocate more memory than their
// bytes justify.
func TestLengthsBoundAllocations(t *testing.T) {
	hello, batches := connectionSeeds(t)
	s := NewServer(ServerConfig{Logger: hclog.NewNullLogger()}, nil)
	defer s.Stop()
	if sink := serveFrames(s, cutFrames(joinFrames(hello, batches[0], batches[1]), false)); sink == nil || sink.last != 2 {
		t.Fatalf("the seeds are no connection: %+v", sink)
	}
	allocbound.Check(t, 0, func(b []byte) { serveFrames(s, cutFrames(joinFrames(b), true)) }, hello)
	allocbound.Check(t, 0, func(b []byte) { serveFrames(s, cutFrames(joinFrames(hello, b), true)) }, batches[0])
}

// TestFrameBuffers checks that a frame that came in pieces takes less than twice its size.
func TestFrameBuffers(t *testing.T) {
	for _, size := range []int{33 << 10, 70 << 10, 130 << 10, 600 << 10, 3 << 20} {
		frame, m := make([]byte, size), inbound{}
		if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(frame[:100]), mem.SliceBuffer(frame[100:])},
			&m); err != nil {
			t.Fatal(err)
		}
		if got := m.buf.ReadOnlyData(); len(got) != size || cap(got) >= 2*size {
			t.Errorf("a frame of %d bytes is kept in %d of %d", size, len(got), cap(got))
		}
		m.buf.Free()
	}
}
