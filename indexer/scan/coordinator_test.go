package scan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"tidemark/errcode"
	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/internal/testing/families"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testBucket = "world"
	testVBs    = 4
)

// vectorOf returns the stability timestamp with this number.
func vectorOf(number uint64) timestamp.Vector {
	v := timestamp.New(testVBs)
	for i := range testVBs {
		v.Set(i, timestamp.Position{VBUUID: 77, Seqno: number*10 + uint64(i)})
	}
	return v
}

func refOf(number uint64) wire.StabilityRef {
	return wire.StabilityRef{Bucket: testBucket, Ref: timestamp.Ref{Generation: 1, RollbackID: 2, Number: number,
		Hash: vectorOf(number).Hash()}}
}

func stabilityOf(number uint64) wire.BucketStability {
	logs := make([]timestamp.FailoverLog, testVBs)
	for i := range logs {
		logs[i] = timestamp.FailoverLog{{VBUUID: 77, Seqno: 5}, {VBUUID: 66, Seqno: 0}}
	}
	ref := refOf(number)
	return wire.BucketStability{Bucket: ref.Bucket, Stability: timestamp.Stability{Ref: ref.Ref, Vector: vectorOf(number),
		Logs: logs}}
}

// memSlice is a slice in memory: sorted rows.
type memSlice struct {
	rows []Row
	ends func() // called when all rows were read; nil: not needed
}

func (s memSlice) Items() int64 { return int64(len(s.rows)) }

func (s memSlice) Rows(_ context.Context, low, high []byte, reverse bool) (Cursor, error) {
	var in []Row
	for _, r := range s.rows {
		at := append(bytes.Clone(r.Key), r.DocID...)
		if (low == nil || bytes.Compare(at, low) >= 0) && (high == nil || bytes.Compare(at, high) < 0) {
			in = append(in, r)
		}
	}
	if reverse {
		slices.Reverse(in)
	}
	return &memCursor{rows: in, i: -1, ends: s.ends}, nil
}

type memCursor struct {
	rows []Row
	i    int
	ends func()
	key  [512]byte // reused, so that a reader that retains a row sees it change
	id   [512]byte
}

func (c *memCursor) Next() bool {
	if c.i++; c.i == len(c.rows) && c.ends != nil {
		c.ends()
	}
	return c.i < len(c.rows)
}

func (c *memCursor) Row() (key, docID []byte) {
	r := c.rows[c.i]
	return c.key[:copy(c.key[:], r.Key)], c.id[:copy(c.id[:], r.DocID)]
}
func (c *memCursor) Close() error { return nil }

// fakeCluster is catalog, truth, nodes and pins in one.
type fakeCluster struct {
	mu       sync.Mutex
	view     View
	rows     map[uint64][][]Row                       // by number, by slice
	has      map[index.CopyID]map[uint64]errcode.Code // by copy, by number: "" if held, otherwise the refusal
	broken   func(node index.NodeID) (cutAt int)      // bytes until the stream is cut; -1 never; -2 refuses to connect
	request  func(NodeRequest)
	read     func(index.SliceID) // called when all rows of a slice were read; nil: not needed
	suspects []index.NodeID
	newest   uint64
	current  uint64 // KV is at the vector of this number
	changed  chan struct{}
	opened   atomic.Int64
	closed   atomic.Int64
	requests atomic.Int64 // calls of Stabilize
	kept     atomic.Uint64
	refuse   func(requests int64) error // of Stabilize; nil: never
	emptied  bool                       // KV has recreated vbucket 0

	keep func(ctx context.Context, node index.NodeID, req KeepRequest) error // nil: everything is kept

	full      bool // nothing more is kept for pages
	pages     []keptPage
	pagesDone []bool // whether they were read
	pagesOver []Pages
}

func (f *fakeCluster) View(id index.ID) (View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id != f.view.Definition.ID {
		return View{}, Errorf(errcode.IndexNotHosted, "no index %s", id)
	}
	return f.view, nil
}

func (f *fakeCluster) Newest(string) (wire.BucketStability, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return stabilityOf(f.newest), f.newest > 0
}

