package coordinator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/statecontext"
)

// interrupted is a Consensus that runs each of before once, right before one of the next proposals of users.
type interrupted struct {
	Consensus
	before []func()
}

func (i *interrupted) Propose(ctx context.Context, c statecontext.Command) (statecontext.Result, error) {
	if c.Request != nil && len(i.before) > 0 {
		do := i.before[0]
		i.before = i.before[1:]
		do()
	}
	return i.Consensus.Propose(ctx, c)
}

// interrupt returns the leader, whose proposals for users are interrupted.
func (w *world) interrupt() (*Coordinator, *interrupted) {
	l := w.leader()
	in := &interrupted{Consensus: l.cfg.Consensus}
	c := &Coordinator{cfg: l.cfg, rehearsing: l.rehearsing, current: l.current}
	c.cfg.Consensus = in
	return c, in
}

// TestNamesThatMove ends the split of an index between the look-up of its name and the proposal. The request applies
// to the index that has the name by then, and its repetition has the same outcome.
func TestNamesThatMove(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		c, in := w.interrupt()
		ready := func(name string) index.ID {
			o := w.create(name, "", 2, 0)
			w.until("READY", time.Minute, func() bool { return w.state(o.ID) == index.Maintenance })
			return o.ID
		}
		// moves lets the name's index have a successor, which has the name by the time of the next proposal.
		moves := func(name string) (first, next index.ID) {
			first = ready(name)
			o, err := w.leader().SplitIndex(w.ctx, SplitRequest{ID: first})
			if err != nil {
				t.Fatal(err)
			}
			in.before = []func(){func() {
				w.until("the split ends", time.Minute, func() bool {
					return w.log.State().IndexByName("world", name).Definition.ID == o.ID
				})
			}}
			return first, o.ID
		}
		execute := func(key, text string) (Outcome, error) {
			list, err := expression.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			os, err := c.Execute(w.ctx, list[0], &statecontext.Request{Principal: "p", Key: key})
			if err != nil {
				return Outcome{}, err
			}
			return os[0], nil
		}
		for key, text := range map[string]string{
			"left": "DROP INDEX left ON world",
			"gone": "DROP INDEX IF EXISTS gone ON world",
			"made": "BUILD INDEX ON world(made)",
		} {
			_, next := moves(key)
			for try := range 2 {
				o, err := execute(key, text)
				if err != nil || o.ID != next || o.Existed || o.Replayed != (try == 1) || o.Definition.Name != key {
					t.Fatalf("%s, try %d: %+v, %v; want index %d", text, try, o, err, next)
				}
			}
			if x := w.log.State().IndexByName("world", key); (x == nil) != (key != "made") {
				t.Errorf("after %s the name leads to %+v", text, x)
			}
		}
		_, _ = moves("c")
		for range 2 {
			if o, err := execute("c", `ALTER INDEX c ON world WITH {"action":"cancel_split"}`); !errors.Is(err,
				errcode.StateMismatch) {
				t.Errorf("cancelled when it was over: %+v, %v", o, err)
			}
		}
		// These are planned for an index that cannot be changed while it is split: the name moves from one to another.
		for key, text := range map[string]string{
			"more": `ALTER INDEX more ON world WITH {"action":"replica_count","num_replica":1}`,
			"cut":  `ALTER INDEX cut ON world WITH {"action":"split","num_partition":5}`,
		} {
			first := ready(key)
			var next index.ID
			in.before = []func(){func() {
				if _, err := w.leader().DropIndex(w.ctx, DropRequest{ID: first}); err != nil {
					t.Fatal(err)
				}
				next = ready(key)
			}}
			var last Outcome
			for try := range 2 {
				o, err := execute(key, text)
				if err != nil || o.Replayed != (try == 1) || try == 1 && o.ID != last.ID {
					t.Fatalf("%s, try %d: %+v, %v", text, try, o, err)
				}
				last = o
			}
			x := w.log.State().Index(next)
			if key == "more" && (last.ID != next || x.Definition.Replicas != 1) ||
				key == "cut" && w.log.State().Successor(&x.Definition).Definition.ID != last.ID {
				t.Errorf("%s has changed index %d, the name is that of %+v", text, last.ID, x)
			}
		}
		// No index has the name at first; when the request is repeated one has.
		for key, text := range map[string]string{
			"nobody":  `ALTER INDEX nobody ON world WITH {"action":"replica_count","num_replica":1}`,
			"neither": `ALTER INDEX neither ON world WITH {"action":"split"}`,
		} {
			for range 2 {
				if o, err := execute(key, text); !errors.Is(err, errcode.UnknownIndex) {
					t.Errorf("%s: %+v, %v", text, o, err)
				}
				if w.log.State().IndexByName("world", key) == nil {
					ready(key)
				}
			}
		}
	})
}

