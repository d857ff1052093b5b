package wire

import (
	"errors"
	"testing"
)

func TestAFenceNeverMovesBack(t *testing.T) {
	steps := []struct {
		name string
		f    Fence
		want error
	}{
		{"the first one is taken from any cluster", Fence{"c", 1, 5, 3}, nil},
		{"an equal one is a retry", Fence{"c", 1, 5, 3}, nil},
		{"an overtaken command of the same leader", Fence{"c", 1, 5, 2}, ErrFenced},
		{"a higher counter", Fence{"c", 1, 5, 4}, nil},
		{"a deposed leader, whatever its counter", Fence{"c", 1, 4, 99}, ErrFenced},
		{"a new term begins its counter anew", Fence{"c", 1, 6, 1}, nil},
		{"a restored cluster begins its terms anew", Fence{"c", 2, 1, 1}, nil},
		{"a leader of the time before the restore", Fence{"c", 1, 7, 1}, ErrFenced},
		{"another cluster", Fence{"d", 9, 9, 9}, ErrForeignCluster},
		{"no cluster", Fence{"", 9, 9, 9}, ErrForeignCluster},
	}
	var high Fence
	for _, s := range steps {
		before := high
		next, err := high.Admit(s.f)
		if !errors.Is(err, s.want) {
			t.Errorf("%s: got %v, want %v", s.name, err, s.want)
		}
		if high = next; err != nil && high != before {
			t.Errorf("%s: a refused command moved the fence to %+v", s.name, high)
		}
	}
}
