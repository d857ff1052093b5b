package scan

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/index"
)

// remote is one node's part of a scan. It implements source, and keeps the last row that was passed to the sink, so
// that a replacement can continue behind it.
type remote struct {
	node   index.NodeID
	slices []*sliceplan
	stream RowStream
	err    error
	last   Row // a copy
	some   bool
	rows   int64 // rows taken
	took   time.Duration
}

func (n *remote) next() (Row, error) { return n.stream.Next() }

func (n *remote) given(r Row) {
	n.last.Key = append(n.last.Key[:0], r.Key...)
	n.last.DocID = append(n.last.DocID[:0], r.DocID...)
	n.some = true
}

// after returns a copy of the last row. It must be a copy, because the part that is opened behind it uses it while
// further rows are passed on.
func (n *remote) after() *Row {
	if !n.some {
		return nil
	}
	return &Row{Key: bytes.Clone(n.last.Key), DocID: bytes.Clone(n.last.DocID)}
}

// gather opens the slices, merges them and passes the rows to the sink. more reports that it stopped at the end of a
// page.
func (r *run) gather(ctx context.Context) (more bool, err error) {
	kept, asker := r.keep(ctx), ctx
	defer func() { err = kept.end(asker, err) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	todo := r.waiting()
	open, err := r.open(ctx, todo.take(), r.out.after)
	defer func() { r.closeAll(open, cancel) }()
	if err != nil {
		return false, err
	}
	r.result.Waited += r.lag.end()
	r.reading = time.Now()
	if r.spec.WantTimestamp {
		if err := r.takeVector(open); err != nil {
			return false, err
		}
	}
	if r.count {
		return false, r.tally(open)
	}
	m := &merger{reverse: r.spec.Reverse}
	for _, n := range open {
		if err := r.join(ctx, m, n, &open); err != nil {
			return false, err
		}
	}
	r.spec.Progress.Enter(Reading)
	r.out.held.begin(len(todo.slices) > 0 && r.spec.Stability != NoStability)
	for seen := 0; r.spec.Limit == 0 || r.out.rows < r.spec.Limit; seen++ {
		if r.spec.Stability == NoStability && seen == PageRows {
			return true, nil
		}
		if ok, err := r.step(ctx, m, &todo, &open); err != nil {
			return false, err
		} else if !ok {
			break
		}
	}
	return false, errors.Join(r.beyond(ctx, m, &open), r.out.release())
}

// tally sums up the counts of the nodes.
func (r *run) tally(open []*remote) error {
	r.out.rows = 0
	for _, n := range open {
		n.rows = n.stream.Count()
		r.out.rows += n.rows
		if !r.spec.Explain {
			continue
		}
		if _, err := n.stream.Next(); !errors.Is(err, io.EOF) { // the node's counts precede the end
			return err
		}
	}
	return nil
}

// step passes on the next row, and opens further slices if the merge needs them. It returns false if there is no row.
func (r *run) step(ctx context.Context, m *merger, todo *later, open *[]*remote) (bool, error) {
	row, src, ok := m.top()
	for !ok && len(todo.slices) > 0 {
		if err := r.openMore(ctx, m, todo.take(), open); err != nil {
			return false, err
		}
		row, src, ok = m.top()
	}
	if !ok && r.out.folding != nil {
		return false, r.out.endGroups()
	}
	if !ok {
		return false, nil
	}
	n := src.(*remote)
	n.given(row)
	n.rows++
	if err := r.out.give(row); err != nil {
		return false, err
	}
	r.renewing = time.Time{} // the scan progresses
	if r.out.held.full() {   // from here on the client may be slow, and nodes do not hold the timestamp forever
		if err := r.openMore(ctx, m, todo.rest(), open); err != nil {
			return false, err
		}
		if err := r.out.release(); err != nil {
			return false, err
		}
	}
	if err := m.advance(); err != nil {
		return true, r.replace(ctx, m, n, err, open)
	}
	return true, nil
}

// openMore opens further slices and adds their rows to the merge.
func (r *run) openMore(ctx context.Context, m *merger, todo []*sliceplan, open *[]*remote) error {
	defer r.spec.Progress.Enter(r.spec.Progress.Enter(Opening))
	more, err := r.open(ctx, todo, r.out.after)
	*open = append(*open, more...)
	for _, n := range more {
		if err == nil {
			err = r.join(ctx, m, n, open)
		}
	}
	r.whole = r.whole || err != nil
	return err
}

// join adds a node's rows, or those of its replacement, to the merge.
func (r *run) join(ctx context.Context, m *merger, n *remote, open *[]*remote) error {
	if err := m.add(n); err != nil {
		return r.replace(ctx, m, n, err, open)
	}
	return nil
}

// replace opens the next copies of the slices of a failed node, at the same timestamp, behind the last row passed on.
func (r *run) replace(ctx context.Context, m *merger, n *remote, why error, open *[]*remote) error {
	if ctx.Err() != nil {
		return why
	}
	r.c.opts.Logger.Info("indexer failed in the middle of a scan", "node", n.node, "index", r.spec.Index, "error", why)
	defer r.spec.Progress.Enter(r.spec.Progress.Enter(Opening))
	r.explain.lost(n, why)
	r.failed(n, why)
	more, err := r.open(ctx, n.slices, n.after())
	*open = append(*open, more...)
	if err != nil {
		return err
	}
	for _, o := range more {
		if err := r.join(ctx, m, o, open); err != nil {
			return err
		}
	}
	return nil
}

// others returns the nodes that would replace this one; none if some slice has no other candidate.
func (n *remote) others() (nodes []index.NodeID) {
	for _, s := range n.slices {
		if len(s.candidates) < 2 {
			return nil
		}
		if next := s.candidates[1].node; !slices.Contains(nodes, next) {
			nodes = append(nodes, next)
		}
	}
	return nodes
}

// failed removes the node's copies from the candidates. If the node itself reported the error, it may concern only
// one of several copies: then each copy is requested alone before it is removed.
func (r *run) failed(n *remote, why error) {
	var e *Error
	reported := errors.As(why, &e)
	for _, s := range n.slices {
		if reported && len(n.slices) > 1 {
			s.alone = true
			continue
		}
		if reported && !retriable(why) {
			s.without = append(s.without, s.candidates[0].copy)
		}
		s.candidates = s.candidates[1:]
		last := why
		if !reported {
			last = r.away(s.slice, n.node, why)
		}
		s.last = r.weightier(s.last, last)
	}
}

// weightier returns which error of two copies of a slice decides what happens next. An error that the timestamp is
// past decides over a busy node if the scan may use a newer timestamp; otherwise a busy node decides, because it is
// retried. In all other cases the last error decides.
func (r *run) weightier(before, last error) error {
	past := func(err error) bool {
		code := CodeOf(err)
		return r.spec.At == nil && !r.out.given && (code == errcode.SnapshotSkipped || code == errcode.SnapshotTooOld)
	}
	if before != nil && (busy(last) && past(before) || busy(before) && !past(last)) {
		return before
	}
	return last
}

// busy reports whether the node had no room for a part.
func busy(err error) bool { return err != nil && CodeOf(err) == errcode.Busy }

// away returns the error for a slice whose node could not be reached, or is busy.
func (r *run) away(s index.SliceID, node index.NodeID, why error) error {
	if busy(why) {
		return Errorf(errcode.Busy, "slice %d of index %s: indexer %s: %s", s, r.spec.Index, r.c.nodes.Name(node),
			AsError(why).Detail)
	}
	return Errorf(errcode.Unavailable, "slice %d of index %s: indexer %s does not answer: %w: see cluster "+
		"status, and restart it; an index with num_replica survives that",
		s, r.spec.Index, r.c.nodes.Name(node), why)
}

// open requests the slices from their first candidates, those of one node together, and the slices of failing nodes
// from their next candidates. It returns what it has opened even with an error.
func (r *run) open(ctx context.Context, todo []*sliceplan, after *Row) (opened []*remote, err error) {
	for len(todo) > 0 {
		if err := r.renew(ctx, todo); err != nil {
			return opened, err
		}
		nodes, err := byNode(todo, after)
		if err != nil {
			return opened, err
		}
		var others sync.WaitGroup
		for _, n := range nodes[1:] {
			others.Go(func() { r.openPart(ctx, n) })
		}
		r.openPart(ctx, nodes[0])
		others.Wait()
		todo = nil
		if r.spec.Page != nil {
			r.pages.requested(nodes)
		}
		for _, n := range nodes {
			r.explain.requested(n, r.c.nodes.Name)
		}
		for _, n := range nodes { // finish the loop before giving up: the caller closes what was opened
			if n.err == nil {
				opened = append(opened, n)
			}
		}
		for _, n := range nodes {
			switch {
			case n.err == nil:
			case ctx.Err() != nil:
				return opened, n.err
			default:
				r.failed(n, n.err)
				todo = append(todo, n.slices...)
			}
		}
	}
	return opened, nil
}

// openPart opens a node's part. An opened part counts as load until closeAll.
func (r *run) openPart(ctx context.Context, n *remote) {
	began := time.Now()
	r.c.load.Begin(n.node)
	req := r.request(n)
	n.stream, n.err = r.c.nodes.OpenSlices(ctx, n.node, n.others(), req)
	now := time.Now()
	n.took = now.Sub(began)
	switch {
	case n.err == nil:
		r.c.load.Answered(n.node, n.took, now)
		return
	case ctx.Err() == nil:
		r.c.load.Refused(n.node, now)
	}
	if !errors.As(n.err, new(*Error)) { // otherwise the node has read the request
		r.c.over.putBack(n.node, req.Over)
	}
	if CodeOf(n.err) == errcode.Timeout {
		n.err = Errorf(errcode.Timeout, "indexer %s: %w", r.c.nodes.Name(n.node), n.err)
	}
	r.c.load.End(n.node)
}

// byNode groups slices by the node of their first candidate. The error concerns slices without candidates.
func byNode(todo []*sliceplan, after *Row) (nodes []*remote, err error) {
	for _, s := range todo {
		if len(s.candidates) == 0 {
			if err == nil || busy(s.last) {
				err = s.last
			}
			continue
		}
		node := s.candidates[0].node
		i := slices.IndexFunc(nodes, func(n *remote) bool { return n.node == node && !n.slices[0].alone })
		if i < 0 || s.alone {
			i = len(nodes)
			n := &remote{node: node}
			if after != nil {
				n.given(*after)
			}
			nodes = append(nodes, n)
		}
		nodes[i].slices = append(nodes[i].slices, s)
	}
	return nodes, err
}

func (r *run) request(n *remote) NodeRequest {
	req := NodeRequest{
		Index: r.spec.Index, Ref: r.plan.ref, Ranges: r.spec.Ranges, Reverse: r.spec.Reverse, Limit: r.spec.nodeLimit(),
		Distinct: r.spec.Distinct, Where: r.spec.Where,
		CountOnly: r.count, WantVector: r.spec.WantTimestamp, After: n.after(), Named: r.spec.At != nil,
		WaitMS:  max(1, time.Until(r.lag.until(r.deadline)).Milliseconds()),
		LastsMS: max(1, time.Until(r.ends).Milliseconds()), Explain: r.spec.Explain,
	}
	switch {
	case r.spec.Page != nil:
		req.Pages = &r.pages.Pages
	case r.spec.Stability == QueryStability:
		req.KeepMS = KeepFor.Milliseconds()
	}
	req.Over = r.c.over.take(n.node)
	if g := r.spec.Groups; g != nil {
		req.Groups = &g.Grouping
		if req.After != nil { // a cell is identified by its key
			req.After = &Row{Key: req.After.Key}
		}
	}
	if req.Distinct > 0 || len(req.Where) > 0 || req.Groups != nil {
		req.Desc = r.spec.Desc
	}
	for _, s := range n.slices {
		req.Copies = append(req.Copies, s.candidates[0].copy)
	}
	return req
}

// nodeLimit returns how many rows of one node may be needed.
func (s *Spec) nodeLimit() int64 {
	if s.Limit == 0 {
		return 0
	}
	// one more to see whether there is another row, and one because the first may repeat the last row of the previous
	// page
	if s.Page != nil {
		return s.Limit + s.Offset + 2
	}
	return s.Limit + s.Offset
}

// takeVector takes the timestamp's vector from any node, and checks its hash.
func (r *run) takeVector(open []*remote) error {
	for _, n := range open {
		if v := n.stream.Vector(); v.Len() > 0 {
			if v.Hash() != r.plan.ref.Hash {
				return Errorf(errcode.Internal, "indexer %d sent a vector of hash %d for timestamp %d of hash %d", n.node, v.Hash(),
					r.plan.ref.Number, r.plan.ref.Hash)
			}
			r.result.Vector = v.Clone()
			return nil
		}
	}
	return Errorf(errcode.Internal, "no indexer sent the vector of timestamp %d", r.plan.ref.Number)
}

// drainTime bounds how long a complete scan waits for the ends of the nodes' answers.
const drainTime = 2 * time.Millisecond

// closeAll closes the nodes' parts. cancel cancels their requests.
func (r *run) closeAll(open []*remote, cancel context.CancelFunc) {
	for _, n := range open {
		r.c.load.End(n.node)
		if f, ok := n.stream.(*FrameReader); ok {
			late := time.AfterFunc(drainTime, cancel)
			f.drain()
			late.Stop()
		}
		r.explain.looked.Add(n.stream.Looked())
		_ = n.stream.Close() // all rows have arrived, or the scan has failed already
	}
}