// Arrived implements Catalog: the newest timestamp arrived an hour ago, for others that is unknown.
func (f *fakeCluster) Arrived(ref wire.StabilityRef) (time.Time, bool) {
	return time.Now().Add(-time.Hour), ref.Number == 5
}

func (f *fakeCluster) Changed(string) <-chan struct{} { return f.changed }

func (f *fakeCluster) CurrentSeqnos(context.Context, string) (timestamp.Vector, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := vectorOf(f.current)
	if f.emptied {
		v.Set(0, timestamp.Position{VBUUID: 88})
	}
	return v, nil
}

func (f *fakeCluster) Stabilize(ctx context.Context, _ string, need timestamp.Vector,
	_ time.Duration) (wire.BucketStability, error) {
	requests := f.requests.Add(1)
	if f.refuse != nil {
		if err := f.refuse(requests); err != nil {
			return wire.BucketStability{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for !vectorOf(f.newest).Covers(need) {
		if f.newest++; f.newest > 100 {
			return wire.BucketStability{}, Errorf(errcode.Timeout, "KV does not get there")
		}
	}
	return stabilityOf(f.newest), nil
}

func (f *fakeCluster) Pin(_ context.Context, _ index.ID, copies []index.CopyID, ref wire.StabilityRef,
	_ time.Duration) (*Pinned, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &Pinned{Vector: vectorOf(ref.Number), Release: func() error { f.closed.Add(1); return nil }}
	for _, id := range copies {
		code, ok := f.has[id][ref.Number]
		switch {
		case !ok:
			return nil, Errorf(errcode.SnapshotTooOld, "copy %s does not hold %d", id, ref.Number)
		case code != "":
			return nil, Errorf(code, "copy %s and %d", id, ref.Number)
		}
		i := slices.IndexFunc(f.view.Topology.Copies, func(c partition.Copy) bool { return c.ID == id })
		slice := f.view.Topology.Copies[i].Slice
		s := memSlice{rows: f.rows[ref.Number][slice]}
		if f.read != nil {
			s.ends = func() { f.read(slice) }
		}
		p.Slices = append(p.Slices, s)
	}
	f.opened.Add(1)
	return p, nil
}

// cutReader ends in the middle.
type cutReader struct {
	io.Reader
	left int
}

func (c *cutReader) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.EOF
	}
	n, err := c.Reader.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// here is the node of the coordinator itself: its slices are read without frames.
const here index.NodeID = 1

// Name implements Nodes.
func (f *fakeCluster) Name(node index.NodeID) string { return fmt.Sprintf("i%d (host:%d)", node, node) }

// IsHere implements Nodes.
func (f *fakeCluster) IsHere(node index.NodeID) bool { return node == here }

// Suspect implements Nodes.
func (f *fakeCluster) Suspect(node index.NodeID) bool { return slices.Contains(f.suspects, node) }

// KeepSlices implements Nodes.
func (f *fakeCluster) KeepSlices(ctx context.Context, node index.NodeID, req KeepRequest) error {
	if f.keep == nil {
		return nil
	}
	return f.keep(ctx, node, req)
}

// OpenSlices implements Nodes.
func (f *fakeCluster) OpenSlices(ctx context.Context, node index.NodeID, _ []index.NodeID, req NodeRequest) (RowStream,
	error) {
	cutAt := -1
	if f.broken != nil {
		f.mu.Lock()
		cutAt = f.broken(node)
		f.mu.Unlock()
	}
	if cutAt == -2 {
		return nil, errors.New("connection refused")
	}
	for _, id := range req.Copies {
		i := slices.IndexFunc(f.view.Topology.Copies, func(c partition.Copy) bool { return c.ID == id })
		if f.view.Topology.Copies[i].Node != node {
			return nil, fmt.Errorf("copy %s is not on node %d", id, node)
		}
	}
	if f.request != nil {
		f.request(req)
	}
	if node == here && cutAt < 0 {
		return Open(ctx, req, f)
	}
	var b bytes.Buffer
	_ = Serve(ctx, &b, nil, req, f) // the error is in the stream
	var r io.Reader = &b
	if cutAt >= 0 {
		r = &cutReader{&b, cutAt}
	}
	s, err := ReadFrames(io.NopCloser(r))
	if err != nil {
		return nil, err
	}
	return s, nil
}

// collect is a sink that keeps copies.
type collect struct{ rows []string }

func (c *collect) Row(r Row) error {
	c.rows = append(c.rows, rowText(r))
	return nil
}

func rowText(r Row) string { return fmt.Sprintf("%s|%s", r.Key, r.DocID) }

// newCluster returns an index with rows at numbers 1 to 5, on nodes of which each copy holds some.
func newCluster(partitions, replicas, nodes int) *fakeCluster {
	return clusterOf(partition.Layout{Scheme: partition.HashDocID, Partitions: uint16(partitions)}, replicas, nodes)
}

// rangedLayout partitions the keys of clusterOf.
func rangedLayout(partitions int) partition.Layout {
	l := partition.Layout{Scheme: partition.RangeKey, Partitions: uint16(partitions)}
	for i := range partitions - 1 {
		l.Bounds = append(l.Bounds, fmt.Appendf(nil, "%02d", 5*(i+1)))
	}
	return l
}

// clusterOf is newCluster with any layout.
func clusterOf(layout partition.Layout, replicas, nodes int) *fakeCluster {
	partitions := int(layout.Partitions)
	f := &fakeCluster{rows: map[uint64][][]Row{}, has: map[index.CopyID]map[uint64]errcode.Code{},
		changed: make(chan struct{}),
		newest:  5, current: 5}
	f.view = View{
		Definition: *definition(false), Bucket: wire.Bucket{Name: testBucket, VBuckets: testVBs, Generation: 1,
			RollbackID: 2},
		Topology: partition.Topology{Index: 5, Layout: layout},
	}
	id := index.CopyID(1)
	for s := range partitions {
		for r := range replicas {
			node := index.NodeID((s + r) % nodes)
			f.view.Topology.Copies = append(f.view.Topology.Copies, partition.Copy{ID: id, Slice: index.SliceID(s),
				Replica: partition.Replica(r), Node: node})
			f.view.Held = append(f.view.Held, wire.Held{Copy: id, Node: node, Ref: refOf(5), OK: true})
			f.has[id] = map[uint64]errcode.Code{3: "", 4: "", 5: ""}
			id++
		}
	}
	for n := uint64(1); n <= 5; n++ {
		f.rows[n] = make([][]Row, partitions)
		for d := range 40 {
			doc := fmt.Sprintf("doc%03d", d)
			key := fmt.Appendf(nil, "%02d.%0300d", (d*7+int(n))%23, d)
			s := families.Provider(&f.view.Topology.Layout).Slice(partition.KeyVersion{DocID: []byte(doc), Key: key})
			f.rows[n][s] = append(f.rows[n][s], Row{key, []byte(doc)})
		}
		for _, rows := range f.rows[n] {
			slices.SortFunc(rows, Row.Compare)
		}
	}
	return f
}

// expect returns the rows of a timestamp in order.
func (f *fakeCluster) expect(number uint64, ranges []Range, reverse bool, limit int64) []string {
	var all []Row
	for _, rows := range f.rows[number] {
		all = append(all, rows...)
	}
	slices.SortFunc(all, Row.Compare)
	if reverse {
		slices.Reverse(all)
	}
	out := []string{}
	for _, r := range all {
		at := string(r.Key) + string(r.DocID)
		for _, rg := range ranges {
			if (rg.Low == nil || at >= string(rg.Low)) && (rg.High == nil || at < string(rg.High)) {
				out = append(out, rowText(r))
			}
		}
	}
	if limit > 0 && int64(len(out)) > limit {
		out = out[:limit]
	}
	return out
}

func (f *fakeCluster) coordinator() *Coordinator {
	return NewCoordinator(f, f, f, Options{Wait: 150 * time.Millisecond})
}

func openSpec() Spec {
	return Spec{Index: 5, Consistency: Any, Ranges: []Range{{}}, WantTimestamp: true, Desc: []bool{false}}
}

// TestScanModel: whatever fails, the rows returned are the first ones of the index at one timestamp, in order; a scan
// that succeeds returned all of them; one that had a reliable copy of every slice succeeds.
func TestScanModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions, replicas := rapid.IntRange(1, 4).Draw(t, "partitions"), rapid.IntRange(1, 3).Draw(t, "replicas")
		layout := partition.Layout{Scheme: partition.HashDocID, Partitions: uint16(partitions)}
		if rapid.Bool().Draw(t, "by key") {
			layout = rangedLayout(partitions)
		}
		f := clusterOf(layout, replicas, replicas+rapid.IntRange(0, 2).Draw(t, "more nodes"))
		reliable := rapid.Bool().Draw(t, "reliable")
		for i := range f.view.Held {
			c := f.view.Topology.Copies[i]
			if reliable && c.Replica == 0 {
				continue
			}
			switch rapid.IntRange(0, 4).Draw(t, "copy") {
			case 0:
				f.view.Held[i].Ref = refOf(4)
				delete(f.has[c.ID], 5)
			case 1:
				f.has[c.ID][5] = errcode.SnapshotSkipped
			case 2:
				f.view.Held[i].OK = false
			}
		}
		if !reliable || replicas > 1 {
			keep := map[index.NodeID]bool{}
			for _, c := range f.view.Topology.Copies {
				if reliable && c.Replica == 0 {
					keep[c.Node] = true
				}
			}
			f.broken = func(n index.NodeID) int {
				if keep[n] {
					return -1
				}
				return rapid.IntRange(-2, 14000).Draw(t, "cut")
			}
		}
		spec := openSpec()
		if rapid.Bool().Draw(t, "ranges") {
			spec.Ranges = []Range{{Low: []byte("03."), High: []byte("08.")}, {Low: []byte("11.doc"), High: []byte("19.")}}
		}
		spec.Reverse = rapid.Bool().Draw(t, "reverse")
		spec.Limit = rapid.SampledFrom([]int64{0, 1, 7, 100}).Draw(t, "limit")
		sink := &collect{}
		c := NewCoordinator(f, f, f, Options{Wait: time.Millisecond})
		res, err := c.Scan(context.Background(), spec, sink)
		if f.opened.Load() != f.closed.Load() {
			t.Fatalf("%d snapshots pinned, %d released", f.opened.Load(), f.closed.Load())
		}
		want := f.expect(res.Ref.Number, spec.Ranges, spec.Reverse, spec.Limit)
		if len(sink.rows) > len(want) || !slices.Equal(sink.rows, want[:len(sink.rows)]) {
			t.Fatalf("rows at %d:\n got %v\nwant %v", res.Ref.Number, sink.rows, want)
		}
		if err != nil {
			if reliable {
				t.Fatalf("a reliable copy of every slice, yet: %v", err)
			}
			return
		}
		if len(sink.rows) != len(want) || res.Rows != int64(len(want)) {
			t.Fatalf("%d rows, the result has %d, want %d", len(sink.rows), res.Rows, len(want))
		}
		if !res.Vector.Equal(vectorOf(res.Ref.Number)) {
			t.Fatalf("vector %v is not that of %d", res.Vector, res.Ref.Number)
		}
	})
}

