package rpc

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"tidemark/errcode"
)

// fill lets each principal take, in turn, as many places as it can get, and returns how many each has then.
func fill(t *testing.T, p *Places, names ...string) []int {
	t.Helper()
	held := make([]int, len(names))
	for more := true; more; {
		more = false
		for i, who := range names {
			err := p.Enter(who)
			if err == nil {
				held[i]++
				more = true
			} else if q := new(Problem); !errors.As(err, &q) || q.Code != errcode.Busy || q.RetryAfterMS == 0 {
				t.Fatalf("%s with %d: %v", who, held[i], err)
			}
		}
	}
	return held
}

// TestPlacesAreShared checks that one principal cannot take all places, and that anonymous callers can.
func TestPlacesAreShared(t *testing.T) {
	for _, c := range []struct {
		most  int
		names []string
		least int // what each has when all want as many as they can get
		left  int // at most
	}{
		{256, []string{Anonymous}, 256, 0},
		{256, []string{"a"}, 192, 64},
		{32, []string{"a"}, 24, 8},
		{256, []string{"a", "b"}, 109, 38},
		{256, []string{"a", "b", "c", "d"}, 58, 24},
		{1, []string{"a"}, 1, 0},
		{4, []string{"a", "b", "c", "d"}, 1, 0},
	} {
		p := NewPlaces(c.most, "scans")
		sum := 0
		for i, n := range fill(t, p, c.names...) {
			if sum += n; n < c.least {
				t.Errorf("%d places, %v: %s has %d, want %d", c.most, c.names, c.names[i], n, c.least)
			}
		}
		if left := c.most - sum; left > c.left || p.Taken() != sum {
			t.Errorf("%d places, %v: %d are left, want at most %d; taken %d of %d", c.most, c.names, left, c.left, p.Taken(),
				sum)
		}
	}
}

// TestReturnedPlacesGoToFewestHeld checks that, when all places are taken, each one returned is for the principal with
// the fewest.
func TestReturnedPlacesGoToFewestHeld(t *testing.T) {
	p := NewPlaces(256, "scans")
	for i := range 6 {
		fill(t, p, strconv.Itoa(i))
	}
	if err := p.Enter("late"); err == nil {
		t.Fatal("a place was granted although all 256 are taken")
	}
	p.Leave("0")
	err := p.Enter("0")
	if err == nil || !strings.Contains(err.Error(), "191 of the 255 scans in progress on this node belong to 0") {
		t.Fatalf("the principal with the most places gets %v", err)
	}
	if err := p.Enter("late"); err != nil {
		t.Fatal(err)
	}
	p.Leave("late")
	for range 191 {
		p.Leave("0")
	}
	if got := fill(t, p, "0", "late"); got[0] < 80 || got[1] < 80 || len(p.by) != 6 {
		t.Fatalf("%d for two who want as many as they can get; principals %v", got, p.by)
	}
}
