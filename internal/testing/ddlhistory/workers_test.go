package ddlhistory

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
)

// Parameters of the load.
const (
	workers        = 8
	slots          = 3  // names in use at once
	opsPerName     = 60 // operations before a slot takes a new name
	mostUnknown    = 2  // operations on one name that are never retried after a lost answer
	mostOpen       = 3  // operations on one name that are retried much later
	leastPatience  = 300 * time.Millisecond
	morePatience   = 1500 * time.Millisecond
	replayPatience = 5 * time.Second
	pause          = 10 * time.Millisecond // after a refusal
	patienceOfAll  = 90 * time.Second      // for one operation, until it has an answer
	keptForLater   = 200                   // writes that wait to be repeated
)

// recorder collects the history.
type recorder struct {
	began time.Time

	mu      sync.Mutex
	history []porcupine.Operation
	later   []pending
	unknown map[string]int // by name
	open    map[string]int // by name
	failure error          // the first

	requests, retries, replays, hedges, givenUp, refusals, reads atomic.Int64
}

// pending is a write that is sent again: to learn its outcome, or to check that it has kept it.
type pending struct {
	req     request
	call    int64
	due     int64
	settled bool
	out     outcome
}

func newRecorder() *recorder {
	return &recorder{began: time.Now(), unknown: map[string]int{}, open: map[string]int{}}
}

func (r *recorder) now() int64 { return int64(time.Since(r.began)) }

func (r *recorder) add(in input, call, end int64, out outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, porcupine.Operation{Input: in, Output: out, Call: call, Return: end})
}

// splits counts the splits in the history: those begun, those cancelled, and those that ended with the name on the
// successor.
func (r *recorder) splits() (begun, cancelled, ended int) {
	built, seen := map[uint64]bool{}, map[uint64]bool{}
	for _, o := range r.history {
		switch in, out := o.Input.(input), o.Output.(outcome); {
		case out.id == 0:
		case (in.kind == split || in.kind == merge) && !out.found:
			built[out.id] = true
		case in.kind == cancel:
			cancelled++
		default:
			seen[out.id] = true
		}
	}
	for id := range built {
		if seen[id] {
			ended++
		}
	}
	return len(built), cancelled, ended
}

func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == nil {
		r.failure = err
	}
}

func (r *recorder) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// keep stores a write for later; one with a known outcome only while there is room.
func (r *recorder) keep(p pending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !p.settled || len(r.later) < keptForLater {
		r.later = append(r.later, p)
	}
}

// takeDue returns a write that is due to be sent again. With all set, every write is due.
func (r *recorder) takeDue(all bool) (pending, bool) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, p := range r.later {
		if all || p.due <= now {
			r.later[i] = r.later[len(r.later)-1]
			r.later = r.later[:len(r.later)-1]
			return p, true
		}
	}
	return pending{}, false
}

// may reports whether a name may have one more operation of a counted sort: each doubles porcupine's search.
func (r *recorder) may(counts map[string]int, name string, most int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if counts[name] >= most {
		return false
	}
	counts[name]++
	return true
}

// worker is one client. It chooses a manager for each attempt.
type worker struct {
	*recorder
	rand    *mathrand.Rand
	http    *http.Client
	servers []string
	bucket  string
	query   string        // of listings
	pace    time.Duration // between two operations
}

func (w *worker) server() string { return w.servers[w.rand.IntN(len(w.servers))] }

func (w *worker) patience() time.Duration {
	return leastPatience + time.Duration(w.rand.Int64N(int64(morePatience)))
}

// names returns the names in use.
func (w *worker) names() [slots]string {
	var names [slots]string
	for i := range names {
		names[i] = fmt.Sprintf("n%d_%d", i, (int(w.requests.Load())+i*opsPerName)/(opsPerName*slots))
	}
	return names
}

// run makes operations until enough returns true, ctx ends, or an operation fails.
func (w *worker) run(ctx context.Context, enough func() bool) {
	for ctx.Err() == nil && w.failed() == nil && !enough() {
		if p, ok := w.takeDue(false); ok {
			w.again(ctx, p)
			continue
		}
		w.one(ctx)
		if w.pace > 0 {
			wait(ctx, w.pace)
		}
	}
}

// one makes one random operation.
func (w *worker) one(ctx context.Context) {
	names := w.names()
	name := names[w.rand.IntN(slots)]
	w.requests.Add(1)
	switch n := w.rand.IntN(100); {
	case parts(name) && n >= 40:
		w.write(ctx, w.part(name, n-40))
	case n < 20:
		w.list(ctx, names)
	case n < 40:
		w.get(ctx, name)
	case n < 60:
		w.write(ctx, input{kind: create, name: name})
	case n < 70:
		w.write(ctx, input{kind: ensure, name: name})
	default:
		w.write(ctx, input{kind: drop, name: name})
	}
}

// part chooses a write to an index that can be split. Most such indexes must live long enough to be ready; n is below
// 60. Some boundaries were used before.
func (w *worker) part(name string, n int) input {
	in := input{name: name}
	switch {
	case n < 6:
		in.kind = create
	case n < 14:
		in.kind = ensure
	case n < 17:
		in.kind = drop
	case n < 44:
		in.kind, in.at = split, fmt.Sprintf("%05d", w.requests.Load()%1000)
	case n < 56:
		in.kind, in.at = merge, fmt.Sprintf("%05d", w.rand.Int64N(w.requests.Load())%1000)
	default:
		in.kind = cancel
	}
	return in
}

