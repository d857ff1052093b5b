package partition_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/index"
	"tidemark/partition"
)

// sampled distributes numbers over slices of a range, divided at the bounds, and takes a sample of each, with limits
// for the entries and the keys.
func sampled(rows, bounds []int, entries, keys int) (all []partition.Sample) {
	draws := rand.New(rand.NewPCG(1, uint64(len(rows))))
	draws.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	samples := make([]partition.Samples, len(bounds)+1)
	all = make([]partition.Sample, len(bounds)+1)
	for _, n := range rows {
		slice, at := slices.BinarySearch(bounds, n)
		if at {
			slice++
		}
		if s := &all[slice]; s.Rows < int64(entries) {
			samples[slice].Add(collate.AppendInt64(nil, int64(n)))
		}
		all[slice].Rows++
	}
	for i := range all {
		var of int
		all[i].Keys, of = samples[i].Spread(keys, 1<<20)
		all[i].Of = int64(of)
	}
	return all
}

// numbers parses the values of cuts, and returns them as a range layout.
func numbers(t rapid.TB, cuts partition.Cuts) (at []int) {
	d := index.Definition{Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: uint16(len(cuts.Values) + 1),
		PartitionBy: index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"a"}, Values: cuts.Values}}
	if _, err := partition.LayoutOf(&d); err != nil {
		t.Fatalf("%s: %v", cuts.Values, err)
	}
	for _, v := range cuts.Values {
		n := 0
		if _, err := fmt.Sscan(string(v), &n); err != nil {
			t.Fatal(err)
		}
		at = append(at, n)
	}
	return at
}

// However the entries of an index are distributed over its slices, the error of a cut is at most Cuts.Error of the
// exact quantile, except for single values with more entries than a part.
func TestQuantileErrorIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.SampledFrom([]int{1, 2, 7, 100, 5000, 60_000}).Draw(t, "rows")
		skew := rapid.SampledFrom([]float64{0.25, 1, 4, 12}).Draw(t, "skew")
		rows := make([]int, total)
		for i := range rows {
			rows[i] = int(1e9 * math.Pow((float64(i)+0.5)/float64(total), skew))
		}
		sorted := slices.Clone(rows)
		bounds := rapid.SliceOfNDistinct(rapid.SampledFrom(sorted), 0, 5, rapid.ID[int]).Draw(t, "bounds")
		slices.Sort(bounds)
		n := rapid.IntRange(1, 40).Draw(t, "parts")
		entries := rapid.SampledFrom([]int{4000, 1 << 30}).Draw(t, "entries")
		keys := rapid.SampledFrom([]int{256, 4096}).Draw(t, "keys")
		cuts, err := partition.Quantiles(sampled(rows, bounds, entries, keys), n)
		if err != nil || len(cuts.Values) >= max(n, 2) {
			t.Fatalf("%d values for %d parts: %v", len(cuts.Values), n, err)
		}
		if total <= 256 && cuts.Error != 0 {
			t.Errorf("all entries are known, and the error is %v", cuts.Error)
		}
		at := numbers(t, cuts)
		if len(at) != n-1 { // few values, or one with many entries
			return
		}
		before, largest := 0, 0
		for i, v := range append(at, math.MaxInt) {
			exact := float64(i+1) / float64(n)
			have, _ := slices.BinarySearch(sorted, v)
			same := 1 // entries of this value, and of the one before, which no cut separates
			for _, r := range sorted {
				if r == v || have > 0 && r == sorted[have-1] {
					same++
				}
			}
			slack := cuts.Error + float64(same)/float64(total)
			if got := float64(have) / float64(total); i < len(at) && math.Abs(got-exact) > slack {
				t.Fatalf("%d of %d: %v of %d entries lie before %d, want %v, at most %v off", i, n, got, total, v, exact,
					slack)
			}
			largest, before = max(largest, have-before), have
		}
		if got := float64(largest) / float64(total); math.Abs(got-cuts.Largest) > 2*cuts.Error+2/float64(total) {
			t.Errorf("the largest slice has %v of the entries, but Largest is %v, at most %v off", got,
				cuts.Largest, cuts.Error)
		}
	})
}

