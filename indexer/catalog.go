package indexer

import (
	"cmp"
	"slices"
	"sync"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/snapshots"
	"tidemark/partition"
	"tidemark/wire"
)

// published notes a stability timestamp for scans. An older one than known is ignored.
func (x *Indexer) published(s *wire.Stability) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if old, ok := x.newest[s.Bucket]; !ok || s.Compare(old.Ref) > 0 {
		x.newest[s.Bucket] = *s
		x.signalLocked()
	}
}

// setHeld takes over what the leader knows of who holds what.
func (x *Indexer) setHeld(h []wire.Held) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Equal(h, x.held) {
		x.held = h
		x.signalLocked()
	}
}

// viewChanged lets waiting scans look again.
func (x *Indexer) viewChanged() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.signalLocked()
}

func (x *Indexer) signalLocked() {
	x.changes.Add(1)
	close(x.changed)
	x.changed = make(chan struct{})
}

// catalog is the scan coordinator's view of what this node knows.
type catalog struct{ x *Indexer }

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
func (c catalog) View(id index.ID) (scan.View, error) {
	x := c.x
	// What changes later is in a later view.
	of := viewed{changes: x.changes.Load(), snapshots: x.snapshots.Moves(), node: x.identity.get().Node}
	if v, ok := x.views.get(of, id); ok {
		return v, nil
	}
	v, err := c.view(of.node, id)
	if err == nil {
		v.Prepare()
		x.views.put(of, id, v)
	}
	return v, err
}

// view puts together what is known now.
func (c catalog) view(node index.NodeID, id index.ID) (scan.View, error) {
	x := c.x
	x.mu.Lock()
	defer x.mu.Unlock()
	var v scan.View
	i, ok := slices.BinarySearchFunc(x.lists.InForce.Indexes, id, func(d index.Definition,
		id index.ID) int {
		return cmp.Compare(d.ID, id)
	})
	if !ok {
		return v, scan.Errorf(errcode.IndexNotHosted, "no index has id %s", id)
	}
	v.Definition = x.lists.InForce.Indexes[i]
	if i, ok = slices.BinarySearchFunc(x.lists.InForce.Topologies, id, func(t partition.Topology,
		id index.ID) int {
		return cmp.Compare(t.Index, id)
	}); ok {
		v.Topology = x.lists.InForce.Topologies[i]
	}
	for _, b := range x.lists.InForce.Buckets {
		if b.Name == v.Definition.Bucket {
			v.Bucket = b
		}
	}
	if v.Bucket.InRollback {
		return v, scan.Errorf(errcode.IndexInRollback, "bucket %q of index %s is being rolled back: try again", v.Bucket.Name,
			id)
	}
	if n, ok := x.newest[v.Bucket.Name]; ok && n.Generation == v.Bucket.Generation && n.RollbackID > v.Bucket.RollbackID {
		v.Bucket.RollbackID = n.RollbackID // the list of definitions is older than the newest rollback
	}
	its := make(map[index.CopyID]struct{}, len(v.Topology.Copies))
	for _, t := range v.Topology.Copies {
		if t.Node != node {
			its[t.ID] = struct{}{}
		} else if refs := x.snapshots.Refs(t.ID); len(refs) > 0 {
			v.Held = append(v.Held, wire.Held{Copy: t.ID, Node: node, Ref: refs[len(refs)-1], OK: true})
		}
	}
	for _, h := range x.held {
		if _, ok := its[h.Copy]; ok && h.Node != node {
			v.Held = append(v.Held, h)
		}
	}
	return v, nil
}

// pins gives snapshots of this node to scans and verifications.
func (x *Indexer) pins() *snapshots.Pins {
	return &snapshots.Pins{Snapshots: x.snapshots, Store: x.store, Bucket: func(name string) (snapshots.Bucket, bool) {
		k := x.bucketNamed(name)
		return k, k != nil
	}}
}

// Newest implements scan.Catalog.
func (c catalog) Newest(bucket string) (wire.Stability, bool) {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	s, ok := c.x.newest[bucket]
	return s, ok
}

// Changed implements scan.Catalog.
func (c catalog) Changed() <-chan struct{} {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	return c.x.changed
}
