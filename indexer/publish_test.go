package indexer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/indexer/copies"
	"tidemark/indexer/core"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestTimestampsBesideABusyBucket checks that a bucket whose loop is busy, and one that was removed, do not keep
// other buckets from their timestamps of the same message. The busy one gets its own later. A caller whose
// context ends gets an error.
func TestTimestampsBesideABusyBucket(t *testing.T) {
	newNode, _ := aloneNode(t)
	synctest.Test(t, func(t *testing.T) {
		node := newNode()
		x := &Indexer{buckets: buckets{named: map[string]*copies.Bucket{}}, catalog: noCatalog()}
		var running sync.WaitGroup
		of := func(rollback uint64) (all []wire.BucketStability) {
			for _, name := range []string{"gone", "busy", "free"} {
				all = append(all, wire.BucketStability{Bucket: name, Stability: timestamp.Stability{
					Ref: timestamp.Ref{Generation: 1, RollbackID: rollback, Number: 1}, Vector: timestamp.New(2)}})
			}
			return all
		}
		for _, s := range of(0) {
			k, err := copies.NewBucket(node, wire.Bucket{Name: s.Bucket, UUID: "u", VBuckets: 2, Generation: 1})
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() { _ = k.Run(t.Context()) })
			x.buckets.named[s.Bucket] = k
		}
		defer running.Wait()
		at := func(name string) (rollback uint64) {
			if err := x.bucketNamed(name).Do(t.Context(), func(st *core.Bucket) { rollback = st.RollbackID() }); err != nil {
				t.Errorf("bucket %s: %v", name, err)
			}
			return rollback
		}
		x.bucketNamed("gone").Stop()
		<-x.bucketNamed("gone").Gone()
		busy := make(chan struct{})
		running.Go(func() { _ = x.bucketNamed("busy").Do(t.Context(), func(*core.Bucket) { <-busy }) })
		synctest.Wait()
		published := make(chan error, 1)
		running.Go(func() { published <- x.publish(t.Context(), of(7)) })
		synctest.Wait()
		if got := at("free"); got != 7 {
			t.Errorf("beside a busy bucket one is at rollback %d", got)
		}
		for _, s := range of(7) {
			if n, ok := x.catalog.Newest(s.Bucket); !ok || n.RollbackID != 7 {
				t.Errorf("scans of bucket %s do not have it", s.Bucket)
			}
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := x.publish(impatient, of(8)); !errors.Is(err, context.DeadlineExceeded) || at("free") != 8 {
			t.Errorf("given up: %v, the other one at rollback %d", err, at("free"))
		}
		close(busy)
		if err := <-published; err != nil || at("busy") != 7 {
			t.Errorf("afterwards: %v, the bucket is at rollback %d", err, at("busy"))
		}
		x.bucketNamed("busy").Stop()
		x.bucketNamed("free").Stop()
	})
}
