package scan

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
)

// pageEnd is the end of a page.
type pageEnd struct {
	Rows      int    `json:"rows"`
	More      bool   `json:"more"`
	Cursor    string `json:"cursor"`
	Timestamp struct {
		ID string `json:"id"`
	} `json:"timestamp"`
}

// take takes a page like a client whose indexers are killed after some messages.
func take(t *rapid.T, f *fakeCluster, req Request, kill func() int) (rows []string, end pageEnd) {
	var p portion
	for {
		req.Resume = p.resume
		err := p.answer(f, req, rapid.IntRange(1, 300).Draw(t, "size"), kill())
		if err == nil {
			break
		}
		if !errors.Is(err, errKilled) || len(p.resume) == 0 {
			t.Fatalf("%v, behind %d rows", err, len(p.rows))
		}
	}
	if err := json.Unmarshal([]byte(p.end), &end); err != nil {
		t.Fatal(err)
	}
	return p.rows, end
}

// TestPagesAreOneAnswer: whatever the request is, and whichever indexers are killed, the pages together are the rows
// of one answer at the first one's timestamp, while newer timestamps appear; the last page has no successor.
func TestPagesAreOneAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := arrays(t)
		f.view.Definition.Bucket = testBucket
		req := Request{Reverse: rapid.Bool().Draw(t, "reverse"), Distinct: rapid.Bool().Draw(t, "distinct"),
			Offset:  rapid.SampledFrom([]int64{0, 0, 3, 50}).Draw(t, "offset"),
			Project: rapid.SampledFrom([][]int{nil, {0}, {0, 1}}).Draw(t, "project")}
		if rapid.Bool().Draw(t, "groups") {
			one := 1
			req.Distinct, req.Project = false, nil
			req.GroupBy = rapid.SampledFrom([][]int{{}, {0}, {1}, {0, 1}, {1, 0}}).Draw(t, "by")
			req.Aggregates = []Aggregate{{Op: "count"}, {Op: "max", Component: &one}}
			if rapid.Bool().Draw(t, "of different values") {
				req.Aggregates = append(req.Aggregates, Aggregate{Op: "count", Component: &one, Distinct: true})
			}
		}
		if rapid.Bool().Draw(t, "range") {
			req.Range = &Bounds{Low: []json.RawMessage{json.RawMessage("1")}, High: []json.RawMessage{json.RawMessage("3")}}
		}
		for i := range f.view.Held {
			f.view.Held[i].Ref = refOf(4)
		}
		whole := req
		if err := whole.check(); err != nil {
			t.Fatal(err)
		}
		want, _ := take(t, f, whole, func() int { return 1 << 20 })
		req.Limit, req.WantCursor = rapid.SampledFrom([]int64{1, 2, 7, 1000}).Draw(t, "limit"), true
		var got []string
		for n := 0; ; n++ {
			one := req
			if err := one.check(); err != nil {
				t.Fatal(err)
			}
			rows, end := take(t, f, one, func() int { return rapid.IntRange(1, 4).Draw(t, "messages") })
			got = append(got, rows...)
			full := int64(len(rows)) == req.Limit
			more := len(got) < len(want)
			if end.Rows != len(rows) || end.More != more || more != (end.Cursor != "") || more && !full {
				t.Fatalf("page %d has %d rows, %d of %d by then, and ends with %+v", n, len(rows), len(got), len(want), end)
			}
			if end.Timestamp.ID != TimestampID(refOf(4)) {
				t.Fatalf("page %d is of %s", n, end.Timestamp.ID)
			}
			if !end.More {
				break
			}
			req.Cursor, req.WantCursor, req.Limit = end.Cursor, rapid.Bool().Draw(t, "set again"), 1+int64(n)%3
			for i := range f.view.Held { // the bucket advances
				f.view.Held[i].Ref = refOf(5)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("in pages:\n%v\nat once:\n%v", got, want)
		}
	})
}

