package detector

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// fakePeers is a set of peers that answer probes after a time, or never.
type fakePeers struct {
	mu     sync.Mutex
	takes  map[string]time.Duration // negative: never
	probes map[string]int
}

const never = -1

func (n *fakePeers) probe(ctx context.Context, peer string) error {
	n.mu.Lock()
	n.probes[peer]++
	takes := n.takes[peer]
	n.mu.Unlock()
	if takes == never {
		takes = time.Hour
	}
	select {
	case <-time.After(takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// asked returns how often a peer was probed.
func (n *fakePeers) asked(peer string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.probes[peer]
}

func (n *fakePeers) set(peer string, takes time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.takes[peer] = takes
}

// in runs f with a detector and virtual time.
func in(t *testing.T, takes map[string]time.Duration, f func(t *testing.T, n *fakePeers, d *Detector)) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakePeers{takes: takes, probes: map[string]int{}}
		d := New(n.probe)
		defer d.Close()
		f(t, n, d)
	})
}

// wait waits at most that long for peer, and returns after which time it was found silent, 0 if it was not.
func wait(d *Detector, peer string, others []string, most time.Duration) time.Duration {
	var w Wait
	began, silent := time.Now(), make(chan struct{})
	d.Begin(&w, peer, func() []string { return others }, func() { close(silent) })
	var after time.Duration
	select {
	case <-silent:
		after = time.Since(began)
	case <-time.After(most):
	}
	if w.End() != (after > 0) {
		panic("End says something else")
	}
	return after
}

// TestLongLink checks a peer on a link that is longer than the patience with others: it is found silent once, while
// the link is unknown, and waited for from then on. When it does stop, it is found soon for such a link.
func TestLongLink(t *testing.T) {
	const far = 150 * time.Millisecond
	in(t, map[string]time.Duration{"a": far, "b": time.Millisecond}, func(t *testing.T, n *fakePeers, d *Detector) {
		wait(d, "a", []string{"b"}, time.Second)
		time.Sleep(time.Minute)
		for range 20 {
			if got := wait(d, "a", []string{"b"}, 2*time.Second); got > 0 || d.Suspect("a") {
				t.Fatalf("silent after %v", got)
			}
		}
		n.set("a", never)
		if got := wait(d, "a", []string{"b"}, 10*time.Second); got < 2*far || got > time.Second {
			t.Errorf("stopped, it is found silent after %v", got)
		}
		n.set("a", time.Millisecond) // a shorter link to it
		for range 60 {
			wait(d, "a", []string{"b"}, time.Second)
		}
		n.set("a", never)
		if got := wait(d, "a", []string{"b"}, 10*time.Second); got == 0 || got > 200*time.Millisecond {
			t.Errorf("on a short link it is found silent after %v", got)
		}
	})
}

// TestSilentPeersAreFound checks that a peer that does not answer probes while another one does is found silent soon;
// that one that answers, however slow the machine is, is not; and that every wait has an end.
func TestSilentPeersAreFound(t *testing.T) {
	const soon = 150 * time.Millisecond
	for _, c := range []struct {
		name             string
		a, b             time.Duration // time until they answer probes
		others           []string
		least, most      time.Duration // time until a is found silent; 0: never
		probesA, probesB int           // at most, in ten seconds
	}{
		{name: "both answer", a: time.Millisecond, b: time.Millisecond, others: []string{"b"}, probesA: 40, probesB: 0},
		{name: "a is stopped", a: never, b: time.Millisecond, others: []string{"a", "b"}, least: patience, most: soon,
			probesA: 1, probesB: 1},
		{name: "a is stopped, b is slow", a: never, b: 400 * time.Millisecond, others: []string{"b"},
			least: 400 * time.Millisecond, most: 600 * time.Millisecond, probesA: 1, probesB: 1},
		{name: "both are slow", a: 400 * time.Millisecond, b: 400 * time.Millisecond, others: []string{"b"}, probesA: 30,
			probesB: 30},
		{name: "both are stopped", a: never, b: never, others: []string{"b"}, least: alonePatience, most: alonePatience +
			soon, probesA: 7, probesB: 7},
		{name: "a is alone and stopped", a: never, least: alonePatience, most: alonePatience + soon, probesA: 7},
		{name: "a is alone and slow", a: 900 * time.Millisecond, probesA: 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, map[string]time.Duration{"a": c.a, "b": c.b}, func(t *testing.T, n *fakePeers, d *Detector) {
				got := wait(d, "a", c.others, 10*time.Second)
				if got < c.least || got > c.most {
					t.Errorf("silent after %v, want %v to %v", got, c.least, c.most)
				}
				if a, b := n.asked("a"), n.asked("b"); a > c.probesA || b > c.probesB {
					t.Errorf("%d and %d probes, want at most %d and %d", a, b, c.probesA, c.probesB)
				}
				if d.Suspect("a") != (got > 0) || d.Suspect("b") {
					t.Errorf("suspect: a %t, b %t", d.Suspect("a"), d.Suspect("b"))
				}
			})
		})
	}
}

