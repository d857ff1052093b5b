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

// BenchmarkLive is what an indexer writes under live updates: eight slices of 25,000 documents, 1,500 random updates of each
// at every stability timestamp, the last four snapshots held, everything made durable at each 25th. The CPU figure holds
// all that the process does but the making of the batches.
func BenchmarkLive(b *testing.B) {
	const copies, batch, keep, persist = 8, 1500, 4, 25
	s, err := Open(Options{Dir: b.TempDir(), Logger: hclog.NewNullLogger()})
	if err != nil {
		b.Fatal(err)
	}
	var all []*Slice
	for id := range copies {
		m := testMeta(index.CopyID(id + 1))
		m.VBuckets = 128
		slice, err := s.Create(m)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, slice)
	}
	positions := make([]VBPosition, 128)
	var held [copies][]*Snapshot
	round := uint64(0)
	flush := func(i int, u []Update) {
		for v := range positions {
			positions[v] = VBPosition{VBucket: uint16(v), Position: ingest.Position{VBUUID: 77, Main: u[0].Seqno}}
		}
		snap, err := all[i].Snapshot()
		if err == nil {
			err = all[i].Flush(context.Background(), Batch{Updates: u, Positions: positions})
		}
		if held[i] = append(held[i], snap); err == nil && len(held[i]) > keep {
			err = held[i][0].Close()
			held[i] = held[i][1:]
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	updates := func(i, n int, next func() (uint64, uint64)) []Update {
		u := benchBatch(n, func() (uint64, uint64) {
			doc, version := next()
			return doc/copies*copies + uint64(i), version
		})
		for n := range u {
			u[n].VBucket = uint16(benchDocOf(u[n].DocID) / copies % 128)
		}
		return u
	}
	for i := range all {
		next := sequentialDocs()
		flush(i, updates(i, benchDocs, next))
		if err := all[i].Persist(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	next := randomUpdates()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var making time.Duration
	n, before := 0, cpu()
	for b.Loop() {
		round++
		for i := range all {
			at := threadCPU()
			u := updates(i, batch, next)
			making += threadCPU() - at
			flush(i, u)
			n += len(u)
			if round%persist == uint64(i) {
				if err := all[i].Persist(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.ReportMetric(float64((cpu()-before-making).Nanoseconds())/float64(n), "cpu-ns/doc")
	for i := range held {
		for _, snap := range held[i] {
			if err := snap.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
