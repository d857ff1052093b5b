package ingest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// idle returns a bucket with copies that have everything, exact at a stability timestamp or, with apart, as found
// after a start.
func idle(t testing.TB, vbs, copies int, apart bool) *Bucket {
	t.Helper()
	s, err := New(Options{VBuckets: vbs, Pack: func(*keyversion.Event) []byte { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	log := timestamp.FailoverLog{{VBUUID: 7}}
	at, logs, positions := timestamp.New(vbs), make([]timestamp.FailoverLog, vbs), make([]Position, vbs)
	for v := range vbs {
		at.VBUUIDs[v], at.Seqnos[v], logs[v] = 7, 100, log
		positions[v] = Position{VBUUID: 7, Main: 100, Side: 100, A: 100}
	}
	var ids []index.CopyID
	for id := range index.CopyID(copies) {
		ids = append(ids, id+1)
		if err := s.Add(Copy{ID: id + 1, Index: index.ID(id + 1), Ready: true, Positions: positions,
			Logs: logs}); err != nil {
			t.Fatal(err)
		}
	}
	for v := range vbs {
		s.Accept(Source{Projector: "p1", Connection: 1}, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: uint16(v),
			Incarnation: incOf(1), Begin: &keyversion.Begin{Start: 100, Log: log, Copies: ids}})
	}
	if apart {
		return s
	}
	s.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: 1}, Vector: at, Logs: logs})
	b, _ := s.Flush()
	if b == nil || !b.Copies[copies-1].Exact {
		t.Fatal("not flushed")
	}
	s.Done(b)
	return s
}

// TestWantsCoverEachCopy checks that what is wanted of a vbucket is what any copy lacks there, whichever copies
// share a list and however much the others have.
func TestWantsCoverEachCopy(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const vbs, copies = 4, 5
		s := idle(t, vbs, copies, rapid.Bool().Draw(rt, "apart"))
		for range rapid.IntRange(0, 6).Draw(rt, "changes") {
			c := s.copies[rapid.IntRange(0, copies-1).Draw(rt, "copy")]
			vb := rapid.IntRange(0, vbs-1).Draw(rt, "vbucket")
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				s.own(c)
				c.parts[vb].pos.A = rapid.Uint64Range(90, 110).Draw(rt, "a")
			case 1:
				s.own(c)
				c.parts[vb].sub = !c.parts[vb].sub
			case 2:
				c.later = !c.later
			case 3:
				s.vbs[vb].begun = !s.vbs[vb].begun
			}
		}
		var want []Want
		for vb := range s.vbs {
			if w, ok := s.want(vb); ok && s.vbs[vb].side == nil && s.vbs[vb].begun {
				want = append(want, w)
			}
		}
		for range 2 {
			if got := s.Wants(); !reflect.DeepEqual(got, want) {
				rt.Fatalf("%+v, want %+v", got, want)
			}
		}
	})
}

// TestPiecesOfADrawingAddUp checks that the pieces of the drawing make up the whole.
func TestPiecesOfADrawingAddUp(t *testing.T) {
	const vbs = 5
	s := idle(t, vbs, 2, false)
	for each := 1; each <= vbs+1; each++ {
		var w strings.Builder
		for vb := 0; vb < vbs; vb += each {
			s.Draw(&w, vb, each)
		}
		if got, want := w.String(), s.String(); got != want || strings.Count(got, "\n") != 1+vbs*3 {
			t.Errorf("%d at once: %q, want %q", each, got, want)
		}
	}
}

// BenchmarkWants measures the cost of finding that nothing is wanted in a bucket of 1,024 vbuckets, which is done
// each 100 ms, by the number of copies: those that share a list, and those that do not.
func BenchmarkWants(b *testing.B) {
	for _, apart := range []bool{false, true} {
		for _, copies := range []int{4, 64} {
			b.Run(fmt.Sprintf("%d/apart=%v", copies, apart), func(b *testing.B) {
				s := idle(b, 1024, copies, apart)
				for b.Loop() {
					if len(s.Wants()) > 0 {
						b.Fatal("something is wanted")
					}
				}
			})
		}
	}
}
