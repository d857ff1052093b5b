package core

import (
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/statecontext"
)

// stepEvaluation puts an index into state error if a live projector cannot evaluate it: the documents of that
// projector are missing from it, and a scan must not present the others as if they were all.
func (l *lives) stepEvaluation() {
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
				"; it is rebuilt automatically once every projector can: install the managers' version there, or drop the index"
			l.propose(indexKey(d.ID), &statecontext.SetIndexState{ID: d.ID, From: d.State, To: index.Error, Reason: reason},
				l.logged("a projector cannot evaluate the index", d))
		}
	}
}

// ExprRules is the range of versions of the expression rules by which the live projectors evaluate.
type ExprRules struct{ Lowest, Highest uint32 }
