package store

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"tidemark/kv/mcbp"
)

// ErrNoCollection means that the vbucket has no such collection: it was dropped, or the vbucket has not applied the
// manifest with it yet.
var ErrNoCollection = errors.New("no such collection")

// SystemCollection is the collection of the events: it has one version for each scope and collection, under a key of
// its own, which becomes a tombstone when the scope or collection is dropped. Clients cannot read or write it.
const SystemCollection uint32 = 1

// docID identifies a document within a vbucket.
type docID struct {
	collection uint32
	key        string
}

func (d *Doc) id() docID { return docID{d.Collection, d.Key} }

// collections holds the scopes and collections of a vbucket, except the default ones. The vbucket's lock guards it.
type collections struct {
	members     map[uint32]*member
	scopes      map[uint32]struct{}
	dropping    map[*Doc]dropped  // by their drop events, until those are in the log
	leaving     map[uint32][]*Doc // documents of collections that may be dropped together; valid until a document changes
	defaultLast uint64            // the newest durable version in the default collection
	manifest    uint64            // uid of the manifest that the vbucket has, plus 1; 0: unknown
}

func newCollections() collections {
	return collections{members: map[uint32]*member{}, scopes: map[uint32]struct{}{}, dropping: map[*Doc]dropped{}}
}

// member is a collection of a vbucket, other than the default one.
type member struct {
	scope uint32
	items int
	docs  int    // including tombstones
	last  uint64 // seqno of its newest durable version, or of its creation; 0 while that is not in the log
}

// dropped holds what an event has removed, until the event is in the log.
type dropped struct {
	member *member
	docs   []*Doc
}

// EventOf decodes a version of the SystemCollection: the event's number in the protocol, its subject, and the name if
// it creates something.
func (d *Doc) EventOf() (event uint32, what mcbp.CollectionEvent, name []byte, err error) {
	if len(d.Value) < 4 {
		return 0, what, nil, fmt.Errorf("%w: event of %d bytes", errRecord, len(d.Value))
	}
	event = binary.BigEndian.Uint32(d.Value)
	if what, err = mcbp.DecodeCollectionEvent(event, d.Value[4:]); err != nil {
		return 0, what, nil, err
	}
	return event, what, d.Value[4+len(what.AppendValue(nil, event)):], nil
}

// NewEvent returns the version for an event. It has no numbers yet, and a tombstone has no time.
func NewEvent(event uint32, what mcbp.CollectionEvent, name []byte) *Doc {
	d := &Doc{Collection: SystemCollection, Deleted: event == mcbp.EventCollectionEnds || event == mcbp.EventScopeEnds}
	if mcbp.AboutScope(event) {
		d.Key = fmt.Sprintf("scope/%x", what.Scope)
	} else {
		d.Key = fmt.Sprintf("collection/%x", what.Collection)
	}
	d.Value = append(what.AppendValue(binary.BigEndian.AppendUint32(nil, event), event), name...)
	return d
}

// eventLocked applies an event that has just been installed. The end of a collection supersedes its documents:
// snapshots fixed before still contain them.
func (v *VBucket) eventLocked(d *Doc) {
	event, what, _, err := d.EventOf()
	if err != nil {
		return // such an event is never written
	}
	c := &v.collections
	switch event {
	case mcbp.EventScopeBegins:
		c.scopes[what.Scope] = struct{}{}
	case mcbp.EventScopeEnds:
		delete(c.scopes, what.Scope)
	case mcbp.EventCollectionBegins:
		if c.members[what.Collection] == nil {
			c.members[what.Collection] = &member{scope: what.Scope}
		}
	case mcbp.EventCollectionEnds:
		gone := dropped{member: c.members[what.Collection], docs: v.leavingLocked(what.Collection)}
		for _, x := range gone.docs {
			v.supersedeLocked(x, d.Seqno)
			delete(v.docs, x.id())
		}
		delete(c.members, what.Collection)
		c.dropping[d] = gone
	}
}

// leavingLocked removes and returns the documents of a collection that ends. Its scope may be ending, too, collection
// by collection, on a replica each with an event of its own: one pass over the vbucket finds the documents of all of
// them, which are kept until a document changes.
func (v *VBucket) leavingLocked(id uint32) []*Doc {
	c := &v.collections
	m := c.members[id]
	if _, ok := c.leaving[id]; !ok && m != nil && m.docs > 0 {
		scope, _ := c.of(m.scope)
		c.leaving = v.docsOfLocked(scope...)
	}
	docs := c.leaving[id]
	delete(c.leaving, id)
	return docs
}

