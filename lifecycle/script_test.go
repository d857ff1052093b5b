package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"tidemark/index"
	"tidemark/partition"
)

// TestScripts runs the golden files. "next" decides about an index: its arguments are the index's facts, each line of
// the input is a copy (made=REVISION, done=DONE/TOTAL, exact=GENERATION.ROLLBACK), or a projector.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return run(t, d) })
	})
}

func run(t *testing.T, d *datadriven.TestData) string {
	f := Facts{Enough: 10 * time.Minute}
	for _, a := range d.CmdArgs {
		switch value := strings.Join(a.Vals, ","); a.Key {
		case "state":
			if err := f.State.UnmarshalText([]byte(value)); err != nil {
				t.Fatal(err)
			}
		case "modified":
			scan(t, value, "%d", &f.Modified)
		case "placed":
			scan(t, value, "%d", &f.PlacedAt)
		case "steady":
			f.Steady, f.Guard = true, guard(t, value)
		case "lacking":
			var err error
			if f.Lacking, err = time.ParseDuration(value); err != nil {
				t.Fatal(err)
			}
		case "waits":
			f.Waits = true
		case "cannot-evaluate":
			f.CannotEvaluate = true
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		switch words := strings.Fields(line); {
		case len(words) == 0:
		case words[0] == "copy":
			f.Copies = append(f.Copies, copyOf(t, words[1:]))
		case words[0] == "projector":
			f.Projectors = append(f.Projectors, Projector{Reported: strings.Contains(line, "knows"),
				Cannot: strings.Contains(line, "cannot")})
		default:
			d.Fatalf(t, "unknown line %q", line)
		}
	}
	s := Next(&f)
	text := s.Kind.String()
	switch s.Kind {
	case Allocate:
		text += fmt.Sprintf(" %v at %d", s.Copies, s.Revision)
	case Build, MakeReady, Rebuild:
		text += fmt.Sprintf(" under %d.%d", s.Guard.Generation, s.Guard.RollbackID)
	case Fail:
		text += ": " + s.Reason
	}
	if s.Nearly {
		text += " for a stability timestamp"
	}
	return text + "\n"
}

// copyOf parses "ID node=N state=STATE …".
func copyOf(t *testing.T, words []string) Copy {
	c := Copy{Host: Host{Known: true}}
	scan(t, words[0], "%d", &c.ID)
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "node":
			scan(t, value, "%d", &c.Node)
			c.Host.Name = fmt.Sprintf("i%d", c.Node)
		case "placed":
			c.State = partition.Placed
		case "allocated":
			c.State = partition.Allocated
		case "leaving":
			c.State = partition.Leaving
		case "made":
			c.Made = true
			scan(t, value, "%d", &c.Revision)
		case "acked":
			scan(t, value, "%d", &c.Host.Acked)
		case "done":
			c.Reported = true
			scan(t, value, "%d/%d", &c.Done, &c.Total)
		case "exact":
			c.Exact, c.At = true, guard(t, value)
		case "offline":
			c.Host.Offline = true
		case "moves":
			c.Moves = true
		case "replaced":
			c.Replaced = true
		case "unknown":
			c.Host = Host{}
		default:
			t.Fatalf("unknown word %q", w)
		}
	}
	return c
}

func guard(t *testing.T, text string) (g Guard) {
	scan(t, text, "%d.%d", &g.Generation, &g.RollbackID)
	return g
}

func scan(t *testing.T, text, format string, into ...any) {
	t.Helper()
	if _, err := fmt.Sscanf(text, format, into...); err != nil {
		t.Fatalf("%q is not %s: %v", text, format, err)
	}
}

// TestNothingMovesWithoutFacts checks that unknown facts cause no step, whatever the state.
func TestNothingMovesWithoutFacts(t *testing.T) {
	for s := index.Pending; s <= index.Error; s++ {
		f := Facts{State: s, Copies: []Copy{{Copy: partition.Copy{ID: 1, Node: 1}}}, Enough: time.Minute}
		if got := Next(&f); got.Kind != Wait && s != index.Dropping {
			t.Errorf("%s: %s", s, got.Kind)
		}
	}
}
