package projector

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"tidemark/projector/feed"
)

// TestTroubles: a failure counts from the first one after the last success, with its newest error; it expires if it
// is not repeated; a missing bucket is not a failure; closing a bucket removes its failure; the number of failures is
// bounded.
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
	note("a", refused, true)
	if !x.closed("a") || x.closed("a") {
		t.Error("that a bucket with a trouble is closed is news, once")
	}
	shows("")
	note("a", errors.New("x\xff"+strings.Repeat("é", maxTrouble)), true)
	if e := x.list("kv:1", now)[0].Error; len(e) > maxTrouble || !strings.HasSuffix(e, "é…") || !utf8.ValidString(e) {
		t.Errorf("an error has %d bytes: %q; the leader would refuse the report that has it", len(e), e)
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

// TestTurns: a change is logged at once after a quiet time, otherwise when it has lasted; changes that do not last
// are logged together from time to time, with their number.
func TestTurns(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	var x troubles
	logged := ""
	note := func(after time.Duration, bad bool) {
		now = now.Add(after)
		if n, news := x.turn("a", bad, now); news {
			logged += fmt.Sprintf("%v %d %v; ", bad, n, now.Sub(time.UnixMilli(1_000_000)))
		}
	}
	says := func(what, want string) {
		t.Helper()
		if logged != want {
			t.Errorf("%s: the log has %q, want %q", what, logged, want)
		}
		logged = ""
	}
	note(0, false)
	says("nothing is wrong", "")
	note(0, true)
	says("the first failure", "true 1 0s; ")
	for range 240 { // two minutes
		note(250*time.Millisecond, false)
		note(250*time.Millisecond, true)
	}
	says("by turns for two minutes", "true 240 1m0s; true 240 2m0s; ")
	note(250*time.Millisecond, false)
	says("a success", "")
	note(turnLasts, false)
	says("a success that lasts", "false 1 2m5.25s; ")
	note(time.Second, true)
	note(time.Second, false)
	note(turnLasts, false)
	says("a failure soon after that lasts less", "")
	note(turnQuiet, false)
	says("the rest of it", "false 2 3m12.25s; ")
	note(turnQuiet, false)
	if len(x.turns) != 0 {
		t.Errorf("%d buckets are remembered of which nothing is wrong", len(x.turns))
	}
	note(time.Second, true)
	says("a failure after a quiet time", "true 1 4m13.25s; ")
	for i := range 3 * maxTroubles {
		x.turn(fmt.Sprint(i), true, now)
	}
	if n := len(x.turns); n != maxTroubles {
		t.Errorf("%d buckets are remembered", n)
	}
}
