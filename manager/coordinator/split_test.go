package coordinator

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/statecontext"
)

// TestSplitSurvivesTheLeader ends the leader right after a split was committed: the successor is built like any
// index, a retry gets the same successor, and the next leader makes it READY and drops the first.
func TestSplitSurvivesTheLeader(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("x", "", 2, 1)
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		split := false
		w.log.mu.Lock()
		w.log.refuse = func(c statecontext.Command) error {
			if split {
				return ErrNotLeading
			}
			_, split = c.Body.(*statecontext.SplitIndex)
			return nil
		}
		w.log.mu.Unlock()
		req := SplitRequest{ID: o.ID, Request: &statecontext.Request{Principal: "p", Key: "split"}}
		_, _ = w.leader().SplitIndex(w.ctx, req) // its caller gets no answer
		w.depose()
		w.log.mu.Lock()
		w.log.refuse = nil
		w.log.mu.Unlock()
		w.lead()
		var next index.ID
		w.until("a retry has the outcome", 20*time.Second, func() bool {
			got, err := w.leader().SplitIndex(w.ctx, req)
			next = got.ID
			return err == nil && got.Replayed
		})
		w.until("the name is the successor's, and the first is gone", time.Minute, func() bool {
			s := w.log.State()
			x := s.IndexByName("world", "x")
			return x.Definition.ID == next && x.Definition.State == index.Maintenance && x.Definition.Partitions == 4 &&
				s.Index(o.ID) == nil
		})
		if n := w.log.counted("*statecontext.SplitIndex"); n != 1 {
			t.Errorf("%d splits", n)
		}
		four := 4
		o, err := w.leader().SplitIndex(w.ctx, SplitRequest{ID: next, Partitions: &four})
		if err != nil || !o.Existed || o.ID != next {
			t.Errorf("into as many as there are: %+v, %v", o, err)
		}
	})
}

// TestSplitThatFails checks that a split whose indexer stays away fails, and the first index serves on and shows why.
// A cancelled split leaves nothing behind either.
func TestSplitThatFails(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("x", "", 2, 1) // no indexer can take another's place
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		for _, name := range []string{"i1", "i2"} {
			n := w.indexers["http://"+name]
			n.mu.Lock()
			n.never = true // no further copy becomes whole
			n.mu.Unlock()
		}
		three := 3
		split := func() index.ID {
			got, err := w.leader().SplitIndex(w.ctx, SplitRequest{ID: o.ID, Partitions: &three})
			if err != nil {
				t.Fatal(err)
			}
			return got.ID
		}
		next := split()
		if _, err := w.leader().SplitIndex(w.ctx, SplitRequest{ID: o.ID}); !errors.Is(err, errcode.SplitRunning) {
			t.Errorf("a second split: %v", err)
		}
		none := 0
		if _, err := w.leader().AlterIndex(w.ctx, AlterRequest{ID: o.ID, Replicas: &none}); !errors.Is(err,
			errcode.SplitRunning) {
			t.Errorf("replicas meanwhile: %v", err)
		}
		var cancel statecontext.CancelSplit
		w.log.mu.Lock()
		w.log.refuse = func(c statecontext.Command) error {
			if d, ok := c.Body.(*statecontext.CancelSplit); ok {
				cancel = *d
			}
			return nil
		}
		w.log.mu.Unlock()
		if got, err := w.leader().CancelSplit(w.ctx, SplitRequest{ID: o.ID}); err != nil || got.ID != next {
			t.Fatalf("cancelled: %+v, %v", got, err)
		}
		w.log.mu.Lock()
		w.log.refuse = nil
		w.log.mu.Unlock()
		if want := (statecontext.CancelSplit{ID: o.ID}); cancel != want { // its build may go on meanwhile
			t.Errorf("cancelled by %+v, want %+v", cancel, want)
		}
		w.until("it is gone", time.Minute, func() bool { return w.log.State().Index(next) == nil })
		if _, err := w.leader().CancelSplit(w.ctx, SplitRequest{ID: o.ID}); !errors.Is(err, errcode.StateMismatch) {
			t.Errorf("cancelled twice: %v", err)
		}
		next = split()
		w.until("it is being built", time.Minute, func() bool { return w.state(next) == index.Backfill })
		w.die("i2")
		w.until("it has failed", 30*time.Minute, func() bool {
			d := w.log.State().Definition(o.ID)
			return d.State == index.Maintenance && d.SplitFailed != "" && w.log.State().Index(next) == nil
		})
	})
}

