package sides

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/ingest"
	"tidemark/wire"
)

// TestHungProjectorDelaysNoOthers checks that the loop does not wait for requests that a projector does
// not answer, however many there are, and continues when one of the maximum number of requests ends. core.TestSides
// checks whom it asks meanwhile.
func TestHungProjectorDelaysNoOthers(t *testing.T) {
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

// stops stands for projectors, and records which requests were stopped.
type stops struct {
	Projectors
	stopped chan string
}

func (p stops) Stop(_ context.Context, _ string, req *wire.StreamStop) error {
	p.stopped <- req.Topic
	return nil
}

// TestSideStreamsOfARemovedBucketEnd checks that the requests of a removed bucket end, and that their projectors are
// notified. core.TestSides checks which projectors these are.
func TestSideStreamsOfARemovedBucketEnd(t *testing.T) {
	now, stopped := time.Unix(1000, 0), make(chan string, 2)
	l := New(Options{Origins: NewOrigins(false), Registry: prometheus.NewRegistry(), Log: hclog.NewNullLogger(),
		Report: func() {},
		Now:    func() time.Time { return now }, ClusterID: func() string { return "c" },
		Projectors: stops{stopped: stopped}})
	for _, bucket := range []string{"b", "other"} {
		wants := &core.SideWants{Bucket: bucket, Revision: 1, Projectors: []wire.ProjectorEndpoint{{ID: "p1", Admin: "p1"}},
			Wants: []ingest.Want{{To: 10, Copies: []index.CopyID{1}}}, Owner: func(int) index.ProjectorID { return "p1" }}
		for _, r := range l.sides.Ask(wants, now) {
			l.sides.Sent(r, now)
			l.topics[r.ID] = topic{"of " + bucket, trace.SpanFromContext(t.Context())}
		}
	}
	for range 2 {
		l.forget(t.Context(), map[string]bool{"other": true})
	}
	if err := l.calls.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(stopped) != 1 || <-stopped != "of b" || len(l.topics) != 1 {
		t.Errorf("%d more were stopped, %v are open", len(stopped), l.topics)
	}
}

// TestCompletedSideStreamIsReportedAtOnce checks that the leader gets a report when everything that a request asked
// for is written, and not before. Otherwise a build would wait for the next report.
func TestCompletedSideStreamIsReportedAtOnce(t *testing.T) {
	now, reports := time.Unix(1000, 0), 0
	l := New(Options{Origins: NewOrigins(false), Registry: prometheus.NewRegistry(), Log: hclog.NewNullLogger(),
		Report: func() { reports++ }, Now: func() time.Time { return now }})
	wants := &core.SideWants{Bucket: "b", Revision: 1, Projectors: []wire.ProjectorEndpoint{{ID: "p1", Admin: "p1"}},
		Wants: []ingest.Want{{To: 10, Copies: []index.CopyID{1}}}, Owner: func(int) index.ProjectorID { return "p1" }}
	all := l.sides.Ask(wants, now)
	if len(all) != 1 {
		t.Fatalf("asked for %d, want one request", len(all))
	}
	l.sides.Sent(all[0], now)
	l.topics[all[0].ID] = topic{"one", trace.SpanFromContext(t.Context())}
	for _, streams := range [][]ingest.SideProgress{
		{{ID: all[0].ID, Begun: true, To: 10}},
		{{ID: all[0].ID, Begun: true, At: 10, To: 10, Finished: true}}, // but is not written
	} {
		if l.settle(t.Context(), "b", streams, nil); reports != 0 {
			t.Fatalf("reported %d times with %+v", reports, streams)
		}
	}
	for range 2 {
		if l.settle(t.Context(), "b", nil, nil); reports != 1 {
			t.Fatalf("reported %d times, want once", reports)
		}
	}
}
