package core

import (
	"testing"

	"tidemark/wire"
)

// TestReporting: what was answered is known, and the next report builds on it; all is told after a report that nobody
// answered, and to a leader that asks for it or does not know the projector.
func TestReporting(t *testing.T) {
	var r Reporting[string]
	for i, c := range []struct {
		what  string
		reply *wire.ReportReply // nil: none
		base  uint64
	}{
		{"the first", &wire.ReportReply{Known: true}, 1},
		{"the next", &wire.ReportReply{Known: true}, 2},
		{"no answer", nil, 0},
		{"all was told", &wire.ReportReply{Known: true}, 4},
		{"it wants all", &wire.ReportReply{Known: true, Full: true}, 0},
		{"all was told again", &wire.ReportReply{Known: true}, 6},
		{"it does not know the projector", &wire.ReportReply{}, 0},
	} {
		if c.reply == nil {
			r.Lost()
		} else {
			r.Answered(uint64(i)+1, c.what, c.reply)
		}
		if known, base := r.Known(); base != c.base || (known == c.what) != (c.base > 0) {
			t.Errorf("%s: %q is known by %d", c.what, known, base)
		}
	}
}