// docsOfLocked returns the newest versions in some collections. It makes one pass over the vbucket, or none if they
// are empty.
func (v *VBucket) docsOfLocked(ids ...uint32) map[uint32][]*Doc {
	of, left := map[uint32][]*Doc{}, 0
	for _, id := range ids {
		if m := v.collections.members[id]; m != nil && m.docs > 0 {
			of[id] = make([]*Doc, 0, m.docs)
			left += m.docs
		}
	}
	if left == 0 {
		return of
	}
	for id, d := range v.docs {
		if docs, ok := of[id.collection]; ok {
			of[id.collection] = append(docs, d)
			if left--; left == 0 {
				break
			}
		}
	}
	return of
}

// takeEventBackLocked undoes eventLocked.
func (v *VBucket) takeEventBackLocked(d *Doc) {
	event, what, _, err := d.EventOf()
	if err != nil {
		return
	}
	c := &v.collections
	switch event {
	case mcbp.EventScopeBegins:
		delete(c.scopes, what.Scope)
	case mcbp.EventScopeEnds:
		c.scopes[what.Scope] = struct{}{}
	case mcbp.EventCollectionBegins:
		delete(c.members, what.Collection)
	case mcbp.EventCollectionEnds:
		gone := c.dropping[d]
		delete(c.dropping, d)
		if gone.member != nil {
			c.members[what.Collection] = gone.member
		}
		for _, x := range gone.docs {
			v.restoreLocked(x)
			if x.Expiry != 0 && !x.Deleted {
				heap.Push(&v.expiries, expiryEntry{at: x.Expiry, id: x.id(), seqno: x.Seqno})
			}
		}
	}
	c.manifest = 0
}

// loadEventsLocked rebuilds the collections from the documents read from the log, and drops documents of collections
// that have ended.
func (v *VBucket) loadEventsLocked() {
	c := newCollections()
	for id, d := range v.docs {
		if id.collection != SystemCollection || d.Deleted {
			continue
		}
		switch event, what, _, err := d.EventOf(); {
		case err != nil:
		case event == mcbp.EventScopeBegins:
			c.scopes[what.Scope] = struct{}{}
		case event == mcbp.EventCollectionBegins:
			c.members[what.Collection] = &member{scope: what.Scope, last: d.Seqno}
		}
	}
	maps.DeleteFunc(v.docs, func(id docID, _ *Doc) bool {
		return id.collection > SystemCollection && c.members[id.collection] == nil
	})
	v.collections = c
}

// count adds (sign 1) a version to, or subtracts (-1) it from, the counts of its collection.
func (c *collections) count(d *Doc, sign int) {
	if m := c.members[d.Collection]; m != nil {
		if m.docs += sign; !d.Deleted {
			m.items += sign
		}
	}
}

// logged discards what events up to seqno high, which are now in the log, have removed, and returns the number of
// documents.
func (c *collections) logged(high uint64) (ended int) {
	for d, gone := range c.dropping {
		if d.Seqno <= high {
			ended += len(gone.docs)
			delete(c.dropping, d)
		}
	}
	return ended
}

// lastLocked records that a version is in the log: it may be the newest of its collection, or the creation of one.
func (v *VBucket) lastLocked(d *Doc) {
	c, id := &v.collections, d.Collection
	if id == mcbp.DefaultCollection {
		c.defaultLast = max(c.defaultLast, d.Seqno)
		return
	}
	if id == SystemCollection {
		event, what, _, err := d.EventOf()
		if err != nil || event != mcbp.EventCollectionBegins {
			return
		}
		id = what.Collection
	}
	m := c.members[id]
	if m == nil { // its end may be on the way to the log, and be taken back
		m = c.dropping[v.docs[NewEvent(mcbp.EventCollectionEnds, mcbp.CollectionEvent{Collection: id}, nil).id()]].member
	}
	if m != nil {
		m.last = max(m.last, d.Seqno)
	}
}

// newest reports whether no durable version of the same collection is newer.
func (c *collections) newest(d *Doc) bool {
	if d.Collection == mcbp.DefaultCollection {
		return d.Seqno >= c.defaultLast
	}
	m := c.members[d.Collection]
	return m != nil && d.Seqno >= m.last
}

// high returns the seqno of the newest durable version of a collection, or of its creation; 0 if there is none.
func (c *collections) high(id uint32) uint64 {
	if id == mcbp.DefaultCollection {
		return c.defaultLast
	}
	if m := c.members[id]; m != nil {
		return m.last
	}
	return 0
}

// scopeOf returns the scope of a collection; ok is false if there is no such collection.
func (c *collections) scopeOf(id uint32) (scope uint32, ok bool) {
	if m := c.members[id]; m != nil {
		return m.scope, true
	}
	return mcbp.DefaultCollection, id == mcbp.DefaultCollection
}

