package clustermap

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestIDsAreUnique checks that no id and no uid is assigned to two different manifests, whichever maps of earlier
// epochs are superseded: a map is superseded if the next one, of a later epoch, is based on an earlier map.
func TestIDsAreUnique(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seen := []Map{Derive(nodes(3), specs(8, 1))} // all maps made, in any epoch
		ids, uids := map[uint32]string{}, map[uint64]string{}
		for i := range rapid.IntRange(1, 12).Draw(t, "changes") {
			m := seen[len(seen)-1]
			if rapid.Bool().Draw(t, "an epoch begins") {
				epoch := m.RevEpoch // no map is accepted after one of a later epoch
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

// TestIDsExhausted checks that a bucket without ids left returns an error, and does not start again with the first id.
func TestIDsExhausted(t *testing.T) {
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
