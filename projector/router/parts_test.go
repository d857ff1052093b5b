package router_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"tidemark/expression"
	"tidemark/keyversion"
	"tidemark/projector/router"
)

// large returns n different keys of 1 MiB.
func large(n int) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = bytes.Repeat([]byte{byte(i + 1)}, 1<<20)
	}
	return keys
}

// shape describes the data events of the newest connection: seqno, part, and the bytes of keys of each index.
func (w *wireTap) shape(addr string) (lines []string) {
	conns := w.at(addr)
	if len(conns) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range conns[len(conns)-1].batches {
		for i := range b.Events {
			e := &b.Events[i]
			line := fmt.Sprintf("%s %d part %d more %v", e.Kind, e.Seqno, e.Part, e.More)
			if e.Begin != nil {
				line += fmt.Sprint(" after ", e.Begin.Start)
			}
			for _, st := range e.Statements {
				line += fmt.Sprintf(" %d:%d", st.Index, len(st.Keys))
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func (w *wireTap) expectShape(t *testing.T, addr string, want ...string) {
	t.Helper()
	w.await(t, func() bool { return fmt.Sprint(w.shape(addr)) == fmt.Sprint(want) }, func() string {
		return fmt.Sprintf("got  %q\nwant %q", w.shape(addr), want)
	})
}

// A document whose keys do not fit into a frame is sent in parts, and every index gets all of its keys. The endpoint
// reaches its seqno with the last part: if the connection is cut after some parts were acknowledged, all are sent
// again.
func TestDocumentInParts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, router.Config{QueueBytes: 1 << 30}, maintenance(1))
	f.tap.set(f.tap.hold, "n1", true)
	f.begin(0, 1, view(t, 1, one(1, 1), one(2, 1), one(3, 1), one(4, 1)), 0)
	small := doc(1, "a", "x", "x", "x", "x")
	f.must(f.topic.Mutation(t.Context(), 0, small))
	huge := doc(2, "b", "x", "x", "x", "x")
	huge.Keys[0], huge.Keys[1], huge.Keys[2] = large(30), large(30), large(15)
	f.must(f.topic.Mutation(t.Context(), 0, huge))
	f.must(f.topic.Mutation(t.Context(), 0, doc(3, "c", "y", "y", "y", "y")))
	first, last := "INSERT 2 part 0 more true 1:30", "INSERT 2 part 1 more false 2:30 3:15 4:1"
	f.tap.expectShape(t, "n1", "STREAM_BEGIN 0 part 0 more false after 0", "INSERT 1 part 0 more false 1:1 2:1 3:1 4:1",
		first, last,
		"INSERT 3 part 0 more false 1:1 2:1 3:1 4:1")
	if st := f.r.Stats()[0]; st.Oversized != 0 || st.Parts != 2 {
		t.Fatalf("%+v", st)
	}
	c := f.tap.at("n1")[0]
	f.tap.mu.Lock()
	var number uint64
	for _, b := range c.batches {
		if b.Events[len(b.Events)-1].More {
			number = b.Number
		}
	}
	f.tap.mu.Unlock()
	c.onAck(number)
	c.Close()
	f.tap.expectShape(t, "n1", "STREAM_BEGIN 1 part 0 more false after 1", first, last,
		"INSERT 3 part 0 more false 1:1 2:1 3:1 4:1")
	f.tap.ackAll("n1")
	f.tap.await(t, func() bool { return f.topic.Drain(t.Context()) == nil }, func() string { return "not drained" })
}

// The largest document that the limits of expressions allow in one index fits into one frame, whatever its slices.
func TestOneIndexFitsAFrame(t *testing.T) {
	const slices = 1024
	most := expression.DefaultTotalBytes + expression.DefaultKeys*binary.MaxVarintLen16 + slices*16 +
		keyversion.MaxDocID + 1<<10
	if most > keyversion.MaxFrame {
		t.Fatalf("%d bytes of keys, a frame has %d", most, keyversion.MaxFrame)
	}
}