// TestExcludedSlicesAreNotRequested: a scan requests only the slices that its bounds leave, and does not need the
// others.
func TestExcludedSlicesAreNotRequested(t *testing.T) {
	f := clusterOf(rangedLayout(4), 1, 2) // below 05, 10, 15 and the rest
	for i := range f.view.Held {
		f.view.Held[i].OK = f.view.Topology.Copies[i].Slice == 1 || f.view.Topology.Copies[i].Slice == 2
	}
	for _, c := range []struct {
		ranges []Range
		copies int // 0: a needed slice has no copy
	}{
		{[]Range{{Low: []byte("06"), High: []byte("10")}}, 1},
		{[]Range{{Low: []byte("05"), High: []byte("10.")}}, 2},
		{[]Range{{Low: []byte("07"), High: []byte("08")}, {Low: []byte("13"), High: []byte("15")}}, 2},
		{[]Range{{Low: []byte("13"), High: []byte("16")}}, 0},
		{[]Range{{High: []byte("08")}}, 0},
		{[]Range{{}}, 0},
	} {
		var copies atomic.Int64 // nodes are queried concurrently
		f.request = func(req NodeRequest) { copies.Add(int64(len(req.Copies))) }
		spec := openSpec()
		spec.Ranges = c.ranges
		sink := &collect{}
		_, err := NewCoordinator(f, f, f, Options{Wait: time.Millisecond}).Scan(context.Background(), spec, sink)
		requests := int(copies.Load())
		if c.copies == 0 {
			if CodeOf(err) != errcode.Unavailable || requests > 0 {
				t.Errorf("%s: %v, %d copies requested", c.ranges, err, requests)
			}
			continue
		}
		if want := f.expect(5, c.ranges, false, 0); err != nil || requests != c.copies || !slices.Equal(sink.rows, want) {
			t.Errorf("%s: %d copies requested, want %d; %d rows, want %d; %v", c.ranges, requests, c.copies,
				len(sink.rows), len(want), err)
		}
	}
}

