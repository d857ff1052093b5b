package feed_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/kv"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
	"tidemark/kv/store"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

// Scenarios with the embedded KV node as the producer: each runs with each implementation of Feed, and with a node in
// each mood. A scenario has a mirror, which opens, follows and rolls back as the product does, and is compared with
// what was written.

var (
	manyStreams = flag.Int("streams", 300, "streams that the scenario of many opens and closes")
	moodSeed    = flag.Uint64("moods.seed", 1, "of the moods that are drawn")
	slowFor     = flag.Duration("slow", 1500*time.Millisecond, "how long the slow consumer takes nothing")
	idleFor     = flag.Duration("idle", 2500*time.Millisecond, "how long the idle node sends nothing but noops")
)

// moods change a node's configuration, for one of the implementations.
var moods = []struct {
	name string
	set  func(c *kv.Config, implementation string)
}{
	{"mild", func(*kv.Config, string) {}},
	{"nasty", func(c *kv.Config, implementation string) {
		c.Nasty = bearable(implementation) &^ server.NoFlowControl // or nothing is slowed down
	}},
	{"drawn", func(c *kv.Config, implementation string) {
		c.Nasty = bearable(implementation).Some(*moodSeed)
	}},
}

// bearable returns the moods in which the results of a scenario are known, with one of the implementations. Purges
// would turn continuations into rollbacks on a slow machine; evictions are a scenario of their own.
func bearable(implementation string) server.Moods {
	all := server.AllMoods &^ (server.Purges | server.PurgeByWindow | server.Eviction)
	// It waits for the promised end, has a data race if a control is refused, and needs flow control.
	if implementation == "gocbcore" {
		all &^= server.NoCloseEnd | server.OldControls | server.NoFlowControl
	}
	return all
}

// stage is the setting of a scenario: one node with one bucket, a writer, and the expected contents.
type stage struct {
	testing.TB
	dial   feed.Dialer
	mood   func(*kv.Config)
	edit   func(*kv.Config)
	dir    string
	node   *kv.Node
	second *kv.Node // of scenarios with two
	stop   func()
	writer *kvclient.Client
	truth  map[string]string
	names  atomic.Int32
	moods  server.Moods // of the node
}

const (
	stageVBuckets = 4
	warmupSpent   = 14 // of the 16 requests that a warming node refuses
	stageUUID     = "0123456789abcdef0123456789abcdef"
)

// scenarios lists the scenarios by name; edit (may be nil) changes the node's configuration.
var scenarios = []struct {
	name string
	edit func(*kv.Config)
	play func(s *stage)
}{
	{"restart mid-snapshot", nil, restartMidSnapshot},
	{"de-duplication", nil, deduplication},
	{"rollback by unknown branch", nil, unknownBranch},
	{"rollback by purge", nil, purged},
	{"rollback by window", nil, byWindow},
	{"takeover", func(c *kv.Config) { c.Nasty &^= server.SilentTakeover | server.SlowEnd }, takeover},
	{"takeover without END", func(c *kv.Config) {
		c.Nasty = c.Nasty&^server.SlowEnd | server.SilentTakeover
	}, silentTakeover},
	{"failover of a replica that lags", nil, failover},
	{"failover with loss", nil, failoverWithLoss},
	{"producer killed", nil, producerKilled},
	{"many streams", nil, manyOpenedAndClosed},
	{"slow consumer", nil, slowConsumer},
	{"large and odd documents", nil, oddDocuments},
	{"compressed", func(c *kv.Config) { c.Nasty |= server.Compressed }, compressed},
	{"deletions with bodies", func(c *kv.Config) { c.Nasty &^= server.Xattrs }, deletionsWithBodies},
	{"changes of attributes", func(c *kv.Config) { c.Nasty |= server.Xattrs }, changesOfAttributes},
	{"evictions", func(c *kv.Config) { c.Nasty |= server.Eviction }, evictions},
	{"cursor dropped", func(c *kv.Config) { c.Nasty |= server.CursorDrop | server.InsideWindows }, cursorDropped},
	{"killed before it is on disk", func(c *kv.Config) {
		c.Nasty |= server.Unpersisted
		c.Housekeep = time.Hour
	}, unpersisted},
	{"idle", nil, idle},
	{"expiry", func(c *kv.Config) { c.Housekeep = 10 * time.Millisecond }, expiry},
	{"one name twice", nil, sameName},
}

