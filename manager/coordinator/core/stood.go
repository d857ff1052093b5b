package core

import "slices"

// stood is when this leader itself stood still, in the state's time, ascending: what it did not hear then is nobody's
// absence. Of a term before nothing is known; whoever begins one hears everybody first.
type stood []span

// span is a part of the state's time.
type span struct{ fromMS, toMS int64 }

// maxStood bounds how many times are told apart; of more, the oldest two count as one of their length, which ends with
// the later.
const maxStood = 64

// add notes that the leader stood still.
func (s *stood) add(x span) {
	*s = append(*s, x)
	if all := *s; len(all) > maxStood {
		all[1].fromMS -= all[0].toMS - all[0].fromMS
		*s = slices.Delete(all, 0, 1)
	}
}

// since is for how long it stood still since a moment.
func (s stood) since(atMS int64) (ms int64) {
	for _, x := range s {
		ms += max(x.toMS-max(x.fromMS, atMS), 0)
	}
	return ms
}

// since is how much of the state's time has passed since a moment while there was a leader who could hear of it.
func (l *scene) since(atMS int64) int64 { return max(l.stateMS-atMS-l.stood.since(atMS), 0) }
