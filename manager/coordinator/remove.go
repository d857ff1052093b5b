package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/manager/coordinator/core"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

var (
	// ErrUnknownComponent is wrapped when no indexer or projector has the name.
	ErrUnknownComponent = errors.New("no such node")
	// ErrAlive is wrapped when the node to remove is alive.
	ErrAlive = errors.New("the node is running")
	// ErrLastCopies is wrapped when an indexer, or a replica, has the only copies of some slice.
	ErrLastCopies = errors.New("these are the only copies")
	// ErrNotKnown is wrapped when the leader does not know yet whether data would be lost, because it is new or a bucket
	// is being rolled back, and indexers have not reported.
	ErrNotKnown = errors.New("the leader cannot decide this yet, as it is new or a bucket is being rolled back; nothing " +
		"was done, try again in a moment")
	// ErrAmbiguous is wrapped when several indexers have the name.
	ErrAmbiguous = errors.New("several indexers have this name")
)

// RemoveIndexerRequest requests that an indexer be removed for good.
type RemoveIndexerRequest struct {
	ID     string // uuid, name or node number
	Force  bool   // even if it is alive, or has the only copies of some slice
	DryRun bool   // only report the consequences
	// Request identifies the request in the ledger; nil: its outcome is not stored.
	Request *statecontext.Request
}

// Removal is the effect of an indexer's removal.
type Removal struct {
	Indexer statecontext.Indexer
	Alive   bool
	Losses  []core.Loss // of its present copies
	Done    bool        // it is removed; else it is being removed, or this was a dry run
	Waits   string      // why the removal is stuck, if it is
}

const (
	// removeWait is how long the caller waits for a removal, which continues by itself. answerTime of the caller's
	// deadline is reserved for the reply.
	removeWait = 10 * time.Second
	answerTime = time.Second
	// knownWait limits the wait for indexers' reports; knownPause is the pause between attempts.
	knownWait  = 6 * time.Second // longer than a new leader takes to declare an indexer offline
	knownPause = 500 * time.Millisecond
)

// untilKnown calls f until it returns an error other than ErrNotKnown, or nil; late marks the last call. It uses the
// clock by which the leader judges which components are online.
func (c *Coordinator) untilKnown(ctx context.Context, f func(late bool) error) error {
	deadline := c.cfg.nowMS() + knownWait.Milliseconds()
	for {
		late := c.cfg.nowMS() >= deadline
		err := f(late)
		if late || !errors.Is(err, ErrNotKnown) {
			return err
		}
		select {
		case <-time.After(knownPause):
		case <-ctx.Done():
			return err
		}
	}
}

// RemoveIndexer removes an indexer for good: its copies are placed on other live indexers, which fill them from KV,
// and its uuid can never register again. One update decides it; then this leader, or a later one, takes the copies
// off it, in as many updates as that takes (core's evictions). If the indexer is being removed already, RemoveIndexer
// waits for that. Errors wrap ErrUnknownComponent, ErrAmbiguous, ErrAlive, ErrLastCopies, ErrNotKnown,
// rebalance.ErrTooFewNodes or ErrNotLeading, or come from the proposal.
func (c *Coordinator) RemoveIndexer(ctx context.Context, req RemoveIndexerRequest) (Removal, error) {
	l, err := c.leadingNow(ctx)
	if err != nil {
		return Removal{}, err
	}
	if again, done := c.decidedBefore(&req); done {
		return again, nil
	}
	return replanned(ctx, func() (Removal, error) { return c.removeOnce(ctx, l, &req) })
}

// removeOnce decides on one state whether an indexer may be removed, and proposes it.
func (c *Coordinator) removeOnce(ctx context.Context, l *term, req *RemoveIndexerRequest) (r Removal, err error) {
	var s *statecontext.State
	err = c.untilKnown(ctx, func(late bool) (err error) {
		s = c.cfg.Consensus.State()
		r, err = c.planRemoval(ctx, l, s, *req, late)
		return err
	})
	if err != nil || req.DryRun || r.Done {
		return r, err
	}
	i := &r.Indexer
	if !i.Evicting {
		_, err = c.proposeUnder(ctx, req.Request, &statecontext.EvictIndexer{Node: i.Node, UUID: i.UUID,
			Revision: s.DefinitionsRevision()})
		if err != nil {
			return r, err
		}
	}
	if r.Done = c.awaitRemoval(ctx, l, i.UUID); !r.Done {
		r.Waits = l.gate.shown.Load().EvictionWaits(i.Node)
	}
	return r, nil
}

