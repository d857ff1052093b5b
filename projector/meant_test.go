package projector

import (
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/wire"
)

// A name refers to the index that has it, not to the successor that is being built: otherwise a subscriber would get
// every document twice. Whichever of its ids an index that was split is requested by, it is identified by its first
// one.
func TestASuccessorHasNoName(t *testing.T) {
	d := &wire.Definitions{Indexes: []index.Definition{
		{ID: 1, Name: "x", Bucket: "b", State: index.Maintenance},
		{ID: 2, Name: "x", Bucket: "b", State: index.Backfill, Replaces: 1, Origin: 1},
		{ID: 3, Name: "x", Bucket: "b", State: index.Backfill, Replaces: 4, Member: index.Member{Scope: "s", Collection: "c",
			ID: 9}},
		{ID: 5, Name: "y", Bucket: "b", State: index.Dropping},
		{ID: 7, Name: "y", Bucket: "b", State: index.Maintenance, Origin: 5},
		{ID: 8, Name: "y", Bucket: "b", State: index.Backfill, Origin: 5, Replaces: 7},
		{ID: 4, Name: "x", Bucket: "b", State: index.Maintenance, Member: index.Member{Scope: "s", Collection: "c", ID: 9}},
	}}
	for _, c := range []struct {
		words []string
		want  []index.ID
	}{{nil, []index.ID{1, 5}}, {[]string{"x"}, []index.ID{1}}, {[]string{"s.c/x"}, []index.ID{4}},
		{[]string{"y"}, []index.ID{5}}, {[]string{"5"}, []index.ID{5}}, {[]string{"7"}, []index.ID{5}},
		{[]string{"8"}, []index.ID{5}}, {[]string{"9"}, nil}, {[]string{"5", "7"}, nil}, {[]string{"7", "8"}, nil},
		{[]string{"y", "5"}, nil}} {
		got, err := indexesOf(d, "b", c.words)
		if (err != nil) != (c.want == nil) || err == nil && !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, %v; want %v", c.words, got, err, c.want)
		}
	}
}
