// Package catalog is what a node has been told, and what of it scans may see: definitions, published stability
// timestamps, who holds what. It promises that a view is never older than what it is made of. It asks nobody, and
// stores nothing.
package catalog

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanport"
	"tidemark/indexer/snapshots"
	"tidemark/partition"
	"tidemark/wire"
)

// Catalog is what a node knows. Its lock is a leaf: nothing else is waited for under it.
type Catalog struct {
	here      func() index.NodeID
	snapshots *snapshots.Set
	changes   atomic.Uint64 // how often scans may have begun to see something else
	views     views         // of the indexes that are scanned

	mu      sync.Mutex
	lists   core.Lists
	making  map[index.CopyID]bool           // copies of a list that is not in force yet, see Expect; replaced, not changed
	newest  map[string]wire.BucketStability // highest published, by bucket
	heard   map[string]*heard               // when those of a bucket came
	told    wire.Told                       // by the leader, last, whether or not it is the highest
	held    []wire.Held                     // ascending by copy
	changed chan struct{}                   // closed and replaced with each change
}

// New returns what a node knows that nobody has told anything. here is its number.
func New(here func() index.NodeID, s *snapshots.Set) *Catalog {
	return &Catalog{here: here, snapshots: s, newest: map[string]wire.BucketStability{},
		heard: map[string]*heard{}, told: wire.Told{}, changed: make(chan struct{})}
}

// Present returns the definitions that are in force.
func (c *Catalog) Present() wire.Definitions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.InForce
}

// InForce returns the definitions that are in force, and the copies that are being made for newer ones.
func (c *Catalog) InForce() (wire.Definitions, map[index.CopyID]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.InForce, c.making
}

// Judge says what a list of definitions is, see core.Lists.
func (c *Catalog) Judge(d *wire.Definitions) (core.Judgement, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.Judge(d)
}

// NothingNew takes over the revision of a list that says what the one before it said; of another one it notes that it
// is being taken over.
func (c *Catalog) NothingNew(d *wire.Definitions) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lists.NothingNew(d) {
		return true
	}
	c.lists.Begin()
	return false
}

// Before returns the list in force, whether d follows it, and what lists between the two have placed here, see
// core.Lists.
func (c *Catalog) Before(d *wire.Definitions) (was wire.Definitions, follows bool, tried map[index.CopyID]core.Wanted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.InForce, c.lists.Follows(d), c.lists.Tried(d)
}

// Resume takes over the list of an earlier run.
func (c *Catalog) Resume(d *wire.Definitions) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists.Resume(d)
}

// Expect notes which copies of a list are about to be made, until it is in force: no side stream is asked for them
// alone before all are here. Each takes its time to be made, and the stream that feeds them may have begun: what came
// first would have KV read the bucket for itself, and once more for the others.
func (c *Catalog) Expect(d *wire.Definitions, want map[index.CopyID]core.Wanted, isHere func(index.CopyID) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists.Make(d, want, isHere)
	was := c.making
	c.making = map[index.CopyID]bool{}
	for id := range want {
		if !isHere(id) || was[id] { // the latter: made for a list that was given up, and comes again
			c.making[id] = true
		}
	}
}

// Take puts a list in force.
func (c *Catalog) Take(d *wire.Definitions) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists.Take(d)
	c.making = nil
	c.signalLocked()
}

// Told takes over what the leader has published: all of it, put together from deltas, and the buckets that have to be
// told anew.
func (c *Catalog) Told(req *wire.StabilityRequest) (all []wire.BucketStability, missing []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told.Take(req)
}

// Published notes a stability timestamp for scans. An older one than known is ignored.
func (c *Catalog) Published(s *wire.BucketStability) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.newest[s.Bucket]; !ok || s.Compare(old.Ref) > 0 {
		c.newest[s.Bucket] = *s
		if c.heard[s.Bucket] == nil { // nobody says how old the first one is
			c.heard[s.Bucket] = &heard{}
		} else {
			c.heard[s.Bucket].note(s.Ref, time.Now())
		}
		c.signalLocked()
	}
}

// SetHeld takes over what the leader knows of who holds what, ascending by copy.
func (c *Catalog) SetHeld(h []wire.Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(h, c.held) {
		c.held = h
		c.signalLocked()
	}
}