// decidedBefore reports whether the request was executed before and its indexer is gone (done); another indexer may
// have its name by now. If the indexer is still being removed, it sets the request's ID to its uuid, and the caller
// waits.
func (c *Coordinator) decidedBefore(req *RemoveIndexerRequest) (again Removal, done bool) {
	s := c.cfg.Consensus.State()
	if res, known := s.Outcome(req.Request); req.DryRun || !known || res.Err() != nil {
		return Removal{}, false
	}
	for i := range s.Indexers() {
		if i.Evicting && (i.UUID == req.ID || i.Name == req.ID || strconv.Itoa(int(i.Node)) == req.ID) {
			req.ID = i.UUID
			return Removal{}, false
		}
	}
	return Removal{Indexer: statecontext.Indexer{Name: req.ID}, Done: true}, true
}

// awaitRemoval waits until an indexer is removed. It returns false after removeWait.
func (c *Coordinator) awaitRemoval(ctx context.Context, l *term, uuid string) bool {
	wait := removeWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-answerTime)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	changes := c.cfg.Machine.Subscribe()
	defer changes.Close()
	for {
		if c.cfg.Consensus.State().Removed(uuid) {
			return true
		}
		select {
		case <-changes.C():
		case <-l.ended:
			return c.cfg.Consensus.State().Removed(uuid)
		case <-ctx.Done():
			return c.cfg.Consensus.State().Removed(uuid)
		}
	}
}

// planRemoval decides on one state whether an indexer may be removed, and returns the consequences. An indexer that
// is being removed already may. If late is set, unknown copies count as lost, and with Force that is no reason to
// refuse.
func (c *Coordinator) planRemoval(ctx context.Context, l *term, s *statecontext.State, req RemoveIndexerRequest,
	late bool) (Removal, error) {
	if s.Removed(req.ID) { // a repeated request
		return Removal{Indexer: statecontext.Indexer{UUID: req.ID}, Done: true}, nil
	}
	i, err := findIndexer(s, req.ID)
	if err != nil {
		return Removal{}, err
	}
	seen := l.gate.shown.Load()
	r := Removal{Indexer: *i, Alive: !seen.Offline(i.Node)}
	nodes := core.Living(s, seen.Away, i.Node)
	var only onlyCopies
	whole, err := wholeElsewhere(ctx, l, s, i.Node)
	if err != nil {
		return r, err
	}
	r.Alive = r.Alive && !whole.Offline
	for x := range s.Indexes() {
		loss, held, lost := core.LossOf(x, i.Node, nodes, whole)
		if loss.Copies == 0 {
			continue
		}
		homes := core.Homes(s, &x.Definition, i.Node)
		if _, err := rebalance.Substitute(nodes, homes, held, lost); err != nil && !i.Evicting {
			return r, fmt.Errorf("index %s on %s: %w", loss.Name, loss.Bucket, err)
		}
		r.Losses = append(r.Losses, loss)
		only.add(&loss, core.BucketGone(s, &x.Definition))
	}
	return r, r.refusal(&req, &whole, &only, late)
}

// onlyCopies collects the indexes of which an indexer has the only copies (sure), or possibly has (unsure).
type onlyCopies struct {
	sure, unsure []string
}

// add adds an index. If its bucket is gone, the loss of copies does not matter.
func (o *onlyCopies) add(loss *core.Loss, gone bool) {
	if loss.LastCopies > loss.Unsure && !gone {
		o.sure = append(o.sure, fmt.Sprintf("%s/%s (%d slices)", loss.Bucket, loss.Name, loss.LastCopies-loss.Unsure))
	} else if loss.Unsure > 0 {
		o.unsure = append(o.unsure, loss.Bucket+"/"+loss.Name)
	}
}

