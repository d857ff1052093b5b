package scan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/internal/testing/families"
	"tidemark/partition"
)

// errKilled ends the answering indexer.
var errKilled = errors.New("killed")

// portion is what a client has of an answer before its indexer was killed, or all of it.
type portion struct {
	rows   []string
	resume []byte // of the last message that has arrived
	end    string
}

// read takes a message like a client.
func (p *portion) read(message []byte) error {
	var a scanport.Answer
	if err := a.Read(message); err != nil {
		return err
	}
	if p.resume = nil; a.Tail == scanport.More {
		p.resume = bytes.Clone(a.Text)
	} else {
		p.end = string(a.Text)
	}
	for {
		key, id, ok, err := a.Next()
		if err != nil || !ok {
			return err
		}
		text, _ := json.Marshal(key)
		p.rows = append(p.rows, string(text)+id)
	}
}

// answer serves a request like an indexer, in messages of about that many bytes, and is killed after some messages.
func (p *portion) answer(f *fakeCluster, req Request, size, messages int) error {
	ctx, c := context.Background(), f.coordinator()
	spec, err := c.Prepare(5, req)
	if err != nil {
		return err
	}
	w := NewPacker(func(message []byte) error {
		if messages--; messages < 0 {
			return errKilled
		}
		return p.read(message)
	}, nil, &spec)
	w.full = size
	res, err := c.Scan(ctx, spec, w)
	if err == nil {
		err = w.End(res)
	}
	return err
}

// lines is answer for a client that reads lines with places. It does not pass on lines that are not followed by a
// place.
func (p *portion) lines(f *fakeCluster, req Request, size, pieces int) error {
	ctx, c := context.Background(), f.coordinator()
	spec, err := c.Prepare(5, req)
	if err != nil {
		return err
	}
	w := NewEncoder(writer(func(piece []byte) error {
		if pieces--; pieces < 0 {
			return errKilled
		}
		return p.readLines(piece)
	}), nil, nil, spec)
	w.WithPlaces()
	w.full = size
	res, err := c.Scan(ctx, spec, w)
	if err == nil {
		err = w.End(res)
	}
	return err
}

// readLines takes what was written at once.
func (p *portion) readLines(piece []byte) error {
	var rows []string
	for line := range bytes.Lines(piece) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		place, ok := scanport.PlaceLine(line)
		switch {
		case ok:
			at, err := scanport.ParsePlace(place)
			if err != nil {
				return err
			}
			p.rows, p.resume, rows = append(p.rows, rows...), at, nil
		case bytes.HasPrefix(line, []byte(`{"end"`)):
			p.rows, p.end, rows = append(p.rows, rows...), string(line), nil
		default:
			rows = append(rows, string(line))
		}
	}
	if len(rows) > 0 {
		return fmt.Errorf("%d rows have no place behind them", len(rows))
	}
	return nil
}

type writer func(b []byte) error

func (w writer) Write(b []byte) (int, error) { return len(b), w(b) }

// arrays returns rows like those of an index on an array and another field: a document has several rows, several
// documents have equal keys, one component is descending.
func arrays(t *rapid.T) *fakeCluster {
	replicas := rapid.IntRange(1, 2).Draw(t, "replicas")
	f := newCluster(rapid.IntRange(1, 4).Draw(t, "partitions"), replicas, replicas+1)
	f.view.Definition = *definition(false, true)
	for n := range f.rows {
		for s := range f.rows[n] {
			f.rows[n][s] = nil
		}
		for d := range 30 {
			doc := fmt.Appendf(nil, "d%02d", d)
			var keys [][]byte
			for e := range 1 + d%4 {
				k, err := collate.AppendComposite(nil, [][]byte{fmt.Append(nil, (d*e+int(n))%5), fmt.Append(nil, d%3)},
					[]bool{false, true})
				if err != nil {
					t.Fatal(err)
				}
				keys = append(keys, k)
			}
			slices.SortFunc(keys, bytes.Compare)
			for _, k := range slices.CompactFunc(keys, bytes.Equal) { // one entry for a key that a document has twice
				s := families.Provider(&f.view.Topology.Layout).Slice(partition.KeyVersion{DocID: doc, Key: k})
				f.rows[n][s] = append(f.rows[n][s], Row{k, doc})
			}
		}
		for _, rows := range f.rows[n] {
			slices.SortFunc(rows, Row.Compare)
		}
	}
	return f
}

