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
	// takeAtOnce bounds how many batches are taken before the loop looks at anything else.
	takeAtOnce = 16
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

// takeSome takes a batch and some more from the same inbox, while they are there and there is room.
func (k *Bucket) takeSome(in inbound, from *inbox, full func() bool) {
	k.take(in, from)
	for range takeAtOnce {
		if full() {
			return
		}
		select {
		case more := <-from.batches:
			k.take(more, from)
		default:
			return
		}
	}
}

// take returns a batch to the state. The events are packed there, so that the frame is free afterwards.
func (k *Bucket) take(in inbound, from *inbox) {
	defer from.room.leave(in.size)
	if in.lost {
		k.st.ConnectionLost(in.src.Connection)
		k.node.Report()
		return
	}
	for i := range in.batch.Events {
		e := &in.batch.Events[i]
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
		case keyversion.Sync, keyversion.DSync:
			k.work.Look()
		}
	}
	if k.st.Pending() > 0 { // this may have been what a stability timestamp waits for, before a SYNC says so
		k.work.Look()
	}
	in.release()
}
