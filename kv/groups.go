package kv

import (
	"context"
	"errors"
	"net/http"

	"tidemark/internal/rpc/route"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
)

// pathGroupChange is the path that nodes and commands use to change groups; the others are the documented Couchbase
// paths for it.
const (
	pathGroupChange = "/v1/cluster/groups"
	pathGroups      = "/settings/rbac/groups"
	pathGroup       = pathGroups + "/{group}"
)

// changeGroup commits a revision of the map with changed groups. When it returns without an error, all members use
// them.
func (c *cluster) changeGroup(ctx context.Context, change clustermap.GroupChange) (clustermap.Map, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	m, late, err := c.revise(ctx, func(m clustermap.Map) (clustermap.Map, error) { return m.ChangeGroup(change) })
	if err != nil {
		return m, err
	}
	c.n.config.Logger.Info("group changed", "group", change.Group, "removed", change.Remove, "roles_given",
		change.Roles != nil)
	return m, c.awaitMap(ctx, m, late)
}

func (n *Node) postGroup(ctx context.Context, body []byte) (any, error) {
	r, err := decode[clustermap.GroupChange](body)
	if err != nil {
		return nil, err
	}
	m, err := n.cluster.changeGroup(ctx, r)
	if err != nil {
		return nil, err
	}
	return doneWith(m), nil
}

// groupRoutes returns the routes for groups. Any member accepts the documented ones and forwards changes to the
// leader.
func (n *Node) groupRoutes() []route.Route {
	reads, manages := n.may(access.ReadUsers), n.may(access.ManageUsers)
	return []route.Route{
		{Method: "POST", Path: pathGroupChange, Role: manages, Body: maxUserBody, Limit: commandTimeout,
			Handle: command(n.postGroup)},
		{Method: "GET", Path: pathGroups, Role: reads, Limit: adminTimeout, Handle: n.getGroups},
		{Method: "GET", Path: pathGroup, Role: reads, Limit: adminTimeout, Handle: n.getGroup},
		{Method: "PUT", Path: pathGroup, Role: manages, Body: maxUserBody, Limit: relayTimeout, Handle: n.putGroup},
		{Method: "DELETE", Path: pathGroup, Role: manages, Limit: relayTimeout, Handle: n.deleteGroup},
	}
}

// restGroup is a group in the format of /settings/rbac/groups.
type restGroup struct {
	ID          string     `json:"id"`
	Description string     `json:"description"`
	Roles       []restRole `json:"roles"`
}

func restGroupOf(g access.Group) restGroup {
	out := restGroup{ID: g.ID, Description: g.Description, Roles: []restRole{}}
	for _, r := range g.Roles {
		out.Roles = append(out.Roles, restRoleOf(r))
	}
	return out
}

// getGroups answers with all groups: there are at most access.MaxGroups.
func (n *Node) getGroups(w http.ResponseWriter, _ *http.Request) error {
	out := []restGroup{}
	for _, g := range n.cluster.directory.Load().Groups() {
		out = append(out, restGroupOf(g))
	}
	return writeJSON(w, out)
}

func (n *Node) getGroup(w http.ResponseWriter, r *http.Request) error {
	g := n.cluster.directory.Load().Group(r.PathValue("group"))
	if g == nil {
		return unknownGroup(w)
	}
	return writeJSON(w, restGroupOf(*g))
}

// unknownGroup answers with the error text that SDKs expect.
func unknownGroup(w http.ResponseWriter) error {
	http.Error(w, `"Unknown group."`, http.StatusNotFound)
	return nil
}

// putGroup creates a group, or replaces the roles and the description of an existing one.
func (n *Node) putGroup(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(r); err != nil {
		return err
	}
	description := r.PostForm.Get("description")
	change := clustermap.GroupChange{Group: r.PathValue("group"), Description: &description}
	switch {
	case r.PostForm.Get("ldap_group_ref") != "":
		return formError(w, http.StatusBadRequest, "ldap_group_ref", "LDAP is not supported")
	case !r.PostForm.Has("roles"):
		return formError(w, http.StatusBadRequest, "roles", "The value must be supplied")
	}
	roles, err := access.ParseRoles(r.PostForm.Get("roles"))
	if err != nil {
		return formError(w, http.StatusBadRequest, "roles", err.Error())
	}
	change.Roles = &roles
	return n.changeGroup(w, r, change)
}

func (n *Node) deleteGroup(w http.ResponseWriter, r *http.Request) error {
	return n.changeGroup(w, r, clustermap.GroupChange{Group: r.PathValue("group"), Remove: true})
}

// changeGroup makes a change here, or forwards it to the leader.
func (n *Node) changeGroup(w http.ResponseWriter, r *http.Request, change clustermap.GroupChange) error {
	switch _, err := n.cluster.changeGroup(r.Context(), change); {
	case err == nil, n.passOn(w, r, err):
		return nil
	case errors.Is(err, clustermap.ErrNoGroup):
		return unknownGroup(w)
	case errors.Is(err, access.ErrAccess):
		return formError(w, http.StatusBadRequest, "_", err.Error())
	default:
		return formError(w, http.StatusServiceUnavailable, "_", err.Error())
	}
}

// Group describes a group for commands.
type Group struct {
	ID          string   `json:"id"`
	Description string   `json:"description,omitempty"`
	Roles       []string `json:"roles"`
}

// Groups returns the cluster's groups from the first node that answers.
func (a *Admin) Groups(ctx context.Context) (out []Group, err error) {
	var all []restGroup
	if err := a.read(ctx, pathGroups, &all); err != nil {
		return nil, err
	}
	for _, g := range all {
		x := Group{ID: g.ID, Description: g.Description, Roles: []string{}}
		for _, r := range g.Roles {
			x.Roles = append(x.Roles, r.role().String())
		}
		out = append(out, x)
	}
	return out, nil
}

// ChangeGroup creates, changes or removes a group.
func (a *Admin) ChangeGroup(ctx context.Context, c clustermap.GroupChange) error {
	return a.lead(ctx, pathGroupChange, c, nil)
}
