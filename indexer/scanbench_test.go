package indexer

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/storage"
	"tidemark/internal/testing/families"
	"tidemark/partition"
)

// BenchmarkSmallScan measures a scan of 100 rows on one node, from the request to the message, without a connection.
// There are 200,000 documents whose names are updated once, in one to eight slices. The sub-benchmarks take turns, so
// that other load on the machine affects all of them.
func BenchmarkSmallScan(b *testing.B) {
	const docs, rows, turn = 200_000, 100, 50
	counts := []int{1, 2, 3, 6, 8}
	shelves := make([]*shelf, len(counts))
	for i, n := range counts {
		store, err := storage.Open(storage.Options{Dir: b.TempDir(), Logger: hclog.NewNullLogger()})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := store.Close(); err != nil {
				b.Error(err)
			}
		})
		f := newShelf(b, store, fmt.Sprintf(`CREATE INDEX i ON %s(name) WITH {"num_partition":%d}`, testBucket, n))
		for i := range f.view.Topology.Copies {
			f.view.Topology.Copies[i].Node = 0
		}
		for version := range uint64(2) {
			f.load(b, docs, version)
		}
		f.pin(b, 1)
		b.Cleanup(func() { f.unpin(b) })
		f.view.Prepare()
		shelves[i] = f
	}
	spent := make([]time.Duration, len(counts))
	n := 0
	c := make([]*scan.Coordinator, len(counts))
	for i, f := range shelves {
		c[i] = scan.NewCoordinator(f, f, f, scan.Options{})
	}
	var room []byte
	for b.Loop() {
		n += turn
		for i := range shelves {
			before := processCPU()
			for range turn {
				low := fmt.Sprintf(`{"limit":%d,"ranges":[{"low":["name %016x"]}]}`, rows, rand.Uint64()/100*99)
				req, err := scan.ParseRequest([]byte(low))
				if err != nil {
					b.Fatal(err)
				}
				spec, err := c[i].Prepare(shelves[i].view.Definition.ID, req)
				if err != nil {
					b.Fatal(err)
				}
				p := scan.NewPacker(func([]byte) error { return nil }, room, &spec)
				res, err := c[i].Scan(context.Background(), spec, p)
				if err != nil || res.Rows != rows {
					b.Fatal(res.Rows, err)
				}
				if err := p.End(res); err != nil {
					b.Fatal(err)
				}
				room = p.Room()
			}
			spent[i] += processCPU() - before
		}
	}
	for i, count := range counts {
		b.ReportMetric(float64(spent[i].Nanoseconds())/1000/float64(n), fmt.Sprintf("cpu-µs/%d-slices", count))
	}
	b.ReportMetric(0, "ns/op")
}

// load writes a version of each document, and makes it durable.
func (f *shelf) load(t fataler, docs int, version uint64) {
	batches := map[index.CopyID]*storage.Batch{}
	for i := range docs {
		f.seqno++
		id := fmt.Appendf(nil, "bench::%09d", i)
		doc := fmt.Appendf(nil, `{"name":"name %016x"}`, (uint64(i)+1)*0x9e3779b97f4a7c15^version*0xbf58476d1ce4e5b9)
		for _, key := range f.program.Evaluate(&f.scratch, id, doc).Keys(0) {
			at := families.Provider(&f.view.Topology.Layout).Slice(partition.KeyVersion{Key: key, DocID: id})
			copyID := f.view.Topology.Copies[at].ID
			if batches[copyID] == nil {
				batches[copyID] = &storage.Batch{}
			}
			batches[copyID].Updates = append(batches[copyID].Updates, storage.Update{VBucket: uint16(i % testVBs), DocID: id,
				Seqno: f.seqno, Keys: [][]byte{bytes.Clone(key)}})
		}
	}
	for id, s := range f.copies {
		err := s.Flush(context.Background(), *batches[id])
		if err == nil {
			err = s.Persist(context.Background())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// processCPU returns the CPU time of the process so far.
func processCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
