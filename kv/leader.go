package kv

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemark/kv/clustermap"
	"tidemark/kv/store"
)

const (
	// movesAtOnce is how many vbuckets are filled at a time, takeoversAtOnce how many of one node are taken over
	// together.
	movesAtOnce     = 16
	takeoversAtOnce = 8
	// sealTime is how long a takeover may block writes to its vbuckets, catchUp the part of it that the new owner may
	// take.
	sealTime  = 5 * time.Second
	catchUp   = 3 * time.Second
	catchPoll = 20 * time.Millisecond
	// nearby is how many seqnos a copy may lag when its takeover begins: clients wait while these are copied.
	nearby = 1024
	// movesPause is the interval of checks on vbuckets that are being filled.
	movesPause = 100 * time.Millisecond
	// operationTimeout bounds a failover or another change of the map.
	operationTimeout = 20 * time.Second
)

// lead does the leader's work: it commits changed addresses, and the next step of an operation. It reports whether
// there is more to do at once.
func (c *cluster) lead(ctx context.Context, missing []string) bool {
	select {
	case c.making <- struct{}{}:
		defer func() { <-c.making }()
	default: // a request is about to change the map
		return false
	}
	c.settle(ctx)
	m := c.current()
	if m.Leader != c.n.config.NodeID || m.RevEpoch == 0 {
		return false
	}
	c.mu.Lock()
	moved, changed := m.WithAddresses(c.addresses)
	c.mu.Unlock()
	var err error
	var more bool
	switch {
	case changed:
		_, err = c.commit(ctx, moved, "", nil)
	case m.Operation == nil:
		c.report(Progress{})
	case len(missing) > 0:
		err = fmt.Errorf("%s to answer: a member that has a newer map must not be skipped", strings.Join(missing, ", "))
	default:
		more, err = c.step(ctx, m)
	}
	if m.Operation != nil {
		p := Progress{Operation: m.Operation.ID, Left: m.Left(), Total: m.Operation.VBuckets}
		if err != nil {
			p.Waiting = err.Error()
		}
		c.report(p)
	}
	if err != nil && ctx.Err() == nil {
		c.n.config.Logger.Warn("operation of the cluster waits", "for", err)
	}
	return more && err == nil
}

func (c *cluster) report(p Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress = p
}

// step advances a rebalance: it fills copies that are missing, hands over vbuckets whose copies are filled, and ends.
// Each call decides from the map and from the nodes' copies; there is no other state.
func (c *cluster) step(ctx context.Context, m clustermap.Map) (more bool, err error) {
	moves := m.Moves(movesAtOnce)
	if len(moves) == 0 {
		return true, c.finish(ctx, m)
	}
	var fill []clustermap.Move
	for _, v := range moves {
		if len(v.Missing) > 0 && !v.Filling {
			fill = append(fill, v)
		}
	}
	if len(fill) > 0 {
		_, err := c.commit(ctx, m.Fill(fill), "", nil)
		return true, err
	}
	views, err := c.views(ctx, m.Nodes, copiesOf(m, moves))
	if err != nil {
		return false, err
	}
	for _, v := range views {
		if p, ok := v.Promises.Against(m.RevEpoch); ok {
			return false, fmt.Errorf("%s, to which %s has promised that its epoch %d is next: run that failover "+
				"again, or fail %s over", p.Maker, v.Node, p.RevEpoch, p.Maker)
		}
	}
	switch over, rest := filledMoves(m, moves, surveyOf(m, views)); {
	case len(rest) > 0:
		_, err := c.commit(ctx, m.Switch(rest), "", nil)
		return true, err
	case len(over) > 0:
		return true, c.takeover(ctx, m, over)
	}
	select { // copies are being filled
	case <-ctx.Done():
	case <-time.After(movesPause):
	}
	return true, nil
}

