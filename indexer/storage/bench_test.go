package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/ingest"
)

// The history that both sides of a comparison write: documents with one key of 50 bytes, and updates that change it.

func benchUpdate(doc, version uint64) Update {
	key := make([]byte, 0, 50)
	key = append(key, 5)
	x := doc*0x9e3779b97f4a7c15 + version*0xbf58476d1ce4e5b9
	for range 40 {
		x ^= x >> 30
		x *= 0x94d049bb133111eb
		key = append(key, 'a'+byte(x>>59))
	}
	key = append(key, "@mail.com"...)
	return Update{VBucket: uint16(doc % 1024), DocID: fmt.Appendf(nil, "user:%015d", doc), Seqno: version + 1,
		Keys: [][]byte{append(key, 0)}}
}

func benchBatch(n int, next func() (doc, version uint64)) []Update {
	b := make([]Update, n)
	for i := range b {
		b[i] = benchUpdate(next())
	}
	return b
}

// cpu returns the processor time of this process so far.
func cpu() time.Duration { return usage(syscall.RUSAGE_SELF) }

// threadCPU returns the processor time of the calling thread.
func threadCPU() time.Duration { return usage(1) } // RUSAGE_THREAD

func usage(who int) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(who, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

const (
	benchDocs      = 200_000
	benchBatchSize = 10_000
)

// randomUpdates returns a function that yields documents in a fixed random order, each with a higher version than
// before.
func randomUpdates() func() (uint64, uint64) {
	x, v := uint64(88172645463325252), uint64(0)
	return func() (uint64, uint64) {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		v++
		return x % benchDocs, v
	}
}

func sequentialDocs() func() (uint64, uint64) {
	d := uint64(0)
	return func() (uint64, uint64) { d++; return (d - 1) % benchDocs, 0 }
}

// BenchmarkFlush measures batches of 10,000 random updates of 200,000 existing documents. The CPU figures cover
// everything that the process does, flushes and compactions included, but not the preparation of the batches.
func BenchmarkFlush(b *testing.B) {
	s, err := Open(Options{Dir: b.TempDir(), Logger: hclog.NewNullLogger()})
	if err != nil {
		b.Fatal(err)
	}
	m := testMeta(1)
	m.VBuckets = 1024
	slice, err := s.Create(m)
	if err != nil {
		b.Fatal(err)
	}
	positions := make([]VBPosition, 1024)
	benchFlush(b, func(u []Update) error {
		for v := range positions {
			positions[v] = VBPosition{VBucket: uint16(v), Position: ingest.Position{VBUUID: 77, Main: u[0].Seqno}}
		}
		return slice.Flush(context.Background(), Batch{Updates: u, Positions: positions})
	})
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkBare does the same writes with bare Pebble and the same settings. It knows the old entries that an update
// removes, so it reads nothing.
func BenchmarkBare(b *testing.B) { benchBare(b, false) }

// BenchmarkBareRead also reads the back entry, as is necessary without knowing the old keys.
func BenchmarkBareRead(b *testing.B) { benchBare(b, true) }

func benchBare(b *testing.B, read bool) {
	s, err := Open(Options{Dir: b.TempDir(), Logger: hclog.NewNullLogger()})
	if err != nil {
		b.Fatal(err)
	}
	e := &pebbleEngine{res: s.res, health: newHealth(), compact: s.res.compactions.member(),
		memTable: s.res.memory.share(1)}
	o := s.res.options(e)
	o.L0StopWritesThreshold, o.MemTableStopWritesThreshold = 12, 4
	db, err := pebble.Open(b.TempDir(), o)
	if err != nil {
		b.Fatal(err)
	}
	known := map[uint64]uint64{}
	benchFlush(b, func(u []Update) error {
		batch := db.NewBatchWithSize(len(u) * 280)
		defer batch.Close()
		for i := range u {
			doc := benchDocOf(u[i].DocID)
			back := appendBackKey(nil, u[i].VBucket, u[i].DocID)
			if read {
				if v, closer, err := db.Get(back); err == nil {
					_, keys, _ := decodeBackValue(nil, v)
					_ = batch.Delete(appendFwdKey(nil, keys[0], u[i].DocID), nil)
					closer.Close()
				}
			} else if old, ok := known[doc]; ok {
				_ = batch.Delete(appendFwdKey(nil, benchUpdate(doc, old).Keys[0], u[i].DocID), nil)
			}
			known[doc] = u[i].Seqno - 1
			_ = batch.Set(appendFwdKey(nil, u[i].Keys[0], u[i].DocID), []byte{20}, nil)
			_ = batch.Set(back, appendBackValue(nil, u[i].Seqno, u[i].Keys), nil)
		}
		_ = batch.Set([]byte{tagState}, binary.BigEndian.AppendUint64(nil, u[0].Seqno), nil)
		return batch.Commit(pebble.NoSync)
	})
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

func benchDocOf(id []byte) (doc uint64) {
	for _, c := range bytes.TrimPrefix(id, []byte("user:")) {
		doc = doc*10 + uint64(c-'0')
	}
	return doc
}

func benchFlush(b *testing.B, flush func([]Update) error) {
	b.Helper()
	next := sequentialDocs()
	for range benchDocs / benchBatchSize {
		if err := flush(benchBatch(benchBatchSize, next)); err != nil {
			b.Fatal(err)
		}
	}
	next = randomUpdates()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var making time.Duration
	n := 0
	before := cpu()
	for b.Loop() {
		b.StopTimer()
		at := threadCPU()
		batch := benchBatch(benchBatchSize, next)
		making += threadCPU() - at
		b.StartTimer()
		if err := flush(batch); err != nil {
			b.Fatal(err)
		}
		n += len(batch)
	}
	b.ReportMetric(float64((cpu()-before-making).Nanoseconds())/float64(n), "cpu-ns/doc")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/doc")
}

// BenchmarkManySmall flushes 24 slices 20 times a second each, with 4 or 100 updates (2,000 and 48,000 per second in
// all), and takes a snapshot after each flush. The figure is the share of one processor that this takes.
func BenchmarkManySmall(b *testing.B) {
	for _, n := range []int{4, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchSmall(b, n) })
	}
}

func benchSmall(b *testing.B, n int) {
	s, err := Open(Options{Dir: b.TempDir(), Logger: hclog.NewNullLogger()})
	if err != nil {
		b.Fatal(err)
	}
	var all []*Slice
	for id := range 24 {
		m := testMeta(index.CopyID(id + 1))
		m.VBuckets = 128
		slice, err := s.Create(m)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, slice)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	next := randomUpdates()
	before := cpu()
	var making time.Duration
	held := make([]*Snapshot, len(all))
	for b.Loop() {
		for i, slice := range all {
			at := threadCPU()
			u := benchBatch(n, next)
			var positions []VBPosition
			for i := range u {
				u[i].VBucket %= 128
				positions = append(positions, VBPosition{VBucket: u[i].VBucket,
					Position: ingest.Position{VBUUID: 77, Main: u[i].Seqno}})
			}
			making += threadCPU() - at
			if err := slice.Flush(context.Background(), Batch{Updates: u, Positions: positions}); err != nil {
				b.Fatal(err)
			}
			if held[i] != nil {
				if err := held[i].Close(); err != nil {
					b.Fatal(err)
				}
			}
			if held[i], err = slice.Snapshot(); err != nil {
				b.Fatal(err)
			}
		}
	}
	perRound := (cpu() - before - making) / time.Duration(b.N)
	b.ReportMetric(float64(perRound.Microseconds()*20)/1e4, "%cpu-at-20/s")
	for _, h := range held {
		if err := h.Close(); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCreate creates sixty copies, as for the build of ten indexes with six slices on one indexer, several at
// once.
func BenchmarkCreate(b *testing.B) {
	for _, atOnce := range []int{1, 2, 4, 16} {
		b.Run(fmt.Sprint(atOnce), func(b *testing.B) {
			const copies = 60
			var used time.Duration
			for b.Loop() {
				s, err := Open(Options{Dir: b.TempDir(), Logger: hclog.NewNullLogger()})
				if err != nil {
					b.Fatal(err)
				}
				before := cpu()
				g := errgroup.Group{}
				g.SetLimit(atOnce)
				for id := range copies {
					g.Go(func() error {
						_, err := s.Create(testMeta(index.CopyID(id + 1)))
						return err
					})
				}
				if err := g.Wait(); err != nil {
					b.Fatal(err)
				}
				used += cpu() - before
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(used.Microseconds())/copies/float64(b.N), "cpu-µs/copy")
		})
	}
}