// TestPagesOfGroupsOnThisNode: a page continues behind the group that its cursor names while it is read, also on the
// coordinating node, which has the request itself and not a decoded copy.
func TestPagesOfGroupsOnThisNode(t *testing.T) {
	f := newCluster(1, 1, 1)
	f.view.Definition = *definition(false, false)
	f.view.Definition.Bucket = testBucket
	f.view.Topology.Copies[0].Node, f.view.Held[0].Node = here, here
	f.rows[5][0] = nil
	var want []string
	for i, text := range []string{"null", `"a"`, `"b"`, `"c"`, `"d"`} {
		for n := range 3 {
			key, err := collate.AppendComposite(nil, [][]byte{[]byte(text), fmt.Append(nil, n)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			f.rows[5][0] = append(f.rows[5][0], Row{key, fmt.Appendf(nil, "d%d.%d", i, n)})
		}
		want = append(want, "["+text+"] [3]")
	}
	for limit := range int64(5) {
		req := Request{GroupBy: []int{0}, Limit: limit + 1, WantCursor: true, Aggregates: []Aggregate{{Op: "count"}}}
		var got []string
		for more := true; more; req.Limit++ {
			if err := req.check(); err != nil {
				t.Fatal(err)
			}
			spec, err := f.coordinator().Prepare(5, req)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			enc := NewEncoder(&out, nil, nil, spec)
			res, err := f.coordinator().Scan(t.Context(), spec, enc)
			if err != nil {
				t.Fatal(err)
			}
			_ = enc.write() // into memory
			for line := range strings.Lines(out.String()) {
				var group struct {
					Key    json.RawMessage
					Values []int
				}
				if err := json.Unmarshal([]byte(line), &group); err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("%s %d", group.Key, group.Values))
			}
			more, req.Cursor = res.More, res.Cursor
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages from %d groups on: %q, want %q", limit+1, got, want)
		}
	}
}

// cursorOf returns the cursor behind the first row of an index, and the request that it came with.
func cursorOf(t *testing.T, f *fakeCluster) (Request, string) {
	t.Helper()
	for n := range f.rows { // the index has one component, which these rows do not have
		for s := range f.rows[n] {
			for i := range f.rows[n][s] {
				f.rows[n][s][i].Key = nil
			}
			slices.SortFunc(f.rows[n][s], Row.Compare)
		}
	}
	f.view.Definition.Bucket = testBucket
	req := Request{Limit: 1, WantCursor: true}
	if err := req.check(); err != nil {
		t.Fatal(err)
	}
	spec, err := f.coordinator().Prepare(5, req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.coordinator().Scan(t.Context(), spec, new(collect))
	if err != nil || !got.More || got.Cursor == "" {
		t.Fatalf("%+v, %v", got, err)
	}
	return req, got.Cursor
}

// TestExpiredCursors: the error for a state that is no longer kept names it; with newer the scan continues behind the
// place in the newest state, never in an older one, and after a rollback in everything that KV has.
func TestExpiredCursors(t *testing.T) {
	f := parted()
	f.hold([]index.CopyID{1, 2, 3, 4}, 4)
	req, cursor := cursorOf(t, f)
	req.Cursor = cursor
	scanned := func(newer bool) (Result, []string, error) {
		t.Helper()
		one := req
		one.Newer, one.Limit = newer, 1000
		if err := one.check(); err != nil {
			t.Fatal(err)
		}
		spec, err := f.coordinator().Prepare(5, one)
		if err != nil {
			t.Fatal(err)
		}
		var rows collect
		got, err := f.coordinator().Scan(t.Context(), spec, &rows)
		return got, rows.rows, err
	}
	if got, rows, err := scanned(false); err != nil || got.Ref != refOf(4) || len(rows) != 39 {
		t.Errorf("%+v, %d rows, %v", got, len(rows), err)
	}
	for id := range f.has {
		delete(f.has[id], 4)
	}
	if _, _, err := scanned(false); CodeOf(err) != errcode.CursorExpired || !strings.Contains(err.Error(), "newer") {
		t.Errorf("what is gone: %v", err)
	}
	f.hold([]index.CopyID{1, 2, 3, 4}, 5)
	if got, rows, err := scanned(true); err != nil || got.Ref != refOf(5) || len(rows) != 39 {
		t.Errorf("newer: %+v, %d rows, %v", got, len(rows), err)
	}
	// A page leaves the client's session unchanged, and its cursor is of the page's timestamp, not the session's.
	lost := seenAt(f, 9)
	lost.Epoch--
	one := Request{Limit: 1, Cursor: cursor, Stability: QueryStability, seen: []scanport.Seen{lost}}
	f.has[1][4], f.has[2][4], f.has[3][4], f.has[4][4] = "", "", "", ""
	spec, err := f.coordinator().Prepare(5, one)
	if err != nil {
		t.Fatal(err)
	}
	page, err := f.coordinator().Scan(t.Context(), spec, new(collect))
	if err != nil || page.Seen != lost || page.Cursor == "" {
		t.Fatalf("%+v, %v", page, err)
	}
	req.Cursor = page.Cursor
	if got, _, err := scanned(true); err != nil || got.SessionLost != "" {
		t.Errorf("newer, behind a page of a session that has lost something: %+v, %v", got, err)
	}
	f.view.Bucket.RollbackID++
	for i := range f.view.Held {
		f.view.Held[i].Ref.RollbackID++
	}
	if _, _, err := scanned(false); CodeOf(err) != errcode.CursorExpired {
		t.Errorf("after a rollback: %v", err)
	}
}

// TestForeignCursorsAreRefused: a cursor of another index or request, or an invalid one, is refused with the reason,
// and so are options that cannot be combined with it.
func TestForeignCursorsAreRefused(t *testing.T) {
	f := parted()
	req, cursor := cursorOf(t, f)
	req.Cursor = cursor
	def := f.view.Definition
	def.Bucket = testBucket
	other := def
	other.ID, other.Name = 6, "other"
	reversed, projected, ranged := req, req, req
	reversed.Reverse, projected.Project = true, []int{0}
	ranged.Equal = []json.RawMessage{json.RawMessage(`"FR"`)}
	for _, c := range []struct {
		name string
		req  Request
		def  *index.Definition
		want string
	}{
		{"the same", req, &def, ""}, {"another index", req, &other, "belongs to index 5 on bucket"},
		{"reverse", reversed, &def, "belongs to another request"}, {"project", projected, &def, "belongs to another request"},
		{"bounds", ranged, &def, "belongs to another request"},
	} {
		_, err := c.req.Compile(c.def)
		refused := err != nil && CodeOf(err) == errcode.BadRequest && strings.Contains(err.Error(), c.want)
		if refused != (c.want != "") || err != nil && !refused {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	for body, want := range map[string]string{
		`{"want_cursor":true}`: "require a limit",
		`{"cursor":"abc"}`:     "require a limit",
		`{"newer":true}`:       "newer requires a cursor",
		`{"limit":3,"want_cursor":true,"stability":"none"}`:              "cannot be combined with stability none",
		`{"limit":3,"cursor":"` + strings.Repeat("A", MaxCursor) + `A"}`: "limit is 65536",
		`{"limit":3,"cursor":"a b"}`:                                     "illegal base64",
		`{"limit":3,"cursor":"abcd"}`:                                    "it is truncated",
		`{"limit":3,"cursor":"abcdabcd"}`:                                "format is unknown",
		`{"limit":3,"cursor":"` + cursor[:len(cursor)/4*4-8] + `"}`:      "checksum",
	} {
		r, err := ParseRequest([]byte(body))
		if err == nil {
			_, err = r.Compile(&def)
		}
		if CodeOf(err) != errcode.BadRequest || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%.60s: %v, want %q", body, err, want)
		}
	}
	distinct := Request{Limit: 1, WantCursor: true, Distinct: true}
	if err := distinct.check(); err != nil {
		t.Fatal(err)
	}
	spec, err := distinct.Compile(&def)
	if err != nil {
		t.Fatal(err)
	}
	forged := seenAt(f, 5)
	distinct.Cursor = spec.cursor(&forged, 7, &Row{Key: []byte{0xff, 1}})
	_, err = distinct.Compile(&def)
	if CodeOf(err) != errcode.BadRequest || !strings.Contains(fmt.Sprint(err), "a key") {
		t.Errorf("a key that is none: %v", err)
	}
	spec, err = req.Compile(&def)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.coordinator().Count(t.Context(), spec); CodeOf(err) != errcode.BadRequest {
		t.Errorf("a count: %v", err)
	}
	seen := seenAt(f, 5)
	if got := spec.cursor(&seen, 7, &Row{Key: make([]byte, maxCursorRow+1)}); got != "" {
		t.Errorf("a cursor of %d bytes", len(got))
	}
	if got := spec.cursor(&seen, 7, &Row{Key: make([]byte, maxCursorRow)}); len(got) == 0 || len(got) > MaxCursor {
		t.Errorf("a cursor of %d bytes", len(got))
	}
}

func FuzzCursor(f *testing.F) {
	def := &index.Definition{ID: 5, Bucket: testBucket, Keys: []index.KeyExpr{{Expr: "a"}}}
	spec := Spec{Index: 5, Page: &Page{}}
	seen := scanport.Seen{Bucket: testBucket}
	whole, err := base64.RawURLEncoding.DecodeString(spec.cursor(&seen, 7, &Row{Key: []byte("k"), DocID: []byte("d")}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole[:len(whole)-cursorSum])
	f.Fuzz(func(t *testing.T, b []byte) {
		text := base64.RawURLEncoding.EncodeToString(appendSum(b))
		seen, row, err := spec.readCursor(text, def)
		if err != nil {
			if CodeOf(err) != errcode.BadRequest {
				t.Error(err)
			}
			return
		}
		again, row2, err := spec.readCursor(spec.cursor(&seen, spec.Page.id, row), def)
		if err != nil || again != seen || row2.Compare(*row) != 0 {
			t.Errorf("%+v %+v, then %+v %+v, %v", seen, row, again, row2, err)
		}
	})
}

// TestTimestampsAreKeptForPages: nodes are requested to keep the copies that they serve, for all pages of an answer
// under one id, and the same copies serve each page; if the first page is the last, the next request to them reports
// that. A node without room refuses the page.
func TestTimestampsAreKeptForPages(t *testing.T) {
	f := parted()
	req, cursor := cursorOf(t, f)
	ctx := rpc.WithPrincipal(t.Context(), "ann")
	c := f.coordinator()
	page := func(r Request) (Result, []keptPage, error) {
		t.Helper()
		f.pages, f.pagesDone, f.pagesOver = nil, nil, nil
		if err := r.check(); err != nil {
			t.Fatal(err)
		}
		spec, err := c.Prepare(5, r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Scan(ctx, spec, new(collect))
		return got, f.pages, err
	}
	got, first, err := page(req)
	if err != nil || got.Cursor == "" || got.Cursor == cursor || len(first) != 2 || len(f.pagesOver) != 0 ||
		!slices.Equal(f.pagesDone, []bool{true, true}) || first[0].of != first[1].of || first[0].of.For != "ann" {
		t.Fatalf("%+v, %v: kept %+v, done %v, over %v", got, err, first, f.pagesDone, f.pagesOver)
	}
	sorted := func(all []keptPage) []keptPage {
		slices.SortFunc(all, func(a, b keptPage) int { return int(a.copies[0]) - int(b.copies[0]) })
		return all
	}
	req.Cursor = got.Cursor
	for range 5 {
		next, again, err := page(req)
		if err != nil || !reflect.DeepEqual(sorted(first), sorted(again)) || len(f.pagesOver) != 0 {
			t.Fatalf("%v: kept %+v, then %+v, over %v", err, first, again, f.pagesOver)
		}
		req.Cursor = next.Cursor
	}
	req.Newer = true
	if _, newer, err := page(req); err != nil || newer[0].of == first[0].of || newer[0].of.ID == 0 {
		t.Errorf("newer: %+v, %v", newer, err)
	}
	whole := Request{Limit: 1000, WantCursor: true}
	_, last, err := page(whole)
	if err != nil || len(f.pagesOver) != 0 {
		t.Fatal(err)
	}
	_, _, err = page(Request{Limit: 1})
	for _, n := range last { // for both nodes, whichever the plain scan uses
		other := slices.ContainsFunc(f.pagesOver, func(p Pages) bool { return p != n.of })
		if err != nil || other || len(f.pagesOver) == 0 {
			t.Errorf("%v: sent %v, kept were %+v", err, f.pagesOver, last)
		}
	}
	f.full = true
	if _, _, err := page(whole); CodeOf(err) != errcode.Busy {
		t.Errorf("without room: %v", err)
	}
	for range 3 * mostOver {
		c.over.add(Pages{ID: 1}, []index.NodeID{1})
	}
	for n := mostOver; n > 0; n -= maxOver {
		if got := len(c.over.take(1)); got != maxOver {
			t.Errorf("%d are sent at a time", got)
		}
	}
	if got := len(c.over.take(1)); got != 0 || len(c.over.pending) > 2 {
		t.Errorf("%d are left, of %d nodes", got, len(c.over.pending))
	}
}

// TestEndedPagesAreSentAgain: a node gets the list of answers that need not be kept even if the request that carried
// it did not reach the node; a node that has read the request and refuses it gets the list once.
func TestEndedPagesAreSentAgain(t *testing.T) {
	one, two := Pages{ID: 1}, Pages{ID: 2}
	for _, c := range []struct {
		name  string
		fails func(f *fullCluster)
		again bool
	}{
		{"no room", func(f *fullCluster) { f.full = func(n index.NodeID, _ int) bool { return n == 0 } }, true},
		{"no connection", func(f *fullCluster) {
			f.broken = func(n index.NodeID) int {
				if n == 0 {
					return -2
				}
				return -1
			}
		}, true},
		{"a refusal", func(f *fullCluster) { f.has[1] = nil }, false}, // of node 0
	} {
		nowhere := func(index.NodeID, int) bool { return false }
		f := &fullCluster{fakeCluster: newCluster(2, 1, 2), full: nowhere, requests: map[index.NodeID]int{}}
		var sent []Pages
		f.request = func(r NodeRequest) {
			if r.Copies[0] == 1 {
				sent = append(sent, r.Over...)
			}
		}
		co := NewCoordinator(f, f, f, Options{Wait: time.Millisecond})
		co.over.add(one, []index.NodeID{0})
		c.fails(f)
		if _, err := co.Scan(t.Context(), openSpec(), new(collect)); err == nil {
			t.Fatalf("%s: it did not fail", c.name)
		}
		co.over.add(two, []index.NodeID{0})
		f.full, f.broken, f.has[1] = nowhere, nil, f.has[2]
		if c.again != (len(sent) == 0) {
			t.Errorf("%s: sent %v", c.name, sent)
		}
		if _, err := co.Scan(t.Context(), openSpec(), new(collect)); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if !slices.Equal(sent, []Pages{one, two}) {
			t.Errorf("%s: sent %v", c.name, sent)
		}
	}
	var o over
	for range mostOver {
		o.add(two, []index.NodeID{1})
	}
	o.putBack(1, slices.Repeat([]Pages{one}, maxOver))
	o.putBack(2, nil)
	if len(o.pending) != 1 || len(o.pending[1]) != mostOver || o.pending[1][0] != two {
		t.Errorf("%d nodes, %d for one of them, the first %v", len(o.pending), len(o.pending[1]), o.pending[1][0])
	}
}
