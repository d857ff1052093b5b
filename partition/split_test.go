package partition_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/partition"
)

func raws(texts ...string) (all []json.RawMessage) {
	for _, t := range texts {
		all = append(all, json.RawMessage(t))
	}
	return all
}

func TestWithAndWithout(t *testing.T) {
	values := raws("10", `"m"`)
	got, err := partition.With(values, raws(`"z"`, "5", `"a"`))
	if want := raws("5", "10", `"a"`, `"m"`, `"z"`); err != nil || !slices.EqualFunc(got, want, same) {
		t.Errorf("%s, %v", got, err)
	}
	if got, err = partition.Without(got, raws(`"z"`, "5", `"a"`)); err != nil || !slices.EqualFunc(got, values, same) {
		t.Errorf("%s, %v", got, err)
	}
	for name, do := range map[string]func() ([]json.RawMessage, error){
		"there already": func() ([]json.RawMessage, error) { return partition.With(values, raws("10.0")) },
		"twice":         func() ([]json.RawMessage, error) { return partition.With(values, raws("1", "1")) },
		"no JSON":       func() ([]json.RawMessage, error) { return partition.With(values, raws("x")) },
		"unknown":       func() ([]json.RawMessage, error) { return partition.Without(values, raws("11")) },
		"gone twice":    func() ([]json.RawMessage, error) { return partition.Without(values, raws("10", "10")) },
	} {
		if got, err := do(); !errors.Is(err, partition.ErrDefinition) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func same(a, b json.RawMessage) bool { return string(a) == string(b) }

// However many rows come, no part has much more than its share, but for values that alone have more.
func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SampledFrom([]int{1, 2, 7, 100, partition.MaxSamples - 1, partition.MaxSamples,
			5*partition.MaxSamples + 3}).Draw(t, "rows")
		different := rapid.IntRange(1, rows).Draw(t, "different")
		n, desc := rapid.IntRange(1, 40).Draw(t, "parts"), rapid.Bool().Draw(t, "desc")
		var s partition.Samples
		for i := range rows {
			if desc {
				i = rows - 1 - i
			}
			if s.Next() {
				s.Keep(fmt.Append(nil, i*different/rows))
			}
		}
		cuts, err := s.Quantiles(n, desc)
		values := cuts.Values
		if err != nil || len(values) >= max(n, 2) || len(values) >= different {
			t.Fatalf("%d values for %d parts of %d: %v", len(values), n, different, err)
		}
		d := index.Definition{Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: uint16(len(values) + 1),
			PartitionBy: index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"a"}, Values: values}}
		if _, err := partition.LayoutOf(&d); err != nil {
			t.Fatalf("%s: %v", values, err)
		}
		if different < rows || rows < n { // of one value there may be many
			return
		}
		last := 0
		for i := range len(values) + 1 {
			next := rows
			if i < len(values) {
				if _, err := fmt.Sscan(string(values[i]), &next); err != nil {
					t.Fatal(err)
				}
			}
			if share := rows/n + 1; next-last > share+rows*4/partition.MaxSamples+1 {
				t.Fatalf("a part of %d rows of %d in %d parts: %s", next-last, rows, n, values)
			}
			last = next
		}
	})
}

// A value that alone has more rows than a part is cut off from what stands before and behind it.
func TestQuantilesOfUnevenValues(t *testing.T) {
	for name, c := range map[string]struct {
		rows string // the leading digit of each row, ascending
		n    int
		want string
		// part of the rows that the largest slice has
		largest float64
	}{
		"most have the lowest":      {"1111111123", 2, "2", 0.8},
		"the same, into more parts": {"1111111123", 4, "2", 0.8},
		"most have one between":     {"1555555559", 4, "5,9", 0.8},
		"most have the highest":     {"1299999999", 4, "9", 0.8},
		"all have one":              {"7777777777", 4, "", 1},
		"even":                      {"11223344", 4, "2,3,4", 0.25},
	} {
		for _, desc := range []bool{false, true} {
			var s partition.Samples
			rows := []byte(c.rows)
			if desc {
				slices.Reverse(rows)
			}
			for i := range rows {
				if s.Next() {
					s.Keep(rows[i : i+1])
				}
			}
			cuts, err := s.Quantiles(c.n, desc)
			var got []string
			for _, v := range cuts.Values {
				got = append(got, string(v))
			}
			if strings.Join(got, ",") != c.want || cuts.Largest != c.largest || err != nil {
				t.Errorf("%s, descending %v: %v, the largest %v, %v; want %s, %v", name, desc, got, cuts.Largest, err, c.want,
					c.largest)
			}
		}
	}
}