func TestScenarios(t *testing.T) {
	t.Parallel() // most of their time is waiting
	t.Logf("-moods.seed %d: %v", *moodSeed, server.AllMoods.Some(*moodSeed))
	for _, sc := range scenarios {
		t.Run(strings.ReplaceAll(sc.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			for _, i := range implementations {
				for _, m := range moods {
					if m.name == "drawn" && testing.Short() { // no mood that nasty does not have, too
						continue
					}
					t.Run(i.name+"/"+m.name, func(t *testing.T) {
						t.Parallel()
						s := &stage{TB: t, dial: i.dial, mood: func(c *kv.Config) { m.set(c, i.name) }, edit: sc.edit, dir: t.TempDir(),
							truth: map[string]string{}}
						s.open()
						t.Cleanup(func() { s.stop() })
						sc.play(s)
					})
				}
			}
		})
	}
}

// open starts the node on its folder, and a writer.
func (s *stage) open() {
	s.Helper()
	conf := kv.Config{NodeID: "kv1", Dir: s.dir, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", User: kvUser,
		Password:  kvPassword,
		Nodes:     []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
		Buckets:   []kv.BucketConfig{{Name: kvBucket, UUID: stageUUID, VBuckets: stageVBuckets, Replicas: 1}},
		Heartbeat: 20 * time.Millisecond}
	s.mood(&conf)
	if s.edit != nil {
		s.edit(&conf)
	}
	s.moods = conf.Nasty
	n, err := kv.Open(conf)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	s.node = n
	<-n.Ready()
	s.warmUp(n)
	w, err := kvclient.Connect(within(s, time.Minute), []string{n.MemcachedAddr()},
		kvclient.Options{User: kvUser, Password: kvPassword, Bucket: kvBucket, Name: "writer", DialTimeout: time.Minute,
			OpTimeout: time.Minute})
	if err != nil {
		s.Fatal(err)
	}
	s.writer = w
	s.stop = func() {
		_ = w.Close()
		cancel()
		if err := <-done; err != nil {
			s.Error(err)
		}
		s.stop = func() {}
	}
}

// warmUp uses up most of a nasty node's warmup with dials that it refuses; the scenario gets the rest. The writer,
// whose retries have growing pauses, would take seconds for it.
func (s *stage) warmUp(n *kv.Node) {
	s.Helper()
	conf := feed.Config{Addr: n.MemcachedAddr(), Bucket: kvBucket, User: kvUser, Password: kvPassword, Name: "early",
		RequestTimeout: time.Minute}
	for range warmupSpent {
		c, err := feed.Dial(within(s, time.Minute), conf)
		if err == nil { // it is a mild node
			_ = c.Close()
			return
		}
		if !errors.Is(err, feed.ErrTemporary) {
			s.Fatal(err)
		}
	}
}

func (s *stage) conf() feed.Config {
	return feed.Config{Addr: s.node.MemcachedAddr(), Bucket: kvBucket, User: kvUser, Password: kvPassword,
		Name: fmt.Sprint("scenario-", s.names.Add(1)), BufferBytes: 1 << 20,
		// Much more often than a node in the mood idle-close closes, and with a long limit, however busy the machine is.
		NoopInterval: time.Second, DeadAfter: time.Minute}
}

func (s *stage) feed() feed.Feed {
	s.Helper()
	return dialWith(s, s.dial, s.conf())
}

