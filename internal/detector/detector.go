// Package detector tells which of several peers that could serve a request has fallen silent, so that another one is
// asked instead.
//
// Who waits for a peer's answer says so. A wait that lasts is looked at: the peer is probed, again and again, and when
// it does not answer, so are those that could be asked in its place. A peer is silent when another one answers probes
// and it does not: on a machine where everything is slow nobody is, and nothing is asked twice. When nobody could take
// its place, or nobody answers, it is silent after a longer time. A silent peer counts as suspect for a while: it is
// asked last.
//
// It promises that a peer that answers probes is waited for, however long its answer takes; that whoever waits is told
// once, or never; and that nothing is sent for answers that come soon. A link is measured by the probes that were
// answered: on a long one a peer has longer to answer the next. It never asks anything but probes.
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
	// lookEvery is how often waits are looked at, while there are any. The first look at a wait only notes it.
	lookEvery = 20 * time.Millisecond
	// patience is how long a probe may go unanswered while another peer answers.
	patience = 2 * lookEvery
	// alonePatience is the same when no other peer does. A process that writes a core dump, a machine that is being moved:
	// it is not yet given up.
	alonePatience = 5 * time.Second
	// probeLimit bounds one probe.
	probeLimit = time.Second
	// A peer that has answered a probe is probed again after a pause, which doubles for as long as the wait lasts.
	firstProbePause = 40 * time.Millisecond
	mostProbePause  = 320 * time.Millisecond
	// A silent peer is suspect for firstRest; when it is silent again soon after that, for twice as long.
	firstRest = time.Second
	mostRest  = 16 * time.Second
	// maxPeers bounds those of which something is remembered.
	maxPeers = 1024
)

// Detector watches over waits. Its methods may be called from any goroutine.
type Detector struct {
	probe func(ctx context.Context, peer string) error
	ctx   context.Context // of probes
	end   context.CancelFunc
	works sync.WaitGroup
	rests atomic.Int64 // until when somebody is suspect, in ns since began; 0: nobody ever was
	began time.Time

	mu      sync.Mutex
	first   *Wait // of those that are looked at
	fresh   bool  // one has come since the last look
	looking bool
	peers   map[string]*peer
}

// peer is what is known of one.
type peer struct {
	probing  bool
	silent   time.Time     // since when a probe has no answer; zero: the last one had
	answered time.Time     // when the last probe began that was answered
	trip     time.Duration // how long an answer to a probe takes, see measured; 0: it is not known
	until    time.Time     // it is suspect
	rest     time.Duration // how long it was the last time
}

// New makes a detector. A probe gives nil when the peer has answered anything; it ends with its context.
func New(probe func(ctx context.Context, peer string) error) *Detector {
	d := &Detector{probe: probe, began: time.Now(), peers: map[string]*peer{}}
	d.ctx, d.end = context.WithCancel(context.Background())
	return d
}

// HTTP is a probe that gets a URL. Any answer will do. The client should have connections of its own: those of requests
// may all be taken.
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

// Close ends probes, and waits for that. Waits that are under way are not looked at any more.
func (d *Detector) Close() {
	d.mu.Lock()
	d.end()
	d.mu.Unlock()
	d.works.Wait()
}

// Wait is a wait for a peer's answer. It may be used again when it has ended.
type Wait struct {
	d          *Detector
	peer       string
	others     func() []string
	silent     func()
	prev, next *Wait
	in         bool

	since  time.Time // of the first look; zero: there was none
	due    time.Time // of the next probe
	pause  time.Duration
	called chan struct{} // silent was called; closed when it has returned
}

// Begin begins a wait for peer. When it is silent, silent is called, once; it must not block. others gives the peers
// that could be asked instead, nil for none; it is called only when the wait lasts.
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

// End ends a wait: silent will not be called any more. It reports whether it was.
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

// remove takes a wait out of the list. The lock is held.
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

// SilentSince has a peer probed, unless it is being probed, and returns since when it has answered no probe; zero: it
// has answered the last one, or there was none. It is for whoever holds something for a peer and asks it for nothing.
func (d *Detector) SilentSince(name string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peer(name)
	since := p.silent
	d.ask(name, p, time.Now())
	return since
}

// Any reports whether a peer may be suspect: when not, nobody has to be asked for by name.
func (d *Detector) Any() bool {
	rests := d.rests.Load()
	return rests != 0 && time.Since(d.began) < time.Duration(rests)
}

// Order puts those that are suspect behind the others; both keep their order.
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

// Failed notes that a peer could not be reached, or has broken off: it is suspect, too.
func (d *Detector) Failed(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.suspect(d.peer(name), time.Now())
}

// look looks at the waits for as long as there are any.
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

// late reports whether a wait's peer is silent, and sends the probes from which that is known. The lock is held.
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
	if since.Before(w.since) { // what was before the wait says nothing
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

// peer returns what is known of a peer. The lock is held.
func (d *Detector) peer(name string) *peer {
	p := d.peers[name]
	if p == nil {
		if len(d.peers) >= maxPeers {
			clear(d.peers) // they come back one by one
		}
		p = &peer{}
		d.peers[name] = p
	}
	return p
}

// suspect makes a peer suspect; it returns true. The lock is held.
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

// ask sends a probe unless one is under way. The lock is held.
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

// measured notes how long an answer took. The shortest counts, as any other may have waited for a peer that was slow
// for a while; it is let go slowly, as links change.
func (p *peer) measured(took time.Duration) {
	if took = max(took, 1); p.trip == 0 || took < p.trip {
		p.trip = took
	} else {
		p.trip = min(took, p.trip+p.trip/8+time.Millisecond)
	}
}

// patience is how long a probe of this peer may go unanswered while another peer answers: twice what an answer takes on
// its link, and one look.
func (p *peer) patience() time.Duration {
	return min(max(patience, 2*p.trip+lookEvery), alonePatience)
}

// ErrSilent is wrapped when who was asked is silent.
var ErrSilent = errors.New("it does not answer, not even whether it lives")

// Body is an answer's body whose peer is waited for in each read. Silent is called when it is silent, and has to end
// the read.
type Body struct {
	io.ReadCloser
	Detector *Detector
	Peer     string
	Others   func() []string
	Silent   func()
	wait     Wait
}

// Read implements io.Reader. The error wraps ErrSilent when the peer was silent.
func (b *Body) Read(p []byte) (int, error) {
	b.Detector.Begin(&b.wait, b.Peer, b.Others, b.Silent)
	n, err := b.ReadCloser.Read(p)
	if b.wait.End() && err != nil {
		err = fmt.Errorf("%s: %w: %w", b.Peer, ErrSilent, err)
	}
	return n, err
}
