package ddlhistory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/localcluster"
	"tidemark/internal/testing/testcluster"
)

// Times and counts of the faults.
const (
	firstFault  = 500 * time.Millisecond
	betweenLow  = 300 * time.Millisecond
	betweenMore = 900 * time.Millisecond
	stopLow     = 200 * time.Millisecond
	stopMore    = 1500 * time.Millisecond
	cutLow      = 300 * time.Millisecond
	cutMore     = 2200 * time.Millisecond
	slowLink    = 60 * time.Millisecond
	askLeader   = 300 * time.Millisecond
)

// faults kills and stops managers and cuts the links between them. At most one manager is away at a time, except for
// the short faults without a majority.
type faults struct {
	t     testing.TB
	up    *testcluster.Cluster
	links *testcluster.Links
	rand  *rand.Rand
	deck  []int // places in kinds that come before any kind is repeated
	done  map[string]int
	all   atomic.Bool // each kind has come once
}

// kinds are the kinds of faults; l is the leader, a and b are followers.
var kinds = []struct {
	name string
	f    func(f *faults, l, a, b int)
}{
	{"leader killed", func(f *faults, l, _, _ int) { f.kill(l) }},
	{"leader killed", func(f *faults, l, _, _ int) { f.kill(l) }},
	{"leader stopped", func(f *faults, l, _, _ int) { f.stop(l) }},
	{"leader stopped", func(f *faults, l, _, _ int) { f.stop(l) }},
	{"follower stopped", func(f *faults, _, a, _ int) { f.stop(a) }},
	{"follower killed", func(f *faults, _, a, _ int) { f.kill(a) }},
	{"majority stopped", func(f *faults, l, a, _ int) { f.stop(l, a) }},
	{"leader cut off", func(f *faults, l, a, b int) { f.links.Partition(f.names(l), f.names(a, b)); f.heal() }},
	{"leader cut off", func(f *faults, l, a, b int) { f.links.Partition(f.names(l), f.names(a, b)); f.heal() }},
	{"follower cut off", func(f *faults, l, a, b int) { f.links.Partition(f.names(a), f.names(l, b)); f.heal() }},
	{"all cut off", func(f *faults, l, a, b int) { f.links.Partition(f.names(l), f.names(a), f.names(b)); f.heal() }},
	{"one link cut", func(f *faults, l, a, _ int) { f.links.Cut(f.name(l), f.name(a)); f.heal() }},
	{"leader is deaf", func(f *faults, l, a, b int) {
		f.links.CutOneWay(f.name(a), f.name(l))
		f.links.CutOneWay(f.name(b), f.name(l))
		f.heal()
	}},
	{"leader is mute", func(f *faults, l, a, b int) {
		f.links.CutOneWay(f.name(l), f.name(a))
		f.links.CutOneWay(f.name(l), f.name(b))
		f.heal()
	}},
	{"leader's connections reset", func(f *faults, l, a, b int) {
		f.links.Refuse(f.name(l), f.name(a))
		f.links.Refuse(f.name(l), f.name(b))
		f.heal()
	}},
	{"slow links", func(f *faults, l, a, b int) {
		f.links.Delay(f.name(l), f.name(a), slowLink)
		f.links.Delay(f.name(l), f.name(b), slowLink)
		f.heal()
	}},
}

// run makes faults until ctx ends. When it returns, nothing is stopped or cut.
func (f *faults) run(ctx context.Context) {
	wait(ctx, firstFault)
	for ctx.Err() == nil {
		leader, others := f.roles(ctx)
		if leader < 0 {
			wait(ctx, betweenLow)
			continue
		}
		if len(f.deck) == 0 {
			f.deck = f.rand.Perm(len(kinds))
		}
		k := kinds[f.deck[0]]
		f.deck = f.deck[1:]
		f.done[k.name]++
		k.f(f, leader, others[0], others[1])
		if len(f.deck) == 0 {
			f.all.Store(true)
		}
		wait(ctx, betweenLow+time.Duration(f.rand.Int64N(int64(betweenMore))))
	}
}

func (f *faults) name(i int) string { return f.up.Manifest().Managers[i].ID }

func (f *faults) names(all ...int) (names []string) {
	for _, i := range all {
		names = append(names, f.name(i))
	}
	return names
}

// heal removes the cuts after a while. Clients can reach every manager throughout.
func (f *faults) heal() {
	time.Sleep(cutLow + time.Duration(f.rand.Int64N(int64(cutMore))))
	f.links.HealAll()
}

// roles returns the leader's place in the manifest, -1 if no manager knows it, and the others in random order.
func (f *faults) roles(ctx context.Context) (leader int, others []int) {
	managers := f.up.Manifest().Managers
	leader = -1
	for _, i := range f.rand.Perm(len(managers)) {
		ask, cancel := context.WithTimeout(ctx, askLeader)
		leader = f.up.Leader(ask, i)
		cancel()
		if leader >= 0 {
			break
		}
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

// stop stops managers together for a while; they have not noticed when they resume.
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
