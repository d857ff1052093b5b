package indexer

import (
	"fmt"
	"testing"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// TestPumpTurns: while a side stream brings more than can be written, a stability timestamp waits for the batch that is being
// written and no longer. A build would else end before anybody sees a scan of the ready indexes of its bucket.
func TestPumpTurns(t *testing.T) {
	const active = 100_000
	k := testBucketLoop(t)
	k.x.cfg.QueueBytes = 64 << 20
	log := timestamp.FailoverLog{{VBUUID: 7}}
	held := ingest.Position{VBUUID: 7, Main: active, Side: active, A: active}
	both := []ingest.Position{held, held}
	for _, c := range []ingest.Copy{{ID: 1, Index: 1, Ready: true, Positions: both, Logs: []timestamp.FailoverLog{log, log}}, {ID: 2, Index: 2}} {
		if err := k.st.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	accept := func(side bool, e keyversion.Event) {
		t.Helper()
		var v ingest.Verdict
		if side {
			e.Incarnation.Counter = 5
			v = k.st.AcceptSide(ingest.Source{Connection: 2}, &e)
		} else {
			v = k.st.Accept(ingest.Source{Connection: 1}, &e)
		}
		if v != ingest.Taken {
			t.Fatalf("%v of vbucket %d: %v", e.Kind, e.VBucket, v)
		}
		k.look = true
	}
	for vb := range uint16(2) {
		accept(false, keyversion.Event{Kind: keyversion.StreamBegin, VBucket: vb, Begin: &keyversion.Begin{Start: active, Log: log, Copies: []index.CopyID{1, 2}}})
	}
	for _, w := range k.st.Wants() {
		k.st.OpenSide(w, 5)
	}
	accept(true, keyversion.Event{Kind: keyversion.StreamBegin, Begin: &keyversion.Begin{Log: log}})
	seqno, key := uint64(0), make([]byte, 4<<10)
	key[0] = 1
	bring := func() {
		for k.st.SideBytes() < 4*sideBatch {
			seqno++
			accept(true, keyversion.Event{Kind: keyversion.Insert, Seqno: seqno, DocID: fmt.Appendf(nil, "d%d", seqno),
				Window: timestamp.Window{End: active}, Statements: []keyversion.Statement{{Index: 2, Keys: [][]byte{key}}}})
		}
	}
	// written lets the writer end its job, and gives what it was.
	written := func() (kind ingest.BatchKind, bytes int) {
		t.Helper()
		select {
		case j := <-k.jobs:
			kind, bytes = j.work.Batch.Kind, j.work.Batch.Bytes()
			k.finish(result{work: j.work})
		default:
			t.Fatal("the writer has nothing to do")
		}
		return kind, bytes
	}
	bring()
	k.pump(false)
	sides := 0
	for n := range uint64(20) {
		bring()
		v := timestamp.New(2)
		for vb := range 2 {
			at := active + n
			if vb == 0 {
				at++
				accept(false, keyversion.Event{Kind: keyversion.Sync, Seqno: at})
			} else {
				at = active
			}
			v.Set(vb, timestamp.Position{VBUUID: 7, Seqno: at})
		}
		k.st.Publish(ingest.Stability{Ref: ingest.Ref{Number: n + 1}, Vector: v})
		for waited := 0; ; waited++ {
			kind, bytes := written()
			bring()
			k.pump(false)
			if kind == ingest.AtStability {
				break
			}
			if sides++; waited > 0 || bytes > sideBatch {
				t.Fatalf("stability timestamp %d waits for batch %d, of %d bytes of side streams", n+1, waited+1, bytes)
			}
		}
	}
	if sides < 10 {
		t.Errorf("%d batches of side streams beside 20 stability timestamps: the build does not go on", sides)
	}
}
