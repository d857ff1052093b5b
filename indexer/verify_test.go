package indexer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/indexer/pace"
	"tidemark/indexer/storage/storagetest"
	"tidemark/indexer/verify"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/wire"
)

// verify compares an index with KV over HTTP.
func (w *world) verify(ctx context.Context, id index.ID, body string) (found []v1.Difference, end *v1.VerifyEnd,
	err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+w.endpoint.Scan+"/v1/indexes/"+id.String()+":verify", strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, rpc.ReadProblem(resp)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l v1.VerifyLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", lines.Bytes(), err)
		}
		switch {
		case l.Difference != nil:
			found = append(found, *l.Difference)
		case l.Error != nil:
			return found, nil, fmt.Errorf("%w: %s", l.Error.Code, l.Error.Detail)
		case l.End != nil:
			return found, l.End, nil
		}
	}
	return found, nil, fmt.Errorf("the answer was cut: %w", lines.Err())
}

// built returns a world with two indexes of 200 documents, ready.
func built(t testing.TB) *world {
	w := newWorld(t)
	w.write(docs(0, 200, 1)...)
	w.write(testDoc{id: "doc-0007"})
	w.start()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 20)
	return w
}

// again runs an indexer on the same folder and waits until it has what KV has.
func (w *world) again(t testing.TB) {
	t.Helper()
	w.mu.Lock()
	clear(w.report)
	w.mu.Unlock()
	w.start()
	w.mu.Lock()
	d := w.definitionsLocked()
	w.mu.Unlock()
	if _, err := w.admin.Definitions(t.Context(), w.endpoint.Admin, d); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 20)
}

func vbOf(id string) uint16 {
	n := 0
	for _, c := range id {
		n += int(c)
	}
	return uint16(n % testVBs)
}

func (w *world) seqnoOf(id string) (seqno uint64) {
	for _, d := range w.kv[vbOf(id)] {
		if d.id == id {
			seqno = d.seqno
		}
	}
	return seqno
}

