package data

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/client"
	"tidemark/client/topic"
	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/leash"
	"tidemark/internal/localcluster"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/internal/tlsconf"
	"tidemark/keyversion"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
	"tidemark/projectorclient"
	"tidemark/wire"
)

// keysOf holds the keys of documents: by document, then by index, each key as JSON. It omits documents without keys.
type keysOf map[string]map[string][]string

// listener is a subscriber that records the events that it receives. It reads nothing until gate is closed, unless
// gate is nil.
type listener struct {
	gate  chan struct{}
	names map[index.ID]string
	desc  map[index.ID][]bool

	mu    sync.Mutex
	docs  keysOf
	last  map[uint16]uint64
	wrong []string // events out of order
	calls int
}

func newListener(ctx context.Context, t *testing.T, c *client.Client, bucket string) *listener {
	t.Helper()
	l := &listener{names: map[index.ID]string{}, desc: map[index.ID][]bool{}, docs: keysOf{}, last: map[uint16]uint64{}}
	list, err := c.Indexes(ctx, bucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list.Indexes {
		d := index.Definition{IsPrimary: i.IsPrimary, Keys: i.Keys}
		l.names[i.ID], l.desc[i.ID] = i.Name, d.Desc()
	}
	return l
}

func (l *listener) handle(ctx context.Context, ev *keyversion.Event) error {
	l.mu.Lock()
	l.calls++
	l.mu.Unlock()
	if l.gate != nil {
		select {
		case <-l.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if ev.Kind == keyversion.Sync {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ev.Seqno <= l.last[ev.VBucket] {
		l.wrong = append(l.wrong, fmt.Sprintf("vbucket %d: %d after %d", ev.VBucket, ev.Seqno, l.last[ev.VBucket]))
	}
	l.last[ev.VBucket] = ev.Seqno
	all := map[string][]string{}
	for _, st := range ev.Statements {
		for _, k := range st.Keys {
			text, err := collate.DecodeComposite(nil, k, l.desc[st.Index])
			if err != nil {
				return err
			}
			all[l.names[st.Index]] = append(all[l.names[st.Index]], string(text))
		}
	}
	if delete(l.docs, string(ev.DocID)); len(all) > 0 {
		l.docs[string(ev.DocID)] = all
	}
	return nil
}

func (l *listener) called() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// await waits until the listener has received the keys of exactly these documents, each vbucket's in order.
func (l *listener) await(t *testing.T, what string, want keysOf) {
	t.Helper()
	harness.Eventually(t, harness.Hang, what, func() (bool, string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return maps.EqualFunc(l.docs, want, sameKeys), l.docs.differ(want)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.wrong) > 0 {
		t.Errorf("%s: out of order: %.1000q", what, l.wrong)
	}
}

func sameKeys(a, b map[string][]string) bool { return maps.EqualFunc(a, b, slices.Equal[[]string]) }

// differ describes the first document that differs from want.
func (k keysOf) differ(want keysOf) string {
	for _, d := range slices.Sorted(maps.Keys(want)) {
		if !sameKeys(k[d], want[d]) {
			return fmt.Sprintf("%d documents of %d; %s: %.200q, want %.200q", len(k), len(want), d, k[d], want[d])
		}
	}
	return fmt.Sprintf("%d documents, want %d", len(k), len(want))
}

// subscribe runs a subscription until the end of the test.
func (l *listener) subscribe(t *testing.T, cfg topic.Config, admin string) {
	t.Helper()
	cfg.Handle, cfg.Projectors = l.handle, func(context.Context) ([]string, error) { return []string{admin}, nil }
	sub, err := topic.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the subscription: %v", err)
		}
	})
}

// printed decodes the lines of `tidemark topic tail`; want is the expected number.
func printed(t *testing.T, out []byte, want int) keysOf {
	t.Helper()
	docs, last, n := keysOf{}, map[uint16]uint64{}, 0
	for line := range bytes.Lines(out) {
		if line[0] != '{' { // a line of its log
			continue
		}
		var l struct {
			VBucket uint16
			Seqno   uint64
			ID      string
			Keys    map[string][]json.RawMessage
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("%.200q: %v", line, err)
		}
		if l.Seqno <= last[l.VBucket] {
			t.Errorf("vbucket %d: %d after %d", l.VBucket, l.Seqno, last[l.VBucket])
		}
		last[l.VBucket] = l.Seqno
		n++
		all := map[string][]string{}
		for name, keys := range l.Keys {
			for _, k := range keys {
				all[name] = append(all[name], string(k))
			}
		}
		docs[l.ID] = all
	}
	if n != want {
		t.Errorf("%d lines, want %d", n, want)
	}
	return docs
}

// TestSubscriberOverTLS checks, in a cluster with TLS, that a subscriber with a certificate of role indexer receives
// every key of existing and of changing documents; projectors and the command refuse one with a certificate of
// another role, or without one, with a named error.
func TestSubscriberOverTLS(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--tls", "--managers", "1", "--kv", "1", "--indexers", "1", "--vbuckets", "16")
	m, c, kv := up.Manifest(), up.Client(), up.KV(ctx)
	harness.Create(ctx, t, c, fmt.Sprintf("CREATE INDEX up ON %s(a, b DESC)", m.Bucket),
		fmt.Sprintf("CREATE INDEX down ON %s(b DESC)", m.Bucket))
	want := keysOf{}
	put := func(i, a int) {
		t.Helper()
		id := fmt.Sprintf("doc%02d", i)
		if _, err := kv.Set(ctx, id, fmt.Appendf(nil, `{"a":%d,"b":"b%d"}`, a, a), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
		want[id] = map[string][]string{"up": {fmt.Sprintf(`[%d,"b%d"]`, a, a)}, "down": {fmt.Sprintf(`["b%d"]`, a)}}
	}
	const documents = 60
	for i := range documents {
		put(i, i)
	}
	admin := m.Projectors[0].Admin
	source, err := tlsconf.Open(tlsconf.Files(*m.Subscriber), nil)
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(ctx, t, c, m.Bucket)
	l.subscribe(t, topic.Config{ID: "audit", Bucket: m.Bucket, TLS: source}, admin)
	l.await(t, "what there was", want)
	docs := printed(t, []byte(harness.MustRun(ctx, t, up, "topic", "tail", m.Bucket, "--count", fmt.Sprint(documents))),
		documents)
	if !maps.EqualFunc(docs, want, sameKeys) {
		t.Errorf("topic tail: %s", docs.differ(want))
	}
	for i := range 20 {
		put(i, 1000+i)
		put(100+i, i)
		id := fmt.Sprintf("doc%02d", 20+i)
		if _, err := kv.Delete(ctx, id, 0); err != nil {
			t.Fatal(err)
		}
		delete(want, id)
	}
	l.await(t, "what came", want)

	ca, err := tlsconf.LoadCA(filepath.Dir(m.Subscriber.CA))
	if err != nil {
		t.Fatal(err)
	}
	only := tlsconf.Files{CA: m.Subscriber.CA}
	refusedAsSubscriber(ctx, t, m, only, "no client certificate", errcode.Forbidden)
	for _, role := range []tlsconf.Role{tlsconf.Projector, tlsconf.KV, tlsconf.User, tlsconf.Admin} {
		files, err := ca.Issue(t.TempDir(), "x", tlsconf.Request{Peer: tlsconf.Peer{Role: role, ID: "ann"}})
		if err != nil {
			t.Fatal(err)
		}
		files.CA = only.CA
		refusedAsSubscriber(ctx, t, m, files, "tidemark://"+string(role)+"/ann", errcode.Forbidden)
	}
	for name, files := range map[string]tlsconf.Files{"no client certificate": only,
		"tidemark://admin/admin": tlsconf.Files(*m.TLS)} {
		args := []string{"topic", "tail", m.Bucket, "--server", m.Managers[0].REST, "--tls-ca", files.CA}
		if files.Cert != "" {
			args = append(args, "--tls-cert", files.Cert, "--tls-key", files.Key)
		}
		out, err := exec.CommandContext(ctx, testcluster.Binary(t), args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != errcode.ExitUsage || !strings.Contains(string(out), name) ||
			!strings.Contains(string(out), "--role indexer") {
			t.Errorf("topic tail with %s: %v\n%s", name, err, out)
		}
	}
	put(0, 5000)
	l.await(t, "what came after others were refused", want)
}

// refusedAsSubscriber requests a topic from a projector with these files: the answer must have the code, and name the
// certificate's role and the required one.
func refusedAsSubscriber(ctx context.Context, t *testing.T, m *localcluster.Manifest, files tlsconf.Files,
	name string, code errcode.Code) {
	t.Helper()
	source, err := tlsconf.Open(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := projectorclient.New(1, source.Client(tlsconf.HTTP, tlsconf.Projector))
	defer p.Close()
	harness.Eventually(t, harness.Hang, "an answer to "+name, func() (bool, string) {
		reply, err := p.Subscribe(ctx, m.Projectors[0].Admin, &wire.Subscribe{ID: "other", Bucket: m.Bucket,
			Endpoint: "127.0.0.1:1", Counter: 1})
		var problem *rpc.Problem
		if err != nil && !errors.As(err, &problem) { // the machine stalled
			return false, err.Error()
		}
		if err == nil || problem.Code != code || !strings.Contains(problem.Detail, name) ||
			!strings.Contains(problem.Detail, "indexer") {
			t.Fatalf("%s: %+v, %v", name, reply, err)
		}
		return true, ""
	})
}

// TestSubscriberThatReadsNothing checks, with smart throttling, that a subscriber whose function does not return, and
// a stopped process of one, delay nothing but themselves: the data in flight to them is bounded, every document
// reaches the indexers, and session scans show it. None of the subscribers' data is dropped: when they read again
// they receive everything, once and in order.
func TestSubscriberThatReadsNothing(t *testing.T) {
	t.Parallel()
	const documents, size = 4000, 3 << 10 // more than the queues of one subscriber hold
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "2", "--vbuckets", "16",
		"--throttle", "smart")
	m, c, kv := up.Manifest(), up.Client(), up.KV(ctx)
	harness.Create(ctx, t, c, fmt.Sprintf("CREATE INDEX big ON %s(k)", m.Bucket))
	want := keysOf{}
	long := strings.Repeat("v", size)
	set := func(i int) error {
		_, err := kv.Set(ctx, fmt.Sprint("doc", i), fmt.Appendf(nil, `{"k":"%d%s"}`, i, long), kvclient.StoreOptions{})
		return err
	}
	const late = 5
	for i := range documents + late {
		want[fmt.Sprint("doc", i)] = map[string][]string{"big": {fmt.Sprintf(`["%d%s"]`, i, long)}}
	}
	if err := set(0); err != nil {
		t.Fatal(err)
	}
	l := newListener(ctx, t, c, m.Bucket)
	l.gate = make(chan struct{})
	l.subscribe(t, topic.Config{ID: "held", Bucket: m.Bucket, RetryForever: true}, m.Projectors[0].Admin)
	harness.Eventually(t, harness.Hang, "the subscriber gets something", func() (bool, string) {
		return l.called() > 0,
			""
	})
	tail := startTail(ctx, t, up, documents+late)
	tail.signal(t, syscall.SIGSTOP)

	var g errgroup.Group
	g.SetLimit(8)
	for i := 1; i < documents; i++ {
		g.Go(func() error { return set(i) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	waiting := func() (full bool, seen string) {
		return heldBack(ctx, t, m.Projectors[0].Admin, "/backfill/held/")
	}
	t.Log(harness.Eventually(t, harness.Hang, "as much is on its way to the subscriber as may be", waiting))
	for i := range late + 1 {
		began := time.Now()
		harness.Eventually(t, harness.Hang, "a session scan shows every document", func() (bool, string) {
			n, err := c.Count(ctx, client.Ref(m.Bucket, "big"), v1.ScanRequest{Consistency: "session"})
			return err == nil && int(n.Count) == documents+i, fmt.Sprint(n.Count, err)
		})
		t.Logf("%d documents are in the index, %s after the last one", documents+i, time.Since(began).Round(time.Millisecond))
		if i < late {
			if err := set(documents + i); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Log(harness.Eventually(t, harness.Hang, "the subscriber is still held back", waiting))

	close(l.gate)
	tail.signal(t, syscall.SIGCONT)
	l.await(t, "all that was held back", want)
	docs := printed(t, tail.wait(ctx, t), documents+late)
	if !maps.EqualFunc(docs, want, sameKeys) {
		t.Errorf("topic tail: %s", docs.differ(want))
	}
}

// heldBack reports whether the queues of a subscription's topic are full, or nearly so, because a closed batch may be
// smaller than the memory reserved for it. None of its data may be dropped. When a topic replaces another one, what
// is still queued for the old one is dropped, and does not count.
func heldBack(ctx context.Context, t *testing.T, admin, topics string) (full bool, seen string) {
	t.Helper()
	var s wire.ProjectorState
	if err := testcluster.GetJSON(ctx, admin+"/v1/state", &s); err != nil {
		return false, err.Error()
	}
	var newest *wire.TopicState
	number := func(at *wire.TopicState) int {
		n, err := strconv.Atoi(strings.TrimPrefix(at.Topic, topics))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range s.Topics {
		at := &s.Topics[i]
		if strings.HasPrefix(at.Topic, topics) && (newest == nil || number(at) > number(newest)) {
			newest = at
		}
	}
	if newest == nil {
		return false, "no topic " + topics
	}
	var filled, limit uint64
	for _, e := range newest.Endpoints {
		filled, limit = filled+uint64(e.Queue.Filled), limit+uint64(e.Queue.Limit)
		if e.Dropping > 0 || e.Slow {
			t.Errorf("%s: connection %d: data of %d vbuckets is dropped, slow %v", newest.Topic, e.Connection, e.Dropping,
				e.Slow)
		}
	}
	return limit > 0 && filled >= limit/4*3,
		fmt.Sprintf("%s: %d of %d bytes are on their way", newest.Topic, filled, limit)
}

// tailing is a process of `tidemark topic tail`.
type tailing struct {
	cmd  *exec.Cmd
	out  string // file
	done chan struct{}
	err  error
}

// startTail starts a tail that ends by itself after a number of lines, and waits for the first one.
func startTail(ctx context.Context, t *testing.T, up *testcluster.Cluster, lines int) *tailing {
	t.Helper()
	p := &tailing{out: filepath.Join(t.TempDir(), "tail"), done: make(chan struct{})}
	out, err := os.Create(p.out)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p.cmd = exec.CommandContext(ctx, testcluster.Binary(t), "topic", "tail", up.Manifest().Bucket, "--count",
		fmt.Sprint(lines), "--data", up.Dir)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	held, err := leash.New(p.cmd)
	if err == nil {
		err = p.cmd.Start()
		held.Started()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		held.Close()
		close(p.done)
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.done })
	harness.Eventually(t, harness.Hang, "topic tail prints a line", func() (bool, string) {
		b, err := os.ReadFile(p.out)
		return err == nil && bytes.HasPrefix(b, []byte("{")) || bytes.Contains(b, []byte("\n{")),
			fmt.Sprintf("%.200q %v", b, err)
	})
	return p
}

func (p *tailing) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// wait waits for the process's end and returns its output.
func (p *tailing) wait(ctx context.Context, t *testing.T) []byte {
	t.Helper()
	select {
	case <-p.done:
	case <-ctx.Done():
		b, _ := os.ReadFile(p.out)
		t.Fatalf("topic tail has not ended; %d lines", bytes.Count(b, []byte("\n")))
	}
	b, err := os.ReadFile(p.out)
	if err = cmp.Or(p.err, err); err != nil {
		t.Fatalf("topic tail: %v\n%s", err, b[max(0, len(b)-2000):])
	}
	return b
}
