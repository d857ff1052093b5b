package detector

import (
	"sync"
	"time"
)

const (
	// quickest is the minimum that an answer's time counts as: smaller differences are noise.
	quickest = time.Millisecond
	// forgotten is the half-life of a measured time, so that a slow peer is tried again.
	forgotten = 2 * time.Second
	// refused is the time that a refusal counts as: it arrives sooner than any answer, but must not attract requests.
	refused = 100 * time.Millisecond
)

// Load tracks for each peer how many requests are in progress and how soon it begins to answer, so that of two
// equally good peers the one with less work is asked. The zero value is empty. Its methods are safe for concurrent
// use.
type Load[P comparable] struct {
	mu    sync.Mutex
	peers map[P]work
}

// work is the load of one peer.
type work struct {
	under int           // requests in progress
	took  time.Duration // time until an answer begins, a moving average
	at    time.Time     // time of the last measurement
}

// Begin records the start of a request. The caller must call End.
func (l *Load[P]) Begin(peer P) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers == nil {
		l.peers = map[P]work{}
	}
	if _, known := l.peers[peer]; !known && len(l.peers) >= maxPeers {
		l.forget()
	}
	w := l.peers[peer]
	w.under++
	l.peers[peer] = w
}

// forget removes all peers without a request in progress.
func (l *Load[P]) forget() {
	for p, w := range l.peers {
		if w.under == 0 {
			delete(l.peers, p)
		}
	}
}

// Answered records how long a request waited until its answer began.
func (l *Load[P]) Answered(peer P, took time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, ok := l.peers[peer]
	if !ok {
		return
	}
	w.measure(took, now)
	l.peers[peer] = w
}

// Refused records that the peer refused a request; how soon does not count.
func (l *Load[P]) Refused(peer P, now time.Time) { l.Answered(peer, refused, now) }

// measure adds a time to the average.
func (w *work) measure(took time.Duration, now time.Time) {
	if w.at.IsZero() {
		w.took = took
	} else {
		w.took = (3*w.aged(now) + took) / 4
	}
	w.at = now
}

// End records that a request is over.
func (l *Load[P]) End(peer P) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.peers[peer]; ok && w.under > 0 {
		w.under--
		l.peers[peer] = w
	}
}

// Busier reports whether a has so much more work than b that b is asked instead.
func (l *Load[P]) Busier(a, b P, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peers[a].busier(l.peers[b], now)
}

// busier compares the expected waits of another request; a small difference does not count.
func (w work) busier(o work, now time.Time) bool { return 2*w.cost(now) > 3*o.cost(now) }

// cost returns how long a request waits behind those in progress, if each takes as long as recent ones did.
func (w work) cost(now time.Time) time.Duration {
	return time.Duration(w.under+1) * max(w.aged(now), quickest)
}

// aged returns the measured time, halved for each interval forgotten that has passed since.
func (w work) aged(now time.Time) time.Duration {
	took := w.took
	for age := now.Sub(w.at); took > quickest && age >= forgotten; age -= forgotten {
		took /= 2
	}
	return took
}
