package consensus_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

// clockSlack is how much the state time may lag: at each change of leaders, a stamp was made earlier than it was
// applied.
const clockSlack = 3 * time.Second

// TestStateTime: wall clocks are changed by days while leaders change and there are no writes for minutes. The
// state time advances with true time, and no faster, so that idle time counts and no remembered request ages by a
// change of a wall clock.
func TestStateTime(t *testing.T) {
	var ahead [3]atomic.Int64 // offsets of the wall clocks, in nanoseconds
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
		stateTime := func() time.Duration { return time.Duration(all.leader().fsm.State().TimeMS()) * time.Millisecond }
		request("first")
		was, at := stateTime(), time.Now()
		if was > hang {
			t.Errorf("a new cluster is %s old", was)
		}
		r := all[0].chance
		look := func(what string) {
			known := time.Duration(all.leader().node.StateTimeMS())*time.Millisecond - was
			if passed := time.Since(at); known < passed-clockSlack || known > passed+time.Millisecond {
				t.Errorf("%s: %s pass, and the leader, which has proposed nothing, has %s", what, passed, known)
			}
			request(what)
			now, passed := stateTime(), time.Since(at)
			if moved := now - was; moved < passed-clockSlack || moved > passed+time.Millisecond {
				t.Errorf("%s: %s pass, and the state's time moves by %s", what, passed, moved)
			}
			was, at = now, time.Now()
			l := all.leader()
			wall := time.Now().Add(time.Duration(ahead[l.name[1]-'1'].Load()))
			if said := time.UnixMilli(l.fsm.State().WallMS()); wall.Sub(said).Abs() > clockSlack {
				t.Errorf("%s: the command says that it is of %s, its leader's clock has %s", what, said, wall)
			}
		}
		for _, what := range []string{"a", "b", "c", "d", "e", "f"} {
			ahead[r.IntN(3)].Store(int64(time.Duration(r.IntN(96)-48) * time.Hour))
			time.Sleep(time.Duration(1+r.IntN(120)) * time.Second) // without writes
			if err := all.leader().node.TransferLeadership(context.Background()); err != nil {
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
	})
}

// TestWallClocksDoNotExpireKeys: managers restart with wall clocks that are days off, all of them or only the leader,
// and lead. Whatever the clocks show, the outcome of a recent request is remembered; it is forgotten once the
// managers have been up for the configured time.
func TestWallClocksDoNotExpireKeys(t *testing.T) {
	const age, slow = 15 * time.Minute, time.Minute
	var ahead atomic.Int64
	tune := func(c *consensus.Config) {
		own := time.Duration(ahead.Load()) // fixed at the start of the process
		c.Now = func() time.Time { return time.Now().Add(own) }
	}
	virtual(t, 3, tune, func(t *testing.T, h *hub, all servers) {
		request := func(key string) statecontext.Result {
			c := projector(key, "a")
			c.Request = &statecontext.Request{Key: key}
			return all.propose(c)
		}
		restart := func(which ...*server) {
			for _, s := range which {
				s.stop()
			}
			for _, s := range which {
				s.start()
			}
		}
		kept := func(key, what string) {
			t.Helper()
			if r := request(key); !r.Replayed {
				t.Errorf("%s: a request of a moment ago is forgotten: %+v", what, r)
			}
		}
		limits := statecontext.DefaultLimits()
		limits.LedgerMaxAgeMS = age.Milliseconds()
		if r := all.propose(statecontext.Command{Body: &statecontext.SetLimits{Limits: limits}}); r.Rejection != nil {
			t.Fatal(r.Rejection)
		}
		began := time.Now()
		request("first")
		for _, off := range []time.Duration{36 * time.Hour, -36 * time.Hour, 1000 * time.Hour} {
			ahead.Store(int64(off))
			request(off.String())
			restart(all...)
			kept(off.String(), "all were down, and came back with clocks "+off.String()+" ahead")

			one := all.leader()
			request(off.String() + " alone")
			ahead.Store(int64(2 * off))
			restart(one)
			lead(t, h, all, one)
			kept(off.String()+" alone", "one came back with a clock "+(2*off).String()+" ahead, and led")
		}
		kept("first", "after all of it")
		time.Sleep(age - time.Since(began) - time.Second)
		kept("first", "almost as old as the limit")
		time.Sleep(slow)
		if r := request("first"); r.Replayed {
			t.Errorf("a request older than the limit is remembered: %+v", r)
		}
	})
}

// lead makes a server the leader, by isolating other leaders for a while.
func lead(t *testing.T, h *hub, all servers, s *server) {
	t.Helper()
	eventually(t, s.name+" leads", func() bool {
		l := all.leader()
		if l == s {
			return true
		}
		h.isolate(l.name, true, all.names(l)...)
		time.Sleep(5 * heartbeat)
		h.isolate(l.name, false, all.names(l)...)
		return false
	})
}
