package statecontext

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"tidemark/errcode"
	"tidemark/index"
)

// TestBucketNamesDoNotRunOut: a bucket that KV has deleted no longer counts once it has no index.
func TestBucketNamesDoNotRunOut(t *testing.T) {
	n := cluster(t)
	n.must(&SetLimits{Limits: Limits{Buckets: 3}})
	for i := range 20 {
		name := fmt.Sprint("k", i)
		n.must(&SetBucket{Name: name, UUID: "u", VBuckets: 4})
		if i%2 == 0 {
			c := create("x", 0, 0)
			c.Definition.Bucket, c.Definition.BucketUUID = name, "u"
			id := n.must(c).Index
			n.must(&BucketGone{Name: name, UUID: "u"})
			n.must(&DropIndex{ID: id})
			if n.state.Bucket(name) == nil {
				t.Fatal("forgotten while the hosts of an index still have copies of it")
			}
			n.must(&RemoveIndex{ID: id})
		} else {
			n.must(&BucketGone{Name: name, UUID: "u"})
		}
		if n.state.Bucket(name) != nil {
			t.Fatalf("%s is still known", name)
		}
	}
	n.must(&SetBucket{Name: "c", UUID: "u", VBuckets: 4})
	n.must(&SetBucket{Name: "d", UUID: "u", VBuckets: 4})
	n.refuse(&SetBucket{Name: "e", UUID: "u", VBuckets: 4}, errcode.LimitExceeded)
}

// TestForgottenSettings: the settings of a bucket name stay, and keep the bucket.
func TestForgottenSettings(t *testing.T) {
	n := cluster(t)
	n.must(&SetBucketSettings{Bucket: "b", StabilitySource: "sync"})
	n.must(&BucketGone{Name: "b", UUID: "bu1"})
	if n.state.Bucket("b") == nil || n.state.BucketSettings("b").StabilitySource != "sync" {
		t.Fatal("the settings are gone")
	}
	n.must(&SetBucketSettings{Bucket: "b"})
	if n.state.Bucket("b") != nil {
		t.Fatal("the bucket is still known")
	}
}

// TestNumbersOfForgottenBuckets: whatever happens, the generation of a bucket is higher, and its other numbers are
// not lower, than those that any bucket of the same name has had, also across restores and recoveries. At the end no
// deleted bucket remains that nothing refers to.
func TestNumbersOfForgottenBuckets(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := cluster(t)
		n.t = t
		type highest struct {
			uuid string
			bucketNumbers
		}
		seen := map[string]highest{}
		var kept *Backup
		for i := range rapid.IntRange(1, 40).Draw(rt, "steps") {
			name := rapid.SampledFrom([]string{"b", "c"}).Draw(rt, "bucket")
			b := n.state.Bucket(name)
			switch rapid.IntRange(0, 6).Draw(rt, "step") {
			case 0:
				n.must(&SetBucket{Name: name, UUID: fmt.Sprint("u", i), VBuckets: 4})
			case 1:
				if b != nil {
					n.must(&BucketGone{Name: name, UUID: b.UUID})
				}
			case 2:
				if b != nil && !b.Gone && b.Rollback == nil {
					v := vector(1, 1, 1, 1)
					for k := range v.Seqnos {
						v.Seqnos[k] += b.Stability.Vector.Seqnos[k]
					}
					n.must(n.advance(name, v))
				}
			case 3:
				if b != nil && !b.Gone {
					c := create(fmt.Sprint("x", i), 0, 0)
					c.Definition.Bucket, c.Definition.BucketUUID = name, b.UUID
					n.must(c)
				}
			case 4:
				for x := range n.state.Indexes() {
					n.must(&DropIndex{ID: x.Definition.ID})
					if rapid.Bool().Draw(rt, "released") {
						n.must(&RemoveIndex{ID: x.Definition.ID})
					}
				}
			case 5:
				kept = n.backup()
			case 6:
				if kept != nil {
					n.stage(kept, RestoreInPlace)
					n.must(&FinishRestore{ID: "r1", Epoch: max(n.state.Epoch(), kept.Epoch) + 1})
				}
			}
			indexed := map[string]bool{}
			for x := range n.state.Indexes() {
				indexed[x.Definition.Bucket] = true
			}
			for b := range n.state.Buckets() {
				was, now := seen[b.Name], bucketNumbers{b.Generation, b.Stability.Number, b.lastRollback()}
				if was.above(now) != now || was.uuid != b.UUID && was.generation == now.generation {
					rt.Fatalf("%s of uuid %s has %+v after %+v", b.Name, b.UUID, now, was)
				}
				seen[b.Name] = highest{b.UUID, now}
				if b.Gone && !indexed[b.Name] {
					rt.Fatalf("%s is gone, no index is on it, and it is known", b.Name)
				}
			}
		}
		back, err := ReadSnapshot(bytes.NewReader(snapshot(t, n.state)))
		if err != nil || back.passed != n.state.passed {
			rt.Fatalf("%v: a snapshot brings %+v of %+v", err, back.passed, n.state.passed)
		}
	})
}

// TestCreateOnAForgottenBucket: an index made for a forgotten bucket is rejected.
func TestCreateOnAForgottenBucket(t *testing.T) {
	n := cluster(t)
	n.must(&BucketGone{Name: "b", UUID: "bu1"})
	r := n.do(create("x", 0, 0))[0]
	if !errors.Is(r.Err(), errcode.UnknownBucket) || n.state.Index(index.ID(1)) != nil {
		t.Fatalf("%+v", r)
	}
}
