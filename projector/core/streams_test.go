package core

import (
	"strconv"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// scripted is a stream as driven by a golden script.
type scripted struct {
	Stream
	ended bool
}

func (s *scripted) Level() Level {
	if !s.Begun {
		return Level{Complete: s.From(), Lacks: s.Purge, Ended: s.ended}
	}
	return Level{Complete: s.Complete, Lacks: s.Lacks, Ended: s.ended}
}

// streamsScript holds a bucket's streams, driven by a golden script.
type streamsScript struct {
	*script
	s     *Streams[*scripted]
	asked map[uint16]*scripted // the last stream requested from KV, by vbucket
	known []Known[*scripted]
}

// TestStreams runs testdata/streams/*.txt; every script begins with its reason.
func TestStreams(t *testing.T) {
	runScripts(t, "testdata/streams", func(s *script) func() {
		return (&streamsScript{script: s, s: NewStreams[*scripted](4), asked: map[uint16]*scripted{}}).run
	})
}

func (s *streamsScript) run() {
	switch s.d.Cmd {
	case "request":
		s.request()
	case "answer":
		s.answer()
	case "stop":
		s.stop()
	case "begins":
		s.begins()
	case "marker":
		s.marked(s.stream().Mark(s.num("end")))
	case "purged":
		st := s.stream()
		s.marked(st.Purged(s.num("purge"), s.d.HasArg("purge")))
		st.Waits = false
	case "item":
		s.item()
	case "end":
		s.stream().ended = true
	case "side":
		s.side()
	case "covered":
		reach := s.stream().Covered(s.num("high"))
		s.say("END %d, reach %d", s.stream().Last, reach)
	case "report":
		s.report()
	case "reached":
		s.say("%v", s.s.Reached(nums[uint64](s.script, "want")))
	default:
		s.t.Fatalf("%s: unknown command %s", s.d.Pos, s.d.Cmd)
	}
}

// args returns the values of an argument, nil if it is absent.
func (s *streamsScript) args(key string) []string {
	for _, a := range s.d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

func (s *streamsScript) parse(text string) uint64 {
	u, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.t.Fatalf("%s: %v", s.d.Pos, err)
	}
	return u
}

// window parses "start-end"; without the argument, the seqno ends a window.
func (s *streamsScript) window(seqno uint64) timestamp.Window {
	all := s.args("window")
	if len(all) == 0 {
		return timestamp.Window{Start: seqno, End: seqno}
	}
	from, to, _ := strings.Cut(all[0], "-")
	return timestamp.Window{Start: s.parse(from), End: s.parse(to)}
}

// log parses branches, "vbuuid@seqno", newest first.
func (s *streamsScript) log() (log timestamp.FailoverLog) {
	for _, text := range s.args("log") {
		branch, seqno, _ := strings.Cut(text, "@")
		log = append(log, timestamp.LogEntry{VBUUID: s.parse(branch), Seqno: s.parse(seqno)})
	}
	return log
}

func (s *streamsScript) incarnation() index.Incarnation {
	return index.Incarnation{Epoch: 1, Term: 1, Counter: s.num("inc")}
}

// stream returns the stream that was requested last from KV.
func (s *streamsScript) stream() *scripted {
	st := s.asked[uint16(s.num("vb"))]
	if st == nil {
		s.t.Fatalf("%s: it was not requested from KV", s.d.Pos)
	}
	return st
}

// result prints a start's outcome.
func (s *streamsScript) result(r wire.StartResult) {
	s.say("vb%d %s%s", r.VBucket, r.Outcome, strings.TrimRight(": "+r.Detail, ": "))
	if len(r.Log) > 0 || r.High > 0 {
		s.say("  log %v, high %d, purge %d, failover %d@%d, stream %d@%d, rollback %d", r.Log, r.High, r.Purge,
			r.Failover.VBUUID, r.Failover.Seqno, r.Stream.VBUUID, r.Stream.Seqno, r.Rollback)
	}
}

// request is a request for a vbucket that KV hosts: vb, inc, seqno, window, vbuuid, end, branch, previous; and KV's
// state: high, and purge if it is known.
func (s *streamsScript) request() {
	want := wire.StreamStart{VBucket: uint16(s.num("vb")), VBUUID: s.num("vbuuid"), Seqno: s.num("seqno"),
		End: s.num("end"), Branch: s.num("branch"), Previous: s.num("previous")}
	want.Window = s.window(want.Seqno)
	at := At{High: s.num("high"), Purge: s.num("purge"), PurgeKnown: s.d.HasArg("purge")}
	st, r := s.s.Claim(s.incarnation(), &want, at)
	if st == nil {
		s.result(r)
		return
	}
	s.asked[want.VBucket] = &scripted{Stream: *st}
	s.say("requested from KV: vb%d after %d on branch %d, complete at %d", want.VBucket, want.Seqno, st.Branch, st.From())
}

// answer is KV's answer: consents, rolls-back, elsewhere, exists or fails.
func (s *streamsScript) answer() {
	st := s.stream()
	a := Answer{Log: s.log(), Rollback: s.num("to"), Detail: "KV refuses"}
	for v, name := range []string{Consents: "consents", RollsBack: "rolls-back", Elsewhere: "elsewhere", Exists: "exists",
		Fails: "fails"} {
		if s.d.HasArg(name) {
			a.Verdict = Verdict(v)
		}
	}
	switch st.Answered(a, !s.d.HasArg("waited")) {
	case RequestAgain:
		s.say("the request is repeated, for branch %d", st.Branch)
	case RequestLater:
		s.say("the request is repeated in %v", st.Pause())
	case GiveUp:
		s.result(st.Refused(a, s.log()))
	case CloseAtKV:
		s.say("KV is to close it")
		s.result(st.FailedOver())
	case Begin:
		if !s.s.Install(st) {
			s.say("KV is to close it")
			s.result(st.Overtaken())
			return
		}
		s.result(st.Began(st.KV.High, st.Level().Lacks))
	}
}

// stop contains an incarnation and vbuckets.
func (s *streamsScript) stop() {
	for _, st := range s.s.Stop(nums[uint16](s.script, "vbs"), s.incarnation()) {
		s.say("vb%d of incarnation %d is to end", st.VBucket(), st.Incarnation.Counter)
	}
}

func (s *streamsScript) begins() {
	st := s.stream()
	if err := st.BeginsOn(s.log()); err != nil {
		s.say("%v", err)
		return
	}
	st.Begun = true
	s.marked(Begins)
}

// marked prints the required action.
func (s *streamsScript) marked(m Marked) {
	st := s.stream()
	switch m {
	case Goes:
		s.say("it goes on")
	case NeedsPurge:
		s.say("it waits for KV's purge seqno")
	case Begins:
		b := st.Downstream().Opening
		s.say("BEGIN after %d, log %v, purge %d; SYNC %d", b.Start, b.Log, b.Purge, st.Complete)
	}
}

// item is an item at a seqno, in the window with this end; it completes the window at the end.
func (s *streamsScript) item() {
	st := s.stream()
	st.Place(s.num("end"))
	s.say("in window %d to %d", st.Window.Start, st.Window.End)
	if st.Took(s.num("seqno"), s.num("seqno") == s.num("end")) {
		s.say("SYNC %d", st.Complete)
	}
}

// side is an event from KV on a side stream: begins, document with its seqno, moves, ends or breaks.
func (s *streamsScript) side() {
	st := s.stream()
	for what, name := range []string{KVBegins: "begins", KVDocument: "document", KVMoves: "moves", KVEnds: "ends",
		KVBreaks: "breaks"} {
		if s.d.HasArg(name) {
			steps := []string{SideTakes: "it is taken", SideSkips: "it is skipped", SideBegins: "BEGIN is to be sent",
				SideReaches: "everything has come: KV's high seqno is requested", SideBreaks: "the stream is to be broken off"}
			s.say("%s", steps[st.Side(FromKV(what), s.num("seqno"))])
		}
	}
}

// report prints a report, which the coordinator then acknowledges. all: it has acknowledged none before. lost: it
// does not receive this one.
func (s *streamsScript) report() {
	before := s.known
	if s.d.HasArg("all") {
		before = nil
	}
	var r wire.StreamStates
	now := s.s.Report(&r, before)
	news := len(r.Streams)
	for i := range r.Streams {
		st := &r.Streams[i]
		s.say("vb%d incarnation %d complete %d purge %d ended %v log %v", st.VBucket, st.Incarnation.Counter, st.Complete,
			st.Purge, st.Ended, st.Log)
	}
	if err := r.Expand(); err != nil {
		s.say("%v", err)
	}
	for i := range r.Streams[news:] {
		st := &r.Streams[news+i]
		s.say("vb%d incarnation %d complete %d moved", st.VBucket, st.Incarnation.Counter, st.Complete)
	}
	if !s.d.HasArg("lost") {
		s.known = now
	}
}
