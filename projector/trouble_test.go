package projector

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemark/projector/feed"
)

// TestTroubles: a failure counts from the first one since something succeeded, with its newest error; one that nobody
// repeats is forgotten; an answer of no is none; there are never more than a bound.
func TestTroubles(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	var x troubles
	note := func(bucket string, err error, want bool) {
		t.Helper()
		if got := x.note(bucket, err, now); got != want {
			t.Errorf("%s: news %v, want %v", bucket, got, want)
		}
	}
	shows := func(want string) {
		t.Helper()
		var all []string
		for _, k := range x.list("kv:1", now) {
			all = append(all, fmt.Sprintf("%s %s %d", k.Bucket, k.Error, k.SinceMS))
		}
		if got := strings.Join(all, ", "); got != want {
			t.Errorf("shown is %q, want %q", got, want)
		}
	}
	refused, silent := errors.New("refused"), errors.New("silent")
	note("a", nil, false)
	note("a", refused, true)
	now = now.Add(time.Second)
	note("a", refused, false)
	note("a", silent, true)
	note("b", feed.ErrNoBucket, false)
	note("b", refused, true)
	shows("a silent 1000000, b refused 1001000")
	note("b", feed.ErrNoBucket, true)
	now = now.Add(troubleKept)
	shows("a silent 1000000")
	note("a", nil, true)
	shows("")
	note("a", errors.New(strings.Repeat("x", 2*maxTrouble)), true)
	if n := len(x.list("kv:1", now)[0].Error); n != maxTrouble {
		t.Errorf("an error has %d bytes", n)
	}
	for i := range 3 * maxTroubles {
		x.note(fmt.Sprint(i), refused, now)
	}
	if n := len(x.all); n != maxTroubles {
		t.Errorf("%d troubles are kept", n)
	}
	now = now.Add(2 * troubleKept)
	note("new", refused, true)
	shows(fmt.Sprintf("new refused %d", now.UnixMilli()))
}
