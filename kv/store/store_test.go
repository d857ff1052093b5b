package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tidemark/kv/seglog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a bucket with a clock and a disk that the test controls.
type world struct {
	t    testing.TB
	opts Options
	b    *Bucket
	now  time.Time
	full bool // the disk accepts nothing more

	writing func() // called once, in the next write
}

func newWorld(t testing.TB, vbuckets int) *world {
	w := &world{t: t, now: time.Unix(1_800_000_000, 0)}
	rng := rand.New(rand.NewPCG(1, 2))
	w.opts = Options{
		Dir: t.TempDir(), Name: "world", UUID: "u", VBuckets: vbuckets, SegmentBytes: 1 << 20, Quota: NewQuota(1 << 30),
		Now: func() time.Time { return w.now }, Random: rng.Uint64,
		WrapFile: func(f seglog.File) seglog.File { return &switchable{File: f, w: w} },
	}
	w.open()
	return w
}

type switchable struct {
	seglog.File
	w *world
}

func (s *switchable) Write(b []byte) (int, error) {
	if f := s.w.writing; f != nil {
		s.w.writing = nil
		f()
	}
	if s.w.full {
		n, _ := s.File.Write(b[:len(b)/2])
		return n, syscall.ENOSPC
	}
	return s.File.Write(b)
}

