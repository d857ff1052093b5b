package rollback

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/timestamp"
)

// vbLogs is the answer of a projector.
type vbLogs = []timestamp.VBucketLog

func log(pairs ...uint64) (l timestamp.FailoverLog) {
	for i := 0; i+1 < len(pairs); i += 2 {
		l = append(l, timestamp.LogEntry{VBUUID: pairs[i], Seqno: pairs[i+1]})
	}
	return l
}

const a, b, c, x = 0xA, 0xB, 0xC, 0x99

func TestSteps(t *testing.T) {
	legal := map[[2]Step]bool{{None, Started}: true, {Started, Prepare}: true, {Prepare, Restart}: true,
		{Restart, Rollback}: true,
		{Rollback, None}:    true, {Started, Started}: true, {Prepare, Started}: true, {Restart, Started}: true,
		{Rollback, Started}: true}
	for from := None; from <= Rollback+1; from++ {
		for to := None; to <= Rollback+1; to++ {
			err := from.CheckNext(to)
			if (err == nil) != legal[[2]Step{from, to}] {
				t.Errorf("%s to %s: %v", from, to, err)
			}
			if err != nil && !errors.Is(err, ErrStep) {
				t.Errorf("%v does not wrap ErrStep", err)
			}
		}
	}
}

// context returns the context of a bucket of two vbuckets: the first lost everything above 60 of branch A.
func context(step Step) Context {
	s := timestamp.New(2)
	s.Set(0, timestamp.Position{VBUUID: a, Seqno: 80})
	s.Set(1, timestamp.Position{VBUUID: b, Seqno: 10})
	cur := s.Clone()
	cur.Seqnos[0], cur.Seqnos[1] = 90, 15
	return Context{ID: 1, Step: step, Current: cur, Revisions: []timestamp.MapRevision{{Rev: 3}, {Rev: 3}},
		Logs:      []timestamp.FailoverLog{log(a, 0), log(b, 0)},
		Stability: timestamp.Stability{Vector: s, Logs: []timestamp.FailoverLog{log(a, 0), log(b, 0)}}}
}