func TestCount(t *testing.T) {
	f := newCluster(3, 2, 3)
	cuts := 2
	f.broken = func(index.NodeID) int {
		if cuts--; cuts >= 0 {
			return 4
		}
		return -1
	}
	for _, ranges := range [][]Range{{{}}, {{Low: []byte("03."), High: []byte("08.")}}, {}} {
		spec := openSpec()
		spec.Ranges = ranges
		res, err := f.coordinator().Count(context.Background(), spec)
		if want := len(f.expect(5, ranges, false, 0)); err != nil || res.Rows != int64(want) {
			t.Fatalf("count of %v: %d %v, want %d", ranges, res.Rows, err, want)
		}
	}
}

// TestReplicaReplaced: the other replica takes over a stream that is cut after some rows.
func TestReplicaReplaced(t *testing.T) {
	f := newCluster(1, 2, 2)
	first := true
	f.broken = func(index.NodeID) int {
		if first {
			first = false
			return 9000 // in the second frame of rows
		}
		return -1
	}
	sink := &collect{}
	var resumed bool
	f.request = func(req NodeRequest) { resumed = resumed || req.After != nil }
	if _, err := f.coordinator().Scan(context.Background(), openSpec(), sink); err != nil {
		t.Fatal(err)
	}
	if want := f.expect(5, []Range{{}}, false, 0); !slices.Equal(sink.rows, want) || !resumed {
		t.Fatalf("resumed %v\n got %v\nwant %v", resumed, sink.rows, want)
	}
}

