package detector

import (
	"math/rand"
	"testing"
	"time"
)

// TestBusier checks that more requests, or slower answers, count as more work; small differences do not count, and
// old times count less.
func TestBusier(t *testing.T) {
	now := time.Unix(1000, 0)
	of := func(under int, took, age time.Duration) work {
		return work{under: under, took: took, at: now.Add(-age)}
	}
	for _, c := range []struct {
		name string
		a, b work
		want bool
	}{
		{"nothing is known", work{}, work{}, false},
		{"one request more", work{under: 1}, work{}, true},
		{"one of many more", work{under: 11}, work{under: 10}, false},
		{"both quick", of(0, 900*time.Microsecond, 0), of(0, time.Microsecond, 0), false},
		{"slower", of(0, 20*time.Millisecond, 0), of(0, 10*time.Millisecond, 0), true},
		{"a little slower", of(0, 14*time.Millisecond, 0), of(0, 10*time.Millisecond, 0), false},
		{"quicker", of(0, 10*time.Millisecond, 0), of(0, 20*time.Millisecond, 0), false},
		{"slower, with less to do", of(0, 20*time.Millisecond, 0), of(3, 10*time.Millisecond, 0), false},
		{"was slow long ago", of(0, 20*time.Millisecond, time.Minute), of(0, 10*time.Millisecond, time.Minute), false},
		{"was slow not so long ago", of(0, 100*time.Millisecond, 2*forgotten), of(0, 10*time.Millisecond, 0), true},
		{"it was not asked yet", of(0, 20*time.Millisecond, 0), work{}, true},
	} {
		if got := c.a.busier(c.b, now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		if c.want && c.b.busier(c.a, now) {
			t.Errorf("%s: each is busier than the other", c.name)
		}
	}
}

// TestLoadSpreads checks that, among pairs of peers, the quick ones get more requests and the slow ones still get
// some, and that no request is left uncounted.
func TestLoadSpreads(t *testing.T) {
	r := rand.New(rand.NewSource(17))
	var l Load[int]
	takes := []time.Duration{2 * time.Millisecond, 2 * time.Millisecond, 40 * time.Millisecond}
	now := time.Unix(1000, 0)
	asked := make([]int, len(takes))
	type request struct {
		peer  int
		until time.Time
	}
	var under []request
	for range 20_000 {
		now = now.Add(time.Millisecond)
		left := under[:0]
		for _, q := range under {
			if q.until.After(now) {
				left = append(left, q)
				continue
			}
			l.Answered(q.peer, takes[q.peer], now)
			l.End(q.peer)
		}
		under = left
		a := r.Intn(len(takes))
		if b := (a + 1 + r.Intn(len(takes)-1)) % len(takes); l.Busier(a, b, now) {
			a = b
		}
		l.Begin(a)
		asked[a]++
		under = append(under, request{a, now.Add(takes[a])})
	}
	if asked[2] < 10 || asked[2] > asked[0]/10 || asked[0] < 2*asked[1]/3 || asked[1] < 2*asked[0]/3 {
		t.Errorf("asked %v times, taking %v", asked, takes)
	}
	for p, w := range l.peers {
		n := 0
		for _, q := range under {
			if q.peer == p {
				n++
			}
		}
		if w.under != n {
			t.Errorf("peer %d: %d requests under way, %d are counted", p, n, w.under)
		}
	}
	l.End(77)
	l.Answered(77, time.Second, now)
	for p := range 3 * maxPeers {
		l.Begin(1000 + p)
		l.End(1000 + p)
	}
	if len(l.peers) > maxPeers {
		t.Errorf("%d peers are remembered", len(l.peers))
	}
}

// TestRefusalsDoNotCountAsQuickAnswers checks that a peer that refuses at once is not taken for an idle one; after a
// while it is tried again.
func TestRefusalsDoNotCountAsQuickAnswers(t *testing.T) {
	var l Load[string]
	now := time.Unix(1000, 0)
	for _, p := range []string{"serves", "refuses"} {
		l.Begin(p)
	}
	l.Answered("serves", 5*time.Millisecond, now)
	l.Refused("refuses", now)
	for _, p := range []string{"serves", "refuses"} {
		l.End(p)
	}
	if !l.Busier("refuses", "serves", now) || l.Busier("serves", "refuses", now) {
		t.Error("who refuses is asked first")
	}
	l.Begin("serves")
	l.Answered("serves", 5*time.Millisecond, now.Add(20*time.Second))
	l.End("serves")
	if l.Busier("refuses", "serves", now.Add(20*time.Second)) {
		t.Error("who refused once is never tried again")
	}
}
