package coordinator

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/rollback"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

// commandBytes is what one command may have (package consensus).
const commandBytes = 512 << 10

// applied is a state that takes commands as the log carries them.
type applied struct {
	t     testing.TB
	state *statecontext.State
	index uint64
	most  int // bytes of the largest command
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

// crowded has as many indexes as there may be, with 64 slices each, all of them on node 0 of four.
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

// again is the state as a manager has it that was sent a snapshot.
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

// TestEvictionsFitIntoCommands: all that an indexer may hold is taken off it, each command is one that may be proposed,
// and the others share it.
func TestEvictionsFitIntoCommands(t *testing.T) {
	indexes := 10_000
	if testing.Short() {
		indexes = 1_000
	}
	a := crowded(t, indexes)
	a.do(&statecontext.EvictIndexer{Node: 0, UUID: "u0", Revision: a.state.DefinitionsRevision()})
	a.most = 0
	nobody := func(index.NodeID) bool { return false }
	pieces := 0
	for {
		piece, held, err := evictions(a.state, 0, living(a.state, nobody, 0), DefaultSettings().EvictBytes)
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
		if pieces++; pieces == 3 { // what a new leader has that was down
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

// TestEvictionGoesOn: leaders end in the middle of a removal, and for a while there is no place for what is left.
// Whoever leads next goes on; meanwhile it is shown, and nothing is placed on the node.
func TestEvictionGoesOn(t *testing.T) {
	inWorld(t, func(w *world) {
		w.settings = DefaultSettings()
		w.settings.EvictBytes = 1 // an index at a time
		w.depose()
		w.lead()
		w.components(3)
		w.finalize()
		var all []index.ID
		for i := range 6 {
			all = append(all, w.create(fmt.Sprint("x", i), "", 3, 1).ID)
		}
		w.until("READY", time.Minute, func() bool {
			for _, id := range all {
				if w.state(id) != index.Maintenance {
					return false
				}
			}
			return true
		})
		pieces := func() int { return w.log.counted("*statecontext.EvictCopies") }
		stopAt := 2
		w.log.mu.Lock()
		w.log.refuse = func(c statecontext.Command) error {
			if _, piece := c.Body.(*statecontext.EvictCopies); piece && w.log.count["*statecontext.EvictCopies"] >= stopAt {
				return errors.New("Raft is busy")
			}
			return nil
		}
		w.log.mu.Unlock()
		node := w.indexers["http://i2"].node
		w.die("i2")
		remove := func() (Removal, error) {
			return w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i2", Force: true})
		}
		had := w.log.State().Load(node)
		if r, err := remove(); err != nil || r.Done || len(r.Losses) != 6 {
			t.Fatalf("%+v, %v", r, err)
		}
		left := func() (IndexerStatus, bool) {
			s, _ := w.leader().Status()
			for _, i := range s.Indexers {
				if i.Node == node {
					return i, true
				}
			}
			return IndexerStatus{}, false
		}
		if i, _ := left(); pieces() != 2 || !i.Evicting || i.Placed == 0 || i.Placed >= had {
			t.Fatalf("after %d pieces: %+v, of %d copies", pieces(), i, had)
		}
		if late := w.create("late", "", 3, 0); len(w.on(late.ID, node)) != 0 {
			t.Error("a new index has copies on it")
		}
		w.depose()
		w.log.mu.Lock()
		stopAt = 4
		w.log.mu.Unlock()
		w.lead()
		w.until("the next leader goes on", time.Minute, func() bool { return pieces() == 4 })
		w.die("i3") // the slices have two replicas, and there is one node
		w.log.mu.Lock()
		w.log.refuse = nil
		w.log.mu.Unlock()
		w.until("it is said why it does not go on", time.Minute, func() bool {
			i, there := left()
			return there && i.Evicting && strings.Contains(i.Waits, "no other indexer lives")
		})
		if r, err := remove(); err != nil || r.Done || !strings.Contains(r.Waits, "no other indexer lives") {
			t.Errorf("%+v, %v", r, err)
		}
		w.indexer("i4")
		w.until("it is removed", time.Minute, func() bool { return w.log.State().Removed("uuid-i2") })
		if w.log.State().Indexer(node) != nil {
			t.Error("it is still there")
		}
		w.until("it is not shown any more", time.Minute, func() bool { _, there := left(); return !there })
		if err := statecontext.Check(w.log.State()); err != nil {
			t.Error(err)
		}
	})
}

// finalize raises the cluster to the newest format level.
func (w *world) finalize() {
	w.t.Helper()
	res, err := w.log.Propose(w.ctx,
		statecontext.Command{Body: &statecontext.SetFormatLevel{Level: statecontext.FormatLevel}})
	if err != nil || res.Err() != nil {
		w.t.Fatal(err, res.Err())
	}
}

// TestRollbackWithLongLogs: the failover logs of a bucket are more than one command may carry. The rollback takes them
// in pieces, and goes on when its leader ends between two of them.
func TestRollbackWithLongLogs(t *testing.T) {
	log := make(timestamp.FailoverLog, 64)
	changes := make([]statecontext.LogChange, 1024)
	for v := range changes {
		for i := range log {
			log[i] = timestamp.LogEntry{VBUUID: 1<<63 | uint64(v*64+i), Seqno: 1<<40 + uint64(64-i)}
		}
		log[len(log)-1].Seqno = 0
		changes[v] = statecontext.LogChange{VBucket: uint16(v), Log: append(timestamp.FailoverLog(nil), log...),
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
