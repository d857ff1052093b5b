package core

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/rollback"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

// commandBytes is the limit of one command (package consensus).
const commandBytes = 512 << 10

// applied is a state that applies commands in their encoded form, as from the log.
type applied struct {
	t     testing.TB
	state *statecontext.State
	index uint64
	most  int // size of the largest command in bytes
}

func (a *applied) do(b statecontext.Body) statecontext.Result {
	a.t.Helper()
	data, err := statecontext.Encode(statecontext.Command{Body: b})
	if err != nil {
		a.t.Fatal(err)
	}
	a.most = max(a.most, len(data))
	a.index++
	next, results, _, err := statecontext.Apply(a.state, a.index, data)
	if err == nil {
		err = results[0].Err()
	}
	if err != nil {
		a.t.Fatalf("%T: %v", b, err)
	}
	a.state = next
	return results[0]
}

// crowded returns a state with the given number of indexes of 64 slices, all on node 0 of four.
func crowded(t testing.TB, indexes int) *applied {
	a := &applied{t: t, state: statecontext.New()}
	a.do(&statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m1", Name: "m1", REST: "http://m1"}})
	a.do(&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: statecontext.FormatLevel,
		Limits: statecontext.Limits{Indexes: uint32(indexes), IndexesPerBucket: uint32(indexes)}})
	for i := range 4 {
		a.do(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: fmt.Sprint("u", i), Name: fmt.Sprint("i", i),
			Admin: "http://i"}})
	}
	a.do(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p1", Admin: "http://p"}})
	const slices, buckets = 64, 20
	for b := range buckets {
		a.do(&statecontext.SetBucket{Name: fmt.Sprint("b", b), UUID: "u", VBuckets: 8})
	}
	placement := make([]statecontext.Placement, slices)
	for s := range placement {
		placement[s].Slice = index.SliceID(s)
	}
	for i := range indexes {
		a.do(&statecontext.CreateIndex{Placement: placement, Layout: partition.Layout{Scheme: partition.HashDocID,
			Partitions: slices},
			Definition: index.Definition{Name: fmt.Sprint("x", i), Bucket: fmt.Sprint("b", i%buckets), BucketUUID: "u",
				Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: slices}})
	}
	return a
}

// again replaces the state by its snapshot, as on a manager that was sent one.
func (a *applied) again() {
	a.t.Helper()
	var w bytes.Buffer
	if err := statecontext.WriteSnapshot(&w, a.state); err != nil {
		a.t.Fatal(err)
	}
	s, err := statecontext.ReadSnapshot(&w)
	if err != nil {
		a.t.Fatal(err)
	}
	if statecontext.Hash(s) != statecontext.Hash(a.state) {
		a.t.Fatal("the snapshot has another hash")
	}
	a.state = s
}

// TestEvictionsFitIntoCommands checks that all copies are taken off an indexer, in commands that may be proposed, and
// that the other indexers share them.
func TestEvictionsFitIntoCommands(t *testing.T) {
	indexes := 10_000
	if testing.Short() {
		indexes = 1_000
	}
	a := crowded(t, indexes)
	a.do(&statecontext.EvictIndexer{Node: 0, UUID: "u0", Revision: a.state.DefinitionsRevision()})
	a.most = 0
	none := func(index.NodeID) bool { return false }
	pieces := 0
	for {
		piece, held, err := evicted(a.state, 0, Living(a.state, none, 0), DefaultSettings().EvictBytes)
		if err != nil {
			t.Fatal(err)
		}
		if !held {
			break
		}
		was := a.state.Load(0)
		a.do(&statecontext.EvictCopies{Node: 0, UUID: "u0", Indexes: piece})
		if now := a.state.Load(0); now != was-64*len(piece) {
			t.Fatalf("%d indexes: %d copies are left of %d", len(piece), now, was)
		}
		if pieces++; pieces == 3 { // a new leader that was down may have only this
			a.again()
		}
	}
	if a.most > commandBytes || pieces < 2 {
		t.Errorf("%d commands, of %d bytes at most; %d may be", pieces, a.most, commandBytes)
	}
	a.do(&statecontext.RemoveIndexer{Node: 0, UUID: "u0"})
	if err := statecontext.Check(a.state); err != nil {
		t.Fatal(err)
	}
	least, most := indexes*64, 0
	for node := range index.NodeID(3) {
		least, most = min(least, a.state.Load(node+1)), max(most, a.state.Load(node+1))
	}
	if a.state.Load(0) != 0 || most-least > 1 || least+most < indexes*64*2/3-1 {
		t.Errorf("%d copies are on the node, the others have %d to %d", a.state.Load(0), least, most)
	}
	t.Logf("%d copies in %d commands of at most %d bytes", indexes*64, pieces, a.most)
}

