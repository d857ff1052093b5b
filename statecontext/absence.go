package statecontext

import "tidemark/index"

// Absence records that an indexer is offline. It is replicated, so that the next leader continues the count.
type Absence struct {
	// SinceMS is when the absence was noted, by the wall clock of the leader at that time, in unix milliseconds. For
	// display only.
	SinceMS int64 `json:"since_ms"`
	// StateMS is the state time at which the absence was noted. The age of the absence is measured from it.
	StateMS int64 `json:"-"`
	// RepairMS is the state time from which the delay before a repair counts: StateMS, or when a repair of this indexer
	// was cancelled.
	RepairMS int64 `json:"-"`
}

// NoteAbsences records which indexers are offline and which of them are back, many in one command. It ignores an
// indexer that is no longer registered, or that has registered again since it was observed, and one that is already
// in that state. It is never rejected.
type NoteAbsences struct {
	Offline, Back []SeenIndexer
}

// SeenIndexer identifies an indexer by its registration at the time it was observed.
type SeenIndexer struct {
	Node        index.NodeID
	ModifiedCAS uint64
}

func (*NoteAbsences) kind() kind { return kindNoteAbsences }

func (c *NoteAbsences) append(dst []byte) []byte {
	return appendSeenIndexers(appendSeenIndexers(dst, c.Offline), c.Back)
}

func appendSeenIndexers(dst []byte, all []SeenIndexer) []byte {
	dst = appendUint(dst, uint64(len(all)))
	for _, x := range all {
		dst = appendUint(append(dst, byte(x.Node)), x.ModifiedCAS)
	}
	return dst
}

func (d *decoder) seenIndexers() (all []SeenIndexer) {
	for n := d.count(); n > 0 && d.err == nil; n-- {
		all = append(all, SeenIndexer{Node: index.NodeID(d.byte()), ModifiedCAS: d.uint()})
	}
	return all
}

func (c *NoteAbsences) apply(t *tx) *Rejection {
	for _, x := range c.Offline {
		if i := t.s.Indexer(x.Node); i != nil && i.ModifiedCAS == x.ModifiedCAS && i.Offline == nil {
			t.setAbsence(i, &Absence{SinceMS: t.s.wallMS, StateMS: t.s.timeMS, RepairMS: t.s.timeMS})
		}
	}
	for _, x := range c.Back {
		if i := t.s.Indexer(x.Node); i != nil && i.ModifiedCAS == x.ModifiedCAS && i.Offline != nil {
			t.setAbsence(i, nil)
		}
	}
	return nil
}

// setAbsence changes only an indexer's absence. Components need not receive it, so the definitions revision stays.
func (t *tx) setAbsence(old *Indexer, a *Absence) {
	i := *old
	i.Offline, t.changed = a, true
	own(&t.s.indexers, &t.owned.indexers).Set(i.Node, &i)
	t.emitIndexer(&i)
}

// restRepairs restarts the repair delay of every absent indexer from which the rebalance being cancelled takes
// copies.
func (t *tx) restRepairs() {
	for y := range t.s.RebalanceSteps() {
		if i := t.s.Indexer(y.Src.Node); i != nil && i.Offline != nil && i.Offline.RepairMS != t.s.timeMS {
			a := *i.Offline
			a.RepairMS = t.s.timeMS
			t.setAbsence(i, &a)
		}
	}
}

// appendAbsence appends the absence of an indexer; a is nil if the indexer is online.
func appendAbsence(dst []byte, a *Absence) []byte {
	if dst = appendBool(dst, a != nil); a != nil {
		dst = appendInt(appendInt(appendInt(dst, a.SinceMS), a.StateMS), a.RepairMS)
	}
	return dst
}

func (d *decoder) absence() *Absence {
	if !d.bool() {
		return nil
	}
	return &Absence{SinceMS: d.int(), StateMS: d.int(), RepairMS: d.int()}
}

// sound reports whether the absence is one that Apply can produce.
func (a *Absence) sound(s *State) bool {
	return a == nil || a.StateMS <= a.RepairMS && a.RepairMS <= s.timeMS
}
