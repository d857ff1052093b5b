package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"tidemark/errcode"
	"tidemark/internal/logging"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

func (g logs) loggingRoutes() []route {
	role := param{name: "role", enum: nodeRoles(), means: "the role, where nodes of several roles have that name"}
	return []route{
		{method: "GET", path: "/v1/cluster/nodes/{id}/logging", handle: g.logging, role: RoleRead, limit: v1.ReadTimeout,
			doc: operation{
				id: "getLogging", tag: tagCluster, summary: "How much a manager, projector or indexer logs, by component",
				params:  []param{role},
				answers: []answer{{status: 200, means: "its levels", body: v1.Logging{}}},
				codes:   []errcode.Code{errcode.UnknownNode, errcode.Unavailable}}},
		{method: "PUT", path: "/v1/cluster/nodes/{id}/logging", handle: g.logging, role: RoleAdmin, limit: v1.ReadTimeout,
			doc: operation{
				id: "setLogging", tag: tagCluster, summary: "Change how much a running node, or a component of it, logs: " +
					"for some time, or until the process ends",
				params: []param{role}, body: v1.LogChange{},
				answers: []answer{{status: 200, means: "its levels from now on", body: v1.Logging{}}},
				codes:   []errcode.Code{errcode.UnknownNode, errcode.Unavailable, errcode.InvalidArgument}}},
	}
}

func nodeRoles() []string {
	return []string{string(tlsconf.Manager), string(tlsconf.Projector), string(tlsconf.Indexer)}
}

// logging shows or changes a node's levels: this manager's, or those of the named node.
func (g logs) logging(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	role := r.URL.Query().Get("role")
	if role != "" && !slices.Contains(nodeRoles(), role) {
		return rpc.Refuse(errcode.BadRequest, "role=%s: want %s", role, strings.Join(nodeRoles(), ", "))
	}
	at, err := g.loggingNode(id, role)
	if err != nil {
		return err
	}
	if at.role == tlsconf.Manager && at.addr != "" {
		return g.toManager(w, r, at.addr)
	}
	var change *wire.LogChange
	if r.Method == http.MethodPut {
		var c v1.LogChange
		if err := rpc.Read(r, &c); err != nil {
			return err
		}
		own := wire.LogChange(c)
		change = &own
	}
	levels, err := g.levelsAt(r.Context(), at, change)
	if err != nil {
		return err
	}
	out := v1.Logging{ID: id, Role: string(at.role), Level: levels.Level, UntilMS: levels.UntilMS}
	for _, c := range levels.Components {
		out.Components = append(out.Components, v1.LogComponent(c))
	}
	rpc.Write(w, r, http.StatusOK, out)
	return nil
}

// loggingAt is the node whose levels are requested.
type loggingAt struct {
	role tlsconf.Role
	addr string // base URL; empty: this manager
}

// loggingNode finds a node by its name, and its role if nodes of several roles have that name.
func (g logs) loggingNode(id, role string) (loggingAt, error) {
	s := g.cfg.Raft.State()
	var found []loggingAt
	add := func(as tlsconf.Role, name, addr string) {
		if name == id && (role == "" || role == string(as)) {
			found = append(found, loggingAt{as, addr})
		}
	}
	add(tlsconf.Manager, g.cfg.Name, "")
	for m := range s.Managers() {
		if m.Name != g.cfg.Name {
			add(tlsconf.Manager, m.Name, m.REST)
		}
	}
	for p := range s.Projectors() {
		add(tlsconf.Projector, string(p.ID), p.Admin)
	}
	for i := range s.Indexers() {
		add(tlsconf.Indexer, i.Name, i.Admin)
	}
	switch len(found) {
	case 0:
		return loggingAt{}, rpc.Refuse(errcode.UnknownNode, "there is no manager, projector or indexer %q; GET /v1/status "+
			"lists them", id)
	case 1:
		return found[0], nil
	}
	return loggingAt{}, rpc.Refuse(errcode.BadRequest, "a %s and a %s are both named %q: select one with the parameter "+
		"role", found[0].role,
		found[1].role, id)
}

// levelsAt reads or changes the levels of a node that is not another manager.
func (g logs) levelsAt(ctx context.Context, at loggingAt, change *wire.LogChange) (levels *wire.LogLevels, err error) {
	switch {
	case at.addr == "":
		return logging.Answer(ctx, g.cfg.Logger, change)
	case at.role == tlsconf.Projector:
		levels, err = g.projectors.Logging(ctx, at.addr, change)
	default:
		levels, err = g.indexers.Logging(ctx, at.addr, change)
	}
	var p *rpc.Problem
	if err != nil && !errors.As(err, &p) {
		return nil, rpc.Refuse(errcode.Unavailable, "the %s at %s does not answer: %v", at.role, at.addr, err)
	}
	return levels, err
}

// toManager forwards a request about another manager to it, one hop, and sends its answer back.
func (g logs) toManager(w http.ResponseWriter, r *http.Request, addr string) error {
	if r.Header.Get(HeaderForwarded) != "" {
		return rpc.Refuse(errcode.UnknownNode, "manager %s received a forwarded request for the manager at "+
			"%s", g.cfg.Name, addr)
	}
	ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
	defer cancel()
	req, err := g.forwarded(ctx, r, &route{}, wire.Leader{REST: addr}, r.Body)
	if err != nil {
		return rpc.Refuse(errcode.BadRequest, "%v", err)
	}
	resp, err := g.rpc.HTTP().Do(req)
	if err != nil {
		return rpc.Refuse(errcode.Unavailable, "the manager at %s does not answer: %v", addr, err)
	}
	defer resp.Body.Close()
	copyAnswer(w, resp)
	return nil
}
