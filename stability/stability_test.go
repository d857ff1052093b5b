package stability

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/timestamp"
)

// script interprets the golden files: branches are letters, incarnations are counters, times are milliseconds.
type script struct {
	t        *testing.T
	b        *Bucket
	proposed timestamp.Stability // result of the last next
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			return s.run(d)
		})
	})
}

func arg(d *datadriven.TestData, key, def string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return strings.Join(a.Vals, ",")
		}
	}
	return def
}

func num(d *datadriven.TestData, key string, def int) int {
	n, err := strconv.Atoi(arg(d, key, strconv.Itoa(def)))
	if err != nil {
		d.Fatalf(nil, "%s: %v", key, err)
	}
	return n
}

// branch returns the vbuuid of a letter.
func branch(letter string) uint64 {
	if letter == "" || letter == "-" {
		return 0
	}
	return uint64(letter[0])
}

// vector parses A10,B20,-0.
func vector(text string) timestamp.Vector {
	parts := strings.Split(text, ",")
	v := timestamp.New(len(parts))
	for i, p := range parts {
		n, err := strconv.ParseUint(p[1:], 10, 64)
		if err != nil {
			panic(err)
		}
		v.Set(i, timestamp.Position{VBUUID: branch(p), Seqno: n})
	}
	return v
}

