package consensus_test

import (
	"sync/atomic"
	"testing"
	"time"

	"tidemark/consensus"
	"tidemark/statecontext"
)

// clockSlack is what the state's time may be off, over the pace it may have: a wall clock was set a moment ago, a follower applied late.
const clockSlack = 3 * time.Second

// TestTheStatesTime: wall clocks are set by days while leaders change and nobody writes for minutes. The state's time goes on all the
// while, at no less than half and no more than one and a half times the pace of true time, so that idle time counts and
// no remembered request ages at once; when the clocks are right again it comes back to them.
func TestTheStatesTime(t *testing.T) {
	var ahead [3]atomic.Int64 // of the wall clocks, in nanoseconds
	tune := func(c *consensus.Config) {
		own := &ahead[c.Name[1]-'1']
		c.Now = func() time.Time { return time.Now().Add(time.Duration(own.Load())) }
	}
	virtual(t, 3, tune, func(t *testing.T, _ *hub, all servers) {
		request := func(key string) statecontext.Result {
			c := projector("p1", "a")
			c.Request = &statecontext.Request{Key: key}
			return all.propose(c)
		}
		stateTime := func() time.Time { return time.UnixMilli(all.leader().fsm.State().TimeMS()) }
		request("first")
		was, at := stateTime(), time.Now()
		if off := was.Sub(at).Abs(); off > clockSlack {
			t.Errorf("a new cluster's time is %s off", off)
		}
		r := all[0].chance
		look := func(what string) {
			request(what)
			now, passed := stateTime(), time.Since(at)
			if moved := now.Sub(was); moved < passed/2-clockSlack || moved > passed*3/2+clockSlack {
				t.Errorf("%s: %s pass, and the state's time moves by %s", what, passed, moved)
			}
			was, at = now, time.Now()
		}
		for _, what := range []string{"a", "b", "c", "d", "e", "f"} {
			ahead[r.IntN(3)].Store(int64(time.Duration(r.IntN(96)-48) * time.Hour))
			time.Sleep(time.Duration(1+r.IntN(120)) * time.Second) // nobody writes
			if err := all.leader().node.TransferLeadership(); err != nil {
				t.Fatal(err)
			}
			look(what)
			ahead[r.IntN(3)].Store(int64(time.Duration(r.IntN(96)-48) * time.Hour))
			time.Sleep(time.Duration(r.IntN(10)) * time.Second)
			look(what + " again")
		}
		if again := request("first"); !again.Replayed {
			t.Errorf("a request of some minutes ago is forgotten: %+v", again)
		}
		off := time.Until(stateTime()).Abs()
		for i := range ahead {
			ahead[i].Store(0)
		}
		for end := time.Now().Add(2*off + time.Second); time.Now().Before(end); time.Sleep(time.Minute / 2) {
			look("right again " + time.Now().String())
		}
		if off := time.Until(stateTime()).Abs(); off > clockSlack+time.Minute { // as of the last write
			t.Errorf("with clocks that are right, the state's time is still %s off", off)
		}
	})
}

// TestTimeThatAllWereDown: a manager that is alone counts the time for which it was down, by the only clock it has; a clock that is
// behind takes nothing back and does not stop the ages.
func TestTimeThatAllWereDown(t *testing.T) {
	var ahead atomic.Int64
	tune := func(c *consensus.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	}
	virtual(t, 1, tune, func(t *testing.T, _ *hub, all servers) {
		s := all[0]
		request := func() statecontext.Result {
			c := projector("p1", "a")
			c.Request = &statecontext.Request{Key: "first"}
			return all.propose(c)
		}
		request()
		was := s.fsm.State().TimeMS()
		for _, tc := range []struct {
			name          string
			ahead, passed time.Duration
			least, most   time.Duration
			replayed      bool
		}{
			{"down for an hour", time.Hour, 0, time.Hour, time.Hour, true},
			{"a clock behind by a day", -24 * time.Hour, time.Minute, 30 * time.Second, time.Minute, true},
			{"down for three days", 72 * time.Hour, 0, 70 * time.Hour, 72 * time.Hour, false},
		} {
			s.stop()
			ahead.Store(int64(tc.ahead))
			s.start()
			r := request()
			time.Sleep(tc.passed)
			request()
			now := s.fsm.State().TimeMS()
			moved := time.Duration(now-was) * time.Millisecond
			was = now
			if moved < tc.least-clockSlack || moved > tc.most+clockSlack || r.Replayed != tc.replayed {
				t.Errorf("%s: the state's time moves by %s, %+v", tc.name, moved, r)
			}
		}
	})
}