// filledMoves returns the moves that may be completed: takeovers between one pair of nodes, up to takeoversAtOnce,
// and others.
func filledMoves(m clustermap.Map, moves []clustermap.Move, have survey) (over, rest []clustermap.Move) {
	for _, v := range moves {
		switch {
		case !have.filled(m, v):
		case !v.Takeover():
			rest = append(rest, v)
		case len(over) == 0 || len(over) < takeoversAtOnce && over[0].From[0] == v.From[0] && over[0].Bucket == v.Bucket:
			over = append(over, v)
		}
	}
	return over, rest
}

// finish ends an operation. If another leader follows, that begins an epoch, as a failover of the leader does.
func (c *cluster) finish(ctx context.Context, m clustermap.Map) error {
	next := m.Finish()
	if next.RevEpoch != m.RevEpoch {
		defer c.settle(ctx)
		views, err := c.views(ctx, next.Nodes, copies{})
		if err != nil {
			return err
		}
		if next.RevEpoch, err = c.begin(ctx, m, views); err != nil {
			return err
		}
	}
	_, err := c.commit(ctx, next, "", nil)
	return err
}

// takeover moves vbuckets of one node: the node stops accepting writes, the new owners reach its last seqno, the node
// gives them up (only if nothing was written), and all members get the new map.
func (c *cluster) takeover(ctx context.Context, m clustermap.Map, moves []clustermap.Move) error {
	source, bucket := moves[0].From[0], m.Buckets[moves[0].Bucket].Name
	var ids []uint16
	for _, v := range moves {
		ids = append(ids, v.VBucket)
	}
	highs, err := c.peers.seal(ctx, c.contact(source), sealRequest{Bucket: bucket, VBuckets: ids,
		Milliseconds: sealTime.Milliseconds()})
	if err != nil {
		return fmt.Errorf("%s to give up vbuckets: %w", source, err)
	}
	expect := sealed{bucket: map[uint16]uint64{}}
	for i, id := range ids {
		expect[bucket][id] = highs[i]
	}
	err = c.reached(ctx, m, moves, expect[bucket])
	if err == nil {
		_, err = c.commit(ctx, m.Switch(moves), source, expect)
	}
	if err != nil {
		return errors.Join(err, c.unseal(ctx, source, expect))
	}
	return nil
}

// reached waits until the new owners have everything up to the given seqnos.
func (c *cluster) reached(ctx context.Context, m clustermap.Map, moves []clustermap.Move,
	highs map[uint16]uint64) error {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	var targets []clustermap.Node
	for _, v := range moves {
		if node, _ := m.Node(v.To[0]); !slices.Contains(targets, node) {
			targets = append(targets, node)
		}
	}
	for {
		have, err := c.survey(ctx, targets, copiesOf(m, moves))
		if err != nil {
			return err
		}
		late := ""
		for _, v := range moves {
			at := have[copyOf{v.To[0], m.Buckets[v.Bucket].Name, v.VBucket}]
			if at.High != highs[v.VBucket] || !at.Whole || !at.Joined {
				late = fmt.Sprintf("%s to have vbucket %d up to seqno %d (it has %d)", v.To[0], v.VBucket, highs[v.VBucket],
					at.High)
			}
		}
		if late == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New(late)
		case <-time.After(catchPoll):
		}
	}
}

// copyOf identifies a copy of a vbucket.
type copyOf struct {
	node, bucket string
	vb           uint16
}

// survey holds the copies on several nodes.
type survey map[copyOf]CopyView

