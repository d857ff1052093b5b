package partition_test

import (
	"errors"
	"fmt"
	"testing"

	"tidemark/index"
	"tidemark/partition"
)

func TestDocIDHashIsStable(t *testing.T) {
	l := partition.Layout{Scheme: partition.HashDocID, Partitions: 1024}
	for id, want := range map[string]index.SliceID{"airport::LFPG": 460, "country::FR": 998, "": 294} {
		if got := at(t, &l).Slice(partition.KeyVersion{DocID: []byte(id)}); got != want {
			t.Errorf("%q is in slice %d, want %d: documents would be looked for where they are not", id, got, want)
		}
	}
}

func TestSimilarIDsSpread(t *testing.T) {
	l := partition.Layout{Scheme: partition.HashDocID, Partitions: 6}
	var count [6]int
	by := at(t, &l)
	const n = 60000
	for i := range n {
		count[by.Slice(partition.KeyVersion{DocID: fmt.Appendf(nil, "user::%08d", i)})]++
	}
	for s, c := range count {
		if c < n/6*95/100 || c > n/6*105/100 {
			t.Errorf("slice %d has %d of %d documents", s, c, n)
		}
	}
}

func TestServers(t *testing.T) {
	topo := partition.Topology{Index: 1, Copies: []partition.Copy{{ID: 1, Node: 7}, {ID: 2, Node: 3},
		{ID: 3, Node: 7, State: partition.Leaving}}}
	if got := topo.Servers(); len(got) != 2 || got[0] != 3 || got[1] != 7 {
		t.Errorf("servers %v", got)
	}
}

func TestCheck(t *testing.T) {
	for _, l := range []partition.Layout{{}, {Scheme: partition.HashDocID},
		{Scheme: partition.HashDocID, Partitions: partition.MaxPartitions + 1},
		{Scheme: 9, Partitions: 4}} {
		if err := l.Check(); !errors.Is(err, partition.ErrLayout) {
			t.Errorf("%+v passes: %v", l, err)
		}
	}
	if err := (&partition.Layout{Scheme: partition.HashDocID, Partitions: partition.MaxPartitions}).Check(); err != nil {
		t.Error(err)
	}
}
