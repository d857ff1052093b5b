package rpc_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/internal/rpc"
)

// TestHedged checks that places are asked in turn, whatever the others do; that hanging ones delay the next by 200 ms
// each; and that no request is running when the caller has stopped or its time is over.
func TestHedged(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		places string // one letter each: h hangs, r refuses, a answers, l answers after a second
		want   string // the answers, in order of arrival
		after  time.Duration
	}{
		"the first answers":     {"aaa", "a", 0},
		"one hangs":             {"haa", "a", 200 * time.Millisecond},
		"those that refuse":     {"rrra", "rrra", 0},
		"many hang":             {"hhhhra", "ra", 800 * time.Millisecond},
		"a late one is heard":   {"lh", "l", time.Second},
		"no place answers":      {"hh", "", 3 * time.Second},
		"all have refused":      {"rr", "rr", 0},
		"one refuses meanwhile": {"hlr", "rl", 1200 * time.Millisecond},
		"no places":             {"", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				began, got, under := time.Now(), "", atomic.Int64{}
				for place, err := range rpc.Hedged(ctx, strings.Split(c.places, ""), func(ctx context.Context, place string) error {
					under.Add(1)
					defer under.Add(-1)
					switch place {
					case "h":
						<-ctx.Done()
						return ctx.Err()
					case "l":
						time.Sleep(time.Second)
					case "r":
						return refused
					}
					return nil
				}) {
					if place != "h" { // which ends with its context
						got += place
					}
					if err == nil {
						break
					}
				}
				if took := time.Since(began); got != c.want || took != c.after || under.Load() != 0 {
					t.Errorf("%q after %v, %d go on; want %q after %v", got, took, under.Load(), c.want, c.after)
				}
			})
		})
	}
}
