package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/wire"
)

// sidesScript is a Sides that a golden script drives. Projectors' addresses are their names.
type sidesScript struct {
	t        *testing.T
	d        *datadriven.TestData
	s        *Sides
	now      time.Time
	streams  map[string][]ingest.SideProgress // as last watched, by bucket
	requests map[uint64]*SideRequest
}

// TestSides runs testdata/sides/*.txt; every script starts with its reason.
func TestSides(t *testing.T) {
	datadriven.Walk(t, "testdata/sides", func(t *testing.T, path string) {
		s := &sidesScript{t: t, s: NewSides(0), now: time.Unix(1000, 0), streams: map[string][]ingest.SideProgress{},
			requests: map[uint64]*SideRequest{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.d = d
			return s.run()
		})
	})
}

func (s *sidesScript) run() string {
	switch s.d.Cmd {
	case "wait":
		s.now = s.now.Add(s.duration(s.arg("for")))
		return ""
	case "watch":
		return s.watch()
	case "ask":
		return s.ask()
	case "send":
		r := s.requests[s.num(s.arg("id"))]
		s.s.Sent(r, s.now)
		return ""
	case "answer":
		return s.answer()
	case "end":
		return fmt.Sprintf("look %v\n", s.s.Ended(s.arg("of"), s.now))
	case "settle":
		return s.settle()
	case "gone":
		here := s.args("here")
		is := s.s.Gone(func(bucket string) bool { return slices.Contains(here, bucket) }, s.now)
		return settled(&is)
	}
	s.t.Fatalf("%s: unknown command %s", s.d.Pos, s.d.Cmd)
	return ""
}

// arg returns the value of an argument, "" if it is missing.
func (s *sidesScript) arg(key string) (value string) {
	if s.d.HasArg(key) {
		s.d.ScanArgs(s.t, key, &value)
	}
	return value
}

func (s *sidesScript) args(key string) []string {
	for _, a := range s.d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

func (s *sidesScript) num(text string) uint64 {
	u, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.t.Fatalf("%s: %v", s.d.Pos, err)
	}
	return u
}

func (s *sidesScript) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatalf("%s: %v", s.d.Pos, err)
	}
	return d
}

// lines returns the words of each line of input: those with a value by name, the others as "".
func (s *sidesScript) lines() (all []map[string]string) {
	for line := range strings.Lines(s.d.Input) {
		words := map[string]string{}
		for _, w := range strings.Fields(line) {
			key, value, _ := strings.Cut(w, "=")
			words[key] = value
		}
		all = append(all, words)
	}
	return all
}

// watch reads a line for each stream: vb, id, at, to, and its flags.
func (s *sidesScript) watch() string {
	var streams []ingest.SideProgress
	for _, w := range s.lines() {
		p := ingest.SideProgress{VBucket: int(s.num(w["vb"])), ID: s.num(w["id"]), At: s.num(w["at"]), To: s.num(w["to"])}
		_, p.Begun = w["begun"]
		_, p.Lost = w["lost"]
		_, p.Finished = w["finished"]
		streams = append(streams, p)
	}
	s.streams[s.arg("bucket")] = streams
	var out strings.Builder
	for _, p := range s.s.Watch(s.arg("bucket"), streams, s.d.HasArg("deaf"), s.now) {
		why := "it is without a connection"
		if p.Silent {
			why = "it brings nothing"
		}
		fmt.Fprintf(&out, "%d of vb%d is given up: %s\n", p.ID, p.VBucket, why)
	}
	return out.String()
}

