// Package catalog is what a node has been told, and what of it scans may see: definitions, published stability
// timestamps, who holds what. It promises that a view is never older than what it is made of. It asks nobody, and
// stores nothing.
package catalog

import (
	"cmp"
	"maps"
	"slices"
	"sync"
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

	mu       sync.Mutex
	versions snapshots.Versions // when scans may have begun to see something else
	views    map[index.ID]kept  // of the indexes that are scanned
	lists    core.Lists
	making   map[index.CopyID]bool           // see Expect; replaced, not changed
	newest   map[string]wire.BucketStability // highest published, by bucket
	heard    map[string]*heard               // when those of a bucket came
	told     wire.StabilityBases             // by the leader, last, whether or not it is the highest
	held     []wire.Held                     // ascending by copy
	changed  map[string]chan struct{}        // by bucket; closed and forgotten with each change of it
}

// New returns what a node knows that nobody has told anything. here is its number.
func New(here func() index.NodeID, s *snapshots.Set) *Catalog {
	return &Catalog{here: here, snapshots: s, newest: map[string]wire.BucketStability{},
		heard: map[string]*heard{}, told: wire.StabilityBases{}, changed: map[string]chan struct{}{}}
}

// Present returns the definitions that are in force.
func (c *Catalog) Present() wire.Definitions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.InForce
}

// InForce returns the definitions that are in force, and the copies that are being made for them.
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

// NothingNew takes over the revision of a list that says what the one before it said.
func (c *Catalog) NothingNew(d *wire.Definitions) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.NothingNew(d)
}

// Before returns the list in force, and whether d follows it, see core.Lists.
func (c *Catalog) Before(d *wire.Definitions) (was wire.Definitions, follows bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.InForce, c.lists.Follows(d)
}

// Resume takes over the list of an earlier run.
func (c *Catalog) Resume(d *wire.Definitions) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists.Resume(d)
	c.signalAllLocked()
}

// Expect notes which copies are about to be made for a list, until Made: no side stream is asked for them alone before
// all are here. Each takes its time to be made, and the stream that feeds them may have begun: what came first would
// have KV read the bucket for itself, and once more for the others.
func (c *Catalog) Expect(ids []index.CopyID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	making := maps.Clone(c.making)
	if making == nil {
		making = map[index.CopyID]bool{}
	}
	for _, id := range ids {
		making[id] = true
	}
	c.making = making
}

// Made notes that copies are here, or not waited for any more.
func (c *Catalog) Made(ids []index.CopyID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.making = maps.Clone(c.making)
	for _, id := range ids {
		delete(c.making, id)
	}
}

// Take puts a list in force. Timestamps of the buckets that have gone with the list before are forgotten; those of
// buckets that no list has had stay, as they may come first.
func (c *Catalog) Take(d *wire.Definitions) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stay := map[string]bool{}
	for i := range d.Buckets {
		stay[d.Buckets[i].Name] = true
	}
	for i := range c.lists.InForce.Buckets {
		if name := c.lists.InForce.Buckets[i].Name; !stay[name] {
			delete(c.newest, name)
			delete(c.heard, name)
		}
	}
	c.lists.Take(d)
	c.signalAllLocked()
}

// Told takes over what the leader has published: all of it, put together from deltas, and the buckets that have to be
// told anew.
func (c *Catalog) Told(req *wire.StabilityRequest) (all []wire.BucketStability, missing []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told.Decode(req)
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
		c.signalLocked(s.Bucket)
	}
}

// SetHeld takes over what the leader knows of who holds what, ascending by copy.
func (c *Catalog) SetHeld(h []wire.Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if changed := differing(c.held, h); len(changed) > 0 {
		c.held = h
		for bucket := range bucketsOf(&c.lists.InForce, changed) {
			c.signalLocked(bucket)
		}
	}
}

// differing lists the copies of which two lists do not say the same, ascending as they are.
func differing(a, b []wire.Held) (ids []index.CopyID) {
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Copy < b[0].Copy:
			ids, a = append(ids, a[0].Copy), a[1:]
		case len(a) == 0 || b[0].Copy < a[0].Copy:
			ids, b = append(ids, b[0].Copy), b[1:]
		default:
			if a[0] != b[0] {
				ids = append(ids, a[0].Copy)
			}
			a, b = a[1:], b[1:]
		}
	}
	return ids
}

