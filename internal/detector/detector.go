// Package detector finds out which of several peers that could serve a request has fallen silent, so that another
// peer is asked instead.
//
// A caller registers each wait for a peer's answer. If a wait lasts, the peer is probed repeatedly, and if it does
// not answer, so are the peers that could be asked instead. A peer is silent if another one answers probes and it
// does not: on a machine where everything is slow no peer is silent, and no request is sent twice. If there is no
// other peer, or none answers, the peer is silent after a longer time. A silent peer is suspect for a while: it is
// asked last.
//
// A peer that answers probes is waited for, however long its answer takes; a caller is notified at most once; and
// nothing is sent for answers that arrive soon. The answered probes measure a link: on a long one a peer has more
// time to answer the next. The detector sends nothing but probes.
package detector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookEvery is the interval of checking the waits, while there are any. The first check of a wait only records
	// its time.
	lookEvery = 20 * time.Millisecond
	// patience is how long a probe may go unanswered while another peer answers.
	patience = 2 * lookEvery
	// alonePatience is the same if no other peer answers: a process that writes a core dump, or a machine that is
	// being migrated, is not yet given up.
	alonePatience = 5 * time.Second
	// probeLimit is the timeout of one probe.
	probeLimit = time.Second
	// After an answer, the next probe of a peer follows after a pause, which doubles for as long as the wait lasts.
	firstProbePause = 40 * time.Millisecond
	mostProbePause  = 320 * time.Millisecond
	// A silent peer is suspect for firstRest; if it is silent again soon after that, for twice as long.
	firstRest = time.Second
	mostRest  = 16 * time.Second
	// maxPeers bounds the peers that are remembered.
	maxPeers = 1024
)

// Detector monitors waits. Its methods are safe for concurrent use.
type Detector struct {
	probe func(ctx context.Context, peer string) error
	ctx   context.Context // of probes
	end   context.CancelFunc
	works sync.WaitGroup
	rests atomic.Int64 // end of the last suspicion, in ns since began; 0: there was none
	began time.Time

	mu      sync.Mutex
	first   *Wait // of the list of waits
	fresh   bool  // a wait has begun since the last check
	looking bool
	peers   map[string]*peer
}

// peer is the state of one peer.
type peer struct {
	probing  bool
	silent   time.Time     // since when a probe is unanswered; zero: the last one was answered
	answered time.Time     // start of the last probe that was answered
	trip     time.Duration // round trip of a probe, see measured; 0: unknown
	until    time.Time     // end of the suspicion
	rest     time.Duration // length of the last suspicion
}

// New returns a detector. A probe returns nil if the peer has answered anything; it must end with its context.
func New(probe func(ctx context.Context, peer string) error) *Detector {
	d := &Detector{probe: probe, began: time.Now(), peers: map[string]*peer{}}
	d.ctx, d.end = context.WithCancel(context.Background())
	return d
}

// HTTP returns a probe that requests a URL; any answer counts. The client should have its own connections: those for
// requests may all be in use.
func HTTP(client *http.Client, url func(peer string) string) func(ctx context.Context, peer string) error {
	return func(ctx context.Context, peer string) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url(peer), nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}
}

// Close ends all probes, and waits for them. Waits in progress are no longer monitored.
func (d *Detector) Close() {
	d.mu.Lock()
	d.end()
	d.mu.Unlock()
	d.works.Wait()
}

// Wait is a wait for a peer's answer. It may be reused after it has ended.
type Wait struct {
	d          *Detector
	peer       string
	others     func() []string
	silent     func()
	prev, next *Wait
	in         bool

	since  time.Time // time of the first check; zero: there was none
	due    time.Time // of the next probe
	pause  time.Duration
	called chan struct{} // nil until silent is called; closed when it has returned
}

// Begin begins a wait for peer. If the peer falls silent, silent is called, once; it must not block. others returns
// the peers that could be asked instead; it may be nil, and is called only if the wait lasts.
func (d *Detector) Begin(w *Wait, peer string, others func() []string, silent func()) {
	*w = Wait{d: d, peer: peer, others: others, silent: silent, in: true}
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.next = d.first; w.next != nil {
		w.next.prev = w
	}
	d.first, d.fresh = w, true
	if !d.looking && d.ctx.Err() == nil {
		d.looking = true
		d.works.Go(d.look)
	}
}

// End ends a wait: silent will not be called any more. It reports whether it was called.
func (w *Wait) End() bool {
	w.d.mu.Lock()
	called := w.called
	if called == nil {
		w.remove()
	}
	w.d.mu.Unlock()
	if called == nil {
		return false
	}
	<-called
	return true
}

// remove removes a wait from the list. The caller holds the lock.
func (w *Wait) remove() {
	if !w.in {
		return
	}
	w.in = false
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		w.d.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
}

// Suspect reports whether a peer was silent a short time ago.
func (d *Detector) Suspect(name string) bool {
	if !d.Any() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[name]
	return p != nil && time.Now().Before(p.until)
}

// SilentSince starts a probe of a peer, unless one is in progress, and returns since when probes are unanswered; zero
// if the last one was answered, or there was none. It is for a caller that keeps data for a peer but sends it no
// requests.
func (d *Detector) SilentSince(name string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peer(name)
	since := p.silent
	d.ask(name, p, time.Now())
	return since
}

