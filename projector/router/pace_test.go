package router

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/keyversion"
)

// at updates a judge's data about a node: what holds it up between two times.
func (j *judge) heldAt(node index.NodeID, from, to time.Duration) {
	p := j.nodes[node]
	p.count(from, j.slot)
	p.holds++
	p.count(to, j.slot)
	p.holds--
}

func testJudge(nodes ...index.NodeID) *judge {
	j := newJudge(true, DefaultSlowWindow, DefaultSlowAfter)
	for _, n := range nodes {
		j.nodes[n] = &pace{lanes: 1}
	}
	return j
}

// A slow minority is dropped, a slow majority is not; times outside the window do not count.
func TestVerdicts(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		nodes  []index.NodeID
		held   map[index.NodeID]time.Duration // until 1 s
		at     time.Duration
		drops  bool
		resume bool
	}{
		{"the only one", []index.NodeID{1}, map[index.NodeID]time.Duration{1: 900 * ms}, 1000 * ms, false, true},
		{"one of two", []index.NodeID{1, 2}, map[index.NodeID]time.Duration{1: 100 * ms}, 1000 * ms, true, false},
		{"hardly", []index.NodeID{1, 2}, map[index.NodeID]time.Duration{1: 99 * ms}, 1000 * ms, false, true},
		{"both", []index.NodeID{1, 2}, map[index.NodeID]time.Duration{1: 100 * ms, 2: 100 * ms}, 1000 * ms, false, true},
		{"two of four", []index.NodeID{1, 2, 3, 4}, map[index.NodeID]time.Duration{1: 500 * ms, 3: 500 * ms}, 1000 * ms, true,
			false},
		{"three of five", []index.NodeID{1, 2, 3, 4, 5}, map[index.NodeID]time.Duration{1: 500 * ms, 3: 500 * ms,
			4: 500 * ms}, 1000 * ms, false, true},
		{"long ago", []index.NodeID{1, 2}, map[index.NodeID]time.Duration{1: 500 * ms}, 1000*ms + DefaultSlowWindow, false,
			true},
		{"not that long ago", []index.NodeID{1, 2}, map[index.NodeID]time.Duration{1: 500 * ms}, 700*ms + DefaultSlowWindow,
			true, false},
	} {
		j := testJudge(c.nodes...)
		for n, d := range c.held {
			j.heldAt(n, time.Second-d, time.Second)
		}
		if yes, again := j.dropsAt(1, c.at); yes != c.drops || yes == (again > 0) {
			t.Errorf("%s: drops %v, again %s", c.name, yes, again)
		}
		if yes, again := j.resumesAt(1, c.at); yes != c.resume || yes == (again > 0) {
			t.Errorf("%s: resumes %v, again %s", c.name, yes, again)
		}
	}
}

// After a majority was slow, no endpoint is dropped for a while, though those that wait for the slowest look fast.
func TestSlowMajorityIsRemembered(t *testing.T) {
	j := testJudge(1, 2, 3)
	j.heldAt(1, 0, time.Second)
	j.heldAt(2, 0, time.Second)
	if yes, _ := j.dropsAt(1, time.Second); yes {
		t.Error("dropped while two of three are slow")
	}
	p := j.nodes[1]
	p.holds++ // forever
	if yes, _ := j.dropsAt(1, 2*DefaultSlowWindow); yes {
		t.Error("dropped soon after two of three were slow")
	}
	if yes, _ := j.dropsAt(1, 2*time.Second+slowHolds*DefaultSlowWindow); !yes {
		t.Error("throttled for ever by one of three")
	}
}

// The window equals a naive sum over intervals, except for the slot at its edge.
func TestWindowCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slot, window = 10 * time.Millisecond, slowSlots * 10 * time.Millisecond
		var p pace
		type span struct{ from, to time.Duration }
		var all []span
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			d := time.Duration(rapid.Int64Range(0, int64(3*slot)).Draw(t, "d"))
			if rapid.IntRange(0, 20).Draw(t, "long") == 0 {
				d *= 50
			}
			p.count(now+d, slot)
			if p.holds > 0 {
				all = append(all, span{now, now + d})
			}
			now += d
			p.holds = rapid.IntRange(0, 2).Draw(t, "holds")
			sum := func(from time.Duration) (s time.Duration) {
				for _, x := range all {
					s += max(0, x.to-max(x.from, from))
				}
				return s
			}
			if got, most, least := p.held(), sum(now-window), sum(now-window+slot); got < least || got > most {
				t.Fatalf("at %s: %s, want %s to %s", now, got, least, most)
			}
		}
	})
}

// TestRoomBehindALargeEvent: a small event that begins a batch leaves room for others, whatever its frame held
// before, and the memory of a large event is not kept.
func TestRoomBehindALargeEvent(t *testing.T) {
	for what, keys := range map[string]int{"a batch": batchBytes/1000 - 1, "a large event": 600} {
		l := &lane{topic: &Topic{router: &Router{cfg: Config{Sharers: func() int { return 1000 }}}}, limit: 4 << 20,
			out: outbox{open: new(frame)}}
		put := func(keys int) {
			t.Helper()
			e := keyversion.Event{Kind: keyversion.Insert, Seqno: 1, DocID: []byte("d"), Statements: []keyversion.Statement{
				{Index: 1, Keys: slices.Repeat([][]byte{bytes.Repeat([]byte("k"), 1000)}, keys)}}}
			if err := l.out.open.enc.Append(&e); err != nil {
				t.Fatal(err)
			}
		}
		put(keys)
		f := l.out.seal()
		l.out.next()
		l.out.acknowledged(f.number)
		if l.out.kept > 2*batchBytes {
			t.Errorf("behind %s a frame of %d bytes is kept", what, l.out.kept)
		}
		put(1)
		l.out.seal() // the next frame is the kept one
		put(1)
		if !l.room(0) {
			t.Errorf("behind %s two small events leave no room", what)
		}
	}
}

// TestOneBoundForAll: routers of one process share the bound of an endpoint's queue; each has room for at least a
// batch.
func TestOneBoundForAll(t *testing.T) {
	sharers := 1
	r := &Router{cfg: Config{Sharers: func() int { return sharers }}}
	l := &lane{topic: &Topic{router: r}, limit: 4 << 20,
		out: outbox{open: new(frame), queue: make([]*frame, 1), bytes: 3 << 20}}
	for _, tt := range []struct {
		sharers, bound int
		room           bool
	}{{0, 4 << 20, true}, {1, 4 << 20, true}, {2, 2 << 20, false}, {4, 1 << 20, false}, {1000, batchBytes, false},
		{1, 4 << 20, true}} {
		sharers = tt.sharers
		if l.bound() != tt.bound || l.room(0) != tt.room {
			t.Errorf("%d share it: bound %d, room %v; want %d, %v", sharers, l.bound(), l.room(0), tt.bound, tt.room)
		}
	}
	if r.cfg.Sharers = nil; l.bound() != l.limit {
		t.Errorf("alone it has %d of %d", l.bound(), l.limit)
	}
}
