package indexer

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"tidemark/indexer/copies"
	"tidemark/wire"
)

// buckets holds the buckets of this indexer.
type buckets struct {
	count atomic.Int64

	mu    sync.Mutex
	named map[string]*copies.Bucket
}

// nextBuckets holds the buckets of a list of definitions that is about to be put in force.
type nextBuckets struct {
	named map[string]*copies.Bucket
	stay  map[*copies.Bucket]*wire.Bucket // buckets that exist already
}

// next creates the buckets of a list that do not exist yet. If one of them cannot be created, it stops those that it
// has created.
func (h *buckets) next(d *wire.Definitions, make func(wire.Bucket) (*copies.Bucket, error)) (nextBuckets, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := nextBuckets{map[string]*copies.Bucket{}, map[*copies.Bucket]*wire.Bucket{}}
	for i := range d.Buckets {
		b := &d.Buckets[i]
		if k := h.named[b.Name]; k != nil && k.UUID() == b.UUID && k.VBuckets() == b.VBuckets {
			n.named[b.Name], n.stay[k] = k, b
			continue
		}
		k, err := make(*b)
		if err != nil {
			n.drop()
			return n, fmt.Errorf("bucket %s: %w", b.Name, err)
		}
		n.named[b.Name] = k
	}
	return n, nil
}

// drop stops the buckets that were created for a list that is not put in force.
func (n *nextBuckets) drop() {
	for _, k := range n.named {
		if n.stay[k] == nil {
			k.Stop()
		}
	}
}

// replace installs the buckets of a list. It stops buckets that the list does not have, without waiting for their
// writes.
func (h *buckets) replace(n nextBuckets) {
	h.mu.Lock()
	for name, k := range h.named {
		if n.named[name] != k {
			k.Stop()
		}
	}
	h.named = n.named
	h.count.Store(int64(len(n.named)))
	h.mu.Unlock()
	for k, b := range n.stay { // without the lock: the bucket's loop takes it, and must get to the command
		k.SetGeneration(b.Generation, b.RollbackID)
	}
}

// newBucket creates a bucket and starts its loop.
func (x *Indexer) newBucket(b wire.Bucket) (*copies.Bucket, error) {
	k, err := copies.NewBucket(x.node, b)
	if err == nil {
		x.spawn(k.Run)
	}
	return k, err
}

func (x *Indexer) bucketNamed(name string) *copies.Bucket {
	x.buckets.mu.Lock()
	defer x.buckets.mu.Unlock()
	return x.buckets.named[name]
}

func (x *Indexer) allBuckets() []*copies.Bucket {
	x.buckets.mu.Lock()
	defer x.buckets.mu.Unlock()
	all := make([]*copies.Bucket, 0, len(x.buckets.named))
	for _, k := range x.buckets.named {
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b *copies.Bucket) int { return cmp.Compare(a.Name(), b.Name()) })
	return all
}

// askEach calls ask for all buckets in parallel, so that it takes as long as the busiest loop and not as long as all
// of them together. It returns the results in the order of the buckets, without those for which ask returned an
// error, for example because the bucket was removed meanwhile.
func askEach[T any](all []*copies.Bucket, ask func(*copies.Bucket) (T, error)) []T {
	type answer struct {
		is T
		ok bool
	}
	answers := make([]answer, len(all))
	var g errgroup.Group
	for i, k := range all {
		g.Go(func() error {
			is, err := ask(k)
			answers[i] = answer{is, err == nil}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	results := make([]T, 0, len(all))
	for _, a := range answers {
		if a.ok {
			results = append(results, a.is)
		}
	}
	return results
}

// queueShare returns how many bytes one bucket may hold in memory.
func (x *Indexer) queueShare() int64 { return x.cfg.QueueBytes / max(1, x.buckets.count.Load()) }