// views queries nodes concurrently for their view, including some copies. All of them must answer and be ready.
func (c *cluster) views(ctx context.Context, nodes []clustermap.Node, of copies) ([]ClusterView, error) {
	out, failed := make([]ClusterView, len(nodes)), make([]error, len(nodes))
	var all sync.WaitGroup
	for i, x := range nodes {
		all.Go(func() {
			if x.ID == c.n.config.NodeID {
				out[i] = c.n.view(of)
			} else if err := c.peers.Call(ctx, c.contact(x.ID).Admin, http.MethodGet, of.path(), nil, &out[i]); err != nil {
				failed[i] = fmt.Errorf("%s to answer: %w", x.ID, err)
				return
			}
			if !out[i].Ready {
				failed[i] = fmt.Errorf("%s to serve", x.ID)
			}
			out[i].Node = x.ID
		})
	}
	all.Wait()
	for _, err := range failed { // in a fixed order, so that the reported reason does not change by chance
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// survey queries nodes for some copies.
func (c *cluster) survey(ctx context.Context, nodes []clustermap.Node, of copies) (survey, error) {
	views, err := c.views(ctx, nodes, of)
	if err != nil {
		return nil, err
	}
	return surveyOf(c.current(), views), nil
}

// surveyOf builds a survey. It leaves out copies of another bucket with the same name, whose removal a node has not
// learned yet.
func surveyOf(m clustermap.Map, views []ClusterView) survey {
	out := survey{}
	for _, view := range views {
		for bucket, copies := range view.Copies {
			if part := m.Bucket(bucket); part == nil || view.Map.BucketOf(bucket, part.UUID) == nil {
				continue
			}
			for _, v := range copies {
				out[copyOf{view.Node, bucket, v.VBucket}] = v
			}
		}
	}
	return out
}

// filled reports whether the nodes of a move have what the active copy had a moment ago.
func (s survey) filled(m clustermap.Map, v clustermap.Move) bool {
	bucket := m.Buckets[v.Bucket].Name
	active := s[copyOf{v.From[0], bucket, v.VBucket}]
	if active.State != store.Active.String() {
		return false
	}
	for _, id := range v.To {
		at := s[copyOf{id, bucket, v.VBucket}]
		if id == v.From[0] || !slices.Contains(v.Missing, id) && id != v.To[0] {
			continue
		}
		if at.State != store.Replica.String() || !at.Joined || !at.Whole || at.Log[0] != active.Log[0] ||
			at.High+nearby < active.High {
			return false
		}
	}
	return true
}

// ask verifies that this node leads the change, has the newest map, and that by this map the caller still has the
// right to the change. All members except those to be failed over must answer.
func (c *cluster) ask(ctx context.Context, without []string) (clustermap.Map, error) {
	for {
		m := c.current()
		leader := m.Leader
		for _, x := range m.Nodes {
			if !slices.Contains(without, leader) {
				break
			}
			leader = x.ID
		}
		switch {
		case m.RevEpoch == 0:
			return m, fmt.Errorf("%w: node %q belongs to no cluster yet: ask a member", ErrRefused, c.n.config.NodeID)
		case leader != c.n.config.NodeID:
			return m, &NotLeaderError{Leader: c.contact(leader).Admin}
		}
		missing := slices.DeleteFunc(c.pollLeaving(ctx, without), func(id string) bool {
			return slices.Contains(without,
				id)
		})
		if len(missing) > 0 {
			return m, fmt.Errorf("%w: %s must answer first: only it may have the newest map; if it is lost, too, fail "+
				"it over in the same command", ErrRefused, strings.Join(missing, ", "))
		}
		if now := c.current(); now.RevEpoch == m.RevEpoch && now.Rev == m.Rev {
			return m, recheckAccess(ctx)
		}
	}
}

// rebalance begins or stops an operation; Run carries it out.
func (c *cluster) rebalance(ctx context.Context, r RebalanceRequest) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	end, err := c.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	m, err := c.ask(ctx, nil)
	if err != nil {
		return nil, err
	}
	next := m
	if r.Stop {
		if m.Operation != nil {
			next = m.Finish()
		}
	} else {
		if err := c.known(ctx, r.Add); err != nil {
			return nil, err
		}
		if next, err = m.StartRebalance(operationID(), r.Add, r.Remove); err != nil {
			return nil, err
		}
	}
	if next.Newer(m) {
		if next, err = c.commit(ctx, next, "", nil); err != nil {
			return nil, err
		}
		c.kick()
	}
	return doneWith(next), nil
}

// operationID returns a new id for an operation.
func operationID() string {
	var id [8]byte
	randomBytes(id[:])
	return hex.EncodeToString(id[:])
}

// known verifies that the nodes to be added have the given ids and the same buckets.
func (c *cluster) known(ctx context.Context, add []clustermap.Node) error {
	for _, x := range add {
		var view ClusterView
		if err := c.peers.Call(ctx, x.Admin, http.MethodGet, pathCluster, nil, &view); err != nil {
			return fmt.Errorf("%w: node %q does not answer at its admin address: %w", ErrRefused, x.ID, err)
		}
		if view.Node != x.ID {
			return fmt.Errorf("%w: node %[3]q is at %[2]s, not %[4]q", ErrRefused, x.Admin, view.Node, x.ID)
		}
		have := c.current()
		for _, s := range c.n.config.specs() {
			if have.HasDropped(s.Name, s.UUID) {
				continue // the node drops it when it gets the map
			}
			if b := view.Map.Bucket(s.Name); b == nil || b.UUID != s.UUID || len(b.Chains) != s.VBuckets {
				return fmt.Errorf("%w: node %q does not have bucket %q (%s) with %d vbuckets: start it with the same --buckets",
					ErrRefused, x.ID, s.Name, s.UUID, s.VBuckets)
			}
		}
	}
	return nil
}

// failover removes nodes from the cluster and promotes replicas. Without r.Lose, a node that still answers hands over
// first: its vbuckets accept no more writes, and the replicas catch up.
func (c *cluster) failover(ctx context.Context, r FailoverRequest) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	if len(r.Nodes) == 0 {
		return nil, fmt.Errorf("%w: no node is given", ErrRefused)
	}
	end, err := c.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	m, err := c.ask(ctx, r.Nodes)
	if err != nil {
		return nil, err
	}
	rest := slices.DeleteFunc(slices.Clone(m.Nodes),
		func(x clustermap.Node) bool { return slices.Contains(r.Nodes, x.ID) })
	views, err := c.views(ctx, rest, copies{})
	if err != nil {
		return nil, fmt.Errorf("%w: a failover waits for %w", ErrRefused, err)
	}
	epoch := m.RevEpoch
	// The leader may be making maps, too, and a node that was promised an epoch may have made one that no other node
	// has.
	if slices.Contains(r.Nodes, m.Leader) ||
		slices.ContainsFunc(views, func(v ClusterView) bool { return len(v.Promises) > 0 }) {
		defer c.settle(ctx)
		if epoch, err = c.begin(ctx, m, views); err != nil {
			return nil, err
		}
	}
	var first string
	var expect sealed
	if !r.Lose && len(r.Nodes) == 1 {
		first, expect, err = c.quiesce(ctx, m, r.Nodes[0])
	}
	var next clustermap.Map
	var promotions []clustermap.Promotion
	if err == nil {
		next, promotions, err = c.promote(ctx, m, r)
	}
	if err == nil {
		if epoch != m.RevEpoch {
			next.RevEpoch, next.Rev = epoch, 1
		}
		next, err = c.commit(ctx, next, first, expect)
	}
	if err != nil {
		return nil, errors.Join(err, c.unseal(ctx, first, expect))
	}
	c.noteBranches(ctx, next.Nodes, promotions)
	c.kick()
	return FailoverAnswer{RevEpoch: next.RevEpoch, Rev: next.Rev, Promotions: promotions}, nil
}

