package indexer

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/indexer/storage"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/families"
	"tidemark/partition"
	"tidemark/wire"
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

// reached is a shelf's nodes, of which all but the first are reached over the network.
type reached struct {
	*peers.Nodes
	f     *shelf
	parts atomic.Int64 // that were asked of others
}

// OpenSlices implements scan.Nodes.
func (r *reached) OpenSlices(ctx context.Context, node index.NodeID, _ []index.NodeID,
	req scan.NodeRequest) (scan.RowStream, error) {
	if r.IsHere(node) {
		return scan.Open(ctx, req, r.f)
	}
	r.parts.Add(1)
	body, err := r.Watched(ctx, node, "/", req, nil)
	if err != nil {
		return nil, err
	}
	return scan.ReadFrames(body)
}

// KeepSlices implements scan.Nodes.
func (r *reached) KeepSlices(context.Context, index.NodeID, scan.KeepRequest) error { return nil }

// ServeHTTP implements http.Handler as another node.
func (r *reached) ServeHTTP(w http.ResponseWriter, asked *http.Request) {
	var req scan.NodeRequest
	if err := rpc.Read(asked, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, err := scan.NewPart(w, req.Lasts())
	if err == nil {
		_ = scan.Serve(asked.Context(), out, out.Flush, req, r.f) // the error is in the answer
	}
}

// BenchmarkScanOfNodes measures scans of 20 rows of an index of eight slices with a replica on five nodes: how many
// other nodes are asked, and the CPU of the coordinating and the asked nodes together.
func BenchmarkScanOfNodes(b *testing.B) {
	const docs, count, nodes = 100_000, 8, 5
	store, err := storage.Open(storage.Options{Dir: b.TempDir(), Logger: hclog.NewNullLogger()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	f := newShelf(b, store, fmt.Sprintf(`CREATE INDEX i ON %s(name) WITH {"num_partition":%d}`, testBucket, count))
	f.load(b, docs, 0)
	f.pin(b, 1)
	b.Cleanup(func() { f.unpin(b) })
	var known []wire.Endpoint
	var others *reached
	for n := range index.NodeID(nodes) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			others.ServeHTTP(w, r)
		}))
		b.Cleanup(server.Close)
		known = append(known, wire.Endpoint{Node: n, Scan: strings.TrimPrefix(server.URL, "http://")})
	}
	p := peers.New(nil, func() (index.NodeID, string) { return 0, known[0].Scan }, func() []wire.Endpoint { return known })
	b.Cleanup(p.Close)
	others = &reached{Nodes: p.Ask(4), f: f}
	b.Cleanup(others.Close)
	for i := range count {
		f.view.Topology.Copies[i].Node = index.NodeID(i % nodes)
		replica := f.view.Topology.Copies[i]
		replica.Replica, replica.ID, replica.Node = 1, index.CopyID(count+i+1), index.NodeID((2*i+2+i/nodes)%nodes)
		if replica.Node == index.NodeID(i%nodes) {
			replica.Node = (replica.Node + 1) % nodes
		}
		f.snaps[replica.ID] = f.snaps[f.view.Topology.Copies[i].ID]
		f.view.Topology.Copies = append(f.view.Topology.Copies, replica)
		held := f.view.Held[i]
		held.Copy = replica.ID
		f.view.Held = append(f.view.Held, held)
		b.Cleanup(func() { delete(f.snaps, replica.ID) })
	}
	f.view.Prepare()
	c := scan.NewCoordinator(f, f, others, scan.Options{})
	scans, before := 0, processCPU()
	for b.Loop() {
		low := fmt.Sprintf(`{"limit":20,"ranges":[{"low":["name %016x"]}]}`, rand.Uint64()/100*99)
		req, err := scan.ParseRequest([]byte(low))
		if err != nil {
			b.Fatal(err)
		}
		spec, err := c.Prepare(f.view.Definition.ID, req)
		if err != nil {
			b.Fatal(err)
		}
		res, err := c.Scan(b.Context(), spec, scan.NewPacker(func([]byte) error { return nil }, nil, &spec))
		if err != nil || res.Rows != 20 {
			b.Fatal(res.Rows, err)
		}
		scans++
	}
	b.ReportMetric(float64((processCPU()-before).Nanoseconds())/1000/float64(scans), "cpu-µs/scan")
	b.ReportMetric(float64(others.parts.Load())/float64(scans), "others/scan")
}

// processCPU returns the CPU time of the process so far.
func processCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
