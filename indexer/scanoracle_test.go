package indexer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanport"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/internal/testing/families"
	"tidemark/internal/testing/oracle"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// shelf is an index whose copies are real slices, spread over several nodes. It implements scan.Catalog, scan.Truth,
// scan.Nodes and scan.Pins, and projects and routes documents as projectors do.
type shelf struct {
	view    scan.View
	program *expression.Program
	scratch expression.Scratch
	store   *storage.Store
	copies  map[index.CopyID]*storage.Slice
	snaps   map[index.CopyID]*storage.Snapshot
	vector  timestamp.Vector
	seqno   uint64
	docs    map[string][]byte
}

// shelfNodes is the number of nodes.
const shelfNodes = 3

// fataler is a test, a check of rapid, or a benchmark.
type fataler interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func newShelf(t fataler, store *storage.Store, statement string) *shelf {
	parsed, err := expression.Parse(statement)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	def := parsed[0].(*expression.CreateIndex).Definition()
	def.ID, def.BucketUUID, def.State = 7, testUUID, index.Maintenance
	f := &shelf{store: store, copies: map[index.CopyID]*storage.Slice{}, snaps: map[index.CopyID]*storage.Snapshot{},
		vector: timestamp.New(testVBs), docs: map[string][]byte{}}
	f.view = scan.View{Definition: def, Bucket: wire.Bucket{Name: testBucket, UUID: testUUID, VBuckets: testVBs,
		Generation: 1}}
	top := partition.Topology{Index: def.ID}
	if top.Layout, err = partition.LayoutOf(&def); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	if f.program, err = expression.Compile([]expression.Source{expression.SourceOf(&def)}); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	for slice := range top.Layout.Partitions {
		id := index.CopyID(slice + 1)
		top.Copies = append(top.Copies, partition.Copy{ID: id, Node: index.NodeID(slice % shelfNodes),
			Slice: index.SliceID(slice), State: partition.Allocated})
		if f.copies[id], err = store.Create(storage.Meta{Copy: id, Index: def.ID, Slice: index.SliceID(slice),
			Bucket: testBucket, BucketUUID: testUUID, VBuckets: testVBs, Desc: def.Desc()}); err != nil {
			t.Fatal(err)
		}
	}
	f.view.Topology = top
	return f
}

// write sets documents, or deletes those without a value, and flushes. Each slice gets its keys of every document, or
// that it has none.
func (f *shelf) write(t fataler, ids []string, values map[string][]byte) {
	batches := map[index.CopyID]*storage.Batch{}
	for id := range f.copies {
		batches[id] = &storage.Batch{}
	}
	for _, id := range ids {
		f.seqno++
		doc := values[id]
		var keys [][]byte
		if delete(f.docs, id); doc != nil {
			f.docs[id] = doc
			keys = f.program.Evaluate(&f.scratch, []byte(id), doc).Keys(0)
		}
		vb := uint16(f.seqno) % testVBs
		if len(id) > 0 {
			vb = uint16(id[0]) % testVBs
		}
		for _, c := range f.view.Topology.Copies {
			u := storage.Update{VBucket: vb, DocID: []byte(id), Seqno: f.seqno}
			for _, k := range keys {
				if families.Provider(&f.view.Topology.Layout).Slice(partition.KeyVersion{Key: k, DocID: u.DocID}) == c.Slice {
					u.Keys = append(u.Keys, bytes.Clone(k))
				}
			}
			batches[c.ID].Updates = append(batches[c.ID].Updates, u)
		}
	}
	for id, s := range f.copies {
		if err := s.Flush(context.Background(), *batches[id]); err != nil {
			t.Fatal(err)
		}
	}
}

// pin takes the snapshots that scans read.
func (f *shelf) pin(t fataler, number uint64) {
	f.unpin(t)
	ref := wire.StabilityRef{Bucket: testBucket, Ref: timestamp.Ref{Generation: 1, Number: number, Hash: f.vector.Hash()}}
	f.view.Held = nil
	for _, c := range f.view.Topology.Copies {
		s, err := f.copies[c.ID].Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		f.snaps[c.ID] = s
		f.view.Held = append(f.view.Held, wire.Held{Copy: c.ID, OK: true, Ref: ref})
	}
}

