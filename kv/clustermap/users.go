package clustermap

import (
	"fmt"
	"slices"

	"tidemark/kv/access"
)

// ErrNoUser means that there is no user of that name; it wraps access.ErrAccess.
var ErrNoUser = fmt.Errorf("%w: there is no such user", access.ErrAccess)

// ErrNoGroup means that there is no group of that name; it wraps access.ErrAccess.
var ErrNoGroup = fmt.Errorf("%w: there is no such group", access.ErrAccess)

// UserChange creates, changes or removes a user. A nil field leaves the value as it is; a new user needs Keys, and
// Roles or Groups.
type UserChange struct {
	User   string         `json:"user"`
	Remove bool           `json:"remove,omitempty"`
	Name   *string        `json:"name,omitempty"`
	Roles  *[]access.Role `json:"roles,omitempty"`
	// Groups are the names of all groups of the user.
	Groups *[]string    `json:"groups,omitempty"`
	Keys   *access.Keys `json:"keys,omitempty"`
}

// GroupChange creates, changes or removes a group. A nil field leaves the value as it is; a new group needs Roles.
type GroupChange struct {
	Group       string         `json:"group"`
	Remove      bool           `json:"remove,omitempty"`
	Description *string        `json:"description,omitempty"`
	Roles       *[]access.Role `json:"roles,omitempty"`
}

// ChangeGroup applies a change. Removing a group also removes it from all users. Errors: access.ErrAccess, and with
// it ErrNoGroup.
func (m Map) ChangeGroup(c GroupChange) (Map, error) {
	n := m.next()
	n.Groups = slices.Clone(m.Groups)
	at, there := access.PlaceGroup(n.Groups, c.Group)
	switch {
	case !there && (c.Remove || c.Roles == nil):
		return m, fmt.Errorf("%w: %q", ErrNoGroup, c.Group)
	case c.Remove:
		n.Groups = slices.Delete(n.Groups, at, at+1)
		n.Users = slices.Clone(m.Users)
		for i := range n.Users {
			n.Users[i].Groups = slices.DeleteFunc(slices.Clone(n.Users[i].Groups), func(id string) bool { return id == c.Group })
		}
		return n, nil
	case !there:
		n.Groups = slices.Insert(n.Groups, at, access.Group{ID: c.Group})
	}
	g := &n.Groups[at]
	if c.Description != nil {
		g.Description = *c.Description
	}
	if c.Roles != nil {
		if err := m.checkAllRoles(*c.Roles); err != nil {
			return m, err
		}
		g.Roles = access.Ordered(*c.Roles)
	}
	if err := access.CheckGroups(n.Groups); err != nil {
		return m, err
	}
	return n, nil
}

// ChangeUser applies a change. A role must be for an existing bucket, scope or collection and is removed together
// with it; the same holds for groups. Errors: access.ErrAccess, and with it ErrNoUser and ErrNoGroup.
func (m Map) ChangeUser(c UserChange) (Map, error) {
	n := m.next()
	n.Users = slices.Clone(m.Users)
	at, there := access.Place(n.Users, c.User)
	var u access.User
	if there {
		u = n.Users[at]
	}
	switch {
	case !there && (c.Remove || c.Roles == nil && c.Groups == nil):
		return m, fmt.Errorf("%w: %q", ErrNoUser, c.User)
	case c.Remove:
		n.Users = slices.Delete(n.Users, at, at+1)
		return n, nil
	case !there && c.Keys == nil:
		return m, fmt.Errorf("%w: user %q is new and needs a password", access.ErrAccess, c.User)
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

// setUser sets the fields that the change contains.
func (m Map) setUser(u *access.User, c UserChange) error {
	u.ID = c.User
	if c.Name != nil {
		u.Name = *c.Name
	}
	if c.Keys != nil {
		u.Keys = *c.Keys
	}
	if c.Roles != nil {
		if err := m.checkAllRoles(*c.Roles); err != nil {
			return err
		}
		u.Roles = access.Ordered(*c.Roles)
	}
	if c.Groups != nil {
		for _, id := range *c.Groups {
			if _, ok := access.PlaceGroup(m.Groups, id); !ok {
				return fmt.Errorf("%w: %q", ErrNoGroup, id)
			}
		}
		u.Groups = slices.Compact(slices.Sorted(slices.Values(*c.Groups)))
	}
	return nil
}

func (m Map) checkAllRoles(roles []access.Role) error {
	for _, r := range roles {
		if err := m.checkRole(r); err != nil {
			return err
		}
	}
	return nil
}

// checkRole refuses a role for a bucket, scope or collection that does not exist.
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

// takeRoles removes all roles for a bucket, or for a scope or collection of it, from users and groups.
func (m *Map) takeRoles(bucket, scope, collection string) {
	without := func(roles []access.Role) []access.Role {
		return slices.DeleteFunc(slices.Clone(roles), func(r access.Role) bool { return r.Within(bucket, scope, collection) })
	}
	m.Users, m.Groups = slices.Clone(m.Users), slices.Clone(m.Groups)
	for i := range m.Users {
		m.Users[i].Roles = without(m.Users[i].Roles)
	}
	for i := range m.Groups {
		m.Groups[i].Roles = without(m.Groups[i].Roles)
	}
}

// WithoutUsers returns the map without users, groups and secret, for recipients that must not see password keys.
func (m Map) WithoutUsers() Map {
	m.Users, m.Groups, m.Secret = nil, nil, nil
	return m
}