// bucketsOf are those of the indexes that have one of some copies, ascending. Of copies that definitions do not have no
// view says anything.
func bucketsOf(d *wire.Definitions, copies []index.CopyID) map[string]bool {
	all := map[string]bool{}
	for i := range d.Topologies {
		t := &d.Topologies[i]
		if slices.ContainsFunc(t.Copies, func(c partition.Copy) bool {
			_, is := slices.BinarySearch(copies, c.ID)
			return is
		}) {
			if def := core.Definition(d, t.Index); def != nil {
				all[def.Bucket] = true
			}
		}
	}
	return all
}

// Held is what the leader knows of who holds what.
func (c *Catalog) Held() []wire.Held {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// Touch lets scans of a bucket that wait look again.
func (c *Catalog) Touch(bucket string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signalLocked(bucket)
}

func (c *Catalog) signalLocked(bucket string) {
	c.versions.Raise(bucket)
	if changed := c.changed[bucket]; changed != nil {
		close(changed)
		delete(c.changed, bucket)
	}
}

// signalAllLocked is signalLocked for all buckets: there are other definitions.
func (c *Catalog) signalAllLocked() {
	c.versions.RaiseAll()
	for _, changed := range c.changed {
		close(changed)
	}
	clear(c.changed)
	c.views = nil // those of indexes that are gone are not asked for again
}

// kept is a view, which is good for as long as nothing has changed of what it was made of.
type kept struct {
	of   viewed
	view scan.View
}

// viewed is what a view is made of: what is known of its bucket, definitions included, what is held here of it, and
// which node that is.
type viewed struct {
	known, snapshots uint64
	node             index.NodeID
}

// viewedLocked is what a view of an index of a bucket is made of now. What is asked for afterwards is as new.
func (c *Catalog) viewedLocked(bucket string, node index.NodeID) viewed {
	return viewed{known: c.versions.At(bucket), snapshots: c.snapshots.Version(bucket), node: node}
}

// keptView is the view that is kept of an index, where it is as new as what it was made of.
func (c *Catalog) keptView(node index.NodeID, id index.ID) (scan.View, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.views[id]
	return k.view, ok && k.of == c.viewedLocked(k.view.Definition.Bucket, node)
}

// keep keeps a view, unless there is something newer to see already.
func (c *Catalog) keep(id index.ID, k kept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.of != c.viewedLocked(k.view.Definition.Bucket, k.of.node) {
		return
	}
	if c.views == nil {
		c.views = map[index.ID]kept{}
	}
	c.views[id] = k
}

// View implements scan.Catalog. Of its own copies the node knows best itself what they hold.
func (c *Catalog) View(id index.ID) (scan.View, error) {
	node := c.here()
	if v, ok := c.keptView(node, id); ok {
		return v, nil
	}
	v, of, err := c.view(node, id)
	if err == nil {
		v.Prepare()
		c.keep(id, kept{of, v})
	}
	return v, err
}

// view puts together what is known now, and says what of.
func (c *Catalog) view(node index.NodeID, id index.ID) (v scan.View, of viewed, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	def := core.Definition(&c.lists.InForce, id)
	if def == nil {
		return v, of, scan.Errorf(errcode.IndexNotHosted, "no index has id %s", id)
	}
	v.Definition = *def
	of = c.viewedLocked(def.Bucket, node) // before what is held here is looked at
	if t := core.Topology(&c.lists.InForce, id); t != nil {
		v.Topology = *t
	}
	for _, b := range c.lists.InForce.Buckets {
		if b.Name == v.Definition.Bucket {
			v.Bucket = b
		}
	}
	fence := &c.lists.InForce.Fence
	v.Era = scan.Era{Cluster: scanport.ClusterKey(fence.ClusterID), Epoch: fence.Epoch}
	if v.Bucket.InRollback {
		return v, of, scan.Errorf(errcode.IndexInRollback, "bucket %q of index %s is being rolled back: try again",
			v.Bucket.Name, id)
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
	return v, of, nil
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
func (c *Catalog) Changed(bucket string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.changed[bucket]
	if changed == nil {
		changed = make(chan struct{})
		c.changed[bucket] = changed
	}
	return changed
}
