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

// replace makes the buckets those of a list: those that are not here any more are told to stop, and nobody waits for
// what they write. stay are those that were here before. Where one cannot be made nothing changes.
func (h *buckets) replace(d *wire.Definitions, make func(wire.Bucket) (*copies.Bucket, error)) (
	stay map[*copies.Bucket]*wire.Bucket, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	named := map[string]*copies.Bucket{}
	stay = map[*copies.Bucket]*wire.Bucket{}
	for i := range d.Buckets {
		b := &d.Buckets[i]
		if k := h.named[b.Name]; k != nil && k.UUID() == b.UUID && k.VBuckets() == b.VBuckets {
			named[b.Name], stay[k] = k, b
			continue
		}
		n, err := make(*b)
		if err != nil {
			for _, k := range named {
				if stay[k] == nil {
					k.Stop()
				}
			}
			return nil, fmt.Errorf("bucket %s: %w", b.Name, err)
		}
		named[b.Name] = n
	}
	for name, k := range h.named {
		if named[name] != k {
			k.Stop()
		}
	}
	h.named = named
	h.count.Store(int64(len(named)))
	return stay, nil
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
