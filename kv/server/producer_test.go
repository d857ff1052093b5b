package server

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"tidemark/kv/store"
)

// A stream that begins while its connection ends, before or behind it, is not subscribed to its vbucket for ever.
func TestStreamThatBeginsAtTheEnd(t *testing.T) {
	t.Parallel()
	b, _, err := store.Open(store.Options{Dir: t.TempDir(), Name: "b", UUID: "u", VBuckets: 1, Random: rand.Uint64,
		Now: time.Now, Quota: store.NewQuota(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Abandon() }()
	srv, vb := newTestServer(), b.VBucket(0)
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	var asking sync.WaitGroup
	over := make(chan struct{})
	asking.Go(func() { // the vbucket has other users, which make the two wait for each other
		for {
			select {
			case <-over:
				return
			default:
				vb.Status()
			}
		}
	})
	defer asking.Wait()
	defer close(over)
	for range 2000 {
		p := newProducer(newConn(srv, far, 1), "consumer", 0)
		st := &stream{p: p, vb: vb}
		var both sync.WaitGroup
		both.Go(func() { p.begin(st) })
		both.Go(p.releaseAll)
		both.Wait()
		if n := vb.Listeners(); n > 0 {
			t.Fatalf("%d streams are subscribed, the connection has ended", n)
		}
	}
	if n := srv.counters.Streams.Load(); n != 0 {
		t.Fatalf("%d streams are counted", n)
	}
}
