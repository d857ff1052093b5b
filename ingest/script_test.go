package ingest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// script is a Bucket driven by a golden script. Work is printed when it is handed out.
type script struct {
	t    *testing.T
	d    *datadriven.TestData
	b    *Bucket
	last *Batch
	kept *Batch // done after later batches: keep, done-kept
}

// TestScripts runs testdata/*.txt; every script begins with its purpose.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.Contains(path, "fuzz") {
			t.Skip("a corpus")
		}
		s := &script{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.d = d
			defer s.counted()
			return s.run()
		})
	})
}

// counted compares the number of vbuckets being restored with a count over all.
func (s *script) counted() {
	if s.b == nil {
		return
	}
	all := 0
	for _, c := range s.b.copies {
		n := 0
		for v := range c.parts {
			if c.parts[v].restoring {
				n++
			}
		}
		if all += n; n != s.b.RestoringOf(c.id) {
			s.t.Errorf("%s: %d vbuckets of copy %v are being restored, counted are %d", s.d.Pos, n, c.id,
				s.b.RestoringOf(c.id))
		}
	}
	if all != s.b.Restoring() {
		s.t.Errorf("%s: %d vbuckets are being restored, counted are %d", s.d.Pos, all, s.b.Restoring())
	}
}

func (s *script) num(key string) uint64 {
	var u uint64
	if s.d.HasArg(key) {
		s.d.ScanArgs(s.t, key, &u)
	}
	return u
}

func (s *script) text(key string) string {
	var x string
	if s.d.HasArg(key) {
		s.d.ScanArgs(s.t, key, &x)
	}
	return x
}

func (s *script) nums(key string) []uint64 {
	var out []uint64
	for _, a := range s.d.CmdArgs {
		if a.Key != key {
			continue
		}
		for _, v := range a.Vals {
			u, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				s.t.Fatalf("%s: %v", s.d.Pos, err)
			}
			out = append(out, u)
		}
	}
	return out
}

// log parses log=(7,100,3,0): branch 7 from 100, branch 3 from 0.
func (s *script) log(key string) timestamp.FailoverLog {
	n := s.nums(key)
	var l timestamp.FailoverLog
	for i := 0; i+1 < len(n); i += 2 {
		l = append(l, timestamp.LogEntry{VBUUID: n[i], Seqno: n[i+1]})
	}
	return l
}

func (s *script) copies(key string) []index.CopyID {
	var ids []index.CopyID
	for _, u := range s.nums(key) {
		ids = append(ids, index.CopyID(u))
	}
	return ids
}

func (s *script) source() Source {
	p := s.text("p")
	if p == "" {
		p = "p1"
	}
	return Source{Projector: index.ProjectorID(p), Connection: max(s.num("conn"), 1)}
}

func (s *script) event(kind keyversion.Kind) *keyversion.Event {
	e := &keyversion.Event{Kind: kind, VBucket: uint16(s.num("vb")), Incarnation: incOf(s.num("inc")), Seqno: s.num("seq"),
		DocID: []byte("d"), Copies: s.copies("copies")}
	if w := s.nums("window"); len(w) == 2 {
		e.Window = timestamp.Window{Start: w[0], End: w[1]}
	}
	if kind == keyversion.StreamBegin {
		e.Begin = &keyversion.Begin{Start: s.num("start"), Log: s.log("log"), Purge: s.num("purge"), Copies: e.Copies,
			Revision: timestamp.MapRevision{Rev: s.num("rev")}}
	}
	return e
}

var scriptKinds = map[string]keyversion.Kind{"begin": keyversion.StreamBegin, "mut": keyversion.Insert,
	"del": keyversion.Delete, "sync": keyversion.Sync,
	"activate": keyversion.Activate, "deactivate": keyversion.Deactivate, "drop": keyversion.DropData,
	"end": keyversion.StreamEnd}

