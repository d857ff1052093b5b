package verify

import (
	"errors"
	"testing"
	"time"

	"tidemark/keyversion"
)

// TestEarlyEndRestartsOnlyItsVBucket checks that only the vbucket whose stream ended early is read again. The results
// of the others count, and they continue.
func TestEarlyEndRestartsOnlyItsVBucket(t *testing.T) {
	r := &sideRead{now: time.Now, id: 5, vbs: map[uint16]*vbRead{}, open: 2, bytes: &budget{left: 1 << 20},
		done: make(chan struct{})}
	for vb := range uint16(2) {
		r.vbs[vb] = &vbRead{stretch: stretch{to: 10}, vb: vb, docs: map[string]*kvVersion{}}
	}
	take := func(kind keyversion.Kind, vb uint16, seqno uint64) {
		t.Helper()
		e := keyversion.Event{Kind: kind, VBucket: vb, Seqno: seqno}
		if e.Incarnation.Counter = 5; kind == keyversion.StreamBegin {
			e.Begin = &keyversion.Begin{}
		}
		if _, err := r.take(&keyversion.Batch{Events: []keyversion.Event{e}}); err != nil {
			t.Errorf("%v of vbucket %d: %v", kind, vb, err)
		}
	}
	take(keyversion.StreamBegin, 0, 0)
	take(keyversion.StreamBegin, 1, 0)
	take(keyversion.DropData, 0, 4)
	take(keyversion.DropData, 0, 4) // over another connection
	select {
	case <-r.done:
		t.Fatal("it is over, and a vbucket is under way")
	default:
	}
	take(keyversion.StreamEnd, 1, 10)
	<-r.done
	got, err := r.result()
	if len(got) != 1 || got[1] == nil || !errors.Is(err, errVerifyStream) {
		t.Errorf("%v, %v; want vbucket 1, and why the other one is not there", got, err)
	}
}

// TestVerifyContinuesAfterASync checks that a router that has lost a stream's connection continues at the newest SYNC
// that was taken, which may be beyond documents that are not of this index. That is no gap. A stream that begins
// above it is a gap.
func TestVerifyContinuesAfterASync(t *testing.T) {
	r, v := &sideRead{open: 1}, &vbRead{stretch: stretch{to: 100}}
	begin := func(start uint64) error {
		return r.event(v, &keyversion.Event{Kind: keyversion.StreamBegin, Seqno: start,
			Begin: &keyversion.Begin{Start: start}})
	}
	if err := begin(0); err != nil {
		t.Fatal(err)
	}
	if err := r.event(v, &keyversion.Event{Kind: keyversion.Sync, Seqno: 50}); err != nil {
		t.Fatal(err)
	}
	if err := begin(50); err != nil {
		t.Error(err)
	}
	if err := begin(51); !errors.Is(err, errVerifyStream) {
		t.Errorf("a gap: %v", err)
	}
}
