package core

import (
	"tidemark/liveness"
	"tidemark/statecontext"
)

// attendEvery is how often it is noted who is offline: of many that go at once, one command tells.
const attendEvery = 1000 // ms

// stampEvery is how long the state's time may go without a stamp while it counts for a repair. A manager that was
// killed knows it from its disk alone: what had passed since would be lost, where it leads next.
const stampEvery = 5000 // ms

// attendance notes in the replicated state which indexers are offline, so that whoever leads next knows since when.
type attendance struct {
	*scene
	atMS int64
}

// step notes who is offline and who is back. Of whom this leader has not heard, nothing is noted before it has tried to
// speak to it in vain for as long as silence is borne: he is as he was before.
func (l *attendance) step() {
	if l.rests(l.atMS, attendEvery) {
		return
	}
	l.atMS = l.nowMS
	c := l.look()
	if len(c.Offline)+len(c.Back) == 0 && !l.stampDue() {
		return
	}
	l.propose("attendance", c, func(_ statecontext.Result, err error) {
		if err == nil {
			l.logNoted(c)
		}
	})
}

// look is what is to be noted now.
func (l *attendance) look() *statecontext.NoteAbsences {
	c := &statecontext.NoteAbsences{}
	for i := range l.now.state.Indexers() {
		n := l.components.indexers[i.Node]
		if n == nil {
			continue
		}
		seen := statecontext.SeenIndexer{Node: i.Node, ModifiedCAS: i.ModifiedCAS}
		switch life := l.life(&n.component); {
		case i.Offline == nil && life == liveness.Offline:
			c.Offline = append(c.Offline, seen)
		case i.Offline != nil && life == liveness.Active && n.full: // it works: to have registered is not enough
			c.Back = append(c.Back, seen)
		}
	}
	return c
}

// stampDue reports whether the state's time, which has not been stamped for long, counts for a repair.
func (l *attendance) stampDue() bool {
	if l.stateMS-l.now.state.TimeMS() < stampEvery {
		return false
	}
	for i := range l.now.state.Indexers() {
		if in, ok := l.repairIn(i); ok && in > 0 {
			return true
		}
	}
	return false
}

// logNoted logs what was noted.
func (l *attendance) logNoted(c *statecontext.NoteAbsences) {
	if len(c.Offline) > 0 {
		l.log.Warn("indexers are offline", "indexers", l.names(c.Offline), "repaired_after", l.settings.RepairAfter)
	}
	if len(c.Back) > 0 {
		l.log.Info("indexers are back", "indexers", l.names(c.Back))
	}
}

// names are those of indexers; those that were removed meanwhile are left out.
func (l *attendance) names(all []statecontext.SeenIndexer) (names []string) {
	for _, x := range all {
		if n := l.components.indexers[x.Node]; n != nil {
			names = append(names, n.name)
		}
	}
	return names
}