// TestSilentSince checks that a caller that keeps data for a peer finds out since when it is silent by repeated
// calls, with one probe for each.
func TestSilentSince(t *testing.T) {
	in(t, map[string]time.Duration{"a": time.Millisecond}, func(t *testing.T, n *fakePeers, d *Detector) {
		for range 2 {
			if since := d.SilentSince("a"); !since.IsZero() {
				t.Errorf("silent since %v", since)
			}
			time.Sleep(10 * time.Second)
		}
		n.set("a", never)
		stopped := time.Now()
		for i := range 4 {
			if since := d.SilentSince("a"); since.IsZero() != (i == 0) || i > 0 && !since.Equal(stopped) {
				t.Errorf("stopped at %v, the %dth time silent since %v", stopped, i, since)
			}
			time.Sleep(10 * time.Second)
		}
		n.set("a", time.Millisecond)
		d.SilentSince("a")
		time.Sleep(time.Second)
		since := d.SilentSince("a")
		time.Sleep(time.Second)
		if !since.IsZero() || n.asked("a") != 8 || d.Suspect("a") {
			t.Errorf("it answers: silent since %v, probed %d times", since, n.asked("a"))
		}
	})
}

// TestShortWaitsCostNothing checks that answers that arrive soon cause no probe, however many there are.
func TestShortWaitsCostNothing(t *testing.T) {
	in(t, map[string]time.Duration{}, func(t *testing.T, n *fakePeers, d *Detector) {
		for range 1000 {
			if wait(d, "a", []string{"b"}, 5*time.Millisecond) != 0 {
				t.Fatal("it was found silent")
			}
		}
		if a, b := n.asked("a"), n.asked("b"); a+b != 0 {
			t.Errorf("%d and %d probes", a, b)
		}
	})
}

// TestPeerThatStopsAnswering checks that a peer that stops answering is found silent as soon as one that never
// answered, except for the pause between two probes.
func TestPeerThatStopsAnswering(t *testing.T) {
	in(t, map[string]time.Duration{"a": time.Millisecond, "b": time.Millisecond},
		func(t *testing.T, n *fakePeers, d *Detector) {
			stopped := make(chan time.Time, 1)
			go func() {
				time.Sleep(3 * time.Second)
				n.set("a", never)
				stopped <- time.Now()
			}()
			if wait(d, "a", []string{"b"}, time.Minute) == 0 {
				t.Fatal("it was not found silent")
			}
			if took := time.Since(<-stopped); took > mostProbePause+150*time.Millisecond {
				t.Errorf("found after %v", took)
			}
		})
}

