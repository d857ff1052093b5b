package scan

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/manager/api/v1"
)

// TestExplain: every requested slice is listed with the rows taken from it, failures with their errors, and an answer
// without the option has none of it.
func TestExplain(t *testing.T) {
	f := newCluster(4, 1, 3)
	f.view.Definition.Keys = nil
	for n := range f.rows { // rows with empty keys
		for s := range f.rows[n] {
			for i := range f.rows[n][s] {
				f.rows[n][s][i].Key = nil
			}
			slices.SortFunc(f.rows[n][s], Row.Compare)
		}
	}
	c := f.coordinator()
	for _, count := range []bool{false, true} {
		for _, wanted := range []bool{false, true} {
			spec, err := c.Prepare(5, Request{Consistency: Any, Stability: ScanStability, Explain: wanted})
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			enc := NewEncoder(&b, nil, nil, spec)
			var res Result
			if count {
				res, err = c.Count(context.Background(), spec)
				b.Write(AppendCount(nil, res))
			} else if res, err = c.Scan(context.Background(), spec, enc); err == nil {
				err = enc.End(res)
			}
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(b.String()), "\n")
			var end struct{ Explain *v1.ScanExplain }
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &end); err != nil || (end.Explain != nil) != wanted {
				t.Fatalf("%s: %v", lines[len(lines)-1], err)
			}
			if !wanted {
				continue
			}
			var requests []index.SliceID
			var rows int64
			for _, p := range end.Explain.Parts {
				requests, rows = append(requests, p.Slices...), rows+p.Rows
				if len(p.Copies) != len(p.Slices) || p.Error != "" || p.Indexer == "" {
					t.Errorf("%+v", p)
				}
			}
			slices.Sort(requests)
			if !slices.Equal(requests, []index.SliceID{0, 1, 2, 3}) || rows != res.Rows || end.Explain.Slices != 4 ||
				end.Explain.Of != 4 || end.Explain.Attempts != 1 {
				t.Errorf("count %v: %+v of %d rows", count, end.Explain, res.Rows)
			}
		}
	}
}

// TestExplainNamesReplacedIndexers: a copy that no longer has the timestamp is listed with its error, and so is its
// replacement.
func TestExplainNamesReplacedIndexers(t *testing.T) {
	f := newCluster(1, 2, 3)
	c := f.coordinator()
	spec, err := c.Prepare(5, Request{Consistency: Any, Stability: ScanStability, Explain: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.view.Topology.Copies { // each in turn, as either may be queried first
		id := f.view.Topology.Copies[i].ID
		f.has[id][5] = errcode.SnapshotTooOld
		var failed, good int
		for range 2 {
			res, err := c.Scan(context.Background(), spec, discard{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range res.Explain.Parts {
				if strings.Contains(p.Error, string(errcode.SnapshotTooOld)) && p.Copies[0] == id {
					failed++
				} else if p.Error == "" && p.Rows == res.Rows {
					good++
				}
			}
		}
		f.has[id][5] = ""
		if failed == 0 || good != 2 {
			t.Errorf("copy %d: %d failures are listed, %d parts were good", id, failed, good)
		}
	}
}

// TestExplainReportsWhy: how the timestamp was chosen, and which slices were not requested.
func TestExplainReportsWhy(t *testing.T) {
	f := clusterOf(rangedLayout(4), 1, 2) // below 05, 10, 15 and the rest
	f.view.Era = Era{Cluster: scanport.ClusterKey("c"), Epoch: 7}
	c := f.coordinator()
	for name, x := range map[string]struct {
		change func(s *Spec)
		chosen string
		left   []index.SliceID
	}{
		"any": {func(*Spec) {}, "the newest timestamp held by a copy of every slice", nil},
		"bounded": {func(s *Spec) { s.Ranges = []Range{{Low: []byte("06"), High: []byte("07")}} }, "the newest",
			[]index.SliceID{0, 2, 3}},
		"session": {func(s *Spec) { s.Consistency = Session }, "at or above KV's state at the request", nil},
		"seen": {func(s *Spec) { s.Seen = []scanport.Seen{seenAt(f, 5)} }, "at or above the session's last timestamp",
			nil},
		"named": {func(s *Spec) { at := refOf(4); s.At = &at }, "the timestamp of the request", nil},
	} {
		t.Run(name, func(t *testing.T) {
			spec := openSpec()
			spec.Explain = true
			spec.Progress = NewProgress(func() {})
			x.change(&spec)
			got, err := c.Scan(t.Context(), spec, discard{})
			if err != nil {
				t.Fatal(err)
			}
			e := got.Explain
			if !strings.Contains(e.Chosen, x.chosen) || !slices.Equal(e.LeftOut, x.left) ||
				(e.LeftOutWhy == "the bounds lie in the ranges of other slices") != (x.left != nil) || e.Of != 4 ||
				e.Slices+len(e.LeftOut) != e.Of || e.OpeningMS <= 0 {
				t.Errorf("%+v", e)
			}
		})
	}
}

// TestExplainCountsExaminedEntries: entries read and filtered out, on this node and on others, are exact: for a scan,
// a count, groups, and a limit that one answer satisfies; and the age of the timestamp.
func TestExplainCountsExaminedEntries(t *testing.T) {
	for name, x := range map[string]struct {
		body           string
		count          bool
		read, filtered int64
		rows           int64
	}{
		"all":                {`{}`, false, 5, 0, 5},
		"a condition":        {`{"where":[{"component":1,"in":["a","c"]}]}`, false, 5, 2, 3},
		"a condition, none":  {`{"where":[{"component":1,"equal":"x"}]}`, false, 5, 5, 0},
		"counted":            {`{"where":[{"component":1,"in":["a","c"]}]}`, true, 5, 2, 3},
		"counted as a whole": {`{}`, true, 0, 0, 5},
		"counted in a range": {`{"equal":[1]}`, true, 2, 0, 2},
		"groups": {`{"where":[{"component":1,"in":["a","b"]}],"group_by":[0],"aggregates":[{"op":"count"}]}`, false, 5, 1,
			3},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCluster(2, 1, 2)
			f.view.Definition = *definition(false, false)
			f.rows[5] = [][]Row{{keyed(1, "a"), keyed(2, "b"), keyed(3, "a")}, {keyed(1, "b"), keyed(3, "c")}}
			c := f.coordinator()
			req, err := ParseRequest([]byte(x.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Explain = true
			spec, err := c.Prepare(5, req)
			if err != nil {
				t.Fatal(err)
			}
			var res Result
			if x.count {
				res, err = c.Count(t.Context(), spec)
			} else {
				res, err = c.Scan(t.Context(), spec, discard{})
			}
			if err != nil {
				t.Fatal(err)
			}
			e := res.Explain
			var read, filtered int64
			for _, p := range e.Parts {
				read, filtered = read+p.Read, filtered+p.Filtered
			}
			if e.Read != x.read || e.Filtered != x.filtered || read != x.read || filtered != x.filtered || res.Rows != x.rows {
				t.Errorf("%d read, %d filtered, %d rows; parts %d and %d", e.Read, e.Filtered, res.Rows, read, filtered)
			}
			if e.AgeMS == nil || *e.AgeMS < 3500e3 {
				t.Errorf("age %v", e.AgeMS)
			}
		})
	}
}

// keyed returns a row of an index of two components.
func keyed(n int64, s string) Row {
	return Row{Key: collate.AppendString(collate.AppendInt64(nil, n), []byte(s)), DocID: fmt.Appendf(nil, "%d%s", n, s)}
}
