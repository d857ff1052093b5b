package wire

import (
	"errors"
	"testing"

	"tidemark/errcode"
)

func fence(cluster string, epoch, term, counter uint64) Fence {
	return Fence{ClusterID: cluster, Epoch: epoch, Term: term, Counter: counter}
}

// to returns the fence of a command for the process with this boot id.
func to(boot string, f Fence) Fence {
	f.Boot = boot
	return f
}

// TestAFenceNeverMovesBack checks that a receiver obeys the newest leader, in the order of its commands, and none that
// is meant for another process.
func TestAFenceNeverMovesBack(t *testing.T) {
	steps := []struct {
		name string
		f    Fence
		want error
	}{
		{"the first one is taken from any cluster", fence("c", 1, 5, 3), nil},
		{"an equal one is a retry", fence("c", 1, 5, 3), nil},
		{"an overtaken command of the same leader", fence("c", 1, 5, 2), ErrFenced},
		{"a higher counter", fence("c", 1, 5, 4), nil},
		{"a deposed leader, whatever its counter", fence("c", 1, 4, 99), ErrFenced},
		{"a new term begins its counter anew", fence("c", 1, 6, 1), nil},
		{"a restored cluster begins its terms anew", fence("c", 2, 1, 1), nil},
		{"a leader of the time before the restore", fence("c", 1, 7, 1), ErrFenced},
		{"a command for this process", to("mine", fence("c", 2, 1, 2)), nil},
		{"a command for another process", to("other", fence("c", 2, 1, 3)), errcode.AnotherProcess},
		{"a command of a newer leader for another process", to("other", fence("c", 3, 1, 1)), errcode.AnotherProcess},
		{"what follows is no older than a command for another process", fence("c", 2, 1, 2), nil},
		{"another cluster", fence("d", 9, 9, 9), ErrForeignCluster},
		{"no cluster", fence("", 9, 9, 9), ErrForeignCluster},
	}
	var high Fence
	for _, s := range steps {
		before := high
		next, err := high.Admit("mine", s.f)
		if !errors.Is(err, s.want) {
			t.Errorf("%s: got %v, want %v", s.name, err, s.want)
		}
		if high = next; err != nil && high != before {
			t.Errorf("%s: a refused command moved the fence to %+v", s.name, high)
		}
		if high.Boot != "" {
			t.Errorf("%s: a boot id is kept: %+v", s.name, high)
		}
	}
}
