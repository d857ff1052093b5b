package projector

import (
	"context"
	"errors"
	"time"

	"tidemark/projector/feed"
)

// Pauses before a refused query is repeated; all of them together take about 0.6 s.
const (
	retryFirst = 5 * time.Millisecond
	retryTimes = 7
)

// queryEach sends a query for each vbucket, and repeats those that KV refuses temporarily: among a thousand vbuckets
// one may always be refused, and callers need answers for all. Queries that are still refused at the end, or when ctx
// ends, keep that error.
func queryEach[A any](ctx context.Context, vbs []uint16, query func(vbs []uint16) []A, failed func(A) error) []A {
	answers := query(vbs)
	pause := time.NewTimer(retryFirst)
	defer pause.Stop()
	for n := range retryTimes {
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
		for i, a := range query(rest) {
			if err := failed(a); err == nil || ctx.Err() == nil { // else keep KV's own, clearer error
				answers[at[i]] = a
			}
		}
		pause.Reset(retryFirst << (n + 1))
	}
	return answers
}
