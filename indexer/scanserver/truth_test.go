package scanserver

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"tidemark/errcode"
	"tidemark/indexer/scan"
	"tidemark/wire"
)

// projectors are projectors whose answers the test decides: they report the KV seqno of the time of the request, once
// the test lets them answer.
type projectors struct {
	at       atomic.Uint64 // the KV seqno
	requests atomic.Int64
	goOn     chan struct{}
}

// Seqnos implements Projectors.
func (p *projectors) Seqnos(ctx context.Context, _ string, _ *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
	at := p.at.Load()
	p.requests.Add(1)
	select {
	case <-p.goOn:
		return &wire.SeqnosReply{VBuckets: []uint16{0}, VBUUIDs: []uint64{7}, Seqnos: []uint64{at}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestSessionsQueryKVTogether checks that scans that come while KV is being queried for its seqnos do not use that
// answer, since it may lack what was written before they came. They share the next request instead. A scan that is
// cancelled does not end the request of the others.
func TestSessionsQueryKVTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &projectors{goOn: make(chan struct{})}
		truth := NewTruth(Sources{Projectors: p, Definitions: func() wire.Definitions {
			return wire.Definitions{Buckets: []wire.Bucket{{Name: "b", VBuckets: 1}},
				Projectors: []wire.ProjectorEndpoint{{ID: "p", Admin: "p"}}}
		}})
		answered := make(chan uint64, 100)
		scanOnce := func(ctx context.Context) {
			go func() {
				switch v, err := truth.CurrentSeqnos(ctx, "b"); {
				case err == nil:
					answered <- v.Seqnos[0]
				case scan.CodeOf(err) != errcode.VBucketsUnavailable || ctx.Err() == nil:
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		p.at.Store(10)
		scanOnce(t.Context())
		p.at.Store(20) // a client writes
		givenUp, cancel := context.WithCancel(t.Context())
		scanOnce(givenUp)
		const others = 9
		for range others {
			scanOnce(t.Context())
		}
		if n := p.requests.Load(); n != 1 {
			t.Errorf("%d requests to the projector while the first one is under way", n)
		}
		p.goOn <- struct{}{}
		if s := <-answered; s != 10 {
			t.Errorf("the first scan: %d", s)
		}
		cancel()
		synctest.Wait()
		p.goOn <- struct{}{}
		for range others {
			if s := <-answered; s != 20 {
				t.Errorf("a scan of after the write: KV is at %d", s)
			}
		}
		if n := p.requests.Load(); n != 2 || len(answered) > 0 {
			t.Errorf("%d requests to the projector for %d scans, want 2", n, others+2)
		}
	})
}