// ask reads a line for each want: vb, from, to, the owner, copies separated by commas, and whether it is a build.
func (s *sidesScript) ask() string {
	owners := map[int]index.ProjectorID{}
	w := &SideWants{Bucket: s.arg("bucket"), Streams: s.streams[s.arg("bucket")], Making: map[index.CopyID]bool{},
		Revision: 1, Joining: s.d.HasArg("joining"), Owner: func(vb int) index.ProjectorID { return owners[vb] },
		ComesBack: func([]index.CopyID) bool { return s.d.HasArg("comes-back") }}
	if s.d.HasArg("no-definitions") {
		w.Revision = 0
	}
	for _, id := range s.args("making") {
		w.Making[index.CopyID(s.num(id))] = true
	}
	for _, p := range s.args("projectors") {
		w.Projectors = append(w.Projectors, wire.ProjectorEndpoint{ID: index.ProjectorID(p), Admin: p})
	}
	for _, l := range s.lines() {
		want := ingest.Want{VBucket: int(s.num(l["vb"])), From: s.num(l["from"]), To: s.num(l["to"])}
		_, want.Build = l["build"]
		for id := range strings.SplitSeq(l["copies"], ",") {
			want.Copies = append(want.Copies, index.CopyID(s.num(id)))
		}
		owners[want.VBucket] = index.ProjectorID(l["owner"])
		w.Wants = append(w.Wants, want)
	}
	var out strings.Builder
	for _, r := range s.s.Ask(w, s.now) {
		s.requests[r.ID] = r
		class := "catchup"
		if r.Build {
			class = "backfill"
		}
		fmt.Fprintf(&out, "%d: %s asks %s for copies %v:", r.ID, class, r.Projector.ID, r.Copies)
		for _, w := range r.Wants {
			fmt.Fprintf(&out, " vb%d (%d, %d]", w.VBucket, w.From, w.To)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// answer reads a line for each vbucket in the answer: vb, outcome, purge. none: there is no answer.
func (s *sidesScript) answer() string {
	r := s.requests[s.num(s.arg("id"))]
	reply := &wire.StreamReply{Buckets: []wire.StreamOutcome{{Bucket: r.Bucket}}}
	for _, w := range s.lines() {
		o := wire.StartResult{Outcome: wire.StartOutcome(w["outcome"])}
		if o.VBucket = uint16(s.num(w["vb"])); w["purge"] != "" {
			o.Purge = s.num(w["purge"])
		}
		reply.Buckets[0].Results = append(reply.Buckets[0].Results, o)
	}
	var out strings.Builder
	for _, a := range s.s.Answered(r, reply, s.d.HasArg("none")) {
		said := "nothing"
		if a.Result != nil {
			said = string(a.Result.Outcome)
		}
		fmt.Fprintf(&out, "vb%d %s: %s\n", a.VBucket,
			[...]string{SideBegins: "begins", SideRefused: "is refused", SideFails: "fails"}[a.Fate], said)
	}
	return out.String()
}

func (s *sidesScript) settle() string {
	var abandoned []uint64
	for _, id := range s.args("abandoned") {
		abandoned = append(abandoned, s.num(id))
	}
	is := s.s.Settle(s.arg("bucket"), s.streams[s.arg("bucket")], abandoned, s.now)
	return settled(&is)
}

func settled(is *SideSettled) string {
	var out strings.Builder
	for _, f := range []struct {
		what string
		ids  []uint64
	}{{"all have begun", is.Began}, {"everything has come", is.Came}, {"over", is.Over}} {
		for _, id := range f.ids {
			fmt.Fprintf(&out, "%d: %s\n", id, f.what)
		}
	}
	for _, stop := range is.Stop {
		fmt.Fprintf(&out, "%d: to be stopped at %s\n", stop.ID, stop.Addr)
	}
	return out.String()
}

// TestSidePauses: when the owner of a vbucket's stream could not open a side stream for a while, however long and
// whichever projectors were asked meanwhile, it is asked again soon after it can.
func TestSidePauses(t *testing.T) {
	all := make([]wire.ProjectorEndpoint, 64)
	for i := range all {
		all[i].ID = index.ProjectorID(strconv.Itoa(i))
	}
	for unable := time.Duration(0); unable < time.Minute; unable += 77 * time.Millisecond {
		at, tries := time.Duration(0), 0
		for ; at < unable || ChooseProjector(all, "40", tries).ID != "40"; tries++ {
			at += sidePause(tries)
		}
		if late := at - unable; late > 2*sideMost {
			t.Fatalf("unable for %s: asked again %s later, at most %s are due", unable, late, 2*sideMost)
		}
	}
}
