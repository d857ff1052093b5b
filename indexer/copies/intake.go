package copies

import (
	"tidemark/indexer/packed"
	"tidemark/ingest"
	"tidemark/keyversion"
)

const (
	// dataInbox is how many batches may wait for a bucket's loop: two for each of some tens of connections. Beyond it
	// the connections wait, as they do beyond the bytes that an inbox has room for.
	dataInbox = 64
)

// inbound is one batch on its way to a bucket, or the end of its connection.
type inbound struct {
	src     ingest.Source
	side    bool
	lost    bool
	batch   *keyversion.Batch
	size    int64 // that it takes of the inbox
	release func()
}

// inbox has batches that wait for the loop.
type inbox struct {
	batches chan inbound
	room    inboxRoom

	// of the loop
	now   inbound // the batch of which a part is taken
	begun bool
	at    int // how many of its events are
}

// begin has a batch taken next.
func (b *inbox) begin(in inbound) { b.now, b.begun, b.at = in, true, 0 }

// end notes that all of a batch is taken.
func (b *inbox) end() {
	size := b.now.size
	b.now, b.begun = inbound{}, false
	b.room.leave(size)
}

// next is the batch that is taken next, or goes on being taken; false: there is none.
func (b *inbox) next(full func() bool) bool {
	if b.begun { // to its end, however much it is: only who has all of it gives its memory back
		return true
	}
	if full() {
		return false
	}
	select {
	case in := <-b.batches:
		b.begin(in)
		return true
	default:
		return false
	}
}

// intake is what streams bring, until the state has it.
type intake struct {
	boxes  [2]inbox // of maintenance streams, of side streams
	mem    packed.Arena
	places packed.Interned
	events [verdicts]counter
}

// newIntake is for a bucket that may hold so many bytes in memory.
func newIntake(queue func() int64) *intake {
	in := &intake{}
	for i := range in.boxes {
		in.boxes[i].batches, in.boxes[i].room.queue = make(chan inbound, dataInbox), queue
	}
	return in
}

// box is the inbox of side streams, or that of maintenance streams.
func (in *intake) box(side bool) *inbox {
	if side {
		return &in.boxes[1]
	}
	return &in.boxes[0]
}

// takeSome takes what an inbox has, while there is room, takeBytes of it at most, and no more than a piece while a call
// waits. It reports whether it has taken anything.
func (k *Bucket) takeSome(from *inbox, full func() bool) (took bool) {
	for left := takeBytes; left > 0 && from.next(full); took = true {
		if took && len(k.calls.queue) > 0 {
			break
		}
		left -= max(takeLeast, k.take(from, left))
	}
	return took
}

// take returns a batch to the state, or as much of it as most bytes are, and what that has cost. The events are packed
// there, so that the frame is free after the last of them.
func (k *Bucket) take(from *inbox, most int) (cost int) {
	in := &from.now
	if in.lost {
		k.st.ConnectionLost(in.src.Connection)
		k.node.Report()
		from.end()
		return 0
	}
	for ; from.at < len(in.batch.Events) && cost < most; from.at++ {
		cost += k.takeOne(in, &in.batch.Events[from.at])
	}
	if k.st.Pending() > 0 { // this may have been what a stability timestamp waits for, before a SYNC says so
		k.work.Look()
	}
	if from.at == len(in.batch.Events) {
		in.release()
		from.end()
	}
	return cost
}

// takeOne returns an event to the state.
func (k *Bucket) takeOne(in *inbound, e *keyversion.Event) (cost int) {
	held, named := k.st.QueueBytes(), len(e.Copies)
	e.Rest = k.in.places.Of(e.Rest)
	var v ingest.Verdict
	if in.side {
		v = k.st.AcceptSide(in.src, e)
	} else {
		v = k.st.Accept(in.src, e)
	}
	k.in.events[v].add(1)
	switch e.Kind {
	case keyversion.StreamBegin, keyversion.StreamEnd, keyversion.Activate, keyversion.Deactivate, keyversion.DropData:
		k.log.Debug("stream event", "kind", e.Kind, "vbucket", e.VBucket, "incarnation", e.Incarnation, "seqno", e.Seqno,
			"projector", in.src.Projector, "side", in.side, "verdict", v)
		k.work.Look()
		k.node.Report()
		k.node.Sides()
		if e.Begin != nil {
			named += len(e.Begin.Copies)
		}
	case keyversion.Sync, keyversion.DSync:
		k.work.Look()
	}
	return takeEvent*(1+named) + max(0, k.st.QueueBytes()-held)
}
