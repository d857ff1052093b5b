package topic

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// TestRefused: what projectors do not have, or do not let the subscriber have, ends a subscription when it lasts; all
// else is tried for ever.
func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		err   error
		final bool
	}{
		{rpc.Refuse(errcode.NotFound, "no bucket b"), true},
		{rpc.Refuse(errcode.Forbidden, "want a certificate of role indexer"), true},
		{rpc.Refuse(errcode.Unauthenticated, "a certificate is wanted"), true},
		{rpc.Refuse(errcode.Unavailable, "starting"), false},
		{errors.New("connection refused"), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			s := &Subscription{log: hclog.New(&hclog.LoggerOptions{Output: &log}), told: map[string]string{}}
			for range 2 {
				if err := s.refused("p1", tc.err); err != nil {
					t.Errorf("%v is final at once: %v", tc.err, err)
				}
				time.Sleep(missingPatience - time.Nanosecond)
			}
			time.Sleep(time.Nanosecond)
			if err := s.refused("p1", tc.err); (err != nil) != tc.final || tc.final && !errors.Is(err, tc.err) {
				t.Errorf("%v for more than %v: %v, want final %v", tc.err, missingPatience, err, tc.final)
			}
			if told := strings.Count(log.String(), "trying again"); told != 1 {
				t.Errorf("the log tells of %v %d times, want once until something else is wrong:\n%s", tc.err, told, &log)
			}
			_ = s.refused("p1", errors.New("something else"))
			_ = s.refused("p2", errors.New("something else"))
			if told := strings.Count(log.String(), "something else"); told != 2 {
				t.Errorf("of two projectors the log tells %d times, want once of each:\n%s", told, &log)
			}
		})
	}
}
