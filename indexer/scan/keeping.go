package scan

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/wire"
)

// A node lets a timestamp go that a few newer ones have followed, unless somebody reads it there. So that another copy
// can go on in the place of one that is lost, and another indexer in the place of this one, a scan that takes long asks
// all nodes that have copies of its slices to keep its timestamp.
const (
	// keepLook is how often a scan that has not asked for that looks whether it should. Most have ended before the first
	// look.
	keepLook = 25 * time.Millisecond
	// keepFrom is for how long a scan has read when it asks, or sooner when so many timestamps have followed its own as
	// keepBehind: half of those that a node has. They follow each other within 200 ms as a rule, and much sooner where
	// scans wait for them.
	keepFrom   = 500 * time.Millisecond
	keepBehind = 3
	// keepEvery is how often it asks again, since what is kept goes with its time (KeepFor), and keepAgain how soon those
	// that could not be asked, or had no room.
	keepEvery = KeepFor / 3
	keepAgain = 2 * time.Second
	// keepPatience is how long an answer to that may take.
	keepPatience = 2 * time.Second
)

// KeepRequest asks a node to let its snapshots at a timestamp stay for KeepFor, or until NodeRequest.Over names the
// scan.
type KeepRequest struct {
	Scan   Pages             `json:"scan"`
	Ref    wire.StabilityRef `json:"ref"`
	Copies []index.CopyID    `json:"copies"`
}

// Check refuses what no coordinator asks for.
func (r *KeepRequest) Check() error {
	switch {
	case len(r.Copies) == 0 || len(r.Copies) > MaxCopies:
		return Errorf(errcode.BadRequest, "%d copies, want 1 to %d", len(r.Copies), MaxCopies)
	case len(r.Scan.For) > maxUser:
		return Errorf(errcode.BadRequest, "a scan of a user of %d bytes, want at most %d", len(r.Scan.For), maxUser)
	}
	return nil
}

// keeping has the timestamp of one attempt kept for as long as it reads. The scan waits for none of the nodes.
type keeping struct {
	c      *Coordinator
	index  index.ID
	scan   Pages
	ref    wire.StabilityRef
	slices []sliceplan // see reads
	began  time.Time
	ctx    context.Context

	mu     sync.Mutex
	timer  *time.Timer
	ended  bool
	cancel context.CancelFunc             // of what is under way; nil: nobody was asked
	asked  map[index.NodeID]*keepingThere // nil: nobody was
	asks   sync.WaitGroup
}

// keepingThere is what one node was asked.
type keepingThere struct {
	due     time.Time // when it is asked next
	asking  bool
	trouble error // why it does not keep it, as far as is known
}

// keep begins to look after the timestamp of an attempt; nil: it needs none, as each of its pages takes a newer one.
func (r *run) keep(ctx context.Context) *keeping {
	if r.spec.Stability == NoStability {
		return nil
	}
	k := &keeping{c: r.c, index: r.spec.Index, scan: Pages{For: r.pages.For}, ref: r.plan.ref, slices: r.plan.slices,
		began: time.Now(), ctx: ctx}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(keepLook, k.look)
	return k
}

// end ends it. Whoever was lost in the middle, a client or the way to it, may go on elsewhere: then the nodes keep the
// timestamp for its time. To an error that tells that it is gone is added why it was not kept.
func (k *keeping) end(ctx context.Context, err error) error {
	if k == nil {
		return err
	}
	k.mu.Lock()
	k.ended = true
	k.timer.Stop()
	asked := k.asked
	k.mu.Unlock()
	if asked == nil {
		return err
	}
	k.cancel()
	k.asks.Wait()
	if ctx.Err() == nil && !errors.As(err, new(*sinkError)) {
		nodes := make([]index.NodeID, 0, len(asked))
		for n := range asked {
			nodes = append(nodes, n)
		}
		k.c.over.add(k.scan, nodes)
	}
	if err == nil || CodeOf(err) != errcode.SnapshotTooOld && CodeOf(err) != errcode.SnapshotSkipped {
		return err
	}
	return k.explain(err)
}

// explain adds to an error which nodes could not keep the timestamp, the first of them with its reason.
func (k *keeping) explain(err error) error {
	var which []index.NodeID
	for n, t := range k.asked {
		if t.trouble != nil {
			which = append(which, n)
		}
	}
	if len(which) == 0 {
		return err
	}
	slices.Sort(which)
	e := *AsError(err)
	e.Detail = fmt.Sprintf("%s; of the indexers that were asked to keep it %d did not, %s: %s", e.Detail, len(which),
		k.c.nodes.Name(which[0]), AsError(k.asked[which[0]].trouble).Detail)
	return &e
}

// look asks whoever is to be asked now.
func (k *keeping) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.ended:
	case k.asked == nil && !k.isDue():
		k.timer.Reset(keepLook)
	default:
		k.tell()
		k.timer.Reset(keepAgain)
	}
}

// isDue reports whether the nodes will soon let the timestamp go.
func (k *keeping) isDue() bool {
	if time.Since(k.began) >= keepFrom {
		return true
	}
	newest, ok := k.c.catalog.Newest(k.ref.Bucket)
	return ok && newest.Generation == k.ref.Generation && newest.RollbackID == k.ref.RollbackID &&
		newest.Number >= k.ref.Number+keepBehind
}

// tell asks the nodes that have copies of the slices now. The lock is held.
func (k *keeping) tell() {
	view, err := k.c.View(k.index)
	if err != nil { // it is looked at again soon, and by the scan itself where it matters
		return
	}
	if k.asked == nil {
		k.asked, k.scan.ID = map[index.NodeID]*keepingThere{}, rand.Uint64()
		k.ctx, k.cancel = context.WithCancel(k.ctx)
	}
	now := time.Now()
	todo := map[index.NodeID][]index.CopyID{}
	for _, c := range view.Topology.Copies {
		if !k.reads(c.Slice) {
			continue
		}
		t := k.asked[c.Node]
		if t == nil {
			t = &keepingThere{}
			k.asked[c.Node] = t
		}
		if !t.asking && !now.Before(t.due) && len(todo[c.Node]) < MaxCopies {
			todo[c.Node] = append(todo[c.Node], c.ID)
		}
	}
	for node, copies := range todo {
		t := k.asked[node]
		t.asking = true
		k.asks.Go(func() { k.ask(node, t, copies) })
	}
}

// reads reports whether a slice is one of the scan's. Nothing else of the plan is touched, which the scan changes.
func (k *keeping) reads(s index.SliceID) bool {
	i := sort.Search(len(k.slices), func(i int) bool { return k.slices[i].slice >= s })
	return i < len(k.slices) && k.slices[i].slice == s
}

// ask asks one node.
func (k *keeping) ask(node index.NodeID, t *keepingThere, copies []index.CopyID) {
	ctx, cancel := context.WithTimeout(k.ctx, keepPatience)
	defer cancel()
	err := k.c.nodes.KeepSlices(ctx, node, KeepRequest{Scan: k.scan, Ref: k.ref, Copies: copies})
	if err != nil && k.ctx.Err() == nil {
		k.c.opts.Logger.Debug("an indexer does not keep a scan's timestamp", "node", node, "index", k.index, "error", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	t.asking, t.due = false, time.Now().Add(keepEvery)
	if k.ctx.Err() != nil { // the scan has ended: that the question went unanswered says nothing of the node
		return
	}
	if t.trouble = err; err != nil && CodeOf(err) != errcode.SnapshotTooOld { // which it will not have again
		t.due = time.Now().Add(keepAgain)
	}
}
