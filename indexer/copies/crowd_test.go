package copies

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

// crowd is a bucket of 1,024 vbuckets with an index of six slices that has a row of each document, and others that
// have none.
type crowd struct {
	k      *Bucket
	log    timestamp.FailoverLog
	ids    []index.CopyID
	at     timestamp.Vector
	number uint64
	docs   int
	rests  [crowdSlices]*keyversion.Places // of documents by slice
}

const crowdVBs, crowdSlices = 1024, 6

func newCrowd(t testing.TB, indexes int) *crowd {
	t.Helper()
	st, err := storage.Open(storage.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	n := testNode(hclog.NewNullLogger())
	n.Store, n.Piece, n.Queue = st, WriteBytes, func() int64 { return 64 << 20 }
	if n.Marks, err = LoadMarks(t.TempDir(), hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	k, err := NewBucket(n, wire.Bucket{Name: "b", UUID: "u", VBuckets: crowdVBs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Snapshots.CloseAll()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	c := &crowd{k: k, log: timestamp.FailoverLog{{VBUUID: 7}}, at: timestamp.New(crowdVBs)}
	for n := range indexes * crowdSlices {
		id, ix, slice := index.CopyID(n+1), index.ID(n/crowdSlices+1), index.SliceID(n%crowdSlices)
		s, err := st.Create(storage.Meta{Copy: id, Index: ix, Slice: slice, Bucket: "b", BucketUUID: "u", VBuckets: crowdVBs,
			Desc: []bool{false}})
		if err == nil {
			err = k.st.Add(ingest.Copy{ID: id, Index: ix, Slice: slice})
		}
		if err != nil {
			t.Fatal(err)
		}
		k.slices[id], c.ids = s, append(c.ids, id)
	}
	for slice := range c.rests {
		var all []keyversion.Place
		for ix := range index.ID(indexes) {
			all = append(all, keyversion.Place{Index: ix + 1, Slice: index.SliceID(slice)})
		}
		c.rests[slice] = keyversion.NewPlaces(all)
	}
	for v := range uint16(crowdVBs) {
		c.accept(&keyversion.Event{Kind: keyversion.StreamBegin, VBucket: v,
			Begin: &keyversion.Begin{Log: c.log, Copies: c.ids}})
		c.at.VBUUIDs[v] = 7
	}
	return c
}

func (c *crowd) accept(e *keyversion.Event) {
	e.Incarnation = index.Incarnation{Counter: 1}
	c.k.st.Accept(ingest.Source{Connection: 1}, e)
}

// mutate adds one document, with a statement for each index.
func (c *crowd) mutate() {
	doc := c.docs % 50_000
	c.docs++
	vb := doc % crowdVBs
	c.at.Seqnos[vb]++
	q := c.at.Seqnos[vb]
	e := keyversion.Event{Kind: keyversion.Insert, VBucket: uint16(vb), Seqno: q,
		Window: timestamp.Window{Start: q - 1, End: q}, DocID: fmt.Appendf(nil, "document-%08d", doc)}
	e.Statements = []keyversion.Statement{{Index: 1, Slice: index.SliceID(doc % crowdSlices),
		Keys: [][]byte{fmt.Appendf(nil, "secondary key %d", c.docs)}}}
	if len(c.ids) > crowdSlices {
		e.Rest = c.rests[doc%crowdSlices]
	}
	c.accept(&e)
}

// promote takes everything so far to a stability timestamp.
func (c *crowd) promote(t testing.TB) {
	t.Helper()
	c.number++
	logs := make([]timestamp.FailoverLog, crowdVBs)
	for v := range logs {
		logs[v] = c.log
	}
	c.k.st.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: c.number}, Vector: c.at.Clone(), Logs: logs})
	b, _ := c.k.st.Flush()
	if b == nil || !b.Copies[len(c.ids)-1].Exact {
		t.Fatal("not flushed")
	}
	writeNow(t, c.k, b)
}

// TestCopiesWithoutRows: a promotion writes nothing to copies for which it has no rows, and each gets a snapshot at
// it; their positions are stored durably in one place.
func TestCopiesWithoutRows(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 4)
	step := func() {
		for range 100 {
			c.mutate()
		}
		c.promote(t)
	}
	step()
	step()
	batches := map[index.CopyID]uint64{}
	for id, s := range c.k.slices {
		batches[id] = s.Stats().Batch
		if err := s.Persist(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	step()
	step()
	for id, s := range c.k.slices {
		want := batches[id]
		if id <= crowdSlices {
			want += 2
		}
		if n := s.Stats().Batch; n != want {
			t.Errorf("copy %d is at batch %d, want %d", id, n, want)
		}
		h, ok := c.k.node.Snapshots.Acquire(id, nil)
		if !ok || h.Ref.Number != c.number {
			t.Fatalf("copy %d has a snapshot of %d", id, h.Ref.Number)
		}
		at, exact := h.Snap.Timestamp()
		if !exact || !at.Equal(c.at) {
			t.Errorf("the snapshot of copy %d is not exact at what was promoted", id)
		}
		if err := h.Snap.Close(); err != nil {
			t.Error(err)
		}
		for vb, p := range s.Positions() {
			if p.Main != c.at.Seqnos[vb] {
				t.Fatalf("copy %d stands at %+v in vbucket %d, want %d", id, p, vb, c.at.Seqnos[vb])
			}
		}
	}
	if err := c.k.node.Store.KeepCommon(); err != nil {
		t.Fatal(err)
	}
	d, err := c.k.slices[crowdSlices+1].Durable()
	if err != nil || !d.Stable.Equal(c.at) {
		t.Errorf("a crash would leave a copy without rows at another place than where it stands: %v", err)
	}
}

// BenchmarkCopies measures a mutation and an idle second of a bucket of 1,024 vbuckets, with one index and with 40
// more that have no rows: processor time, and bytes given to the file system.
func BenchmarkCopies(b *testing.B) {
	for _, indexes := range []int{1, 41} {
		b.Run(fmt.Sprintf("mutations/%d", indexes*crowdSlices), func(b *testing.B) {
			c := newCrowd(b, indexes)
			work := func() {
				for range 2000 {
					c.mutate()
				}
				c.promote(b)
			}
			work()
			cpu, written := used(), wrote()
			docs := 0
			for b.Loop() {
				work()
				// as the keeper does every five seconds, at 10,000 mutations per second
				if docs += 2000; docs%50_000 == 0 {
					for _, s := range c.k.slices {
						if err := s.Persist(b.Context()); err != nil {
							b.Fatal(err)
						}
					}
					if err := c.k.node.Store.KeepCommon(); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(used()-cpu)/float64(docs)/1000, "cpu-µs/doc")
			b.ReportMetric(float64(wrote()-written)/float64(docs), "written-B/doc")
		})
		b.Run(fmt.Sprintf("idle/%d", indexes*crowdSlices), func(b *testing.B) {
			c := newCrowd(b, indexes)
			c.mutate()
			c.promote(b)
			for _, s := range c.k.slices { // as the keeper does within five seconds
				if err := s.Persist(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			if err := c.k.node.Store.KeepCommon(); err != nil {
				b.Fatal(err)
			}
			cpu, n := used(), 0
			for b.Loop() { // one second
				for range 10 {
					c.k.report(map[index.ID]index.State{}, true)
				}
				for range 50 {
					c.k.work.Look()
					c.k.all = true
					c.k.pump(b.Context())
				}
				Measure(c.k.node.Store.Slices(), []*Bucket{c.k}, time.Now())
				n++
			}
			b.ReportMetric(float64(used()-cpu)/float64(n)/1e9*100, "%core")
		})
	}
}

// used returns the processor time of this process so far.
func used() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// wrote returns how many bytes this process has given to the system to write.
func wrote() (n int64) {
	all, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(all)) {
		if _, err := fmt.Sscanf(line, "wchar: %d", &n); err == nil {
			return n
		}
	}
	return 0
}