func show(v timestamp.Vector) string {
	var parts []string
	for i := range v.Len() {
		p := v.At(i)
		letter := "-"
		if p.VBUUID != 0 {
			letter = string(rune(p.VBUUID))
		}
		parts = append(parts, letter+strconv.FormatUint(p.Seqno, 10))
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// failoverLog parses C500,B300,A0.
func failoverLog(text string) timestamp.FailoverLog {
	v := vector(text)
	var l timestamp.FailoverLog
	for i := range v.Len() {
		l = append(l, timestamp.LogEntry(v.At(i)))
	}
	return l
}

func (s *script) run(d *datadriven.TestData) string {
	switch d.Cmd {
	case "new":
		cfg := DefaultConfig()
		src, err := ParseSource(arg(d, "source", "sync"))
		if err != nil {
			return err.Error()
		}
		cfg.Source, cfg.MaxOutstanding = src, num(d, "k", cfg.MaxOutstanding)
		s.b, err = New(cfg, timestamp.Stability{Ref: timestamp.Ref{Generation: 1}, Vector: vector(arg(d, "last", "-0"))})
		if err != nil {
			return err.Error()
		}
		return ""
	case "begin":
		ok := s.b.Begin(num(d, "v", 0), Stream{Projector: index.ProjectorID(arg(d, "p", "p1")),
			Incarnation: index.Incarnation{Counter: uint64(num(d, "inc", 1))}, Log: failoverLog(arg(d, "log", "A0")),
			Revision: timestamp.MapRevision{Rev: uint64(num(d, "rev", 1))}})
		return said(ok)
	case "end":
		s.b.End(num(d, "v", 0), index.Incarnation{Counter: uint64(num(d, "inc", 1))})
		return ""
	case "complete":
		var out []string
		for _, n := range strings.Split(arg(d, "at", ""), ",") {
			at, _ := strconv.ParseUint(n, 10, 64)
			out = append(out, strings.TrimSpace(said(s.b.Complete(num(d, "v", 0), index.ProjectorID(arg(d, "p", "p1")),
				index.Incarnation{Counter: uint64(num(d, "inc", 1))}, at))))
		}
		return strings.Join(out, " ") + "\n"
	case "report":
		r := Report{BootID: arg(d, "boot", "1"), Active: arg(d, "active", "yes") == "yes",
			RollbackID: uint64(num(d, "rid", 0)),
			Fill:       num(d, "fill", 0)}
		if hw := arg(d, "hw", ""); hw != "" {
			r.HW = vector(hw)
		}
		if absent := arg(d, "absent", ""); absent != "" {
			r.Absent = make([]bool, s.b.Len())
			for _, v := range strings.Split(absent, ",") {
				n, _ := strconv.Atoi(v)
				r.Absent[n] = true
			}
		}
		if n := num(d, "acked", -1); n >= 0 {
			r.Acked = timestamp.Ref{Generation: 1, RollbackID: r.RollbackID, Number: uint64(n)}
		}
		s.b.Report(index.NodeID(num(d, "node", 1)), int64(num(d, "now", 0)), r)
		return ""
	case "leftout":
		var marks []bool
		if v := num(d, "v", -1); v >= 0 {
			marks = make([]bool, s.b.Len())
			marks[v] = true
		}
		s.b.LeftOut(index.NodeID(num(d, "node", 1)), int64(num(d, "now", 0)), marks)
		return ""
	case "next", "promote":
		dec := s.b.Next(int64(num(d, "now", 0)))
		switch {
		case len(dec.HeldBy) > 0:
			return fmt.Sprintf("held back by %v\n", dec.HeldBy)
		case !dec.Promote:
			return "nothing\n"
		}
		if s.proposed = dec.Next; d.Cmd == "promote" {
			if err := s.b.Committed(dec.Next); err != nil {
				return err.Error()
			}
		}
		return fmt.Sprintf("S%d %s\n", dec.Next.Number, show(dec.Next.Vector))
	case "committed": // the result of the last next
		if err := s.b.Committed(s.proposed); err != nil {
			return err.Error() + "\n"
		}
		return ""
	case "rolledback":
		st := timestamp.Stability{Ref: timestamp.Ref{Generation: 1, RollbackID: uint64(num(d, "rid", 1)),
			Number: uint64(num(d, "number", 1))}, Vector: vector(arg(d, "to", "-0"))}
		if err := s.b.Committed(st); err != nil {
			return err.Error() + "\n"
		}
		return ""
	case "diverged":
		return fmt.Sprintf("%v\n", s.b.Diverged())
	case "participants":
		var out strings.Builder
		for _, p := range s.b.Participants(int64(num(d, "now", 0))) {
			fmt.Fprintf(&out, "%d: behind %d, holds %v, ignored %q\n", p.Node, p.Behind, p.Holds, p.Ignored)
		}
		return out.String()
	case "settled":
		return fmt.Sprintf("%t\n", s.b.Settled(int64(num(d, "now", 0))))
	case "lagging":
		return fmt.Sprintf("%v\n", s.b.Lagging(int64(num(d, "now", 0))))
	}
	return "unknown command " + d.Cmd
}

func said(ok bool) string {
	if ok {
		return "taken\n"
	}
	return "refused\n"
}

// TestProperties drives a Bucket with random streams, complete seqnos, failovers, acknowledgements and sources, and
// compares each proposal with the rules applied to the whole history.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 3
		cfg := DefaultConfig()
		cfg.Source = Source(rapid.IntRange(1, 2).Draw(t, "source"))
		cfg.RingSize = rapid.IntRange(4, 8).Draw(t, "ring")
		b, err := New(cfg, timestamp.Stability{Ref: timestamp.Ref{Generation: 1}, Vector: timestamp.New(n)})
		if err != nil {
			t.Fatal(err)
		}
		type vb struct {
			inc      uint64
			live     bool
			at       uint64
			log      timestamp.FailoverLog
			complete map[timestamp.Position]bool
		}
		var vbs [n]vb
		uuid := uint64(0)
		for v := range vbs {
			uuid++
			vbs[v] = vb{complete: map[timestamp.Position]bool{}, log: timestamp.FailoverLog{{VBUUID: uuid}}}
		}
		nodes := [2]uint64{}
		for now := int64(0); now < 60; now++ {
			v := rapid.IntRange(0, n-1).Draw(t, "v")
			x := &vbs[v]
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 6:
				b.SetSource(Source(rapid.IntRange(1, 2).Draw(t, "other source")))
			case 0: // a stream begins, at or below where the last one was
				x.inc, x.live = x.inc+1, true
				x.at -= min(x.at, uint64(rapid.IntRange(0, 2).Draw(t, "back")))
				if !b.Begin(v, Stream{Projector: "p", Incarnation: index.Incarnation{Counter: x.inc}, Log: x.log}) {
					t.Fatalf("begin of a newer incarnation refused")
				}
			case 1:
				x.live = false
				b.End(v, index.Incarnation{Counter: x.inc})
			case 2, 3:
				x.at += uint64(rapid.IntRange(0, 5).Draw(t, "more"))
				if got := b.Complete(v, "p", index.Incarnation{Counter: x.inc}, x.at); got != x.live {
					t.Fatalf("complete taken %v, stream live %v", got, x.live)
				}
				if x.live && x.at > 0 {
					x.complete[timestamp.Position{VBUUID: x.log.Covering(x.at), Seqno: x.at}] = true
				}
			case 4: // failover with no loss: a new branch at or above everything seen
				if !x.live {
					uuid++
					x.log = append(timestamp.FailoverLog{{VBUUID: uuid, Seqno: x.at + 3}}, x.log...)
				}
			case 5:
				node := rapid.IntRange(0, 1).Draw(t, "node")
				nodes[node] = uint64(rapid.IntRange(int(nodes[node]), int(b.Last().Number)).Draw(t, "acked"))
				hw := timestamp.New(n)
				for w := range vbs {
					hw.Seqnos[w] = uint64(rapid.IntRange(0, int(vbs[w].at)).Draw(t, "hw"))
				}
				b.Report(index.NodeID(node), now, Report{BootID: "1", Active: true, HW: hw,
					Fill:  rapid.IntRange(0, 1000).Draw(t, "fill"),
					Acked: timestamp.Ref{Generation: 1, Number: nodes[node]}})
			}
			last := b.Last()
			d := b.Next(now)
			if !d.Promote {
				continue
			}
			// the first timestamp of an empty bucket is no change
			again := d.Next.Vector.Equal(last.Vector) && (last.Number > 0 || last.Vector.Total() > 0)
			if d.Next.Number != last.Number+1 || !d.Next.Vector.Covers(last.Vector) || again {
				t.Fatalf("S%d %s after S%d %s", d.Next.Number, show(d.Next.Vector), last.Number, show(last.Vector))
			}
			for w := range vbs {
				at := d.Next.Vector.At(w)
				if at == last.Vector.At(w) {
					continue
				}
				if !vbs[w].live {
					t.Fatalf("vbucket %d moved to %v without an owner", w, at)
				}
				if !endsSnapshot(vbs[w].complete, at, vbs[w].log) {
					t.Fatalf("vbucket %d moved to %v: no snapshot ended there (%v)", w, at, vbs[w].complete)
				}
			}
			if !d.Mutation.Covers(d.Next.Vector) {
				t.Fatalf("mutation timestamp %s below S %s", show(d.Mutation), show(d.Next.Vector))
			}
			for _, g := range d.Logs {
				if !g.Log.Equal(vbs[g.VBucket].log) || !d.Next.Logs[g.VBucket].Equal(g.Log) {
					t.Fatalf("vbucket %d: log %v", g.VBucket, g.Log)
				}
			}
			if err := b.Committed(d.Next); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// endsSnapshot: the same seqno may have been recorded under the older of two branches that share it.
func endsSnapshot(complete map[timestamp.Position]bool, at timestamp.Position, log timestamp.FailoverLog) bool {
	if complete[at] {
		return true
	}
	for _, e := range log {
		if complete[timestamp.Position{VBUUID: e.VBUUID, Seqno: at.Seqno}] && at.Seqno <= log.ValidUpTo(e.VBUUID) {
			return true
		}
	}
	return false
}

func TestPacer(t *testing.T) {
	p := DefaultPacer()
	if w := p.Wait(1000, Calm); w != 0 {
		t.Fatalf("the first command waits %v", w)
	}
	count := func(u Urgency, bytes int) int {
		n := 0
		for now := int64(10_000); now < 11_000; now++ {
			if p.Wait(now, u) == 0 {
				p.Sent(now, bytes)
				n++
			}
		}
		p = DefaultPacer()
		return n
	}
	for _, c := range []struct {
		urgency     Urgency
		bytes, want int
	}{{Calm, 100, 5}, {Hurry, 100, 20}, {Hurry, 256 << 10, 20}, {Hurry, 512 << 10, 10}, {Calm, 1 << 20, 2},
		{HurrySettled, 100, 500}, {HurrySettled, 512 << 10, 250}} {
		if got := count(c.urgency, c.bytes); got != c.want {
			t.Errorf("urgency %d, %d bytes: %d commands in a second, want %d", c.urgency, c.bytes, got, c.want)
		}
	}
	p.Sent(50_000, 1)
	if w := p.Wait(40_000, Calm); w != 0 {
		t.Errorf("a clock that went back stops promotion for %v", w)
	}
}

func TestConfig(t *testing.T) {
	good := DefaultConfig()
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"source":  func(c *Config) { c.Source = 0 },
		"k":       func(c *Config) { c.MaxOutstanding = 0 },
		"ring":    func(c *Config) { c.RingSize = 3 },
		"silent":  func(c *Config) { c.SilentAfter = 0 },
		"stalled": func(c *Config) { c.StalledAfter = -time.Second },
		"marks":   func(c *Config) { c.QueueHigh = c.QueueLow },
	} {
		c := good
		change(&c)
		if err := c.Check(); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := New(c, timestamp.Stability{Vector: timestamp.New(1)}); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: New gives %v", name, err)
		}
	}
	if _, err := ParseSource("mean"); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
	if _, err := New(good, timestamp.Stability{}); !errors.Is(err, ErrTimestamp) {
		t.Error(err)
	}
}

