package statecontext

// Clock reckons the state's time as one manager may stamp it: how long the cluster has been led, in milliseconds. It
// goes on by the manager's steady clock, which knows no calendar and does not step, from where the state's time was
// when the manager saw it rise. A manager learns of a stamp only after it was made, so that what it reckons is never
// more than what passed in truth, whichever leaders there were, and whatever wall clocks say. The zero Clock has seen
// nothing.
type Clock struct {
	stateMS  int64 // the state's time, when
	steadyMS int64 // the steady clock stood here
	seen     bool
}

// Saw notes the state's time: from a leader, or from this manager's own disk when it starts.
func (c *Clock) Saw(stateMS, steadyMS int64) {
	if !c.seen || stateMS > c.stateMS {
		c.stateMS, c.steadyMS, c.seen = stateMS, steadyMS, true
	}
}

// Begin returns the clock of a term that begins with everything before it seen. The time since this manager saw the
// last stamp counts, though nobody wrote; the time for which all managers were down does not: no clock knows it that
// could not be wrong by years. Its first stamp is above the state's time, so that every manager sees it rise: what
// passed before it, and this manager did not know of, is not made up for later, when the requests of its term would age
// by it.
func (c Clock) Begin(stateMS, steadyMS int64) Clock {
	c.Saw(stateMS, steadyMS)
	if c.Stamp(steadyMS) <= stateMS {
		c.stateMS, c.steadyMS = stateMS+1, steadyMS
	}
	return c
}

// Stamp returns the state's time of now.
func (c Clock) Stamp(steadyMS int64) int64 { return c.stateMS + max(steadyMS-c.steadyMS, 0) }
