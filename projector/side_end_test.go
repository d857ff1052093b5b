package projector

import (
	"context"
	"errors"
	"testing"
	"time"

	"tidemark/projector/feed"
)

// lastBlock is a feed whose context ends while it hands a block out.
type lastBlock struct {
	feed.Feed
	end context.CancelCauseFunc
}

func (f *lastBlock) Next(context.Context) (*feed.Block, error) {
	f.end(errSideStopped)
	return &feed.Block{}, nil
}

// TestSideEndsWithItsContext: also when its reader sees the end with a block in its hand, which happens in one of two
// tries here: a side that did not notice kept its projector from ending.
func TestSideEndsWithItsContext(t *testing.T) {
	for range 50 {
		ctx, end := context.WithCancelCause(t.Context())
		s := &side{p: &Projector{}, conn: &lastBlock{end: end}, ctx: ctx, open: 1}
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
		end(nil)
	}
}