// BenchmarkNext is the bar of docs/performance.md: 100 buckets x 16 indexers x 1024 vbuckets under 5 ms per round.
func BenchmarkNext(b *testing.B) {
	for _, src := range []Source{Sync, Heartbeat} {
		b.Run(src.String(), func(b *testing.B) {
			const buckets, nodes, n = 100, 16, 1024
			cfg := DefaultConfig()
			cfg.Source = src
			all := make([]*Bucket, buckets)
			for i := range all {
				all[i], _ = New(cfg, timestamp.Stability{Ref: timestamp.Ref{Generation: 1}, Vector: timestamp.New(n)})
				for v := range n {
					all[i].Begin(v, Stream{Projector: "p", Log: timestamp.FailoverLog{{VBUUID: uint64(v + 1)}}})
					for s := range 20 {
						all[i].Complete(v, "p", index.Incarnation{}, uint64(1000+10*s))
					}
				}
				for node := range nodes {
					hw := timestamp.New(n)
					for v := range n {
						hw.Seqnos[v] = uint64(1100 + node*7%90)
					}
					all[i].Report(index.NodeID(node), 0, Report{Active: true, HW: hw, Fill: 50 * node})
				}
				d := all[i].Next(0) // the steady state: branches and logs are known
				if !d.Promote {
					b.Fatal("nothing promoted")
				}
				if err := all[i].Committed(d.Next); err != nil {
					b.Fatal(err)
				}
				for v := range n { // every vbucket changes
					all[i].Complete(v, "p", index.Incarnation{}, 1200)
				}
				for _, p := range all[i].nodes {
					for v := range n {
						p.report.HW.Seqnos[v] = 1200
					}
				}
			}
			b.ResetTimer()
			b.ReportAllocs()
			for b.Loop() {
				for _, x := range all {
					if d := x.Next(0); !d.Promote {
						b.Fatal("nothing promoted")
					}
				}
			}
		})
	}
}
