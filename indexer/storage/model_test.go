package storage

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/timestamp"
)

const testVBuckets = 4

func testMeta(id index.CopyID) Meta {
	return Meta{Copy: id, Index: 7, Slice: 1, Bucket: "world", BucketUUID: "u", VBuckets: testVBuckets,
		Desc: []bool{false}}
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func must(t fataler, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func openTest(t fataler, dir string, change ...func(*Options)) *Store {
	t.Helper()
	o := Options{Dir: dir, CacheBytes: 8 << 20, MemTableBytes: 8 << 20, ReserveBytes: 1 << 20,
		Logger: hclog.NewNullLogger(), closePersist: 10 * time.Minute}
	for _, c := range change {
		c(&o)
	}
	s, err := Open(o)
	must(t, err)
	return s
}

// model is what a slice should hold, kept in the most obvious way.
type model struct {
	docs      map[string]modelDoc // by vbucket and docid
	positions [testVBuckets]ingest.Position
	batches   uint64
}

type modelDoc struct {
	vb    uint16
	id    string
	seqno uint64
	keys  []string // sorted, each once; none: tombstone
}

func newModel() *model { return &model{docs: map[string]modelDoc{}} }

func (m *model) clone() *model {
	c := *m
	c.docs = maps.Clone(m.docs)
	return &c
}

func docName(vb uint16, id string) string { return fmt.Sprintf("%04x/%s", vb, id) }

func (m *model) apply(b Batch) {
	m.batches++
	for _, p := range b.Positions {
		m.positions[p.VBucket] = p.Position
	}
	byDoc := map[string]Update{}
	for _, u := range b.Updates {
		name := docName(u.VBucket, string(u.DocID))
		if o, ok := byDoc[name]; !ok || u.Seqno > o.Seqno {
			byDoc[name] = u
		}
	}
	for name, u := range byDoc {
		if o, ok := m.docs[name]; ok && o.seqno >= u.Seqno {
			continue
		}
		set := map[string]bool{}
		for _, k := range u.Keys {
			set[string(k)] = true
		}
		if len(set) == 0 && (b.KeepTombstones == nil || !b.KeepTombstones(u.VBucket)) {
			delete(m.docs, name)
			continue
		}
		m.docs[name] = modelDoc{u.VBucket, string(u.DocID), u.Seqno, slices.Sorted(maps.Keys(set))}
	}
}

func (m *model) rows(r Range) (rows []string) {
	for _, d := range m.docs {
		for _, k := range d.keys {
			row := k + d.id
			if (r.Low == nil || row >= string(r.Low)) && (r.High == nil || row < string(r.High)) {
				rows = append(rows, fmt.Sprintf("%x|%s", k, d.id))
			}
		}
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i] < rows[j] })
	return rows
}

func (m *model) back(vb uint16) (entries []string) {
	for _, name := range slices.Sorted(maps.Keys(m.docs)) {
		if d := m.docs[name]; d.vb == vb {
			entries = append(entries, fmt.Sprintf("%s@%d%q", d.id, d.seqno, d.keys))
		}
	}
	return entries
}

// same fails unless the snapshot holds exactly what the model does.
func (m *model) same(t fataler, s *Snapshot) {
	t.Helper()
	ctx := context.Background()
	for _, r := range []Range{{}, {Low: testKey(3)}, {High: testKey(6)}, {testKey(2), testKey(7)},
		{testKey(5), testKey(5)}} {
		want := m.rows(r)
		for _, reverse := range []bool{false, true} {
			var got []string
			must(t, s.Iterate(ctx, r, reverse, func(k, id []byte) error {
				got = append(got, fmt.Sprintf("%x|%s", k, id))
				return nil
			}))
			if reverse {
				slices.Reverse(got)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("rows of %x (reverse %v): %s", r, reverse, firstDifference(got, want))
			}
		}
		if n, err := s.Count(ctx, []Range{r}); err != nil || n != int64(len(want)) {
			t.Fatalf("count of %x: %d %v, want %d", r, n, err, len(want))
		}
	}
	if s.Items() != int64(len(m.rows(Range{}))) {
		t.Fatalf("items %d, want %d", s.Items(), len(m.rows(Range{})))
	}
	for vb := range uint16(testVBuckets) {
		var got []string
		must(t, s.Back(ctx, vb, func(id []byte, seqno uint64, keys [][]byte) error {
			got = append(got, fmt.Sprintf("%s@%d%q", id, seqno, keys))
			return nil
		}))
		if want := m.back(vb); !slices.Equal(got, want) {
			t.Fatalf("back entries of vbucket %d: %s", vb, firstDifference(got, want))
		}
	}
	for v, p := range s.Positions() {
		if p != m.positions[v] {
			t.Fatalf("position of vbucket %d: %+v, want %+v", v, p, m.positions[v])
		}
	}
	if s.Batch() != m.batches {
		t.Fatalf("batch %d, want %d", s.Batch(), m.batches)
	}
}

