package statecontext

// Clock computes the state time that one manager may stamp: how long the cluster has had a leader, in milliseconds.
// It advances with the manager's monotonic clock from the state time that the manager last saw rise. A manager sees a
// stamp only after it was made, so the computed time never exceeds the time that has really passed, whichever
// managers have led and whatever wall clocks show. The zero Clock has seen no stamp.
type Clock struct {
	stateMS  int64 // state time last seen
	steadyMS int64 // monotonic clock when it was seen
	seen     bool
}

// Saw records a state time that came from a leader, or from this manager's own disk when it starts.
func (c *Clock) Saw(stateMS, steadyMS int64) {
	if !c.seen || stateMS > c.stateMS {
		c.stateMS, c.steadyMS, c.seen = stateMS, steadyMS, true
	}
}

// Begin returns the clock of a new term, once the manager has applied everything before it. The time since this
// manager last saw a stamp counts, even if nothing was written in it. The time for which all managers were down does
// not: every clock that could measure it may be wrong by years. The first stamp is above stateMS, so that every
// manager sees the state time rise. Otherwise a later leader could add time that passed before the term and was
// unknown to this manager, and the requests of this term would age by it.
func (c Clock) Begin(stateMS, steadyMS int64) Clock {
	c.Saw(stateMS, steadyMS)
	if c.Stamp(steadyMS) <= stateMS {
		c.stateMS, c.steadyMS = stateMS+1, steadyMS
	}
	return c
}

// Stamp returns the state time for the present moment.
func (c Clock) Stamp(steadyMS int64) int64 { return c.stateMS + max(steadyMS-c.steadyMS, 0) }
