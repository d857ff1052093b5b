package statecontext

import (
	"slices"
	"unicode/utf8"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// unsplit rejects a definition with fields that only SplitIndex sets.
func unsplit(f *index.Definition) *Rejection {
	if f.Replaces != 0 || f.Origin != 0 || f.SplitFailed != "" || f.SplitCause != "" {
		return reject(errcode.InvalidArgument, "index %q: a new index replaces no other and has no failed split", f.Name)
	}
	if f.RequestedPartitions != 0 {
		return reject(errcode.InvalidArgument, "index %q: a new index must have the requested number of slices", f.Name)
	}
	return nil
}

func (c *CreateIndex) apply(t *tx) *Rejection {
	f := c.Definition
	if rejection := unsplit(&f); rejection != nil {
		return rejection
	}
	b, rejection := t.bucket(f.Bucket, 0)
	if rejection != nil {
		return rejection
	}
	if rejection := t.checkName("index name", f.Name); rejection != nil {
		return rejection
	}
	if old := t.s.IndexIn(f.Keyspace(), f.Name); old != nil {
		t.result.Index = old.Definition.ID
		if c.IfNotExists {
			return nil
		}
		return reject(errcode.NameExists, "bucket %q has an index %q already (id %d, %s); drop it first or choose "+
			"another name", f.Keyspace().String(), f.Name, old.Definition.ID, old.Definition.State)
	}
	if f.BucketUUID != b.UUID {
		return reject(errcode.BucketGone, "the definition was made for bucket %q of uuid %q, but the bucket now has uuid %q",
			f.Bucket, f.BucketUUID, b.UUID)
	}
	if rejection := t.checkNewDefinition(&f); rejection != nil {
		return rejection
	}
	return t.addIndex(f, c.Layout, c.Placement)
}

// addIndex adds an index in state pending. The caller has checked the definition.
func (t *tx) addIndex(f index.Definition, layout partition.Layout, placement []Placement) *Rejection {
	if err := layout.Check(); err != nil {
		return reject(errcode.InvalidArgument, "%v", err)
	}
	if layout.Partitions != f.Partitions {
		return reject(errcode.InvalidArgument, "the definition has %d partitions, the layout %d", f.Partitions,
			layout.Partitions)
	}
	if by, _ := layout.Scheme.By(); by != f.PartitionBy.Scheme || len(layout.Desc) > len(f.Keys) {
		return reject(errcode.InvalidArgument, "the definition has %d keys and is partitioned by %q, the layout is %s of %v",
			len(f.Keys), f.PartitionBy.Scheme, layout.Scheme, layout.Components)
	}
	if rejection := t.s.checkNew(placement); rejection != nil {
		return newPlan(rejection)
	}
	id := t.s.nextIndexID
	topology := partition.Topology{Index: id, Layout: layout, Copies: t.placeCopies(nil, placement)}
	if rejection := t.s.checkPlacement(layout, f.Replicas, topology.Copies); rejection != nil {
		return newPlan(rejection)
	}
	if want := int(f.Partitions) * (int(f.Replicas) + 1); len(placement) != want {
		return reject(errcode.PlacementInconsistent, "%d copies are placed; %d slices with %d replicas need %d",
			len(placement), f.Partitions, f.Replicas, want)
	}
	f.ID, f.State, f.Reason, f.CreatedMS = id, index.Pending, "", t.calendar(f.CreatedMS)
	t.s.nextIndexID++
	t.result.Index = id
	x := Index{Definition: f, Topology: topology, PlacedCAS: t.cas}
	own(&t.s.names, &t.owned.names).Set(x.key(), id)
	t.setIndex(x, true, true)
	return nil
}

// checkNewDefinition rejects a definition that no new index may have.
func (t *tx) checkNewDefinition(f *index.Definition) *Rejection {
	if rejection := checkMember(f.Member); rejection != nil {
		return rejection
	}
	if rejection := t.s.checkCounts(f); rejection != nil {
		return rejection
	}
	if err := checkValues(f); err != nil {
		return reject(errcode.InvalidArgument, "index %q: %v", f.Name, err)
	}
	return t.checkDefinition(f)
}

// checkMember rejects a collection of which only some fields are set.
func checkMember(m index.Member) *Rejection {
	if !m.IsZero() && (m.Scope == "" || m.Collection == "" || m.ID == 0) {
		return reject(errcode.InvalidArgument, "collection %q of scope %q with id %d: all three are required", m.Collection,
			m.Scope, m.ID)
	}
	return checkAddresses(m.Scope, m.Collection)
}

// placeCopies returns copies followed by new ones, with fresh ids, for the placement.
func (t *tx) placeCopies(copies []partition.Copy, placement []Placement) []partition.Copy {
	all := append(make([]partition.Copy, 0, len(copies)+len(placement)), copies...)
	for _, p := range placement {
		all = append(all, partition.Copy{ID: t.s.nextCopyID, Slice: p.Slice, Replica: p.Replica, Node: p.Node,
			State: partition.Placed})
		t.s.nextCopyID++
	}
	return all
}

// checkCounts rejects an index beyond the limits of the cluster or of the bucket.
func (s *State) checkCounts(f *index.Definition) *Rejection {
	l := s.limits
	if s.indexes.Len() >= int(l.Indexes) {
		return reject(errcode.LimitExceeded, "the cluster has %d indexes; the limit is %d", s.indexes.Len(), l.Indexes)
	}
	if s.indexes.Len() < int(l.IndexesPerBucket) { // no bucket has more indexes than the cluster
		return nil
	}
	here := 0
	for range s.IndexesOf(f.Bucket) {
		here++
	}
	if here >= int(l.IndexesPerBucket) {
		return reject(errcode.LimitExceeded, "bucket %q has %d indexes; the limit is %d", f.Bucket, here, l.IndexesPerBucket)
	}
	return nil
}

func (t *tx) checkDefinition(f *index.Definition) *Rejection {
	l := t.s.limits
	if len(f.Keys) > int(l.KeyExpressions) {
		return reject(errcode.LimitExceeded, "%d key expressions; the limit is %d", len(f.Keys), l.KeyExpressions)
	}
	if f.IsPrimary != (len(f.Keys) == 0) {
		return reject(errcode.InvalidArgument, "a primary index has no key expressions and every other index at "+
			"least one; this one has %d", len(f.Keys))
	}
	if len(f.Nodes) > int(index.MaxNodeID)+1 {
		return reject(errcode.LimitExceeded, "%d nodes named; the limit is %d", len(f.Nodes), int(index.MaxNodeID)+1)
	}
	for _, k := range f.Keys {
		if k.Expr == "" || len(k.Expr) > int(l.StatementLength) {
			return reject(errcode.InvalidArgument, "a key expression of %d bytes; want 1 to %d", len(k.Expr), l.StatementLength)
		}
	}
	if rejection := checkAddresses(f.Nodes...); rejection != nil {
		return rejection
	}
	return t.checkTexts(f.Statement, f.Where)
}

func (c *BuildIndexes) apply(t *tx) *Rejection {
	for _, id := range c.IDs {
		x, rejection := t.index(id)
		if rejection != nil {
			return rejection
		}
		if rejection := matches(&x.Definition, c.IfMatch); rejection != nil {
			return rejection
		}
		if rejection := t.build(*x, c.Rules); rejection != nil {
			return rejection
		}
	}
	return nil
}

// build moves an index to pending. If its existing copies were made by older rules, it keeps their number.
func (t *tx) build(x Index, rules uint32) *Rejection {
	f := &x.Definition
	fresh := f.Deferred
	switch f.State {
	case index.Dropping:
		return reject(errcode.StateMismatch, "index %d (%s) is being dropped", f.ID, f.Name)
	case index.Backfill, index.Maintenance:
		return nil
	case index.Pending:
		if !f.Deferred {
			return nil
		}
	}
	b, rejection := t.bucket(f.Bucket, 0)
	if rejection != nil {
		return rejection
	}
	moved := f.BucketUUID != b.UUID
	if rejection := collectionGone(f, moved); rejection != nil {
		return rejection
	}
	if moved { // the copies hold data of the old bucket: place new ones on the same nodes
		f.BucketUUID, x.Topology.Copies, x.PlacedCAS = b.UUID, t.placeCopies(nil, placesOf(x.Topology.Copies)), t.cas
	}
	f.State, f.Reason, f.Deferred = index.Pending, "", false
	if fresh || moved || rules < f.Rules {
		f.Rules = rules
	}
	t.setIndex(x, true, moved)
	return nil
}

// placesOf returns the places of the copies that stay. For a copy that is moving, it returns the old place.
func placesOf(copies []partition.Copy) []Placement {
	places := make([]Placement, 0, len(copies))
	for _, c := range copies {
		again := slices.ContainsFunc(places, func(o Placement) bool { return o.Slice == c.Slice && o.Replica == c.Replica })
		if c.State != partition.Leaving && !again {
			places = append(places, Placement{Slice: c.Slice, Replica: c.Replica, Node: c.Node})
		}
	}
	return places
}

// matches rejects a request that was made for another version of the index; ifMatch 0 matches any version.
func matches(f *index.Definition, ifMatch uint64) *Rejection {
	if ifMatch != 0 && ifMatch != f.ModifiedCAS {
		return reject(errcode.CASMismatch, "index %d (%s) was modified at cas %d, the request expects %d; read it "+
			"again", f.ID,
			f.Name, f.ModifiedCAS, ifMatch)
	}
	return nil
}

// collectionGone rejects building an index whose collection no longer exists. moved reports whether the bucket is
// another one now.
func collectionGone(f *index.Definition, moved bool) *Rejection {
	switch {
	case f.CollectionGone():
		return reject(errcode.CollectionGone, "collection %s of index %d (%s) was dropped; drop the index and create it "+
			"again", f.Keyspace(), f.ID, f.Name)
	case moved && !f.Member.IsZero():
		return reject(errcode.CollectionGone, "collection %s of index %d (%s) was deleted with its bucket; drop the index "+
			"and create it again", f.Keyspace(), f.ID, f.Name)
	}
	return nil
}

func (c *DropIndex) apply(t *tx) *Rejection {
	p, rejection := t.index(c.ID)
	if rejection != nil {
		return rejection
	}
	x := *p
	f := &x.Definition
	t.result.Index = f.ID
	if f.State == index.Dropping {
		return nil
	}
	if rejection := matches(f, c.IfMatch); rejection != nil {
		return rejection
	}
	if x.Waits() { // no host has received the definition
		own(&t.s.names, &t.owned.names).Delete(x.key())
		t.removeIndex(&x)
		return nil
	}
	if f.Replaces != 0 {
		t.endSplit(x, SplitCancelled)
		return nil
	}
	t.beginDrop(x)
	return nil
}

// beginDrop begins to drop an index that hosts may have received.
func (t *tx) beginDrop(x Index) {
	own(&t.s.names, &t.owned.names).Delete(x.key())
	x.Definition.State, x.Definition.Reason = index.Dropping, ""
	x.Topology.Copies = slices.Clone(x.Topology.Copies)
	for i := range x.Topology.Copies {
		x.Topology.Copies[i].State = partition.Leaving
	}
	t.setIndex(x, true, true)
}

// admit rejects a transition that the present state of the index does not allow.
func (c *SetIndexState) admit(f *index.Definition) *Rejection {
	if f.State != c.From {
		return reject(errcode.StateMismatch, "index %d (%s) is in state %s, the command expects %s", f.ID, f.Name, f.State,
			c.From)
	}
	if c.To == index.Dropping || c.From == c.To {
		return reject(errcode.IllegalTransition, "index %d (%s): from %s to %s", f.ID, f.Name, c.From, c.To)
	}
	if err := c.From.CheckTransition(c.To); err != nil {
		return reject(errcode.IllegalTransition, "index %d (%s): %v", f.ID, f.Name, err)
	}
	return nil
}

func (c *SetIndexState) apply(t *tx) *Rejection {
	p, rejection := t.index(c.ID)
	if rejection != nil {
		return rejection
	}
	x := *p
	f := &x.Definition
	if rejection := c.admit(f); rejection != nil {
		return rejection
	}
	if rejection := x.checkTopology(c.IfTopology); rejection != nil {
		return rejection
	}
	if c.To != index.Error {
		if rejection := c.checkBucket(t, f); rejection != nil {
			return rejection
		}
	}
	f.State, f.Reason = c.To, ""
	if c.To == index.Error {
		f.Reason = cutReason(c.Reason)
	}
	if c.To == index.Maintenance && f.Replaces != 0 {
		return t.succeed(x)
	}
	t.setIndex(x, true, false)
	return nil
}

// cutReason truncates a reason to maxReasonBytes: the length of the text must not keep a failed index from being put
// into state error.
func cutReason(text string) string {
	const more = " …"
	if len(text) <= maxReasonBytes {
		return text
	}
	at := maxReasonBytes - len(more)
	for at > 0 && !utf8.RuneStart(text[at]) {
		at--
	}
	return text[:at] + more
}

// checkBucket rejects a transition that was decided for another bucket, or before a rollback.
func (c *SetIndexState) checkBucket(t *tx, f *index.Definition) *Rejection {
	b, rejection := t.bucket(f.Bucket, c.Guard.Generation)
	if rejection != nil {
		return rejection
	}
	if f.BucketUUID != b.UUID {
		return reject(errcode.BucketGone, "index %d (%s) belongs to a former bucket %q; BUILD INDEX rebuilds "+
			"it", f.ID, f.Name,
			f.Bucket)
	}
	if c.Guard.Generation != 0 && (c.Guard.RollbackID != b.Stability.RollbackID || b.Rollback != nil) {
		return reject(errcode.RollbackMismatch, "bucket %q was or is being rolled back (id %d); the command was made at "+
			"rollback %d", f.Bucket, b.lastRollback(), c.Guard.RollbackID)
	}
	return nil
}

func (c *AllocateCopies) apply(t *tx) *Rejection {
	p, rejection := t.index(c.ID)
	if rejection != nil {
		return rejection
	}
	x := *p
	if c.Revision < x.PlacedCAS {
		return reject(errcode.StaleRevision, "copies of index %d (%s) were placed at revision %d, the report was "+
			"made under %d", x.Definition.ID, x.Definition.Name, x.PlacedCAS, c.Revision)
	}
	var copies []partition.Copy // this version's own; nil until the first change
	for _, id := range c.Copies {
		at, is := x.Topology.Place(id)
		if !is {
			return reject(errcode.UnknownCopy, "index %d (%s) has no copy %d", x.Definition.ID, x.Definition.Name, id)
		}
		switch from := x.Topology.Copies[at].State; from {
		case partition.Allocated:
			continue
		case partition.Placed:
		default:
			return reject(errcode.IllegalTransition, "copy %d: from %s to %s", id, from, partition.Allocated)
		}
		if copies == nil {
			copies = slices.Clone(x.Topology.Copies)
		}
		copies[at].State = partition.Allocated
	}
	if copies != nil {
		x.Topology.Copies = copies
		t.setIndex(x, false, true)
	}
	return nil
}

// checkTopology refuses what was decided when the copies were elsewhere, unless at is 0.
func (x *Index) checkTopology(at uint64) *Rejection {
	if at != 0 && at != x.TopologyCAS {
		return reject(errcode.CASMismatch, "the topology of index %d (%s) was modified at cas %d, the command was "+
			"made for %d", x.Definition.ID, x.Definition.Name, x.TopologyCAS, at)
	}
	return nil
}

func (c *ForgetCopies) apply(t *tx) *Rejection {
	p, rejection := t.index(c.ID)
	if rejection != nil {
		return rejection
	}
	x := *p
	f := &x.Definition
	if f.State == index.Dropping {
		return reject(errcode.StateMismatch, "index %d (%s) is being dropped", f.ID, f.Name)
	}
	if rejection := x.checkTopology(c.IfTopology); rejection != nil {
		return rejection
	}
	kept := make([]partition.Copy, 0, len(x.Topology.Copies))
	for _, o := range x.Topology.Copies {
		switch {
		case !slices.Contains(c.Copies, o.ID):
			kept = append(kept, o)
		case o.State != partition.Leaving:
			return reject(errcode.StateMismatch, "copy %s of index %d (%s) is %s; only a leaving copy can be "+
				"forgotten", o.ID, f.ID, f.Name, o.State)
		}
	}
	if len(kept)+len(c.Copies) != len(x.Topology.Copies) {
		return reject(errcode.UnknownCopy, "index %d (%s) does not have all of the copies %v", f.ID, f.Name, c.Copies)
	}
	if len(c.Copies) == 0 {
		return nil
	}
	x.Topology.Copies = kept
	t.setIndex(x, false, true)
	return nil
}

func (c *RemoveIndex) apply(t *tx) *Rejection {
	x, rejection := t.index(c.ID)
	if rejection != nil {
		return rejection
	}
	f := &x.Definition
	if f.State != index.Dropping {
		return reject(errcode.StateMismatch,
			"index %d (%s) is in state %s; only an index that is being dropped can be removed", f.ID,
			f.Name, f.State)
	}
	t.removeIndex(x)
	return nil
}

// removeIndex removes an index whose name is already free.
func (t *tx) removeIndex(x *Index) {
	f := &x.Definition
	own(&t.s.indexes, &t.owned.indexes).Delete(f.ID)
	t.s.count(x, ^uint32(0))
	t.changedIndex(x)
	t.emit(Event{Kind: EventIndex, Index: f.ID, Bucket: f.Bucket, Name: f.Name, Removed: true})
	t.emit(Event{Kind: EventTopology, Index: f.ID, Bucket: f.Bucket, Name: f.Name, Removed: true})
	t.forgetBucket(f.Bucket)
}