// TestAnswersAreContinued: wherever the answering indexer is killed, and however often, the rows that have arrived
// and those of the other indexers together are those of one answer: none twice, none missing, in order, with the same
// end.
func TestAnswersAreContinued(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := arrays(t)
		req := Request{Reverse: rapid.Bool().Draw(t, "reverse"),
			Limit:     rapid.SampledFrom([]int64{0, 1, 9, 40, 1000}).Draw(t, "limit"),
			Offset:    rapid.SampledFrom([]int64{0, 0, 3, 50}).Draw(t, "offset"),
			Distinct:  rapid.Bool().Draw(t, "distinct"),
			Project:   rapid.SampledFrom([][]int{nil, {0}, {0, 1}}).Draw(t, "project"),
			Stability: rapid.SampledFrom([]RowStability{ScanStability, QueryStability, NoStability}).Draw(t, "stability")}
		if rapid.Bool().Draw(t, "range") {
			req.Range = &Bounds{Low: []json.RawMessage{json.RawMessage("1")}, High: []json.RawMessage{json.RawMessage("3")}}
		}
		req.WantTimestamp = rapid.Bool().Draw(t, "timestamp")
		if req.Stability != NoStability && rapid.Bool().Draw(t, "session") {
			req.Consistency = Session // which is waited for once
		}
		if err := req.check(); err != nil {
			t.Fatal(err)
		}
		var whole, parts portion
		form := rapid.SampledFrom([]func(*portion, *fakeCluster, Request, int, int) error{(*portion).answer,
			(*portion).lines}).Draw(t, "form")
		if err := form(&whole, f, req, 1<<20, 1<<20); err != nil {
			t.Fatal(err)
		}
		size := rapid.IntRange(1, 200).Draw(t, "size")
		for {
			req.Resume = parts.resume
			err := form(&parts, f, req, size, rapid.IntRange(1, 6).Draw(t, "messages"))
			if err == nil {
				break
			}
			if !errors.Is(err, errKilled) || len(parts.resume) == 0 {
				t.Fatalf("%v, behind %d rows", err, len(parts.rows))
			}
			if f.current < 9 && req.Stability != NoStability { // KV advances meanwhile, which must not be visible
				f.current++
			}
		}
		if !slices.Equal(parts.rows, whole.rows) || parts.end != whole.end {
			t.Fatalf("in parts:\n%v %s\nat once:\n%v %s", parts.rows, parts.end, whole.rows, whole.end)
		}
	})
}

// TestExpiredTimestampIsRefused: if no other indexer holds the timestamp any more, the rest is refused, and so is an
// invalid place.
func TestExpiredTimestampIsRefused(t *testing.T) {
	f := newCluster(2, 2, 3)
	f.view.Definition.Keys = nil
	var p portion
	for n := range f.rows { // rows with empty keys
		for s := range f.rows[n] {
			for i := range f.rows[n][s] {
				f.rows[n][s][i].Key = nil
			}
			slices.SortFunc(f.rows[n][s], Row.Compare)
		}
	}
	req := Request{Consistency: Any, Stability: ScanStability}
	if err := p.answer(f, req, 50, 2); !errors.Is(err, errKilled) || len(p.rows) < 2 {
		t.Fatalf("%v, %d rows", err, len(p.rows))
	}
	f.has = map[index.CopyID]map[uint64]errcode.Code{}
	req.Resume = p.resume
	err := new(portion).answer(f, req, 50, 100)
	want := fmt.Sprintf("failed after %d rows, and the others no longer hold timestamp "+
		"%s", len(p.rows), TimestampID(refOf(5)))
	if CodeOf(err) != errcode.SnapshotTooOld || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	f.view.Bucket.RollbackID++
	for i := range f.view.Held {
		f.view.Held[i].Ref.RollbackID++
	}
	if err := new(portion).answer(f, req, 50, 100); CodeOf(err) != errcode.SnapshotTooOld {
		t.Errorf("after a rollback: %v", err)
	}
	seen := scanport.Seen{Bucket: testBucket, At: refOf(5).Ref}
	for _, bad := range []string{"", "\x80", "\x05\x01\x01\x01\x01\x00\x00", "\x05\x01\x01\x01\x01\x01\x05abc"} {
		req.Resume = append(seen.AppendSeen(nil), bad...)
		if err := new(portion).answer(f, req, 50, 100); CodeOf(err) != errcode.BadRequest {
			t.Errorf("%q: %v", bad, err)
		}
	}
	long := Resume{Index: 5, Ref: refOf(5), Rows: 1, Last: Row{Key: make([]byte, scanport.MaxResume)}}
	if b := long.appendTo(nil, &seen); len(b) != 0 {
		t.Errorf("a place of %d bytes", len(b))
	}
	long.Last.Key = long.Last.Key[:scanport.MaxResume-maxResumeHead]
	long.Last.DocID = []byte{}
	b := long.appendTo(nil, &seen)
	got, err := parseResume(&f.view.Definition, b)
	if err != nil || len(b) > scanport.MaxResume || got.Ref != long.Ref || got.Last.Compare(long.Last) != 0 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
