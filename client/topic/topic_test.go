package topic_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"tidemark/client/topic"
	"tidemark/collate"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/ports"
	"tidemark/internal/tlsconf"
	"tidemark/keyversion"
	"tidemark/kv"
	"tidemark/kv/kvclient"
	"tidemark/projector"
	"tidemark/projectorclient"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	bucket, uuid = "world", "0123456789abcdef0123456789abcdef"
	vbuckets     = 8
	hangLimit    = 3 * time.Minute // hang guard
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an embedded KV node, a stand-in for the managers, and a projector that can be restarted.
type world struct {
	t       *testing.T
	kv      *kvclient.Client
	kvAddr  string
	manager *httptest.Server

	mu      sync.Mutex
	admin   string // of the present projector
	stop    func()
	counter uint64
	origin  index.ID // of by_f1, which has been split if it is not 0
}

// running runs f until the returned function is called, at the latest until the end of the test.
func running(t *testing.T, f func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func newWorld(t *testing.T) *world {
	w := &world{t: t}
	node, err := kv.Open(kv.Config{NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", User: "u",
		Password: "secret",
		Nodes:    []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
		Buckets:  []kv.BucketConfig{{Name: bucket, UUID: uuid, VBuckets: vbuckets}}, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	running(t, func(ctx context.Context) error { _ = node.Run(ctx); return nil })
	<-node.Ready()
	w.kvAddr = node.MemcachedAddr()
	fence := wire.Fence{ClusterID: "c1", Epoch: 1, Term: 1}
	mux := http.NewServeMux()
	mux.Handle("/v1/cluster/projectors", rpc.Message(func(context.Context,
		*wire.RegisterProjector) (*wire.RegisterReply, error) {
		return &wire.RegisterReply{ClusterID: "c1", Fence: fence, Leader: wire.Leader{ID: "m1", REST: w.manager.URL,
			Term: 1}}, nil
	}))
	mux.Handle("/v1/components/p1/reports", rpc.Message(func(context.Context,
		*wire.ProjectorReport) (*wire.ReportReply, error) {
		return &wire.ReportReply{Known: true, Fence: fence}, nil
	}))
	w.manager = httptest.NewServer(mux)
	t.Cleanup(w.manager.Close)
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	if w.kv, err = kvclient.Connect(ctx, []string{w.kvAddr}, kvclient.Options{User: "u", Password: "secret",
		Bucket: bucket}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.kv.Close() })
	w.restart()
	return w
}

// restart runs another projector, at another port, and sends it the definitions.
func (w *world) restart() {
	w.t.Helper()
	if w.stop != nil {
		w.stop()
	}
	p, err := projector.Open(projector.Config{ID: "p1", Managers: []string{w.manager.URL}, Admin: "127.0.0.1:0",
		KV: w.kvAddr, User: "u", Password: "secret", Workers: 1})
	if err != nil {
		w.t.Fatal(err)
	}
	w.stop = running(w.t, p.Run)
	admin := "http://" + p.AdminAddr()
	w.define(admin)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admin = admin
}

// define sends a projector indexes 1 and 2 of fields f1 and f2, and 3 of both.
func (w *world) define(admin string) {
	w.t.Helper()
	var err error
	defs := &wire.Definitions{Revision: 1, Buckets: []wire.Bucket{{Name: bucket, UUID: uuid, VBuckets: vbuckets,
		Generation: 1}}}
	for id := range index.ID(2) {
		defs.Indexes = append(defs.Indexes, index.Definition{ID: id + 1, Name: fmt.Sprintf("by_f%d", id+1), Bucket: bucket,
			State: index.Maintenance,
			Keys:  []index.KeyExpr{{Expr: fmt.Sprintf("`f%d`", id+1)}}})
	}
	if w.origin != 0 { // the first is being dropped, the next split has begun
		next := defs.Indexes[0]
		next.ID, next.Origin = 4, w.origin
		defs.Indexes[0].State = index.Dropping
		defs.Indexes = append(defs.Indexes, next)
		next.ID, next.Replaces, next.State = 5, next.ID, index.Backfill
		defs.Indexes = append(defs.Indexes, next)
	}
	defs.Indexes = append(defs.Indexes, index.Definition{ID: 3, Name: "both", Bucket: bucket, State: index.Maintenance,
		Keys: []index.KeyExpr{{Expr: "`f2`"}, {Expr: "`f1`", Desc: true}}})
	c := projectorclient.New(1, nil)
	defer c.Close()
	for deadline := time.Now().Add(hangLimit); ; time.Sleep(5 * time.Millisecond) { // it accepts commands once registered
		w.counter++
		defs.Fence = wire.Fence{ClusterID: "c1", Epoch: 1, Term: 1, Counter: w.counter}
		if _, err = c.Definitions(w.t.Context(), admin, defs); err == nil {
			break
		}
		if time.Now().After(deadline) {
			w.t.Fatal(err)
		}
	}
}

func (w *world) projectors(context.Context) ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return []string{w.admin}, nil
}

func (w *world) set(key string, n int) {
	w.t.Helper()
	if _, err := w.kv.Set(w.t.Context(), key, fmt.Appendf(nil, `{"f1":%d,"f2":"x%d"}`, n, n), kvclient.StoreOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// subscriber records what arrives, and events out of order.
type subscriber struct {
	mu    sync.Mutex
	docs  map[string]string // key of the first statement by document
	last  map[uint16]uint64
	wrong []string
	seen  int
}

func newSubscriber() *subscriber {
	return &subscriber{docs: map[string]string{}, last: map[uint16]uint64{}}
}

func (s *subscriber) handle(_ context.Context, ev *keyversion.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ev.Kind == keyversion.Sync {
		return nil
	}
	s.seen++
	if ev.Seqno <= s.last[ev.VBucket] {
		s.wrong = append(s.wrong, fmt.Sprintf("vbucket %d: %d after %d", ev.VBucket, ev.Seqno, s.last[ev.VBucket]))
	}
	s.last[ev.VBucket] = ev.Seqno
	delete(s.docs, string(ev.DocID))
	if ev.Kind == keyversion.Insert {
		text, err := collate.DecodeComposite(nil, ev.Statements[0].Keys[0], nil)
		if err != nil {
			return err
		}
		s.docs[string(ev.DocID)] = string(text)
	}
	return nil
}

func (s *subscriber) has(want map[string]string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Equal(s.docs, want)
}

func (s *subscriber) await(t *testing.T, want map[string]string) {
	t.Helper()
	for deadline := time.Now().Add(hangLimit); !s.has(want); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("have %v, want %v", s.docs, want)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.wrong) > 0 {
		t.Error(s.wrong)
	}
}

// A subscription continues across a split of its index: nothing is repeated or missing, and the index keeps its id. A
// subscription that begins after the split uses the same id.
func TestSubscriptionContinuesAcrossASplit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := map[string]string{}
	write := func(from, to int) {
		for i := from; i < to; i++ {
			key := fmt.Sprint("doc", i%40)
			w.set(key, i)
			want[key] = fmt.Sprintf("[%d]", i)
		}
	}
	var known []index.ID
	follow := func(id string, from map[uint16]topic.Position, seen *subscriber) (sub *topic.Subscription, stop func()) {
		sub, err := topic.Open(topic.Config{ID: id, Bucket: bucket, Indexes: []string{"by_f1"}, Projectors: w.projectors,
			From: from, Handle: func(ctx context.Context, ev *keyversion.Event) error {
				for _, st := range ev.Statements {
					if !slices.Contains(known, st.Index) {
						known = append(known, st.Index)
					}
				}
				return seen.handle(ctx, ev)
			}})
		if err != nil {
			t.Fatal(err)
		}
		return sub, running(t, sub.Run)
	}
	seen := newSubscriber()
	write(0, 60)
	sub, stop := follow("audit", nil, seen)
	seen.await(t, want)
	before := seen.seen
	w.origin = 1
	w.restart()
	write(100, 140)
	seen.await(t, want)
	if seen.seen != before+40 {
		t.Errorf("%d events after the split, 40 documents were written", seen.seen-before)
	}
	stop()
	write(200, 210)
	again, stop := follow("audit", sub.Positions(), seen)
	seen.await(t, want)
	stop()
	if only := []index.ID{1}; !slices.Equal(sub.Indexes(), only) || !slices.Equal(again.Indexes(), only) ||
		!slices.Equal(known, only) {
		t.Errorf("it is for indexes %v, then %v, and events are of %v; want 1", sub.Indexes(), again.Indexes(), known)
	}
}

// A subscriber sees every document in vbucket order, each version once, across restarts of the projector, and
// continues from its positions after its own restart.
func TestSubscription(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := map[string]string{}
	write := func(from, to int) {
		for i := from; i < to; i++ {
			key := fmt.Sprint("doc", i%40)
			w.set(key, i)
			want[key] = fmt.Sprintf("[%d]", i)
		}
	}
	write(0, 60)
	seen := newSubscriber()
	sub, err := topic.Open(topic.Config{ID: "audit", Bucket: bucket, Indexes: []string{"by_f1"}, Projectors: w.projectors,
		Handle: seen.handle})
	if err != nil {
		t.Fatal(err)
	}
	stop := running(t, sub.Run)
	seen.await(t, want)
	if ids := sub.Indexes(); !slices.Equal(ids, []index.ID{1}) {
		t.Errorf("indexes %v", ids)
	}
	for i := range 2 {
		write(100*(i+1), 100*(i+1)+30)
		w.restart()
		write(100*(i+1)+30, 100*(i+1)+60)
		seen.await(t, want)
	}
	if _, err := w.kv.Delete(t.Context(), "doc1", 0); err != nil {
		t.Fatal(err)
	}
	delete(want, "doc1")
	seen.await(t, want)
	stop()
	positions, n := sub.Positions(), seen.seen
	if len(positions) != vbuckets {
		t.Errorf("positions %v", positions)
	}

	write(1000, 1010)
	again, err := topic.Open(topic.Config{ID: "audit", Bucket: bucket, Indexes: []string{"by_f1"},
		Projectors: w.projectors, Handle: seen.handle, From: positions})
	if err != nil {
		t.Fatal(err)
	}
	stop = running(t, again.Run)
	seen.await(t, want)
	stop()
	if seen.seen > n+10 {
		t.Errorf("%d events after going on, 10 documents were written", seen.seen-n)
	}
}

// While the function does not return, nothing accumulates and nothing is lost; its error ends the subscription.
func TestBackPressureAndErrors(t *testing.T) {
	w := newWorld(t)
	gate, entered := make(chan struct{}), make(chan struct{}, 1)
	full := errors.New("no more")
	seen := newSubscriber()
	sub, err := topic.Open(topic.Config{ID: "slow", Bucket: bucket, Projectors: w.projectors,
		Handle: func(ctx context.Context, ev *keyversion.Event) error {
			select {
			case entered <- struct{}{}:
			default:
			}
			select {
			case <-gate:
			case <-ctx.Done():
				return ctx.Err()
			}
			if string(ev.DocID) == "last" {
				return full
			}
			return seen.handle(ctx, ev)
		}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sub.Run(t.Context()) }()
	want := map[string]string{}
	for i := range 50 {
		w.set(fmt.Sprint("doc", i), i)
		want[fmt.Sprint("doc", i)] = fmt.Sprintf("[%d]", i)
	}
	select {
	case <-entered:
	case <-time.After(hangLimit):
		t.Fatal("no event arrives")
	}
	close(gate)
	seen.await(t, want)
	w.set("last", 1)
	select {
	case err := <-ended:
		if !errors.Is(err, full) || !strings.Contains(err.Error(), "INSERT") {
			t.Error(err)
		}
	case <-time.After(hangLimit):
		t.Fatal("the error does not end it")
	}
}

// Invalid configurations are refused before any request.
func TestBadConfigurations(t *testing.T) {
	ok := topic.Config{ID: "a", Bucket: "b", Projectors: func(context.Context) ([]string, error) { return nil, nil },
		Handle: func(context.Context, *keyversion.Event) error { return nil }}
	for name, change := range map[string]func(c *topic.Config){
		"no id":       func(c *topic.Config) { c.ID = "" },
		"a slash":     func(c *topic.Config) { c.ID = "a/b" },
		"no bucket":   func(c *topic.Config) { c.Bucket = "" },
		"no function": func(c *topic.Config) { c.Handle = nil },
		"a vbucket":   func(c *topic.Config) { c.From = map[uint16]topic.Position{60000: {}} },
		"a window": func(c *topic.Config) {
			c.From = map[uint16]topic.Position{3: {VBUUID: 7, Seqno: 5, Window: timestamp.Window{Start: 6, End: 9}}}
		},
	} {
		cfg := ok
		change(&cfg)
		if _, err := topic.Open(cfg); !errors.Is(err, topic.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A subscription that is not run releases its port on Close, and one that has ended has released it.
func TestClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := topic.Config{ID: "a", Bucket: bucket, Projectors: w.projectors, Handle: newSubscriber().handle,
		Listen: ports.Addr(t)}
	for _, run := range []bool{false, true, false} {
		sub, err := topic.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if run {
			running(t, sub.Run)()
		}
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
	}
}

// With TLS a subscriber needs a certificate of role indexer: any other, or none, is refused before any request.
func TestSubscriberNeedsIndexerCertificate(t *testing.T) {
	dir := t.TempDir()
	ca, err := tlsconf.CreateCA(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	open := func(files tlsconf.Files) error {
		source, err := tlsconf.Open(files, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = topic.Open(topic.Config{ID: "a", Bucket: "b", Projectors: func(context.Context) ([]string,
			error) {
			return nil, nil
		},
			Handle: func(context.Context, *keyversion.Event) error { return nil }, TLS: source})
		return err
	}
	for _, role := range tlsconf.Roles() {
		files, err := ca.Issue(dir, string(role), tlsconf.Request{Peer: tlsconf.Peer{Role: role, ID: "x"}})
		if err != nil {
			t.Fatal(err)
		}
		err = open(files)
		if role == tlsconf.Indexer {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, topic.ErrConfig) || !errors.Is(err, tlsconf.ErrRole) ||
			!strings.Contains(err.Error(), "tidemark://"+string(role)+"/x") || !strings.Contains(err.Error(), "--role indexer") {
			t.Errorf("%s: %v", role, err)
		}
	}
	err = open(tlsconf.Files{CA: filepath.Join(dir, tlsconf.CAFile)})
	if !errors.Is(err, topic.ErrConfig) || !errors.Is(err, tlsconf.ErrNoCertificate) ||
		!strings.Contains(err.Error(), "--role indexer") {
		t.Errorf("no certificate: %v", err)
	}
}