func firstDifference(got, want []string) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("%d and %d, the %dth is %s, want %s", len(got), len(want), i, got[i], want[i])
		}
	}
	return fmt.Sprintf("%d, want %d, equal as far as both go", len(got), len(want))
}

// sameSlice compares the present state.
func (m *model) sameSlice(t fataler, s *Slice) {
	t.Helper()
	snap, err := s.Snapshot()
	must(t, err)
	m.same(t, snap)
	must(t, snap.Close())
}

// testKey returns a self-delimiting key: two digits and a terminator.
func testKey(n int) []byte { return fmt.Appendf(nil, "%02d\x00", n) }

func drawUpdate(t *rapid.T) Update {
	n := rapid.IntRange(0, 30).Draw(t, "doc")
	u := Update{VBucket: uint16(n % testVBuckets), DocID: fmt.Appendf(nil, "d%d", n),
		Seqno: rapid.Uint64Range(1, 200).Draw(t, "seqno")}
	for range rapid.IntRange(0, 3).Draw(t, "keys") {
		u.Keys = append(u.Keys, testKey(rapid.IntRange(0, 9).Draw(t, "key")))
	}
	return u
}

func drawBatch(t *rapid.T) Batch {
	var b Batch
	for range rapid.IntRange(0, 12).Draw(t, "updates") {
		b.Updates = append(b.Updates, drawUpdate(t))
	}
	for v := range uint16(testVBuckets) {
		if rapid.Bool().Draw(t, "position") {
			s := rapid.Uint64Range(0, 1000).Draw(t, "at")
			b.Positions = append(b.Positions, VBPosition{VBucket: v, Position: ingest.Position{
				VBUUID: 5, Side: s, Main: s, A: s / 2, Floor: s / 3, WindowEnd: s + 1}})
		}
	}
	if keep := rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "keep"); keep > 0 {
		b.KeepTombstones = func(vb uint16) bool { return keep == 2 || vb == 1 }
	}
	return b
}

// TestModel applies flushes, snapshots, checkpoints, restores, deletions of vbuckets and reopening to a slice and a
// map, and compares everything that can be read.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &modelRun{fs: vfs.NewMem(), m: newModel(), checkpoints: map[uint64]*model{}}
		d.store = d.open(t)
		slice, err := d.store.Create(testMeta(1))
		must(t, err)
		d.slice = slice
		defer func() {
			d.release(t)
			must(t, d.store.Close())
		}()
		t.Repeat(map[string]func(*rapid.T){
			"flush":                       d.flush,
			"flush again":                 d.flush,
			"snapshot":                    d.snapshot,
			"checkpoint":                  d.checkpoint,
			"restore":                     d.restore,
			"restore one":                 d.restoreOne,
			"restore one from a snapshot": d.restoreFrom,
			"delete":                      d.deleteVBucket,
			"purge":                       d.purge,
			"persist":                     d.persist,
			"reopen":                      d.reopen,
			"":                            func(t *rapid.T) { d.m.sameSlice(t, d.slice) },
		})
	})
}

type held struct {
	s *Snapshot
	m *model
}

type modelRun struct {
	fs          vfs.FS
	store       *Store
	slice       *Slice
	m           *model
	held        []held
	checkpoints map[uint64]*model
}

func (d *modelRun) open(t fataler) *Store {
	return openTest(t, "data", func(o *Options) { o.FS = d.fs })
}

func (d *modelRun) release(t *rapid.T) {
	for _, h := range d.held {
		h.m.same(t, h.s)
		must(t, h.s.Close())
	}
	d.held = nil
}

func (d *modelRun) flush(t *rapid.T) {
	b := drawBatch(t)
	must(t, d.slice.Flush(context.Background(), b))
	d.m.apply(b)
}

func (d *modelRun) snapshot(t *rapid.T) {
	s, err := d.slice.Snapshot()
	must(t, err)
	d.held = append(d.held, held{s, d.m.clone()})
	if len(d.held) > 3 {
		d.held[0].m.same(t, d.held[0].s)
		must(t, d.held[0].s.Close())
		d.held = d.held[1:]
	}
}