// noteBranches sets where the new branches really begin, as far as the nodes answer.
func (c *cluster) noteBranches(ctx context.Context, nodes []clustermap.Node, promotions []clustermap.Promotion) {
	have, err := c.survey(ctx, nodes, nil)
	if err != nil {
		return
	}
	for i, p := range promotions {
		if at, ok := have[copyOf{p.Node, p.Bucket, p.VBucket}]; ok && len(at.Log) > 0 {
			promotions[i].Seqno = at.Log[0].Seqno
		}
	}
}

// unseal makes a node accept writes again to vbuckets that were, or were about to be, sealed for an operation that
// failed. It works even if ctx has ended; a seal also expires by itself.
func (c *cluster) unseal(ctx context.Context, id string, what sealed) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peerTimeout)
	defer cancel()
	var failed []error
	for bucket, vbuckets := range what {
		if _, err := c.peers.seal(ctx, c.contact(id), sealRequest{Bucket: bucket,
			VBuckets: slices.Collect(maps.Keys(vbuckets))}); err != nil {
			failed = append(failed, fmt.Errorf("%s to take writes again: %w", id, err))
		}
	}
	return errors.Join(failed...)
}

// begin has an epoch promised by all nodes that are to remain; views are theirs. From then on none of them takes a
// map of an earlier epoch, so a plan made from m now is made from the newest map that any of them will ever have had.
// Only this node makes maps of that epoch, since no other node is promised it.
func (c *cluster) begin(ctx context.Context, m clustermap.Map, views []ClusterView) (epoch int64, err error) {
	var unused clustermap.Promise
	for _, p := range c.unused() {
		unused = p
	}
	epoch = c.promised().Next(m.RevEpoch, unused)
	var others []clustermap.Node
	for _, v := range views {
		epoch = max(epoch, v.Promises.Next(v.Map.RevEpoch, unused))
		if v.Node != c.n.config.NodeID {
			others = append(others, c.contact(v.Node))
		}
	}
	p := clustermap.Promise{RevEpoch: epoch, Maker: c.n.config.NodeID}
	have, err := c.give(p, maxSeal) // this node first, so that after a crash it still has what it has requested
	if err != nil {
		return 0, err
	}
	changed := have.Newer(m)
	for _, a := range c.peers.each(ctx, others, func(ctx context.Context, x clustermap.Node) (clustermap.Map, error) {
		return c.peers.promise(ctx, x, promiseRequest{Epoch: epoch, Maker: p.Maker, Milliseconds: maxSeal.Milliseconds()})
	}) {
		if a.err != nil {
			return 0, fmt.Errorf("%w: a new epoch waits for %s: %w", ErrRefused, a.id, a.err)
		}
		changed = changed || a.value.Newer(m)
	}
	if changed {
		return 0, fmt.Errorf("%w: the map has changed meanwhile: try again", ErrRefused)
	}
	return epoch, nil
}