func (s *script) run() string {
	cmd, side := strings.CutPrefix(s.d.Cmd, "side-")
	if kind, ok := scriptKinds[cmd]; ok {
		e := s.event(kind)
		if side {
			e.Incarnation = index.Incarnation{Counter: s.num("id")}
			return s.b.AcceptSide(s.source(), e).String() + "\n" + s.work()
		}
		return s.b.Accept(s.source(), e).String() + "\n" + s.work()
	}
	switch s.d.Cmd {
	case "new":
		b, err := New(Options{VBuckets: int(s.num("vbuckets")), Generation: 1,
			Pack: func(*keyversion.Event) []byte { return []byte("x") }})
		if err != nil {
			return err.Error()
		}
		s.b = b
		return ""
	case "why", "state":
		return s.b.String()
	case "add":
		return s.add()
	case "remove":
		s.b.Remove(index.CopyID(s.num("copy")))
		return ""
	case "lost":
		s.b.ConnectionLost(s.num("conn"))
		return ""
	case "poll":
		var out strings.Builder
		for _, p := range s.b.Poll([]uint16{uint16(s.num("vb"))}, incOf(s.num("inc"))) {
			fmt.Fprintf(&out, "vb%d participant %v HW %d reach %d log %v\n", p.VBucket, p.Participant, p.HW, p.Reach, p.Log)
		}
		return out.String()
	case "publish":
		return s.publish()
	case "flush":
		t, acks := s.b.Flush()
		return s.batch(t, acks)
	case "backfill":
		v := s.b.Backfill(func(id index.ID) bool { return uint64(id) == s.num("index") })
		return fmt.Sprintf("%v of branches %v\n", v.Seqnos, v.VBUUIDs)
	case "take-side":
		return s.batch(s.b.TakeSide(1, int(s.num("most"))), nil)
	case "ahead":
		return s.batch(s.b.ApplyAhead(int(s.num("bytes")), int(s.num("keep"))), nil)
	case "shown":
		a, ok := s.b.Shown(s.last)
		return fmt.Sprintf("ack %v: S%d made %v except %v\n", ok, a.Number, a.Made, a.Exceptions)
	case "keep":
		s.kept = s.last
		return ""
	case "done-kept":
		s.last = s.kept
		fallthrough
	case "done":
		a, ok := s.b.Done(s.last)
		return fmt.Sprintf("ack %v: S%d made %v except %v\n", ok, a.Number, a.Made, a.Exceptions)
	case "wants":
		return s.wants()
	case "open-side":
		w := s.b.Wants()
		i := slices.IndexFunc(w, func(w Want) bool { return uint64(w.VBucket) == s.num("vb") })
		s.b.OpenSide(w[i], s.num("id"))
		return ""
	case "side-failed":
		s.b.SideFailed(int(s.num("vb")), s.num("id"))
		return fmt.Sprintf("abandoned %v\n", s.b.Abandoned())
	case "side-refused":
		s.b.SideRefused(int(s.num("vb")), s.num("id"), s.num("purge"))
		return s.work()
	case "restored":
		n := s.nums("pos")
		s.b.Restored(Restore{Copy: index.CopyID(s.num("copy")), VBucket: int(s.num("vb")), Log: s.log("log")}, positionOf(n),
			s.log("held"))
		return s.work()
	case "reopened":
		return s.reopened()
	case "rollback":
		logs := make([]timestamp.FailoverLog, s.b.VBuckets())
		for v := range logs {
			logs[v] = s.log("log")
		}
		return [...]string{"done", "stale", "started", "ignored"}[s.b.Rollback(s.num("id"), logs, incOf(s.num("inc")))] +
			"\n" + s.work()
	}
	s.t.Fatalf("%s: unknown command %s", s.d.Pos, s.d.Cmd)
	return ""
}

// positionOf parses (vbuuid, side, main, A, floor, window end).
func positionOf(n []uint64) Position {
	var p Position
	for i, f := range []*uint64{&p.VBUUID, &p.Side, &p.Main, &p.A, &p.Floor, &p.WindowEnd} {
		if i < len(n) {
			*f = n[i]
		}
	}
	return p
}

