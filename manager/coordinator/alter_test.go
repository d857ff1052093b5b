package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// TestAlterKeepsAWholeCopy checks that the only whole replica is not dropped: not while the other one is being
// filled, nor while the other one's indexer is away.
func TestAlterKeepsAWholeCopy(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		lone := w.create("lone", "", 2, 0)
		w.until("READY", 20*time.Second, func() bool { return w.state(lone.ID) == index.Maintenance })
		n := w.indexer("i2")
		n.mu.Lock()
		n.never = true // its copies never become whole
		n.mu.Unlock()
		w.until("i2 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 2 })
		alter := func(replicas, drop *int) error {
			_, err := w.leader().AlterIndex(w.ctx, AlterRequest{ID: lone.ID, Replicas: replicas, Drop: drop})
			return err
		}
		zero, one := 0, 1
		if err := alter(&one, nil); err != nil {
			t.Fatal(err)
		}
		w.until("the new copies are made", 20*time.Second, func() bool {
			for _, c := range w.on(lone.ID, w.nodeOf("i2")) {
				if c.State != partition.Allocated {
					return false
				}
			}
			return true
		})
		if err := alter(nil, &zero); !errors.Is(err, ErrLastCopies) {
			t.Fatalf("the other replica is not filled: %v", err)
		}
		n.mu.Lock()
		n.never = false
		n.mu.Unlock()
		w.until("replica 0 can go, the other is whole", time.Minute, func() bool {
			q := &core.LackingQuery{Index: w.log.State().Index(lone.ID), Drop: []partition.Replica{0},
				Reply: make(chan core.Lacking, 1)}
			l, err := w.leader().leading()
			if err != nil || l.post(w.ctx, q) != nil {
				return false
			}
			lacks := <-q.Reply
			return len(lacks.Slices)+len(lacks.Unsure) == 0
		})
		w.die("i1")
		if err := alter(&zero, nil); !errors.Is(err, ErrLastCopies) {
			t.Fatalf("replica 0 is on an indexer that is away: %v", err)
		}
		if err := alter(nil, &zero); err != nil {
			t.Fatalf("the other one is whole: %v", err)
		}
	})
}

// TestStatementMatchesAlteredIndex checks that the statement of an index matches the index after every alteration.
func TestStatementMatchesAlteredIndex(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		o := w.create("x", `kind = "a"`, 2, 0)
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		zero, one, two := 0, 1, 2
		for _, req := range []AlterRequest{
			{Replicas: &two},
			{Drop: &zero},
			{Replicas: &one, Nodes: []string{"i2", "i3"}},
			{Replicas: &zero},
		} {
			req.ID = o.ID
			w.until("what is before is done", 5*time.Minute, func() bool { return w.log.State().RebalanceUnderWay() == nil })
			w.until("it is altered", time.Minute, func() bool {
				_, err := w.leader().AlterIndex(w.ctx, req)
				if err != nil && !errors.Is(err, ErrLastCopies) && !errors.Is(err, errcode.StateMismatch) {
					t.Fatal(err)
				}
				return err == nil
			})
			d := w.log.State().Definition(o.ID)
			all, err := expression.Parse(d.Statement)
			if err != nil || len(all) != 1 {
				t.Fatalf("%q: %v", d.Statement, err)
			}
			says := all[0].(*expression.CreateIndex).Definition()
			if says.Replicas != d.Replicas || !slices.Equal(says.Nodes, d.Nodes) || says.Partitions != d.Partitions ||
				says.Where != d.Where || says.Name != d.Name {
				t.Errorf("num_replica is %d, nodes %v; the text says %s", d.Replicas, d.Nodes, d.Statement)
			}
		}
	})
}

