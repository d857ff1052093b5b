package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"tidemark/internal/rpc/route"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
)

// pathUserChange is the path that nodes and commands use to change users; the others are the documented Couchbase
// paths for it.
const (
	pathUserChange     = "/v1/cluster/users"
	pathWhoAmI         = "/whoami"
	pathChangePassword = "/controller/changePassword"
	pathRoles          = "/settings/rbac/roles"
	pathUsers          = "/settings/rbac/users"
	pathLocalUsers     = pathUsers + "/local"
	pathUser           = pathLocalUsers + "/{user}"

	secretBytes = 32 // length of Map.Secret

	// maxUserBody bounds the bytes of a change of a user: names, and access.MaxRoles of the longest roles.
	maxUserBody = 64 << 10
)

// showUsers makes a map's users and collections the basis of access checks, and reports whether they differ from the
// previous ones. The caller holds changing, or is the only user of the node.
func (c *cluster) showUsers(m clustermap.Map) bool {
	k := access.Kept{Users: m.Users, Groups: m.Groups, Secret: m.Secret,
		Buckets: make(map[string]access.Bucket, len(m.Buckets))}
	for i := range m.Buckets {
		b := &m.Buckets[i]
		k.Buckets[b.Name] = access.Bucket{UUID: b.UUID, Manifest: b.Manifest()}
	}
	if c.directory.Load().Same(k) {
		return false
	}
	c.directory.Store(access.NewDirectory(k))
	return true
}

// changeUser commits a revision of the map with changed users. When it returns without an error, all members use
// them.
func (c *cluster) changeUser(ctx context.Context, change clustermap.UserChange) (clustermap.Map, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	if change.User == c.n.config.User {
		return clustermap.Map{}, fmt.Errorf("%w: user %q is in the nodes' configuration, with all rights: change it "+
			"there (--kv-user, --kv-password-file), on all nodes, and start them again", access.ErrAccess, change.User)
	}
	m, late, err := c.revise(ctx, func(m clustermap.Map) (clustermap.Map, error) {
		if m.Secret == nil {
			m.Secret = make([]byte, secretBytes)
			randomBytes(m.Secret)
		}
		return m.ChangeUser(change)
	})
	if err != nil {
		return m, err
	}
	c.n.config.Logger.Info("user changed", "user", change.User, "removed", change.Remove, "roles_given",
		change.Roles != nil, "groups_given", change.Groups != nil, "password_given", change.Keys != nil)
	return m, c.awaitMap(ctx, m, late)
}

// awaitMap waits until members that could not be reached have a map, or a newer one of its epoch. It returns
// ErrRefused if there is another epoch, whose maker may not have had the map, and an error if ctx ends.
func (c *cluster) awaitMap(ctx context.Context, m clustermap.Map, late []clustermap.Node) error {
	before := clustermap.Map{RevEpoch: m.RevEpoch, Rev: m.Rev - 1}
	again := time.NewTicker(followAgain)
	defer again.Stop()
	for len(late) > 0 {
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("the users are changed, but %s uses the previous ones until it receives the change: %w",
				late[0].ID, context.Cause(ctx))
		}
		now := c.current()
		if now.RevEpoch != m.RevEpoch {
			return fmt.Errorf("%w: a failover intervened: check whether the users are changed", ErrRefused)
		}
		has := c.peers.each(ctx, late, func(ctx context.Context, x clustermap.Node) (clustermap.Map, error) {
			return c.peers.newerMap(ctx, x, before)
		})
		asked := late
		late = nil
		for i, a := range has {
			if _, stays := now.Node(a.id); stays && (a.err != nil || a.value.RevEpoch != m.RevEpoch) {
				late = append(late, asked[i])
			}
		}
	}
	return nil
}

func (n *Node) postUser(ctx context.Context, body []byte) (any, error) {
	r, err := decode[clustermap.UserChange](body)
	if err != nil {
		return nil, err
	}
	m, err := n.cluster.changeUser(ctx, r)
	if err != nil {
		return nil, err
	}
	return doneWith(m), nil
}

