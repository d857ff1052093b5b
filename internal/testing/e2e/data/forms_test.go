package data

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/manager/api/v1"
)

// forms are keys of every form of arrays and dates, and of other expressions; the partitioning follows a bar.
var forms = []string{
	"DISTINCT tags", "ALL DISTINCT tags", "(ALL (tags)), n", "tags[*], n DESC", "legs[*].stops", "ALL legs[*].day, n",
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
	"OBJECT v.day:v.stops FOR v IN legs END", "{n, legs[0].day}", "self.n, self", "big, n", "big + 0, n",
	`DATE_ADD_STR(t, 1, "month")`, `DATE_DIFF_STR(t, "2024-02-29", "day"), n`, `DATE_TRUNC_STR(t, "month"), n`,
	`DISTINCT DATE_RANGE_STR(t, DATE_ADD_STR(t, 2, "week"), "week")`,
	`n, STR_TO_MILLIS(t), STR_TO_UTC(t), STR_TO_TZ(t, "Asia/Kolkata"), DATE_FORMAT_STR(t, "1111-11-11"), ` +
		`DATE_PART_STR(t, "iso_week"), DATE_DIFF_ABS_STR(t, "2024-02-29", "hour"), WEEKDAY_STR(t) DESC, ` +
		`DATE_RANGE_STR(t, DATE_ADD_STR(t, 3, "day"), "day"), STR_TO_DURATION(CONCAT(TOSTRING(n), "m"))`,
	`n, MILLIS_TO_STR(n * 1000000007), MILLIS_TO_TZ(n * 1000000007, "America/New_York"), ` +
		`DATE_ADD_MILLIS(n * 1000000007, -1, "quarter"), DATE_DIFF_MILLIS(n * 1000000007, 0, "quarter"), ` +
		`DATE_DIFF_ABS_MILLIS(0, n * 1000000007, "week"), DATE_PART_MILLIS(n * 1000000007, "hour", "Europe/Berlin"), ` +
		`DATE_TRUNC_MILLIS(n * 1000000007, "month") DESC, WEEKDAY_MILLIS(n * 1000000007), DURATION_TO_STR(n * 1000000007), ` +
		`DATE_RANGE_MILLIS(n * 1000000007, n * 1000000007 + 90000000, "day")`,
	`n, ARRAY_APPEND(tags, n), ARRAY_AVG(tags), ARRAY_BINARY_SEARCH(ARRAY_SORT(tags), 1), ARRAY_CONCAT(tags, legs), ` +
		`ARRAY_CONTAINS(tags, 1), ARRAY_COUNT(tags), ARRAY_DISTINCT(tags), ARRAY_EXCEPT(tags, [1]), ` +
		`ARRAY_FLATTEN([tags, [legs]], 2), ARRAY_IFNULL(tags), ARRAY_INSERT(tags, 1, n), ARRAY_INTERSECT(tags, [0, 1, 2]), ` +
		`ARRAY_LENGTH(tags), ARRAY_MAX(tags), ARRAY_MIN(tags)`,
	`n, ARRAY_MOVE(tags, 0, 2), ARRAY_POSITION(tags, 1), ARRAY_PREPEND(n, tags), ARRAY_PUT(tags, 1, n), ` +
		`ARRAY_RANGE(0, n % 7), ARRAY_REMOVE(tags, 1), ARRAY_REPEAT(t, 2), ARRAY_REPLACE(tags, 1, "one"), ` +
		`ARRAY_REVERSE(tags) DESC, ARRAY_SORT(tags), ARRAY_STAR(legs), ARRAY_SUM(tags), ARRAY_SWAP(tags, 0, 1), ` +
		`ARRAY_SYMDIFF(tags, [0, 1]), ARRAY_SYMDIFFN(tags, [0, 1], [1]), ARRAY_UNION(tags, [0, 1])`,
}

