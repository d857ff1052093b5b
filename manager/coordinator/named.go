package coordinator

import (
	"context"
	"errors"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/statecontext"
)

// target returns the index that a request refers to now, by name if that is set, else by id; nil if there is none.
func target(s *statecontext.State, id index.ID, name *statecontext.IndexName) *statecontext.Index {
	if name.IsZero() {
		return s.Index(id)
	}
	return s.Named(name)
}

// byName returns a command that applies body to the indexes that have these names when it is applied; without names
// it returns body.
func byName(body statecontext.Body, names ...statecontext.IndexName) statecontext.Body {
	if len(names) == 0 || names[0].IsZero() {
		return body
	}
	return &statecontext.ByName{Names: names, Body: body}
}

// mostPlans is how often a request is planned, if the state keeps changing between plan and proposal.
const mostPlans = 5

// replanned calls do again while Apply refuses its command because the index has changed since it was planned. Such a
// refusal is not stored in the ledger, so a request still has exactly one outcome.
func replanned[T any](ctx context.Context, do func() (T, error)) (o T, err error) {
	for range mostPlans {
		if o, err = do(); !errors.Is(err, errcode.IndexChanged) || ctx.Err() != nil {
			break
		}
	}
	return o, err
}

// absent proposes a change of an index whose name does not exist: the request may be in the ledger, and only a leader
// that can still commit can determine that the name does not exist.
func (c *Coordinator) absent(ctx context.Context, name *statecontext.IndexName,
	req *statecontext.Request) (Outcome, error) {
	res, err := c.proposeRequest(ctx, req, byName(&statecontext.AlterIndex{}, *name))
	if err != nil {
		return Outcome{}, err
	}
	return altered(c.cfg.Consensus.State(), index.Definition{}, res)
}
