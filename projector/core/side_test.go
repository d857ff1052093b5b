package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/wire"
)

// ofNode returns a side stream of an indexer's process.
func ofNode(topic string, node index.NodeID, boot string) SideStream {
	return SideStream{SideKey{topic, "b"}, &wire.SideTarget{Node: node, BootID: boot, Copies: []index.CopyID{1}}}
}

func subscription(topic string) SideStream {
	return SideStream{SideKey{topic, "b"}, &wire.SideTarget{Indexes: []index.ID{1}}}
}

// TestMakeRoom: a request replaces an open side stream of its topic, and those of an earlier process of its indexer;
// subscribers leave room for indexers.
func TestMakeRoom(t *testing.T) {
	var full, subscribed []SideStream
	for i := range MaxSideStreams {
		full = append(full, ofNode(fmt.Sprint("/catchup/1/", i), 1, "boot"))
	}
	for i := range MaxSubscriptions {
		subscribed = append(subscribed, subscription(fmt.Sprint("/backfill/", i)))
	}
	for _, c := range []struct {
		what     string
		open     []SideStream
		s        SideStream
		replaced []SideKey
		full     bool
	}{
		{"the first", nil, ofNode("/catchup/1/a", 1, "boot"), nil, false},
		{"another of the same process", full[:2], ofNode("/catchup/1/a", 1, "boot"), nil, false},
		{"the same topic", full[:2], ofNode("/catchup/1/1", 1, "boot"), []SideKey{{"/catchup/1/1", "b"}}, false},
		{"the same topic of another bucket", full[:1], SideStream{SideKey{"/catchup/1/0", "c"}, full[0].Target}, nil, false},
		{"a later process", full[:2], ofNode("/catchup/1/a", 1, "later"), []SideKey{full[0].SideKey, full[1].SideKey}, false},
		{"another indexer", full[:2], ofNode("/catchup/2/a", 2, "later"), nil, false},
		{"one that does not name its process", full[:2], ofNode("/catchup/1/a", 1, ""), nil, false},
		{"no room", full, ofNode("/catchup/1/a", 1, "boot"), nil, true},
		{"no room but its own", full, ofNode("/catchup/1/7", 1, "boot"), []SideKey{full[7].SideKey}, false},
		{"a subscriber too many", subscribed, subscription("/backfill/a"), nil, true},
		{"a subscriber again", subscribed, subscription("/backfill/1"), []SideKey{subscribed[1].SideKey}, false},
		{"an indexer beside subscribers", subscribed, ofNode("/catchup/1/a", 1, "boot"), nil, false},
		{"the indexer numbered 0 beside subscribers", subscribed, ofNode("/catchup/0/a", 0, "boot"), nil, false},
	} {
		replaced, err := MakeRoom("p1", c.open, &c.s)
		if !slices.Equal(replaced, c.replaced) || errors.Is(err, errcode.Unavailable) != c.full {
			t.Errorf("%s: replaces %v, %v", c.what, replaced, err)
		}
	}
}

// TestMayRest: nothing has to move if nothing is left to send or to take, or if the stream is to be retried forever.
func TestMayRest(t *testing.T) {
	var finite, endless wire.RestartTimestamp
	endless.Add(wire.StreamStart{VBucket: 1, End: wire.NoEnd})
	finite.Add(wire.StreamStart{VBucket: 1, End: wire.NoEnd})
	finite.Add(wire.StreamStart{VBucket: 2, End: 9})
	for _, c := range []struct {
		forever     bool
		want        *wire.RestartTimestamp
		taken, rest bool
	}{
		{want: &finite, taken: true},
		{want: &endless, taken: true, rest: true},
		{want: &endless},
		{forever: true, want: &finite, rest: true},
	} {
		if got := MayRest(&wire.SideTarget{RetryForever: c.forever}, c.want, func() bool { return c.taken }); got != c.rest {
			t.Errorf("for ever %v, %v, taken %v: %v", c.forever, c.want.Ends, c.taken, got)
		}
	}
}

// TestCovered: a finite stream covers up to its end, and reaches as far as KV is or was read.
func TestCovered(t *testing.T) {
	s := NewStream(index.Incarnation{Counter: 1}, &wire.StreamStart{End: 20}, At{High: 30, PurgeKnown: true})
	if err := s.BeginsOn(nil); err != nil {
		t.Fatal(err)
	}
	s.Mark(25)
	s.Place(25)
	s.Took(18, false)
	if reach := s.Covered(22); reach != 25 || s.Last != 20 {
		t.Errorf("reach %d, covered %d; a window up to 25 was read", reach, s.Last)
	}
	if reach := s.Covered(31); reach != 31 {
		t.Errorf("reach %d, KV is at 31", reach)
	}
}
