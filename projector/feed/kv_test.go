package feed_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/kv"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// With the embedded KV node as the producer: two nodes that hold one bucket of 16 vbuckets together.

const (
	kvUser, kvPassword, kvBucket = "Administrator", "secret", "world"
	kvVBuckets                   = 16
)

// cluster is a pair of nodes in this process.
type cluster struct {
	t     *testing.T
	dirs  [2]string
	nodes [2]*kv.Node
	stop  [2]func()
}

func startCluster(t *testing.T) *cluster {
	w := &cluster{t: t}
	for i := range w.nodes {
		w.dirs[i] = t.TempDir()
		w.open(i)
	}
	w.introduce()
	t.Cleanup(func() {
		for _, stop := range w.stop {
			stop()
		}
	})
	return w
}

func (w *cluster) config(i int) kv.Config {
	return kv.Config{
		NodeID: fmt.Sprint("kv", i+1), Dir: w.dirs[i], Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
		Nodes:   []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:1"}, {ID: "kv2", Memcached: "127.0.0.1:1"}},
		Buckets: []kv.BucketConfig{{Name: kvBucket, UUID: "0123456789abcdef0123456789abcdef", VBuckets: kvVBuckets}},
		User:    kvUser, Password: kvPassword,
	}
}

// open opens and runs a node, and returns a function that stops it.
func (w *cluster) open(i int) {
	w.t.Helper()
	n, err := kv.Open(w.config(i))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	w.nodes[i] = n
	w.stop[i] = func() {
		cancel()
		if err, ok := <-done; ok && err != nil {
			w.t.Error(err)
		}
		w.stop[i] = func() {}
	}
}

