package copies

import (
	"testing"
	"time"

	"tidemark/indexer/storage/storagetest"
)

// TestHealthReportsHangingWrite: the node's health reports the write until it has ended.
func TestHealthReportsHangingWrite(t *testing.T) {
	k := testBucketLoop(t)
	report := make(chan struct{}, 1)
	k.node.Report = func() {
		select {
		case report <- struct{}{}:
		default:
		}
	}
	_, s := storagetest.Open(t)
	going := make(chan struct{})
	done := make(chan outcome, 1)
	source := CopySource + s.Meta().Copy.String()
	go func() {
		done <- k.persistentlyWithin(t.Context(), s, time.Millisecond, func() error { <-going; return nil })
	}()
	for k.node.Health.All()[source] == "" {
		select {
		case <-t.Context().Done():
			t.Fatal("the node's health says nothing")
		case <-report:
		}
	}
	close(going)
	if o := <-done; o.missing || o.again != nil || k.node.Health.First() != "" {
		t.Errorf("%+v, health %q", o, k.node.Health.First())
	}
}