// TestLastCopyLostDuringScan: a scan that has returned rows and loses the last copy it knew of continues, at its
// timestamp and behind its last row, with any copy that appears while it may wait. If no copy can continue, the scan
// reports why.
func TestLastCopyLostDuringScan(t *testing.T) {
	const silent = -2
	for _, tt := range []struct {
		name   string
		begin  func(f *fakeCluster)        // before the scan
		lost   func(f *fakeCluster) func() // when node 0 was cut off in the middle; the result runs a moment later
		broken map[index.NodeID][]int      // outcome of each request to a node, the last one for all that follow
		want   errcode.Code
	}{
		{name: "the replica's node is known again",
			begin:  func(f *fakeCluster) { f.view.Held[1].OK = false },
			lost:   func(f *fakeCluster) func() { return func() { f.view.Held[1].OK = true } },
			broken: map[index.NodeID][]int{0: {9000, silent}, 1: {-1}}},
		{name: "both were silent for a moment",
			broken: map[index.NodeID][]int{0: {9000, -1}, 1: {silent, silent, -1}}},
		{name: "the replica has skipped the timestamp, and the first one was silent for a moment",
			begin:  func(f *fakeCluster) { f.has[2][5] = errcode.SnapshotSkipped },
			broken: map[index.NodeID][]int{0: {9000, silent, -1}, 1: {-1}}},
		{name: "the replica has moved",
			begin: func(f *fakeCluster) {
				f.view.Topology.Copies[1].Node, f.view.Held[1].Node = 2, 2
				f.view.Topology.Copies = append(f.view.Topology.Copies, partition.Copy{ID: 3, Slice: 0, Replica: 1, Node: 1})
				f.has[3] = f.has[2]
			},
			lost: func(f *fakeCluster) func() {
				f.has[2] = map[uint64]errcode.Code{5: errcode.IndexNotHosted}
				return func() { f.view.Held = append(f.view.Held, wire.Held{Copy: 3, Node: 1, Ref: refOf(5), OK: true}) }
			},
			broken: map[index.NodeID][]int{0: {9000, silent}, 1: {-1}, 2: {-1}}},
		{name: "no copy is left", want: errcode.Unavailable,
			broken: map[index.NodeID][]int{0: {9000, silent}, 1: {silent}}},
		{name: "none has the timestamp any more", want: errcode.SnapshotTooOld,
			lost:   func(f *fakeCluster) func() { f.has[1], f.has[2] = nil, nil; return nil },
			broken: map[index.NodeID][]int{0: {9000, -1}, 1: {-1}}},
		{name: "the bucket was rolled back", want: errcode.SnapshotTooOld,
			lost:   func(f *fakeCluster) func() { f.view.Bucket.RollbackID++; return nil },
			broken: map[index.NodeID][]int{0: {9000, silent}, 1: {silent}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newCluster(1, 2, 3)
			if tt.begin != nil {
				tt.begin(f)
			}
			f.suspects = []index.NodeID{1, 2} // node 0 is queried first
			requests, first := map[index.NodeID]int{}, true
			f.broken = func(n index.NodeID) int {
				if first && n != 0 {
					t.Errorf("node %d is queried first", n)
				}
				if first = false; requests[0] == 1 && requests[1]+requests[2] == 0 && tt.lost != nil {
					f.view.Held = slices.Clone(f.view.Held)
					if later := tt.lost(f); later != nil {
						time.AfterFunc(time.Millisecond, func() {
							f.mu.Lock()
							defer f.mu.Unlock()
							f.view.healthy = nil
							f.view.Held = slices.Clone(f.view.Held)
							later()
						})
					}
				}
				requests[n]++
				of := tt.broken[n]
				return of[min(requests[n], len(of))-1]
			}
			wait := 10 * time.Second
			if tt.want != "" {
				wait = 200 * time.Millisecond
			}
			sink := &collect{}
			_, err := NewCoordinator(f, f, f, Options{Wait: wait}).Scan(t.Context(), openSpec(), sink)
			want := f.expect(5, []Range{{}}, false, 0)
			switch {
			case tt.want == "" && (err != nil || !slices.Equal(sink.rows, want)):
				t.Fatalf("%v, %d rows of %d", err, len(sink.rows), len(want))
			case tt.want != "" && (CodeOf(err) != tt.want || len(sink.rows) == 0 ||
				!slices.Equal(sink.rows, want[:len(sink.rows)])):
				t.Fatalf("%v behind %d rows; want %s", err, len(sink.rows), tt.want)
			}
		})
	}
}

