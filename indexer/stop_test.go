package indexer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestOrderlyStopIsBounded checks that an orderly stop waits for work in progress, but not forever.
func TestOrderlyStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		ctx, cancel := context.WithCancel(t.Context())
		if err := stopWithin(ctx, time.Second, func() error { time.Sleep(time.Hour); return failed }); !errors.Is(err,
			failed) {
			t.Errorf("it ended by itself: %v", err)
		}
		cancel()
		if err := stopWithin(ctx, time.Second,
			func() error { time.Sleep(999 * time.Millisecond); return failed }); !errors.Is(err, failed) {
			t.Errorf("it ended in time: %v", err)
		}
		began := time.Now()
		if err := stopWithin(ctx, time.Second, func() error { time.Sleep(time.Hour); return nil }); !errors.Is(err,
			ErrHangs) || time.Since(began) != time.Second {
			t.Errorf("%v after %s, want ErrHangs after 1s", err, time.Since(began))
		}
		part, fail := context.WithCancelCause(t.Context()) // a part has failed, without a signal
		fail(failed)
		began = time.Now()
		if err := stopWithin(part, time.Second, func() error { time.Sleep(time.Hour); return nil }); !errors.Is(err,
			ErrHangs) || !errors.Is(err, failed) || time.Since(began) != time.Second {
			t.Errorf("%v after %s, want ErrHangs and why after 1s", err, time.Since(began))
		}
		time.Sleep(time.Hour) // what was given up ends here, and so does the bubble
	})
}