// TestRequestsAreReplanned checks that a request without IfMatch is not refused because the index has changed since it
// was planned, and that one with IfMatch is.
func TestRequestsAreReplanned(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		o := w.create("x", "", 2, 1)
		w.until("READY", time.Minute, func() bool { return w.state(o.ID) == index.Maintenance })
		c, in := w.interrupt()
		nodes := [][]string{{"i1", "i2", "i3"}, {"i3", "i2", "i1"}}
		change := func() {
			d := w.log.State().Definition(o.ID)
			body := &statecontext.AlterIndex{ID: o.ID, Replicas: d.Replicas, Nodes: nodes[0]}
			nodes[0], nodes[1] = nodes[1], nodes[0]
			if res, err := w.log.Propose(w.ctx, statecontext.Command{Body: body}); err != nil || res.Err() != nil {
				t.Fatal(err, res.Err())
			}
		}
		request := func(key string) *statecontext.Request { return &statecontext.Request{Principal: "p", Key: key} }
		zero := 0
		in.before = []func(){change, change}
		if _, err := c.AlterIndex(w.ctx, AlterRequest{ID: o.ID, Replicas: &zero, Request: request("drop")}); err != nil {
			t.Error(err)
		}
		in.before = []func(){change}
		as := w.log.State().Definition(o.ID).ModifiedCAS
		if _, err := c.SplitIndex(w.ctx, SplitRequest{ID: o.ID, IfMatch: as, Request: request("named")}); !errors.Is(err,
			errcode.CASMismatch) {
			t.Errorf("a split of a version that is no more: %v", err)
		}
		in.before = []func(){change, change, change, change, change}
		split := SplitRequest{ID: o.ID, Request: request("split")}
		if _, err := c.SplitIndex(w.ctx, split); !errors.Is(err, errcode.IndexChanged) {
			t.Errorf("a split of what changes all the time: %v", err)
		}
		in.before = []func(){change, change}
		first, err := c.SplitIndex(w.ctx, split)
		if err != nil || first.Replayed {
			t.Fatalf("a split: %+v, %v", first, err)
		}
		if again, err := c.SplitIndex(w.ctx, split); err != nil || !again.Replayed || again.ID != first.ID {
			t.Errorf("the same again: %+v, %v", again, err)
		}
	})
}

// TestCreateIsPlacedAgain removes an indexer on which a new index was about to be placed. The same request places the
// copies on others.
func TestCreateIsPlacedAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		c, in := w.interrupt()
		going := w.log.State().Indexer(w.nodeOf("i1"))
		in.before = []func(){func() {
			body := &statecontext.EvictIndexer{Node: going.Node, UUID: going.UUID, Revision: w.log.State().DefinitionsRevision()}
			if res, err := w.log.Propose(w.ctx, statecontext.Command{Body: body}); err != nil || res.Err() != nil {
				t.Fatal(err, res.Err())
			}
			synctest.Wait() // the leader has seen it
		}}
		req := CreateRequest{Definition: index.Definition{Name: "x", Bucket: "world", Partitions: 4,
			Keys: []index.KeyExpr{{Expr: "name"}}}, Request: &statecontext.Request{Principal: "p", Key: "create"}}
		first, err := c.CreateIndex(w.ctx, req)
		if err != nil || first.Replayed || len(in.before) > 0 {
			t.Fatalf("%+v, %v", first, err)
		}
		if n := len(w.on(first.ID, going.Node)); n > 0 {
			t.Errorf("%d copies are on the indexer that goes", n)
		}
		if again, err := c.CreateIndex(w.ctx, req); err != nil || !again.Replayed || again.ID != first.ID {
			t.Errorf("the same again: %+v, %v", again, err)
		}
	})
}
