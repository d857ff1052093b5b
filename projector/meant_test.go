package projector

import (
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/wire"
)

// What is asked for by name is the index that has the name, not the one that is being built in its place: a subscriber
// would be told of every document twice.
func TestASuccessorHasNoName(t *testing.T) {
	d := &wire.Definitions{Indexes: []index.Definition{
		{ID: 1, Name: "x", Bucket: "b", State: index.Maintenance},
		{ID: 2, Name: "x", Bucket: "b", State: index.Backfill, Replaces: 1},
		{ID: 3, Name: "x", Bucket: "b", State: index.Backfill, Replaces: 4, Member: index.Member{Scope: "s", Collection: "c",
			ID: 9}},
		{ID: 4, Name: "x", Bucket: "b", State: index.Maintenance, Member: index.Member{Scope: "s", Collection: "c", ID: 9}},
	}}
	for _, c := range []struct {
		words []string
		want  []index.ID
	}{{nil, []index.ID{1}}, {[]string{"x"}, []index.ID{1}}, {[]string{"2"}, []index.ID{2}},
		{[]string{"s.c/x"}, []index.ID{4}}} {
		if got, err := indexesOf(d, "b", c.words); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, %v; want %v", c.words, got, err, c.want)
		}
	}
}
