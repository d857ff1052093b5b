package statecontext

import (
	"testing"

	"tidemark/errcode"
	"tidemark/index"
)

// TestCollectionsOfADeletedBucket: an index whose collection is gone still knows that after its bucket goes, too,
// and comes back. If the bucket comes back as another one, users are not advised to build an index that cannot be
// built.
func TestCollectionsOfADeletedBucket(t *testing.T) {
	n := cluster(t)
	for i, name := range []string{"gone", "there", "plain"} {
		c := create(name, 0, 0, 1)
		if name != "plain" {
			c.Definition.Member = index.Member{Scope: "s", Collection: name, ID: uint32(9 + i), Manifest: 2}
		}
		n.must(c)
	}
	dropped := index.ReasonCollectionGone + "dropped"
	n.must(&SetIndexState{ID: 1, From: index.Pending, To: index.Error, Reason: dropped})
	reasons := func(want ...string) {
		t.Helper()
		for i, reason := range want {
			if d := n.state.Definition(index.ID(i + 1)); d.State != index.Error || d.Reason != reason {
				t.Errorf("index %s is in state %s: %q, want %q", d.Name, d.State, d.Reason, reason)
			}
		}
	}
	n.must(&BucketGone{Name: "b", UUID: "bu1"})
	reasons(dropped, reasonDeleted, reasonDeleted)
	n.must(&SetBucket{Name: "b", UUID: "bu1", VBuckets: 4})
	reasons(dropped, reasonRecreated, reasonRecreated)
	n.refuse(&BuildIndexes{IDs: []index.ID{1}}, errcode.CollectionGone)
	n.must(&BuildIndexes{IDs: []index.ID{2, 3}})
	n.must(&SetBucket{Name: "b", UUID: "bu2", VBuckets: 4})
	reasons(dropped, reasonElsewhere, reasonRecreated)
	n.refuse(&BuildIndexes{IDs: []index.ID{2}}, errcode.CollectionGone)
	n.must(&BuildIndexes{IDs: []index.ID{3}})
}

// TestPathOfADeletedBucket: a bucket that is gone hides no collection whose path equals its name; its own index is
// found only if there is no other.
func TestPathOfADeletedBucket(t *testing.T) {
	n := cluster(t)
	n.must(&SetBucket{Name: "b.s.c", UUID: "other", VBuckets: 4})
	in := func(name, bucket string, m index.Member) {
		c := create(name, 0, 0, 1)
		c.Definition.Bucket, c.Definition.BucketUUID, c.Definition.Member = bucket, n.state.Bucket(bucket).UUID, m
		n.must(c)
	}
	collection := index.Member{Scope: "s", Collection: "c", ID: 9, Manifest: 2}
	in("both", "b.s.c", index.Member{})
	in("alone", "b.s.c", index.Member{})
	in("both", "b", collection)
	in("hidden", "b", collection)
	found := func(want map[string]string) {
		t.Helper()
		for name, bucket := range want {
			got := ""
			if x := n.state.IndexByPath("b.s.c", name); x != nil {
				got = x.Definition.Bucket
			}
			if got != bucket {
				t.Errorf("b.s.c/%s is in bucket %q, want %q", name, got, bucket)
			}
		}
	}
	found(map[string]string{"both": "b.s.c", "alone": "b.s.c", "hidden": "", "none": ""})
	n.must(&BucketGone{Name: "b.s.c", UUID: "other"})
	found(map[string]string{"both": "b", "alone": "b.s.c", "hidden": "b", "none": ""})
}