func (w *world) open() {
	w.t.Helper()
	b, _, err := Open(w.opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.b = b
}

// restart closes the bucket, in order or as in a crash, and opens it again.
func (w *world) restart(orderly bool) {
	w.t.Helper()
	var err error
	if orderly {
		err = w.b.Close()
	} else {
		err = w.b.Abandon()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.open()
}

// apply applies a change and waits for the log.
func (w *world) apply(vb uint16, c Change) (Result, error) {
	r, err := w.b.VBucket(vb).Apply(c)
	if werr := r.Ticket.Wait(); werr != nil {
		return r, werr
	}
	return r, err
}

func (w *world) set(vb uint16, key, value string) Result {
	w.t.Helper()
	r, err := w.apply(vb, Change{Key: []byte(key), Value: []byte(value)})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) delete(vb uint16, key string) Result {
	w.t.Helper()
	r, err := w.apply(vb, Change{Kind: Delete, Key: []byte(key)})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// shown returns what a stream after from would show: "seqno key=value", or "seqno key" for a tombstone.
func (w *world) shown(vb uint16, from, limit uint64) []string {
	s, _ := w.b.VBucket(vb).SnapshotAfter(from, limit)
	if s == nil {
		return nil
	}
	return drain(s)
}

func drain(s *Snapshot) (out []string) {
	var docs []*Doc
	for {
		docs = s.Next(docs[:0], 3)
		if len(docs) == 0 {
			return out
		}
		for _, d := range docs {
			out = append(out, describe(d))
		}
	}
}

func describe(d *Doc) string {
	switch {
	case d.Expired:
		return fmt.Sprintf("%d %s expired", d.Seqno, d.Key)
	case d.Deleted:
		return fmt.Sprintf("%d %s", d.Seqno, d.Key)
	}
	return fmt.Sprintf("%d %s=%s", d.Seqno, d.Key, d.Value)
}

const all = ^uint64(0)

func wantShown(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Fatalf("shown %q, want %q", got, want)
	}
}

func TestChangesAndTheirRules(t *testing.T) {
	w := newWorld(t, 4)
	first := w.set(1, "a", "1")
	if first.Doc.Seqno != 1 || first.Doc.Rev != 1 || first.VBUUID == 0 {
		t.Fatalf("%+v", first.Doc)
	}
	for _, c := range []struct {
		name   string
		change Change
		want   error
	}{
		{"add of an existing key", Change{Kind: Add, Key: []byte("a")}, ErrExists},
		{"set with another cas", Change{Key: []byte("a"), Cas: first.Doc.Cas + 1}, ErrExists},
		{"delete with another cas", Change{Kind: Delete, Key: []byte("a"), Cas: first.Doc.Cas + 1}, ErrExists},
		{"replace of nothing", Change{Kind: Replace, Key: []byte("b")}, ErrNotFound},
		{"set with a cas of nothing", Change{Key: []byte("b"), Cas: 7}, ErrNotFound},
		{"delete of nothing", Change{Kind: Delete, Key: []byte("b")}, ErrNotFound},
		{"touch of nothing", Change{Kind: Touch, Key: []byte("b")}, ErrNotFound},
		{"set with its cas", Change{Key: []byte("a"), Value: []byte("2"), Cas: first.Doc.Cas}, nil},
		{"add of a new key", Change{Kind: Add, Key: []byte("b"), Value: []byte("3")}, nil},
		{"replace", Change{Kind: Replace, Key: []byte("b"), Value: []byte("4")}, nil},
		{"delete", Change{Kind: Delete, Key: []byte("b")}, nil},
		{"add after a delete", Change{Kind: Add, Key: []byte("b"), Value: []byte("5")}, nil},
	} {
		if _, err := w.apply(1, c.change); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	wantShown(t, w.shown(1, 0, all), "2 a=2", "6 b=5")
	wantShown(t, w.shown(1, 2, all), "6 b=5")
	wantShown(t, w.shown(1, 0, 4), "2 a=2") // de-duplicated versions stay away, even in a finite stream
	if s, upTo := w.b.VBucket(1).SnapshotAfter(2, 5); s != nil || upTo != 5 {
		t.Fatalf("nothing is between 2 and 5: %v %d", s, upTo)
	}
	if w.b.VBucket(9) != nil {
		t.Fatal("no such vbucket")
	}
}

func TestRestartsKeepEverythingAndBranchOnlyAfterACrash(t *testing.T) {
	w := newWorld(t, 2)
	w.set(0, "a", "1")
	w.set(0, "b", "2")
	w.delete(0, "a")
	before := w.b.VBucket(0).Info()
	w.restart(true)
	after := w.b.VBucket(0).Info()
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Fatalf("orderly stop: %+v, then %+v", before, after)
	}
	wantShown(t, w.shown(0, 0, all), "2 b=2", "3 a")
	w.restart(false)
	crashed := w.b.VBucket(0).Info()
	if len(crashed.Failover) != 2 || crashed.Failover[1] != before.Failover[0] || crashed.Failover[0].Seqno != 3 ||
		crashed.Failover[0].VBUUID == before.Failover[0].VBUUID {
		t.Fatalf("failover log after a crash: %v", crashed.Failover)
	}
	if empty := w.b.VBucket(1).Info(); len(empty.Failover) != 2 || empty.Failover[0].Seqno != 0 {
		t.Fatalf("of an empty vbucket: %v", empty.Failover)
	}
	w.restart(true)
	if again := w.b.VBucket(0).Info(); fmt.Sprint(again.Failover) != fmt.Sprint(crashed.Failover) {
		t.Fatalf("the branch was not kept: %v, then %v", crashed.Failover, again.Failover)
	}
	if r := w.set(0, "c", "3"); r.Doc.Seqno != 4 || r.Doc.Cas <= before.MaxCas {
		t.Fatalf("%+v", r.Doc)
	}
	for range maxFailoverEntries + 5 {
		w.restart(false)
	}
	if n := len(w.b.VBucket(0).Info().Failover); n != maxFailoverEntries {
		t.Fatalf("%d failover entries", n)
	}
}

func TestOnlyOwnedVBucketsServe(t *testing.T) {
	w := newWorld(t, 4)
	w.set(3, "a", "1")
	_ = w.b.Close()
	w.opts.State = func(vb uint16) State {
		if vb < 2 {
			return Active
		}
		return Replica
	}
	w.open()
	if _, err := w.apply(3, Change{Key: []byte("a")}); !errors.Is(err, ErrNotMyVBucket) {
		t.Fatal(err)
	}
	if _, err := w.b.VBucket(3).Get([]byte("a")); !errors.Is(err, ErrNotMyVBucket) {
		t.Fatal(err)
	}
	if err := w.b.VBucket(3).SetState(Active); err != nil {
		t.Fatal(err)
	}
	i := w.b.VBucket(3).Info()
	if len(i.Failover) != 2 || i.Failover[0].Seqno != 1 {
		t.Fatalf("a takeover begins a branch: %v", i.Failover)
	}
	wantShown(t, w.shown(3, 0, all), "1 a=1")
	if err := w.b.VBucket(3).SetState(Dead); err != nil {
		t.Fatal(err)
	}
	if err := w.b.VBucket(3).SetState(Active); err != nil { // its history is unknown: it begins empty
		t.Fatal(err)
	}
	wantShown(t, w.shown(3, 0, all))
	w.restart(false)
	wantShown(t, w.shown(3, 0, all))
}

// A snapshot shows the state at its end, however the vbucket changes while it is read.
func TestSnapshotIsFixed(t *testing.T) {
	w := newWorld(t, 1)
	for i := range 2000 {
		w.set(0, fmt.Sprint("k", i), "old")
	}
	s, _ := w.b.VBucket(0).SnapshotAfter(0, all)
	head := s.Next(nil, 10)
	for i := range 2000 {
		if i%3 == 0 {
			w.delete(0, fmt.Sprint("k", i))
		} else {
			w.set(0, fmt.Sprint("k", i), "new")
		}
	}
	if s.End != 2000 || s.First != 1 {
		t.Fatalf("%d-%d", s.First, s.End)
	}
	docs := append(head, s.Next(nil, 5000)...)
	if len(docs) != 2000 {
		t.Fatalf("%d versions", len(docs))
	}
	for i, d := range docs {
		if d.Seqno != uint64(i+1) || string(d.Value) != "old" {
			t.Fatalf("version %d: %s", i, describe(d))
		}
	}
	later := w.shown(0, 2000, all)
	if len(later) != 2000 || len(w.b.VBucket(0).list) > 4000+pruneAt {
		t.Fatalf("%d later versions, list of %d", len(later), len(w.b.VBucket(0).list))
	}
}

// What has not reached the log is not shown to streams; the version that it supersedes still is.
func TestStreamsShowOnlyWhatIsInTheLog(t *testing.T) {
	w := newWorld(t, 1)
	w.set(0, "a", "1")
	r, err := w.b.VBucket(0).Apply(Change{Key: []byte("a"), Value: []byte("2")})
	if err != nil {
		t.Fatal(err)
	}
	wantShown(t, w.shown(0, 0, all), "1 a=1")
	g, err := w.b.VBucket(0).Get([]byte("a"))
	if err != nil || string(g.Doc.Value) != "2" || g.Ticket != r.Ticket {
		t.Fatalf("a reader may see it, but must wait for the log: %+v %v", g, err)
	}
	if err := r.Ticket.Wait(); err != nil {
		t.Fatal(err)
	}
	wantShown(t, w.shown(0, 0, all), "2 a=2")
}

func TestFullDiskTakesBackEverything(t *testing.T) {
	w := newWorld(t, 2)
	w.set(0, "a", "1")
	w.set(0, "gone", "1")
	w.delete(0, "gone")
	used := w.opts.Quota.Used()
	before := w.b.VBucket(0).Info()
	w.full = true
	var tickets []*Ticket
	for _, c := range []Change{
		{Key: []byte("a"), Value: []byte("2")}, {Key: []byte("a"), Value: []byte("3")}, {Kind: Delete, Key: []byte("a")},
		{Kind: Add, Key: []byte("b"), Value: []byte("4")}, {Kind: Add, Key: []byte("gone"), Value: []byte("5")},
	} {
		r, err := w.b.VBucket(0).Apply(c)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, r.Ticket)
	}
	miss, err := w.b.VBucket(0).Get([]byte("a"))
	if !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	tickets = append(tickets, miss.Ticket)
	for i, ticket := range tickets {
		if err := ticket.Wait(); !errors.Is(err, ErrTemporary) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("ticket %d: %v", i, err)
		}
	}
	after := w.b.VBucket(0).Info()
	after.MaxCas = before.MaxCas // may rise: it is only a lower bound
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Fatalf("before %+v, after %+v", before, after)
	}
	if w.opts.Quota.Used() != used {
		t.Fatalf("quota %d, was %d", w.opts.Quota.Used(), used)
	}
	wantShown(t, w.shown(0, 0, all), "1 a=1", "3 gone")
	if _, err := w.b.VBucket(0).Apply(Change{Key: []byte("a")}); !errors.Is(err, ErrTemporary) {
		t.Fatalf("at once again: %v", err)
	}
	if !w.b.Failing() {
		t.Fatal("not reported as failing")
	}
	w.full = false
	w.now = w.now.Add(retryAfterFailure)
	if r := w.set(0, "a", "6"); r.Doc.Seqno != 4 {
		t.Fatalf("%+v", r.Doc)
	}
	if w.b.Failing() {
		t.Fatal("still reported as failing")
	}
	w.restart(false)
	wantShown(t, w.shown(0, 0, all), "3 gone", "4 a=6")
}