// Any reports whether any peer may be suspect; if not, callers need not check each.
func (d *Detector) Any() bool {
	rests := d.rests.Load()
	return rests != 0 && time.Since(d.began) < time.Duration(rests)
}

// Order moves suspect peers behind the others; both groups keep their order.
func (d *Detector) Order(names []string) []string {
	if !d.Any() {
		return names
	}
	ordered := make([]string, 0, len(names))
	var last []string
	for _, n := range names {
		if d.Suspect(n) {
			last = append(last, n)
		} else {
			ordered = append(ordered, n)
		}
	}
	return append(ordered, last...)
}

// Failed records that a peer was unreachable, or broke off: it becomes suspect, too.
func (d *Detector) Failed(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.suspect(d.peer(name), time.Now())
}

// look checks the waits for as long as there are any.
func (d *Detector) look() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-d.ctx.Done():
		}
		d.mu.Lock()
		if d.ctx.Err() != nil || d.first == nil && !d.fresh {
			d.looking = false
			d.mu.Unlock()
			return
		}
		d.fresh = false
		now := time.Now()
		var called []*Wait
		for w := d.first; w != nil; {
			next := w.next
			if w.late(now) {
				w.remove()
				w.called = make(chan struct{})
				called = append(called, w)
			}
			w = next
		}
		d.mu.Unlock()
		for _, w := range called {
			w.silent()
			close(w.called)
		}
	}
}

// late reports whether a wait's peer is silent, and sends the probes that show it. The caller holds the lock.
func (w *Wait) late(now time.Time) bool {
	d := w.d
	if w.since.IsZero() {
		w.since, w.due, w.pause = now, now.Add(lookEvery/2), firstProbePause
		return false
	}
	p := d.peer(w.peer)
	if p.silent.IsZero() {
		if now.Before(w.due) {
			return false
		}
		w.due, w.pause = now.Add(w.pause), min(2*w.pause, mostProbePause)
		d.ask(w.peer, p, now)
		return false
	}
	d.ask(w.peer, p, now)
	since := p.silent
	if since.Before(w.since) { // probes from before the wait do not count
		since = w.since
	}
	lasts := now.Sub(since)
	silent := lasts >= alonePatience
	if lasts < lookEvery || w.others == nil {
		return silent && d.suspect(p, now)
	}
	for _, name := range w.others() {
		if name == w.peer {
			continue
		}
		o := d.peer(name)
		silent = silent || lasts >= p.patience() && o.answered.After(since)
		if !o.answered.After(since) {
			d.ask(name, o, now)
		}
	}
	return silent && d.suspect(p, now)
}

// peer returns the state of a peer. The caller holds the lock.
func (d *Detector) peer(name string) *peer {
	p := d.peers[name]
	if p == nil {
		if len(d.peers) >= maxPeers {
			clear(d.peers) // the peers are added again one by one
		}
		p = &peer{}
		d.peers[name] = p
	}
	return p
}

// suspect makes a peer suspect; it returns true. The caller holds the lock.
func (d *Detector) suspect(p *peer, now time.Time) bool {
	if now.Before(p.until) {
		return true
	}
	if again := p.rest > 0 && now.Sub(p.until) < 2*p.rest+firstRest; again {
		p.rest = min(2*p.rest, mostRest)
	} else {
		p.rest = firstRest
	}
	p.until = now.Add(p.rest)
	if until := int64(p.until.Sub(d.began)); until > d.rests.Load() {
		d.rests.Store(until)
	}
	return true
}

// ask sends a probe unless one is in progress. The caller holds the lock.
func (d *Detector) ask(name string, p *peer, now time.Time) {
	if p.probing || d.ctx.Err() != nil {
		return
	}
	p.probing = true
	if p.silent.IsZero() {
		p.silent = now
	}
	d.works.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, probeLimit)
		defer cancel()
		err := d.probe(ctx, name)
		d.mu.Lock()
		defer d.mu.Unlock()
		if p.probing = false; err == nil {
			p.answered, p.silent = now, time.Time{}
			p.measured(time.Since(now))
		}
	})
}

// measured records the round trip of a probe. The shortest one counts, since a longer one may include a time in which
// the peer was slow; it is forgotten slowly, as links change.
func (p *peer) measured(took time.Duration) {
	if took = max(took, 1); p.trip == 0 || took < p.trip {
		p.trip = took
	} else {
		p.trip = min(took, p.trip+p.trip/8+time.Millisecond)
	}
}

// patience returns how long a probe of this peer may go unanswered while another peer answers: twice the round trip
// on its link, and one check.
func (p *peer) patience() time.Duration {
	return min(max(patience, 2*p.trip+lookEvery), alonePatience)
}

// ErrSilent is wrapped if the peer is silent.
var ErrSilent = errors.New("it does not answer, not even whether it lives")

// Body is an answer's body that waits for its peer in each read. If the peer is silent, Silent is called, and must
// end the read.
type Body struct {
	io.ReadCloser
	Detector *Detector
	Peer     string
	Others   func() []string
	Silent   func()
	wait     Wait
}

// Read implements io.Reader. The error wraps ErrSilent if the peer was silent.
func (b *Body) Read(p []byte) (int, error) {
	b.Detector.Begin(&b.wait, b.Peer, b.Others, b.Silent)
	n, err := b.ReadCloser.Read(p)
	if b.wait.End() && err != nil {
		err = fmt.Errorf("%s: %w: %w", b.Peer, ErrSilent, err)
	}
	return n, err
}