// formDocument returns a document; turn 1 is its changed form.
func formDocument(n, turn int) []byte {
	times := []string{`"2024-01-31T10:20:30.120Z"`, `"2023-12-31"`, `"2024-02-29 23:59:59-05:00"`, `"10:20:30"`, `"no date"`, `1`}
	if n%9 == 8 {
		return fmt.Appendf(nil, `{"form":true,"n":%d}`, n+turn)
	}
	return fmt.Appendf(nil, `{"form":true,"n":%d,"t":%s,"text":"Word %d-b a@b.c","tags":[%d,"t%d",%d,null],"big":%d8446744073709551616,"legs":[{"day":%d,"stops":["a",%d]},{"day":%d,"stops":%s}]}`,
		n+turn, times[(n+turn)%len(times)], n%7, n%5, n%3, 1+(n+turn)%5, 1+n%3, n%4, n%6, (n+turn)%5, []string{"[]", "7", "null", `["b","c"]`}[(n+turn)%4])
}

// TestForms checks that an index of each form, built over documents and maintained as they change, has the rows of
// the slow interpreter, and that verification finds no difference.
func TestForms(t *testing.T) {
	t.Parallel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1", "--vbuckets", "16")
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
	var statements, names []string
	indexes := map[string]oracle.Index{}
	for i, keys := range forms {
		keys, by, partitioned := strings.Cut(keys, "|")
		options := `{"defer_build":true}`
		if partitioned {
			by, options = "PARTITION BY HASH("+by+")", `{"defer_build":true, "num_partition":2}`
		}
		s := fmt.Sprintf(`CREATE INDEX form_%d ON world(%s) %s WHERE form = TRUE WITH %s`, i, keys, by, options)
		parsed, err := expression.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		d := parsed[0].(*expression.CreateIndex).Definition()
		indexes[d.Name] = oracle.OfDefinition(&d)
		statements, names = append(statements, s), append(names, d.Name)
	}
	const attribute = "form_attribute"
	statements = append(statements, "CREATE INDEX "+attribute+` ON world(META().xattrs.owner.name, n) WITH {"defer_build":true}`)
	names = append(names, attribute)
	indexes[attribute] = oracle.Index{Desc: []bool{false, false}, Keys: func(id string, doc any) [][]any {
		return [][]any{{owners[id], doc.(map[string]any)["n"]}}
	}}
	statements = append(statements, "BUILD INDEX ON world("+strings.Join(names, ", ")+")")
	if _, err := c.Statement(ctx, strings.Join(statements, ";\n")); err != nil {
		t.Fatal(err)
	}
	harness.WaitReady(ctx, t, c, "world")
	each := func(do func(i int) error) {
		t.Helper()
		var g errgroup.Group
		g.SetLimit(4)
		for i := range names {
			g.Go(func() error { return do(i) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		each(func(i int) error {
			want, err := indexes[names[i]].Rows(docs)
			if err != nil {
				return err
			}
			got, err := harness.Collect(ctx, c, "world", names[i], v1.ScanRequest{Consistency: "session"})
			if err != nil {
				return fmt.Errorf("%s: %w", statements[i], err)
			}
			if diff := oracle.Diff(want, got.Keys, got.IDs); diff != "" || len(want) == 0 {
				t.Errorf("%s: %s: %d rows: %s", when, statements[i], len(want), diff)
			}
			return nil
		})
	}
	check("built")
	write(1, 2)
	check("changed")
	for i, statement := range statements {
		if strings.Contains(statement, "(big") {
			findBig(ctx, t, c, names[i])
		}
	}
	each(func(i int) error {
		found, end, err := verify(ctx, c, names[i])
		if err == nil && (len(found) > 0 || end.Documents == 0) {
			t.Errorf("%s: %+v, %+v", statements[i], found, end)
		}
		return err
	})
}

// findBig checks that a bound finds a number beyond 64 bits as it was written, and as the index shows it, whether or
// not the key is computed from it.
func findBig(ctx context.Context, t *testing.T, c *client.Client, name string) {
	t.Helper()
	const written, shown = "18446744073709551616", "1.8446744073709552e+19"
	var ids [2][]string
	for i, bound := range []string{written, shown} {
		got, err := harness.Collect(ctx, c, "world", name, v1.ScanRequest{Consistency: "session",
			Equal: []json.RawMessage{json.RawMessage(bound)}})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(got.IDs)
		ids[i] = got.IDs
	}
	if len(ids[0]) == 0 || !slices.Equal(ids[0], ids[1]) {
		t.Errorf("%s: %s finds %q, %s finds %q", name, written, ids[0], shown, ids[1])
	}
}
