package partition_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/partition"
)

// values are in collation order, MISSING first. Components of keys and bounds are drawn from them.
var values = []string{"", "null", "false", "true", "-1e300", "-5", "0", "1", "1.5", "18", "9007199254740993", "1e400", `""`, `"A"`, `"a"`, `"a\u0000"`,
	`"aa"`, `"é"`, `[]`, `[1]`, `[1,[2]]`, `{}`, `{"a":1}`, `{"b":0}`}

func component(i int) []byte {
	if values[i] == "" {
		return nil
	}
	return []byte(values[i])
}

func encode(t interface{ Fatal(...any) }, desc []bool, places ...int) []byte {
	parts := make([][]byte, len(places))
	for i, p := range places {
		parts[i] = component(p)
	}
	key, err := collate.AppendComposite(nil, parts, desc)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// definition draws an index of up to three components that is partitioned by key.
func definition(t *rapid.T) (d index.Definition, cuts []int) {
	n := rapid.IntRange(1, 3).Draw(t, "components")
	for i := range n {
		d.Keys = append(d.Keys, index.KeyExpr{Expr: string(rune('a' + i)), Desc: rapid.Bool().Draw(t, "desc")})
	}
	if rapid.Bool().Draw(t, "hash") {
		d.Partitions = rapid.Uint16Range(1, 9).Draw(t, "partitions")
		d.PartitionBy.Scheme = index.PartitionHash
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 1, n, rapid.ID[int]).Draw(t, "by") {
			d.PartitionBy.Exprs = append(d.PartitionBy.Exprs, d.Keys[i].Expr)
		}
		return d, nil
	}
	d.PartitionBy = index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"a"}}
	for i := 1; i < len(values); i++ {
		if rapid.IntRange(0, 3).Draw(t, "cut") == 0 {
			cuts = append(cuts, i)
			d.PartitionBy.Values = append(d.PartitionBy.Values, json.RawMessage(values[i]))
		}
	}
	d.Partitions = uint16(len(cuts) + 1)
	return d, cuts
}

// at returns the provider of a layout that must be valid.
func at(t interface{ Fatal(...any) }, l *partition.Layout) partition.TopologyProvider {
	p, err := l.Provider()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Every key has one slice, which depends only on the components of the partitioning. MayHold of a range with a key
// includes the slice of the key. The slices of a range partitioning are in the order of the index.
func TestEveryKeyHasOneSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, cuts := definition(t)
		l, err := partition.LayoutOf(&d)
		if err != nil {
			t.Fatal(err)
		}
		desc := d.Desc()
		place := rapid.IntRange(0, len(values)-1)
		draw := func(name string) []int { return rapid.SliceOfN(place, len(d.Keys), len(d.Keys)).Draw(t, name) }
		one, other := draw("one"), draw("other")
		a, b := encode(t, desc, one...), encode(t, desc, other...)
		by := at(t, &l)
		sa, sb := by.Slice(partition.KeyVersion{Key: a}), by.Slice(partition.KeyVersion{Key: b})
		if sa >= index.SliceID(l.Partitions) || sb >= index.SliceID(l.Partitions) ||
			by.Slice(partition.KeyVersion{DocID: []byte("x"), Key: a}) != sa {
			t.Fatalf("slices %d and %d of %d", sa, sb, l.Partitions)
		}
		if d.PartitionBy.Scheme == index.PartitionHash {
			same := true
			for _, x := range d.PartitionBy.Exprs {
				same = same && one[x[0]-'a'] == other[x[0]-'a']
			}
			if same && sa != sb {
				t.Fatalf("keys that agree in %v are in slices %d and %d", d.PartitionBy.Exprs, sa, sb)
			}
		} else {
			want := 0 // in the order of values, which a descending index reverses
			for _, c := range cuts {
				if one[0] >= c != desc[0] {
					want++
				}
			}
			if int(sa) != want {
				t.Fatalf("%s (descending %v) is in slice %d of the cuts %v, want %d", values[one[0]], desc[0], sa, cuts, want)
			}
			if c := bytes.Compare(a, b); c < 0 && sa > sb || c > 0 && sa < sb {
				t.Fatalf("the slices %d and %d are not in the order of the index", sa, sb)
			}
		}
		ranges(t, &l, desc, a, sa)
	})
}

