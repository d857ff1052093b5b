package sides

import (
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/ingest"
	"tidemark/wire"
)

// TestAProjectorThatHangsKeepsNoOthersWaiting: the loop does not wait for requests that a projector does not answer,
// however many, and looks again when one of as many as may be is over. Whom it asks meanwhile: core.TestSides.
func TestAProjectorThatHangsKeepsNoOthersWaiting(t *testing.T) {
	now := time.Unix(1000, 0)
	l := New(Options{Origins: NewOrigins(false), Registry: prometheus.NewRegistry(), Log: hclog.NewNullLogger(),
		Now: func() time.Time { return now }})
	hangs := make(chan struct{})
	ends := sync.OnceFunc(func() { close(hangs) })
	t.Cleanup(func() { ends(); _ = l.calls.Wait() })
	wants := &core.SideWants{Bucket: "b", Revision: 1, Projectors: []wire.ProjectorEndpoint{{ID: "p1", Admin: "p1"}}}
	wants.Owner = func(int) index.ProjectorID { return "p1" }
	for vb := 0; ; vb++ {
		wants.Wants = []ingest.Want{{VBucket: vb, To: 10, Copies: []index.CopyID{1}}}
		all := l.sides.Ask(wants, now)
		if len(all) == 0 {
			break
		}
		l.sides.Sent(all[0], now)
		l.call("p1", func() { <-hangs })
	}
	select {
	case <-l.wake:
		t.Error("it looks again though nothing is over")
	default:
	}
	ends()
	select {
	case <-l.wake:
	case <-time.After(time.Minute):
		t.Fatal("it does not look again")
	}
	_ = l.calls.Wait()
	if all := l.sides.Ask(wants, now); len(all) != 1 {
		t.Errorf("asked for %d, want what waited for room", len(all))
	}
}