func (s *stage) set(key, value string) kvclient.Mutation {
	s.Helper()
	m, err := s.writer.Set(within(s, 60*time.Second), key, []byte(value), kvclient.StoreOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.truth[key] = value
	return m
}

func (s *stage) remove(key string) kvclient.Mutation {
	s.Helper()
	m, err := s.writer.Delete(within(s, 60*time.Second), key, 0)
	if err != nil {
		s.Fatal(err)
	}
	delete(s.truth, key)
	return m
}

// mirror returns a mirror of the stage's vbuckets.
func (s *stage) mirror() *mirror {
	m := newMirror()
	m.vbuckets = stageVBuckets
	return m
}

// all returns the stage's vbuckets.
func all() (list []uint16) {
	for v := range uint16(stageVBuckets) {
		list = append(list, v)
	}
	return list
}

// catchUp brings the mirror to the node's present state, over a new connection, rolling back where necessary, and
// compares.
func (s *stage) catchUp(m *mirror) (rolledBack int) {
	s.Helper()
	c := s.feed()
	rolledBack = m.followBack(s, c, all())
	m.read(s, c, targets(s, c))
	s.compare(m)
	_ = c.Close()
	return rolledBack
}

func (s *stage) compare(m *mirror) {
	s.Helper()
	if !maps.Equal(m.docs, s.truth) {
		s.Fatalf("%d documents, want %d", len(m.docs), len(s.truth))
	}
}

// followBack is follow with rollbacks: the vbucket is cleared, and the stream begins at 0. The product rolls back to
// a snapshot of its own at or below the seqno; 0 is always a valid one.
func (m *mirror) followBack(t testing.TB, c feed.Feed, vbuckets []uint16) (rolledBack int) {
	t.Helper()
	for _, vb := range vbuckets {
		err := m.tryFollow(t, c, vb)
		var rollback *feed.RollbackError
		if errors.As(err, &rollback) {
			if rollback.Seqno > m.at[vb].Seqno {
				t.Fatalf("vbucket %d: rolled back forward, from %d to %d", vb, m.at[vb].Seqno, rollback.Seqno)
			}
			rolledBack++
			m.forget(vb)
			err = m.tryFollow(t, c, vb)
		}
		if err != nil {
			t.Fatalf("vbucket %d from %+v: %v", vb, m.at[vb].Position, err)
		}
	}
	return rolledBack
}

// forget drops a vbucket's documents.
func (m *mirror) forget(vb uint16) {
	for key := range m.seqnos {
		if mcbp.VBucket([]byte(key), m.vbuckets) == vb {
			delete(m.seqnos, key)
			delete(m.docs, key)
		}
	}
	delete(m.at, vb)
	delete(m.uuid, vb)
}

// readSome reads events until the given number of documents has been seen; if cut, the rest of the last block is
// dropped, as if the connection had been lost there.
func (m *mirror) readSome(t testing.TB, c feed.Feed, documents int, cut bool) {
	t.Helper()
	ctx := within(t, 60*time.Second)
	for seen := 0; seen < documents; {
		b, err := c.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Events {
			if !cut || seen < documents {
				m.apply(t, &b.Events[i])
			}
			if b.Events[i].Kind.IsDocument() {
				seen++
			}
		}
		b.Release()
		if !cut {
			m.goOn(t, c)
		}
	}
}

// A consumer that loses its connection within a snapshot continues from there, with the window it was in.
func restartMidSnapshot(s *stage) {
	for i := range 400 {
		s.set(fmt.Sprint("k", i), fmt.Sprint(i))
	}
	m := s.mirror()
	for round := range 6 {
		c := s.feed()
		if n := m.followBack(s, c, all()); n > 0 {
			s.Fatalf("round %d: %d vbuckets were rolled back", round, n)
		}
		m.readSome(s, c, 50, true)
		_ = c.Close()
		s.set(fmt.Sprint("k", round), "changed")
	}
	s.catchUp(m)
}

// A backfill only contains the newest version of a document: seqnos have gaps, and the windows cover them.
func deduplication(s *stage) {
	for round := range 20 {
		for i := range 20 {
			s.set(fmt.Sprint("k", i), fmt.Sprint(round))
		}
	}
	s.remove("k3")
	m := s.mirror()
	s.catchUp(m)
	if n := m.events; n > 200 {
		s.Errorf("%d documents came for 20 keys", n)
	}
	// While a stream is open but not read, versions may disappear, too; the last one never does.
	c := s.feed()
	m.follow(s, c, all())
	for round := range 50 {
		s.set("k1", fmt.Sprint("again ", round))
	}
	m.read(s, c, targets(s, c))
	s.compare(m)
}

// A position on a branch that the node does not know is refused, and nothing of it is kept.
func unknownBranch(s *stage) {
	for i := range 100 {
		s.set(fmt.Sprint("k", i), "1")
	}
	m := s.mirror()
	s.catchUp(m)
	for vb := range m.uuid {
		m.uuid[vb] ^= 1
	}
	if n := s.catchUp(m); n != stageVBuckets {
		s.Errorf("%d vbuckets were rolled back, want all", n)
	}
}

// A consumer that resumes after the purge of deletions that it has not seen starts over.
func purged(s *stage) {
	for i := range 50 {
		s.set(fmt.Sprint("k", i), "1")
	}
	m := s.mirror()
	s.catchUp(m)
	for i := range 25 {
		s.remove(fmt.Sprint("k", i))
	}
	s.set("k49", "newest") // the newest version of a vbucket is never purged
	s.stop()
	b, _, err := store.Open(store.Options{Dir: filepath.Join(s.dir, "buckets", kvBucket, "log"), Name: kvBucket,
		UUID: stageUUID, VBuckets: stageVBuckets,
		State: func(uint16) store.State { return store.Active }, Quota: store.NewQuota(0), Random: rand.Uint64,
		Now: func() time.Time { return time.Now().Add(time.Hour) }})
	if err != nil {
		s.Fatal(err)
	}
	if err := errors.Join(b.PurgeTombstones(within(s, 60*time.Second), time.Minute), b.Close()); err != nil {
		s.Fatal(err)
	}
	s.open()
	if n := s.catchUp(m); n < 2 {
		s.Errorf("%d vbuckets were rolled back", n)
	}
}

// copyFolder copies the node's present files.
func copyFolder(t testing.TB, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	_ = filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "LOCK" {
			return os.Remove(path)
		}
		return err
	})
}

