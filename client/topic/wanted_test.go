package topic

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/keyversion"
)

// TestTopicsOfVBucketsThatMoveAreJoined: where KV ends vbuckets one by one, each is asked for again, and the projectors
// do not get a topic, and a connection to KV, for each.
func TestTopicsOfVBucketsThatMoveAreJoined(t *testing.T) {
	const vbuckets, one, two = 64, "http://1", "http://2"
	s := &Subscription{vbuckets: make([]vbucket, vbuckets), requests: map[uint64]*request{}, listener: addressed{}}
	if _, any := s.wanted(one); !any {
		t.Fatal("nothing is asked for")
	}
	for vb := range s.vbuckets {
		s.vbuckets[vb].owner = &sink{}
		s.vbuckets[vb].moved = true
		at, addr := []string{one, two}[vb%2], ""
		s.vbuckets[vb].ended(time.Now())
		if req, any := s.wanted(at); !any {
			t.Fatalf("vbucket %d is not asked for", vb)
		} else if r := s.requests[req.Counter]; r != nil {
			addr = r.addr
		}
		topics, asked := map[uint64]bool{}, 0
		for i := range s.vbuckets {
			s.vbuckets[i].owner = &sink{}
			if n := s.vbuckets[i].request; s.requests[n].addr == at {
				topics[n] = true
				asked++
			}
		}
		if addr != at || len(topics) > maxTopics || asked < vb/2 {
			t.Fatalf("after the end of vbucket %d there are %d topics at %s with %d vbuckets", vb, len(topics), at, asked)
		}
	}
}

// addressed is a listener of which only the address is asked.
type addressed struct{ net.Listener }

func (addressed) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// TestAVBucketThatBringsNothing is asked for again after pauses that grow, up to a bound; one that brought something at
// once.
func TestAVBucketThatBringsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Subscription{vbuckets: make([]vbucket, 1), requests: map[uint64]*request{}, listener: addressed{}}
		k, v := &sink{s: s}, &s.vbuckets[0]
		end := func(kind keyversion.Kind) {
			t.Helper()
			if _, any := s.wanted("http://1"); !any {
				t.Fatal("it is not asked for")
			}
			v.owner = k
			ev := &Event{Kind: kind}
			ev.Incarnation.Counter = v.request
			if _, err := k.admit(ev); err != nil || v.request != 0 {
				t.Fatal(err)
			}
		}
		var pauses []time.Duration
		for range 7 {
			end(keyversion.DropData)
			began := time.Now()
			for !s.unfed() {
				time.Sleep(askInterval)
			}
			pauses = append(pauses, time.Since(began))
		}
		if want := "[250ms 500ms 1s 2s 4s 5s 5s]"; fmt.Sprint(pauses) != want {
			t.Errorf("pauses %v, want %v", pauses, want)
		}
		if _, any := s.wanted("http://1"); !any {
			t.Fatal("it is not asked for")
		}
		s.handled(&Event{Kind: keyversion.Insert, Seqno: 1})
		v.owner = k
		ev := &Event{Kind: keyversion.StreamEnd}
		ev.Incarnation.Counter = v.request
		if _, err := k.admit(ev); err != nil || !s.unfed() {
			t.Errorf("one that brought something is not asked for at once: %v", err)
		}
	})
}
