package core

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// script runs a golden script's commands and collects their output.
type script struct {
	t      *testing.T
	d      *datadriven.TestData
	output strings.Builder
}

func (s *script) say(format string, args ...any) { fmt.Fprintf(&s.output, format+"\n", args...) }

// nums returns the values of an argument, nil if it is absent.
func nums[N ~uint64 | ~uint32 | ~uint16](s *script, key string) (all []N) {
	for _, a := range s.d.CmdArgs {
		if a.Key != key {
			continue
		}
		for _, text := range a.Vals {
			u, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				s.t.Fatalf("%s: %v", s.d.Pos, err)
			}
			all = append(all, N(u))
		}
	}
	return all
}

// num returns the value of an argument, 0 if it is absent.
func (s *script) num(key string) uint64 {
	if all := nums[uint64](s, key); len(all) == 1 {
		return all[0]
	}
	return 0
}

// runScripts runs the scripts of a directory, each with its own commands; every script begins with its reason.
func runScripts(t *testing.T, dir string, commands func(s *script) func()) {
	datadriven.Walk(t, dir, func(t *testing.T, path string) {
		s := &script{t: t}
		run := commands(s)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t, s.d = t, d
			s.output.Reset()
			run()
			return s.output.String()
		})
	})
}

// events prints the events for an endpoint.
func (s *script) events(all ...keyversion.Event) {
	if len(all) == 0 {
		s.say("nothing")
	}
	for _, e := range all {
		text := fmt.Sprintf("%s vb%d incarnation %d branch %d @%d", e.Kind, e.VBucket, e.Incarnation.Counter, e.VBUUID,
			e.Seqno)
		if e.Begin != nil {
			text += fmt.Sprintf(", from %d, purge %d, copies %v", e.Begin.Start, e.Begin.Purge, e.Begin.Copies)
		}
		if len(e.Copies) > 0 {
			text += fmt.Sprintf(", copies %v", e.Copies)
		}
		if e.Window.End > 0 {
			text += fmt.Sprintf(", reach %d", e.Window.End)
		}
		s.say("%s", text)
	}
}

// TestDownstream runs testdata/downstream/*.txt: the events of a stream for one endpoint.
func TestDownstream(t *testing.T) {
	runScripts(t, "testdata/downstream", func(s *script) func() {
		var d Downstream
		var begun bool
		return func() {
			switch s.d.Cmd {
			case "stream": // with inc, vbuuid, purge
				d, begun = Downstream{VBucket: 3, Incarnation: index.Incarnation{Counter: s.num("inc")}, VBUUID: s.num("vbuuid"),
					Opening: keyversion.Begin{Log: timestamp.FailoverLog{{VBUUID: s.num("vbuuid")}}, Purge: s.num("purge")}}, false
			case "begin": // after a seqno, with copies
				d.Copies, begun = nums[index.CopyID](s, "copies"), true
				s.events(d.Begin(s.num("after")))
			case "switch": // to copies, after the last seqno
				next := d
				next.Copies = nums[index.CopyID](s, "copies")
				s.events(next.Switch(d.Copies, begun, s.num("last"))...)
				d, begun = next, true
			case "leave":
				s.events(d.Leave(s.num("last")))
			case "sync":
				s.events(d.Sync(d.VBUUID, s.num("complete")))
			case "resume": // the first lost seqno, and the seqno after which it continues
				s.events(d.Resume(s.num("first"), s.num("at"))...)
			case "end": // with last, reach; broken
				d.Ended, d.Broken, d.Reach = true, s.d.HasArg("broken"), s.num("reach")
				s.events(d.End(s.num("last")))
			default:
				s.t.Fatalf("%s: unknown command %s", s.d.Pos, s.d.Cmd)
			}
		}
	})
}
