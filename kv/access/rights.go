package access

import "tidemark/kv/mcbp"

// Rights are what a user may do in a bucket, by the roles and the collections of one moment. They are for one goroutine
// at a time.
type Rights struct {
	// Whole is what is permitted in all of it, and of the bucket itself.
	Whole Set
	// scopes and collections are what is permitted there beyond that, by their ids; somewhere is all of it together.
	scopes, collections map[uint32]Set
	somewhere           Set
	manifest            *mcbp.Manifest
	there               map[uint32]bool // the collections of the manifest, once somebody asks; nil: nobody has
}

// Everything are the rights of who may do everything.
func Everything() Rights { return Rights{Whole: All} }

// rightsIn are the rights by roles in a bucket of those collections; nil: none that are known.
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

// add adds what a role permits in a scope.
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

// Somewhere is what is permitted in some part of the bucket at least.
func (r *Rights) Somewhere() Set { return r.Whole | r.somewhere }

// InScope is what is permitted in a scope, and in whatever will be in it.
func (r *Rights) InScope(id uint32) Set { return r.Whole | r.scopes[id] }

// In is what is permitted in a collection.
func (r *Rights) In(id uint32) Set { return r.Whole | r.collections[id] }

// HasScope and HasCollection report whether there was one when the rights were judged.
func (r *Rights) HasScope(id uint32) bool { return r.manifest != nil && r.manifest.HasScope(id) }

// HasCollection is HasScope of a collection.
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

// Unseen reports whether a set is of who does not learn that a scope or collection is there: to see the cluster and the
// bucket is no right in it.
func (s Set) Unseen() bool { return s&^(cluster|SetOf(See)) == 0 }

// Shown is what the user is shown of a manifest: scopes and collections in which there is a right.
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
