package projector

import (
	"context"
	"errors"
	"testing"
	"time"

	"tidemark/projector/feed"
)

// TestSideEndsWithItsContext: even if its reader sees the end while it holds a block, which happens in one of two
// attempts here; a side that missed this kept its projector from ending.
func TestSideEndsWithItsContext(t *testing.T) {
	for range 50 {
		ctx, end := context.WithCancelCause(t.Context())
		last := &reader{reading: &reading{}, ready: make(chan struct{}, 1), queue: []*feed.Block{{}}}
		s := &side{p: &Projector{}, from: last, ctx: ctx}
		s.open.Store(1)
		end(errSideStopped)
		ended := make(chan error, 1)
		go func() { ended <- s.pumpAll(ctx) }()
		select {
		case err := <-ended:
			if !errors.Is(err, errSideStopped) {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it goes on")
		}
	}
}
