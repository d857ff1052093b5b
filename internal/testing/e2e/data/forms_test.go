package data

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// forms are keys of every form of arrays and dates, and of what else a key may be; behind a bar what they are
// partitioned by.
var forms = []string{
	"DISTINCT tags", "ALL DISTINCT tags", "(ALL (tags)), n", "tags[*], n DESC", "legs[*].stops",
	"DISTINCT ARRAY v FOR v IN tags WHEN ISSTRING(v) END DESC",
	"n, DISTINCT ARRAY v.day FOR v IN legs END", "DISTINCT ARRAY (DISTINCT ARRAY s FOR s IN v.stops END) FOR v IN legs " +
		"END", "ALL ARRAY (ALL v.stops) FOR v IN legs WHEN v.day < 3 END, n",
	"DISTINCT ARRAY FLATTEN_KEYS(v.day DESC, v.stops) FOR v IN legs END, n", "n DESC, ALL ARRAY FLATTEN_KEYS(v.gone, v.day) FOR v IN legs " +
		"WHEN v.day > 1 END, t",
	"DISTINCT ARRAY FLATTEN_KEYS(v.gone INCLUDE MISSING, v.day DESC) FOR v IN legs END, n", "ALL ARRAY (ALL ARRAY " +
		"FLATTEN_KEYS(s, v.day DESC) FOR s IN v.stops END) FOR v IN legs END", "DISTINCT ARRAY FLATTEN_KEYS(v.day, v.stops) FOR v IN legs " +
		"END|DISTINCT ARRAY FLATTEN_KEYS(v.stops) FOR v IN legs END",
	"n|t", "DISTINCT tags, n|LOWER(text), legs[0].day", "t|META().id, n", "IFMISSING(t, 0)|gone.gone",
	"DISTINCT ARRAY i FOR i:v IN tags END", "DISTINCT ARRAY [v, w.day] FOR v IN tags, w IN legs END",
	"ALL ARRAY v FOR v WITHIN legs END", "DISTINCT PAIRS(self)", "DISTINCT PAIRS({n, t})",
	"DISTINCT TOKENS(self)", `ALL TOKENS(text, {"case": "lower", "specials": true})`, "DISTINCT OBJECT_NAMES(self)", "DISTINCT tags INCLUDE MISSING, n", "gone INCLUDE MISSING DESC, n", "tags[1:]", "legs[0:1], n",
	"OBJECT v.day:v.stops FOR v IN legs END", "{n, legs[0].day}", "self.n, self", "big, n",
	`DATE_ADD_STR(t, 1, "month")`, `DATE_DIFF_STR(t, "2024-02-29", "day"), n`, `DATE_FORMAT_STR(t, "1111-11-11")`, `DATE_PART_STR(t, "iso_week"), t`, `DATE_TRUNC_STR(t, "month"), n`, "STR_TO_MILLIS(t)", "STR_TO_UTC(t)",
	`MILLIS_TO_STR(n * 1000000007)`, `MILLIS_TO_TZ(n * 1000000007, "America/New_York")`, `STR_TO_TZ(t, "Asia/Kolkata")`, "WEEKDAY_STR(t)", `DATE_RANGE_STR(t, DATE_ADD_STR(t, 3, "day"), "day")`,
	`DISTINCT DATE_RANGE_STR(t, DATE_ADD_STR(t, 2, "week"), "week")`, `DATE_DIFF_MILLIS(n * 1000000007, 0, "quarter"), n`,
}

// formDocument is one of the documents; turn 1 is what they become.
func formDocument(n, turn int) []byte {
	times := []string{`"2024-01-31T10:20:30.120Z"`, `"2023-12-31"`, `"2024-02-29 23:59:59-05:00"`, `"10:20:30"`, `"no date"`, `1`}
	if n%9 == 8 {
		return fmt.Appendf(nil, `{"form":true,"n":%d}`, n+turn)
	}
	return fmt.Appendf(nil, `{"form":true,"n":%d,"t":%s,"text":"Word %d-b a@b.c","tags":[%d,"t%d",%d,null],"big":%d8446744073709551616,"legs":[{"day":%d,"stops":["a",%d]},{"day":%d,"stops":%s}]}`,
		n+turn, times[(n+turn)%len(times)], n%7, n%5, n%3, (n+turn)%5, 1+n%3, n%4, n%6, (n+turn)%5, []string{"[]", "7", "null", `["b","c"]`}[(n+turn)%4])
}

// TestForms: an index of each form of arrays and dates, built over documents and kept as they change, has the rows that
// the slow interpreter says, and verification finds no difference.
func TestForms(t *testing.T) {
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1")
	ctx, cancel := context.WithTimeout(t.Context(), verifyTime)
	defer cancel()
	c, kv := up.Client(), up.KV(ctx)
	docs, owners := map[string][]byte{}, map[string]string{}
	write := func(turn, every int) {
		for n := 0; n < 120; n += every {
			id := fmt.Sprintf("form::%d", n)
			docs[id] = formDocument(n, turn)
			owners[id] = fmt.Sprint("owner", (n+turn)%5)
			if _, err := kv.Set(ctx, id, docs[id], kvclient.StoreOptions{
				Xattrs: mcbp.AppendXattr(nil, "owner", fmt.Appendf(nil, `{"name":%q}`, owners[id]))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(0, 1)
	var statements []string
	indexes := map[string]oracle.Index{}
	for i, keys := range forms {
		keys, by, partitioned := strings.Cut(keys, "|")
		if partitioned {
			by = "PARTITION BY HASH(" + by + ")"
		}
		s := fmt.Sprintf(`CREATE INDEX form_%d ON world(%s) %s WHERE form = TRUE WITH {"num_partition":2}`, i, keys, by)
		parsed, err := expression.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		d := parsed[0].(*expression.CreateIndex).Definition()
		indexes[d.Name] = oracle.OfDefinition(&d)
		statements = append(statements, s)
	}
	const attribute = "form_attribute"
	statements = append(statements, "CREATE INDEX "+attribute+" ON world(META().xattrs.owner.name, n)")
	indexes[attribute] = oracle.Index{Desc: []bool{false, false}, Keys: func(id string, doc any) [][]any {
		return [][]any{{owners[id], doc.(map[string]any)["n"]}}
	}}
	names := []string{attribute}
	for i := range forms {
		names = append(names, fmt.Sprintf("form_%d", i))
	}
	harness.Create(ctx, t, c, statements...)
	check := func(when string) {
		for i, keys := range append([]string{attribute}, forms...) {
			name := names[i]
			want, err := indexes[name].Rows(docs)
			if err != nil {
				t.Fatal(err)
			}
			got, err := harness.Collect(ctx, c, "world", name, client.ScanRequest{Consistency: "session"})
			if err != nil {
				t.Fatalf("%s: %v", keys, err)
			}
			if diff := oracle.Diff(want, got.Keys, got.IDs); diff != "" || len(want) == 0 {
				t.Errorf("%s, (%s): %d rows: %s", when, keys, len(want), diff)
			}
		}
	}
	check("built")
	write(1, 2)
	check("changed")
	for _, name := range names {
		if found, end := verified(ctx, t, c, name); len(found) > 0 || end.Documents == 0 {
			t.Errorf("%s: %+v, %+v", name, found, end)
		}
	}
}
