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

// A node releases a timestamp after a few newer ones, unless a scan reads it there. A scan that takes long therefore
// sends all nodes that have copies of its slices a request to keep its timestamp, so that another copy can continue
// when one is lost, and another indexer when this one is lost.
const (
	// keepLook is how often a scan checks whether it should send requests. Most scans end before the first check.
	keepLook = 25 * time.Millisecond
	// keepFrom is the reading time after which a scan sends them. It does so earlier when keepBehind newer timestamps,
	// half of what a node holds, have been promoted. Promotions are usually up to 200 ms apart, and much closer while
	// scans wait for them.
	keepFrom   = 500 * time.Millisecond
	keepBehind = 3
	// keepEvery is how often the scan renews the request, because what is kept expires after KeepFor. keepAgain is
	// how soon it retries with nodes that could not be reached or had no room.
	keepEvery = KeepFor / 3
	keepAgain = 2 * time.Second
	// keepTimeout bounds one request.
	keepTimeout = 2 * time.Second
)

// KeepRequest requests that a node keep its snapshots at a timestamp for KeepFor, or until NodeRequest.Over names the
// scan.
type KeepRequest struct {
	Scan   Pages             `json:"scan"`
	Ref    wire.StabilityRef `json:"ref"`
	Copies []index.CopyID    `json:"copies"`
}

// Check refuses a request that no coordinator sends.
func (r *KeepRequest) Check() error {
	switch {
	case len(r.Copies) == 0 || len(r.Copies) > MaxCopies:
		return Errorf(errcode.BadRequest, "%d copies, want 1 to %d", len(r.Copies), MaxCopies)
	case len(r.Scan.For) > maxUser:
		return Errorf(errcode.BadRequest, "a user name of %d bytes; the limit is %d", len(r.Scan.For), maxUser)
	}
	return nil
}

// keeping keeps the timestamp of one attempt on the nodes while it reads. The scan waits for none of the nodes.
type keeping struct {
	c      *Coordinator
	index  index.ID
	scan   Pages
	ref    wire.StabilityRef
	slices []sliceplan // see reads
	began  time.Time
	ctx    context.Context

	mu      sync.Mutex
	timer   *time.Timer
	ended   bool
	cancel  context.CancelFunc             // cancels the requests in flight; nil: none was sent
	sent    map[index.NodeID]*keepingThere // nil: none was sent
	sending sync.WaitGroup
}

// keepingThere tracks the requests to one node.
type keepingThere struct {
	due      time.Time // when the next request is due
	inFlight bool
	trouble  error // why the node does not keep the timestamp, if known
}

// keep starts keeping the timestamp of an attempt. It returns nil without stability, where each page has a newer
// timestamp.
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

// end stops keeping the timestamp. If the client or the connection to it was lost, the scan may continue elsewhere,
// so the nodes keep the timestamp until it expires. If err means that the timestamp is gone, end adds why it was not
// kept.
func (k *keeping) end(ctx context.Context, err error) error {
	if k == nil {
		return err
	}
	k.mu.Lock()
	k.ended = true
	k.timer.Stop()
	sent := k.sent
	k.mu.Unlock()
	if sent == nil {
		return err
	}
	k.cancel()
	k.sending.Wait()
	if ctx.Err() == nil && !errors.As(err, new(*sinkError)) {
		nodes := make([]index.NodeID, 0, len(sent))
		for n := range sent {
			nodes = append(nodes, n)
		}
		k.c.over.add(k.scan, nodes)
	}
	if err == nil || CodeOf(err) != errcode.SnapshotTooOld && CodeOf(err) != errcode.SnapshotSkipped {
		return err
	}
	return k.explain(err)
}

// explain adds to an error how many nodes did not keep the timestamp, and the reason of the first.
func (k *keeping) explain(err error) error {
	var which []index.NodeID
	for n, t := range k.sent {
		if t.trouble != nil {
			which = append(which, n)
		}
	}
	if len(which) == 0 {
		return err
	}
	slices.Sort(which)
	e := *AsError(err)
	e.Detail = fmt.Sprintf("%s; %d of the indexers did not keep it on request, %s: %s", e.Detail, len(which),
		k.c.nodes.Name(which[0]), AsError(k.sent[which[0]].trouble).Detail)
	return &e
}

// look sends the requests that are due.
func (k *keeping) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.ended:
	case k.sent == nil && !k.isDue():
		k.timer.Reset(keepLook)
	default:
		k.request()
		k.timer.Reset(keepAgain)
	}
}

// isDue reports whether the nodes may release the timestamp soon.
func (k *keeping) isDue() bool {
	if time.Since(k.began) >= keepFrom {
		return true
	}
	newest, ok := k.c.catalog.Newest(k.ref.Bucket)
	return ok && newest.Generation == k.ref.Generation && newest.RollbackID == k.ref.RollbackID &&
		newest.Number >= k.ref.Number+keepBehind
}

// request sends requests to the nodes that now have copies of the slices. The caller holds the lock.
func (k *keeping) request() {
	view, err := k.c.View(k.index)
	if err != nil { // the next look retries; where it matters, the scan itself reports the error
		return
	}
	if k.sent == nil {
		k.sent, k.scan.ID = map[index.NodeID]*keepingThere{}, rand.Uint64()
		k.ctx, k.cancel = context.WithCancel(k.ctx)
	}
	now := time.Now()
	todo := map[index.NodeID][]index.CopyID{}
	for _, c := range view.Topology.Copies {
		if !k.reads(c.Slice) {
			continue
		}
		t := k.sent[c.Node]
		if t == nil {
			t = &keepingThere{}
			k.sent[c.Node] = t
		}
		if !t.inFlight && !now.Before(t.due) && len(todo[c.Node]) < MaxCopies {
			todo[c.Node] = append(todo[c.Node], c.ID)
		}
	}
	for node, copies := range todo {
		t := k.sent[node]
		t.inFlight = true
		k.sending.Go(func() { k.send(node, t, copies) })
	}
}

// reads reports whether a slice belongs to the scan. It reads only the slice numbers of the plan, because the scan
// modifies the rest.
func (k *keeping) reads(s index.SliceID) bool {
	i := sort.Search(len(k.slices), func(i int) bool { return k.slices[i].slice >= s })
	return i < len(k.slices) && k.slices[i].slice == s
}

// send sends a request to one node.
func (k *keeping) send(node index.NodeID, t *keepingThere, copies []index.CopyID) {
	ctx, cancel := context.WithTimeout(k.ctx, keepTimeout)
	defer cancel()
	err := k.c.nodes.KeepSlices(ctx, node, KeepRequest{Scan: k.scan, Ref: k.ref, Copies: copies})
	if err != nil && k.ctx.Err() == nil {
		k.c.opts.Logger.Debug("indexer does not keep a scan's timestamp", "node", node, "index", k.index, "error", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	t.inFlight, t.due = false, time.Now().Add(keepEvery)
	if k.ctx.Err() != nil { // the scan has ended, so a missing answer means nothing about the node
		return
	}
	if t.trouble = err; err != nil && CodeOf(err) != errcode.SnapshotTooOld { // that timestamp will not return
		t.due = time.Now().Add(keepAgain)
	}
}
