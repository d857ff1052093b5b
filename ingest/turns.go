package ingest

// Room says how large batches may be, in bytes, and which kinds are to be looked for.
type Room struct {
	// Stability: a stability timestamp may have become possible.
	Stability bool
	// SideLeast and SideMost are those of TakeSide. SideMost 0: nothing of side streams now.
	SideLeast, SideMost int
	// AheadFrom is how much has to be queued for ApplyAhead, whose bounds the others are.
	AheadFrom, AheadBytes, AheadKeep int
}

// Next returns the next batch to write, nil when there is none or Work must be taken first. The kinds take turns: one
// batch of each that has something, and none waits for more than one batch of each other kind. A ready index gets its
// stability timestamps however much a build brings, a build goes on however often timestamps come, and there is room
// for both. Acks are those of Flush.
func (b *Bucket) Next(r Room) (t *Batch, acks []Ack) {
	kinds := [...]BatchKind{AtStability, Ahead, FromSide}
	first := 0
	for i, k := range kinds {
		if b.turn == k {
			first = i
		}
	}
	for i := range kinds {
		kind := kinds[(first+i)%len(kinds)]
		switch kind {
		case AtStability:
			if r.Stability {
				t, acks = b.Flush()
			}
		case Ahead:
			if b.queued > r.AheadFrom {
				t = b.ApplyAhead(r.AheadBytes, r.AheadKeep)
			}
		case FromSide:
			if r.SideMost > 0 {
				t = b.TakeSide(r.SideLeast, r.SideMost)
			}
		}
		if t != nil {
			b.turn = kinds[(first+i+1)%len(kinds)]
			return t, acks
		}
	}
	return nil, acks
}
