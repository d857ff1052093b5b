package clustermap

import (
	"fmt"
	"slices"

	"tidemark/kv/access"
)

// ErrNoUser says that there is no user of that name; it is an access.ErrAccess.
var ErrNoUser = fmt.Errorf("%w: there is no such user", access.ErrAccess)

// UserChange makes, changes or removes a user. What is nil stays as it is; a user that is made has Roles and Keys.
type UserChange struct {
	User   string         `json:"user"`
	Remove bool           `json:"remove,omitempty"`
	Name   *string        `json:"name,omitempty"`
	Roles  *[]access.Role `json:"roles,omitempty"`
	Keys   *access.Keys   `json:"keys,omitempty"`
}

// ChangeUser makes a change. A role is for a bucket that there is, and goes with it.
// Errors: access.ErrAccess, and with it ErrNoUser.
func (m Map) ChangeUser(c UserChange) (Map, error) {
	n := m.next()
	n.Users = slices.Clone(m.Users)
	at, there := access.Place(n.Users, c.User)
	var u access.User
	if there {
		u = n.Users[at]
	}
	switch {
	case !there && (c.Remove || c.Roles == nil):
		return m, fmt.Errorf("%w: %q", ErrNoUser, c.User)
	case c.Remove:
		n.Users = slices.Delete(n.Users, at, at+1)
		return n, nil
	case !there && c.Keys == nil:
		return m, fmt.Errorf("%w: user %q is new, and needs a password", access.ErrAccess, c.User)
	}
	if err := m.setUser(&u, c); err != nil {
		return m, err
	}
	if there {
		n.Users[at] = u
	} else {
		n.Users = slices.Insert(n.Users, at, u)
	}
	if err := access.CheckAll(n.Users); err != nil {
		return m, err
	}
	return n, nil
}

// setUser puts in what a change names.
func (m Map) setUser(u *access.User, c UserChange) error {
	u.ID = c.User
	if c.Name != nil {
		u.Name = *c.Name
	}
	if c.Keys != nil {
		u.Keys = *c.Keys
	}
	if c.Roles != nil {
		for _, r := range *c.Roles {
			if err := m.checkRole(r); err != nil {
				return err
			}
		}
		u.Roles = access.Ordered(*c.Roles)
	}
	return nil
}

// checkRole refuses a role for what there is not.
func (m Map) checkRole(r access.Role) error {
	if r.Bucket == "" || r.Bucket == access.Any {
		return nil
	}
	b := m.Bucket(r.Bucket)
	if b == nil {
		return fmt.Errorf("%w: role %s: there is no bucket %q", access.ErrAccess, r, r.Bucket)
	}
	if r.Scope == "" {
		return nil
	}
	switch s := b.Manifest().Scope(r.Scope); {
	case s == nil:
		return fmt.Errorf("%w: role %s: there is no scope %q in bucket %q", access.ErrAccess, r, r.Scope, r.Bucket)
	case r.Collection != "" && s.Collection(r.Collection) == nil:
		return fmt.Errorf("%w: role %s: there is no collection %q in scope %q", access.ErrAccess, r, r.Collection, r.Scope)
	}
	return nil
}

// withoutRolesOf are users without the roles for a bucket, or a scope or a collection of it.
func withoutRolesOf(users []access.User, bucket, scope, collection string) []access.User {
	out := slices.Clone(users)
	for i := range out {
		out[i].Roles = slices.DeleteFunc(slices.Clone(out[i].Roles), func(r access.Role) bool {
			return r.Within(bucket, scope, collection)
		})
	}
	return out
}

// WithoutUsers is the map for those who may not have what is kept of passwords.
func (m Map) WithoutUsers() Map {
	m.Users, m.Secret = nil, nil
	return m
}
