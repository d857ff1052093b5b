package consensus_test

import (
	"testing"
	"time"

	"tidemark/consensus"
	"tidemark/statecontext"
)

// TestClocksThatAreWrong: the state's time goes on as fast as time passes, whatever the clock of the next leader says: a
// clock days ahead ages no remembered request, and one days behind does not stop the ageing.
func TestClocksThatAreWrong(t *testing.T) {
	all := newCluster(t, 1)
	s := all[0]
	request := func(key string) statecontext.Result {
		t.Helper()
		c := projector("p1", "a")
		c.Request = &statecontext.Request{Key: key}
		return all.propose(c)
	}
	wall := time.Now()
	if r := request("first"); r.Replayed {
		t.Fatalf("%+v", r)
	}
	began := s.fsm.State().TimeMS()
	if off := time.Since(time.UnixMilli(began)).Abs(); off > time.Minute {
		t.Errorf("a new cluster's time is %s off the clock", off)
	}
	restart := func(ahead time.Duration) {
		t.Helper()
		s.stop()
		s.tune = func(c *consensus.Config) {
			c.Now = func() time.Time { return time.Now().Add(ahead) }
		}
		s.start()
	}
	for _, ahead := range []time.Duration{48 * time.Hour, -48 * time.Hour, 0} {
		restart(ahead)
		if r := request("first"); !r.Replayed {
			t.Errorf("a leader whose clock is %s ahead has forgotten a request of a moment ago: %+v", ahead, r)
		}
		before := s.fsm.State().TimeMS()
		time.Sleep(30 * time.Millisecond)
		request(ahead.String())
		if passed := s.fsm.State().TimeMS() - before; passed < 25 {
			t.Errorf("clock %s ahead: 30 ms pass, and the state's time moves by %d ms", ahead, passed)
		}
	}
	if passed, most := s.fsm.State().TimeMS()-began, time.Since(wall).Milliseconds()+1000; passed < 75 || passed > most {
		t.Errorf("the state's time has moved by %d ms, the clock by %d ms", passed, most)
	}
}
