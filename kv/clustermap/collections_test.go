package clustermap

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// Property: no id and no uid is given twice to different manifests, whichever maps of former epochs are passed over: a
// map is passed over when the next one is made of what was before it, in a later epoch.
func TestNoIDIsGivenTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seen := []Map{Derive(nodes(3), specs(8, 1))} // all that were made, in any epoch
		ids, uids := map[uint32]string{}, map[uint64]string{}
		for i := range rapid.IntRange(1, 12).Draw(t, "changes") {
			m := seen[len(seen)-1]
			if rapid.Bool().Draw(t, "an epoch begins") {
				epoch := m.RevEpoch // no map is taken after one of a later epoch
				m = rapid.SampledFrom(seen).Draw(t, "from")
				m.RevEpoch, m.Rev = epoch+rapid.Int64Range(1, 3).Draw(t, "epochs"), 1
			}
			name := fmt.Sprint("s", i)
			next, err := m.ChangeCollections(CollectionChange{Bucket: m.Buckets[0].Name, Scope: name})
			if err != nil {
				t.Fatal(err)
			}
			made := next.Buckets[0].Manifest()
			if id := made.Scope(name).ID; ids[id] != "" {
				t.Fatalf("%s and %s are both %x", name, ids[id], id)
			} else {
				ids[id] = name
			}
			if uids[made.UID] != "" {
				t.Fatalf("the manifests of %s and %s both have uid %x", name, uids[made.UID], made.UID)
			}
			uids[made.UID] = name
			seen = append(seen, next)
		}
	})
}

// A bucket that has no ids left says so, and does not begin anew with the first.
func TestIDsEnd(t *testing.T) {
	m := Derive(nodes(1), specs(8, 0))
	change := CollectionChange{Bucket: m.Buckets[0].Name, Scope: "s"}
	m, err := m.ChangeCollections(change)
	if err != nil {
		t.Fatal(err)
	}
	change.Scope = "t"
	late := m
	late.RevEpoch = math.MaxUint32/idsOfEpoch + 1
	if _, err := late.ChangeCollections(change); err != nil {
		t.Fatal(err)
	}
	for _, epoch := range []int64{late.RevEpoch + 1, math.MaxInt64} {
		late.RevEpoch = epoch
		if _, err := late.ChangeCollections(change); !errors.Is(err, ErrCollections) {
			t.Fatalf("in epoch %d: %v", epoch, err)
		}
	}
	m.Buckets[0].Collections.NextID = math.MaxUint32
	if _, err := m.ChangeCollections(change); !errors.Is(err, ErrCollections) {
		t.Fatal(err)
	}
}
