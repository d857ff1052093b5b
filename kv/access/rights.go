package access

import "tidemark/kv/mcbp"

// Rights are what a user may do in a bucket, evaluated for the roles and collections at one moment. They are not safe
// for concurrent use.
type Rights struct {
	// Whole is what is permitted in the whole bucket, and on the bucket itself.
	Whole Set
	// scopes and collections, by id, are what is permitted there in addition; somewhere is the union of both.
	scopes, collections map[uint32]Set
	somewhere           Set
	manifest            *mcbp.Manifest
	there               map[uint32]bool // the ids of the manifest's collections; nil until first used
}

// Everything returns unlimited rights.
func Everything() Rights { return Rights{Whole: All} }

// rightsIn evaluates roles in a bucket with manifest m; if m is nil, its collections are unknown.
func rightsIn(roles []Role, bucket string, m *mcbp.Manifest) Rights {
	r := Rights{Whole: Permitted(roles, bucket), manifest: m}
	if m == nil {
		return r
	}
	for _, role := range roles {
		k := kindOf(role.Name)
		if k == nil || role.Scope == "" || role.Bucket != bucket {
			continue
		}
		if s := m.Scope(role.Scope); s != nil {
			r.add(role, s, k.bucket)
		}
	}
	return r
}

// add adds the permissions of a role in a scope.
func (r *Rights) add(role Role, s *mcbp.Scope, set Set) {
	if r.scopes == nil {
		r.scopes, r.collections = map[uint32]Set{}, map[uint32]Set{}
	}
	if role.Collection == "" {
		r.scopes[s.ID] |= set
		r.somewhere |= set
	}
	for _, c := range s.Collections {
		if role.Collection == "" || role.Collection == c.Name {
			r.collections[c.ID] |= set
			r.somewhere |= set
		}
	}
}

// Somewhere returns what is permitted in at least one part of the bucket.
func (r *Rights) Somewhere() Set { return r.Whole | r.somewhere }

// InScope returns what is permitted in a scope and in all its collections, also in later ones.
func (r *Rights) InScope(id uint32) Set { return r.Whole | r.scopes[id] }

// In returns what is permitted in a collection.
func (r *Rights) In(id uint32) Set { return r.Whole | r.collections[id] }

// HasScope reports whether the scope existed when the rights were evaluated.
func (r *Rights) HasScope(id uint32) bool { return r.manifest != nil && r.manifest.HasScope(id) }

// HasCollection reports whether the collection existed when the rights were evaluated.
func (r *Rights) HasCollection(id uint32) bool {
	if r.there == nil && r.manifest != nil {
		r.there = map[uint32]bool{}
		for _, s := range r.manifest.Scopes {
			for _, c := range s.Collections {
				r.there[c.ID] = true
			}
		}
	}
	return r.there[id]
}

// Unseen reports whether a user with these permissions must not learn that a scope or collection exists: to see the
// cluster and the bucket is no right in it.
func (s Set) Unseen() bool { return s&^(cluster|SetOf(See)) == 0 }

// Shown returns the part of a manifest that the user may see: scopes and collections in which the user has a right.
func (r *Rights) Shown(m *mcbp.Manifest) *mcbp.Manifest {
	if !r.Whole.Unseen() {
		return m
	}
	out := &mcbp.Manifest{UID: m.UID}
	for _, s := range m.Scopes {
		x := mcbp.Scope{Name: s.Name, ID: s.ID}
		for _, c := range s.Collections {
			if !r.In(c.ID).Unseen() {
				x.Collections = append(x.Collections, c)
			}
		}
		if len(x.Collections) > 0 || !r.InScope(s.ID).Unseen() {
			out.Scopes = append(out.Scopes, x)
		}
	}
	return out
}
