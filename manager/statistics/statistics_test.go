package statistics

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"tidemark/collate"
	_ "tidemark/internal/testing/draws"
	"tidemark/partition"
	"tidemark/wire"
)

// sampled returns an entry of JSON texts; "" is MISSING.
func sampled(t interface{ Fatal(...any) }, texts ...string) (e []wire.SampledValue) {
	for _, text := range texts {
		c, err := collate.AppendMissing(nil), error(nil)
		if text != "" {
			c, err = collate.AppendJSON(nil, []byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
		e = append(e, wire.SampledValue{Value: c[:min(len(c), partition.MaxBound)], Hash: xxhash.Sum64(c)})
	}
	return e
}

func slice(t interface{ Fatal(...any) }, rows int64, values ...string) *wire.SampleReply {
	r := &wire.SampleReply{Rows: rows}
	for _, v := range values {
		r.Entries = append(r.Entries, sampled(t, v))
	}
	return r
}

func TestComponents(t *testing.T) {
	long, other := `"`+strings.Repeat("z", 5000)+`a"`, `"`+strings.Repeat("z", 5000)+`b"`
	for name, c := range map[string]struct {
		of   []*wire.SampleReply
		bins int
		want string
	}{
		"nothing": {nil, 4, `0 of 0 exact: missing 0 null 0 distinct 0 [.. ] common [] bins []`},
		"everything, in two slices": {[]*wire.SampleReply{slice(t, 4, "1", "2", "2", "null"), slice(t, 3, "", "3", `"x"`)}, 2,
			`7 of 7 exact: missing 1 null 1 distinct 4 [1.."x" ] common [2:2] bins [2:3 "x":2]`},
		"one value": {[]*wire.SampleReply{slice(t, 3, "true", "true", "true")}, 8,
			`3 of 3 exact: missing 0 null 0 distinct 1 [true..true ] common [] bins [true:3]`},
		"a value that fills bins": {[]*wire.SampleReply{slice(t, 10, "1", "5", "5", "5", "5", "5", "5", "5", "8", "9")}, 5,
			`10 of 10 exact: missing 0 null 0 distinct 4 [1..9 ] common [5:7] bins [5:8 9:2]`},
		"a sample": {[]*wire.SampleReply{slice(t, 100, "1", "2", "2", "3"), slice(t, 400, "null", "9", "10", "2")}, 4,
			`8 of 500: missing 0 null 100 distinct 11 [1..10 ] common [2:150] bins [2:175 3:25 9:100 10:100]`},
		"values too long to be shown": {[]*wire.SampleReply{slice(t, 4, `"a"`, long, other, other)}, 2,
			`4 of 4 exact: missing 0 null 0 distinct 3 ["a".. ] common [] bins [:4]`},
	} {
		s, err := Of([]string{"a"}, c.of, c.bins)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		x := &s.Components[0]
		var b strings.Builder
		fmt.Fprintf(&b, "%d of %d", s.Sampled, s.Items)
		if s.Exact {
			b.WriteString(" exact")
		}
		fmt.Fprintf(&b, ": missing %d null %d distinct %d [%s..%s ] common [", x.Missing, x.Null, x.Distinct, x.Least,
			x.Greatest)
		var common, bins []string
		for _, v := range x.Common {
			common = append(common, fmt.Sprintf("%s:%d", v.Value, v.Items))
		}
		for _, v := range x.Histogram {
			bins = append(bins, fmt.Sprintf("%s:%d", v.To, v.Items))
		}
		b.WriteString(strings.Join(common, " ") + "] bins [" + strings.Join(bins, " ") + "]")
		if b.String() != c.want || s.Exact != (s.Error == 0) {
			t.Errorf("%s:\n%s, want\n%s", name, b.String(), c.want)
		}
	}
	if _, err := Of([]string{"a", "b"}, []*wire.SampleReply{slice(t, 1, "1")}, 4); err == nil {
		t.Error("an entry without its second component is taken")
	}
}

// TestHistograms checks that bins ascend and contain all entries, and that none has more than its share and its last
// value's entries.
func TestHistograms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.IntRange(0, 40), 1, 200).Draw(t, "values")
		bins := rapid.IntRange(1, MaxBins).Draw(t, "bins")
		texts, most, counts := make([]string, len(values)), 0, map[int]int{}
		for i, v := range values {
			texts[i] = fmt.Sprint(v)
			counts[v]++
			most = max(most, counts[v])
		}
		times := rapid.Int64Range(1, 1000).Draw(t, "times")
		s, err := Of([]string{"a"}, []*wire.SampleReply{slice(t, int64(len(values))*times, texts...)}, bins)
		if err != nil {
			t.Fatal(err)
		}
		x, sum, last := &s.Components[0], uint64(0), []byte(nil)
		bound := math.Ceil(float64(s.Items)/float64(bins)) + float64(most)*float64(times) + 1
		for _, b := range x.Histogram {
			to, err := collate.AppendJSON(nil, b.To)
			if err != nil || bytes.Compare(to, last) <= 0 || float64(b.Items) > bound {
				t.Fatalf("bin %s with %d of %d entries, behind %x: %v", b.To, b.Items, s.Items, last, err)
			}
			sum, last = sum+b.Items, to
		}
		if sum != s.Items || len(x.Histogram) > bins || x.Distinct < uint64(len(counts)) || x.Distinct > s.Items {
			t.Fatalf("%d entries in %d bins, %d values: want %d, at most %d bins, and %d values at least", sum,
				len(x.Histogram), x.Distinct, s.Items, bins, len(counts))
		}
	})
}
