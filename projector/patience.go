package projector

import (
	"context"
	"errors"
	"time"

	"tidemark/projector/feed"
)

// Pauses before a refused query is repeated; all of them together take about 0.6 s.
const (
	askAgainFirst = 5 * time.Millisecond
	askAgainTimes = 7
)

// askEach sends a query for each vbucket, and repeats those that KV refuses temporarily: among a thousand vbuckets
// one may always be refused, and callers need answers for all. Queries that are still refused at the end, or when ctx
// ends, keep that error.
func askEach[A any](ctx context.Context, vbs []uint16, ask func(vbs []uint16) []A, failed func(A) error) []A {
	answers := ask(vbs)
	pause := time.NewTimer(askAgainFirst)
	defer pause.Stop()
	for n := range askAgainTimes {
		var at []int
		var rest []uint16
		for i, a := range answers {
			if errors.Is(failed(a), feed.ErrTemporary) {
				at, rest = append(at, i), append(rest, vbs[i])
			}
		}
		if len(at) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return answers
		case <-pause.C:
		}
		for i, a := range ask(rest) {
			if err := failed(a); err == nil || ctx.Err() == nil { // else keep KV's own, clearer error
				answers[at[i]] = a
			}
		}
		pause.Reset(askAgainFirst << (n + 1))
	}
	return answers
}