func TestExpiry(t *testing.T) {
	w := newWorld(t, 2)
	now := uint32(w.now.Unix())
	for i, at := range []uint32{0, now + 10, now + 20} {
		if _, err := w.apply(0, Change{Key: []byte(fmt.Sprint("k", i)), Value: []byte("v"), Expiry: at}); err != nil {
			t.Fatal(err)
		}
	}
	w.b.Expire()
	wantShown(t, w.shown(0, 0, all), "1 k0=v", "2 k1=v", "3 k2=v")
	w.now = w.now.Add(10 * time.Second)
	r, err := w.b.VBucket(0).Get([]byte("k1")) // lazily
	if !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if err := r.Ticket.Wait(); err != nil {
		t.Fatal(err)
	}
	wantShown(t, w.shown(0, 0, all), "1 k0=v", "3 k2=v", "4 k1 expired")
	if _, err := w.apply(0, Change{Kind: Touch, Key: []byte("k2"), Expiry: now + 100}); err != nil {
		t.Fatal(err)
	}
	w.restart(false)
	w.now = w.now.Add(60 * time.Second)
	w.b.Expire()
	wantShown(t, w.shown(0, 4, all), "5 k2=v")
	w.now = w.now.Add(60 * time.Second)
	w.b.Expire() // periodically
	wantShown(t, w.shown(0, 4, all), "6 k2 expired")
	if w.b.Counters().Expired.Load() != 1 {
		t.Fatal("not counted")
	}
	if got := AbsoluteExpiry(30, 1000); got != 1030 {
		t.Fatal(got)
	}
	if got := AbsoluteExpiry(1_900_000_000, 1000); got != 1_900_000_000 {
		t.Fatal(got)
	}
}

