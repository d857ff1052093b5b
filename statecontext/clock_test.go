package statecontext

import (
	"fmt"
	"math/rand"
	"testing"
)

const (
	minuteMS = 60_000
	hourMS   = 60 * minuteMS
	dayMS    = 24 * hourMS
)

// clocked is a manager that loses its clock when it restarts.
type clocked struct {
	seen     Clock
	bootedMS int64 // when its monotonic clock began
}

// eras is a cluster with changing leaders and idle times, and the true time.
type eras struct {
	r        *rand.Rand
	trueMS   int64
	stateMS  int64
	managers []*clocked
	naive    bool // terms begin at the last state time, ignoring the time since then
}

func newEras(seed int64) *eras {
	e := &eras{r: rand.New(rand.NewSource(seed)), trueMS: 1_800_000_000_000}
	for range 3 {
		e.managers = append(e.managers, &clocked{})
	}
	e.start(e.managers...)
	return e
}

func (e *eras) steady(m *clocked) int64 { return e.trueMS - m.bootedMS }

// start restarts managers, which read the state time from their disks.
func (e *eras) start(which ...*clocked) {
	for _, m := range which {
		*m = clocked{bootedMS: e.trueMS}
		m.seen.Saw(e.stateMS, 0)
	}
}

// term simulates one leader that proposes some commands, which each manager applies a little later. step is called
// after each.
func (e *eras) term(step func(fromMS, toMS, stampedMS int64)) {
	l := e.managers[e.r.Intn(len(e.managers))]
	c := l.seen.Begin(e.stateMS, e.steady(l))
	if e.naive {
		c = Clock{stateMS: e.stateMS + 1, steadyMS: e.steady(l), seen: true}
	}
	for range 1 + e.r.Intn(20) {
		was := e.stateMS
		e.stateMS = max(e.stateMS, c.Stamp(e.steady(l)))
		step(was, e.stateMS, e.trueMS)
		late := e.r.Int63n(10)
		for _, m := range e.managers {
			m.seen.Saw(e.stateMS, e.steady(m)+late)
		}
		e.trueMS += late + e.r.Int63n(3000)
	}
}

// paces simulates many terms and returns the first fault. The state time must advance with true time, with or without
// writes, whichever manager leads, and from one stamp to the next no faster, except for one millisecond per term:
// time it has fallen behind is not made up for. It may fall behind by the delay between a stamp and its application
// and, if all managers restart, by the time since the last stamp.
func paces(seed int64, naive, restarts bool) (fault string) {
	e := newEras(seed)
	e.naive = naive
	was, excused := e.trueMS, int64(0)
	for range 60 {
		e.term(func(fromMS, toMS, nowMS int64) {
			passed, moved := nowMS-was, toMS-fromMS
			was = nowMS
			if least := passed - 10 - excused; fault == "" && (moved < least || moved > passed+1) {
				fault = fmt.Sprintf("seed %d: %d ms pass, the state's time moves by %d", seed, passed, moved)
			}
			excused = 0
		})
		idle := []int64{50, 5_000, 10 * minuteMS, 9 * hourMS}[e.r.Intn(4)] // without writes or without a leader
		e.trueMS += idle
		switch {
		case !restarts:
		case e.r.Intn(2) == 0:
			e.start(e.managers[e.r.Intn(3)])
			excused = e.trueMS - was // this manager may lead next
		default:
			e.start(e.managers...)
			excused = e.trueMS - was
		}
	}
	return fault
}

func TestClockKeepsPace(t *testing.T) {
	for seed := range int64(300) {
		for _, restarts := range []bool{false, true} {
			if fault := paces(seed, false, restarts); fault != "" {
				t.Fatal(fault)
			}
		}
	}
	if fault := paces(1, true, false); fault == "" {
		t.Error("idle time that is lost is not found")
	}
}

// TestClockOfAStart: a manager continues from the state time at the moment when it saw it, not from its own start and
// not from an earlier state time.
func TestClockOfAStart(t *testing.T) {
	const state = int64(5 * minuteMS)
	for _, tc := range []struct {
		name   string
		before []int64 // state times that it saw a day before
	}{
		{name: "the first that it sees"},
		{name: "it waited for a day with nothing on its disk, until it was let in", before: []int64{0}},
		{name: "it was cut off for a day, with the cluster's first minute", before: []int64{0, minuteMS}},
	} {
		var c Clock
		for _, ms := range tc.before {
			c.Saw(ms, 5)
		}
		c.Saw(state, 5+dayMS)
		c.Saw(state-1, 6+dayMS) // from an older entry
		c = c.Begin(state, 5+dayMS+hourMS)
		if got := c.Stamp(5 + dayMS + hourMS + 7); got != state+hourMS+7 {
			t.Errorf("%s: %d, want %d", tc.name, got, state+hourMS+7)
		}
	}
}

// TestDatesAreTheProposers: whatever the state time is, a token made for an hour is valid for an hour, objects
// and events carry the date of their proposer, and wall clocks change no age.
func TestDatesAreTheProposers(t *testing.T) {
	const now = int64(1_800_000_000_000)
	s, at := New(), uint64(0)
	do := func(wallMS int64, b Body) *Result {
		at++
		next, results, events := ApplyCommands(s, at, []Command{{TimeMS: int64(at), WallMS: wallMS, Body: b}})
		s = next
		for _, e := range events {
			if e.TimeMS != wallMS {
				t.Errorf("%+v, proposed at %d", e, wallMS)
			}
		}
		if s.TimeMS() != int64(at) || s.WallMS() != wallMS {
			t.Errorf("the state's time is %d, its newest command of %d; want %d, %d", s.TimeMS(), s.WallMS(), at, wallMS)
		}
		return &results[0]
	}
	do(now+dayMS, &BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: FormatLevel})
	do(now, &PutUser{Mode: PutNew, Name: "root", Role: UserAdmin, Hash: "h"})
	token := Token{User: "root", Role: UserReads, Hash: [32]byte{1}, CreatedMS: now, ExpiresMS: now + hourMS}
	if err := do(now+3*dayMS, &PutToken{Token: token}).Err(); err != nil {
		t.Fatal(err)
	}
	if x := s.TokenByHash(token.Hash); x == nil || x.CreatedMS != now || x.ExpiresMS != now+hourMS {
		t.Errorf("%+v", x)
	}
	token.Hash[0], token.ExpiresMS = 2, now
	if err := do(now-3*dayMS, &PutToken{Token: token}).Err(); err == nil {
		t.Error("a token that has ended when it is made")
	}
	if err := Check(s); err != nil {
		t.Error(err)
	}
}
