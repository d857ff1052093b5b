package partition_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
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

// ofRange returns an index that is partitioned by a range of its only key, divided at these values.
func ofRange(desc bool, values ...json.RawMessage) *index.Definition {
	return &index.Definition{Keys: []index.KeyExpr{{Expr: "a", Desc: desc}}, Partitions: uint16(len(values) + 1),
		PartitionBy: index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"a"}, Values: values}}
}

// provider returns the provider of an index.
func provider(t interface{ Fatal(...any) }, d *index.Definition) partition.TopologyProvider {
	l, err := partition.LayoutOf(d)
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Provider()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestJoined(t *testing.T) {
	values := raws("10", "20", `"m"`, `"z"`)
	for _, c := range []struct {
		desc  bool
		joins []index.SliceID
		want  []json.RawMessage // nil: refused
	}{
		{false, []index.SliceID{1, 4}, raws("20", `"m"`)},
		{true, []index.SliceID{1, 2}, raws("10", "20")},
		{true, []index.SliceID{4}, raws("20", `"m"`, `"z"`)},
		{false, nil, values},
		{false, []index.SliceID{0}, nil},
		{false, []index.SliceID{5}, nil},
		{true, []index.SliceID{2, 2}, nil},
		{true, []index.SliceID{3, 1}, nil},
	} {
		got, err := partition.Joined(ofRange(c.desc, values...), c.joins)
		if c.want == nil && !errors.Is(err, partition.ErrDefinition) || c.want != nil && err != nil ||
			!slices.EqualFunc(got, c.want, same) {
			t.Errorf("%v of descending keys %v: %s, %v", c.joins, c.desc, got, err)
		}
	}
}

// Whatever slices are joined, the entries of a joined slice are in the slice of its predecessor, and all others stay
// in one slice with those that shared theirs, ascending and descending.
func TestJoinedSlicesKeepTheirEntries(t *testing.T) {
	all := raws("1", "5", "10", "20", `"a"`, `"m"`, `"z"`, "[1]")
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, len(all)).Draw(t, "values")
		before := ofRange(rapid.Bool().Draw(t, "desc"), all[:n]...)
		into := make([]index.SliceID, n+1) // slice after the join, by slice before
		var joins []index.SliceID
		for i := 1; i <= n; i++ {
			if into[i] = into[i-1] + 1; len(joins) < n-1 && rapid.Bool().Draw(t, "joined") {
				into[i], joins = into[i-1], append(joins, index.SliceID(i))
			}
		}
		values, err := partition.Joined(before, joins)
		if err != nil {
			t.Fatal(err)
		}
		old, now := provider(t, before), provider(t, ofRange(before.Keys[0].Desc, values...))
		for _, v := range append(raws("null", "0", "7", "15", `"b"`, `"zz"`, "[0]", "[2]"), all...) {
			key, err := collate.AppendComposite(nil, [][]byte{v}, before.Desc())
			if err != nil {
				t.Fatal(err)
			}
			kv := partition.KeyVersion{Key: key, DocID: []byte("d")}
			if was, is := old.Slice(kv), now.Slice(kv); is != into[was] {
				t.Fatalf("%s was in slice %d and is in %d, not %d; joined %v", v, was, is, into[was], joins)
			}
		}
	})
}

// For every scheme with Folds, slices i and n+i of 2n hold what slice i of n does.
func TestFolds(t *testing.T) {
	folds := 0
	for _, by := range []index.PartitionBy{{}, {Scheme: index.PartitionHash, Exprs: []string{"a"}}} {
		if kind, _ := partition.KindBy(by.Scheme); !kind.Folds {
			continue
		}
		folds++
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.Uint16Range(1, partition.MaxPartitions/2).Draw(t, "slices")
			d := &index.Definition{Keys: []index.KeyExpr{{Expr: "a"}}, PartitionBy: by, Partitions: n}
			doc, err := json.Marshal(rapid.String().Draw(t, "value"))
			if err != nil {
				t.Fatal(err)
			}
			key, err := collate.AppendComposite(nil, [][]byte{doc}, d.Desc())
			if err != nil {
				t.Fatal(err)
			}
			kv := partition.KeyVersion{Key: key, DocID: doc}
			few := provider(t, d).Slice(kv)
			d.Partitions = 2 * n
			if many := provider(t, d).Slice(kv); many%index.SliceID(n) != few {
				t.Fatalf("slice %d of %d, slice %d of %d", few, n, many, 2*n)
			}
		})
	}
	if folds != 2 {
		t.Errorf("%d schemes fold", folds)
	}
}
