package api

import (
	"context"
	"net/http"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// componentRoutes are the calls of managers, projectors and indexers; docs/protocol.md has their messages.
func (g components) componentRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/cluster/managers", handle: g.registerManager, role: RoleComponent, leader: true,
			limit: max(v1.MemberTimeout, g.cfg.JoinTimeout)},
		{method: "POST", path: "/v1/cluster/indexers", handle: g.registerIndexer, role: RoleComponent, leader: true,
			limit: v1.WriteTimeout},
		{method: "POST", path: "/v1/cluster/projectors", handle: g.registerProjector, role: RoleComponent, leader: true,
			limit: v1.WriteTimeout},
		{method: "POST", path: "/v1/cluster/projectors:leave", handle: g.leaveProjector, role: RoleComponent, leader: true,
			limit: v1.WriteTimeout},
		{method: "POST", path: "/v1/components/{id}/reports", handle: g.report, role: RoleComponent, leader: true,
			body: rpc.MaxControlBody, limit: v1.ReadTimeout},
		{method: "POST", path: "/v1/buckets/{bucket}:stabilize", handle: g.stabilize, role: RoleComponent, leader: true,
			body: rpc.MaxControlBody, limit: maxStabilize + v1.ReadTimeout},
		{method: "POST", path: scanport.CheckPath, handle: g.checkTicket, role: RoleComponent, limit: v1.ReadTimeout},
		{method: "POST", path: wire.TokenCheckPath, handle: g.checkToken, role: RoleComponent, limit: v1.ReadTimeout},
		{method: "GET", path: "/v1/readindex", handle: g.readIndex, role: RoleComponent, leader: true, limit: v1.ReadTimeout},
		{method: "GET", path: "/v1/bootstrap", handle: g.bootstrap, role: RoleComponent, limit: v1.ReadTimeout},
	}
}

// checkToken reports to a projector or an indexer whether a token presented to it permits reading metrics.
func (g components) checkToken(w http.ResponseWriter, r *http.Request) error {
	var req wire.TokenCheck
	if err := rpc.Read(r, &req); err != nil {
		return err
	}
	if g.cfg.Auth == nil {
		return rpc.Refuse(errcode.Unauthenticated, "this manager has no users and tokens")
	}
	if err := g.ensureCurrent(r.Context()); err != nil { // first: a token that was revoked meanwhile is invalid
		return err
	}
	asked := (&http.Request{Method: http.MethodGet, URL: r.URL, RemoteAddr: req.Remote,
		Header: http.Header{"Authorization": {"Bearer " + req.Token}}}).WithContext(r.Context())
	id, err := g.lookUp(asked)
	if err != nil {
		return unauthenticated(err)
	}
	if id == nil || id.Role < RoleMetrics.needs() {
		return rpc.Refuse(errcode.Forbidden, "the token's user has no role that may read metrics")
	}
	rpc.Write(w, r, http.StatusOK, wire.TokenChecked{Principal: id.Name})
	return nil
}

func (g components) registerIndexer(w http.ResponseWriter, r *http.Request) error {
	var req wire.RegisterIndexer
	if err := rpc.Read(r, &req); err != nil {
		return err
	}
	if err := g.speaksFor(r, tlsconf.Indexer, req.Endpoint.Name); err != nil {
		return err
	}
	// nor may it take over another indexer's folder
	if known := g.cfg.Raft.State().IndexerByUUID(req.Endpoint.UUID); known != nil {
		if err := g.speaksFor(r, tlsconf.Indexer, known.Name); err != nil {
			return err
		}
	}
	reply, err := g.cfg.Coordinator.RegisterIndexer(r.Context(), &req)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

func (g components) registerProjector(w http.ResponseWriter, r *http.Request) error {
	var req wire.RegisterProjector
	if err := rpc.Read(r, &req); err != nil {
		return err
	}
	if err := g.speaksFor(r, tlsconf.Projector, string(req.Endpoint.ID)); err != nil {
		return err
	}
	reply, err := g.cfg.Coordinator.RegisterProjector(r.Context(), &req)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

func (g components) leaveProjector(w http.ResponseWriter, r *http.Request) error {
	var req wire.LeaveProjector
	if err := rpc.Read(r, &req); err != nil {
		return err
	}
	if err := g.speaksFor(r, tlsconf.Projector, string(req.ID)); err != nil {
		return err
	}
	if err := g.cfg.Coordinator.LeaveProjector(r.Context(), &req); err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, wire.OK{})
	return nil
}

// report takes a component's report; ?kind= is the kind of component.
func (g components) report(w http.ResponseWriter, r *http.Request) error {
	var reply *wire.ReportReply
	var err error
	switch kind := r.URL.Query().Get("kind"); kind {
	case "projector":
		req := &wire.ProjectorReport{}
		if err := rpc.Read(r, req); err != nil {
			return err
		}
		if err := g.speaksFor(r, tlsconf.Projector, string(req.ID)); err != nil {
			return err
		}
		reply, err = g.cfg.Coordinator.HandleProjectorReport(r.Context(), req)
	case "indexer":
		req := &wire.IndexerReport{}
		if err := rpc.Read(r, req); err != nil {
			return err
		}
		if known := g.cfg.Raft.State().IndexerByUUID(req.UUID); known != nil {
			if err := g.speaksFor(r, tlsconf.Indexer, known.Name); err != nil {
				return err
			}
		}
		reply, err = g.cfg.Coordinator.HandleIndexerReport(r.Context(), req)
	default:
		return rpc.Refuse(errcode.BadRequest, "kind=%s: want projector or indexer", kind)
	}
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

func (g components) stabilize(w http.ResponseWriter, r *http.Request) error {
	var req wire.StabilizeRequest
	if err := rpc.Read(r, &req); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(time.Duration(max(req.WaitMS, 1))*time.Millisecond, maxStabilize))
	defer cancel()
	s, err := g.cfg.Coordinator.Stabilize(ctx, r.PathValue("bucket"), req.Need)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, s)
	return nil
}
