package core

import (
	"cmp"
	"slices"

	"tidemark/streams"
	"tidemark/wire"
)

// LaneLength limits the messages without a key that wait in one lane; the oldest is dropped, and its duty sends it
// again. Messages with a key are never dropped: one waits per key, and the number of buckets limits the number of
// keys.
const LaneLength = 256

// Queue holds the messages that wait in one lane. It is owned by one goroutine at a time.
type Queue struct {
	waiting []*Send
	keyed   map[string]*Send // those of waiting that have a key
	inHand  map[string]bool  // buckets with a command that was taken and is not done
}

// Len returns the number of waiting messages.
func (q *Queue) Len() int { return len(q.waiting) }

// Put adds a message. If too many without a key wait, the oldest is dropped: duties are level-triggered and send it
// again.
func (q *Queue) Put(t Send) {
	if old := q.keyed[t.Key]; old != nil {
		if p, is := old.Message.(PublishStable); is {
			t.Message = p.and(t.Message.(PublishStable))
		}
		*old = t
		return
	}
	if s, is := t.Message.(StartStreams); is {
		q.supersede(&s)
	}
	if t.Key != "" {
		if q.keyed == nil {
			q.keyed = map[string]*Send{}
		}
		q.keyed[t.Key] = &t
	} else if len(q.waiting)-len(q.keyed) >= LaneLength {
		i := slices.IndexFunc(q.waiting, func(o *Send) bool { return o.Key == "" })
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	q.waiting = append(q.waiting, &t)
}

// supersede removes vbuckets from waiting starts that are now started anew: their incarnation is outdated, and a KV
// node that does not answer would be waited for once per start.
func (q *Queue) supersede(by *StartStreams) {
	var anew map[uint16]bool
	q.waiting = slices.DeleteFunc(q.waiting, func(t *Send) bool {
		old, is := t.Message.(StartStreams)
		if !is || old.Bucket.Name != by.Bucket.Name {
			return false
		}
		if anew == nil {
			anew = make(map[uint16]bool, len(by.Starts))
			for _, s := range by.Starts {
				anew[s.VBucket] = true
			}
		}
		left := make([]streams.Start, 0, len(old.Starts)) // other projectors' lanes share the old slice
		for _, s := range old.Starts {
			if !anew[s.VBucket] {
				left = append(left, s)
			}
		}
		old.Starts = left
		t.Message = old
		return len(left) == 0
	})
}

// Take removes the oldest message, skipping commands of a bucket whose previous command is not done: these stay in
// order. The caller must pass the message to Done when it is answered or has failed.
func (q *Queue) Take() (Send, bool) {
	i := slices.IndexFunc(q.waiting, func(t *Send) bool { return !q.inHand[commanded(t.Message)] })
	if i < 0 {
		return Send{}, false
	}
	t := *q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	delete(q.keyed, t.Key)
	if b := commanded(t.Message); b != "" {
		if q.inHand == nil {
			q.inHand = map[string]bool{}
		}
		q.inHand[b] = true
	}
	return t, true
}

// Done marks a taken message as answered or failed.
func (q *Queue) Done(t Send) { delete(q.inHand, commanded(t.Message)) }

// commanded returns the bucket of a command, and "" for other messages, which wait for nothing before them.
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

// and merges two publications: the newest timestamp of each bucket.
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

// Sorted returns the newest timestamps, ordered by bucket.
func (m PublishStable) Sorted() []wire.BucketStability {
	return slices.SortedFunc(slices.Values(m.Newest), func(a, b wire.BucketStability) int {
		return cmp.Compare(a.Bucket, b.Bucket)
	})
}