func TestQuota(t *testing.T) {
	w := newWorld(t, 1)
	_ = w.b.Close()
	w.opts.Quota = NewQuota(10 * (docOverhead + 100))
	w.open()
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		_, err = w.apply(0, Change{Key: fmt.Appendf(nil, "k%02d", n), Value: make([]byte, 97)})
	}
	if !errors.Is(err, ErrNoMemory) || n != 11 {
		t.Fatalf("after %d documents: %v", n, err)
	}
	for i := range 4 { // deletes are allowed and free memory (a tombstone keeps some)
		w.delete(0, fmt.Sprintf("k%02d", i))
	}
	if _, err := w.apply(0, Change{Key: []byte("k99"), Value: make([]byte, 97)}); err != nil {
		t.Fatal(err)
	}
}

// Superseded versions are pruned before they are much compared with the newest ones; those that cannot be pruned,
// because they are not in the log yet, count against the quota. No write is refused for the allowance of another
// vbucket.
func TestQuotaOfSupersededVersions(t *testing.T) {
	const limit = 1 << 20
	held := func(v *VBucket) (bytes int64) {
		for _, d := range v.list {
			bytes += d.memory()
		}
		return bytes
	}
	for _, c := range []struct {
		name         string
		size, others int
		most         int64 // maximum of the superseded versions
	}{
		{"one large document", 300 << 10, 0, 75<<10 + 300<<10},
		{"a large one among small ones", 50 << 10, 400, 64<<10 + 50<<10},
		{"a small one", 10, 0, 128 << 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1)
			_ = w.b.Close()
			w.opts.Quota = NewQuota(limit)
			w.open()
			v := w.b.VBucket(0)
			for i := range c.others {
				w.set(0, fmt.Sprint("k", i), "1")
			}
			for i := range 1000 {
				w.set(0, "hot", strings.Repeat("x", c.size))
				used := w.opts.Quota.Used()
				if used != v.bytes || v.bytes+v.staleBytes != held(v) || v.staleBytes > c.most {
					t.Fatalf("after %d writes: %d bytes are used, %d of them by newest versions; the list holds %d", i+1, used,
						v.bytes, held(v))
				}
			}
		})
	}
	t.Run("not yet in the log", func(t *testing.T) {
		w := newWorld(t, 1)
		_ = w.b.Close()
		w.opts.Quota = NewQuota(limit)
		w.open()
		v := w.b.VBucket(0)
		var last Result
		var err error
		for err == nil {
			var r Result
			if r, err = v.Apply(Change{Key: []byte("hot"), Value: make([]byte, 100<<10)}); err == nil {
				last = r
			}
		}
		if used := w.opts.Quota.Used(); !errors.Is(err, ErrNoMemory) || used != v.bytes || held(v) > limit+pruneBytes {
			t.Fatalf("%v; %d bytes are used, %d held", err, used, held(v))
		}
		if err := last.Ticket.Wait(); err != nil {
			t.Fatal(err)
		}
		w.set(0, "hot", strings.Repeat("x", 100<<10))
	})
	t.Run("of another vbucket", func(t *testing.T) {
		w := newWorld(t, 2)
		_ = w.b.Close()
		w.opts.Quota = NewQuota(limit)
		w.open()
		kept, other := w.b.VBucket(0), w.b.VBucket(1)
		for i := 0; kept.staleBytes < 60<<10; i++ { // as much as is not pruned
			w.set(0, fmt.Sprint("k", i%2), strings.Repeat("x", 1000))
		}
		for i := 0; kept.bytes+other.bytes < limit-10<<10; i++ {
			w.set(1, fmt.Sprint("n", i), strings.Repeat("x", 1000))
		}
	})
}

