package partition

import (
	"errors"
	"fmt"
	"testing"

	"tidemark/index"
)

func TestTheHashIsPartOfTheFormat(t *testing.T) {
	l := Layout{Scheme: HashDocID, Partitions: 1024}
	for id, want := range map[string]index.SliceID{"airport::LFPG": 460, "country::FR": 998, "": 294} {
		if got := l.SliceOf([]byte(id)); got != want {
			t.Errorf("%q is in slice %d, want %d: documents would be looked for where they are not", id, got, want)
		}
	}
}

func TestSimilarIDsSpread(t *testing.T) {
	l := Layout{Scheme: HashDocID, Partitions: 6}
	var count [6]int
	const n = 60000
	for i := range n {
		count[l.SliceOf(fmt.Appendf(nil, "user::%08d", i))]++
	}
	for s, c := range count {
		if c < n/6*95/100 || c > n/6*105/100 {
			t.Errorf("slice %d has %d of %d documents", s, c, n)
		}
	}
}

func TestLocate(t *testing.T) {
	topo := Topology{Index: 1, Layout: Layout{Scheme: HashDocID, Partitions: 1}, Copies: []Copy{
		{ID: 1, Slice: 0, Replica: 0, Node: 7, State: Allocated}, {ID: 2, Slice: 0, Replica: 1, Node: 3, State: Leaving},
	}}
	if s, slice, ok := topo.Locate(0, KeyVersion{DocID: []byte("x")}); !ok || s.Node != 7 || slice != 0 {
		t.Errorf("replica 0: %v %v %v", s, slice, ok)
	}
	if _, _, ok := topo.Locate(1, KeyVersion{DocID: []byte("x")}); ok {
		t.Error("a copy that leaves has no place")
	}
	if got := topo.Replicas(); len(got) != 2 {
		t.Errorf("replicas %v", got)
	}
	if got := topo.Servers(); len(got) != 2 || got[0] != 3 || got[1] != 7 {
		t.Errorf("servers %v", got)
	}
}

func TestCheck(t *testing.T) {
	for _, l := range []Layout{{}, {Scheme: HashDocID}, {Scheme: HashDocID, Partitions: MaxPartitions + 1},
		{Scheme: 9, Partitions: 4}} {
		if err := l.Check(); !errors.Is(err, ErrLayout) {
			t.Errorf("%+v passes: %v", l, err)
		}
	}
	if err := (&Layout{Scheme: HashDocID, Partitions: MaxPartitions}).Check(); err != nil {
		t.Error(err)
	}
}
