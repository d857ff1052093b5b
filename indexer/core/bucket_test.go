package core

import (
	"testing"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

func newBucket(t *testing.T) *Bucket {
	t.Helper()
	b, err := NewBucket(&wire.Bucket{Name: "b", Generation: 3, RollbackID: 2}, 2,
		func(*keyversion.Event) []byte { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hosting returns a bucket with copies of two indexes that hold vbucket 0 of branch 7 up to a seqno.
func hosting(t *testing.T, seqno uint64) *Bucket {
	t.Helper()
	b := newBucket(t)
	for i, id := range []index.CopyID{10, 11, 20} {
		at := ingest.Position{VBUUID: 7, Main: seqno, Side: seqno, A: seqno}
		err := b.Add(ingest.Copy{ID: id, Index: index.ID(1 + i/2), Slice: index.SliceID(i % 2), Ready: true,
			Positions: []ingest.Position{at, {}}, Logs: []timestamp.FailoverLog{{{VBUUID: 7}}, nil}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// TestAcks: acknowledgements that the leader has received are not sent again, those that it may not have are, and a
// bounded number is kept.
func TestAcks(t *testing.T) {
	b := newBucket(t)
	for n := range uint64(MaxAcks + 3) {
		b.Acknowledge(ingest.Ack{Ref: timestamp.Ref{Number: n}, Made: true})
	}
	acks := b.Acks()
	if len(acks) != MaxAcks || acks[0].Number != 3 || acks[0].Bucket != "b" || !acks[0].Made {
		t.Fatalf("%d are kept, the oldest %+v", len(acks), acks[0])
	}
	b.Acknowledge(ingest.Ack{Ref: timestamp.Ref{Number: 1000}})
	b.DropAcks(acks[len(acks)-1].StabilityRef) // meanwhile the first of them was dropped
	if left := b.Acks(); len(left) != 1 || left[0].Number != 1000 || acks[0].Number != 3 {
		t.Errorf("%+v are left", left)
	}
	if b.DropAcks(acks[0].StabilityRef); len(b.Acks()) != 1 {
		t.Errorf("%+v are left behind one that had gone", b.Acks())
	}
	if b.DropAcks(b.Ref(timestamp.Ref{Number: 1000})); len(b.Acks()) > 0 {
		t.Errorf("%+v are left", b.Acks())
	}
}

// TestPoll: a node without the bucket, or whose copies no stream feeds, does not participate; older incarnations are
// refused from then on.
func TestPoll(t *testing.T) {
	req := &wire.PollRequest{Bucket: "b", VBuckets: []uint16{1, 0}, Incarnation: index.Incarnation{Counter: 9}}
	poll := func(b *Bucket) []wire.PollPosition {
		all, err := Poll(b, req).Positions()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if none := poll(nil); len(none) > 0 {
		t.Errorf("of a bucket that is not here: %+v", none)
	}
	b := hosting(t, 50)
	if all := poll(b); len(all) > 0 {
		t.Errorf("of one that nothing feeds: %+v", all)
	}
	if least := b.Minimum(); least[0].Counter != 9 || least[1].Counter != 9 {
		t.Errorf("refused is what is below %v", least)
	}
}

// TestRollback: the node waits for a copy that left KV's branch; a repeated request finds it done; an older rollback
// is refused.
func TestRollback(t *testing.T) {
	b := hosting(t, 50)
	req := &wire.RollbackRequest{RollbackID: 3, Incarnation: index.Incarnation{Counter: 1},
		Logs: []timestamp.FailoverLog{{{VBUUID: 8, Seqno: 40}, {VBUUID: 7}}, {{VBUUID: 9}}}}
	reply := b.Prepare(req, func(index.CopyID, int) []ingest.Held { return nil })
	if reply.Stale || reply.RollbackID != 3 || len(reply.Restart) != 2 || reply.Restart[0] != 0 {
		t.Errorf("with nothing to go back to: %+v", reply)
	}
	if back := b.CarryOut(req); back != BackWaits {
		t.Fatalf("three copies have to go back: %d", back)
	}
	for _, w := range b.Work() {
		if w.Restore != nil {
			b.Restored(*w.Restore, ingest.Position{}, nil)
		}
	}
	if back := b.CarryOut(req); back != BackDone && back != BackNow {
		t.Errorf("all are back: %d", back)
	}
	older := *req
	older.RollbackID = 2
	if back := b.CarryOut(&older); back != BackOlder {
		t.Errorf("an older one: %d", back)
	}
}

// TestReport: the report contains the complete state, and each index once.
func TestReport(t *testing.T) {
	b := hosting(t, 50)
	r, copies := b.Report(Asked{HW: true, QueueLimit: 7, Building: func(id index.ID) bool { return id == 2 }})
	if r.Generation != 3 || r.RollbackID != 2 || r.Heartbeat.Bucket != "b" || r.Heartbeat.QueueLimit != 7 ||
		len(r.Heartbeat.IndexIDs) != 2 || r.Heartbeat.HW.At(0).Seqno != 50 || r.Backfill.At(0).Seqno != 50 ||
		r.Persistent.Len() != 2 || r.Heartbeat.LastPersistence != 0 {
		t.Errorf("%+v", r)
	}
	if len(copies) != 3 || copies[0].Copy != 10 || copies[2].Index != 2 || !copies[0].Ready {
		t.Errorf("%+v", copies)
	}
	durable := timestamp.New(2)
	durable.Set(0, timestamp.Position{VBUUID: 7, Seqno: 40})
	r, _ = b.Report(Asked{Building: func(index.ID) bool { return false }, Durable: durable})
	if r.Heartbeat.HW.Len() > 0 || r.Backfill.Len() > 0 || r.Persistent.At(0).Seqno != 40 ||
		r.Heartbeat.LastPersistence != durable.Hash() {
		t.Errorf("%+v", r)
	}
}