// TestSplitOnRemainingIndexers checks that an index that names its indexers is split and merged on those that
// remain once one of them has left for good.
func TestSplitOnRemainingIndexers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(4)
		o, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "x", Bucket: "world",
			Keys: []index.KeyExpr{{Expr: "name"}}, Partitions: 4, Replicas: 1, Nodes: []string{"i1", "i2", "i3"}}})
		if err != nil {
			t.Fatal(err)
		}
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.die("i3")
		if _, err := w.leader().RemoveIndexer(w.ctx, RemoveIndexerRequest{ID: "i3", Force: true}); err != nil {
			t.Fatal(err)
		}
		next := w.becomes(o.ID, 2)
		for _, c := range w.log.State().Index(next.ID).Topology.Copies {
			if c.Node != w.nodeOf("i1") && c.Node != w.nodeOf("i2") {
				t.Errorf("%+v is where the index may not be", c)
			}
		}
		w.until("it is merged", time.Minute, func() bool { return w.named("x").ID == next.ID })
	})
}

func TestRefusedSplits(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		hash := w.create("hash", "", 600, 0)
		d := index.Definition{Name: "range", Bucket: "world", Keys: []index.KeyExpr{{Expr: "name"}},
			PartitionBy: index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"name"},
				Values: []json.RawMessage{json.RawMessage(`"m"`)}}}
		ranged, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: d})
		if err != nil {
			t.Fatal(err)
		}
		w.until("READY", time.Minute, func() bool {
			return w.state(hash.ID) == index.Maintenance && w.state(ranged.ID) == index.Maintenance
		})
		at := func(values ...string) (all []json.RawMessage) {
			for _, v := range values {
				all = append(all, json.RawMessage(v))
			}
			return all
		}
		one, four := 1, 4
		for name, c := range map[string]struct {
			req  SplitRequest
			want errcode.Code
		}{
			"too many slices":      {SplitRequest{ID: hash.ID}, errcode.LimitExceeded},
			"values of a hash":     {SplitRequest{ID: hash.ID, At: at("1")}, errcode.InvalidArgument},
			"merge of a hash":      {SplitRequest{ID: hash.ID, At: at("1"), Merge: true}, errcode.InvalidArgument},
			"unknown value":        {SplitRequest{ID: ranged.ID, At: at(`"n"`), Merge: true}, errcode.InvalidArgument},
			"the last value":       {SplitRequest{ID: ranged.ID, At: at(`"m"`), Merge: true}, errcode.InvalidArgument},
			"a value that it has":  {SplitRequest{ID: ranged.ID, At: at(`"m"`)}, errcode.InvalidArgument},
			"one slice of a range": {SplitRequest{ID: ranged.ID, Partitions: &one}, errcode.InvalidArgument},
			"no entries":           {SplitRequest{ID: ranged.ID, Partitions: &four}, errcode.InvalidArgument},
			"unknown index":        {SplitRequest{ID: 99}, errcode.UnknownIndex},
			"another version":      {SplitRequest{ID: ranged.ID, IfMatch: 1, At: at("1")}, errcode.CASMismatch},
		} {
			if _, err := w.leader().SplitIndex(w.ctx, c.req); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %s", name, err, c.want)
			}
		}
		o, err := w.leader().SplitIndex(w.ctx, SplitRequest{ID: ranged.ID, At: at(`"z"`, "1")})
		if err != nil || o.Definition.Statement != "CREATE INDEX range ON world(name) PARTITION BY RANGE(name) VALUES (1, "+
			`"m", "z")` {
			t.Errorf("%+v, %v", o, err)
		}
	})
}
