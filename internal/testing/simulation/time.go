package simulation

import "tidemark/statecontext"

// stateTime tracks the state's time. All managers apply a command at once; each term's leader has its own wall clock.
type stateTime struct {
	seen, term      statecontext.Clock
	terms           int64 // terms begun; a recovery restarts Raft's count, not this one
	looked          bool
	fromMS, beganMS int64 // the state's time and the true time at the first check
}

const (
	wallsOffMS  = 48 * 3600 * 1000 // the largest error of wall clocks in either direction
	timeSlackMS = 1000             // by which the state's time may lag: no command has stamped it since
)

// wallMS returns the wall clock of this term's leader: correct in one of four seeds, otherwise off by hours and
// different in each term. It draws nothing from the dice.
func (s *Sim) wallMS() int64 {
	if s.opt.Seed%4 == 0 {
		return s.nowMS
	}
	mixed := (uint64(s.opt.Seed)*0x9E3779B97F4A7C15 + s.term) * 0xD1342543DE82EF95
	return s.nowMS + int64(mixed>>32)%(2*wallsOffMS) - wallsOffMS
}

// stampMS returns the time with which a command is stamped.
func (s *Sim) stampMS() int64 {
	if !s.on(pacedTime) {
		return s.wallMS()
	}
	return s.time.term.Stamp(s.nowMS)
}

// checkTime checks that the state's time follows true time under all leaders: it neither stops nor gets ahead by more
// than a millisecond per term.
func (s *Sim) checkTime() {
	t := &s.time
	if !t.looked {
		t.looked, t.fromMS, t.beganMS = true, s.state.TimeMS(), s.nowMS
	}
	passed, moved := s.nowMS-t.beganMS, s.state.TimeMS()-t.fromMS
	if moved < passed-timeSlackMS || moved > passed+t.terms {
		s.fail("the state's time has moved by %d ms in %d ms", moved, passed)
	}
}
