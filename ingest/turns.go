package ingest

// Room has the limits of batches, in bytes, and the kinds that Next may return.
type Room struct {
	// Stability is set if a stability timestamp may have become possible.
	Stability bool
	// SideLeast and SideMost are the limits for TakeSide. SideMost 0: no batch of side streams now.
	SideLeast, SideMost int
	// AheadFrom is the queue size from which ApplyAhead is called, with AheadBytes and AheadKeep as its limits.
	AheadFrom, AheadBytes, AheadKeep int
}

// Next returns the next batch to write, nil if there is none or Work must be taken first. The kinds take turns: one
// batch of each that has something, so that none waits for more than one batch of each other kind. A ready index gets
// its stability timestamps however much a build delivers, a build makes progress however often timestamps come, and
// the queue is emptied in spite of both. acks are those of Flush.
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
