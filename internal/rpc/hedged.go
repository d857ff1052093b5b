package rpc

import (
	"context"
	"iter"
	"sync"
	"time"
)

// hedge is how long one place is waited for before the next is asked beside it.
const hedge = 200 * time.Millisecond

// Hedged asks one place after the other and gives what each has answered: the next is asked when one has answered, and
// beside those that have not within 200 ms, so that one that hangs keeps nobody from the others. Whoever has heard
// enough breaks off; the questions that are under way end then, and those of ctx with it. When it is over none goes on.
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
		answers, next := make(chan answer, len(places)), time.NewTimer(0)
		defer next.Stop()
		for asked, answered := 0, 0; answered < len(places); {
			select {
			case <-next.C:
				if asked == len(places) || ctx.Err() != nil {
					continue
				}
				place := places[asked]
				asked++
				asking.Go(func() { answers <- answer{place, ask(ctx, place)} })
				next.Reset(hedge)
			case a := <-answers:
				if answered++; !yield(a.place, a.err) {
					return
				}
				next.Reset(0)
			case <-ctx.Done():
				return
			}
		}
	}
}
