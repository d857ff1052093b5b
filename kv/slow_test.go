package kv

import (
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"tidemark/internal/testing/raced"
	"tidemark/kv/mcbp"
)

// announced returns the header of a SET with the largest permitted body, and that many bytes of the body.
func announced(t *testing.T, bytes int) []byte {
	t.Helper()
	head, err := mcbp.Append(nil, setFrame(0, "a", strings.Repeat("x", bytes)))
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint32(head[8:], mcbp.MaxBody)
	return head
}

// Clients that announce large documents, together more than the node accepts at a time, and do not send them delay no
// other client.
func TestAnnouncedBodiesDelayNoOtherRequests(t *testing.T) {
	config := testConfig(t.TempDir())
	config.FrameTimeout = time.Hour
	n, _ := runNode(t, config)
	for range 16 {
		c := login(t, n.MemcachedAddr())
		if _, err := c.nc.Write(announced(t, 0)); err != nil {
			t.Fatal(err)
		}
	}
	login(t, n.MemcachedAddr()).want(setFrame(1, "b", strings.Repeat("y", 300<<10)), mcbp.StatusOK)
}

// A large document that stops arriving ends its connection long before the time for the whole frame is over.
func TestBodyThatStopsComing(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	config.FrameTimeout = time.Minute // the time without a byte is a sixth of it
	n, _ := runNode(t, config)
	c := login(t, n.MemcachedAddr())
	began := time.Now()
	if _, err := c.nc.Write(announced(t, 200<<10)); err != nil {
		t.Fatal(err)
	}
	c.closed("a body that stops coming")
	if took := time.Since(began); took > config.FrameTimeout {
		t.Fatalf("it was closed after %v, all of the body has %v", took, config.FrameTimeout)
	}
}

// Clients that request large documents and do not read the answers cost no copies of them.
func TestUnreadAnswers(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	login(t, n.MemcachedAddr()).want(setFrame(0, "a", strings.Repeat("x", 16<<20)), mcbp.StatusOK)
	used := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := used()
	const clients = 16
	for range clients {
		c := login(t, n.MemcachedAddr())
		c.send(request(mcbp.OpGet, 0, nil, []byte("a"), nil), request(mcbp.OpGetK, 0, nil, []byte("a"), nil))
		head := make([]byte, mcbp.HeaderSize)
		if _, err := c.r.Read(head[:1]); err != nil { // the node is sending the answer
			t.Fatal(err)
		}
	}
	if grown := used() - before; grown > clients<<20 && !raced.On {
		t.Fatalf("%d bytes for unread answers", grown)
	}
}

// A large answer, which is written from the stored document without a copy, arrives intact between other answers,
// also while a producer writes on the same connection.
func TestLargeAnswersBetweenOthers(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	n, _ := runNode(t, config)
	large := strings.Repeat("x", 200<<10)
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(setFrame(0, "a", large), mcbp.StatusOK)
	c.want(setFrame(0, "b", "small"), mcbp.StatusOK)
	c.want(fromZero(1), mcbp.StatusOK)
	const rounds = 50
	writer := login(t, n.MemcachedAddr())
	for range rounds {
		writer.want(setFrame(1, "live", large), mcbp.StatusOK)
		c.send(request(mcbp.OpGet, 0, nil, []byte("b"), nil), request(mcbp.OpGetK, 0, nil, []byte("a"), nil),
			request(mcbp.OpGet, 0, nil, []byte("b"), nil))
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(testTimeout))
	var answers []string
	for live := 0; len(answers) < 3*rounds || live == 0; {
		f, err := c.tryRead()
		if err != nil {
			var timeout net.Error
			t.Fatalf("after %d answers: %v (timeout %v)", len(answers), err, errors.As(err, &timeout))
		}
		switch {
		case f.Magic.IsResponse():
			answers = append(answers, string(f.Key)+":"+f.Status().String()+":"+string(f.Value))
		case f.Op == mcbp.OpDCPMutation:
			if string(f.Value) != large {
				t.Fatalf("a mutation of %d bytes", len(f.Value))
			}
			live++
		}
	}
	for i, a := range answers {
		if want := [...]string{":OK:small", "a:OK:" + large, ":OK:small"}[i%3]; a != want {
			t.Fatalf("answer %d is %.40q, want %.40q", i, a, want)
		}
	}
}
