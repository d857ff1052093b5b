package cli

import (
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/manager/api/v1"
)

// TestListOfASplitIndex checks that an index that is being split is one line of the table, with the progress of the
// split, and that JSON has both indexes. A successor whose index is not listed has a line of its own.
func TestListOfASplitIndex(t *testing.T) {
	list := v1.IndexList{Indexes: []v1.IndexInfo{
		{ID: 3, Bucket: "world", Name: "by_name", State: index.Maintenance, Progress: 100,
			Split: &v1.SplitInfo{ID: 8, State: index.Backfill, Progress: 41}},
		{ID: 8, Bucket: "world", Name: "by_name", State: index.Backfill, Progress: 41, Replaces: 3},
		{ID: 9, Bucket: "world", Name: "other", State: index.Backfill, Replaces: 2},
	}}
	var table, all strings.Builder
	if err := printIndexes(&table, formatTable, list); err != nil {
		t.Fatal(err)
	}
	if err := printIndexes(&all, formatJSON, list); err != nil {
		t.Fatal(err)
	}
	if got := table.String(); strings.Count(got, "by_name") != 1 || !strings.Contains(got, "ready, being split 41%") ||
		!strings.Contains(got, "to replace 2") {
		t.Errorf("\n%s", got)
	}
	if strings.Count(all.String(), `"by_name"`) != 2 {
		t.Errorf("%s", all.String())
	}
}
