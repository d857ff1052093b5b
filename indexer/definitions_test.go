package indexer

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/wire"
)

// TestListBesideBusyBucket: a bucket's loop takes the node's lock at times, so a new list of definitions must not wait for a
// loop while it holds that lock, however many commands stand before it.
func TestListBesideBusyBucket(t *testing.T) {
	x := &Indexer{log: hclog.NewNullLogger(), buckets: map[string]*bucket{}, changed: make(chan struct{})}
	b := wire.Bucket{Name: "b", UUID: "u", VBuckets: 1, Generation: 1}
	k, err := x.newBucket(b)
	if err != nil {
		t.Fatal(err)
	}
	x.buckets["b"] = k
	for range controlInbox { // nobody takes them
		k.control <- func() {}
	}
	unlocked := make(chan struct{})
	go func() {
		defer close(unlocked)
		gone, stay, err := x.replaceBuckets(&wire.Definitions{Buckets: []wire.Bucket{b}})
		if err != nil || len(gone) != 0 || len(stay) != 1 {
			t.Errorf("gone %v, stay %v: %v", gone, stay, err)
		}
	}()
	select {
	case <-unlocked:
	case <-time.After(30 * time.Second):
		t.Fatal("the list waits for the loop and holds the lock")
	}
	x.viewChanged() // what the loop does
}
