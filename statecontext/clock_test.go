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

// clocked is a manager with a wall clock of its own.
type clocked struct {
	seen     Clock
	offMS    int64 // of its wall clock
	bootedMS int64 // its steady clock began then
}

// eras is a cluster whose leaders change, with idle time between, and what passed in truth.
type eras struct {
	r        *rand.Rand
	trueMS   int64
	stateMS  int64
	managers []*clocked
	off      func() int64 // what a wall clock may be set to
}

func newEras(seed int64, first Clock, off func(*rand.Rand) int64) *eras {
	e := &eras{r: rand.New(rand.NewSource(seed)), trueMS: 1_800_000_000_000}
	e.off = func() int64 { return off(e.r) }
	e.stateMS = e.trueMS
	for range 3 {
		m := &clocked{seen: first, offMS: e.off(), bootedMS: e.trueMS}
		m.seen.Saw(e.stateMS, 0, true)
		e.managers = append(e.managers, m)
	}
	return e
}

// pass lets time pass; clocks are set meanwhile.
func (e *eras) pass(ms int64) {
	e.trueMS += ms
	if m := e.managers[e.r.Intn(len(e.managers))]; e.r.Intn(4) == 0 {
		m.offMS = e.off()
	}
}

// term is one leader, who proposes some commands; each manager applies them a little later. step is called after each.
func (e *eras) term(step func(fromMS, toMS, stampedMS int64)) {
	l := e.managers[e.r.Intn(len(e.managers))]
	steady := func(m *clocked) int64 { return e.trueMS - m.bootedMS }
	c := l.seen.Begin(e.stateMS, steady(l), e.trueMS+l.offMS)
	for range 1 + e.r.Intn(20) {
		was := e.stateMS
		stamped := c.Stamp(steady(l), e.trueMS+l.offMS)
		e.stateMS = max(e.stateMS, stamped)
		step(was, e.stateMS, e.trueMS)
		late := e.r.Int63n(10)
		for _, m := range e.managers {
			m.seen.Saw(e.stateMS, steady(m)+late, true)
		}
		e.pass(late + e.r.Int63n(3000))
	}
}

// paces runs many terms and gives the first fault: the time of the state goes as fast as time passes, between half and one and a half
// times that, idle or not, whoever leads.
func paces(seed int64, first Clock, off func(*rand.Rand) int64) (fault string, e *eras) {
	e = newEras(seed, first, off)
	was := e.trueMS
	for range 60 {
		e.term(func(fromMS, toMS, nowMS int64) {
			passed, moved := nowMS-was, toMS-fromMS
			was = nowMS
			if slack := int64(3 * slewMS); fault == "" && (moved < passed/2-slack || moved > passed+passed/2+slack) {
				fault = fmt.Sprintf("seed %d: %d ms pass, the state's time moves by %d", seed, passed, moved)
			}
		})
		e.pass([]int64{50, 5_000, 10 * minuteMS, 9 * hourMS}[e.r.Intn(4)]) // nobody writes, or nobody leads
	}
	return fault, e
}

func TestClockKeepsPace(t *testing.T) {
	wild := func(r *rand.Rand) int64 { return r.Int63n(4*dayMS) - 2*dayMS }
	near := func(r *rand.Rand) int64 { return r.Int63n(200) - 100 }
	for seed := range int64(300) {
		if fault, _ := paces(seed, Clock{}, wild); fault != "" {
			t.Fatal(fault)
		}
		fault, e := paces(seed, Clock{}, near)
		if off := e.stateMS - e.trueMS; fault != "" || off > 200 || off < -9*hourMS-minuteMS { // the last idle time is not stamped yet
			t.Fatalf("clocks that are right: %s; the state's time is %d ms off", fault, off)
		}
	}
	if fault, _ := paces(1, Naive(), near); fault == "" {
		t.Error("idle time that is lost is not found")
	}
}

// TestClockConverges: a time that is wrong by d is right after 2 d of right clocks; clocks that are right keep it right.
func TestClockConverges(t *testing.T) {
	for _, off := range []int64{-dayMS, -33 * minuteMS, 0, 33 * minuteMS, dayMS} {
		const begin = int64(1_800_000_000_000)
		var c Clock
		c.Saw(begin+off, 0, true)
		c = c.Begin(begin+off, 0, begin)
		last := begin + off
		for now := int64(0); now <= 2*dayMS+hourMS; now += 977 {
			at := c.Stamp(now, begin+now)
			left := max(abs(off)-now/2, 0) + 1000
			if at < last || abs(at-begin-now) > left {
				t.Fatalf("off by %d: after %d ms it is off by %d, before it was %d", off, now, at-begin-now, last)
			}
			last = at
		}
	}
}

func abs(n int64) int64 { return max(n, -n) }

// TestClockOfAStart: a manager that knows the state from its own disk only has nothing but its wall clock to tell how long all were
// down; one that heard of the last command from a leader has its steady clock, and a wall clock that is a day ahead does not count.
func TestClockOfAStart(t *testing.T) {
	const state = int64(1_800_000_000_000)
	for _, tc := range []struct {
		name          string
		live          bool
		ahead, passed int64 // wall clock against the state's time when it begins, and its steady clock since it saw that
		want          int64
	}{
		{name: "down for three days", ahead: 3 * dayMS, passed: 10, want: 3 * dayMS},
		{name: "a wall clock that is behind", ahead: -hourMS, passed: 10, want: 0},
		{name: "idle for an hour", live: true, ahead: hourMS, passed: hourMS, want: hourMS},
		{name: "idle, and the wall clock a day ahead", live: true, ahead: dayMS + 10, passed: 10, want: 15},
		{name: "idle, and the wall clock a day behind", live: true, ahead: -dayMS, passed: 10, want: 5},
	} {
		var c Clock
		c.Saw(state, 5, tc.live)
		c = c.Begin(state, 5+tc.passed, state+tc.ahead)
		if got := c.Stamp(5+tc.passed, state+tc.ahead) - state; got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// TestCalendarsAreTheProposers: the state's time is a day ahead, as its first leader's clock was. Who makes a token for an hour gets one
// for an hour, and what was made carries the date of its proposer.
func TestCalendarsAreTheProposers(t *testing.T) {
	const now = int64(1_800_000_000_000)
	s, at := New(), uint64(0)
	do := func(b Body) *Result {
		at++
		next, results, _ := ApplyCommands(s, at, []Command{{TimeMS: now + dayMS, Body: b}})
		s = next
		return &results[0]
	}
	do(&BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: FormatLevel})
	do(&PutUser{Mode: PutNew, Name: "root", Role: UserAdmin, Hash: "h"})
	token := Token{User: "root", Role: UserReads, Hash: [32]byte{1}, CreatedMS: now, ExpiresMS: now + hourMS}
	if err := do(&PutToken{Token: token}).Err(); err != nil {
		t.Fatal(err)
	}
	if x := s.TokenByHash(token.Hash); x == nil || x.CreatedMS != now || x.ExpiresMS != now+hourMS {
		t.Errorf("%+v", x)
	}
	token.Hash[0], token.ExpiresMS = 2, now
	if err := do(&PutToken{Token: token}).Err(); err == nil {
		t.Error("a token that has ended when it is made")
	}
	if err := Check(s); err != nil {
		t.Error(err)
	}
}