// TestAlterWithNodesSurvivesTheLeader ends the leader when an ALTER INDEX to other indexers is committed: the moves
// have begun with it, so that the next leader carries them out, and a retry of the request gets the outcome. If the
// rebalance cannot begin, the whole statement is refused.
func TestAlterWithNodesSurvivesTheLeader(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		name := strings.Repeat("long", 25)
		o := w.create(name, "", 3, 0)
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.indexer("i2")
		w.until("i2 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 2 })
		altered := false
		w.log.mu.Lock()
		w.log.refuse = func(c statecontext.Command) error {
			if altered {
				return ErrNotLeading
			}
			_, altered = c.Body.(*statecontext.AlterIndex)
			return nil
		}
		w.log.mu.Unlock()
		req := AlterRequest{ID: o.ID, Nodes: []string{"i2"}, Request: &statecontext.Request{Principal: "p", Key: "move"}}
		_, _ = w.leader().AlterIndex(w.ctx, req) // its caller gets no answer
		w.depose()
		w.log.mu.Lock()
		w.log.refuse = nil
		w.log.mu.Unlock()
		w.lead()
		w.until("a retry has the outcome", 20*time.Second, func() bool {
			got, err := w.leader().AlterIndex(w.ctx, req)
			return err == nil && got.Replayed && slices.Equal(got.Definition.Nodes, req.Nodes)
		})
		w.until("all of it is on i2", 5*time.Minute, func() bool {
			return len(w.on(o.ID, w.nodeOf("i2"))) == 3 && len(w.on(o.ID, w.nodeOf("i1"))) == 0
		})
		if n := w.log.counted("*statecontext.AlterIndex"); n != 1 {
			t.Errorf("%d alterations", n)
		}
	})
}

// TestTooLargeAlterIsRefused checks that an ALTER INDEX with more moves than one rebalance can begin is refused with
// advice, and that one with fewer is not.
func TestTooLargeAlterIsRefused(t *testing.T) {
	const replicas = 15
	cluster := func(slices int) *rebalance.Cluster {
		r := &rebalance.Cluster{}
		for n := range index.NodeID(2 * (replicas + 1)) {
			r.Nodes = append(r.Nodes, rebalance.Node{ID: n + 1, UUID: fmt.Sprint(n), Role: rebalance.Serving})
		}
		x := rebalance.Index{ID: 1, Bucket: "b", Name: "wide", Slices: slices, Replicas: replicas}
		for slice := range index.SliceID(slices) {
			for n := range replicas + 1 {
				x.Copies = append(x.Copies, rebalance.Copy{ID: index.CopyID(len(x.Copies) + 1), Slice: slice,
					Replica: partition.Replica(n), Node: index.NodeID(n + 1)})
			}
		}
		for n := range replicas + 1 {
			x.Nodes = append(x.Nodes, index.NodeID(n+2+replicas))
		}
		r.Indexes = append(r.Indexes, x)
		return r
	}
	x := &statecontext.Index{Definition: index.Definition{ID: 1, Bucket: "b", Name: "wide"}}
	c := &Coordinator{cfg: Config{Now: time.Now}}
	for slices, refused := range map[int]bool{partition.MaxPartitions: true, 16: false} {
		body := &statecontext.AlterIndex{ID: 1, Replicas: replicas}
		err := c.moves(cluster(slices), x, body)
		if refused != errors.Is(err, errcode.LimitExceeded) || !refused && (err != nil || body.Start == nil) {
			t.Errorf("%d slices: %v", slices, err)
		}
	}
}

// TestUntilKnownUsesTheLeadersClock checks that untilKnown measures its wait by the leader's own clock, by which
// the leader judges which components are online.
func TestUntilKnownUsesTheLeadersClock(t *testing.T) {
	now := time.Unix(1000, 0)
	c := &Coordinator{cfg: Config{Now: func() time.Time { return now }, began: now}}
	calls := 0
	err := c.untilKnown(t.Context(), func(late bool) error {
		calls++
		if now = now.Add(knownWait); late != (calls == 2) {
			t.Errorf("call %d: late is %v", calls, late)
		}
		return ErrNotKnown
	})
	if calls != 2 || !errors.Is(err, ErrNotKnown) {
		t.Errorf("%d calls, %v", calls, err)
	}
}
