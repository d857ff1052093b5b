package core

import "slices"

// stood holds the spans in which this leader itself stood still, in state time, ascending: components were not absent
// then. Nothing is known of earlier terms; a new leader gets reports of all components first.
type stood []span

// span is an interval of state time.
type span struct{ fromMS, toMS int64 }

// maxStood limits the spans kept; beyond it, the oldest two are replaced by one of their total length that ends with
// the later one.
const maxStood = 64

// add records a span.
func (s *stood) add(x span) {
	*s = append(*s, x)
	if all := *s; len(all) > maxStood {
		all[1].fromMS -= all[0].toMS - all[0].fromMS
		*s = slices.Delete(all, 0, 1)
	}
}

// since returns for how long the leader stood still since atMS.
func (s stood) since(atMS int64) (ms int64) {
	for _, x := range s {
		ms += max(x.toMS-max(x.fromMS, atMS), 0)
	}
	return ms
}

// since returns the state time that has passed since atMS without the spans in which no leader could get reports from
// components.
func (l *scene) since(atMS int64) int64 { return max(l.stateMS-atMS-l.stood.since(atMS), 0) }