func (w *worker) list(ctx context.Context, names [slots]string) {
	call := w.now()
	ids, ok, err := list(ctx, w.http, w.server(), w.bucket, w.query, w.patience())
	end := w.now()
	if err != nil {
		w.fail(err)
	}
	if err != nil || !ok {
		return
	}
	w.reads.Add(1)
	for _, name := range names {
		w.add(input{kind: read, name: name}, call, end, outcome{found: ids[name] != 0, id: ids[name]})
	}
}

func (w *worker) get(ctx context.Context, name string) {
	call := w.now()
	out, ok, err := get(ctx, w.http, w.server(), w.bucket, name, w.patience())
	end := w.now()
	switch {
	case err != nil:
		w.fail(err)
	case ok:
		w.reads.Add(1)
		w.add(input{kind: read, name: name}, call, end, out)
	}
}

// write sends a write until it has an answer, leaves it for later, or gives it up with its outcome unknown.
func (w *worker) write(ctx context.Context, in input) {
	p := pending{req: newRequest(in, w.bucket, rand.Text(), w.rand.IntN(3) == 0), call: w.now()}
	maybe := false // an earlier attempt may have been carried out
	for limit := time.Now().Add(patienceOfAll); ; {
		a := w.attempt(ctx, &p.req)
		end := w.now()
		switch a.verdict {
		case known:
			if maybe && a.out.passing(in.kind) { // this attempt did nothing, but another one may still be carried out
				w.givenUp.Add(1)
				end, a.out = forever, outcome{unknown: true}
			}
			w.settle(p, end, a.out)
			return
		case lost:
			maybe = true
		case refused:
			w.refusals.Add(1)
			if !maybe && w.rand.IntN(10) == 0 {
				return // nothing was done: the write is not part of the history
			}
		}
		switch {
		case w.failed() != nil || ctx.Err() != nil:
			return
		case time.Now().After(limit):
			w.fail(fmt.Errorf("%w: %s %s has no answer after %s", errUnexpected, in.kind, in.name, patienceOfAll))
			return
		case maybe && w.rand.IntN(4) == 0 && w.may(w.unknown, in.name, mostUnknown):
			w.givenUp.Add(1)
			w.add(in, p.call, forever, outcome{unknown: true})
			return
		// the operation stays open while others run
		case maybe && w.rand.IntN(2) == 0 && w.may(w.open, in.name, mostOpen):
			p.due = w.now() + w.rand.Int64N(int64(3*time.Second))
			w.keep(p)
			return
		}
		w.retries.Add(1)
		wait(ctx, pause)
	}
}

// settle records an outcome, and sometimes has the write repeated later.
func (w *worker) settle(p pending, end int64, out outcome) {
	w.add(p.req.in, p.call, end, out)
	if !out.unknown && !out.passing(p.req.in.kind) && w.rand.IntN(5) == 0 {
		p.settled, p.out, p.due = true, out, w.now()+w.rand.Int64N(int64(5*time.Second))
		w.keep(p)
	}
}

// again repeats a write with the same key at any manager.
func (w *worker) again(ctx context.Context, p pending) {
	for limit := time.Now().Add(patienceOfAll); ; wait(ctx, pause) {
		a := w.attempt(ctx, &p.req)
		end := w.now()
		switch {
		case a.verdict == known && !p.settled:
			if a.out.passing(p.req.in.kind) {
				w.givenUp.Add(1)
				end, a.out = forever, outcome{unknown: true}
			}
			w.settle(p, end, a.out)
			return
		case a.verdict == known && a.out != p.out:
			w.fail(fmt.Errorf("%w: %s %s %s was answered %+v, and with the same key later %+v", errUnexpected, p.req.in.kind,
				p.req.in.name, p.req.body, p.out, a.out))
			return
		case a.verdict == known:
			w.replays.Add(1)
			return
		case w.failed() != nil || ctx.Err() != nil:
			return
		case time.Now().After(limit):
			w.fail(fmt.Errorf("%w: %s %s, sent again, has no answer after %s", errUnexpected, p.req.in.kind, p.req.in.name,
				patienceOfAll))
			return
		}
	}
}

// attempt sends a write to one manager, or sometimes to two at once, whose answers must agree.
func (w *worker) attempt(ctx context.Context, r *request) answer {
	if w.rand.IntN(20) != 0 {
		a, err := r.send(ctx, w.http, w.server(), w.patience())
		if err != nil {
			w.fail(err)
			a.verdict = lost
		}
		return a
	}
	w.hedges.Add(1)
	var both [2]answer
	var wg sync.WaitGroup
	for i := range both {
		server, patience := w.server(), w.patience()
		wg.Go(func() {
			var err error
			if both[i], err = r.send(ctx, w.http, server, patience); err != nil {
				w.fail(err)
				both[i].verdict = lost
			}
		})
	}
	wg.Wait()
	a, b := both[0], both[1]
	passes := func(a answer) bool { return a.verdict == known && a.out.passing(r.in.kind) }
	if passes(b) {
		a, b = b, a
	}
	switch {
	case passes(a) && b.verdict == refused:
		return a
	case passes(a): // the other attempt was or may be carried out, or has the same answer
		return b
	case a.verdict == known && b.verdict == known && a.out != b.out:
		w.fail(fmt.Errorf("%w: %s %s, sent twice at once, was answered %+v and %+v", errUnexpected, r.in.kind, r.in.name,
			a.out, b.out))
	case b.verdict == known || a.verdict == refused:
		return b
	}
	return a
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
