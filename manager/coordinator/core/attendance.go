package core

import (
	"tidemark/liveness"
	"tidemark/statecontext"
)

// attendEvery is the interval between checks for indexers that went offline or came back. If many change at once, one
// command records them all.
const attendEvery = 1000 // ms

// stampEvery is the longest time that the state's clock goes without a stamp while it counts toward a repair. A
// manager that was killed reads that clock from its disk alone: if it leads next, the time since the last stamp is
// lost.
const stampEvery = 5000 // ms

// attendance records in the replicated state which indexers are offline, so that the next leader knows since when.
type attendance struct {
	*scene
	atMS int64
}

// step records indexers that went offline and indexers that are back. An indexer that has not reported to this leader
// keeps its recorded status until the leader has tried to reach it in vain for the whole of OfflineAfter.
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

// look returns the changes to record now; both lists are empty if there are none.
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
		case i.Offline != nil && life == liveness.Active && n.full: // it works: registration alone is not enough
			c.Back = append(c.Back, seen)
		}
	}
	return c
}

// stampDue reports whether the state's clock counts toward a repair and has not been stamped for stampEvery.
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

// logNoted logs the changes that were committed.
func (l *attendance) logNoted(c *statecontext.NoteAbsences) {
	if len(c.Offline) > 0 {
		l.log.Warn("indexers are offline", "indexers", l.names(c.Offline), "repaired_after", l.settings.RepairAfter)
	}
	if len(c.Back) > 0 {
		l.log.Info("indexers are online again", "indexers", l.names(c.Back))
	}
}

// names returns the names of indexers, without those that were removed meanwhile.
func (l *attendance) names(all []statecontext.SeenIndexer) (names []string) {
	for _, x := range all {
		if n := l.components.indexers[x.Node]; n != nil {
			names = append(names, n.name)
		}
	}
	return names
}
