package rpc

import (
	"context"
	"iter"
	"sync"
	"time"
)

// hedge is the time after which the next place is asked if the present one has not answered.
const hedge = 200 * time.Millisecond

// Hedged asks places one after the other and yields each answer. The next place is asked after an answer, or after
// 200 ms without one, so that a hanging place does not delay the others. If the caller breaks out of the loop, or ctx
// ends, requests in flight are cancelled. None is running when the loop ends.
func Hedged(ctx context.Context, places []string, ask func(ctx context.Context, place string) error) iter.Seq2[string,
	error] {
	type answer struct {
		place string
		err   error
	}
	return func(yield func(string, error) bool) {
		var asking sync.WaitGroup
		defer asking.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		answers, next := make(chan answer, len(places)), time.NewTimer(hedge)
		defer next.Stop()
		asked := 0
		askNext := func() {
			if asked == len(places) || ctx.Err() != nil {
				return
			}
			place := places[asked]
			asked++
			asking.Go(func() { answers <- answer{place, ask(ctx, place)} })
			next.Reset(hedge)
		}
		askNext()
		for answered := 0; answered < len(places); {
			select {
			case <-next.C:
				askNext()
			case a := <-answers:
				if answered++; !yield(a.place, a.err) {
					return
				}
				askNext()
			case <-ctx.Done():
				return
			}
		}
	}
}