// userRoutes returns the routes for users. Any member accepts the documented ones and forwards changes to the leader.
func (n *Node) userRoutes() []route.Route {
	reads, manages, anyone := n.may(access.ReadUsers), n.may(access.ManageUsers), n.anyUser()
	return []route.Route{
		{Method: "POST", Path: pathUserChange, Role: manages, Body: maxUserBody, Limit: commandTimeout,
			Handle: command(n.postUser)},
		{Method: "GET", Path: pathWhoAmI, Role: anyone, Limit: adminTimeout, Handle: n.getWhoAmI},
		{Method: "POST", Path: pathChangePassword, Role: anyone, Body: maxForm, Limit: relayTimeout,
			Handle: n.changePassword},
		{Method: "GET", Path: pathRoles, Role: reads, Limit: adminTimeout, Handle: n.getRoles},
		{Method: "GET", Path: pathUsers, Role: reads, Limit: adminTimeout, Handle: n.getUsers},
		{Method: "GET", Path: pathLocalUsers, Role: reads, Limit: adminTimeout, Handle: n.getUsers},
		{Method: "GET", Path: pathUser, Role: reads, Limit: adminTimeout, Handle: n.getUser},
		{Method: "PUT", Path: pathUser, Role: manages, Body: maxUserBody, Limit: relayTimeout, Handle: n.putUser},
		{Method: "DELETE", Path: pathUser, Role: manages, Limit: relayTimeout, Handle: n.deleteUser},
	}
}

// restUser is a user in the format of /settings/rbac/users.
type restUser struct {
	ID             string     `json:"id"`
	Domain         string     `json:"domain"`
	Name           string     `json:"name"`
	Roles          []restRole `json:"roles"`
	Groups         []string   `json:"groups"`
	ExternalGroups []string   `json:"external_groups"`
}

type restRole struct {
	Role    string       `json:"role"`
	Bucket  string       `json:"bucket_name,omitempty"`
	Scope   string       `json:"scope_name,omitempty"`
	Member  string       `json:"collection_name,omitempty"`
	Origins []restOrigin `json:"origins,omitempty"`
	Name    string       `json:"name,omitempty"`
	Desc    string       `json:"desc,omitempty"`
}

// restOrigin is the origin of a user's role: the user, or a group with this name.
type restOrigin struct {
	Type string `json:"type"`
	Name string `json:"name,omitempty"`
}

const originUser, originGroup = "user", "group"

// restUserOf returns a user with its own roles and those of its groups.
func (n *Node) restUserOf(u access.User) restUser {
	out := restUser{ID: u.ID, Domain: "local", Name: u.Name, Roles: []restRole{}, Groups: []string{},
		ExternalGroups: []string{}}
	origins, all := map[access.Role][]restOrigin{}, slices.Clone(u.Roles)
	for _, r := range u.Roles {
		origins[r] = append(origins[r], restOrigin{Type: originUser})
	}
	d := n.cluster.directory.Load()
	for _, id := range u.Groups {
		g := d.Group(id)
		if g == nil {
			continue
		}
		out.Groups, all = append(out.Groups, id), append(all, g.Roles...)
		for _, r := range g.Roles {
			origins[r] = append(origins[r], restOrigin{Type: originGroup, Name: id})
		}
	}
	for _, r := range access.Ordered(all) {
		x := restRoleOf(r)
		x.Origins = origins[r]
		out.Roles = append(out.Roles, x)
	}
	return out
}

// restRoleOf returns a role in its parts: "*" means all scopes, or all collections, for roles that can be limited to
// one.
func restRoleOf(r access.Role) restRole {
	x := restRole{Role: r.Name, Bucket: r.Bucket}
	for _, k := range access.Kinds() {
		if k.Name == r.Name && k.OfScope {
			x.Scope, x.Member = cmp.Or(r.Scope, access.Any), cmp.Or(r.Collection, access.Any)
		}
	}
	return x
}

// role is the inverse of restRoleOf.
func (r restRole) role() access.Role {
	named := func(s string) string {
		if s == access.Any {
			return ""
		}
		return s
	}
	return access.Role{Name: r.Role, Bucket: r.Bucket, Scope: named(r.Scope), Collection: named(r.Member)}
}

// findUser returns a user, including the one in the configuration.
func (n *Node) findUser(id string) (restUser, bool) {
	if id == n.config.User {
		return n.restUserOf(access.User{ID: id, Roles: []access.Role{{Name: "admin"}}}), true
	}
	u := n.cluster.directory.Load().Find(id)
	if u == nil {
		return restUser{}, false
	}
	return n.restUserOf(*u), true
}

func (n *Node) getWhoAmI(w http.ResponseWriter, r *http.Request) error {
	u, ok := n.findUser(callerOf(r))
	if !ok { // removed since the request was admitted
		return notFound(w)
	}
	return writeJSON(w, u)
}

// getUsers answers with all users in one page: there are at most access.MaxUsers.
func (n *Node) getUsers(w http.ResponseWriter, _ *http.Request) error {
	own, _ := n.findUser(n.config.User)
	out := []restUser{own}
	for _, u := range n.cluster.directory.Load().Users() {
		if u.ID != own.ID {
			out = append(out, n.restUserOf(u))
		}
	}
	slices.SortFunc(out, func(a, b restUser) int { return strings.Compare(a.ID, b.ID) })
	return writeJSON(w, out)
}

