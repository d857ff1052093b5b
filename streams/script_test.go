package streams

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"tidemark/index"
	"tidemark/timestamp"
)

// TestScripts runs the golden files: one command per step, one line of key=value per vbucket. Branches are letters,
// incarnations term.counter, times milliseconds.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
	})
}

type script struct {
	l   *Ledger
	now int64
}

// line is key=value pairs.
type line map[string]string

func lines(input string) (ls []line) {
	for _, text := range strings.Split(input, "\n") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		l := line{}
		for _, f := range strings.Fields(text) {
			k, v, _ := strings.Cut(f, "=")
			l[k] = v
		}
		ls = append(ls, l)
	}
	return ls
}

func (l line) num(key string) uint64 {
	n, _ := strconv.ParseUint(l[key], 10, 64)
	return n
}

func (l line) inc() index.Incarnation { return parseInc(l["inc"]) }

func parseInc(text string) index.Incarnation {
	t, c, _ := strings.Cut(text, ".")
	term, _ := strconv.ParseUint(t, 10, 64)
	counter, _ := strconv.ParseUint(c, 10, 64)
	return index.Incarnation{Epoch: 1, Term: term, Counter: counter}
}

func (l line) log() timestamp.FailoverLog { return parseLog(l["log"]) }

func parseLog(text string) (log timestamp.FailoverLog) {
	if text == "" {
		return nil
	}
	for _, e := range strings.Split(text, ",") {
		n, _ := strconv.ParseUint(e[1:], 10, 64)
		log = append(log, timestamp.LogEntry{VBUUID: uint64(e[0]), Seqno: n})
	}
	return log
}

func (l line) rev() timestamp.MapRevision { return timestamp.MapRevision{Rev: l.num("rev")} }

func letter(u uint64) string {
	if u == 0 {
		return "-"
	}
	return string(rune(u))
}

func report(ls []line, full bool) Report {
	s := Report{Full: full}
	for _, l := range ls {
		_, ended := l["ended"]
		s.Streams = append(s.Streams, Running{VBucket: uint16(l.num("v")), Incarnation: l.inc(), Log: l.log(),
			Purge:    l.num("purge"),
			Revision: l.rev(), Ended: ended})
	}
	return s
}