func (f *shelf) unpin(t fataler) {
	for id, s := range f.snaps {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		delete(f.snaps, id)
	}
}

func (f *shelf) close(t fataler) {
	f.unpin(t)
	for id := range f.copies {
		if err := f.store.Drop(id); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *shelf) View(index.ID) (scan.View, error)           { return f.view, nil }
func (f *shelf) Newest(string) (wire.BucketStability, bool) { return wire.BucketStability{}, false }

func (f *shelf) Arrived(wire.StabilityRef) (time.Time, bool) { return time.Time{}, false }
func (f *shelf) Changed(string) <-chan struct{}              { return nil }
func (f *shelf) Keep(wire.StabilityRef, time.Duration)       {}
func (f *shelf) KeepPages(scan.Pages, []index.CopyID, wire.StabilityRef) (func(bool), error) {
	return func(bool) {}, nil
}
func (f *shelf) EndPages(scan.Pages) {}
func (f *shelf) CurrentSeqnos(context.Context, string) (timestamp.Vector, error) {
	return f.vector, nil
}
func (f *shelf) Stabilize(context.Context, string, timestamp.Vector, time.Duration) (wire.BucketStability, error) {
	return wire.BucketStability{}, errors.New("nothing has to be waited for")
}

func (f *shelf) Pin(_ context.Context, _ index.ID, copies []index.CopyID, _ wire.StabilityRef,
	_ time.Duration) (*scan.Pinned, error) {
	p := &scan.Pinned{Vector: f.vector, Release: func() error { return nil }}
	for _, c := range copies {
		p.Slices = append(p.Slices, snapshots.Slice(f.snaps[c]))
	}
	return p, nil
}

func (f *shelf) Name(node index.NodeID) string { return fmt.Sprint(node) }

func (f *shelf) IsHere(node index.NodeID) bool { return node == 0 }

func (f *shelf) Suspect(index.NodeID) bool { return false }

func (f *shelf) KeepSlices(context.Context, index.NodeID, scan.KeepRequest) error { return nil }

// OpenSlices reads the slices of node 0 as a coordinator's own, and those of other nodes as they come over a network.
func (f *shelf) OpenSlices(ctx context.Context, node index.NodeID, _ []index.NodeID,
	req scan.NodeRequest) (scan.RowStream, error) {
	if node == 0 {
		return scan.Open(ctx, req, f)
	}
	var b bytes.Buffer
	_ = scan.Serve(ctx, &b, nil, req, f) // the error is in the stream
	return scan.ReadFrames(io.NopCloser(&b))
}

// ask runs a request through everything from its body to the lines of its answer, and returns the rows and the count.
func (f *shelf) ask(body []byte) (keys [][]json.RawMessage, ids []string, count int64, err error) {
	ctx, c := context.Background(), scan.NewCoordinator(f, f, f, scan.Options{})
	req, err := scan.ParseRequest(body)
	if err != nil {
		return nil, nil, 0, err
	}
	spec, err := c.Prepare(f.view.Definition.ID, req)
	if err != nil {
		return nil, nil, 0, err
	}
	keys, ids, _, err = f.answer(ctx, c, spec)
	if err != nil {
		return nil, nil, 0, err
	}
	if err := samePacked(ctx, c, spec, keys, ids); err != nil {
		return nil, nil, 0, err
	}
	res, err := c.Count(ctx, spec)
	return keys, ids, res.Rows, err
}

// answer returns the rows of one answer.
func (f *shelf) answer(ctx context.Context, c *scan.Coordinator, spec scan.Spec) (keys [][]json.RawMessage,
	ids []string, res scan.Result, err error) {
	var out bytes.Buffer
	enc := scan.NewEncoder(&out, nil, nil, spec)
	res, err = c.Scan(ctx, spec, enc)
	if err = errors.Join(err, enc.End(res)); err != nil {
		return nil, nil, res, err
	}
	for dec := json.NewDecoder(&out); ; {
		var line struct {
			Key    []json.RawMessage
			ID     string
			Values json.RawMessage
			End    bool
			Rows   int
		}
		if err := dec.Decode(&line); err != nil {
			return nil, nil, res, fmt.Errorf("behind %d rows: %w", len(ids), err)
		}
		if line.End {
			if line.Rows != len(ids) {
				err = fmt.Errorf("%d rows, the end says %d", len(ids), line.Rows)
			}
			return keys, ids, res, err
		}
		if line.Values != nil { // in messages they take the place of the id
			line.ID = string(line.Values)
		}
		keys, ids = append(keys, line.Key), append(ids, line.ID)
	}
}

// pages runs the same request page by page. size returns the maximum number of rows of the next page.
func (f *shelf) pages(body []byte, size func() int64) (keys [][]json.RawMessage, ids []string, err error) {
	ctx, c := context.Background(), scan.NewCoordinator(f, f, f, scan.Options{})
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, nil, err
	}
	for fields["want_cursor"] = json.RawMessage("true"); ; {
		fields["limit"] = fmt.Append(nil, size())
		page, err := json.Marshal(fields)
		if err != nil {
			return nil, nil, err
		}
		req, err := scan.ParseRequest(page)
		if err != nil {
			return nil, nil, err
		}
		spec, err := c.Prepare(f.view.Definition.ID, req)
		if err != nil {
			return nil, nil, err
		}
		k, i, res, err := f.answer(ctx, c, spec)
		if err != nil {
			return nil, nil, err
		}
		keys, ids = append(keys, k...), append(ids, i...)
		if !res.More {
			return keys, ids, nil
		}
		if len(i) == 0 {
			return nil, nil, fmt.Errorf("behind %d rows: a page without one, and there are more", len(ids))
		}
		fields["cursor"] = fmt.Appendf(nil, "%q", res.Cursor)
	}
}