// refusal returns why an indexer may not be removed, nil if it may.
func (r *Removal) refusal(req *RemoveIndexerRequest, whole *core.Others, only *onlyCopies, late bool) error {
	anyway := req.Force || req.DryRun
	switch {
	case r.Indexer.Evicting || req.Force && late:
	case r.Alive && whole.Silent:
		return fmt.Errorf("%w: whether indexer %s (node %d) is running", ErrNotKnown, r.Indexer.Name, r.Indexer.Node)
	case len(only.unsure) > 0 && len(only.sure) == 0 && (anyway || !r.Alive):
		return fmt.Errorf("%w: whether other indexers have complete copies of the slices of indexer %s (node %d): %s",
			ErrNotKnown, r.Indexer.Name, r.Indexer.Node, shorten(only.unsure))
	case anyway:
	case r.Alive:
		return fmt.Errorf("%w: indexer %s (node %d) reported recently; stop it first, and wait until it counts as "+
			"offline, or use force", ErrAlive, r.Indexer.Name, r.Indexer.Node)
	case len(only.sure) > 0:
		return fmt.Errorf("%w: indexer %s (node %d) has the only copies of %s; restart it, or use force: they are "+
			"then rebuilt from KV, and cannot be scanned until that is done",
			ErrLastCopies, r.Indexer.Name, r.Indexer.Node, shorten(only.sure))
	}
	return nil
}

// maxNamed limits the names in an error message.
const maxNamed = 8

func shorten(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

// findIndexer finds an indexer by uuid, name or node number.
func findIndexer(s *statecontext.State, id string) (*statecontext.Indexer, error) {
	if i := s.IndexerByUUID(id); i != nil {
		return i, nil
	}
	var found *statecontext.Indexer
	for i := range s.Indexers() {
		if i.Name != id {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%w: nodes %d and %d have the name %s; give the uuid", ErrAmbiguous, found.Node, i.Node, id)
		}
		found = i
	}
	if found != nil {
		return found, nil
	}
	if n, err := strconv.ParseUint(id, 10, 8); err == nil && s.Indexer(index.NodeID(n)) != nil {
		return s.Indexer(index.NodeID(n)), nil
	}
	return nil, fmt.Errorf("%w: there is no indexer with the uuid, name or node number %q; tidemark cluster status "+
		"lists the indexers",
		ErrUnknownComponent, id)
}

// wholeElsewhere queries the Leader which copies on other indexers do not count.
func wholeElsewhere(ctx context.Context, l *term, s *statecontext.State, node index.NodeID) (core.Others, error) {
	q := &core.WholeQuery{State: s, Node: node, Reply: make(chan core.Others, 1)}
	return query(ctx, l, "copies of the other indexers", q, q.Reply)
}

// RemoveProjector unregisters a projector and returns how many vbuckets it streamed and whether it is alive. A live
// one, removed by force, registers again until it is stopped. Errors wrap ErrUnknownComponent, ErrAlive or
// ErrNotLeading, or come from the proposal.
func (c *Coordinator) RemoveProjector(ctx context.Context, id index.ProjectorID, force bool,
	req *statecontext.Request) (streams int, alive bool, err error) {
	l, err := c.leadingNow(ctx)
	if err != nil {
		return 0, false, err
	}
	s := c.cfg.Consensus.State()
	known := s.Projector(id)
	if known == nil {
		return 0, false, fmt.Errorf("%w: there is no projector with the id %q; tidemark cluster status lists the "+
			"projectors", ErrUnknownComponent,
			id)
	}
	if seen := l.gate.shown.Load(); seen != nil {
		for _, p := range seen.Projectors {
			if p.ID == id {
				streams, alive = p.Streams, p.Life != liveness.Offline
			}
		}
	}
	if alive && !force {
		return streams, alive, fmt.Errorf("%w: projector %s reported recently; stop it first, and wait until it counts as "+
			"offline, or use force", ErrAlive, id)
	}
	body := &statecontext.RemoveProjector{ID: id}
	if !force {
		body.BootID = known.BootID // keep one that registers meanwhile: it is alive
	}
	_, err = c.proposeUnder(ctx, req, body)
	return streams, alive, err
}