// A replica that lagged is promoted: what only the old owner had is gone, the consumer is ahead of the node, and two
// branches diverge. The lagging replica is an earlier copy of the node's own folder, as left by a kill.
func failoverWithLoss(s *stage) {
	for i := range 100 {
		s.set(fmt.Sprint("k", i), "1")
	}
	m := s.mirror()
	s.catchUp(m)
	promote := s.lagging()
	for i := range 50 {
		s.set(fmt.Sprint("k", i), "lost")
		s.set(fmt.Sprint("new", i), "lost")
	}
	s.catchUp(m)
	before := maps.Clone(m.uuid)
	promote()
	for i := range 100 {
		s.set(fmt.Sprint("other", i), "branch")
	}
	if n := s.catchUp(m); n != stageVBuckets {
		s.Errorf("%d vbuckets were rolled back, want all", n)
	}
	for vb, u := range m.uuid {
		if before[vb] == u {
			s.Errorf("vbucket %d is on the same branch", vb)
		}
	}
}

// lagging makes a replica that receives nothing from now on; the function puts it in the node's place.
func (s *stage) lagging() (promote func()) {
	s.Helper()
	kept := maps.Clone(s.truth)
	s.stop()
	old := s.TB.TempDir() + "/copy"
	copyFolder(s, s.dir, old)
	s.open()
	return func() {
		s.Helper()
		s.stop()
		s.dir, s.truth = old, kept
		s.killed()
		s.open()
	}
}

// killed leaves the folder of a stopped node as a kill would have.
func (s *stage) killed() {
	s.Helper()
	n, err := kv.Open(kv.Config{NodeID: "kv1", Dir: s.dir, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", User: kvUser,
		Password: kvPassword,
		Nodes:    []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
		Buckets:  []kv.BucketConfig{{Name: kvBucket, UUID: stageUUID, VBuckets: stageVBuckets}}})
	if err != nil {
		s.Fatal(err)
	}
	if err := n.Load(); err != nil {
		s.Fatal(err)
	}
	n.Abandon()
}

