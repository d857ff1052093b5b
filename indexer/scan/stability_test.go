package scan

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/wire"
)

// Keep implements Pins.
func (f *fakeCluster) Keep(ref wire.StabilityRef, _ time.Duration) { f.kept.Store(ref.Number) }

// KeepPages implements Pins.
func (f *fakeCluster) KeepPages(of Pages, copies []index.CopyID, ref wire.StabilityRef) (func(bool), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return nil, Errorf(errcode.Busy, "full")
	}
	f.pages = append(f.pages, keptPage{of, slices.Clone(copies), ref.Number})
	return func(read bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pagesDone = append(f.pagesDone, read)
	}, nil
}

// keptPage is a request to a node to keep a page.
type keptPage struct {
	of     Pages
	copies []index.CopyID
	number uint64
}

// EndPages implements Pins.
func (f *fakeCluster) EndPages(of Pages) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pagesOver = append(f.pagesOver, of)
}

// TestStabilityQuery: a scan that names the timestamp of an earlier one shows its state again, also when newer ones
// exist, and makes nodes keep it; one that is gone, precedes a rollback, or is invalid, is refused with the reason.
func TestStabilityQuery(t *testing.T) {
	f := newCluster(3, 2, 3)
	spec := openSpec()
	spec.Stability = QueryStability
	at := refOf(4)
	var first, second collect
	got, err := f.coordinator().Scan(t.Context(), spec, &first)
	if err != nil || got.Ref != refOf(5) || f.kept.Load() != 5 {
		t.Fatalf("%+v, %v, kept %d", got, err, f.kept.Load())
	}
	spec.At = &at
	got, err = f.coordinator().Scan(t.Context(), spec, &second)
	if err != nil || got.Ref != at || !slices.Equal(second.rows, f.expect(4, spec.Ranges, false, 0)) ||
		f.kept.Load() != 4 {
		t.Errorf("%+v, %v, %d rows, kept %d", got, err, len(second.rows), f.kept.Load())
	}
	for name, change := range map[string]func(*wire.StabilityRef){
		"gone":            func(r *wire.StabilityRef) { *r = refOf(2) },
		"before rollback": func(r *wire.StabilityRef) { r.RollbackID-- },
		"another bucket":  func(r *wire.StabilityRef) { r.Generation++ },
		"another state":   func(r *wire.StabilityRef) { r.Hash++ },
	} {
		at := refOf(4)
		change(&at)
		spec.At = &at
		began := f.requests.Load()
		if _, err := f.coordinator().Scan(t.Context(), spec, &collect{}); CodeOf(err) != errcode.SnapshotTooOld {
			t.Errorf("%s: %v", name, err)
		}
		if f.requests.Load() != began {
			t.Errorf("%s: a newer timestamp was requested", name)
		}
	}
	id := TimestampID(refOf(4))
	if back, err := ParseTimestampID(testBucket, id); err != nil || back != refOf(4) {
		t.Errorf("%s is read as %+v, %v", id, back, err)
	}
	for _, bad := range []string{"", "5", id + ".", " " + id, strings.Replace(id, ".", ".+", 1), "-" + id} {
		if _, err := ParseTimestampID(testBucket, bad); CodeOf(err) != errcode.BadRequest {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestNoStability: pages follow each other in order, each at the newest timestamp at that moment; rows skipped,
// repeated and counted are those of all pages together; a timestamp that expires between two pages does no harm.
func TestNoStability(t *testing.T) {
	const rows = 2*PageRows + 500
	f := newCluster(2, 1, 2)
	all := func(number uint64) (every []string) {
		f.rows[number] = make([][]Row, 2)
		for i := range rows {
			// the same rows, of other documents
			r := Row{fmt.Appendf(nil, "%06d", i), fmt.Appendf(nil, "doc-%d", 9-number)}
			f.rows[number][i%2] = append(f.rows[number][i%2], r)
			every = append(every, rowText(r))
		}
		return every
	}
	five, six := all(5), all(6)
	var pages atomic.Int64
	f.request = func(r NodeRequest) {
		if pages.Add(1) == 3 { // both nodes have been queried for the first page; the second one is in progress
			f.mu.Lock()
			for i := range f.view.Held {
				f.view.Held[i].Ref = refOf(6)
				f.has[f.view.Held[i].Copy] = map[uint64]errcode.Code{6: ""}
			}
			f.mu.Unlock()
		}
		if r.After != nil && !bytes.HasPrefix(r.After.Key, []byte("0")) {
			t.Errorf("behind %q", r.After.Key)
		}
	}
	spec := openSpec()
	spec.Stability, spec.Offset, spec.WantTimestamp = NoStability, 3, false
	var sink collect
	waiting := NewCoordinator(f, f, f, Options{Wait: time.Minute}) // how long an attempt takes is irrelevant
	got, err := waiting.Scan(t.Context(), spec, &sink)
	want := append(slices.Clone(five[3:PageRows]), six[PageRows:]...)
	if err != nil || got.Ref != refOf(6) || got.Rows != int64(len(want)) || !slices.Equal(sink.rows, want) {
		t.Errorf("%+v, %v: %d rows, want %d", got, err, len(sink.rows), len(want))
	}
}

// TestReadingTimeDoesNotCountAsWaiting: a scan without stability reads for longer than a scan may wait, and then
// loses its node. It continues with another copy, for which it waits as long as any scan.
func TestReadingTimeDoesNotCountAsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(1, 2, 3)
		f.rows[5][0] = nil
		for i := range 1000 {
			f.rows[5][0] = append(f.rows[5][0], Row{fmt.Appendf(nil, "%0300d", i), []byte("doc")})
		}
		cut, opened := 200_000, 0
		f.broken = func(node index.NodeID) int {
			if opened++; opened == 1 {
				return cut
			}
			if node == 0 || opened < 4 {
				return -2
			}
			return -1
		}
		spec := openSpec()
		spec.Stability, spec.WantTimestamp = NoStability, false
		sink := &slowly{by: DefaultWait}
		res, err := NewCoordinator(f, f, f, Options{}).Scan(t.Context(), spec, sink)
		if want := f.expect(5, spec.Ranges, false, 0); err != nil || !slices.Equal(sink.rows, want) {
			t.Errorf("%+v, %d rows of %d, %v", res, len(sink.rows), len(want), err)
		}
	})
}

