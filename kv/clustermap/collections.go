package clustermap

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"tidemark/kv/mcbp"
)

// ErrCollections means that a change of a bucket's collections is refused; the message gives the reason.
var ErrCollections = errors.New("invalid change of collections")

// ErrNoScope and ErrNoCollection mean that the named scope or collection does not exist; both wrap ErrCollections.
var (
	ErrNoScope      = fmt.Errorf("%w: there is no such scope", ErrCollections)
	ErrNoCollection = fmt.Errorf("%w: there is no such collection", ErrCollections)
	// ErrNameExists means that a scope or collection of that name already exists.
	ErrNameExists = fmt.Errorf("%w: the name already exists", ErrCollections)
)

// MaxCollections is the maximum number of collections of a bucket, and of its scopes.
const MaxCollections = 1000

const (
	// idsOfEpoch is how many ids are skipped for each epoch that has begun since the last change: a superseded map of
	// such an epoch may have assigned some of them.
	idsOfEpoch = 1 << 12
	// firstEpoch is the epoch of the first map.
	firstEpoch = 1
	// lastID bounds the ids of collections and scopes.
	lastID = math.MaxUint32
)

// Collections holds a bucket's manifest and the next id; no id is assigned twice.
type Collections struct {
	Manifest *mcbp.Manifest `json:"manifest"`
	NextID   uint32         `json:"next_id"`
	// Epoch is the epoch of the last change.
	Epoch int64 `json:"epoch"`
}

// Manifest returns the bucket's manifest of collections.
func (b *Bucket) Manifest() *mcbp.Manifest {
	if b == nil || b.Collections == nil {
		return mcbp.DefaultManifest()
	}
	return b.Collections.Manifest
}

// CollectionChange creates or drops a collection or, if Collection is empty, a scope.
type CollectionChange struct {
	Bucket     string `json:"bucket"`
	Scope      string `json:"scope"`
	Collection string `json:"collection,omitempty"`
	Drop       bool   `json:"drop,omitempty"`
}

// ChangeCollections applies a change. Dropping a scope or collection also removes the roles for it. The manifest's
// uid rises by one, and by more if epochs have begun since the last change. Error: ErrCollections.
func (m Map) ChangeCollections(c CollectionChange) (Map, error) {
	n := m.next()
	b := n.Bucket(c.Bucket)
	if b == nil {
		return m, fmt.Errorf("%w: no bucket %q", ErrMap, c.Bucket)
	}
	now := Collections{NextID: mcbp.FirstCollection, Epoch: firstEpoch}
	if b.Collections != nil {
		now = *b.Collections
	}
	next := mcbp.Manifest{UID: b.Manifest().UID + 1, Scopes: slices.Clone(b.Manifest().Scopes)}
	if begun := max(0, m.RevEpoch-now.Epoch); begun > 0 {
		if begun > int64(lastID-now.NextID)/idsOfEpoch {
			return m, fmt.Errorf("%w: bucket %q has no ids left after %d epochs", ErrCollections, c.Bucket, m.RevEpoch)
		}
		now.Epoch = m.RevEpoch
		now.NextID += uint32(begun) * idsOfEpoch
		next.UID += uint64(begun) * idsOfEpoch
	}
	if !c.Drop && now.NextID == lastID {
		return m, fmt.Errorf("%w: bucket %q has no ids left", ErrCollections, c.Bucket)
	}
	scope := next.Scope(c.Scope)
	var err error
	switch {
	case c.Collection == "" && c.Drop:
		err = dropScope(&next, c)
	case c.Collection == "":
		err = addScope(&next, c, now.NextID)
		now.NextID++
	case scope == nil:
		err = fmt.Errorf("%w: %q", ErrNoScope, c.Scope)
	case c.Drop:
		err = dropCollection(scope, c)
	default:
		err = addCollection(&next, scope, c, now.NextID)
		now.NextID++
	}
	if err != nil {
		return m, err
	}
	if c.Drop {
		n.takeRoles(c.Bucket, c.Scope, c.Collection)
	}
	now.Manifest = &next
	b.Collections = &now
	return n, nil
}

func addScope(m *mcbp.Manifest, c CollectionChange, id uint32) error {
	switch {
	case !mcbp.ValidName(c.Scope):
		return badName("scope", c.Scope)
	case m.Scope(c.Scope) != nil:
		return fmt.Errorf("%w: scope %q", ErrNameExists, c.Scope)
	case len(m.Scopes) >= MaxCollections:
		return fmt.Errorf("%w: the bucket has %d scopes, which is the limit", ErrCollections, MaxCollections)
	}
	m.Scopes = append(m.Scopes, mcbp.Scope{Name: c.Scope, ID: id})
	return nil
}

func dropScope(m *mcbp.Manifest, c CollectionChange) error {
	switch {
	case c.Scope == mcbp.DefaultName:
		return fmt.Errorf("%w: the default scope cannot be dropped", ErrCollections)
	case m.Scope(c.Scope) == nil:
		return fmt.Errorf("%w: %q", ErrNoScope, c.Scope)
	}
	m.Scopes = slices.DeleteFunc(m.Scopes, func(s mcbp.Scope) bool { return s.Name == c.Scope })
	return nil
}

func addCollection(m *mcbp.Manifest, s *mcbp.Scope, c CollectionChange, id uint32) error {
	all := 0
	for _, x := range m.Scopes {
		all += len(x.Collections)
	}
	switch {
	case !mcbp.ValidName(c.Collection):
		return badName("collection", c.Collection)
	case s.Collection(c.Collection) != nil:
		return fmt.Errorf("%w: collection %q of scope %q", ErrNameExists, c.Collection, c.Scope)
	case all >= MaxCollections:
		return fmt.Errorf("%w: the bucket has %d collections, which is the limit", ErrCollections, MaxCollections)
	}
	s.Collections = append(slices.Clip(s.Collections), mcbp.Collection{Name: c.Collection, ID: id})
	return nil
}

func dropCollection(s *mcbp.Scope, c CollectionChange) error {
	switch {
	case c.Collection == mcbp.DefaultName:
		return fmt.Errorf("%w: the default collection cannot be dropped", ErrCollections)
	case s.Collection(c.Collection) == nil:
		return fmt.Errorf("%w: %q in scope %q", ErrNoCollection, c.Collection, c.Scope)
	}
	s.Collections = slices.DeleteFunc(slices.Clone(s.Collections), func(x mcbp.Collection) bool {
		return x.Name == c.Collection
	})
	return nil
}

func badName(what, name string) error {
	return fmt.Errorf("%w: %s name %q: want 1 to %d letters, digits, '_', '-' or '%%', not beginning with '_' or '%%'",
		ErrCollections, what, name, mcbp.MaxCollectionName)
}
