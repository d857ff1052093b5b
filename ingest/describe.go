package ingest

import (
	"fmt"
	"strings"

	"tidemark/timestamp"
)

// String returns the state: a line per vbucket with its stream, followed by a line per copy.
func (b *Bucket) String() string {
	var w strings.Builder
	b.Draw(&w, 0, len(b.vbs))
	return w.String()
}

// Draw writes the part of String for the given number of vbuckets, starting at from. The header precedes vbucket 0.
func (b *Bucket) Draw(w *strings.Builder, from, vbuckets int) {
	if from == 0 {
		fmt.Fprintf(w, "rollback %d, %d waiting", b.rollbackID, len(b.stability.waiting))
		if b.stability.haveLast {
			fmt.Fprintf(w, ", flushed S%d", b.stability.last.Number)
		}
		w.WriteByte('\n')
	}
	for vb := from; vb < min(from+vbuckets, len(b.vbs)); vb++ {
		b.describe(w, vb)
	}
}

func (b *Bucket) describe(w *strings.Builder, vb int) {
	v := &b.vbs[vb]
	fmt.Fprintf(w, "vb%d: ", vb)
	switch {
	case !v.begun:
		w.WriteString("no stream yet")
	case v.cur.dropping:
		fmt.Fprintf(w, "%s of %s, dropped data", v.cur.inc, v.cur.projector)
	case !v.cur.open:
		fmt.Fprintf(w, "%s of %s, closed", v.cur.inc, v.cur.projector)
	default:
		fmt.Fprintf(w, "%s of %s", v.cur.inc, v.cur.projector)
	}
	if v.min != v.cur.inc {
		fmt.Fprintf(w, ", refuses below %s", v.min)
	}
	fmt.Fprintf(w, "; received %d", v.recv)
	if len(v.queue) > 0 {
		w.WriteString("; queue")
		for i := range v.queue {
			fmt.Fprintf(w, " %d", v.queue[i].Seqno)
		}
	}
	if s := v.side; s != nil {
		fmt.Fprintf(w, "; side stream %d to %d for %v, at %d", s.id, s.to, s.copies, s.at)
	}
	w.WriteByte('\n')
	for _, c := range b.copies {
		p := &c.parts[vb]
		fmt.Fprintf(w, "  copy %s: %s", c.id, p.pos)
		for _, f := range []struct {
			on   bool
			word string
		}{{p.sub, "fed"}, {p.restoring, "being restored"}, {c.ready, "ready"}, {c.later, "filled by files"}} {
			if f.on {
				w.WriteString(", " + f.word)
			}
		}
		w.WriteByte('\n')
	}
}

// String returns main, and the other fields if they add to it.
func (p Position) String() string {
	s := fmt.Sprintf("main %d", p.Main)
	if p.Side != p.Main || p.A != p.Main {
		s += fmt.Sprintf(", side %d, A %d", p.Side, p.A)
	}
	if p.Floor > p.Main {
		s += fmt.Sprintf(", floor %d", p.Floor)
	}
	if p.WindowEnd == timestamp.Infinity {
		s += ", unsure"
	}
	if p.VBUUID != 0 {
		s += fmt.Sprintf(", branch %d", p.VBUUID)
	}
	return s
}
