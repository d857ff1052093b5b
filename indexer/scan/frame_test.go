package scan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/testing/families"
	"tidemark/partition"
	"tidemark/timestamp"
)

// readAll reads a stream to its end.
func readAll(b []byte) (rows []string, count int64, err error) {
	f, err := ReadFrames(io.NopCloser(bytes.NewReader(b)))
	if err != nil {
		return nil, 0, err
	}
	for {
		r, err := f.Next()
		if errors.Is(err, io.EOF) {
			return rows, f.Count(), nil
		}
		if err != nil {
			return rows, f.Count(), err
		}
		rows = append(rows, rowText(r))
	}
}

func writeFrames(t fatal, rows []Row, end func(*FrameWriter) error) []byte {
	var b bytes.Buffer
	f := NewFrameWriter(&b, nil)
	if err := f.Header(vectorOf(3), -1); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := f.Row(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := end(f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type fatal interface{ Fatal(...any) }

func drawRows(t *rapid.T) []Row {
	var rows []Row
	for i := range rapid.IntRange(0, 60).Draw(t, "rows") {
		rows = append(rows, Row{bytes.Repeat([]byte{byte(i)}, rapid.IntRange(0, 3000).Draw(t, "key")),
			fmt.Appendf(nil, "d%d", i)})
	}
	return rows
}

// TestFramesCutAnywhere: the whole stream yields the rows; every other prefix and every flipped bit yields an error,
// after only correct rows.
func TestFramesCutAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := drawRows(t)
		whole := writeFrames(t, rows, (*FrameWriter).End)
		got, _, err := readAll(whole)
		if err != nil || len(got) != len(rows) {
			t.Fatalf("%d rows, %v; want %d", len(got), err, len(rows))
		}
		at := rapid.IntRange(0, len(whole)-1).Draw(t, "at")
		part, _, err := readAll(whole[:at])
		if err == nil || !isPrefix(part, got) {
			t.Fatalf("cut at %d of %d: %d rows, %v", at, len(whole), len(part), err)
		}
		flipped := bytes.Clone(whole)
		flipped[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		part, _, err = readAll(flipped)
		if err == nil || !isPrefix(part, got) {
			t.Fatalf("bit flipped at %d of %d: %d rows, %v", at, len(whole), len(part), err)
		}
	})
}

func isPrefix(part, whole []string) bool {
	if len(part) > len(whole) {
		return false
	}
	for i := range part {
		if part[i] != whole[i] {
			return false
		}
	}
	return true
}

func TestFrameErrors(t *testing.T) {
	failed := writeFrames(t, []Row{{[]byte("k"), []byte("d")}}, func(f *FrameWriter) error {
		return f.Fail(Errorf(errcode.Damaged, "file %s", "x"))
	})
	rows, _, err := readAll(failed)
	if len(rows) != 1 || CodeOf(err) != errcode.Damaged || !strings.Contains(err.Error(), "file x") {
		t.Fatalf("%v %v, want one row and DAMAGED", rows, err)
	}
	var b bytes.Buffer
	if err := NewFrameWriter(&b, nil).Fail(context.DeadlineExceeded); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readAll(b.Bytes()); CodeOf(err) != errcode.Timeout {
		t.Fatalf("%v, want TIMEOUT before any header", err)
	}
	b.Reset()
	f := NewFrameWriter(&b, nil)
	if err := errors.Join(f.Header(timestamp.Vector{}, 42), f.End()); err != nil {
		t.Fatal(err)
	}
	if _, n, err := readAll(b.Bytes()); err != nil || n != 42 {
		t.Fatalf("count %d %v, want 42", n, err)
	}
	if err := NewFrameWriter(io.Discard, nil).Row(Row{Key: make([]byte, MaxFrame)}); err == nil {
		t.Fatal("a row larger than a frame was taken")
	}
}

func FuzzReadFrames(f *testing.F) {
	f.Add(writeFrames(f, []Row{{[]byte("key"), []byte("doc")}}, (*FrameWriter).End))
	f.Add(writeFrames(f, nil, func(w *FrameWriter) error { return w.Fail(Errorf(errcode.Timeout, "late")) }))
	f.Add([]byte{0, 0, 0, 2, frameHeader, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, _, err := readAll(b)
		if err == nil && len(rows) > len(b) {
			t.Fatal("more rows than bytes")
		}
	})
}

// FuzzRows makes the fuzzer produce payloads with a correct checksum.
func FuzzRows(f *testing.F) {
	f.Add([]byte{1, 'k', 1, 'd'}, byte(frameRows))
	f.Add([]byte{1, 3, 0, 4, 1, 4, 0}, byte(frameHeader))
	f.Fuzz(func(t *testing.T, payload []byte, kind byte) {
		var b bytes.Buffer
		w := NewFrameWriter(&b, nil)
		if err := w.Header(timestamp.Vector{}, -1); err != nil {
			t.Fatal(err)
		}
		w.buf = append(w.buf[:5], payload...)
		if err := w.send(kind); err != nil {
			t.Fatal(err)
		}
		if rows, _, err := readAll(b.Bytes()); err == nil && len(rows) > 0 {
			t.Fatal("rows without an end are a whole answer")
		}
	})
}

func TestNDJSON(t *testing.T) {
	var b bytes.Buffer
	desc := []bool{false, true}
	e := NewEncoder(&b, nil, nil, Spec{Desc: desc})
	for _, r := range []Row{
		{key(t, `["FR",12.5]`, desc), []byte("doc\"1")},
		{key(t, `[null,{"a":[true]}]`, desc), []byte("é")},
	} {
		if err := e.Row(r); err != nil {
			t.Fatal(err)
		}
	}
	v := timestamp.New(2)
	v.Set(0, timestamp.Position{VBUUID: 1 << 63, Seqno: 7})
	seen := scanport.Seen{Bucket: testBucket, At: refOf(5).Ref}
	if err := e.End(Result{Rows: 2, Ref: refOf(5), Vector: v, Seen: seen}); err != nil {
		t.Fatal(err)
	}
	if err := e.Fail(&Error{Code: errcode.VBucketsUnavailable, Detail: "nobody owns 3",
		VBuckets: []uint16{3}}); err != nil {
		t.Fatal(err)
	}
	stamp := `"timestamp":{"id":"` + TimestampID(refOf(5)) + `","hash":"` + fmt.Sprint(refOf(5).Hash) + `"`
	want := `{"key":["FR",12.5],"id":"doc\"1"}
{"key":[null,{"a":[true]}],"id":"é"}
{"end":true,"rows":2,` + stamp + `,"vector":[["9223372036854775808",7],["0",0]]},"session":"` + seen.Token() + `"}
{"error":{"code":"VBUCKETS_UNAVAILABLE","detail":"nobody owns 3","vbuckets":[3]}}
`
	if b.String() != want {
		t.Fatalf("got\n%swant\n%s", b.String(), want)
	}
	for line := range strings.Lines(b.String()) {
		if !json.Valid([]byte(line)) {
			t.Fatalf("not JSON: %s", line)
		}
	}
	if got := string(AppendCount(nil, Result{Rows: 3, Ref: refOf(5), Seen: seen})); got !=
		`{"count":3,`+stamp+`},"session":"`+seen.Token()+"\"}\n" {
		t.Fatal(got)
	}
	if err := e.Row(Row{Key: []byte{1, 2}}); CodeOf(err) != errcode.Damaged {
		t.Fatalf("%v, want DAMAGED for a key that does not decode", err)
	}
}

// BenchmarkScan measures a row from a slice to a line of JSON: node merge, frames, coordinator merge, NDJSON.
func BenchmarkScan(b *testing.B) {
	f := newCluster(6, 1, 3)
	const rows = 10_000
	all := make([][]Row, 6)
	for i := range rows {
		doc := fmt.Appendf(nil, "doc%08d", i)
		s := families.Provider(&f.view.Topology.Layout).Slice(partition.KeyVersion{DocID: doc})
		all[s] = append(all[s], Row{key(b, fmt.Sprintf(`["name%08d",%d]`, i, i), nil), doc})
	}
	f.rows[5] = all
	f.view.Definition = *definition(false, false)
	c := f.coordinator()
	spec := Spec{Index: 5, Ranges: []Range{{}}, Desc: []bool{false, false}}
	b.ReportAllocs()
	for b.Loop() {
		res, err := c.Scan(context.Background(), spec, NewEncoder(io.Discard, nil, nil, spec))
		if err != nil || res.Rows != rows {
			b.Fatal(res.Rows, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
}

// TestFrameForm fixes the bytes, because nodes of different versions communicate.
func TestFrameForm(t *testing.T) {
	got := fmt.Sprintf("%x", writeFrames(t, []Row{{[]byte("key"), []byte("doc")}}, (*FrameWriter).End))
	want := "0000000c" + "01" + "01" + "01" + "00" + "04" + // header: format, vector follows, no count, 4 vbuckets
		"4d1e4d1f4d204d21" + "4504015d" +
		"00000008" + "02" + "036b6579" + "03646f63" + "7bc2ebfb" + // one row
		"00000001" + "03" + "01" + "37ed5c48" // end of one row
	if got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}

// TestDrain: a node's answer is read to its end after enough rows have arrived.
func TestDrain(t *testing.T) {
	var b bytes.Buffer
	f := NewFrameWriter(&b, nil)
	for _, err := range []error{f.Header(timestamp.Vector{}, -1), f.Row(Row{DocID: []byte("a")}),
		f.Row(Row{DocID: []byte("b")}), f.End()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	body := &endSeen{Reader: &b}
	r, err := ReadFrames(body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err != nil || body.seen {
		t.Fatal(err, body.seen)
	}
	(&run{c: &Coordinator{}}).closeAll([]*remote{{stream: r}}, func() {})
	if !body.seen || !body.closed {
		t.Errorf("end seen: %v, closed: %v", body.seen, body.closed)
	}
}

// TestClosedFrames: an answer that is closed, even twice, gives its buffer to one other answer, and has no rows any
// more.
func TestClosedFrames(t *testing.T) {
	open := func(id string) *FrameReader {
		t.Helper()
		rows := make([]Row, 100)
		for i := range rows {
			rows[i] = Row{Key: bytes.Repeat([]byte(id), 1000), DocID: fmt.Appendf(nil, "%s%d", id, i)}
		}
		r, err := ReadFrames(io.NopCloser(bytes.NewReader(writeFrames(t, rows, (*FrameWriter).End))))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for range 100 { // a pool may drop what it is given
		old := open("c")
		if _, err := old.Next(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if row, err := old.Next(); err == nil {
			t.Fatalf("row %s of a closed answer", row.DocID)
		}
		a, b := open("a"), open("b")
		for i := range 100 {
			for id, r := range map[string]*FrameReader{"a": a, "b": b} {
				if row, err := r.Next(); err != nil || string(row.DocID) != fmt.Sprint(id, i) {
					t.Fatalf("row %d of %s: %s, %v", i, id, row.DocID, err)
				}
			}
		}
		for _, r := range []*FrameReader{a, b} {
			if _, err := r.Next(); !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// endSeen records whether its end was read.
type endSeen struct {
	io.Reader
	seen, closed bool
}

func (e *endSeen) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	e.seen = e.seen || err == io.EOF
	return n, err
}

func (e *endSeen) Close() error {
	e.closed = true
	return nil
}