// slowly takes the first row slowly.
type slowly struct {
	collect
	by time.Duration
}

func (s *slowly) Row(r Row) error {
	if len(s.rows) == 0 {
		time.Sleep(s.by + time.Second)
	}
	return s.collect.Row(r)
}

// TestStabilityRequests: which options can be combined.
func TestStabilityRequests(t *testing.T) {
	def := index.Definition{ID: 5, Bucket: testBucket, Keys: []index.KeyExpr{{Expr: "a"}}}
	for body, want := range map[string]string{
		`{"stability":"some"}`: `stability "some"`,
		`{"timestamp":"1.2.3.4"}`: "timestamp " +
			"requires stability query",
		`{"timestamp":"1.2.3.4","stability":"none"}`: "timestamp " +
			"requires stability query",
		`{"timestamp":"1.2.3","stability":"query"}`:                                                                        "want the id",
		`{"timestamp":"1.2.3.4","stability":"query"}`:                                                                      "",
		`{"timestamp":"1.2.3.4","stability":"query","consistency":"session"}`:                                              "omit consistency session",
		`{"scan_vectors":{"world":{"1":[5,"7"]}}}`:                                                                         "at_plus",
		`{"scan_vectors":{"world":{"1":[5,"7"]}},"consistency":"at_plus"}`:                                                 "",
		`{"scan_vectors":{"world":{"1":[5]}},"consistency":"at_plus"}`:                                                     `vbucket "1": want {"vbucket":[seqno,"vbuuid"]}`,
		`{"scan_vectors":{"world":{"x":[5,"7"]}},"consistency":"at_plus"}`:                                                 `vbucket "x"`,
		`{"scan_vectors":{"world":{"99999":[5,"7"]}},"consistency":"at_plus"}`:                                             `"99999": want {"vbucket":[seqno,"vbuuid"]}: a vbucket's number up to 65535, a seqno, and the vbuuid's`,
		`{"scan_vectors":{"world":{"1":[-5,"7"]}},"consistency":"at_plus"}`:                                                `"1": want {"vbucket":[seqno,"vbuuid"]}`,
		`{"scan_vectors":{"world":{"1":[5,"y"]}},"consistency":"at_plus"}`:                                                 `"1": want {"vbucket":[seqno,"vbuuid"]}`,
		`{"scan_vectors":{"world":{"1":[5,7]}},"consistency":"at_plus"}`:                                                   "scan_vectors",
		`{"scan_vectors":{"world":{"1":[5,"7"]}},"tokens":[{"vbucket":1,"vbuuid":"7","seqno":5}],"consistency":"at_plus"}`: "exclude each other",
	} {
		r, err := ParseRequest([]byte(body))
		if err == nil {
			_, err = r.Compile(&def)
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
	r, err := ParseRequest([]byte(`{"scan_vectors":{"world":{"1":[5,"18446744073709551615"]},"other":{"2":[6,"8"]}},"consistency":"at_plus"}`))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := r.Compile(&def); err != nil || !slices.Equal(s.Tokens, []Token{{1, 1<<64 - 1, 5}}) ||
		s.Consistency != AtPlus {
		t.Errorf("%+v, %v", s, err)
	}
	pairs := r.ScanVectors[testBucket]
	pairs["1"] = append(pairs["1"], []byte("9"), []byte(`"4"`)) // of another branch
	if s, err := r.Compile(&def); err != nil || !slices.Equal(s.Tokens, []Token{{1, 1<<64 - 1, 5}, {1, 4, 9}}) {
		t.Errorf("%+v, %v", s, err)
	}
	def.Bucket = "third"
	if s, err := r.Compile(&def); err != nil || len(s.Tokens) > 0 || s.Consistency != Any {
		t.Errorf("of other buckets: %+v, %v", s, err)
	}
}
