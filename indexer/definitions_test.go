package indexer

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// TestDefinitionsAsChanges checks that a list sent as changes has the same effect as a whole list, and that changes
// to a list that the indexer does not have are refused.
func TestDefinitionsAsChanges(t *testing.T) {
	w := newWorld(t)
	w.start()
	for _, ids := range [][]index.CopyID{{10}, {10, 20}, {20, 30}, {30}, {10, 30}} {
		if err := w.define(ids...); err != nil {
			t.Fatal(err)
		}
		for _, id := range []index.CopyID{10, 20, 30} {
			// A copy that is still being removed from the disk cannot be made yet.
			w.until(fmt.Sprintf("of %v copy %d is there: %v", ids, id, slices.Contains(ids, id)), func() bool {
				_, has := w.x.store.Slice(id)
				return has == slices.Contains(ids, id)
			})
		}
	}
	if w.changes < 2 {
		t.Errorf("%d lists came as changes", w.changes)
	}
	w.mu.Lock()
	d := w.definitionsLocked()
	w.mu.Unlock()
	c := &wire.DefinitionsChange{Fence: d.Fence, Base: d.Revision - 1, Revision: d.Revision + 1,
		GoneIndexes: []index.ID{1, 3}}
	if reply, err := w.admin.Change(t.Context(), w.endpoint.Admin, c); err != nil || !reply.Missing {
		t.Errorf("a change of another list: %+v, %v", reply, err)
	}
	if _, has := w.x.store.Slice(30); !has {
		t.Error("a change of another list was obeyed")
	}
	c.Base, c.Fence = d.Revision, wire.Fence{ClusterID: testCluster, Epoch: 1, Counter: 1 << 30}
	var p *rpc.Problem
	if _, err := w.admin.Change(t.Context(), w.endpoint.Admin, c); !errors.As(err, &p) || p.Code != errcode.Fenced {
		t.Errorf("a deposed leader's change: %v", err)
	}
}

// TestListBesideBusyBucket checks that a new list of definitions does not wait for a bucket's loop while it holds the
// node's lock, however many commands are queued for the loop: the loop sometimes takes that lock.
func TestListBesideBusyBucket(t *testing.T) {
	x := &Indexer{log: hclog.NewNullLogger(), buckets: buckets{named: map[string]*copies.Bucket{}}, catalog: noCatalog(),
		node: &copies.Node{Log: hclog.NewNullLogger()}}
	b := wire.Bucket{Name: "b", UUID: "u", VBuckets: 1, Generation: 1}
	k, err := copies.NewBucket(x.node, b)
	if err != nil {
		t.Fatal(err)
	}
	x.buckets.named["b"] = k
	for range 2 * copies.ControlInbox { // the loop does not run: none of them is taken
		k.SetGeneration(1, 0)
	}
	unlocked := make(chan struct{})
	go func() {
		defer close(unlocked)
		next, err := x.buckets.next(&wire.Definitions{Buckets: []wire.Bucket{b}}, x.newBucket)
		if err != nil {
			t.Error(err)
			return
		}
		x.buckets.replace(next)
		if len(next.stay) != 1 || x.bucketNamed("b") != k {
			t.Errorf("stay %v", next.stay)
		}
	}()
	select {
	case <-unlocked:
	case <-time.After(30 * time.Second):
		t.Fatal("the list waits for the loop and holds the lock")
	}
	x.catalog.Touch("b") // as the loop does
}