// TestEveryWaitIsReported checks that all waits for a silent peer are notified, each once, and no wait for another
// peer.
func TestEveryWaitIsReported(t *testing.T) {
	in(t, map[string]time.Duration{"a": never, "b": time.Millisecond}, func(t *testing.T, _ *fakePeers, d *Detector) {
		var reported atomic.Int64
		waits := make([]Wait, 100)
		for i := range waits {
			d.Begin(&waits[i], "a", func() []string { return []string{"b"} }, func() { reported.Add(1) })
		}
		var other Wait
		d.Begin(&other, "b", func() []string { return []string{"a"} }, func() { t.Error("b is silent") })
		time.Sleep(time.Second)
		synctest.Wait()
		for i := range waits {
			if !waits[i].End() {
				t.Errorf("wait %d was not reported", i)
			}
		}
		if other.End() || reported.Load() != 100 {
			t.Errorf("%d were reported", reported.Load())
		}
	})
}

// TestSilentPeersAreAskedLast checks that a peer that is silent again and again is asked last for longer and longer,
// and that this starts again after a while without silence. Silence before a wait does not count for it.
func TestSilentPeersAreAskedLast(t *testing.T) {
	in(t, map[string]time.Duration{"a": never, "b": time.Millisecond}, func(t *testing.T, n *fakePeers, d *Detector) {
		var rests []time.Duration
		for range 7 {
			if wait(d, "a", []string{"b"}, time.Second) == 0 {
				t.Fatal("it was not found silent")
			}
			if got := d.Order([]string{"a", "b", "c"}); !slices.Equal(got, []string{"b", "c", "a"}) {
				t.Fatalf("asked in the order %v", got)
			}
			began := time.Now()
			for d.Suspect("a") {
				time.Sleep(10 * time.Millisecond)
			}
			rests = append(rests, time.Since(began).Round(100*time.Millisecond))
		}
		if want := []time.Duration{1, 2, 4, 8, 16, 16, 16}; !slices.EqualFunc(rests, want,
			func(r, w time.Duration) bool { return r == w*time.Second }) {
			t.Errorf("suspect for %v", rests)
		}
		if got := d.Order([]string{"a", "b"}); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("asked in the order %v when no peer is suspect", got)
		}
		time.Sleep(time.Minute)
		n.set("a", 0)
		if got := wait(d, "a", []string{"b"}, 10*time.Second); got != 0 {
			t.Errorf("silent after %v, although it answers again", got)
		}
		d.Failed("a")
		began := time.Now()
		for d.Suspect("a") {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began).Round(100 * time.Millisecond); took != firstRest {
			t.Errorf("suspect for %v after it was well for a minute", took)
		}
	})
}

// TestClose checks that Close ends probes, and that waits in progress or begun later are never notified.
func TestClose(t *testing.T) {
	defer goleak.VerifyNone(t)
	in(t, map[string]time.Duration{"a": never, "b": never}, func(t *testing.T, _ *fakePeers, d *Detector) {
		var w, after Wait
		d.Begin(&w, "a", nil, func() { t.Error("reported") })
		time.Sleep(time.Second)
		d.Close()
		d.Begin(&after, "a", nil, func() { t.Error("reported") })
		time.Sleep(time.Minute)
		if w.End() || after.End() {
			t.Error("a wait was reported")
		}
	})
}

// TestBody checks that a body whose peer falls silent in the middle ends with ErrSilent, and that one that is
// complete does not.
func TestBody(t *testing.T) {
	var stopped atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			if stopped.Load() {
				<-r.Context().Done()
			}
			return
		}
		_, _ = io.WriteString(w, "some")
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/stop" {
			stopped.Store(true)
			<-r.Context().Done()
		}
	}))
	defer s.Close()
	probes := &http.Client{Transport: &http.Transport{}}
	d := New(HTTP(probes, func(peer string) string {
		if peer == "other" {
			peer = s.URL + "/well"
		}
		return peer + "/healthz"
	}))
	defer probes.CloseIdleConnections()
	defer d.Close()
	for path, want := range map[string]error{"/whole": nil, "/stop": ErrSilent} {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body := &Body{ReadCloser: answer.Body, Detector: d, Peer: s.URL, Others: func() []string { return []string{"other"} },
			Silent: cancel}
		b, err := io.ReadAll(body)
		if string(b) != "some" || !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %q, %v, want %v", path, b, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), s.URL) {
			t.Errorf("%v does not say who", err)
		}
		_ = body.Close()
		cancel()
	}
}
