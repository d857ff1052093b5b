package ddlhistory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/testcluster"
	"tidemark/localcluster"
)

// The pace of the faults.
const (
	firstFault  = 500 * time.Millisecond
	betweenLow  = 300 * time.Millisecond
	betweenMore = 1200 * time.Millisecond
	stopLow     = 200 * time.Millisecond
	stopMore    = 1500 * time.Millisecond
	askLeader   = 300 * time.Millisecond
)

// faults kills and stops managers. Never is more than one of them killed or stopped, but for the short time in which no
// majority is there.
type faults struct {
	t    testing.TB
	up   *testcluster.Cluster
	rand *rand.Rand
	done map[string]int
}

// run makes faults until ctx ends; nothing is stopped when it returns.
func (f *faults) run(ctx context.Context) {
	wait(ctx, firstFault)
	for ctx.Err() == nil {
		leader, others := f.roles(ctx)
		switch n := f.rand.IntN(100); {
		case leader < 0:
			wait(ctx, betweenLow)
			continue
		case n < 25:
			f.done["leader killed"]++
			f.kill(leader)
		case n < 60:
			f.done["leader stopped"]++
			f.stop(leader)
		case n < 75:
			f.done["follower stopped"]++
			f.stop(others[0])
		case n < 85:
			f.done["follower killed"]++
			f.kill(others[0])
		default:
			f.done["majority stopped"]++
			f.stop(leader, others[0])
		}
		wait(ctx, betweenLow+time.Duration(f.rand.Int64N(int64(betweenMore))))
	}
}

// roles finds the leader's place in the manifest, -1 when nobody says; the others come in random order.
func (f *faults) roles(ctx context.Context) (leader int, others []int) {
	managers := f.up.Manifest().Managers
	leader = -1
	for _, i := range f.rand.Perm(len(managers)) {
		ask, cancel := context.WithTimeout(ctx, askLeader)
		var s struct{ Leader struct{ REST string } }
		err := testcluster.GetJSON(ask, managers[i].REST+"/v1/status", &s)
		cancel()
		if err != nil {
			continue
		}
		for j, m := range managers {
			if m.REST == s.Leader.REST {
				leader = j
			}
		}
		break
	}
	for _, i := range f.rand.Perm(len(managers)) {
		if i != leader {
			others = append(others, i)
		}
	}
	return leader, others
}

func (f *faults) kill(i int) {
	f.up.Kill(func(m *localcluster.Manifest) int { return m.Managers[i].PID })
}

// stop stops managers together for a while; they do not know when they go on.
func (f *faults) stop(which ...int) {
	for _, i := range which {
		pid := f.up.Manifest().Managers[i].PID
		f.signal(pid, syscall.SIGSTOP)
		defer f.signal(pid, syscall.SIGCONT)
	}
	time.Sleep(stopLow + time.Duration(f.rand.Int64N(int64(stopMore))))
}

func (f *faults) signal(pid int, s syscall.Signal) {
	if err := syscall.Kill(pid, s); err != nil {
		f.t.Errorf("%s to a manager: %v", s, err)
	}
}

func (f *faults) String() string { return fmt.Sprint(f.done) }