func TestMachine(t *testing.T) {
	ctx := context(Started)
	ans := Answers{Projectors: []index.ProjectorID{"p1", "p2"}, Nodes: []index.NodeID{1, 2},
		Logs:     map[index.ProjectorID]vbLogs{},
		Prepared: map[index.NodeID]Reply{}, Done: map[index.NodeID]Reply{}}
	next := func() Decision {
		t.Helper()
		d, err := Next(ctx, ans)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := next(); d.Advance || len(d.AskLogs) != 2 {
		t.Fatalf("without logs: %+v", d)
	}
	// A stale node has an old log of vbucket 0: it is not used, even if it is the only one.
	ans.Logs["p1"] = vbLogs{{VBucket: 0, Log: log(a, 0), Revision: timestamp.MapRevision{Rev: 2}}}
	ans.Logs["p2"] = vbLogs{{VBucket: 1, Log: log(b, 0), Revision: timestamp.MapRevision{Rev: 3}}}
	if d := next(); d.Advance || d.Reason == "" {
		t.Fatalf("with a stale log: %+v", d)
	}
	ans.Logs["p2"] = append(ans.Logs["p2"], timestamp.VBucketLog{VBucket: 0, Log: log(c, 60, a, 0),
		Revision: timestamp.MapRevision{Rev: 4}})
	d := next()
	if !d.Advance || d.To != Prepare || d.Failover.At(0) != (timestamp.Position{VBUUID: c, Seqno: 60}) ||
		d.Failover.Seqnos[1] != 15 {
		t.Fatalf("with all logs: %+v", d)
	}
	ctx.Step, ctx.Logs, ctx.Revisions = d.To, d.Logs, d.Revisions
	ans.Prepared[1] = Reply{Restart: []uint64{55, 12}}
	if d := next(); d.Advance || len(d.AskPrepare) != 1 || d.AskPrepare[0] != 2 {
		t.Fatalf("one prepared: %+v", d)
	}
	ans.Prepared[2] = Reply{Stale: true}
	if d := next(); !d.Advance || d.To != Started {
		t.Fatalf("one has a newer log: %+v", d)
	}
	ans.Prepared[2] = Reply{Restart: []uint64{50, timestamp.Infinity}}
	d = next()
	if !d.Advance || d.To != Restart || d.Restart.At(0) != (timestamp.Position{VBUUID: a, Seqno: 50}) ||
		d.Restart.Seqnos[1] != 12 {
		t.Fatalf("both prepared: %+v", d)
	}
	ctx.Step, ctx.Restart = d.To, d.Restart
	if d := next(); d.Advance || len(d.AskDo) != 2 {
		t.Fatalf("no component done: %+v", d)
	}
	ans.Late = true // indexer 2 does not return: it compares logs when it does
	ans.Done[1] = Reply{}
	if d = next(); !d.Advance || d.To != Rollback {
		t.Fatalf("patience is over: %+v", d)
	}
	ctx.Step = d.To
	d = next()
	if !d.Advance || d.To != None || d.Stability.At(0) != (timestamp.Position{VBUUID: c, Seqno: 60}) ||
		d.Stability.Seqnos[1] != 10 {
		t.Fatalf("the end: %+v", d)
	}
	ctx.Logs = nil
	if _, err := Next(ctx, ans); !errors.Is(err, ErrStep) {
		t.Fatalf("a context without logs: %v", err)
	}
}

// TestAProjectorWithoutKV: p2's KV node hangs or is gone. It is not waited for if the others have every vbucket under
// one map; under two maps it may be the owner of what the older one has.
func TestAProjectorWithoutKV(t *testing.T) {
	rev := func(n uint64) timestamp.MapRevision { return timestamp.MapRevision{Rev: n} }
	both := func(r0, r1 uint64) vbLogs {
		return vbLogs{{VBucket: 0, Log: log(c, 60, a, 0), Revision: rev(r0)}, {VBucket: 1, Log: log(b, 0), Revision: rev(r1)}}
	}
	away := map[index.ProjectorID]bool{"p2": true}
	for _, tc := range []struct {
		name    string
		logs    map[index.ProjectorID]vbLogs
		away    map[index.ProjectorID]bool
		late    bool
		asked   int
		advance bool
	}{
		{"it has said nothing", map[index.ProjectorID]vbLogs{"p1": both(4, 4)}, nil, false, 1, false},
		{"all under one map", map[index.ProjectorID]vbLogs{"p1": both(4, 4)}, away, false, 0, true},
		{"all under the map that is known", map[index.ProjectorID]vbLogs{"p1": both(3, 3)}, away, false, 0, true},
		{"under two maps", map[index.ProjectorID]vbLogs{"p1": both(4, 5)}, away, false, 2, false},
		{"under two maps, the other way", map[index.ProjectorID]vbLogs{"p1": both(5, 4)}, away, false, 2, false},
		{"under two maps, for too long", map[index.ProjectorID]vbLogs{"p1": both(4, 5)}, away, true, 0, true},
		{"under an older map than one seen", map[index.ProjectorID]vbLogs{"p1": both(2, 3)}, away, false, 2, false},
		{"under two maps, and it answers after all", map[index.ProjectorID]vbLogs{"p1": both(4, 5), "p2": nil}, away, false, 0,
			true},
		{"it owns one", map[index.ProjectorID]vbLogs{"p1": both(4, 4)[:1]}, away, false, 2, false},
		{"no component answers", nil, map[index.ProjectorID]bool{"p1": true, "p2": true}, false, 2, false},
	} {
		d, err := Next(context(Started), Answers{Projectors: []index.ProjectorID{"p1", "p2"}, Logs: tc.logs, Away: tc.away,
			Late: tc.late})
		if err != nil || d.Advance != tc.advance || len(d.AskLogs) != tc.asked || d.Advance == (d.Reason != "") {
			t.Errorf("%s: %+v, %v", tc.name, d, err)
		}
	}
}

// TestRewindNeverRises checks that, whatever the logs are, no position rises, and the result is on KV's branch.
func TestRewindNeverRises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var logs, own []timestamp.FailoverLog
		s := timestamp.New(3)
		for v := range 3 {
			genLog := func(name string) timestamp.FailoverLog {
				n := rapid.IntRange(1, 4).Draw(t, name)
				seqs := rapid.SliceOfNDistinct(rapid.Uint64Range(1, 50), n-1, n-1, rapid.ID[uint64]).Draw(t, name+" seqnos")
				uuids := rapid.SliceOfNDistinct(rapid.Uint64Range(1, 6), n, n, rapid.ID[uint64]).Draw(t, name+" branches")
				l := timestamp.FailoverLog{{VBUUID: uuids[0]}}
				for at := uint64(1); at <= 50; at++ {
					for _, q := range seqs {
						if q == at {
							l = append(timestamp.FailoverLog{{VBUUID: uuids[len(l)], Seqno: at}}, l...)
						}
					}
				}
				return l
			}
			logs, own = append(logs, genLog("kv")), append(own, genLog("own"))
			at := rapid.Uint64Range(0, 60).Draw(t, "at")
			s.Set(v, timestamp.Position{VBUUID: own[v].Covering(at), Seqno: at})
		}
		r, err := Rewind(timestamp.Stability{Vector: s, Logs: own}, logs)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Rewind(timestamp.Stability{Vector: r, Logs: logs}, logs)
		if err != nil || !again.Equal(r) {
			t.Fatalf("rewound twice: %v, %v, %v", r, again, err)
		}
		for v := range 3 {
			if r.Seqnos[v] > s.Seqnos[v] {
				t.Fatalf("vbucket %d rose from %d to %d", v, s.Seqnos[v], r.Seqnos[v])
			}
			if !logs[v].Valid(r.VBUUIDs[v], r.Seqnos[v]) {
				t.Fatalf("vbucket %d at %v is not on %v", v, r.At(v), logs[v])
			}
		}
	})
}
