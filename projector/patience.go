package projector

import (
	"context"
	"errors"
	"time"

	"tidemark/projector/feed"
)

// Pauses between questions that are asked again; together they take some 0.6 s.
const (
	askAgainFirst = 5 * time.Millisecond
	askAgainTimes = 7
)

// askEach asks a question of each vbucket, and asks again those that KV refuses for the moment: of a thousand one may
// always be refused, and the answer is to be of all. What is still refused then, or when ctx ends, stays.
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
			if err := failed(a); err == nil || ctx.Err() == nil { // else what KV said tells more than that time is over
				answers[at[i]] = a
			}
		}
		pause.Reset(askAgainFirst << (n + 1))
	}
	return answers
}
