// Package catalog holds what a node has received from the leader and what scans may see of it: definitions, published
// stability timestamps, and which node holds which timestamps. It guarantees that a view is never older than what it
// was made from. It sends no requests and stores nothing on disk.
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

// Catalog is the state that a node has received. Its lock is a leaf: no other wait happens under it.
type Catalog struct {
	here      func() index.NodeID
	snapshots *snapshots.Set

	mu        sync.Mutex
	versions  snapshots.Versions // rise when scans may see something new
	views     map[index.ID]kept  // cached views of the indexes that are scanned
	lists     core.Lists
	making    map[index.CopyID]bool           // see Expect; replaced, never modified
	newest    map[string]wire.BucketStability // highest published timestamp, by bucket
	arrived   map[string]*arrivals            // when the timestamps of a bucket arrived
	published wire.StabilityBases             // what the leader published last, whether or not it is the highest
	held      []wire.Held                     // sorted by copy
	changed   map[string]chan struct{}        // by bucket; closed and removed with each change of it
}

// New returns an empty Catalog. here returns the node's number.
func New(here func() index.NodeID, s *snapshots.Set) *Catalog {
	return &Catalog{here: here, snapshots: s, newest: map[string]wire.BucketStability{},
		arrived: map[string]*arrivals{}, published: wire.StabilityBases{}, changed: map[string]chan struct{}{}}
}

// Present returns the definitions in force.
func (c *Catalog) Present() wire.Definitions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.InForce
}

// InForce returns the definitions in force, and the copies that are being made for them.
func (c *Catalog) InForce() (wire.Definitions, map[index.CopyID]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.InForce, c.making
}

// Judge compares a list of definitions with the one in force, see core.Lists.
func (c *Catalog) Judge(d *wire.Definitions) (core.Judgement, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists.Judge(d)
}

// NothingNew takes over the revision of a list that is otherwise equal to the one in force, see core.Lists.
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

// Resume puts the list of an earlier run in force.
func (c *Catalog) Resume(d *wire.Definitions) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists.Resume(d)
	c.signalAllLocked()
}

// Expect records copies that are about to be made for a list, until Made. No side stream is requested for only some
// of them: each takes its time to be made, and their maintenance streams may have begun, so that the first copy would
// make KV read the whole bucket, and the others once more.
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

// Made records that copies exist, or are not waited for any more.
func (c *Catalog) Made(ids []index.CopyID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.making = maps.Clone(c.making)
	for _, id := range ids {
		delete(c.making, id)
	}
}

// Take puts a list in force. It forgets the timestamps of buckets that only the previous list had; those of buckets
// that no list has had yet stay, because a timestamp may arrive before the list.
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
			delete(c.arrived, name)
		}
	}
	c.lists.Take(d)
	c.signalAllLocked()
}

// ApplyStability applies what the leader has published. It returns the full timestamps, assembled from deltas, and the
// buckets that the leader must send in full.
func (c *Catalog) ApplyStability(req *wire.StabilityRequest) (all []wire.BucketStability, missing []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.published.Decode(req)
}

// Published records a stability timestamp for scans. It ignores one that is older than the newest.
func (c *Catalog) Published(s *wire.BucketStability) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.newest[s.Bucket]; !ok || s.Compare(old.Ref) > 0 {
		c.newest[s.Bucket] = *s
		if c.arrived[s.Bucket] == nil { // the arrival of the first one does not show its age
			c.arrived[s.Bucket] = &arrivals{}
		} else {
			c.arrived[s.Bucket].note(s.Ref, time.Now())
		}
		c.signalLocked(s.Bucket)
	}
}

// SetHeld replaces the leader's list of which copies hold which timestamps. It must be sorted by copy.
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

// differing returns the copies, sorted, for which two sorted lists differ.
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

// bucketsOf returns the buckets of the indexes with any of the copies, which must be sorted. Copies that the
// definitions do not have are in no view.
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

// Held returns the leader's list of which copies hold which timestamps.
func (c *Catalog) Held() []wire.Held {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// Touch wakes the waiting scans of a bucket.
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

// signalAllLocked is signalLocked for all buckets, because the definitions have changed.
func (c *Catalog) signalAllLocked() {
	c.versions.RaiseAll()
	for _, changed := range c.changed {
		close(changed)
	}
	clear(c.changed)
	c.views = nil // also drops views of indexes that are gone
}

// kept is a cached view, which is valid until something that it was made from changes.
type kept struct {
	of   viewed
	view scan.View
}

// viewed identifies what a view was made from: the version of its bucket's state, definitions included, that of the
// snapshots on this node, and the node's number.
type viewed struct {
	known, snapshots uint64
	node             index.NodeID
}

// viewedLocked returns the current versions for a view of an index of a bucket. State that is read afterwards is at
// least as new.
func (c *Catalog) viewedLocked(bucket string, node index.NodeID) viewed {
	return viewed{known: c.versions.At(bucket), snapshots: c.snapshots.Version(bucket), node: node}
}

// keptView returns the cached view of an index, if it is up to date.
func (c *Catalog) keptView(node index.NodeID, id index.ID) (scan.View, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.views[id]
	return k.view, ok && k.of == c.viewedLocked(k.view.Definition.Bucket, node)
}

// keep caches a view, unless it is out of date already.
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

// View implements scan.Catalog. For its own copies, the node uses its own snapshots rather than the leader's list.
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

// view assembles a view from the current state, and returns what it was made from.
func (c *Catalog) view(node index.NodeID, id index.ID) (v scan.View, of viewed, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	def := core.Definition(&c.lists.InForce, id)
	if def == nil {
		return v, of, scan.Errorf(errcode.IndexNotHosted, "no index has id %s", id)
	}
	v.Definition = *def
	of = c.viewedLocked(def.Bucket, node) // before the snapshots on this node are read
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
	left := c.held // rest of held; both lists are sorted by copy
	for _, t := range v.Topology.Copies {
		if t.Node == node {
			if refs := c.snapshots.Refs(t.ID); len(refs) > 0 {
				v.Held = append(v.Held, wire.Held{Copy: t.ID, Node: node, Ref: refs[len(refs)-1], OK: true})
			}
			continue
		}
		at, found := slices.BinarySearchFunc(left, t.ID, func(h wire.Held, id index.CopyID) int {
			return cmp.Compare(h.Copy, id)
		})
		if left = left[at:]; found && left[0].Node == t.Node {
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

// Arrived implements scan.Catalog.
func (c *Catalog) Arrived(ref wire.StabilityRef) (at time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.arrived[ref.Bucket]; h != nil {
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