// Held is what the leader knows of who holds what.
func (c *Catalog) Held() []wire.Held {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// Touch lets waiting scans look again.
func (c *Catalog) Touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signalLocked()
}

func (c *Catalog) signalLocked() {
	c.changes.Add(1)
	close(c.changed)
	c.changed = make(chan struct{})
}

// views are the catalog's answers, kept for as long as nothing has changed of what they were made of.
type views struct {
	mu    sync.Mutex
	made  viewed
	index map[index.ID]scan.View
}

// viewed is what views are made of: definitions, what others hold, what is held here, and which node that is.
type viewed struct {
	changes, snapshots uint64
	node               index.NodeID
}

func (v *views) get(of viewed, id index.ID) (view scan.View, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.made != of {
		return view, false
	}
	view, ok = v.index[id]
	return view, ok
}

func (v *views) put(of viewed, id index.ID, view scan.View) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.made != of || v.index == nil {
		v.made, v.index = of, map[index.ID]scan.View{}
	}
	v.index[id] = view
}

// View implements scan.Catalog. Of its own copies the node knows best itself what they hold.
func (c *Catalog) View(id index.ID) (scan.View, error) {
	// What changes later is in a later view.
	of := viewed{changes: c.changes.Load(), snapshots: c.snapshots.Moves(), node: c.here()}
	if v, ok := c.views.get(of, id); ok {
		return v, nil
	}
	v, err := c.view(of.node, id)
	if err == nil {
		v.Prepare()
		c.views.put(of, id, v)
	}
	return v, err
}

// view puts together what is known now.
func (c *Catalog) view(node index.NodeID, id index.ID) (scan.View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var v scan.View
	i, ok := slices.BinarySearchFunc(c.lists.InForce.Indexes, id, func(d index.Definition,
		id index.ID) int {
		return cmp.Compare(d.ID, id)
	})
	if !ok {
		return v, scan.Errorf(errcode.IndexNotHosted, "no index has id %s", id)
	}
	v.Definition = c.lists.InForce.Indexes[i]
	if i, ok = slices.BinarySearchFunc(c.lists.InForce.Topologies, id, func(t partition.Topology,
		id index.ID) int {
		return cmp.Compare(t.Index, id)
	}); ok {
		v.Topology = c.lists.InForce.Topologies[i]
	}
	for _, b := range c.lists.InForce.Buckets {
		if b.Name == v.Definition.Bucket {
			v.Bucket = b
		}
	}
	fence := &c.lists.InForce.Fence
	v.Era = scan.Era{Cluster: scanport.ClusterKey(fence.ClusterID), Epoch: fence.Epoch}
	if v.Bucket.InRollback {
		return v, scan.Errorf(errcode.IndexInRollback, "bucket %q of index %s is being rolled back: try again", v.Bucket.Name,
			id)
	}
	if n, ok := c.newest[v.Bucket.Name]; ok && n.Generation == v.Bucket.Generation && n.RollbackID > v.Bucket.RollbackID {
		v.Bucket.RollbackID = n.RollbackID // the list of definitions is older than the newest rollback
	}
	left := c.held // behind the copies that were looked at: both lists are ascending
	for _, t := range v.Topology.Copies {
		if t.Node == node {
			if refs := c.snapshots.Refs(t.ID); len(refs) > 0 {
				v.Held = append(v.Held, wire.Held{Copy: t.ID, Node: node, Ref: refs[len(refs)-1], OK: true})
			}
			continue
		}
		at, told := slices.BinarySearchFunc(left, t.ID, func(h wire.Held, id index.CopyID) int {
			return cmp.Compare(h.Copy, id)
		})
		if left = left[at:]; told && left[0].Node == t.Node {
			v.Held = append(v.Held, left[0])
		}
	}
	return v, nil
}

// Newest implements scan.Catalog.
func (c *Catalog) Newest(bucket string) (wire.BucketStability, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.newest[bucket]
	return s, ok
}

// Heard implements scan.Catalog.
func (c *Catalog) Heard(ref wire.StabilityRef) (at time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.heard[ref.Bucket]; h != nil {
		return h.of(ref.Ref)
	}
	return at, false
}

// Changed implements scan.Catalog.
func (c *Catalog) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}