func TestCompactionKeepsWhatIsNeeded(t *testing.T) {
	w := newWorld(t, 4)
	_ = w.b.Close()
	w.opts.SegmentBytes = 16 << 10
	w.open()
	model := map[string]string{}
	for i := range 6000 {
		key := fmt.Sprint("k", i%50)
		if i < 200 {
			key = fmt.Sprint("cold", i) // written once, only ever relocated
		}
		vb := uint16(len(key) % 4)
		if i%7 == 6 && model[key] != "" && i > 200 {
			w.delete(vb, key)
			delete(model, key)
			continue
		}
		model[key] = fmt.Sprint(i)
		w.set(vb, key, model[key])
	}
	grown := w.b.DiskBytes()
	if err := w.b.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	if w.b.DiskBytes() > 2*w.b.LiveBytes()+(compactionSlack+1)*w.opts.SegmentBytes || w.b.DiskBytes() > grown/2 {
		t.Fatalf("log of %d bytes became %d, needed are %d", grown, w.b.DiskBytes(), w.b.LiveBytes())
	}
	if moved := w.b.Counters().Relocated.Load(); moved == 0 || moved > 6000 {
		t.Fatalf("%d versions were rewritten", moved)
	}
	check := func(when string) {
		t.Helper()
		items := 0
		for vb := range uint16(4) {
			items += w.b.VBucket(vb).Info().Items
		}
		if items != len(model) {
			t.Fatalf("%s: %d documents, want %d", when, items, len(model))
		}
		for key, value := range model {
			r, err := w.b.VBucket(uint16(len(key) % 4)).Get([]byte(key))
			if err != nil || string(r.Doc.Value) != value {
				t.Fatalf("%s: %s: %v %v", when, key, r.Doc, err)
			}
		}
	}
	check("compacted")
	live := w.b.LiveBytes()
	infos := fmt.Sprint(w.b.VBucket(0).Info(), w.b.VBucket(2).Info())
	w.restart(true)
	check("reopened")
	if w.b.LiveBytes() != live {
		t.Fatalf("live bytes %d, were %d", w.b.LiveBytes(), live)
	}
	if again := fmt.Sprint(w.b.VBucket(0).Info(), w.b.VBucket(2).Info()); again != infos {
		t.Fatalf("vbuckets %s, were %s", again, infos)
	}
}