// unused returns the promises that this node was given and has made no map for.
func (c *cluster) unused() clustermap.Promises {
	return slices.DeleteFunc(slices.Clone(c.promised()), func(p clustermap.Promise) bool {
		if p.Maker != c.n.config.NodeID {
			return true
		}
		var r reserved
		_, err := readMap(filepath.Join(c.n.config.Dir, reservedName), &r)
		return err != nil || r.RevEpoch >= p.RevEpoch
	})
}

// settle gives back the promises that this node was given and has made no map for: the plan was refused, or the node
// died during it. If it may have made a map, the promise stays until there is a map of that epoch or a later one. The
// caller has the right to make a revision.
func (c *cluster) settle(ctx context.Context) {
	for _, p := range c.unused() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peerTimeout)
		defer cancel()
		var missing []string
		for _, a := range c.peers.each(ctx, c.others(c.current()),
			func(ctx context.Context, x clustermap.Node) (clustermap.Map, error) {
				return c.peers.promise(ctx, x, promiseRequest{Epoch: p.RevEpoch, Maker: p.Maker})
			}) {
			if a.err != nil {
				missing = append(missing, a.id)
			}
		}
		if len(missing) > 0 {
			c.n.config.Logger.Info("abandoned epoch is not yet withdrawn on all nodes", "epoch", p.RevEpoch,
				"missing", missing)
		} else if _, err := c.give(p, 0); err != nil {
			c.n.config.Logger.Warn("abandoned epoch is not yet withdrawn", "epoch", p.RevEpoch, "error", err)
		}
	}
}

// promote plans a failover from the copies on the remaining nodes.
func (c *cluster) promote(ctx context.Context, m clustermap.Map, r FailoverRequest) (clustermap.Map,
	[]clustermap.Promotion, error) {
	rest := slices.DeleteFunc(slices.Clone(m.Nodes), func(x clustermap.Node) bool {
		return slices.Contains(r.Nodes,
			x.ID)
	})
	have, err := c.survey(ctx, rest, nil)
	if err != nil {
		return m, nil, fmt.Errorf("%w: a failover waits for %w", ErrRefused, err)
	}
	return m.Failover(r.Nodes, func(bucket string, vb uint16) (out []clustermap.Copy) {
		for _, x := range rest {
			if v, ok := have[copyOf{x.ID, bucket, vb}]; ok {
				out = append(out, clustermap.Copy{Node: x.ID, Log: v.Log, High: v.High, Whole: v.Whole, Joined: v.Joined,
					Known: v.Known})
			}
		}
		return out
	}, r.Lose)
}

