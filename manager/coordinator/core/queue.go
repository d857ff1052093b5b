package core

import (
	"cmp"
	"slices"

	"tidemark/wire"
)

// LaneLength bounds what waits in one lane; the oldest is dropped, because duties tell it again.
const LaneLength = 256

// Queue holds what waits to be told by one lane. It is owned by one goroutine.
type Queue struct{ waiting []Tell }

// Len is how much waits.
func (q *Queue) Len() int { return len(q.waiting) }

// Put adds something. When the queue is full the oldest goes: duties are level-triggered and will tell it again.
func (q *Queue) Put(t Tell) {
	if i := slices.IndexFunc(q.waiting, func(o Tell) bool { return t.Key != "" && o.Key == t.Key }); i >= 0 {
		if old, is := q.waiting[i].Say.(PublishStable); is {
			t.Say = old.and(t.Say.(PublishStable))
		}
		q.waiting[i] = t
		return
	}
	if len(q.waiting) == LaneLength {
		q.waiting = append(q.waiting[:0], q.waiting[1:]...)
	}
	q.waiting = append(q.waiting, t)
}

// Take removes the oldest.
func (q *Queue) Take() (Tell, bool) {
	if len(q.waiting) == 0 {
		return Tell{}, false
	}
	t := q.waiting[0]
	q.waiting = append(q.waiting[:0], q.waiting[1:]...)
	return t, true
}

// and is what is told when more is added to what waits: the newest of each bucket.
func (m PublishStable) and(more PublishStable) PublishStable {
	sum := PublishStable{Base: slices.Concat(m.Base, more.Base)}
	for _, s := range m.Newest {
		if !slices.ContainsFunc(more.Newest, func(o wire.BucketStability) bool { return o.Bucket == s.Bucket }) {
			sum.Newest = append(sum.Newest, s)
		}
	}
	sum.Newest = append(sum.Newest, more.Newest...)
	return sum
}

// Sorted lists the newest ones by bucket.
func (m PublishStable) Sorted() []wire.BucketStability {
	return slices.SortedFunc(slices.Values(m.Newest), func(a, b wire.BucketStability) int {
		return cmp.Compare(a.Bucket, b.Bucket)
	})
}