func TestPurgedTombstonesStayPurged(t *testing.T) {
	w := newWorld(t, 1)
	w.set(0, "a", "1")
	w.set(0, "b", "2")
	w.delete(0, "a")
	w.set(0, "c", "3")
	w.delete(0, "c") // the newest version is never purged
	if err := w.b.PurgeTombstones(context.Background(), time.Hour); err != nil {
		t.Fatal(err)
	}
	wantShown(t, w.shown(0, 0, all), "2 b=2", "3 a", "5 c")
	w.now = w.now.Add(2 * time.Hour)
	held, _ := w.b.VBucket(0).SnapshotAfter(0, all)
	if err := w.b.PurgeTombstones(context.Background(), time.Hour); err != nil {
		t.Fatal(err)
	}
	wantShown(t, drain(held), "2 b=2", "3 a", "5 c") // an open snapshot does not change
	if err := w.b.PurgeTombstones(context.Background(), time.Hour); err != nil {
		t.Fatal(err)
	}
	wantShown(t, w.shown(0, 0, all), "2 b=2", "5 c")
	for range 2 {
		if i := w.b.VBucket(0).Info(); i.Purge != 3 || i.High != 5 || i.Tombstones != 1 {
			t.Fatalf("%+v", i)
		}
		w.restart(false)
	}
	wantShown(t, w.shown(0, 0, all), "2 b=2", "5 c")
	if outcome, to := decideOn(w, StreamRequest{Start: 2, End: all, VBUUID: w.b.VBucket(0).Info().Failover[0].VBUUID,
		SnapStart: 2, SnapEnd: 2}); outcome != Rollback || to != 0 {
		t.Fatalf("below the purge seqno: %v %d", outcome, to)
	}
}

func decideOn(w *world, r StreamRequest) (Outcome, uint64) {
	_, h := w.b.VBucket(0).History()
	return h.Decide(r)
}

// hookContext calls hook at the n-th call of Err.
type hookContext struct {
	context.Context
	n    int
	hook func()
}

func (h *hookContext) Err() error {
	if h.n--; h.n == 0 {
		h.hook()
	}
	return nil
}

// A write that fails during the compaction of a segment must not cost the version that it would have replaced: the
// compaction saw that version superseded and did not rewrite it.
func TestCompactionBesideAFailingWrite(t *testing.T) {
	w := newWorld(t, 1)
	w.set(0, "a", "kept")
	w.set(0, "z", "1")
	b := w.b
	b.commit.writeMu.Lock()
	_ = b.log.Rotate()
	b.commit.writeMu.Unlock()
	r, err := b.VBucket(0).Apply(Change{Key: []byte("a"), Value: []byte("never stored")})
	if err != nil {
		t.Fatal(err)
	}
	ctx := &hookContext{Context: context.Background(), n: 3, hook: func() { // at the third record, z
		w.full = true
		if err := r.Ticket.Wait(); !errors.Is(err, ErrTemporary) {
			t.Error(err)
		}
		w.full = false
		w.now = w.now.Add(retryAfterFailure)
	}}
	if err := b.compactSegment(ctx, b.log.Sealed()[0], time.Hour); !errors.Is(err, ErrTemporary) || ctx.n > 0 {
		t.Fatalf("compaction beside a failed write: %v", err)
	}
	w.set(0, "b", "after")
	w.restart(false)
	wantShown(t, w.shown(0, 0, all), "1 a=kept", "2 z=1", "3 b=after")
}

type countingListener struct {
	mu sync.Mutex
	n  int
}

func (l *countingListener) Notify() {
	l.mu.Lock()
	l.n++
	l.mu.Unlock()
}