// TestEvictionsKeepToNamedIndexers checks that an index that names its indexers gets replacement copies on those
// only: it waits while none of them is alive, and may use any indexer if none of them stays.
func TestEvictionsKeepToNamedIndexers(t *testing.T) {
	for name, tc := range map[string]struct {
		names   []string
		offline index.NodeID
		on      []index.NodeID // nil: it waits
	}{
		"no names":               {nil, NoNode, []index.NodeID{1, 2, 3}},
		"two others are named":   {[]string{"i0", "i2", "u3"}, NoNode, []index.NodeID{2, 3}},
		"one of them is offline": {[]string{"i0", "i2", "u3"}, 2, []index.NodeID{3}},
		"the other is offline":   {[]string{"i0", "i2"}, 2, nil},
		"it was the only one":    {[]string{"i0"}, NoNode, []index.NodeID{1, 2, 3}},
		"the other was removed":  {[]string{"i0", "i9"}, NoNode, []index.NodeID{1, 2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			a := crowded(t, 1)
			placement := make([]statecontext.Placement, 6)
			for s := range placement {
				placement[s].Slice = index.SliceID(s)
			}
			a.do(&statecontext.SetLimits{Limits: statecontext.Limits{Indexes: 2, IndexesPerBucket: 2}})
			id := a.do(&statecontext.CreateIndex{Placement: placement, Layout: partition.Layout{Scheme: partition.HashDocID,
				Partitions: 6}, Definition: index.Definition{Name: "named", Bucket: "b0", BucketUUID: "u", Nodes: tc.names,
				Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 6}}).Index
			offline := func(n index.NodeID) bool { return n == tc.offline }
			piece, held, err := evicted(a.state, 0, Living(a.state, offline, 0), DefaultSettings().EvictBytes)
			var on []index.NodeID
			for _, e := range piece {
				if e.ID != id {
					continue
				}
				for _, p := range e.Add {
					on = append(on, p.Node)
				}
			}
			slices.Sort(on)
			on = slices.Compact(on)
			if waits := errors.Is(err, rebalance.ErrTooFewNodes); !held || !slices.Equal(on, tc.on) || waits != (on == nil) {
				t.Errorf("its copies go to %v, want %v; %v", on, tc.on, err)
			}
		})
	}
}

// TestRollbackWithLongLogs checks that a rollback whose failover logs exceed one command commits them in pieces, and
// continues when its leader ends between two of them.
func TestRollbackWithLongLogs(t *testing.T) {
	log := make(timestamp.FailoverLog, 64)
	changes := make([]timestamp.VBucketLog, 1024)
	for v := range changes {
		for i := range log {
			log[i] = timestamp.LogEntry{VBUUID: 1<<63 | uint64(v*64+i), Seqno: 1<<40 + uint64(64-i)}
		}
		log[len(log)-1].Seqno = 0
		changes[v] = timestamp.VBucketLog{VBucket: uint16(v), Log: append(timestamp.FailoverLog(nil), log...),
			Revision: timestamp.MapRevision{Epoch: 1, Rev: 9}}
	}
	a := &applied{t: t, state: statecontext.New()}
	a.do(&statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m1", Name: "m1", REST: "http://m1"}})
	a.do(&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: statecontext.FormatLevel})
	a.do(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p1", Admin: "http://p"}})
	a.do(&statecontext.SetBucket{Name: "b", UUID: "u", VBuckets: len(changes)})
	a.do(&statecontext.SetRollbackStep{Bucket: "b", Generation: 1, To: statecontext.Started})
	whole := statecontext.Command{Body: &statecontext.SetRollbackStep{Bucket: "b", Generation: 1, ID: 1,
		From: statecontext.Started, To: statecontext.Prepare, Logs: changes}}
	if entry, err := statecontext.Encode(whole); err == nil && len(entry) <= commandBytes {
		t.Fatalf("all logs have %d bytes: that is not enough to show anything", len(entry))
	}
	pieces := 0
	for a.state.Bucket("b").Rollback.Step == statecontext.Started {
		s := a.state.Bucket("b")
		logs, revisions := make([]timestamp.FailoverLog, len(changes)), make([]timestamp.MapRevision, len(changes))
		for v := range changes {
			logs[v], revisions[v] = changes[v].Log, changes[v].Revision
		}
		a.do(rollbackCommand(s, rollback.Decision{Advance: true, To: rollback.Prepare, Logs: logs, Revisions: revisions,
			Failover: timestamp.New(len(changes))}))
		if pieces++; pieces == 2 {
			a.again()
		}
	}
	if pieces < 3 || a.most > commandBytes {
		t.Errorf("%d commands of at most %d bytes", pieces, a.most)
	}
	for v, g := range a.state.Bucket("b").Rollback.Logs {
		if !g.Equal(changes[v].Log) {
			t.Fatalf("vbucket %d has the log %v", v, g)
		}
	}
}