func TestConsistency(t *testing.T) {
	token := func(vb uint16, uuid, seqno uint64) []Token { return []Token{{VBucket: vb, VBUUID: uuid, Seqno: seqno}} }
	for _, c := range []struct {
		name     string
		spec     func(*Spec)
		setup    func(*fakeCluster)
		number   uint64
		requests int64
		code     errcode.Code
	}{
		{name: "any", number: 5},
		{name: "any, one slice behind", setup: func(f *fakeCluster) { f.view.Held[0].Ref = refOf(4) }, number: 4},
		{name: "session, known here", spec: func(s *Spec) { s.Consistency = Session }, number: 5},
		{name: "session, to be promoted", spec: func(s *Spec) { s.Consistency = Session },
			setup: func(f *fakeCluster) { f.newest, f.current = 4, 5; f.view.Held[0].Ref = refOf(4) }, number: 5, requests: 1},
		{name: "session, a node skipped it", spec: func(s *Spec) { s.Consistency = Session },
			setup: func(f *fakeCluster) { f.has[1][5] = errcode.SnapshotSkipped }, code: errcode.Timeout},
		{name: "session, KV failed over meanwhile", spec: func(s *Spec) { s.Consistency = Session },
			setup: func(f *fakeCluster) {
				f.newest, f.refuse = 4, func(requests int64) error {
					if requests == 1 {
						return Errorf(errcode.TokenLost, "seqno 51 of branch 66")
					}
					return nil
				}
			}, number: 5, requests: 2},
		{name: "session, rolled back meanwhile", spec: func(s *Spec) { s.Consistency = Session },
			setup: func(f *fakeCluster) {
				f.newest, f.refuse = 4, func(int64) error { return Errorf(errcode.IndexInRollback, "b") }
			}, code: errcode.IndexInRollback},
		{name: "session, a vbucket was made anew", spec: func(s *Spec) { s.Consistency = Session },
			setup: func(f *fakeCluster) {
				f.emptied, f.refuse = true, func(int64) error { return Errorf(errcode.IndexInRollback, "b") }
			}, code: errcode.IndexInRollback},
		{name: "token lost while it is waited for", spec: func(s *Spec) {
			s.Consistency, s.Tokens = AtPlus,
				token(1, 77, 51)
		},
			setup: func(f *fakeCluster) {
				f.newest, f.refuse = 4, func(int64) error { return Errorf(errcode.TokenLost, "seqno 51") }
			}, code: errcode.TokenLost},
		{name: "token covered", spec: func(s *Spec) { s.Consistency, s.Tokens = AtPlus, token(1, 77, 51) }, number: 5},
		{name: "token of the older branch, kept", spec: func(s *Spec) { s.Consistency, s.Tokens = AtPlus, token(1, 66, 5) },
			number: 5},
		{name: "token to come", spec: func(s *Spec) { s.Consistency, s.Tokens = AtPlus, token(1, 77, 51) },
			setup: func(f *fakeCluster) { f.newest = 4 }, number: 5, requests: 1},
		{name: "token lost", spec: func(s *Spec) { s.Consistency, s.Tokens = AtPlus, token(1, 66, 6) }, code: errcode.TokenLost},
		{name: "token of no branch", spec: func(s *Spec) { s.Consistency, s.Tokens = AtPlus, token(1, 99, 6) },
			code: errcode.TokenLost},
		{name: "token of no vbucket", spec: func(s *Spec) { s.Consistency, s.Tokens = AtPlus, token(9, 77, 6) },
			code: errcode.BadRequest},
		{name: "token too far", spec: func(s *Spec) { s.Consistency, s.Tokens = AtPlus, token(1, 77, 5000) }, code: errcode.Timeout,
			requests: 1},
		{name: "building", setup: func(f *fakeCluster) { f.view.Definition.State = index.Backfill }, code: errcode.IndexNotReady},
		{name: "rollback", setup: func(f *fakeCluster) { f.view.Bucket.InRollback = true }, code: errcode.IndexInRollback},
		{name: "unknown", spec: func(s *Spec) { s.Index = 6 }, code: errcode.IndexNotHosted},
		{name: "no healthy copy", setup: func(f *fakeCluster) { f.view.Held[2].OK = false }, code: errcode.Unavailable},
		{name: "held on another branch", setup: func(f *fakeCluster) { f.view.Bucket.RollbackID = 3 }, code: errcode.Unavailable},
		{name: "too old", setup: func(f *fakeCluster) { delete(f.has[1], 5) }, code: errcode.SnapshotTooOld},
		{name: "refused", setup: func(f *fakeCluster) { f.broken = func(index.NodeID) int { return -2 } }, code: errcode.Unavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newCluster(3, 1, 3)
			spec := openSpec()
			if c.spec != nil {
				c.spec(&spec)
			}
			if c.setup != nil {
				c.setup(f)
			}
			sink := &collect{}
			res, err := f.coordinator().Scan(context.Background(), spec, sink)
			if c.code != "" {
				if err == nil || CodeOf(err) != c.code {
					t.Fatalf("%v, want %s", err, c.code)
				}
				if c.code == errcode.Unavailable && !whoIsAway.MatchString(err.Error()) {
					t.Errorf("%v: want slice, index, and the indexer's name and address", err)
				}
				return
			}
			if err != nil || res.Ref != refOf(c.number) || f.requests.Load() != c.requests {
				t.Fatalf("at %d: %v (%d requests), want %d (%d)", res.Ref.Number, err, f.requests.Load(), c.number, c.requests)
			}
			if want := f.expect(c.number, []Range{{}}, false, 0); !slices.Equal(sink.rows, want) {
				t.Fatalf("got %v\nwant %v", sink.rows, want)
			}
		})
	}
}

