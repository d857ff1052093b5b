package statecontext

// Clock reckons the state's time as one manager may stamp it. It never goes back, and goes on by the manager's steady clock, which knows
// no calendar and does not step; from there it moves towards the wall clock, by at most half of the time that passes: a wall clock that
// is wrong, or is set, neither stops ages nor lets them jump, and a wrong time is right again after twice as long as it was off.
// The zero Clock has seen nothing.
type Clock struct {
	stateMS  int64 // the state's time, when
	steadyMS int64 // the steady clock stood here
	stampMS  int64 // the highest that was given
	live     bool
	naive    bool // the rule is switched off, see Naive
}

// slewMS is how long the clock runs from one point on: so long the time may stand still after the wall clock was set.
const slewMS = 1000

// Naive gives a clock that begins where the state's time stood, as if no time had passed since: a planted fault for simulations.
func Naive() Clock { return Clock{naive: true} }

// Saw notes that the state's time was seen to rise. live says that it came from a leader and not from this manager's own disk: only then
// is now about the time when it was stamped.
func (c *Clock) Saw(stateMS, steadyMS int64, live bool) {
	if stateMS > c.stateMS {
		c.stateMS, c.steadyMS, c.stampMS = stateMS, steadyMS, stateMS
		c.live = c.live || live
	}
}

// Begin gives the clock of a term that begins with everything before it seen. Idle time counts: by the steady clock if this manager was
// there, else (all that it knows was on its disk) by the wall clock, which is all that is left.
func (c Clock) Begin(stateMS, steadyMS, wallMS int64) Clock {
	c.Saw(stateMS, steadyMS, false)
	if !c.live {
		c.stateMS, c.steadyMS = max(c.stateMS, wallMS), steadyMS
	}
	if c.naive {
		c.stateMS, c.steadyMS = stateMS, steadyMS
	}
	return c
}

// Stamp gives the state's time of now.
func (c *Clock) Stamp(steadyMS, wallMS int64) int64 {
	passed := max(steadyMS-c.steadyMS, 0)
	now := c.stateMS + passed
	if !c.naive {
		now += min(max(wallMS-now, -passed/2), passed/2)
	}
	if passed >= slewMS {
		c.stateMS, c.steadyMS = now, steadyMS
	}
	c.stampMS = max(c.stampMS, now)
	return c.stampMS
}
