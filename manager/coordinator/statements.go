package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/statecontext"
)

// Execute executes one statement; its outcomes are in the order of the names in it. The command itself looks names up
// (statecontext.ByName), and is proposed even if they do not exist: the ledger shows whether this request dropped the
// index, and only a leader that can still commit can determine that there is none. Errors are those of the methods that
// it calls.
func (c *Coordinator) Execute(ctx context.Context, s expression.Statement,
	req *statecontext.Request) ([]Outcome, error) {
	var o Outcome
	var err error
	switch s := s.(type) {
	case *expression.CreateIndex:
		o, err = c.CreateIndex(ctx, CreateRequest{Definition: s.Definition(), IfNotExists: s.IfNotExists, Request: req})
	case *expression.DropIndex:
		o, err = c.DropNamed(ctx, statecontext.IndexName{Keyspace: s.Keyspace, Name: s.Name}, 0, req)
		if s.IfExists && errors.Is(err, errcode.UnknownIndex) {
			o, err = Outcome{CAS: c.cfg.Consensus.State().CAS(), Existed: true,
				Definition: index.Definition{Bucket: s.Keyspace.Bucket, Member: s.Keyspace.Member(), Name: s.Name,
					State: index.Dropping}}, nil
		}
	case *expression.BuildIndex:
		return c.BuildNamed(ctx, s.Keyspace, s.Names, req)
	case *expression.AlterIndex:
		o, err = c.alterNamed(ctx, s, req)
	default:
		err = &statecontext.Rejection{Code: errcode.Unsupported,
			Message: fmt.Sprintf("this statement is not supported: %s", s)}
	}
	if err != nil {
		return nil, err
	}
	return []Outcome{o}, nil
}

// unknownName returns the error for a name that no index has.
func unknownName(k index.Keyspace, name string) error {
	return &statecontext.Rejection{Code: errcode.UnknownIndex,
		Message: fmt.Sprintf("there is no index %q on bucket %q", name, k)}
}

// DropNamed is DropIndex by name.
func (c *Coordinator) DropNamed(ctx context.Context, name statecontext.IndexName, ifMatch uint64,
	req *statecontext.Request) (Outcome, error) {
	o, err := c.DropIndex(ctx, DropRequest{Name: name, IfMatch: ifMatch, Request: req})
	switch {
	case errors.Is(err, errcode.UnknownIndex), err == nil && o.Existed: // the latter: it was dropped meanwhile
		return Outcome{}, unknownName(name.Keyspace, name.Name)
	case err != nil:
		if x := c.cfg.Consensus.State().Named(&name); x != nil {
			o.ID = x.Definition.ID
		}
		return o, err
	}
	return o.called(name.Keyspace, name.Name), nil
}

// called sets the name in the outcome of an index that no longer exists.
func (o Outcome) called(k index.Keyspace, name string) Outcome {
	if o.Definition.Name == "" {
		o.Definition.Bucket, o.Definition.Member, o.Definition.Name = k.Bucket, k.Member(), name
	}
	return o
}

// alterNamed is AlterIndex, SplitIndex, SetAutoSplit or CancelSplit by name. Setting a present value changes nothing.
func (c *Coordinator) alterNamed(ctx context.Context, s *expression.AlterIndex,
	req *statecontext.Request) (Outcome, error) {
	name := statecontext.IndexName{Keyspace: s.Keyspace, Name: s.Name}
	split := SplitRequest{Name: name, At: s.At, Merge: s.Action == expression.ActionMerge, Partitions: s.NumPartition,
		Request: req}
	var o Outcome
	var err error
	switch s.Action {
	case expression.ActionCancelSplit:
		o, err = c.CancelSplit(ctx, split)
	case expression.ActionSplit, expression.ActionMerge:
		o, err = c.SplitIndex(ctx, split)
	case expression.ActionAutoSplit:
		o, err = c.SetAutoSplit(ctx, SplitRequest{Name: name, Request: req}, *s.AutoSplit)
	default:
		o, err = c.AlterIndex(ctx, AlterRequest{Name: name, Replicas: s.NumReplica, Drop: s.ReplicaID, Nodes: s.Nodes,
			Request: req})
	}
	switch {
	case errors.Is(err, errcode.UnknownIndex):
		return Outcome{}, unknownName(s.Keyspace, s.Name)
	case err != nil:
		return Outcome{}, err
	}
	return o.called(s.Keyspace, s.Name), nil // without a name: a replay, of an index dropped since
}

// BuildNamed is BuildIndexes by name: all or none.
func (c *Coordinator) BuildNamed(ctx context.Context, k index.Keyspace, names []string,
	req *statecontext.Request) ([]Outcome, error) {
	if len(names) > statecontext.MaxNamed {
		return nil, &statecontext.Rejection{Code: errcode.LimitExceeded, Message: fmt.Sprintf(
			"%d indexes to build at once; the limit is %d", len(names), statecontext.MaxNamed)}
	}
	build := BuildRequest{Request: req}
	for _, n := range names {
		build.Names = append(build.Names, statecontext.IndexName{Keyspace: k, Name: n})
	}
	outcomes, err := c.BuildIndexes(ctx, build)
	switch {
	case errors.Is(err, errcode.UnknownIndex):
		at := slices.IndexFunc(names, func(n string) bool { return c.cfg.Consensus.State().IndexIn(k, n) == nil })
		return nil, unknownName(k, names[max(at, 0)])
	case err != nil:
		return nil, err
	}
	for i := range outcomes {
		o := &outcomes[i]
		if o.Definition.ID == 0 { // built by the first request, and dropped since
			o.Definition = index.Definition{ID: o.ID, Bucket: k.Bucket, Member: k.Member(), Name: names[i],
				State: index.Dropping}
		}
		o.Existed = false // only for IF [NOT] EXISTS
	}
	return outcomes, nil
}
