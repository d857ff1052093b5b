package simulation

import "tidemark/statecontext"

// stateTime is what is known of the state's time. All managers apply a command at once; each term's leader has a wall
// clock of its own.
type stateTime struct {
	seen, term      statecontext.Clock
	terms           int64 // that began; a recovery counts Raft's anew
	looked          bool
	fromMS, beganMS int64 // the state's time, and the true one, when it was looked at first
}

const (
	wallsOffMS  = 48 * 3600 * 1000 // by so much wall clocks are wrong, either way
	timeSlackMS = 1000             // by so much the state's time may be behind: nobody has stamped it since
)

// wallMS is the wall clock of this term's leader: right in one seed of four, else off by hours, and set anew when
// another one leads. It takes no chance from the seed.
func (s *Sim) wallMS() int64 {
	if s.opt.Seed%4 == 0 {
		return s.nowMS
	}
	mixed := (uint64(s.opt.Seed)*0x9E3779B97F4A7C15 + s.term) * 0xD1342543DE82EF95
	return s.nowMS + int64(mixed>>32)%(2*wallsOffMS) - wallsOffMS
}

// stampMS is what a command is stamped with.
func (s *Sim) stampMS() int64 {
	if !s.on(pacedTime) {
		return s.wallMS()
	}
	return s.time.term.Stamp(s.nowMS)
}

// checkTime: the state's time never stands still and never runs, whoever leads: it goes as true time does, and no
// faster but for a millisecond that each term adds.
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
