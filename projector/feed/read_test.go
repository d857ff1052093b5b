package feed

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "tidemark/internal/testing/draws"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// memoryConn returns its contents in the requested pieces, then ends.
type memoryConn struct {
	net.Conn
	data   []byte
	pieces []int
}

func (m *memoryConn) Read(p []byte) (int, error) {
	if len(m.data) == 0 {
		return 0, io.EOF
	}
	n := len(m.data)
	if len(m.pieces) > 0 {
		n, m.pieces = m.pieces[0], m.pieces[1:]
	}
	n = copy(p, m.data[:min(n, len(m.data))])
	m.data = m.data[n:]
	return n, nil
}
func (m *memoryConn) Write(p []byte) (int, error)      { return len(p), nil }
func (m *memoryConn) Close() error                     { return nil }
func (m *memoryConn) SetDeadline(time.Time) error      { return nil }
func (m *memoryConn) SetReadDeadline(time.Time) error  { return nil }
func (m *memoryConn) SetWriteDeadline(time.Time) error { return nil }

// readAll runs a connection over bytes and collects its events and its end.
func readAll(data []byte, pieces []int) (events []string, end error) {
	conf, err := Config{Name: "n", Bucket: "b", BufferBytes: MaxBufferBytes, DeadAfter: time.Hour}.Checked()
	if err != nil {
		return nil, err
	}
	c := newConn(&kvclient.Session{Conn: &memoryConn{data: data, pieces: pieces}}, nil, conf)
	defer func() { _ = c.Close() }()
	var hold []*Block
	for {
		b, err := c.Next(context.Background())
		if err != nil {
			end = err
			break
		}
		hold = append(hold, b)
	}
	for _, b := range hold { // only read when everything has arrived
		for _, e := range b.Events {
			events = append(events, fmt.Sprintf("%v %d %d %d %s %d", e.Kind, e.VBucket, e.Stream, e.Seqno, e.Key, len(e.Value)))
		}
		b.Release()
	}
	return events, end
}

// However the bytes are divided, the same events result, none lost, none twice.
func TestCutsDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var data []byte
		var want []string
		for i := range rapid.IntRange(1, 60).Draw(t, "messages") {
			size := rapid.OneOf(rapid.IntRange(0, 200), rapid.Just(0), rapid.IntRange(chunkBytes-2000, chunkBytes+2000)).Draw(t,
				"size")
			if i%20 != 0 {
				size %= 3000
			}
			f := mcbp.Frame{
				Header: mcbp.Request(mcbp.OpDCPMutation, uint16(i), 7),
				Extras: mcbp.Mutation{Seqno: uint64(i)}.AppendExtras(nil), Key: fmt.Append(nil, "key", i),
				Value: bytes.Repeat([]byte{byte(i)}, size),
			}
			if rapid.IntRange(0, 9).Draw(t, "noop") == 0 {
				data, _ = mcbp.Append(data, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPNoop, 0, 1)})
			}
			data, _ = mcbp.Append(data, f)
			want = append(want, fmt.Sprintf("Mutation %d 7 %d key%d %d", i, i, i, size))
		}
		pieces := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(1, 60), rapid.IntRange(1, 5000), rapid.Just(1)), 0, 300).Draw(t,
			"pieces")
		got, _ := readAll(data, pieces)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %d events, want %d:\n%v\n%v", len(got), len(want), got, want)
		}
	})
}

// A trickle of small messages that no one takes becomes few blocks: their shared memory is filled before more is
// used.
func TestTrickleSharesMemory(t *testing.T) {
	var data []byte
	var pieces []int
	const messages = 3000
	for i := range messages {
		before := len(data)
		data, _ = mcbp.Append(data, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPMutation, 0, 7),
			Extras: mcbp.Mutation{Seqno: uint64(i)}.AppendExtras(nil), Key: []byte("k"), Value: make([]byte, 300)})
		pieces = append(pieces, len(data)-before)
	}
	conf, err := Config{Name: "n", Bucket: "b", DeadAfter: time.Hour}.Checked()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(&kvclient.Session{Conn: &memoryConn{data: data, pieces: pieces}}, nil, conf)
	defer c.Close()
	<-c.Done()
	c.mu.Lock()
	blocks, events, chunks := len(c.queue), 0, map[*chunk]bool{}
	for _, b := range c.queue {
		events += len(b.Events)
		for _, k := range b.chunks {
			chunks[k] = true
		}
	}
	c.mu.Unlock()
	if need := len(data)/chunkBytes + 2; events != messages || blocks > need || len(chunks) > need {
		t.Fatalf("%d events in %d blocks and %d chunks, want %d events in at most %d", events, blocks, len(chunks), messages,
			need)
	}
}

// Whatever a node sends: no panic, no hang, no allocation by an unchecked length.
func FuzzRead(f *testing.F) {
	seed := func(frames ...mcbp.Frame) {
		var b []byte
		for _, fr := range frames {
			b, _ = mcbp.Append(b, fr)
		}
		f.Add(b, uint16(7))
	}
	seed(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, 1, 2),
		Extras: mcbp.SnapshotMarker{End: 4}.AppendExtras(nil)},
		mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPMutation, 1, 2), Extras: mcbp.Mutation{Seqno: 1}.AppendExtras(nil),
			Key: []byte("k"), Value: []byte("{}")},
		mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPNoop, 0, 9)})
	h := mcbp.Request(mcbp.OpDCPMutation, 1, 2)
	h.Datatype = mcbp.DatatypeSnappy | mcbp.DatatypeXattr
	seed(mcbp.Frame{Header: h, Extras: mcbp.Mutation{Seqno: 1, MetaLen: 1}.AppendExtras(nil), Key: []byte("k"),
		Value: []byte{5, 16, 0, 0, 0, 0, 1, 1}})
	seed(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPStreamEnd, 1, 2), Extras: mcbp.AppendStreamEnd(nil, 2)})
	seed(mcbp.Frame{Header: mcbp.Response(mcbp.Request(mcbp.OpDCPStreamReq, 1, 2), 0),
		Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 1}})})
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		_, end := readAll(data, []int{int(cut) + 1, int(cut) + 1})
		if end == nil {
			t.Fatal("the connection has no end")
		}
	})
}