// of returns the collections of a scope, except the default one; ok is false if there is no such scope.
func (c *collections) of(scope uint32) (ids []uint32, ok bool) {
	for id, m := range c.members {
		if m.scope == scope {
			ids = append(ids, id)
		}
	}
	_, ok = c.scopes[scope]
	return ids, ok || scope == mcbp.DefaultCollection
}

// HasCollection reports whether the vbucket has a collection, and in which scope.
func (v *VBucket) HasCollection(id uint32) (scope uint32, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.collections.scopeOf(id)
}

// CollectionsOf returns the collections of a scope, except the default one; ok is false if there is no such scope.
func (v *VBucket) CollectionsOf(scope uint32) (ids []uint32, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.collections.of(scope)
}

// CollectionItems adds the number of documents of each collection to sums.
func (v *VBucket) CollectionItems(sums map[uint32]int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	rest := v.items
	for id, m := range v.collections.members {
		sums[id] += m.items
		rest -= m.items
	}
	sums[mcbp.DefaultCollection] += rest
}

// HighOf returns the seqno of the newest durable version of a collection, or of its creation; 0 if there is none.
func (v *VBucket) HighOf(id uint32) uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.collections.high(id)
}

// SetManifest applies a manifest to the active vbuckets: each writes versions of the SystemCollection for what was
// created and dropped, which are in the log when SetManifest returns. The caller ensures that no states change
// meanwhile. It returns the error of the first vbucket that failed; the others have the manifest. After an error,
// call it again.
func (b *Bucket) SetManifest(m *mcbp.Manifest) error {
	failures := b.commit.failures.Load()
	var changed []*VBucket
	var refused error
	for _, v := range b.vbs {
		switch some, err := v.follow(m); {
		case err != nil && refused == nil:
			refused = fmt.Errorf("bucket %q: vbucket %d: manifest %x of collections: %w", b.opts.Name, v.id, m.UID, err)
		case err == nil && some:
			changed = append(changed, v)
		}
	}
	if len(changed) == 0 {
		return refused
	}
	if err := b.commit.current().Wait(); err != nil {
		return fmt.Errorf("bucket %q: manifest %x of collections: %w", b.opts.Name, m.UID, err)
	}
	if b.commit.failures.Load() != failures { // some events may have been in a write before the last one
		return fmt.Errorf("bucket %q: manifest %x of collections: %w: a write failed meanwhile", b.opts.Name, m.UID,
			ErrTemporary)
	}
	for _, v := range changed {
		v.mu.Lock()
		if v.state == Active {
			v.collections.manifest = m.UID + 1
		}
		v.mu.Unlock()
	}
	return refused
}

// follow writes the events that lead from the vbucket's collections to a manifest; it returns false if there is
// nothing to do.
func (v *VBucket) follow(m *mcbp.Manifest) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != Active || v.collections.manifest == m.UID+1 {
		return false, nil
	}
	events, ends := v.collections.changesTo(m)
	v.collections.leaving = v.docsOfLocked(ends...)
	defer func() { v.collections.leaving = nil }()
	now := uint32(v.bucket.now().Unix())
	for _, d := range events {
		if d.Deleted {
			d.DeleteTime = now
		}
		if _, err := v.putLocked(d); err != nil {
			return false, err
		}
	}
	return true, nil
}

// changesTo returns the events that lead to a manifest, and the collections that end with them.
func (c *collections) changesTo(m *mcbp.Manifest) (events []*Doc, ends []uint32) {
	add := func(event, scope, collection uint32, name string) {
		events = append(events, NewEvent(event, mcbp.CollectionEvent{Manifest: m.UID, Scope: scope, Collection: collection},
			[]byte(name)))
	}
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		if scope := c.members[id].scope; !has(m, id) {
			ends = append(ends, id)
			add(mcbp.EventCollectionEnds, scope, id, "")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.scopes)) {
		if !m.HasScope(id) {
			add(mcbp.EventScopeEnds, id, 0, "")
		}
	}
	for _, s := range m.Scopes {
		if _, ok := c.scopes[s.ID]; !ok && s.ID != mcbp.DefaultCollection {
			add(mcbp.EventScopeBegins, s.ID, 0, s.Name)
		}
		for _, k := range s.Collections {
			if c.members[k.ID] == nil && k.ID != mcbp.DefaultCollection {
				add(mcbp.EventCollectionBegins, s.ID, k.ID, k.Name)
			}
		}
	}
	return events, ends
}

func has(m *mcbp.Manifest, collection uint32) bool {
	_, ok := m.ScopeOf(collection)
	return ok
}