// introduce exchanges the nodes' addresses.
func (w *cluster) introduce() {
	w.t.Helper()
	peers := []kv.Peer{{ID: "kv1"}, {ID: "kv2"}}
	for i, n := range w.nodes {
		peers[i].Memcached, peers[i].Admin = n.MemcachedAddr(), n.AdminAddr()
	}
	for _, n := range w.nodes {
		if err := n.SetPeers(peers); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *cluster) client() *kvclient.Client {
	w.t.Helper()
	c, err := kvclient.Connect(within(w.t, 10*time.Second), []string{w.nodes[0].MemcachedAddr()},
		kvclient.Options{User: kvUser, Password: kvPassword, Bucket: kvBucket, Name: "writer"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *cluster) feed(node int, name string) *feed.Conn {
	w.t.Helper()
	<-w.nodes[node].Ready()
	return dial(w.t, feed.Config{Addr: w.nodes[node].MemcachedAddr(), Bucket: kvBucket, User: kvUser, Password: kvPassword,
		Name: name, BufferBytes: 1 << 20})
}

// mirror applies streams to a map of documents, as an index does: after each window it is a state that the node once
// had.
type mirror struct {
	docs   map[string]string
	seqnos map[string]uint64
	track  map[feed.StreamID]*feed.Tracker
	at     map[uint16]feed.Progress
	uuid   map[uint16]uint64

	vbuckets int // of the bucket
	events   int // documents seen
	ends     map[uint16]mcbp.EndReason
}

func newMirror() *mirror {
	return &mirror{docs: map[string]string{}, seqnos: map[string]uint64{}, track: map[feed.StreamID]*feed.Tracker{},
		at: map[uint16]feed.Progress{}, uuid: map[uint16]uint64{},
		vbuckets: kvVBuckets, ends: map[uint16]mcbp.EndReason{}}
}

// follow opens the streams of a node's vbuckets at the mirror's positions.
func (m *mirror) follow(t testing.TB, c feed.Feed, vbuckets []uint16) {
	t.Helper()
	for _, vb := range vbuckets {
		if err := m.tryFollow(t, c, vb); err != nil {
			t.Fatalf("vbucket %d from %+v: %v", vb, m.at[vb].Position, err)
		}
	}
}

// tryFollow opens a vbucket's stream at the mirror's position.
func (m *mirror) tryFollow(t testing.TB, c feed.Feed, vb uint16) error {
	t.Helper()
	p := m.at[vb].Position
	id := c.NewStreamID()
	for m.track[id] != nil { // of an earlier connection
		id = c.NewStreamID()
	}
	tr := feed.NewTracker(p)
	m.track[id] = &tr
	return patiently(t, func() error {
		_, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{
			VBucket: vb, ID: id, Start: p.Seqno, End: mcbp.EndOfTime, VBUUID: m.uuid[vb], SnapStart: p.SnapStart,
			SnapEnd: p.SnapEnd,
		})
		return err
	})
}

// patiently repeats what a node refuses temporarily while it warms up or its map lags.
func patiently(t testing.TB, try func() error) error {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := try()
		passes := errors.Is(err, feed.ErrTemporary) || errors.Is(err, feed.ErrNotMyVBucket) ||
			errors.Is(err, feed.ErrStreamExists)
		if !passes || time.Now().After(deadline) {
			return err
		}
	}
}

// read takes blocks until every vbucket is complete at its target.
func (m *mirror) read(t testing.TB, c feed.Feed, targets map[uint16]uint64) {
	t.Helper()
	ctx := within(t, 60*time.Second)
	reached := func() bool {
		for vb, s := range targets {
			if m.at[vb].Complete < s {
				return false
			}
		}
		return true
	}
	for !reached() {
		b, err := c.Next(ctx)
		if err != nil {
			t.Fatalf("%v: at %v, want %v", err, m.at, targets)
		}
		for i := range b.Events {
			m.apply(t, &b.Events[i])
		}
		b.Release()
		m.goOn(t, c)
	}
}

// goOn reopens streams that the node has ended because they were slow.
func (m *mirror) goOn(t testing.TB, c feed.Feed) {
	t.Helper()
	for vb, reason := range m.ends {
		if reason != mcbp.EndTooSlow {
			continue
		}
		delete(m.ends, vb)
		m.followBack(t, c, []uint16{vb})
	}
}

func (m *mirror) apply(t testing.TB, e *feed.Event) {
	t.Helper()
	tr := m.track[e.Stream]
	if tr == nil {
		t.Fatalf("event of no stream of ours: %s", describe(*e))
	}
	p, err := tr.Observe(e)
	if err != nil {
		t.Fatal(err)
	}
	m.at[e.VBucket] = p
	switch e.Kind {
	case feed.StreamBegin:
		log, err := e.FailoverLog()
		if err != nil {
			t.Fatal(err)
		}
		m.uuid[e.VBucket] = log[0].VBUUID
	case feed.StreamEnd:
		m.ends[e.VBucket] = e.EndReason
	case feed.Mutation, feed.Deletion, feed.Expiration:
		if mcbp.VBucket(e.Key, m.vbuckets) != e.VBucket || m.seqnos[string(e.Key)] >= e.Seqno {
			t.Fatalf("unexpected %s, have seqno %d", describe(*e), m.seqnos[string(e.Key)])
		}
		m.seqnos[string(e.Key)] = e.Seqno
		m.events++
		if e.Kind == feed.Mutation {
			m.docs[string(e.Key)] = string(e.Value)
		} else {
			delete(m.docs, string(e.Key))
		}
	}
}

// targets returns the high seqnos of the vbuckets that a node owns.
func targets(t testing.TB, c feed.Feed) map[uint16]uint64 {
	t.Helper()
	var list []mcbp.VBucketSeqno
	err := patiently(t, func() (err error) {
		list, err = c.HighSeqnos(within(t, time.Minute))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	out := map[uint16]uint64{}
	for _, e := range list {
		out[e.VBucket] = e.Seqno
	}
	return out
}

func keysOf(m map[uint16]uint64) []uint16 {
	var out []uint16
	for k := range m {
		out = append(out, k)
	}
	return out
}

// Everything written arrives, in two halves, across a reconnect, an orderly and an unclean restart of a node: the
// mirror equals what was written.
func TestMirrorEqualsKV(t *testing.T) {
	t.Parallel()
	w := startCluster(t)
	client := w.client()
	truth := map[string]string{}
	rng := rand.New(rand.NewPCG(1, 2))
	write := func(n int) {
		t.Helper()
		ctx := within(t, time.Minute)
		i := 0
		_, err := client.Load(ctx, func() (string, []byte, bool, error) {
			if i++; i > n {
				return "", nil, false, nil
			}
			key, value := fmt.Sprint("doc-", rng.IntN(700)), fmt.Sprintf(`{"n":%d}`, rng.Int())
			truth[key] = value
			return key, []byte(value), true, nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range n / 10 {
			key := fmt.Sprint("doc-", rng.IntN(700))
			_, err := client.Delete(ctx, key, 0)
			if err != nil && !errors.Is(err, kvclient.ErrKeyNotFound) {
				t.Fatal(err)
			}
			delete(truth, key)
		}
	}
	m := newMirror()
	round := 0
	catchUp := func() {
		t.Helper()
		round++
		for i := range w.nodes {
			c := w.feed(i, fmt.Sprintf("mirror-%d-%d", i, round))
			goal := targets(t, c)
			if len(goal) != kvVBuckets/2 {
				t.Fatalf("node %d has %d active vbuckets", i, len(goal))
			}
			m.follow(t, c, keysOf(goal))
			m.read(t, c, goal)
			_ = c.Close()
		}
		if !maps.Equal(m.docs, truth) {
			t.Fatalf("round %d: %d documents, want %d", round, len(m.docs), len(truth))
		}
	}
	write(3000)
	catchUp()
	write(1000)
	catchUp()
	w.stop[1]()
	w.open(1)
	w.introduce()
	write(300)
	catchUp()
	before := maps.Clone(m.uuid)
	// An unclean end: the store was opened and left without the marks of an orderly stop.
	w.stop[0]()
	n, err := kv.Open(w.config(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Load(); err != nil {
		t.Fatal(err)
	}
	n.Abandon()
	w.open(0)
	w.introduce()
	client = w.client()
	write(300)
	catchUp()
	changed := 0
	for vb, u := range m.uuid {
		if before[vb] != u {
			changed++
		}
	}
	if changed != kvVBuckets/2 {
		t.Fatalf("%d vbuckets have a new branch, want those of the node that was killed", changed)
	}
}

// errLoaded signals that the writer has ended.
var errLoaded = errors.New("loaded")

// Streams during writes, with a small window: nothing is lost, and every complete state on the way is one that the
// node had.
func TestMirrorUnderLoad(t *testing.T) {
	t.Parallel()
	w := startCluster(t)
	client := w.client()
	m := newMirror()
	c := w.feed(0, "live")
	m.follow(t, c, keysOf(targets(t, c)))
	const docs = 20_000
	i := 0
	ctx, loaded := context.WithCancelCause(within(t, time.Minute))
	var group errgroup.Group
	group.Go(func() error {
		_, err := client.Load(ctx, func() (string, []byte, bool, error) {
			i++
			return fmt.Sprint("doc-", i%5000), fmt.Append(nil, i), i <= docs, nil
		}, nil)
		loaded(errLoaded)
		return err
	})
	for {
		b, err := c.Next(ctx)
		if errors.Is(err, errLoaded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Events {
			m.apply(t, &b.Events[i])
		}
		b.Release()
		if c.Held() > 2<<20 {
			t.Fatalf("%d bytes held with a window of 1 MiB", c.Held())
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	m.read(t, c, targets(t, c))
	for n := docs - 5000 + 1; n <= docs; n++ {
		key := fmt.Sprint("doc-", n%5000)
		if _, mine := m.at[mcbp.VBucket([]byte(key), kvVBuckets)]; mine && m.docs[key] != fmt.Sprint(n) {
			t.Fatalf("%s is %q, want %d", key, m.docs[key], n)
		}
	}
}

// The node's rules for stream requests: the table in kv/store/stream.go.
func TestStreamRequestsToKV(t *testing.T) {
	t.Parallel()
	w := startCluster(t)
	client := w.client()
	ctx := within(t, time.Minute)
	c := w.feed(0, "requests")
	mine := targets(t, c)
	var vb, foreign uint16
	for v := range uint16(kvVBuckets) {
		if _, ok := mine[v]; ok {
			vb = v
		} else {
			foreign = v
		}
	}
	for i := 0; mine[vb] < 10; i++ {
		key := fmt.Sprint("k", i)
		if mcbp.VBucket([]byte(key), kvVBuckets) == vb {
			mut, err := client.Set(ctx, key, []byte("{}"), kvclient.StoreOptions{})
			if err != nil {
				t.Fatal(err)
			}
			mine[vb] = mut.Seqno
		}
	}
	log, err := c.FailoverLog(ctx, vb)
	if err != nil || len(log) == 0 {
		t.Fatal(log, err)
	}
	uuid := log[0].VBUUID
	end := mcbp.EndOfTime
	tests := []struct {
		name string
		req  feed.StreamRequest
		want error
	}{
		{"another node's vbucket", feed.StreamRequest{VBucket: foreign, End: end}, feed.ErrNotMyVBucket},
		{"no such vbucket", feed.StreamRequest{VBucket: 1000, End: end}, feed.ErrNotMyVBucket},
		{"start after end", feed.StreamRequest{VBucket: vb, Start: 5, End: 4, VBUUID: uuid, SnapStart: 5, SnapEnd: 5},
			feed.ErrRange},
		{"start outside its window", feed.StreamRequest{VBucket: vb, Start: 5, End: end, VBUUID: uuid, SnapStart: 6,
			SnapEnd: 8}, feed.ErrRange},
		{"unknown branch", feed.StreamRequest{VBucket: vb, Start: 5, End: end, VBUUID: uuid + 1, SnapStart: 5, SnapEnd: 5},
			feed.ErrRollback},
		{"ahead of the node", feed.StreamRequest{VBucket: vb, Start: 99, End: end, VBUUID: uuid, SnapStart: 99, SnapEnd: 99},
			feed.ErrRollback},
	}
	for _, tt := range tests {
		_, err := c.OpenStream(ctx, tt.req)
		if !errors.Is(err, tt.want) && !(tt.name == "ahead of the node" && errors.Is(err, feed.ErrRange)) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		var se *kvclient.StatusError
		if errors.Is(tt.want, feed.ErrNotMyVBucket) && errors.As(err, &se) && se.Config == nil {
			t.Errorf("%s: %v carries no map", tt.name, err)
		}
	}
	// A finite stream ends at its end.
	got, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: vb, End: 4})
	if err != nil || got[0] != log[0] {
		t.Fatal(got, err)
	}
	var last feed.Event
	for last.Kind != feed.StreamEnd {
		events, blocks := take(t, c, 1)
		last = events[len(events)-1]
		releaseAll(blocks)
	}
	if last.EndReason != mcbp.EndOK {
		t.Fatalf("the finite stream ended with %v", last.EndReason)
	}
	if _, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: vb, End: end}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: vb, End: end}); !errors.Is(err, feed.ErrStreamExists) {
		t.Fatal(err)
	}
	if err := c.CloseStream(ctx, vb); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseStream(ctx, vb); !errors.Is(err, feed.ErrNoStream) {
		t.Fatal(err)
	}
	details, err := c.Details(ctx)
	if d := details[vb]; err != nil || d.VBUUID != uuid || d.HighSeqno != mine[vb] || d.State != "active" {
		t.Fatalf("%+v, %v", d, err)
	}
	if m, err := c.ClusterConfig(ctx); err != nil || m.NumVBuckets() != kvVBuckets {
		t.Fatal(m, err)
	}
	// The node sends noops and gets answers: neither side disconnects.
	short := feed.Config{Addr: w.nodes[0].MemcachedAddr(), Bucket: kvBucket, User: kvUser, Password: kvPassword,
		Name: "idle", NoopInterval: time.Second, DeadAfter: time.Minute}
	idle := dial(t, short)
	select {
	case <-idle.Done():
		t.Fatal(idle.Err())
	case <-time.After(2500 * time.Millisecond):
	}
}