// TestVerifyFindsEveryDamage checks that every kind of damage to a copy's files is found, with its document, and
// nothing else.
func TestVerifyFindsEveryDamage(t *testing.T) {
	w := built(t)
	if found, end, err := w.verify(t.Context(), 1, ``); err != nil || len(found) > 0 || end.Differences != 0 || end.Documents < 199 || end.Rows != 199 || end.Unsettled != 0 {
		t.Fatalf("an index that is right: %+v, %+v, %v", found, end, err)
	}
	w.stopIndexer()
	at := func(i int) ([]byte, string) { return testKey(1 + i), fmt.Sprintf("doc-%04d", i) }
	err := storagetest.Edit(filepath.Join(w.dir, copiesDir), 10, func(r *storagetest.Rows) error {
		var errs []error
		do := func(err error) { errs = append(errs, err) }
		k, id := at(20) // a row is missing
		do(r.Remove(k, id))
		do(r.Add(testKey(5000), "nobody")) // a row of a document that does not exist
		k, id = at(30)                     // a row under another key
		do(r.Remove(k, id))
		do(r.Add(testKey(6000), id))
		k, id = at(40) // a document is missing, rows and entry
		do(r.Remove(k, id))
		do(r.RemoveEntry(vbOf(id), id))
		_, id = at(50) // the rows are right, the entry is missing
		do(r.RemoveEntry(vbOf(id), id))
		k, id = at(60) // another key, in both row and entry
		do(r.Remove(k, id))
		do(r.Add(testKey(7000), id))
		do(r.SetEntry(vbOf(id), id, w.seqnoOf(id), testKey(7000)))
		do(r.Add(testKey(8), "doc-0007")) // a deleted document is back
		do(r.SetEntry(vbOf("doc-0007"), "doc-0007", 1, testKey(8)))
		do(r.Add(testKey(9000), "ghost")) // a document that KV never had, rows and entry
		do(r.SetEntry(vbOf("ghost"), "ghost", 2, testKey(9000)))
		_, id = at(70)
		do(r.Add(testKey(7100), id)) // a second row of a document that should have one
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w.again(t)
	found, end, err := w.verify(t.Context(), 1, ``)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range found {
		got = append(got, fmt.Sprintf("%s %s %s->%s", d.ID, d.Kind, join(d.Expected), join(d.Found)))
		if d.Copy != 10 || d.Slice != 0 || d.Indexer != "i1" || d.Stability == 0 {
			t.Errorf("a difference does not say where: %+v", d)
		}
	}
	slices.Sort(got)
	want := []string{
		"doc-0007 extra_row ->[8]", "doc-0020 missing_row [21]->", "doc-0030 wrong_key [31]->[6000]",
		"doc-0040 missing_row [41]->",
		"doc-0050 back_entry [51]->[51]", "doc-0060 wrong_key [61]->[7000]", "doc-0070 extra_row [71]->[71] [7100]",
		"ghost extra_row ->[9000]", "nobody extra_row ->[5000]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if end.Differences != uint64(len(want)) || end.Listed != end.Differences || len(end.Copies) != 1 ||
		end.Copies[0].Differences != end.Differences {
		t.Errorf("the end says %+v", end)
	}
	if found, end, err = w.verify(t.Context(), 1, `{"limit":2}`); err != nil || len(found) != 2 || end.Listed != 2 || end.Differences != uint64(len(want)) {
		t.Errorf("at most two: %d listed, %+v, %v", len(found), end, err)
	}
	if found, _, err := w.verify(t.Context(), 2, ``); err != nil || len(found) > 0 {
		t.Errorf("the other index: %+v, %v", found, err)
	}
}

func join(keys []json.RawMessage) string {
	var s []string
	for _, k := range keys {
		s = append(s, string(k))
	}
	return strings.Join(s, " ")
}

// TestVerifyFindsMisplacedRows checks a row that is in another slice than it should be, with or without its entry: it
// is missing in one and a surplus row in the other. A row that is in both is reported as well, as is an entry without
// its row, whether the document exists or not.
func TestVerifyFindsMisplacedRows(t *testing.T) {
	w := newWorld(t)
	w.place = func(c *partition.Copy) { c.Slice = index.SliceID(c.ID % 10) } // all that is written belongs to slice 0
	w.write(docs(0, 100, 1)...)
	w.start()
	if err := w.define(10, 11, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 11, 20)
	if found, end, err := w.verify(t.Context(), 1, ``); err != nil || len(found) > 0 || end.Rows != 100 || len(end.Copies) != 2 || end.Copies[1].Slice != 1 {
		t.Fatalf("an index that is right: %+v, %+v, %v", found, end, err)
	}
	w.stopIndexer()
	at := func(i int) ([]byte, string) { return testKey(1 + i), fmt.Sprintf("doc-%04d", i) }
	edit := func(id index.CopyID, f func(do func(error), r *storagetest.Rows)) {
		t.Helper()
		err := storagetest.Edit(filepath.Join(w.dir, copiesDir), id, func(r *storagetest.Rows) error {
			var errs []error
			f(func(err error) { errs = append(errs, err) }, r)
			return errors.Join(errs...)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	edit(10, func(do func(error), r *storagetest.Rows) {
		for _, i := range []int{20, 30} {
			k, id := at(i)
			do(r.Remove(k, id))
			do(r.RemoveEntry(vbOf(id), id))
		}
		do(r.SetEntry(vbOf("phantom"), "phantom", 1, testKey(1))) // only an entry, for no document
		_, id := at(50)
		// an entry that lists a row that does not exist
		do(r.SetEntry(vbOf(id), id, w.seqnoOf(id), testKey(51), testKey(5100)))
	})
	edit(11, func(do func(error), r *storagetest.Rows) {
		k, id := at(20) // row and entry in the wrong slice
		do(r.Add(k, id))
		do(r.SetEntry(vbOf(id), id, w.seqnoOf(id), k))
		k, id = at(30) // only the row
		do(r.Add(k, id))
		k, id = at(40) // in both
		do(r.Add(k, id))
		do(r.SetEntry(vbOf(id), id, w.seqnoOf(id), k))
	})
	w.again(t)
	w.held(11)
	found, end, err := w.verify(t.Context(), 1, ``)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range found {
		got = append(got, fmt.Sprintf("%s slice %d copy %s %s %s->%s", d.ID, d.Slice, d.Copy, d.Kind, join(d.Expected),
			join(d.Found)))
	}
	slices.Sort(got)
	want := []string{
		"doc-0020 slice 0 copy 10 missing_row [21]->", "doc-0020 slice 1 copy 11 extra_row ->[21]",
		"doc-0030 slice 0 copy 10 missing_row [31]->", "doc-0030 slice 1 copy 11 extra_row ->[31]",
		"doc-0040 slice 1 copy 11 extra_row ->[41]", "doc-0050 slice 0 copy 10 back_entry [51]->[51]",
		"phantom slice 0 copy 10 back_entry ->",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if end.Differences != uint64(len(want)) || end.Copies[0].Differences != 4 || end.Copies[1].Differences != 3 {
		t.Errorf("the end says %+v", end)
	}
}

// TestVerifyKeepsToItsRate checks that the rate counts every row, every entry of the back index and every document of
// KV, however few of them a vbucket has, and that the reported numbers of rows and entries are right.
func TestVerifyKeepsToItsRate(t *testing.T) {
	t.Parallel()
	const rate = 1000
	w := built(t)
	began := time.Now()
	_, end, err := w.verify(t.Context(), 1, fmt.Sprintf(`{"rate":%d}`, rate))
	if err != nil {
		t.Fatal(err)
	}
	things := 3*end.Rows + end.Documents // each entry once with the rows, and once with KV
	if took, least := time.Since(began), time.Duration(things)*time.Second/rate-pace.Least; took < least ||
		things < 4*199 {
		t.Errorf("%d rows and twice as many entries, %d documents after %s, %s at least at %d a second", end.Rows,
			end.Documents, took, least, rate)
	}
	families, err := w.x.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := f.GetMetric()[0].GetCounter().GetValue(); f.GetName() == "tidemark_indexer_verified_rows_total" &&
			n != float64(3*end.Rows) {
			t.Errorf("%v are counted as looked at, want %d", n, 3*end.Rows)
		}
	}
}

// TestVerifyListIsBounded checks that the limit applies to all indexers together, and that the end says how many
// differences were listed. All are counted.
func TestVerifyListIsBounded(t *testing.T) {
	w := newWorld(t)
	// an indexer that finds 3
	other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		out := json.NewEncoder(rw)
		for i := range 3 {
			_ = out.Encode(v1.VerifyLine{Difference: &v1.Difference{Kind: wire.ExtraRow, ID: fmt.Sprint("x", i), Copy: 11}})
		}
		_ = out.Encode(v1.VerifyLine{End: &v1.VerifyEnd{Differences: 3, Listed: 3, FirstStability: 1, LastStability: 1,
			Copies: []v1.VerifiedCopy{{Copy: 11, Replica: 1, Differences: 3}}}})
	}))
	t.Cleanup(other.Close)
	w.others = []wire.Endpoint{{Node: 4, UUID: "u4", Name: "i2", Scan: other.Listener.Addr().String()}}
	w.place = func(c *partition.Copy) {
		if c.ID == 11 {
			c.Node, c.Replica = 4, 1
		}
	}
	w.write(docs(0, 20, 1)...)
	w.start()
	if err := w.define(10, 11); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10)
	for limit, want := range map[int]int{1: 1, 2: 2, 3: 3, 100: 3} {
		found, end, err := w.verify(t.Context(), 1, fmt.Sprintf(`{"limit":%d}`, limit))
		if err != nil || len(found) != want || end.Listed != uint64(want) || end.Differences != 3 || len(end.Copies) != 2 {
			t.Errorf("at most %d: %d, %+v, %v", limit, len(found), end, err)
		}
	}
}

// TestVerifyNamesAHungIndexer checks that a verification whose other indexer hangs, at once or in the middle,
// ends with an error that names that indexer.
func TestVerifyNamesAHungIndexer(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		w := newWorld(t)
		release := make(chan struct{})
		other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if begun && r.URL.Path == verify.Path {
				_ = json.NewEncoder(rw).Encode(v1.VerifyLine{Progress: &v1.VerifyProgress{Indexer: "i2"}})
				_ = http.NewResponseController(rw).Flush()
			}
			<-release // for any request, heartbeats included
		}))
		t.Cleanup(func() { close(release); other.Close() })
		w.others = []wire.Endpoint{{Node: 4, UUID: "u4", Name: "i2", Scan: other.Listener.Addr().String()}}
		w.place = func(c *partition.Copy) {
			if c.ID == 11 {
				c.Node, c.Replica = 4, 1
			}
		}
		w.write(docs(0, 20, 1)...)
		w.start()
		if err := w.define(10, 11); err != nil {
			t.Fatal(err)
		}
		w.begin(nil)
		w.promote(t.Context())
		w.held(10)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // hang guard
		_, _, err := w.verify(ctx, 1, ``)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "UNAVAILABLE") || !strings.Contains(err.Error(), "indexer 4") {
			t.Errorf("begun %v: %v", begun, err)
		}
	}
}

