package rebalance

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"tidemark/index"
	"tidemark/partition"
)

// TestGrowth runs testdata/growth: "bounds" sets when an index is split automatically, "look" is an observation with
// one index per line, its slices' bytes, and what else is in progress; it prints what is split, and why others wait.
func TestGrowth(t *testing.T) {
	datadriven.Walk(t, "testdata/growth", func(t *testing.T, path string) {
		g, bounds, now := &Growing{}, GrowthBounds{}, int64(1_000_000)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number := func(key string) (n int64) {
				d.MaybeScanArgs(t, key, &n)
				return n
			}
			switch d.Cmd {
			case "bounds":
				bounds = GrowthBounds{Above: uint64(number("above")), Rate: uint64(number("rate")),
					After: number("after"), Rest: number("rest"), Calm: number("calm")}
				return ""
			case "leader":
				g = &Growing{}
				return ""
			case "look":
				now += number("later")
				var all []Sizes
				for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
					all = append(all, sizesOf(t, strings.Fields(line)))
				}
				busy := ""
				if d.HasArg("busy") {
					busy = "something else goes on"
				}
				next, waits := g.Look(now, bounds, all, busy)
				merge, later := g.Shrink(now, bounds, all, busy)
				if text := shownGrowth(next, waits) + shownMerges(merge, later); text != "" {
					return text
				}
				return "nothing\n"
			}
			return "unknown command\n"
		})
	})
}

// sizesOf parses an index: its id, its properties, and the bytes of its slices (10x4: four of 10).
func sizesOf(t *testing.T, f []string) Sizes {
	id, err := strconv.ParseUint(f[0], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	s := Sizes{Index: index.ID(id), Known: true, AgeMS: 1 << 40}
	for _, a := range f[1:] {
		k, v, _ := strings.Cut(a, "=")
		switch k {
		case "range":
			s.Ranges = true
		case "hash":
			s.Folds = true
		case "least":
			n, _ := strconv.ParseUint(v, 10, 16)
			s.Least = uint16(n)
		case "unknown":
			s.Known = false
		case "rests":
			s.Rests = true
		case "blocked":
			s.Blocked = "it is blocked"
		case "age":
			s.AgeMS, err = strconv.ParseInt(v, 10, 64)
		case "bytes":
			s.Bytes = numbersOf(t, v)
		case "rates":
			s.Rates = numbersOf(t, v)
		default:
			t.Fatalf("%q", a)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if s.Least == 0 {
		s.Least = uint16(max(len(s.Bytes), len(s.Rates)))
	}
	return s
}

// numbersOf parses one number per slice.
func numbersOf(t *testing.T, list string) (all []uint64) {
	for text := range strings.SplitSeq(list, ",") {
		number, times, many := strings.Cut(text, "x")
		n := 1
		if many {
			n, _ = strconv.Atoi(times)
		}
		b, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, slices.Repeat([]uint64{b}, n)...)
	}
	return all
}

func shownGrowth(next *Split, waits map[index.ID]string) string {
	var w strings.Builder
	if next != nil {
		fmt.Fprintf(&w, "split %d into %d: %s\n", next.Index, next.Partitions, next.Cause)
		for _, h := range next.Hot {
			fmt.Fprintf(&w, "  slice %d, of %d a second, into %d\n", h.Slice, h.Rate, h.Parts)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(waits)) {
		fmt.Fprintf(&w, "%d waits: %s\n", id, waits[id])
	}
	return w.String()
}

func shownMerges(next *Split, waits map[index.ID]string) string {
	var w strings.Builder
	if next != nil {
		fmt.Fprintf(&w, "merge %d into %d: %s\n", next.Index, next.Partitions, next.Cause)
		for _, slice := range next.Joins {
			fmt.Fprintf(&w, "  slice %d joins the one before\n", slice)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(waits)) {
		fmt.Fprintf(&w, "%d is not merged: %s\n", id, waits[id])
	}
	return w.String()
}

// Whatever sizes its slices have, an index that is split gets more slices, never more than the maximum, and the mean
// is then within the bound, if that many slices suffice.
func TestGrowthAddsEnoughSlices(t *testing.T) {
	for _, ranges := range []bool{false, true} {
		for slices := 1; slices <= partition.MaxPartitions; slices = 3*slices/2 + 1 {
			for _, each := range []uint64{11, 20, 1000, 1 << 40} {
				s := Sizes{Index: 1, Known: true, Ranges: ranges, AgeMS: 1 << 40}
				for range slices {
					s.Bytes = append(s.Bytes, each)
				}
				g, bounds := Growing{}, GrowthBounds{Above: 10, After: 1, Rest: 1}
				g.Look(0, bounds, []Sizes{s}, "")
				next, waits := g.Look(1, bounds, []Sizes{s}, "")
				switch {
				case next == nil:
					if ranges && slices < partition.MaxPartitions || 2*slices <= partition.MaxPartitions {
						t.Errorf("%d slices of %d, ranges %v: %v", slices, each, ranges, waits)
					}
				case int(next.Partitions) <= slices || next.Partitions > partition.MaxPartitions:
					t.Errorf("%d slices of %d, ranges %v: %+v", slices, each, ranges, next)
				case next.Total/uint64(next.Partitions) > 10 && 2*int(next.Partitions) <= partition.MaxPartitions:
					t.Errorf("%d slices of %d, ranges %v: %d are too few", slices, each, ranges, next.Partitions)
				}
			}
		}
	}
}
