package indexer

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/indexer/copies"
	"tidemark/indexer/core"
	"tidemark/indexer/fill"
	"tidemark/indexer/verify"
	"tidemark/managerclient"
	"tidemark/wire"
)

// TestAnswersBesideBusyBuckets checks that everything that collects data from all buckets asks them concurrently: it
// ends when each bucket has been free once, not one after the other.
func TestAnswersBesideBusyBuckets(t *testing.T) {
	const first, second = "a", "b" // in this order
	newNode, _ := aloneNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	id, err := loadIdentity(t.TempDir(), "boot", func(store func() error) error { return store() })
	if err != nil {
		t.Fatal(err)
	}
	bare := func() *Indexer { // what the answers contain besides the buckets
		return &Indexer{identity: id, catalog: noCatalog(), buckets: buckets{named: map[string]*copies.Bucket{}},
			managers: managerclient.New(nil, nil), ports: ports{admin: l, scan: l, maintenance: l, backfill: l, catchup: l},
			verify: verify.New(verify.Options{Registry: prometheus.NewRegistry(), Log: hclog.NewNullLogger(), Now: time.Now}),
			fills: fill.New(fill.Options{Registry: prometheus.NewRegistry(), Rate: 1 << 20, Log: hclog.NewNullLogger(),
				Now: time.Now}), now: time.Now}
	}
	fence := wire.Fence{ClusterID: testCluster, Epoch: 1, Term: 1}
	if err := id.registered(&wire.RegisterReply{ClusterID: testCluster, Node: 3, Fence: fence}); err != nil {
		t.Fatal(err)
	}
	named := func(t *testing.T, rep *wire.IndexerReport) {
		if !slices.EqualFunc(rep.Buckets, []string{first, second}, func(b wire.BucketReport, name string) bool {
			return b.Heartbeat.Bucket == name
		}) {
			t.Errorf("reported: %+v", rep.Buckets)
		}
	}
	for _, c := range []struct {
		name  string
		times int // how often it asks
		ask   func(context.Context, *testing.T, *Indexer) error
	}{
		{"report", 1, func(ctx context.Context, t *testing.T, x *Indexer) error {
			named(t, x.numberedReport(ctx, func(string) bool { return true }))
			return nil
		}},
		{"acknowledgements", 1, func(ctx context.Context, _ *testing.T, x *Indexer) error {
			x.tookAcks(ctx, map[string]wire.StabilityRef{first: {}, second: {}})
			return nil
		}},
		{"hello", 2, func(ctx context.Context, t *testing.T, x *Indexer) error {
			h, err := x.hello(ctx, &wire.HelloRequest{Fence: fence})
			if err != nil {
				return err
			}
			if len(h.Minimum) != 2 || h.Minimum[0].Bucket != first || h.Minimum[1].Bucket != second {
				t.Errorf("minimum of %+v", h.Minimum)
			}
			return nil
		}},
		{"status", 2, func(ctx context.Context, t *testing.T, x *Indexer) error {
			s, err := x.status(ctx)
			if err == nil {
				named(t, s.Report)
			}
			return err
		}},
		{"positions", 1, func(ctx context.Context, t *testing.T, x *Indexer) error {
			w := httptest.NewRecorder()
			defer func() {
				if got := w.Body.String(); strings.Count(got, "bucket ") != 2 || !strings.HasPrefix(got, "bucket a: ") {
					t.Errorf("drawn: %q", got)
				}
			}()
			return x.positions(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/positions", http.NoBody))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, x := newNode(), bare()
				var running sync.WaitGroup
				defer running.Wait()
				for _, name := range []string{first, second} {
					k, err := copies.NewBucket(node, wire.Bucket{Name: name, UUID: "u", VBuckets: 2, Generation: 1})
					if err != nil {
						t.Fatal(err)
					}
					running.Go(func() { _ = k.Run(t.Context()) })
					x.buckets.named[name] = k
					defer k.Stop()
				}
				busy := func(name string) (free func()) { // once its loop gets to it
					until, k := make(chan struct{}), x.bucketNamed(name)
					running.Go(func() { _ = k.Do(t.Context(), func(*core.Bucket) { <-until }) })
					synctest.Wait()
					return func() {
						close(until)
						synctest.Wait()
					}
				}
				freeFirst := busy(first)
				done := make(chan error, 1)
				running.Go(func() { done <- c.ask(t.Context(), t, x) })
				synctest.Wait() // the second bucket has answered, if it was asked
				for range c.times - 1 {
					freeSecond := busy(second)
					next := busy(first) // as soon as the first one has answered
					freeFirst()
					freeSecond()
					freeFirst = next
				}
				freeSecond := busy(second)
				freeFirst()
				select {
				case err := <-done:
					if err != nil {
						t.Error(err)
					}
					freeSecond()
				default:
					t.Error("each has been free, and it still waits")
					freeSecond()
					<-done
				}
			})
		})
	}
}
