package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
	"tidemark/wire"
)

// evaluates makes a projector report which of its indexes it cannot evaluate.
func (p *fakeProjector) evaluates(rules uint32, bad ...wire.Unevaluated) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.amend = func(r *wire.ProjectorReport) {
		r.Evaluation = &wire.Evaluation{Revision: r.Revision, Rules: rules, Indexes: bad}
	}
}

// evaluating makes all projectors report rules, and returns them.
func (w *world) evaluating(rules uint32) []*fakeProjector {
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.projectors))
	w.mu.Unlock()
	for _, p := range all {
		p.evaluates(rules)
	}
	return all
}

// TestCannotEvaluate checks that an index that some projector cannot evaluate goes to state error from any state, and
// is built again when all projectors can. An index that has failed for another reason is not.
func TestCannotEvaluate(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		all := w.evaluating(1)
		a, b := w.create("a", "", 1, 0), w.create("b", "", 1, 0)
		ready := func() bool { return w.state(a.ID) == index.Maintenance && w.state(b.ID) == index.Maintenance }
		w.until("READY", 10*time.Second, ready)

		last := all[len(all)-1]
		last.evaluates(1, wire.Unevaluated{Index: a.ID, Error: "unknown function SOON"})
		w.until("error", 10*time.Second, func() bool { return w.state(a.ID) == index.Error })
		if w.state(b.ID) != index.Maintenance {
			t.Errorf("the other index is %s", w.state(b.ID))
		}
		d := w.log.State().Definition(a.ID)
		if !d.CannotEvaluate() || !strings.Contains(d.Reason, "unknown function SOON") ||
			!strings.Contains(d.Reason, string(last.id)) {
			t.Errorf("reason %q", d.Reason)
		}
		if _, err := w.leader().BuildIndexes(w.ctx, BuildRequest{IDs: []index.ID{a.ID}}); err != nil {
			t.Fatal(err)
		}
		w.until("pending, and error again", 10*time.Second, func() bool {
			now := w.log.State().Definition(a.ID)
			return now.ModifiedCAS > d.ModifiedCAS && now.State == index.Error
		})
		time.Sleep(time.Minute)
		if s := w.state(a.ID); s != index.Error {
			t.Fatalf("the index is %s while a projector cannot evaluate it", s)
		}
		w.depose() // a new leader learns it from the projectors' reports
		w.lead()
		time.Sleep(time.Minute)
		if s := w.state(a.ID); s != index.Error {
			t.Fatalf("under a new leader the index is %s", s)
		}
		last.evaluates(1)
		w.until("READY again", 20*time.Second, ready)

		if r := w.leader().proposeAsDuty(w, &statecontext.SetIndexState{ID: b.ID, From: index.Maintenance, To: index.Error,
			Reason: "HOST_AWAY: x"}); r != nil {
			t.Fatal(r)
		}
		time.Sleep(time.Minute)
		if s := w.state(b.ID); s != index.Error {
			t.Errorf("an index that failed for another reason is %s", s)
		}
	})
}

// proposeAsDuty proposes like a duty.
func (c *Coordinator) proposeAsDuty(w *world, body statecontext.Body) error {
	_, err := c.proposeFor(w.ctx, body)
	return err
}

// TestRulesAreKept checks that an index records the lowest rules by which projectors evaluate when it is built. When
// they change to others, indexes whose expressions then give other values are outdated.
func TestRulesAreKept(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		all := w.evaluating(expression.Rules)
		rules := func(want core.ExprRules) func() bool {
			return func() bool { s, ok := w.leader().Status(); return ok && s.ExprRules == want }
		}
		w.until("rules arrive", 10*time.Second, rules(core.ExprRules{Lowest: expression.Rules, Highest: expression.Rules}))
		all[0].evaluates(1)
		w.until("an earlier version arrives", 10*time.Second, func() bool {
			s,
				_ := w.leader().Status()
			return s.ExprRules.Lowest == 1
		})
		mixed := w.create("mixed", `SUBSTR(x, 0) = "a"`, 1, 0)
		all[0].evaluates(expression.Rules)
		w.until("it is gone", 10*time.Second, rules(core.ExprRules{Lowest: expression.Rules, Highest: expression.Rules}))
		fresh, plain := w.create("fresh", `SUBSTR(x, 0) = "a"`, 1, 0), w.create("plain", `x = "a"`, 1, 0)
		for _, c := range []struct {
			o        Outcome
			rules    uint32
			outdated string
		}{{mixed, 1, "SUBSTR"}, {fresh, expression.Rules, ""}, {plain, expression.Rules, ""}} {
			d := w.log.State().Definition(c.o.ID)
			s, _ := w.leader().Status()
			said := s.ExprRules.Outdated(d)
			if d.Rules != c.rules || (said == "") != (c.outdated == "") || !strings.Contains(said, c.outdated) {
				t.Errorf("%s carries rules %d, want %d; outdated %q", d.Name, d.Rules, c.rules, said)
			}
		}
		back := core.ExprRules{Lowest: 1, Highest: 1}
		if said := back.Outdated(w.log.State().Definition(fresh.ID)); !strings.Contains(said,
			fmt.Sprintf("rules %d, projectors use 1", expression.Rules)) {
			t.Errorf("after a step back: %q", said)
		}
	})
}
