package storage

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/ingest"
)

// What an indexer writes under live updates: eight slices of 25,000 documents, 1,500 random updates of each at every
// stability timestamp, the last four snapshots held, everything made durable at each 25th.
const (
	liveCopies  = 8
	liveBatch   = 12_000 // of all slices
	liveKeep    = 4
	livePersist = 25
)

// liveStore is a store under such updates.
type liveStore struct {
	b         *testing.B
	store     *Store
	all       []*Slice
	held      [][]*Snapshot
	positions []VBPosition
	next      func() (doc, version uint64)
	rounds    uint64
	making    time.Duration // of batches, which is not the store's time
	docs      int
}

// openLive opens a store with all documents in it.
func openLive(b *testing.B, copies int, o Options) *liveStore {
	b.Helper()
	o.Dir, o.Logger = b.TempDir(), hclog.NewNullLogger()
	s, err := Open(o)
	if err != nil {
		b.Fatal(err)
	}
	l := &liveStore{b: b, store: s, held: make([][]*Snapshot, copies), positions: make([]VBPosition, 128)}
	for id := range copies {
		m := testMeta(index.CopyID(id + 1))
		m.VBuckets = 128
		slice, err := s.Create(m)
		if err != nil {
			b.Fatal(err)
		}
		l.all = append(l.all, slice)
	}
	for i := range l.all {
		l.next = sequentialDocs()
		l.flush(i, l.updates(i, benchDocs))
		l.persist(i)
	}
	l.next = randomUpdates()
	l.docs = 0
	return l
}

func (l *liveStore) updates(i, n int) []Update {
	at := threadCPU()
	copies := uint64(len(l.all))
	u := benchBatch(n, func() (uint64, uint64) {
		doc, version := l.next()
		return doc/copies*copies + uint64(i), version
	})
	for n := range u {
		u[n].VBucket = uint16(benchDocOf(u[n].DocID) / copies % 128)
	}
	l.making += threadCPU() - at
	return u
}

func (l *liveStore) flush(i int, u []Update) {
	for v := range l.positions {
		l.positions[v] = VBPosition{VBucket: uint16(v), Position: ingest.Position{VBUUID: 77, Main: u[0].Seqno}}
	}
	snap, err := l.all[i].Snapshot()
	if err == nil {
		err = l.all[i].Flush(context.Background(), Batch{Updates: u, Positions: l.positions})
	}
	if l.held[i] = append(l.held[i], snap); err == nil && len(l.held[i]) > liveKeep {
		err = l.held[i][0].Close()
		l.held[i] = l.held[i][1:]
	}
	if err != nil {
		l.b.Fatal(err)
	}
	l.docs += len(u)
}

func (l *liveStore) persist(i int) {
	if err := l.all[i].Persist(context.Background()); err != nil {
		l.b.Fatal(err)
	}
}

// round is one stability timestamp.
func (l *liveStore) round() {
	l.rounds++
	for i := range l.all {
		l.flush(i, l.updates(i, liveBatch/len(l.all)))
		if l.rounds%livePersist == uint64(i) {
			l.persist(i)
		}
	}
}

func (l *liveStore) close() {
	for i := range l.held {
		for _, snap := range l.held[i] {
			if err := snap.Close(); err != nil {
				l.b.Fatal(err)
			}
		}
	}
	if err := l.store.Close(); err != nil {
		l.b.Fatal(err)
	}
}

// BenchmarkLive measures such updates. The CPU figure covers everything the process does except preparing the
// batches.
func BenchmarkLive(b *testing.B) {
	l := openLive(b, liveCopies, Options{})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l.making = 0
	before := cpu()
	for b.Loop() {
		l.round()
	}
	b.ReportMetric(float64((cpu()-before-l.making).Nanoseconds())/float64(l.docs), "cpu-ns/doc")
	l.close()
}
