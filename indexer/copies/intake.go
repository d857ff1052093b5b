package copies

import (
	"tidemark/indexer/packed"
	"tidemark/ingest"
	"tidemark/keyversion"
)

const (
	// dataInbox bounds the batches that wait for a bucket's loop: two for each of some tens of connections. Beyond it
	// connections block, as they do when the inbox has no room for more bytes.
	dataInbox = 64
)

// inbound is a batch on its way to a bucket, or the end of its connection.
type inbound struct {
	src     ingest.Source
	side    bool
	lost    bool
	batch   *keyversion.Batch
	size    int64 // bytes of the inbox that it occupies
	release func()
}

// inbox queues batches for the loop.
type inbox struct {
	batches chan inbound
	room    inboxRoom

	// owned by the loop
	now   inbound // the batch that is being taken
	begun bool
	at    int // number of its events that have been taken
}

// begin makes a batch the one that is being taken.
func (b *inbox) begin(in inbound) { b.now, b.begun, b.at = in, true, 0 }

// end records that the current batch has been taken completely.
func (b *inbox) end() {
	size := b.now.size
	b.now, b.begun = inbound{}, false
	b.room.leave(size)
}

// next selects the batch to take from, and reports whether there is one.
func (b *inbox) next(full func() bool) bool {
	if b.begun { // a batch is taken to its end even if the bucket is full: its memory is freed only then
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

// intake receives the batches of streams until the state takes their events.
type intake struct {
	boxes  [2]inbox // of maintenance streams, of side streams
	mem    packed.Arena
	places packed.Interned
	events [verdicts]counter
}

// newIntake returns the intake of a bucket; queue returns the bytes that the bucket may hold in memory.
func newIntake(queue func() int64) *intake {
	in := &intake{}
	for i := range in.boxes {
		in.boxes[i].batches, in.boxes[i].room.queue = make(chan inbound, dataInbox), queue
	}
	return in
}

// box returns the inbox of side streams or of maintenance streams.
func (in *intake) box(side bool) *inbox {
	if side {
		return &in.boxes[1]
	}
	return &in.boxes[0]
}

// takeSome takes batches from an inbox while there is room, up to takeBytes, and no more than a piece while a call
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

// take passes the current batch to the state, or as much of it as costs most bytes, and returns the cost. The state
// keeps packed copies of the events, so that the frame is released after the last event.
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
	if k.st.Pending() > 0 { // an event may complete what a stability timestamp waits for, before a SYNC does
		k.work.Look()
	}
	if from.at == len(in.batch.Events) {
		in.release()
		from.end()
	}
	return cost
}

// takeOne passes an event to the state and returns its cost in bytes.
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