func (n *Node) getUser(w http.ResponseWriter, r *http.Request) error {
	u, ok := n.findUser(r.PathValue("user"))
	if !ok {
		return unknownUser(w)
	}
	return writeJSON(w, u)
}

// unknownUser answers with the error text that SDKs expect.
func unknownUser(w http.ResponseWriter) error {
	http.Error(w, `"Unknown user."`, http.StatusNotFound)
	return nil
}

// getRoles lists the roles that can be granted.
func (n *Node) getRoles(w http.ResponseWriter, _ *http.Request) error {
	var out []restRole
	for _, k := range access.Kinds() {
		r := restRoleOf(access.Role{Name: k.Name})
		r.Name, r.Desc = k.Title, k.What
		if k.OfBucket {
			r.Bucket = access.Any
		}
		out = append(out, r)
	}
	return writeJSON(w, out)
}

// putUser creates a user, or replaces the roles and groups of an existing one and, if the form has one, the password.
func (n *Node) putUser(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(r); err != nil {
		return err
	}
	change := clustermap.UserChange{User: r.PathValue("user")}
	if err := access.CheckID(change.User); err != nil {
		return formError(w, http.StatusBadRequest, "username", err.Error())
	}
	change.Groups = new(access.ParseGroups(r.PostForm.Get("groups")))
	if !r.PostForm.Has("roles") {
		return formError(w, http.StatusBadRequest, "roles", "The value must be supplied")
	}
	roles, err := access.ParseRoles(r.PostForm.Get("roles"))
	if err != nil {
		return formError(w, http.StatusBadRequest, "roles", err.Error())
	}
	change.Roles = &roles
	if r.PostForm.Has("name") {
		name := r.PostForm.Get("name")
		change.Name = &name
	}
	if password := r.PostForm.Get("password"); password != "" {
		keys, err := access.Derive(password, randomBytes)
		if err != nil {
			return formError(w, http.StatusBadRequest, "password", err.Error())
		}
		change.Keys = &keys
	}
	return n.changeUser(w, r, change)
}

func (n *Node) deleteUser(w http.ResponseWriter, r *http.Request) error {
	return n.changeUser(w, r, clustermap.UserChange{User: r.PathValue("user"), Remove: true})
}

// changePassword changes the password of the requesting user.
func (n *Node) changePassword(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(r); err != nil {
		return err
	}
	keys, err := access.Derive(r.PostForm.Get("password"), randomBytes)
	if err != nil {
		return formError(w, http.StatusBadRequest, "password", err.Error())
	}
	return n.changeUser(w, r, clustermap.UserChange{User: callerOf(r), Keys: &keys})
}

// changeUser makes a change here, or forwards it to the leader.
func (n *Node) changeUser(w http.ResponseWriter, r *http.Request, change clustermap.UserChange) error {
	switch _, err := n.cluster.changeUser(r.Context(), change); {
	case err == nil, n.passOn(w, r, err):
		return nil
	case errors.Is(err, clustermap.ErrNoUser):
		return unknownUser(w)
	case errors.Is(err, clustermap.ErrNoGroup):
		return formError(w, http.StatusBadRequest, "groups", err.Error())
	case errors.Is(err, access.ErrAccess):
		return formError(w, http.StatusBadRequest, "_", err.Error())
	default:
		return formError(w, http.StatusServiceUnavailable, "_", err.Error())
	}
}

// User describes a user for commands.
type User struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Roles holds the user's own roles, without those of its Groups.
	Roles  []string `json:"roles"`
	Groups []string `json:"groups"`
}

// Users returns the cluster's users from the first node that answers.
func (a *Admin) Users(ctx context.Context) (out []User, err error) {
	var all []restUser
	if err := a.read(ctx, pathLocalUsers, &all); err != nil {
		return nil, err
	}
	for _, u := range all {
		x := User{ID: u.ID, Name: u.Name, Roles: []string{}, Groups: u.Groups}
		for _, r := range u.Roles {
			if len(r.Origins) == 0 || r.Origins[0].Type != originUser {
				continue
			}
			x.Roles = append(x.Roles, r.role().String())
		}
		out = append(out, x)
	}
	return out, nil
}

// ChangeUser creates, changes or removes a user; password, unless empty, is the new one. It is not sent, only keys
// derived from it.
func (a *Admin) ChangeUser(ctx context.Context, c clustermap.UserChange, password string) error {
	if password != "" {
		keys, err := access.Derive(password, randomBytes)
		if err != nil {
			return err
		}
		c.Keys = &keys
	}
	return a.lead(ctx, pathUserChange, c, nil)
}
