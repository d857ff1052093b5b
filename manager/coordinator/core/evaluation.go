package core

import (
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/statecontext"
)

// stepEvaluation puts an index into state error that a projector which lives cannot evaluate: the documents of that
// projector are missing in it, and a scan must not show the others as if they were all.
func (l *Leader) stepEvaluation() {
	for q := range l.now.state.Projectors() {
		p := l.components.projectors[q.ID]
		if p == nil || p.evaluation == nil || l.life(&p.component) == liveness.Offline {
			continue
		}
		for _, u := range p.evaluation.Indexes {
			x := l.now.state.Index(u.Index)
			if x == nil || x.Waits() || !x.Definition.State.Active() && x.Definition.State != index.Pending {
				continue
			}
			d := &x.Definition
			reason := index.ReasonCannotEvaluate + "projector " + string(p.id) + " cannot evaluate it: " + u.Error +
				"; it is built again by itself when every projector can: install the managers' version there, or drop the index"
			l.propose(indexKey(d.ID), &statecontext.SetIndexState{ID: d.ID, From: d.State, To: index.Error, Reason: reason},
				logged("index cannot be evaluated", d))
		}
	}
}

// ExprRules are versions of what expressions mean: those by which the projectors that live evaluate.
type ExprRules struct{ Lowest, Highest uint32 }

// exprRules sums up what the projectors have told. One of an earlier version says nothing, and one that has no
// definitions yet neither.
func (l *Leader) exprRules() (r ExprRules) {
	for q := range l.now.state.Projectors() {
		p := l.components.projectors[q.ID]
		if p == nil || p.evaluation == nil || p.evaluation.Rules == 0 || l.life(&p.component) == liveness.Offline {
			continue
		}
		if r.Highest = max(r.Highest, p.evaluation.Rules); r.Lowest == 0 || p.evaluation.Rules < r.Lowest {
			r.Lowest = p.evaluation.Rules
		}
	}
	return r
}