// TestVerifyWhileDocumentsChange checks that documents that change all the time, some of them deleted and made again,
// are no differences, and that a surplus row is still found among them.
func TestVerifyWhileDocumentsChange(t *testing.T) {
	t.Parallel()
	w := built(t)
	w.stopIndexer()
	if err := storagetest.Edit(filepath.Join(w.dir, copiesDir), 10, func(r *storagetest.Rows) error {
		if err := r.Add(testKey(9000), "ghost"); err != nil {
			return err
		}
		return r.SetEntry(vbOf("ghost"), "ghost", 2, testKey(9000))
	}); err != nil {
		t.Fatal(err)
	}
	w.again(t)
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			id := n * 7 % 200
			w.write(docs(id, id+1, 100*n)...)
			if n%5 == 0 {
				w.write(testDoc{id: fmt.Sprintf("doc-%04d", n*3%200)})
			}
			time.Sleep(time.Millisecond) // the rate of changes; nothing waits for this
		}
	})
	for range 3 {
		found, end, err := w.verify(t.Context(), 1, ``)
		if err != nil || len(found) != 1 || found[0].ID != "ghost" || found[0].Kind != wire.ExtraRow {
			t.Errorf("%+v, %+v, %v; want ghost alone", found, end, err)
		}
		if found, _, err := w.verify(t.Context(), 2, ``); err != nil || len(found) != 0 {
			t.Errorf("the other index: %+v, %v", found, err)
		}
	}
	stop()
	writer.Wait()
}