// quiesce makes a node that answers refuse writes, and waits until its replicas have caught up. If the node does not
// answer, nothing is done. It returns what may be sealed, even with an error.
func (c *cluster) quiesce(ctx context.Context, m clustermap.Map, id string) (string, sealed, error) {
	node, ok := m.Node(id)
	if !ok {
		return "", nil, nil // Failover returns the error
	}
	have, err := c.survey(ctx, []clustermap.Node{node}, nil)
	if err != nil {
		return "", nil, nil //nolint:nilerr // it does not answer: the replicas have to suffice
	}
	out, err := have.toSeal(m, id)
	if err != nil {
		return "", nil, err
	}
	if err := c.sealAll(ctx, id, out); err != nil {
		return id, out, err
	}
	rest := slices.DeleteFunc(slices.Clone(m.Nodes), func(x clustermap.Node) bool { return x.ID == id })
	of := out.copies()
	for deadline := time.Now().Add(catchUp); ; {
		have, err := c.survey(ctx, rest, of)
		if err != nil || have.replicated(m, out) || time.Now().After(deadline) {
			return id, out, err // Failover reports what is still missing
		}
		select {
		case <-ctx.Done():
			return id, out, ctx.Err()
		case <-time.After(catchPoll):
		}
	}
}

// copies returns the sealed vbuckets as a selection of copies.
func (s sealed) copies() copies {
	out := copies{}
	for bucket, vbuckets := range s {
		out[bucket] = slices.Sorted(maps.Keys(vbuckets))
	}
	return out
}

// toSeal returns the vbuckets that are active on the node that s surveys; it returns an error if the map assigns the
// node other active vbuckets, too.
func (s survey) toSeal(m clustermap.Map, id string) (sealed, error) {
	out := sealed{}
	for at, v := range s {
		if v.State == store.Active.String() {
			if out[at.bucket] == nil {
				out[at.bucket] = map[uint16]uint64{}
			}
			out[at.bucket][at.vb] = 0
		}
	}
	for _, b := range m.Buckets {
		for vb, chain := range b.Chains {
			if _, ok := out[b.Name][uint16(vb)]; chain[0] == id && !ok {
				return nil, fmt.Errorf("%w: %s does not have vbucket %d of bucket %q, which it owns by the map: try again",
					ErrRefused, id, vb, b.Name)
			}
		}
	}
	return out, nil
}

// sealAll makes a node refuse writes to the vbuckets of out, and records their high seqnos in it.
func (c *cluster) sealAll(ctx context.Context, id string, out sealed) error {
	for bucket, vbuckets := range out {
		var ids []uint16
		for vb := range vbuckets {
			ids = append(ids, vb)
		}
		highs, err := c.peers.seal(ctx, c.contact(id), sealRequest{Bucket: bucket, VBuckets: ids,
			Milliseconds: maxSeal.Milliseconds()})
		if err != nil {
			return fmt.Errorf("%w: %s answers, but does not give up its vbuckets: %w", ErrRefused, id, err)
		}
		for i, vb := range ids {
			vbuckets[vb] = highs[i]
		}
	}
	return nil
}

// replicated reports whether each vbucket has a replica with everything up to the given seqnos.
func (s survey) replicated(m clustermap.Map, highs sealed) bool {
	for bucket, vbuckets := range highs {
		for vb, high := range vbuckets {
			if !slices.ContainsFunc(m.Bucket(bucket).Chains[vb][1:], func(id string) bool {
				at := s[copyOf{id, bucket, vb}]
				return at.Joined && at.Whole && at.High >= high
			}) {
				return false
			}
		}
	}
	return true
}
