package core

import (
	"slices"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

func wanted(starts ...wire.StreamStart) *wire.RestartTimestamp {
	t := &wire.RestartTimestamp{}
	for _, s := range starts {
		t.Add(s)
	}
	return t
}

// Streams that begin alike are read once, up to the highest end; a side stream that differs is refused, without
// effect on the others.
func TestReadingJoin(t *testing.T) {
	base := wire.StreamStart{VBucket: 1, VBUUID: 7, Seqno: 5, Window: timestamp.Window{Start: 5, End: 5}, End: 10,
		Branch: 7}
	with := func(f func(s *wire.StreamStart)) wire.StreamStart {
		s := base
		f(&s)
		return s
	}
	for _, c := range []struct {
		what string
		s    wire.StreamStart
		ok   bool
	}{
		{"alike", base, true},
		{"a higher end", with(func(s *wire.StreamStart) { s.End = 20 }), true},
		{"a lower end", with(func(s *wire.StreamStart) { s.End = 6 }), true},
		{"another vbucket", with(func(s *wire.StreamStart) { s.VBucket, s.Seqno = 2, 0 }), true},
		{"another start", with(func(s *wire.StreamStart) { s.Seqno = 0 }), false},
		{"another branch of the start", with(func(s *wire.StreamStart) { s.VBUUID = 8 }), false},
		{"another branch now", with(func(s *wire.StreamStart) { s.Branch = 8 }), false},
		{"another branch before", with(func(s *wire.StreamStart) { s.Previous = 8 }), false},
		{"another window", with(func(s *wire.StreamStart) { s.Window.Start = 4 }), false},
	} {
		r := NewReading()
		if !r.Join(1, wanted(base), nil) {
			t.Fatal("the first one is refused")
		}
		other := with(func(s *wire.StreamStart) { s.VBucket = 3 })
		if ok := r.Join(2, wanted(other, c.s), nil); ok != c.ok {
			t.Errorf("%s: %v", c.what, ok)
		}
		end := uint64(10)
		if c.ok && c.s.VBucket == 1 {
			end = max(end, c.s.End)
		}
		if got := r.Starts()[1]; got.Seqno != 5 || got.End != end {
			t.Errorf("%s: requested %+v", c.what, got)
		}
		if _, has := r.Starts()[3]; has != c.ok {
			t.Errorf("%s: the other vbucket is read: %v", c.what, has)
		}
	}
}

func TestShareable(t *testing.T) {
	copies := []index.CopyID{1}
	finite := wire.StreamStart{VBucket: 1, End: 10}
	for _, c := range []struct {
		what string
		t    wire.SideTarget
		s    wire.StreamStart
		ok   bool
	}{
		{"copies", wire.SideTarget{Copies: copies}, finite, true},
		{"a subscriber", wire.SideTarget{Indexes: []index.ID{1}}, finite, false},
		{"sums", wire.SideTarget{Copies: copies, Sums: true}, finite, false},
		{"for ever", wire.SideTarget{Copies: copies, RetryForever: true}, finite, false},
		{"no end", wire.SideTarget{Copies: copies}, wire.StreamStart{VBucket: 1}, false},
		{"no end, by name", wire.SideTarget{Copies: copies}, wire.StreamStart{VBucket: 1, End: wire.NoEnd}, false},
	} {
		if ok := Shareable(&c.t, wanted(finite, c.s)); ok != c.ok {
			t.Errorf("%s: %v", c.what, ok)
		}
	}
}

// Nodes are awaited if they have a copy of an index that is being built; none are for an index that is whole.
func TestAwaited(t *testing.T) {
	copyOn := func(id index.CopyID, node index.NodeID, s partition.CopyState) partition.Copy {
		return partition.Copy{ID: id, Node: node, State: s}
	}
	d := &wire.Definitions{
		Indexes: []index.Definition{{ID: 1, State: index.Backfill}, {ID: 2, State: index.Maintenance},
			{ID: 3, State: index.Backfill}},
		Topologies: []partition.Topology{
			{Index: 1, Copies: []partition.Copy{copyOn(10, 1, partition.Allocated), copyOn(11, 2, partition.Allocated),
				copyOn(12, 2, partition.Allocated), copyOn(13, 3, partition.Placed)}},
			{Index: 2, Copies: []partition.Copy{copyOn(20, 1, partition.Allocated), copyOn(21, 4, partition.Allocated)}},
			{Index: 3, Copies: []partition.Copy{copyOn(30, 5, partition.Allocated)}},
		}}
	for _, c := range []struct {
		copies []index.CopyID
		want   []index.NodeID
	}{{[]index.CopyID{10}, []index.NodeID{2}}, {[]index.CopyID{20}, nil}, {[]index.CopyID{10, 20}, []index.NodeID{2}}} {
		got := Awaited(d, &wire.SideTarget{Node: 1, Copies: c.copies})
		if !slices.Equal(got, c.want) {
			t.Errorf("copies %v: %v", c.copies, got)
		}
	}
	r := NewReading()
	r.Join(1, wanted(wire.StreamStart{VBucket: 1, End: 10}), []index.NodeID{2})
	if r.Whole() {
		t.Error("whole without node 2")
	}
	r.Join(2, wanted(wire.StreamStart{VBucket: 1, End: 10}), []index.NodeID{1})
	if !r.Whole() {
		t.Error("node 2 has come, and it is not whole")
	}
}

// A reader that is always slower than the others leaves, however small the difference; one that is late occasionally
// stays.
func TestHold(t *testing.T) {
	const tick = 25 * time.Millisecond
	for _, c := range []struct {
		what  string
		holds func(n int) bool
		after int // looks; 0: never
	}{
		{"all the time", func(int) bool { return true }, 21},
		{"half of the time", func(n int) bool { return n%2 == 0 }, 53},
		{"a sixth of the time", func(n int) bool { return n%6 == 0 }, 0},
		{"300 ms of two seconds", func(n int) bool { return n%80 < 12 }, 0},
		{"never", func(int) bool { return false }, 0},
	} {
		var h Hold
		left := 0
		for n := range 10_000 {
			if h.Look(c.holds(n), tick) {
				left = n + 1
				break
			}
		}
		if left != c.after {
			t.Errorf("%s: it leaves after %d looks, want %d", c.what, left, c.after)
		}
	}
}