// samePacked checks that the messages of scan connections give the same rows for a scan.
func samePacked(ctx context.Context, c *scan.Coordinator, spec scan.Spec, keys [][]json.RawMessage,
	ids []string) error {
	n := 0
	var answer scanport.Answer
	p := scan.NewPacker(func(message []byte) error {
		err := answer.Read(message)
		for err == nil {
			key, id, ok, nerr := answer.Next()
			if nerr != nil || !ok {
				err = nerr
				break
			}
			got, _ := json.Marshal(key)
			if n >= len(ids) {
				return fmt.Errorf("packed row %d is one too many", n)
			}
			if want, _ := json.Marshal(keys[n]); id != ids[n] || !bytes.Equal(got, want) && len(key)+len(keys[n]) > 0 {
				return fmt.Errorf("packed row %d is %s %q, want %s %q", n, got, id, want, ids[n])
			}
			n++
		}
		return err
	}, nil, &spec)
	res, err := c.Scan(ctx, spec, p)
	if err = errors.Join(err, p.End(res)); err == nil && (n != len(ids) || answer.Tail != scanport.End) {
		err = fmt.Errorf("%d packed rows, want %d; tail %d", n, len(ids), answer.Tail)
	}
	return err
}

// byFamily returns the index of a statement under a scheme that the product does not have.
func byFamily(t fataler, statement string) string {
	parsed, err := expression.Parse(statement)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	d := parsed[0].(*expression.CreateIndex).Definition()
	d.PartitionBy = index.PartitionBy{Scheme: families.By, Exprs: []string{"META().id"}}
	if err := expression.Normalize(&d); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return d.Statement
}