var outcomes = map[string]Outcome{"begun": Streams, "not_mine": NotMine, "rollback": RolledKV, "stale": Stale,
	"failed": Failed}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	args := line{}
	for _, a := range d.CmdArgs {
		args[a.Key] = strings.Join(a.Vals, ",")
	}
	if now, ok := args["now"]; ok {
		s.now, _ = strconv.ParseInt(now, 10, 64)
	}
	ls := lines(d.Input)
	switch d.Cmd {
	case "new":
		cfg := DefaultConfig()
		var err error
		if s.l, err = New(cfg, int(args.num("n")), 1, args.num("term")); err != nil {
			t.Fatal(err)
		}
		s.l.SetProjectors(s.now, []index.ProjectorID{"p1", "p2"})
		s.l.SetIndexers([]index.NodeID{1, 2})
		s.l.SetWanted(s.now, true)
	case "projectors":
		var ids []index.ProjectorID
		for _, l := range ls {
			ids = append(ids, index.ProjectorID(l["p"]))
		}
		s.l.SetProjectors(s.now, ids)
	case "wanted":
		s.l.SetWanted(s.now, args["is"] == "yes")
	case "committed":
		c := Committed{Vector: timestamp.New(s.l.Len()), Logs: make([]timestamp.FailoverLog, s.l.Len())}
		c.Revisions = make([]timestamp.MapRevision, s.l.Len())
		for _, l := range ls {
			v := int(l.num("v"))
			c.Vector.Set(v, timestamp.Position{VBUUID: uint64(l["at"][0]), Seqno: line{"n": l["at"][1:]}.num("n")})
			c.Logs[v], c.Revisions[v] = l.log(), l.rev()
		}
		s.l.SetCommitted(c)
	case "adopt":
		streams := map[index.ProjectorID][]line{"p1": nil, "p2": nil}
		var unanswered []index.ProjectorID
		if p, ok := args["unreported"]; ok {
			unanswered = []index.ProjectorID{index.ProjectorID(p)}
			delete(streams, unanswered[0])
		}
		minimum := map[index.NodeID][]index.Incarnation{}
		for _, l := range ls {
			if p, ok := l["p"]; ok {
				streams[index.ProjectorID(p)] = append(streams[index.ProjectorID(p)], l)
				continue
			}
			n := index.NodeID(l.num("node"))
			if minimum[n] == nil {
				minimum[n] = make([]index.Incarnation, s.l.Len())
			}
			minimum[n][l.num("v")] = l.inc()
		}
		states := map[index.ProjectorID]Report{}
		for p, l := range streams {
			states[p] = report(l, true)
		}
		s.l.Adopt(s.now, states, minimum, unanswered)
	case "heard":
		s.l.Reported(s.now, index.ProjectorID(args["p"]))
	case "report":
		_, full := args["full"]
		if !s.l.Projector(s.now, index.ProjectorID(args["p"]), report(ls, full)) {
			return "a full report is needed\n"
		}
	case "started":
		var rs []Started
		for _, l := range ls {
			rs = append(rs, Started{Outcome: outcomes[l["is"]], VBucket: uint16(l.num("v")), Log: l.log(), Purge: l.num("purge"),
				Revision: l.rev()})
		}
		s.l.Started(s.now, index.ProjectorID(args["p"]), args.inc(), rs)
	case "accepts":
		var a []Acceptance
		for _, l := range ls {
			_, closed := l["closed"]
			a = append(a, Acceptance{VBucket: uint16(l.num("v")), Incarnation: l.inc(), Projector: index.ProjectorID(l["p"]),
				Open: !closed})
		}
		s.l.Indexer(s.now, index.NodeID(args.num("node")), a)
	case "full":
		s.l.Full(s.now, index.NodeID(args.num("node")))
	case "minimum":
		incs := make([]index.Incarnation, s.l.Len())
		for _, l := range ls {
			incs[l.num("v")] = l.inc()
		}
		s.l.Minimum(s.now, incs)
	case "positions":
		var ps []Position
		for _, l := range ls {
			_, recovering := l["recovering"]
			reach := l.num("hw")
			if _, ok := l["reach"]; ok {
				reach = l.num("reach")
			}
			ps = append(ps, Position{VBucket: uint16(l.num("v")), Participant: !recovering, HW: l.num("hw"), Reach: reach,
				Log: l.log(), Revision: l.rev()})
		}
		s.l.Positions(index.NodeID(args.num("node")), args.inc(), ps)
	case "logs":
		var gs []Log
		for _, l := range ls {
			gs = append(gs, Log{VBucket: uint16(l.num("v")), Log: l.log(), High: l.num("high"), Purge: l.num("purge"),
				Revision: l.rev()})
		}
		s.l.Logs(index.ProjectorID(args["p"]), args.inc(), gs)
	case "audit":
		logs, complete := map[index.ProjectorID][]Log{}, map[int]uint64{}
		for _, l := range ls {
			p := index.ProjectorID(l["p"])
			logs[p] = append(logs[p], Log{VBucket: uint16(l.num("v")), Log: l.log(), High: l.num("high"), Revision: l.rev()})
			complete[int(l.num("v"))] = l.num("complete")
		}
		s.l.Audit(s.now, logs, func(v int) uint64 { return complete[v] })
	case "hosted":
		h := Hosted{Node: args["node"], Revision: args.rev()}
		for _, l := range ls {
			h.VBuckets = append(h.VBuckets, uint16(l.num("v")))
		}
		s.l.Hosted(s.now, index.ProjectorID(args["p"]), h)
	case "pause":
		s.l.Pause(s.now, int64(args.num("ms")))
	case "rollback":
		s.l.SetRollback(s.now, args["is"] == "on")
	case "step":
		return s.describe(s.l.Step(s.now))
	case "show":
		return s.show()
	default:
		return "unknown command\n"
	}
	return ""
}

func (s *script) describe(as []Action) string {
	var b strings.Builder
	for _, a := range as {
		fmt.Fprintf(&b, "%s %d.%d", a.Kind, a.Incarnation.Term, a.Incarnation.Counter)
		if len(a.Nodes) > 0 {
			fmt.Fprintf(&b, " nodes %v", a.Nodes)
		}
		if len(a.Projectors) > 0 {
			fmt.Fprintf(&b, " projectors %v", a.Projectors)
		}
		if len(a.VBuckets) > 0 {
			fmt.Fprintf(&b, " vbuckets %v", a.VBuckets)
		}
		b.WriteByte('\n')
		for _, st := range a.Starts {
			fmt.Fprintf(&b, "  vb%d after %s%d window (%d,%d]\n", st.VBucket, letter(st.VBUUID), st.Seqno, st.Window.Start,
				st.Window.End)
		}
	}
	if d, ok := s.l.Diverged(); ok {
		fmt.Fprintf(&b, "must roll back: vb%d: %s\n", d.VBucket, d.Reason)
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

func (s *script) show() string {
	var b strings.Builder
	for v := range s.l.Len() {
		e := s.l.At(v)
		fmt.Fprintf(&b, "vb%d %s", v, e.State)
		if e.State != Idle {
			fmt.Fprintf(&b, " %d.%d", e.Incarnation.Term, e.Incarnation.Counter)
		}
		if e.State == Begun {
			fmt.Fprintf(&b, " %s", e.Owner)
		}
		if e.Reason != "" {
			fmt.Fprintf(&b, ": %s", e.Reason)
		}
		b.WriteByte('\n')
	}
	for _, st := range s.l.Summary(s.now).Stuck {
		fmt.Fprintf(&b, "stuck vb%d for %d ms\n", st.VBucket, st.ForMS)
	}
	return b.String()
}
