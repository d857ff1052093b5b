package statecontext

import "tidemark/index"

// Absence is that an indexer is offline, as leaders have noted it: whoever leads next goes on counting.
type Absence struct {
	// SinceMS is when it was noted, by the wall clock of the leader then, unix milliseconds: for people.
	SinceMS int64 `json:"since_ms"`
	// StateMS is the state's time of that moment, from which its age is reckoned.
	StateMS int64 `json:"-"`
	// RepairMS is the state's time from which it counts when what the indexer has is made anew elsewhere: StateMS, or when
	// a repair of it was cancelled.
	RepairMS int64 `json:"-"`
}

// NoteAbsences notes which indexers are offline, and which of those are back, many at a time. One that is not
// registered any more, or has registered anew since it was looked at, is passed over; what is so already is no update.
// It is never rejected.
type NoteAbsences struct {
	Offline, Back []SeenIndexer
}

// SeenIndexer is an indexer as it was registered when it was looked at.
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

// setAbsence changes what is known of an indexer's absence, and nothing else: components need not learn it.
func (t *tx) setAbsence(old *Indexer, a *Absence) {
	i := *old
	i.Offline, t.changed = a, true
	own(&t.s.indexers, &t.owned.indexers).Set(i.Node, &i)
	t.emitIndexer(&i)
}

// restRepairs lets it count anew when what absent indexers have is made anew elsewhere, of those from which a repair
// takes copies that is cancelled now.
func (t *tx) restRepairs() {
	for y := range t.s.RebalanceSteps() {
		if i := t.s.Indexer(y.Src.Node); i != nil && i.Offline != nil && i.Offline.RepairMS != t.s.timeMS {
			a := *i.Offline
			a.RepairMS = t.s.timeMS
			t.setAbsence(i, &a)
		}
	}
}

// appendAbsence appends the absence of an indexer, nil for one that is there.
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

// sound reports whether an absence is one that Apply produces.
func (a *Absence) sound(s *State) bool {
	return a == nil || a.StateMS <= a.RepairMS && a.RepairMS <= s.timeMS
}