func (d *modelRun) checkpoint(t *rapid.T) {
	info, err := d.slice.Checkpoint(context.Background(), CheckpointMeta{Stable: timestamp.New(testVBuckets),
		Number: d.m.batches})
	must(t, err)
	d.checkpoints[info.Seq] = d.m.clone()
}

func (d *modelRun) pick(t *rapid.T) (uint64, *model) {
	all := d.slice.Checkpoints()
	if len(all) == 0 {
		t.Skip("no checkpoint yet")
	}
	c := rapid.SampledFrom(all).Draw(t, "checkpoint")
	return c.Seq, d.checkpoints[c.Seq]
}

func (d *modelRun) restore(t *rapid.T) {
	seq, m := d.pick(t)
	must(t, d.slice.Restore(seq))
	d.m = m.clone()
}

func (d *modelRun) restoreOne(t *rapid.T) {
	seq, m := d.pick(t)
	vbs := someVBuckets(t)
	must(t, d.slice.RestoreVBuckets(context.Background(), vbs, seq))
	d.restored(t, vbs, m)
}

// someVBuckets draws one or several.
func someVBuckets(t *rapid.T) []uint16 {
	return rapid.SliceOfNDistinct(rapid.Uint16Range(0, testVBuckets-1), 1, testVBuckets, rapid.ID).Draw(t, "vbuckets")
}

// restoreFrom restores vbuckets from a snapshot in memory.
func (d *modelRun) restoreFrom(t *rapid.T) {
	if len(d.held) == 0 {
		t.Skip("no snapshot yet")
	}
	h := rapid.SampledFrom(d.held).Draw(t, "snapshot")
	vbs := someVBuckets(t)
	must(t, d.slice.RestoreVBucketsFrom(context.Background(), vbs, h.s))
	d.restored(t, vbs, h.m)
}

// restored records that the vbuckets now have the contents of m.
func (d *modelRun) restored(t *rapid.T, vbs []uint16, m *model) {
	at := d.slice.Positions()
	for _, vb := range vbs {
		if at[vb] != m.positions[vb] {
			t.Fatalf("vbucket %d at %+v, want %+v", vb, at[vb], m.positions[vb])
		}
		d.drop(vb)
		d.m.positions[vb] = m.positions[vb]
		for name, doc := range m.docs {
			if doc.vb == vb {
				d.m.docs[name] = doc
			}
		}
	}
	d.m.batches++
}

func (d *modelRun) drop(vb uint16) {
	maps.DeleteFunc(d.m.docs, func(_ string, doc modelDoc) bool { return doc.vb == vb })
}

func (d *modelRun) deleteVBucket(t *rapid.T) {
	var to []VBPosition
	for _, vb := range someVBuckets(t) {
		to = append(to, VBPosition{VBucket: vb, Position: ingest.Position{VBUUID: 9, A: 3}})
		d.drop(vb)
		d.m.positions[vb] = to[len(to)-1].Position
	}
	must(t, d.slice.DeleteVBuckets(context.Background(), to...))
	d.m.batches++
}

func (d *modelRun) purge(t *rapid.T) {
	vbs := someVBuckets(t)
	must(t, purgeAll(d.slice, vbs...))
	maps.DeleteFunc(d.m.docs, func(_ string, doc modelDoc) bool {
		return slices.Contains(vbs, doc.vb) && len(doc.keys) == 0
	})
}

func (d *modelRun) persist(t *rapid.T) {
	must(t, d.slice.Persist(context.Background()))
	dur, err := d.slice.Durable()
	must(t, err)
	if dur.Batch != d.m.batches || !slices.Equal(dur.Positions, d.m.positions[:]) {
		t.Fatalf("durable is batch %d at %v, want %d at %v", dur.Batch, dur.Positions, d.m.batches, d.m.positions)
	}
}

func (d *modelRun) reopen(t *rapid.T) {
	d.release(t)
	must(t, d.store.Close())
	d.store = d.open(t)
	s, ok := d.store.Slice(1)
	if !ok {
		t.Fatalf("the copy is gone")
	}
	if r := s.Recovery(); r.Outcome != Intact {
		t.Fatalf("opened %v: %v", r.Outcome, r.Cause)
	}
	d.slice = s
}

func TestRecordOrder(t *testing.T) {
	low, high := backRange(0x01FF)
	if !bytes.Equal(low, []byte{'b', 1, 0xFF}) || !bytes.Equal(high, []byte{'b', 2, 0}) {
		t.Fatalf("range %x %x", low, high)
	}
}
