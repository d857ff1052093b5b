package core

import (
	"cmp"
	"slices"

	"tidemark/streams"
	"tidemark/wire"
)

// LaneLength bounds what waits in one lane without a key; the oldest is dropped, because duties tell it again. Of each
// key there is one, and their number is bounded by that of the buckets: none is dropped.
const LaneLength = 256

// Queue holds what waits to be told by one lane. It is owned by one goroutine at a time.
type Queue struct {
	waiting []*Tell
	keyed   map[string]*Tell // those that have a key
	inHand  map[string]bool  // buckets whose command was taken and is not over
}

// Len is how much waits.
func (q *Queue) Len() int { return len(q.waiting) }

// Put adds something. When too much without a key waits, the oldest goes: duties are level-triggered and will tell it
// again.
func (q *Queue) Put(t Tell) {
	if old := q.keyed[t.Key]; old != nil {
		if p, is := old.Say.(PublishStable); is {
			t.Say = p.and(t.Say.(PublishStable))
		}
		*old = t
		return
	}
	if s, is := t.Say.(StartStreams); is {
		q.supersede(&s)
	}
	if t.Key != "" {
		if q.keyed == nil {
			q.keyed = map[string]*Tell{}
		}
		q.keyed[t.Key] = &t
	} else if len(q.waiting)-len(q.keyed) >= LaneLength {
		i := slices.IndexFunc(q.waiting, func(o *Tell) bool { return o.Key == "" })
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	q.waiting = append(q.waiting, &t)
}

// supersede takes out of the starts that wait those of vbuckets that are started anew: their incarnation is outdated,
// and a KV that does not answer would be waited for once for each of them.
func (q *Queue) supersede(by *StartStreams) {
	var anew map[uint16]bool
	q.waiting = slices.DeleteFunc(q.waiting, func(t *Tell) bool {
		old, is := t.Say.(StartStreams)
		if !is || old.Bucket.Name != by.Bucket.Name {
			return false
		}
		if anew == nil {
			anew = make(map[uint16]bool, len(by.Starts))
			for _, s := range by.Starts {
				anew[s.VBucket] = true
			}
		}
		left := make([]streams.Start, 0, len(old.Starts)) // other projectors' lanes have the old one
		for _, s := range old.Starts {
			if !anew[s.VBucket] {
				left = append(left, s)
			}
		}
		old.Starts = left
		t.Say = old
		return len(left) == 0
	})
}

// Take removes the oldest, but no command of a bucket of which one is in somebody's hands: those stay in order. What is
// taken has to be handed to Said when it is over.
func (q *Queue) Take() (Tell, bool) {
	i := slices.IndexFunc(q.waiting, func(t *Tell) bool { return !q.inHand[commanded(t.Say)] })
	if i < 0 {
		return Tell{}, false
	}
	t := *q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	delete(q.keyed, t.Key)
	if b := commanded(t.Say); b != "" {
		if q.inHand == nil {
			q.inHand = map[string]bool{}
		}
		q.inHand[b] = true
	}
	return t, true
}

// Said ends what was taken.
func (q *Queue) Said(t Tell) { delete(q.inHand, commanded(t.Say)) }

// commanded is the bucket of a command, "" of what else is told: that waits for nothing before it.
func commanded(m Message) string {
	switch m := m.(type) {
	case StartStreams:
		return m.Bucket.Name
	case StopStreams:
		return m.Bucket.Name
	case Poll:
		return m.Bucket.Name
	case RollBack:
		return m.Bucket.Name
	}
	return ""
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
