package health

import "testing"

// TestHealth: what is new is told once, what is well is forgotten, and of several things the same one is named.
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
	if len(h.All()) > 0 {
		t.Errorf("%v are left", h.All())
	}
}