// TestVerifyRefuses checks that what cannot be verified is refused with its own error code.
func TestVerifyRefuses(t *testing.T) {
	w := built(t)
	for body, want := range map[string]string{`{"rate":5}`: "rate 5", `{"limit":-1}`: "limit -1", `{"rates":1}`: "rates", `[`: "BAD_REQUEST"} {
		if _, _, err := w.verify(t.Context(), 1, body); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, _, err := w.verify(t.Context(), 9, ``); err == nil || !strings.Contains(err.Error(), "INDEX_NOT_HOSTED") {
		t.Errorf("no such index: %v", err)
	}
	// A client that disconnects ends its verification, and the next one can start.
	ctx, gone := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := w.verify(ctx, 1, `{"rate":100}`)
		ended <- err
	}()
	w.until("the verification runs", func() bool { return w.x.verify.Verifying() })
	if _, _, err := w.verify(t.Context(), 1, ``); err == nil || !strings.Contains(err.Error(), "verifications are in progress") {
		t.Errorf("a second one: %v", err)
	}
	gone()
	if err := <-ended; err == nil {
		t.Error("it came to its end")
	}
	w.until("it has ended", func() bool { return !w.x.verify.Verifying() })
	if _, _, err := w.verify(t.Context(), 1, ``); err != nil {
		t.Errorf("the next one: %v", err)
	}
	// What cannot be scanned is not verified.
	w.mu.Lock()
	w.state = index.Error
	w.mu.Unlock()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.verify(t.Context(), 1, ``); err == nil || !strings.Contains(err.Error(), "INDEX_NOT_READY") {
		t.Errorf("an index in state error: %v", err)
	}
}
