package snapshots

// mostMoves bounds the buckets of which it is known when they moved, those that are gone included; beyond it all have
// moved once.
const mostMoves = 1024

// Moves is when what is known of each bucket has changed last. The zero value is of a time before any change.
type Moves struct {
	last, all uint64
	of        map[string]uint64
}

// Note says that a bucket has moved.
func (m *Moves) Note(bucket string) {
	if _, known := m.of[bucket]; !known && len(m.of) >= mostMoves {
		m.NoteAll()
	}
	if m.of == nil {
		m.of = map[string]uint64{}
	}
	m.last++
	m.of[bucket] = m.last
}

// NoteAll says that all buckets have moved.
func (m *Moves) NoteAll() {
	m.last++
	m.all = m.last
	clear(m.of)
}

// At is a number that a bucket has until it moves, and never again.
func (m *Moves) At(bucket string) uint64 { return max(m.all, m.of[bucket]) }