// ranges checks MayHold for ranges around a key.
func ranges(t *rapid.T, l *partition.Layout, desc []bool, key []byte, slice index.SliceID) {
	place := rapid.IntRange(0, len(values)-1)
	n := rapid.IntRange(1, len(desc))
	low := encode(t, desc, rapid.SliceOfN(place, 1, n.Draw(t, "low")).Draw(t, "low")...)
	high := encode(t, desc, rapid.SliceOfN(place, 1, n.Draw(t, "high")).Draw(t, "high")...)
	if rapid.Bool().Draw(t, "equal") { // a prefix of the key itself
		low = key
		for range rapid.IntRange(0, len(desc)-1).Draw(t, "cut") {
			low = cut(t, low, desc)
		}
		high = low
	}
	if rapid.Bool().Draw(t, "behind low") {
		low = collate.PrefixEnd(low)
	}
	if rapid.Bool().Draw(t, "behind high") {
		high = collate.PrefixEnd(high)
	}
	if rapid.IntRange(0, 5).Draw(t, "open") == 0 {
		low = nil
	}
	row := append(bytes.Clone(key), "docid"...)
	marked := make([]bool, l.Partitions)
	at(t, l).MayHold(marked, low, high)
	if in := bytes.Compare(row, low) >= 0 && (high == nil || bytes.Compare(row, high) < 0); in && !marked[slice] {
		t.Fatalf("row %x of slice %d lies in [%x, %x), for which MayHold marks %v", row, slice, low, high, marked)
	}
}

// cut removes the last component from a key.
func cut(t *rapid.T, key []byte, desc []bool) []byte {
	rest, before := key, key
	for i := 0; len(rest) > 0; i++ {
		before = rest
		var err error
		if _, rest, err = collate.Next(rest, desc[i]); err != nil {
			t.Fatal(err)
		}
	}
	return key[:len(key)-len(before)]
}

// The slices are part of the stored format.
func TestSlicesOfKeysAreFixed(t *testing.T) {
	keys := []index.KeyExpr{{Expr: "a"}, {Expr: "b", Desc: true}}
	for _, c := range []struct {
		by   index.PartitionBy
		n    uint16
		want string
	}{
		{index.PartitionBy{Scheme: index.PartitionHash, Exprs: []string{"a"}}, 1024, "620 812 500 733 944 "},
		{index.PartitionBy{Scheme: index.PartitionHash, Exprs: []string{"b", "a"}}, 1024, "620 360 25 41 379 "},
		{index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"a"}, Values: []json.RawMessage{json.RawMessage("null"), json.RawMessage(`"a"`)}}, 3, "0 1 1 2 2 "},
	} {
		d := index.Definition{Keys: keys, PartitionBy: c.by, Partitions: c.n}
		l, err := partition.LayoutOf(&d)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range [][]int{{0, 0}, {1, 0}, {9, 14}, {14, 9}, {22, 20}} {
			got += fmt.Sprint(at(t, &l).Slice(partition.KeyVersion{Key: encode(t, d.Desc(), p...)}), " ")
		}
		if got != c.want {
			t.Errorf("%v: slices %q, want %q: entries would be looked for where they are not", c.by, got, c.want)
		}
	}
}