var whoIsAway = regexp.MustCompile(`slice \d+ of index \d+.* i\d \(host:\d\)`)

// TestWaitsForHealth: a scan that finds no healthy copy continues as soon as there is one.
func TestWaitsForHealth(t *testing.T) {
	f := newCluster(2, 1, 2)
	f.view.Held[0].OK = false
	f.view.Held = slices.Clone(f.view.Held)
	c := NewCoordinator(f, f, f, Options{Wait: 10 * time.Second})
	done := make(chan error)
	go func() {
		_, err := c.Scan(context.Background(), openSpec(), &collect{})
		done <- err
	}()
	f.mu.Lock()
	f.view.Held = slices.Clone(f.view.Held)
	f.view.Held[0].OK = true
	f.mu.Unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

type failingSink struct{ after int }

func (s *failingSink) Row(Row) error {
	if s.after--; s.after < 0 {
		return errors.New("broken pipe")
	}
	return nil
}

func TestSinkAndContext(t *testing.T) {
	f := newCluster(2, 1, 2)
	if _, err := f.coordinator().Scan(context.Background(), openSpec(), &failingSink{3}); err == nil ||
		CodeOf(err) != errcode.Internal {
		t.Fatalf("%v, want the sink's error", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := f.coordinator().Scan(ctx, openSpec(), &collect{}); CodeOf(err) != errcode.Cancelled {
		t.Fatalf("%v, want CANCELLED", err)
	}
	f.view.Held[0].OK = false
	slow := NewCoordinator(f, f, f, Options{Wait: time.Minute, MaxDuration: time.Millisecond})
	if _, err := slow.Scan(context.Background(), openSpec(), &collect{}); CodeOf(err) != errcode.Timeout {
		t.Fatalf("%v, want TIMEOUT", err)
	}
	if f.opened.Load() != f.closed.Load() {
		t.Fatalf("%d snapshots pinned, %d released", f.opened.Load(), f.closed.Load())
	}
}

func TestPrepare(t *testing.T) {
	f := newCluster(1, 1, 1)
	r, err := ParseRequest([]byte(`{"equal":["FR","A"]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.coordinator().Prepare(5, r); CodeOf(err) != errcode.BadRequest {
		t.Fatalf("%v, want BAD_REQUEST", err)
	}
	if _, err := f.coordinator().Prepare(6, r); CodeOf(err) != errcode.IndexNotHosted {
		t.Fatalf("%v, want INDEX_NOT_HOSTED", err)
	}
}

// lastGasp is a Nodes whose first node fails when the others have opened their parts and the scan's client has gone.
type lastGasp struct {
	*fakeCluster
	end context.CancelFunc
}

// OpenSlices implements Nodes.
func (l lastGasp) OpenSlices(ctx context.Context, node index.NodeID, others []index.NodeID, req NodeRequest) (RowStream,
	error) {
	if node == here {
		return l.fakeCluster.OpenSlices(ctx, node, others, req)
	}
	for end := time.Now().Add(time.Minute); l.opened.Load() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	l.end()
	return nil, ctx.Err()
}

// TestOpenPartsAreClosed: what one node has opened is closed, whatever happens with the others.
func TestOpenPartsAreClosed(t *testing.T) {
	f := newCluster(2, 1, 2)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := NewCoordinator(f, f, lastGasp{f, cancel}, Options{}).Scan(ctx, openSpec(), &collect{})
	if CodeOf(err) != errcode.Cancelled || f.opened.Load() != 1 || f.closed.Load() != 1 {
		t.Errorf("%d parts opened, %d closed: %v", f.opened.Load(), f.closed.Load(), err)
	}
}
