package scanserver

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// roundsAtOnce is how many rounds of a bucket may be under way.
	roundsAtOnce = 2
	// roundHolds is for how long a round holds up the next one. One that lasts longer may hang, and who has come since has
	// nothing of it.
	roundHolds = 50 * time.Millisecond
	// roundGrace is for how long a round goes on that nobody waits for any more: when its answer comes all the same, its
	// connections are kept.
	roundGrace = 100 * time.Millisecond
)

// rounds ask others, for many at a time, what each would ask alone: who comes while a round of the bucket is under way
// shares the next one with all who come until that begins, and never the one under way, whose answer may be of before
// he came. Who leaves ends a round for nobody else.
type rounds[Q, A any] struct {
	ask  func(ctx context.Context, bucket string, q Q) (A, error) // ends with ctx
	both func(a, b Q) (q Q, ok bool)                              // asks for both; false: nothing does

	mu sync.Mutex // leaf
	of map[string]*turns[Q, A]
}

func newRounds[Q, A any](ask func(context.Context, string, Q) (A, error), both func(a, b Q) (Q, bool)) *rounds[Q, A] {
	return &rounds[Q, A]{ask: ask, both: both, of: map[string]*turns[Q, A]{}}
}

// turns are the rounds of one bucket.
type turns[Q, A any] struct {
	bucket string
	next   []*round[Q, A] // have not begun: each asks for what those before it cannot ask for as well
	under  int            // are under way
	holds  int            // of these, hold up the next one
}

// round is one question. Question, answer and err may be read when done is closed.
type round[Q, A any] struct {
	turns       *turns[Q, A]
	ctx         context.Context // of who made it, without its end
	cancel      context.CancelFunc
	waiting     int
	holds, over bool

	done     chan struct{}
	question Q
	answer   A
	err      error
}

// join returns the round whose answer is for q; leave must follow.
func (x *rounds[Q, A]) join(ctx context.Context, bucket string, q Q) *round[Q, A] {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.of[bucket]
	if t == nil {
		t = &turns[Q, A]{bucket: bucket}
		x.of[bucket] = t
	}
	for _, r := range t.next {
		if both, ok := x.both(r.question, q); ok {
			r.question, r.waiting = both, r.waiting+1
			return r
		}
	}
	r := &round[Q, A]{turns: t, waiting: 1, done: make(chan struct{}), question: q}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	t.next = append(t.next, r)
	x.begin(t)
	return r
}

// leave takes over that somebody waits for a round no more.
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

// begin begins the rounds whose turn it is. The lock is held.
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
	answer, err := x.ask(r.ctx, r.turns.bucket, r.question)
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

// passed lets the next round begin beside one that has lasted, or is over. The lock is held.
func (x *rounds[Q, A]) passed(r *round[Q, A]) {
	if r.holds {
		r.holds = false
		r.turns.holds--
		x.begin(r.turns)
	}
}
