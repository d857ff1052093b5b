package detector

import (
	"sync"
	"time"
)

const (
	// quickest is how long an answer counts at least: differences below that say nothing.
	quickest = time.Millisecond
	// forgotten is after how long a measured time counts half: who was slow is tried again.
	forgotten = 2 * time.Second
	// refused is what a refusal counts as: it comes sooner than any answer, and says nothing good.
	refused = 100 * time.Millisecond
)

// Load remembers of each peer how many requests are under way and how soon it has begun to answer, so that of two peers
// that are equally good the one is asked that has less to do. The zero value knows nothing. Its methods may be called
// from any goroutine.
type Load[P comparable] struct {
	mu    sync.Mutex
	peers map[P]work
}

// work is what is known of one peer.
type work struct {
	under int           // requests under way
	took  time.Duration // until the begin of an answer, a moving average
	at    time.Time     // when that was measured last
}

// Begin notes a request. End has to follow.
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

// forget lets go of all peers that nothing is asked of now.
func (l *Load[P]) forget() {
	for p, w := range l.peers {
		if w.under == 0 {
			delete(l.peers, p)
		}
	}
}

// Answered notes after how long a request's answer has begun.
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

// Refused notes that the peer has not taken a request, however soon it said so.
func (l *Load[P]) Refused(peer P, now time.Time) { l.Answered(peer, refused, now) }

// measure takes a time into the average.
func (w *work) measure(took time.Duration, now time.Time) {
	if w.at.IsZero() {
		w.took = took
	} else {
		w.took = (3*w.aged(now) + took) / 4
	}
	w.at = now
}

// End notes that a request is over.
func (l *Load[P]) End(peer P) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.peers[peer]; ok && w.under > 0 {
		w.under--
		l.peers[peer] = w
	}
}

// Busier reports whether a has so much more to do than b that b is asked in its place.
func (l *Load[P]) Busier(a, b P, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peers[a].busier(l.peers[b], now)
}

// busier compares what another request would wait for: a little more is nothing.
func (w work) busier(o work, now time.Time) bool { return 2*w.cost(now) > 3*o.cost(now) }

// cost is as long as a request waits behind those that are under way, if each takes as long as the last ones did.
func (w work) cost(now time.Time) time.Duration {
	return time.Duration(w.under+1) * max(w.aged(now), quickest)
}

// aged is the measured time, halved for each while that has passed since.
func (w work) aged(now time.Time) time.Duration {
	took := w.took
	for age := now.Sub(w.at); took > quickest && age >= forgotten; age -= forgotten {
		took /= 2
	}
	return took
}
