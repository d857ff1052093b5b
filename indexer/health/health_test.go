package health

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatch checks that an operation that takes too long is reported while it runs, and that others are not.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Health
		lates := 0
		for _, c := range []struct {
			takes time.Duration
			err   error
			late  int
		}{{Hangs - 1, nil, 0}, {Hangs - 1, errors.New("full"), 0}, {Hangs + 1, nil, 1}, {Hangs + 1, errors.New("full"), 2}} {
			err := h.Watch("copy 3", "a write", Hangs, func() {
				lates++
				want := "a write has been pending for more than 30s: the disk hangs, or is far too slow"
				if why := h.Why("copy 3"); why != want {
					t.Errorf("%q is wrong, want %q", why, want)
				}
			}, func() error {
				time.Sleep(c.takes)
				return c.err
			})
			if !errors.Is(err, c.err) || lates != c.late || (h.First() != "") != (c.late > 0) {
				t.Errorf("%+v: %v, late %d times, %q", c, err, lates, h.First())
			}
		}
		if why := h.Why("copy 4"); why != "copy 3: "+h.Why("copy 3") {
			t.Errorf("of another source: %q", why)
		}
	})
}

// TestHealth checks that a new problem is logged once, that a solved one is removed, and that of several problems
// always the same one is named.
func TestHealth(t *testing.T) {
	var h Health
	for _, step := range []struct {
		source, why string
		news        bool
		first       string
	}{
		{"disk", "full", true, "disk: full"}, {"disk", "still full", false, "disk: still full"},
		{"copy 3", "hangs", true, "copy 3: hangs"}, {"disk", "", true, "copy 3: hangs"}, {"disk", "", false, "copy 3: hangs"},
		{"copy 3", "", true, ""},
	} {
		if news := h.Set(step.source, step.why); news != step.news || h.First() != step.first {
			t.Errorf("%+v: new %v, %q is wrong", step, news, h.First())
		}
	}
	h.Set("copy 3", "hangs")
	h.Set("managers", "away")
	for but, want := range map[string]string{"": "copy 3: hangs", "copy 3": "managers: away"} {
		if first := h.First(but); first != want {
			t.Errorf("but for %q: %q is wrong, want %q", but, first, want)
		}
	}
	h.Set("copy 3", "")
	if first := h.First("managers"); first != "" {
		t.Errorf("%q is wrong, and does not count", first)
	}
	h.Set("managers", "")
	if len(h.All()) > 0 {
		t.Errorf("%v are left", h.All())
	}
}