// After a failover with losses the answer depends on the window that the consumer was in, not on its seqno alone: a
// consumer whose window ended where the branches part continues, one that was complete beyond rolls back to that
// point, and one that was on common ground within a window that extends beyond rolls back to the beginning of that
// window.
func byWindow(s *stage) {
	for i := range 100 {
		s.set(fmt.Sprint("k", i), "1")
	}
	below := s.mirror()
	s.catchUp(below)
	promote := s.lagging()
	for i := range 50 {
		s.set(fmt.Sprint("k", i), "lost")
	}
	beyond, within := s.mirror(), s.mirror()
	s.catchUp(beyond)
	for _, vb := range all() {
		c := s.feed()
		within.follow(s, c, []uint16{vb})
		within.readSome(s, c, 3, true)
		_ = c.Close()
	}
	promote()
	s.set("k0", "other branch")
	c := s.feed()
	for _, vb := range all() {
		var log timestamp.FailoverLog
		err := patiently(s, func() (err error) {
			log, err = c.FailoverLog(within60(s), vb)
			return err
		})
		if err != nil {
			s.Fatal(err)
		}
		part := log[0].Seqno
		if at := within.at[vb]; at.Seqno > part || at.SnapEnd <= part || below.at[vb].Seqno > part ||
			beyond.at[vb].Seqno <= part {
			s.Fatalf("vbucket %d: the branches part at %d: %+v, %+v, %+v", vb, part, at, below.at[vb], beyond.at[vb])
		}
		for m, want := range map[*mirror]uint64{beyond: part, within: 0} {
			var rollback *feed.RollbackError
			if err := m.tryFollow(s, c, vb); !errors.As(err, &rollback) || rollback.Seqno != want {
				s.Errorf("vbucket %d from %+v: %v, want a rollback to %d", vb, m.at[vb].Position, err, want)
			}
		}
	}
	_ = c.Close()
	for m, want := range map[*mirror]int{below: 0, beyond: stageVBuckets, within: stageVBuckets} {
		if n := s.catchUp(m); n != want {
			s.Errorf("%d vbuckets were rolled back, want %d", n, want)
		}
	}
}

// within60 is within for what should not take long.
func within60(t testing.TB) context.Context { return within(t, 60*time.Second) }

// A stream is resumed at a node that died and came back.
func producerKilled(s *stage) {
	for i := range 200 {
		s.set(fmt.Sprint("k", i), "1")
	}
	m := s.mirror()
	c := s.feed()
	m.follow(s, c, all())
	m.readSome(s, c, 30, false)
	s.stop()
	<-c.Done()
	ctx := within(s, 60*time.Second)
	for {
		b, err := c.Next(ctx)
		if err != nil {
			if !errors.Is(err, feed.ErrClosed) {
				s.Errorf("the feed ended with %v", err)
			}
			break
		}
		for i := range b.Events {
			m.apply(s, &b.Events[i])
		}
		b.Release()
	}
	if _, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: 0, End: mcbp.EndOfTime}); err == nil {
		s.Error("a feed that has ended opens a stream")
	}
	_ = c.Close()
	s.open()
	s.set("k1", "2")
	if n := s.catchUp(m); n > 0 {
		s.Errorf("%d vbuckets were rolled back by an orderly stop", n)
	}
}

