package api

import (
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
)

// TestCostOfBuilds checks that the size is estimated from a similar index, and that what cannot be estimated is
// listed.
func TestCostOfBuilds(t *testing.T) {
	w := newWritten(t)
	first := w.create("first", "", false, "name")
	none := (&costing{real: w.s}).of(statecontext.New(), w.s, first)
	if none.Documents != nil || none.Entries != nil || none.Bytes != nil || len(none.Unknown) != 3 ||
		none.Copies != 1 {
		t.Errorf("the first of a bucket: %+v", none)
	}
	progress := map[index.ID]core.Progress{
		w.create("ids", "", true):                                     {Items: 1000, Bytes: 50_000, Ready: 1, Copies: 1},
		w.create("by_country", "(`kind` = 1)", true, "country"):       {Items: 600, Bytes: 60_000, Ready: 1, Copies: 1},
		w.create("half", "(`kind` = 2)", true, "country"):             {Items: 7, Bytes: 7, Copies: 1}, // no copy reports
		w.create("tags", "", true, "DISTINCT ARRAY x FOR x IN t END"): {Items: 9000, Bytes: 90_000, Ready: 1, Copies: 1},
	}
	c := &costing{real: w.s, reported: progress}
	for name, x := range map[string]struct {
		where   string
		keys    []string
		entries uint64
		bound   string
		source  string
		bytes   uint64
	}{
		"same key": {"(`kind` = 1)", []string{"country"}, 600, v1.About, "by_country, which has the same key", 60_000},
		"same " +
			"first": {"(`kind` = " +
			"1)", []string{"country", "x"}, 600, v1.About, "which has the same first " +
			"component", 60_000},
		"primary":      {"", nil, 1000, v1.About, "ids, which has the same key", 50_000},
		"another":      {"", []string{"name"}, 1000, v1.AtMost, "at most one entry per document", 1000 * 200_000 / 10_600},
		"none answers": {"(`kind` = 2)", []string{"country"}, 1000, v1.AtMost, "at most one", 1000 * 200_000 / 10_600},
		"an array":     {"", []string{"ALL ARRAY x FOR x IN u END"}, 0, "", "", 0},
	} {
		before := w.s
		got := c.of(before, w.s, 0)
		if got != nil {
			t.Errorf("of no index: %+v", got)
		}
		id := w.create(strings.ReplaceAll(name, " ", "_"), x.where, false, x.keys...)
		got = c.of(before, w.s, id)
		w.s = before
		if got.Documents == nil || got.Documents.Value != 1000 || (got.Entries == nil) != (x.entries == 0) {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		if e := got.Entries; e == nil && len(got.Unknown) != 2 || e != nil && (e.Value != x.entries || e.Bound != x.bound ||
			!strings.Contains(e.Source, x.source) || got.Bytes.Value != x.bytes) {
			t.Errorf("%s: %+v, %+v", name, e, got.Bytes)
		}
	}
}

// TestCostOfDrops checks that the size of the copies is freed, and that an unchanged index costs nothing.
func TestCostOfDrops(t *testing.T) {
	w := newWritten(t)
	id := w.create("ids", "", true)
	c := &costing{real: w.s, reported: map[index.ID]core.Progress{id: {Items: 10, Bytes: 500, Ready: 1, Copies: 1}}}
	before := w.s
	if got := c.of(before, w.s, id); got != nil {
		t.Errorf("of what is as it was: %+v", got)
	}
	w.must(&statecontext.DropIndex{ID: id})
	if got := c.of(before, w.s, id); got == nil || got.Frees == nil || got.Frees.Value != 500 || got.Documents != nil {
		t.Errorf("%+v", got)
	}
	if got := c.of(w.s, w.s, id); got != nil {
		t.Errorf("of one that is being dropped: %+v", got)
	}
	if got := (&costing{real: before}).of(before, w.s, id); got.Frees != nil || len(got.Unknown) != 1 {
		t.Errorf("without a report: %+v", got)
	}
}
