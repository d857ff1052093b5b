package scanserver

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// roundsAtOnce bounds the concurrent rounds of a bucket.
	roundsAtOnce = 2
	// roundHolds is how long a round delays the next one. A longer round may hang, and its answer is of no use to
	// later callers.
	roundHolds = 50 * time.Millisecond
	// roundGrace is how long a round continues when no caller waits for it any more: if its answer still arrives, its
	// connections can be reused.
	roundGrace = 100 * time.Millisecond
)

// rounds combines equal requests of many callers: a caller that arrives during a round of the bucket shares the next
// one with everyone who arrives before it begins. It never shares a round in progress, whose answer may predate its
// call. A caller that gives up does not end the round for others.
type rounds[Q, A any] struct {
	call func(ctx context.Context, bucket string, q Q) (A, error) // ends with ctx
	// merges two requests; ok is false if they cannot be merged
	both func(a, b Q) (q Q, ok bool)

	mu sync.Mutex // leaf: no other lock is taken under it
	of map[string]*turns[Q, A]
}

func newRounds[Q, A any](call func(context.Context, string, Q) (A, error), both func(a, b Q) (Q, bool)) *rounds[Q, A] {
	return &rounds[Q, A]{call: call, both: both, of: map[string]*turns[Q, A]{}}
}

// turns holds the rounds of one bucket.
type turns[Q, A any] struct {
	bucket string
	next   []*round[Q, A] // not begun; each has a request that could not be merged with those before it
	under  int            // rounds in progress
	holds  int            // number of these that delay the next one
}

// round is one request. request, answer and err may be read when done is closed.
type round[Q, A any] struct {
	turns       *turns[Q, A]
	ctx         context.Context // of its first caller, without cancellation
	cancel      context.CancelFunc
	waiting     int
	holds, over bool

	done    chan struct{}
	request Q
	answer  A
	err     error
}

// join returns the round that will answer q. The caller must call leave.
func (x *rounds[Q, A]) join(ctx context.Context, bucket string, q Q) *round[Q, A] {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.of[bucket]
	if t == nil {
		t = &turns[Q, A]{bucket: bucket}
		x.of[bucket] = t
	}
	for _, r := range t.next {
		if both, ok := x.both(r.request, q); ok {
			r.request, r.waiting = both, r.waiting+1
			return r
		}
	}
	r := &round[Q, A]{turns: t, waiting: 1, done: make(chan struct{}), request: q}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	t.next = append(t.next, r)
	x.begin(t)
	return r
}

// leave records that a caller does not wait for a round any more.
func (x *rounds[Q, A]) leave(r *round[Q, A]) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.waiting--; r.waiting > 0 || r.over {
		return
	}
	if i := slices.Index(r.turns.next, r); i >= 0 {
		r.turns.next = slices.Delete(r.turns.next, i, i+1)
		r.cancel()
		return
	}
	time.AfterFunc(roundGrace, r.cancel)
}

// share returns the answer of a round that begins after the call, or ctx's error.
func (x *rounds[Q, A]) share(ctx context.Context, bucket string, q Q) (answer A, err error) {
	r := x.join(ctx, bucket, q)
	defer x.leave(r)
	select {
	case <-r.done:
		return r.answer, r.err
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
}

// begin starts the rounds that are due. The caller holds the lock.
func (x *rounds[Q, A]) begin(t *turns[Q, A]) {
	for len(t.next) > 0 && t.holds == 0 && t.under < roundsAtOnce {
		r := t.next[0]
		t.next = slices.Delete(t.next, 0, 1)
		t.under, t.holds, r.holds = t.under+1, t.holds+1, true
		go x.run(r)
	}
	if t.under == 0 {
		delete(x.of, t.bucket)
	}
}

func (x *rounds[Q, A]) run(r *round[Q, A]) {
	late := time.AfterFunc(roundHolds, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.passed(r)
	})
	answer, err := x.call(r.ctx, r.turns.bucket, r.request)
	late.Stop()
	x.mu.Lock()
	defer x.mu.Unlock()
	r.answer, r.err, r.over = answer, err, true
	r.cancel()
	close(r.done)
	r.turns.under--
	x.passed(r)
	x.begin(r.turns)
}

// passed lets the next round begin, because r has lasted roundHolds or is over. The caller holds the lock.
func (x *rounds[Q, A]) passed(r *round[Q, A]) {
	if r.holds {
		r.holds = false
		r.turns.holds--
		x.begin(r.turns)
	}
}