// Streams are opened and closed many times on one connection: none remains, and each has one begin and one end.
func manyOpenedAndClosed(s *stage) {
	for i := range 40 {
		s.set(fmt.Sprint("k", i), "1")
	}
	c := s.feed()
	ended := make(chan struct{})
	begins, ends := 0, 0
	go func() {
		defer close(ended)
		for {
			b, err := c.Next(context.Background())
			if err != nil {
				return
			}
			for i := range b.Events {
				switch b.Events[i].Kind {
				case feed.StreamBegin:
					begins++
				case feed.StreamEnd:
					ends++
				}
			}
			over := ends == *manyStreams
			b.Release()
			if over {
				return
			}
		}
	}()
	for i := range *manyStreams {
		vb := uint16(i % stageVBuckets)
		err := patiently(s, func() error {
			_, err := c.OpenStream(within(s, 60*time.Second), feed.StreamRequest{VBucket: vb, End: mcbp.EndOfTime})
			return err
		})
		if err != nil {
			s.Fatalf("stream %d: %v", i, err)
		}
		err = c.CloseStream(within(s, 60*time.Second), vb)
		if errors.Is(err, feed.ErrNoStream) && s.moods.Has(server.SlowEnd) {
			err = nil // it has ended by itself
		}
		if err != nil {
			s.Fatalf("stream %d: %v", i, err)
		}
	}
	select {
	case <-ended:
	case <-time.After(60 * time.Second):
		s.Fatal("ends are missing")
	}
	if begins != *manyStreams || ends != *manyStreams {
		s.Errorf("%d begins and %d ends of %d streams", begins, ends, *manyStreams)
	}
	m := s.mirror()
	m.followBack(s, c, all())
	m.read(s, c, targets(s, c))
	s.compare(m)
}

// A consumer that takes nothing holds no more than its window, keeps its connection, and gets everything in the end.
func slowConsumer(s *stage) {
	big := strings.Repeat("x", 64<<10)
	for i := range 128 {
		s.set(fmt.Sprint("k", i), fmt.Sprint(i, big))
	}
	conf := s.conf()
	conf.NoopInterval = time.Second
	c := dialWith(s, s.dial, conf)
	m := s.mirror()
	m.follow(s, c, all())
	limit := int64(conf.BufferBytes + 2*(64<<10) + 512<<10)
	for deadline := time.Now().Add(*slowFor); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if h := c.Held(); h > limit {
			s.Fatalf("%d bytes are held, the window is %d", h, conf.BufferBytes)
		}
		if err := c.Err(); err != nil {
			s.Fatal(err)
		}
	}
	b, err := c.Next(within(s, time.Minute)) // taken and not released: still within the window
	if err != nil {
		s.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if h := c.Held(); h > limit {
		s.Fatalf("%d bytes are held, the window is %d", h, conf.BufferBytes)
	}
	for i := range b.Events {
		m.apply(s, &b.Events[i])
	}
	b.Release()
	m.read(s, c, targets(s, c))
	s.compare(m)
}

// The largest document, the longest key, and bytes that are not text.
func oddDocuments(s *stage) {
	s.set("large", strings.Repeat("0123456789abcdef", 20<<20/16))
	s.set(strings.Repeat("k", 250), "long")
	s.set("\x00\xff key", "\x00\xff\xfe\x80")
	s.set("empty", "")
	s.set("after", "1")
	s.catchUp(s.mirror())
}

// An expired document disappears, by a deletion or an expiration.
func expiry(s *stage) {
	s.set("stays", "1")
	if _, err := s.writer.Set(within(s, time.Minute), "goes", []byte("1"), kvclient.StoreOptions{Expiry: 1}); err != nil {
		s.Fatal(err)
	}
	m := s.mirror()
	c := s.feed()
	m.follow(s, c, all())
	ctx := within(s, 60*time.Second)
	for m.seqnos["goes"] == 0 || m.docs["goes"] != "" {
		b, err := c.Next(ctx)
		if err != nil {
			s.Fatal(err)
		}
		for i := range b.Events {
			m.apply(s, &b.Events[i])
		}
		b.Release()
	}
	m.read(s, c, targets(s, c))
	s.compare(m)
}

// A second connection with a name that is in use ends one of the two; names are unique, so this only happens by
// mistake.
func sameName(s *stage) {
	s.set("a", "1")
	conf := s.conf()
	first := dialWith(s, s.dial, conf)
	m := s.mirror()
	m.follow(s, first, all())
	m.read(s, first, targets(s, first))
	second, err := s.dial(within(s, time.Minute), conf)
	if err == nil {
		defer func() { _ = second.Close() }()
		<-first.Done()
	}
	s.set("a", "2")
	s.catchUp(m)
}