// Scans by equality need one slice, those between values the slices between them.
func TestPruning(t *testing.T) {
	d := index.Definition{Keys: []index.KeyExpr{{Expr: "a"}, {Expr: "b"}}, Partitions: 8,
		PartitionBy: index.PartitionBy{Scheme: index.PartitionHash, Exprs: []string{"a"}}}
	hash, err := partition.LayoutOf(&d)
	if err != nil {
		t.Fatal(err)
	}
	d.PartitionBy = index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"a"},
		Values: []json.RawMessage{json.RawMessage("0"), json.RawMessage("18"), json.RawMessage(`"a"`)}}
	d.Partitions = 4
	ranged, err := partition.LayoutOf(&d)
	if err != nil {
		t.Fatal(err)
	}
	byID := partition.Layout{Scheme: partition.HashDocID, Partitions: 3}
	five, eighteen, a := encode(t, nil, 5), encode(t, nil, 9), encode(t, nil, 14)
	for name, c := range map[string]struct {
		l         *partition.Layout
		low, high []byte
		want      int
	}{
		"hash, equality":                      {&hash, eighteen, collate.PrefixEnd(eighteen), 1},
		"hash, equality in both":              {&hash, encode(t, nil, 9, 3), collate.PrefixEnd(encode(t, nil, 9, 3)), 1},
		"hash, equality and a range in b":     {&hash, encode(t, nil, 9, 3), collate.PrefixEnd(eighteen), 1},
		"hash, a range":                       {&hash, five, collate.PrefixEnd(eighteen), 8},
		"hash, open above":                    {&hash, eighteen, nil, 8},
		"range, equality":                     {&ranged, eighteen, collate.PrefixEnd(eighteen), 1},
		"range, up to a bound":                {&ranged, five, eighteen, 2},
		"range, up to a bound with it":        {&ranged, five, collate.PrefixEnd(eighteen), 3},
		"range, from a bound on":              {&ranged, eighteen, nil, 2},
		"range, from behind a bound on":       {&ranged, collate.PrefixEnd(a), nil, 1},
		"range, open":                         {&ranged, nil, nil, 4},
		"hash of the document's id, whatever": {&byID, eighteen, collate.PrefixEnd(eighteen), 3},
	} {
		marked := make([]bool, c.l.Partitions)
		at(t, c.l).MayHold(marked, c.low, c.high)
		got := 0
		for _, m := range marked {
			if m {
				got++
			}
		}
		if got != c.want {
			t.Errorf("%s: %d slices, want %d", name, got, c.want)
		}
	}
}

func TestInvalidLayouts(t *testing.T) {
	for name, l := range map[string]partition.Layout{
		"bounds of a hash": {Scheme: partition.HashDocID, Partitions: 2, Bounds: [][]byte{{1}}},
		"no components":    {Scheme: partition.HashKey, Partitions: 2},
		"components twice": {Scheme: partition.HashKey, Partitions: 2, Components: []uint16{1, 1},
			Desc: []bool{false, false}},
		"directions are missing": {Scheme: partition.HashKey, Partitions: 2, Components: []uint16{1}, Desc: []bool{false}},
		"a bound is missing":     {Scheme: partition.RangeKey, Partitions: 3, Bounds: [][]byte{{1}}},
		"bounds descend":         {Scheme: partition.RangeKey, Partitions: 3, Bounds: [][]byte{{2}, {1}}},
		"an empty bound":         {Scheme: partition.RangeKey, Partitions: 2, Bounds: [][]byte{{}}},
		"a long bound": {Scheme: partition.RangeKey, Partitions: 2,
			Bounds: [][]byte{make([]byte, partition.MaxBound+1)}},
	} {
		if err := l.Check(); !errors.Is(err, partition.ErrLayout) {
			t.Errorf("%s: %v", name, err)
		}
	}
	keys := []index.KeyExpr{{Expr: "a"}}
	for name, by := range map[string]index.PartitionBy{
		"no key":    {Scheme: index.PartitionHash, Exprs: []string{"b"}},
		"no scheme": {Scheme: "x", Exprs: []string{"a"}},
		"no JSON":   {Scheme: index.PartitionRange, Exprs: []string{"a"}, Values: []json.RawMessage{json.RawMessage("x")}},
		"values twice": {Scheme: index.PartitionRange, Exprs: []string{"a"}, Values: []json.RawMessage{json.RawMessage("1"),
			json.RawMessage("1")}},
	} {
		d := index.Definition{Keys: keys, PartitionBy: by, Partitions: uint16(len(by.Values) + 1)}
		if _, err := partition.LayoutOf(&d); err == nil {
			t.Errorf("%s passes", name)
		}
	}
}

func BenchmarkSliceOfKey(b *testing.B) {
	d := index.Definition{Keys: []index.KeyExpr{{Expr: "a"}, {Expr: "b"}}, Partitions: 8,
		PartitionBy: index.PartitionBy{Scheme: index.PartitionHash, Exprs: []string{"a", "b"}}}
	l, err := partition.LayoutOf(&d)
	if err != nil {
		b.Fatal(err)
	}
	key, err := collate.AppendComposite(nil, [][]byte{[]byte(`"US"`), []byte(`"Springfield Field"`)}, nil)
	if err != nil {
		b.Fatal(err)
	}
	p := at(b, &l)
	b.ReportAllocs()
	for b.Loop() {
		p.Slice(partition.KeyVersion{Key: key})
	}
}