// stored returns the same position for vbucket 0, and none for the others.
func (s *script) stored() ([]Position, []timestamp.FailoverLog) {
	n := s.nums("pos")
	if n == nil {
		return nil, nil
	}
	pos, logs := make([]Position, s.b.VBuckets()), make([]timestamp.FailoverLog, s.b.VBuckets())
	pos[0], logs[0] = positionOf(n), s.log("log")
	return pos, logs
}

func (s *script) add() string {
	id := index.CopyID(s.num("copy"))
	pos, logs := s.stored()
	if err := s.b.Add(Copy{ID: id, Index: index.ID(id), Ready: s.d.HasArg("ready"), Positions: pos,
		Logs: logs}); err != nil {
		return err.Error()
	}
	return ""
}

func (s *script) reopened() string {
	pos, logs := s.stored()
	if err := s.b.Reopened(index.CopyID(s.num("copy")), pos, logs); err != nil {
		return err.Error()
	}
	return s.work()
}

func (s *script) publish() string {
	st := timestamp.Stability{Ref: timestamp.Ref{Generation: 1, RollbackID: s.num("rollback"), Number: s.num("n")},
		Vector: timestamp.New(s.b.VBuckets())}
	l := s.log("log")
	for v, q := range s.nums("seq") {
		st.Vector.Set(v, timestamp.Position{VBUUID: l.Newest(), Seqno: q})
	}
	for range s.b.VBuckets() {
		st.Logs = append(st.Logs, l)
	}
	return fmt.Sprintf("new %v\n", s.b.Publish(st))
}

func (s *script) wants() string {
	var out strings.Builder
	for _, w := range s.b.Wants() {
		kind := "catchup"
		if w.Build {
			kind = "backfill"
		}
		fmt.Fprintf(&out, "%s of vb%d: (%d, %d] of branch %d, producer on %d, for copies %v\n", kind, w.VBucket, w.From, w.To,
			w.VBUUID, w.Branch, w.Copies)
	}
	return out.String()
}

// work prints the tasks for the store.
func (s *script) work() string {
	var out strings.Builder
	for _, w := range s.b.Work() {
		if w.Restore != nil {
			fmt.Fprintf(&out, "restore vb%d of copy %v on %v\n", w.Restore.VBucket, w.Restore.Copy, w.Restore.Log)
			continue
		}
		out.WriteString(s.batch(w.Batch, nil))
	}
	return out.String()
}

func (s *script) batch(t *Batch, acks []Ack) string {
	var out strings.Builder
	for _, a := range acks {
		fmt.Fprintf(&out, "S%d discarded\n", a.Number)
	}
	if t == nil {
		return out.String() + "nothing\n"
	}
	s.last = t
	fmt.Fprintf(&out, "batch %s", [...]string{"at stability", "from side", "ahead", "delete range"}[t.Kind])
	if t.Kind == AtStability {
		fmt.Fprintf(&out, " S%d", t.Ref.Number)
	}
	out.WriteByte('\n')
	for i := range t.Copies {
		c := &t.Copies[i]
		fmt.Fprintf(&out, "  copy %v", c.ID)
		if c.Exact {
			out.WriteString(" exact")
		}
		out.WriteByte('\n')
		for k := range c.Parts {
			fmt.Fprintf(&out, "    vb%d%s -> %s\n", c.Parts[k].VBucket, s.part(t, &c.Parts[k]), c.Parts[k].Position)
		}
	}
	return out.String()
}

func (s *script) part(t *Batch, p *Part) string {
	var out strings.Builder
	if p.DeleteRange {
		out.WriteString(" deleted")
	}
	if p.Segment >= 0 {
		for i := range t.Segments[p.Segment].Events {
			if e := &t.Segments[p.Segment].Events[i]; p.Selects(e) {
				fmt.Fprintf(&out, " %d", e.Seqno)
			}
		}
	}
	if p.KeepTombstones {
		out.WriteString(" keeping tombstones")
	}
	if p.PurgeTombstones {
		out.WriteString(" purging tombstones")
	}
	return out.String()
}
