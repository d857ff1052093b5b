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

// buckets are those that are here.
type buckets struct {
	count atomic.Int64

	mu    sync.Mutex
	named map[string]*copies.Bucket
}

// nextBuckets are those of a list that is to be in force.
type nextBuckets struct {
	named map[string]*copies.Bucket
	stay  map[*copies.Bucket]*wire.Bucket // of them, those that are here already
}

// next makes what a list has and is not here. Where one cannot be made there is nothing.
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

// drop ends what was made for a list that does not come into force.
func (n *nextBuckets) drop() {
	for _, k := range n.named {
		if n.stay[k] == nil {
			k.Stop()
		}
	}
}

// replace makes the buckets those of a list: those that are not here any more are told to stop, and nobody waits for
// what they write.
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
	for k, b := range n.stay { // without the lock: the bucket's loop takes it, and must come to the command
		k.SetGeneration(b.Generation, b.RollbackID)
	}
}

// newBucket makes one that runs.
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

// askEach asks buckets side by side, so that it takes as long as the one whose loop is busiest, not as all of them
// together, and returns what they answer in their order. One that goes meanwhile, or for which ask returns another
// error, is left out.
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
	_ = g.Wait() // none gives an error
	told := make([]T, 0, len(all))
	for _, a := range answers {
		if a.ok {
			told = append(told, a.is)
		}
	}
	return told
}

// queueShare is how much one bucket may hold in memory.
func (x *Indexer) queueShare() int64 { return x.cfg.QueueBytes / max(1, x.buckets.count.Load()) }