// TestScansEqualOracle compares random scans and counts, with every option in any combination, with the oracle's. The
// indexes are random as well, under each scheme and one more that tests add, with several components in both
// directions, array keys, functions and predicates. They are over random documents of all shapes that are changed and
// deleted, in real slices.
//
//	go test ./indexer -run TestScansEqualOracle -rapid.checks 10000
func TestScansEqualOracle(t *testing.T) {
	t.Parallel()
	store, err := storage.Open(storage.Options{Dir: t.TempDir(), CacheBytes: 8 << 20, MemTableBytes: 8 << 20,
		ReserveBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	statements, documents := oracle.Statements(testBucket, "i", nil, nil, nil), oracle.Documents()
	docID := rapid.OneOf(rapid.StringMatching(`[a-e][0-9]`), rapid.StringMatching(`[a-c]::[0-9]`), rapid.StringN(1, 8, 40))
	scans, rows, some, grouped := 0, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		all, scheme := statements.Draw(t, "statements"), rapid.IntRange(0, int(oracle.Schemes)).Draw(t, "scheme")
		statement := all[scheme%int(oracle.Schemes)]
		if scheme == int(oracle.Schemes) {
			statement = byFamily(t, statement)
		}
		f := newShelf(t, store, statement)
		defer f.close(t)
		def := oracle.OfDefinition(&f.view.Definition)
		docs := rapid.SliceOfNDistinct(docID, rapid.SampledFrom([]int{1, 10, 40}).Draw(t, "least"), 60, rapid.ID).Draw(t,
			"ids")
		for round := range rapid.IntRange(1, 3).Draw(t, "rounds") {
			var ids []string
			values := map[string][]byte{}
			for _, id := range docs {
				if round > 0 && rapid.Bool().Draw(t, "stays") {
					continue
				}
				ids = append(ids, id)
				if round == 0 || rapid.IntRange(0, 3).Draw(t, "deleted") > 0 {
					values[id] = documents.Draw(t, "document")
				}
			}
			f.write(t, ids, values)
			f.pin(t, uint64(round+1))
			held, err := def.Rows(f.docs)
			if err != nil {
				t.Fatal(err)
			}
			for range 8 {
				q := def.Scans(held).Draw(t, "scan")
				body, err := q.Body()
				if err != nil {
					t.Fatal(err)
				}
				want, err := def.Select(held, q)
				if err != nil {
					t.Fatal(err)
				}
				n, err := def.Count(held, q)
				if err != nil {
					t.Fatal(err)
				}
				keys, got, count, err := f.ask(body)
				if err != nil {
					t.Fatalf("%s\n%s: %v", statement, body, err)
				}
				d := ""
				if q.Grouped() {
					grouped += n
					d, err = diffGroups(def, held, q, keys, got)
				} else {
					d = oracle.Diff(want, keys, got)
				}
				if d != "" || err != nil || count != int64(n) {
					t.Fatalf("%s\n%s: %s; count %d, want %d", statement, body, d, count, n)
				}
				if d := pagesDiffer(t, f, body, q.Limit, keys, got); d != "" {
					t.Fatalf("%s\n%s: in pages: %s", statement, body, d)
				}
				if scans, rows = scans+1, rows+len(want); len(want) > 0 {
					some++
				}
			}
		}
	})
	if some < scans/10 {
		t.Errorf("only %d of %d scans gave rows: they prove little", some, scans)
	}
	if grouped < scans/10 {
		t.Errorf("only %d groups in %d scans: they prove little", grouped, scans)
	}
	t.Logf("%d scans, %d of them with %d rows and %d groups", scans, some, rows, grouped)
}

// pagesDiffer returns how the pages of a scan, up to its limit, differ from its single answer.
func pagesDiffer(t *rapid.T, f *shelf, body []byte, limit int, keys [][]json.RawMessage, ids []string) string {
	size := rapid.Int64Range(1, 9)
	pageKeys, pageIDs, err := f.pages(body, func() int64 { return size.Draw(t, "rows of a page") })
	if err != nil {
		return err.Error()
	}
	if limit > 0 {
		pageKeys, pageIDs = pageKeys[:min(limit, len(pageKeys))], pageIDs[:min(limit, len(pageIDs))]
	}
	same := func(a, b []json.RawMessage) bool {
		return slices.EqualFunc(a, b, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
	}
	if slices.Equal(pageIDs, ids) && slices.EqualFunc(pageKeys, keys, same) {
		return ""
	}
	return fmt.Sprintf("%s %q, at once %s %q", pageKeys, pageIDs, keys, ids)
}

// diffGroups compares the groups of a scan with the oracle's. texts are their values.
func diffGroups(def oracle.Index, held []oracle.Row, q oracle.Query, keys [][]json.RawMessage, texts []string) (string,
	error) {
	values := make([][]json.RawMessage, len(texts))
	for i := range texts {
		if err := json.Unmarshal([]byte(texts[i]), &values[i]); err != nil {
			return "", err
		}
	}
	groups, err := def.Groups(held, q)
	return oracle.DiffGroups(groups, keys, values), err
}
