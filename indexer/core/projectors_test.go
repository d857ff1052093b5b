package core

import (
	"testing"

	"tidemark/index"
	"tidemark/wire"
)

func TestChooseProjector(t *testing.T) {
	all := []wire.ProjectorEndpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	for _, c := range []struct {
		owner index.ProjectorID
		tries int
		want  index.ProjectorID
	}{{"b", 0, "b"}, {"b", 1, "c"}, {"b", 2, "b"}, {"b", 3, "a"}, {"b", 4, "b"}, {"b", 5, "c"}, {"", 0, "a"},
		{"gone", 1, "b"}, {"", 5, "c"}} {
		if got := ChooseProjector(all, c.owner, c.tries).ID; got != c.want {
			t.Errorf("owner %q, try %d: %s, want %s", c.owner, c.tries, got, c.want)
		}
	}
	if got := ChooseProjector(all[:1], "a", 7).ID; got != "a" {
		t.Errorf("of one: %s", got)
	}
}