// A value with more rows than a part is separated from what precedes and follows it.
func TestQuantilesOfUnevenValues(t *testing.T) {
	for name, c := range map[string]struct {
		rows string // the leading digit of each row, ascending
		n    int
		want string
		// fraction of the rows in the largest slice
		largest float64
	}{
		"most have the lowest":      {"1111111123", 2, "2", 0.8},
		"the same, into more parts": {"1111111123", 4, "2", 0.8},
		"most have one between":     {"1555555559", 4, "5,9", 0.8},
		"most have the highest":     {"1299999999", 4, "9", 0.8},
		"all have one":              {"7777777777", 4, "", 1},
		"even":                      {"11223344", 4, "2,3,4", 0.25},
	} {
		for _, bounds := range [][]int{nil, {2, 3}} {
			var rows []int
			for _, r := range c.rows {
				rows = append(rows, int(r-'0'))
			}
			cuts, err := partition.Quantiles(sampled(rows, bounds, 100, 100), c.n)
			var got []string
			for _, v := range cuts.Values {
				got = append(got, string(v))
			}
			if strings.Join(got, ",") != c.want || math.Abs(cuts.Largest-c.largest) > 1e-9 || err != nil {
				t.Errorf("%s, cut at %v: %v, the largest %v, %v; want %s, %v", name, bounds, got, cuts.Largest, err,
					c.want, c.largest)
			}
		}
	}
}

// A slice without a sample adds its share of all entries to the error; without entries there are no values.
func TestQuantilesWithoutSample(t *testing.T) {
	if cuts, err := partition.Quantiles(make([]partition.Sample, 3), 4); err != nil || len(cuts.Values) > 0 ||
		cuts.Largest != 0 || cuts.Error != 0 {
		t.Errorf("%+v, %v", cuts, err)
	}
	of := sampled([]int{1, 2, 3, 4}, nil, 10, 10)
	cuts, err := partition.Quantiles(append(of, partition.Sample{Rows: 12}), 2)
	if err != nil || cuts.Error != 0.75 {
		t.Errorf("%+v, %v", cuts, err)
	}
	none := partition.Sample{Rows: 2, Of: 2, Keys: [][]byte{{0xee}, {0xff}}}
	if cuts, err := partition.Quantiles([]partition.Sample{none}, 2); err == nil {
		t.Errorf("keys that are none: %+v", cuts)
	}
}

// The sample is bounded by number and by bytes, and then represents all entries.
func TestSamplesAreBounded(t *testing.T) {
	for name, c := range map[string]struct{ rows, bytes int }{
		"many": {5*partition.MaxSamples + 3, 20}, "long": {20_000, 3 * partition.MaxBound},
	} {
		var s partition.Samples
		key := make([]byte, c.bytes)
		for i := range c.rows {
			copy(key, fmt.Sprintf("%09d", i*7919%c.rows))
			s.Add(key)
		}
		keys, of := s.Spread(100, 1<<20)
		if len(keys) != 100 || of > partition.MaxSamples || of < 1000 || of == c.rows {
			t.Fatalf("%s: %d keys of %d", name, len(keys), of)
		}
		for i, k := range keys {
			n := 0
			if _, err := fmt.Sscanf(string(k[:9]), "%09d", &n); err != nil || len(k) > partition.MaxBound {
				t.Fatalf("%s: %d bytes, %v", name, len(k), err)
			}
			if got, want := float64(n)/float64(c.rows), float64(i)/100; math.Abs(got-want) > 0.06 {
				t.Errorf("%s: key %d of 100 is at %v", name, i, got)
			}
		}
	}
	var s partition.Samples
	for range 100 {
		s.Add(make([]byte, 1000))
	}
	if keys, of := s.Spread(100, 30_000); len(keys) != 25 || of != 100 {
		t.Errorf("%d keys of %d for 30,000 bytes", len(keys), of)
	}
}
