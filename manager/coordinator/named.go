package coordinator

import (
	"context"
	"errors"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/statecontext"
)

// target is the index that a request means now, nil when there is none: that of a name, or without one that of an id.
func target(s *statecontext.State, id index.ID, name *statecontext.IndexName) *statecontext.Index {
	if name.IsZero() {
		return s.Index(id)
	}
	return s.Named(name)
}

// byName makes a command one about the indexes that have these names when it is applied; without names it is about its
// own ids.
func byName(body statecontext.Body, names ...statecontext.IndexName) statecontext.Body {
	if len(names) == 0 || names[0].IsZero() {
		return body
	}
	return &statecontext.ByName{Names: names, Body: body}
}

// mostPlans is how often a request is planned that finds another state than it was planned for.
const mostPlans = 5

// replanned plans and proposes anew what Apply has refused as planned for another state: such a refusal is not
// remembered, so that a request has one outcome all the same.
func replanned[T any](ctx context.Context, do func() (T, error)) (o T, err error) {
	for range mostPlans {
		if o, err = do(); !errors.Is(err, errcode.IndexChanged) || ctx.Err() != nil {
			break
		}
	}
	return o, err
}

// absent asks for a change of an index whose name is not there: the ledger may know the request, and only a leader that
// can still write knows that the name is not there.
func (c *Coordinator) absent(ctx context.Context, name *statecontext.IndexName,
	req *statecontext.Request) (Outcome, error) {
	res, err := c.proposeRequest(ctx, req, byName(&statecontext.AlterIndex{}, *name))
	if err != nil {
		return Outcome{}, err
	}
	return altered(c.cfg.Consensus.State(), index.Definition{}, res)
}