// Concurrent writers share log writes, and every acknowledged change is there after a crash.
func TestConcurrentWritersAndACrash(t *testing.T) {
	w := newWorld(t, 8)
	w.opts.Now = time.Now
	w.restart(true)
	l := &countingListener{}
	w.b.VBucket(0).Subscribe(l)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				r, err := w.b.VBucket(uint16(i % 8)).Apply(Change{Key: fmt.Appendf(nil, "g%d-%d", g, i), Value: []byte("v")})
				if err == nil {
					err = r.Ticket.Wait()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		var at uint64
		for at < 8*500/8 {
			s, _ := w.b.VBucket(0).SnapshotAfter(at, all)
			if s == nil {
				continue
			}
			for _, d := range s.Next(nil, 1<<20) {
				if d.Seqno <= at {
					t.Errorf("seqno %d after %d", d.Seqno, at)
				}
				at = d.Seqno
			}
			s.Close()
		}
	}()
	wg.Wait()
	<-reading
	w.b.VBucket(0).Unsubscribe(l)
	if l.n == 0 {
		t.Fatal("no notification")
	}
	w.restart(false)
	items := 0
	for vb := range uint16(8) {
		items += w.b.VBucket(vb).Info().Items
	}
	if items != 8*500 {
		t.Fatalf("%d documents after the crash, want %d", items, 8*500)
	}
}

func TestRunDoesHousekeepingAndStops(t *testing.T) {
	w := newWorld(t, 1)
	_ = w.b.Close()
	w.opts.Housekeep = time.Millisecond
	w.opts.Now = time.Now
	w.open()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.b.Run(ctx) }()
	if _, err := w.apply(0, Change{Key: []byte("a"), Expiry: uint32(time.Now().Unix()) - 5}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for w.b.VBucket(0).Info().Tombstones == 0 {
		if time.Now().After(deadline) {
			t.Fatal("not expired")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A consumer that holds a snapshot while everything in it is overwritten is ended as too slow before its versions
// fill the memory.
func TestOvertakenSnapshot(t *testing.T) {
	w := newWorld(t, 1)
	w.b.pinLimit = 10_000
	for i := range 100 {
		w.set(0, fmt.Sprint("k", i), "old")
	}
	s, _ := w.b.VBucket(0).SnapshotAfter(0, all)
	_ = s.Next(nil, 1)
	if s.Overtaken() {
		t.Fatal("at once")
	}
	for i := range 100 {
		w.set(0, fmt.Sprint("k", i), "new")
	}
	if !s.Overtaken() {
		t.Fatal("not overtaken")
	}
	if docs := s.Next(nil, 1000); len(docs) > 0 || len(w.b.VBucket(0).open.all) > 0 {
		t.Fatalf("%d versions of an overtaken snapshot", len(docs))
	}
	s.Close()
	s.Close()
	if later, _ := w.b.VBucket(0).SnapshotAfter(0, all); later.Overtaken() {
		t.Fatal("a new snapshot holds nothing old")
	} else {
		later.Close()
	}
}

// What one stuck consumer holds does not count against another one whose snapshot was fixed later; and it is
// released, although that consumer never touches its snapshot again.
func TestOvertakenSnapshotsAreJudgedSeparately(t *testing.T) {
	w := newWorld(t, 1)
	w.b.pinLimit = 10_000
	for i := range 50 {
		w.set(0, fmt.Sprint("k", i), "old")
	}
	v := w.b.VBucket(0)
	still, _ := v.SnapshotAfter(0, all)
	_ = still.Next(nil, 1)
	for range 200 {
		w.set(0, "hot", strings.Repeat("x", 100))
	}
	quick, _ := v.SnapshotAfter(0, all)
	if quick.Overtaken() || !still.Overtaken() || still.list != nil || len(v.open.all) != 1 {
		t.Fatalf("overtaken: the later one %t, the earlier one %t (holds %d); %d hold something", quick.Overtaken(),
			still.Overtaken(), len(still.list), len(v.open.all))
	}
	still.Close()
	if docs := quick.Next(nil, 100); len(docs) != 51 || quick.Overtaken() || len(v.open.all) != 0 {
		t.Fatalf("%d versions, overtaken %t, %d hold something", len(docs), quick.Overtaken(), len(v.open.all))
	}
}
