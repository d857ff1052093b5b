package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/mux"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/wire"
)

// componentRoutes are what managers, projectors and indexers send; docs/protocol.md has their messages.
func (a *API) componentRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/cluster/managers", handle: a.registerManager, role: RoleComponent, leader: true,
			limit: WriteTimeout},
		{method: "POST", path: "/v1/cluster/indexers", handle: a.registerIndexer, role: RoleComponent, leader: true,
			limit: WriteTimeout},
		{method: "POST", path: "/v1/cluster/projectors", handle: a.registerProjector, role: RoleComponent, leader: true,
			limit: WriteTimeout},
		{method: "POST", path: "/v1/components/{id}/reports", handle: a.report, role: RoleComponent, leader: true,
			limit: ReadTimeout},
		{method: "POST", path: "/v1/buckets/{bucket}:stabilize", handle: a.stabilize, role: RoleComponent, leader: true,
			limit: maxStabilize + ReadTimeout},
		{method: "POST", path: scanport.CheckPath, handle: a.checkTicket, role: RoleComponent, limit: ReadTimeout},
		{method: "GET", path: "/v1/readindex", handle: a.readIndex, role: RoleComponent, leader: true, limit: ReadTimeout},
		{method: "GET", path: "/v1/bootstrap", handle: a.bootstrap, role: RoleComponent, limit: ReadTimeout},
	}
}

func (a *API) registerIndexer(w http.ResponseWriter, r *http.Request) error {
	var req wire.RegisterIndexer
	if err := rpc.Read(w, r, rpc.MaxUserBody, &req); err != nil {
		return err
	}
	if err := a.speaksFor(r, tlsconf.Indexer, req.Endpoint.Name); err != nil {
		return err
	}
	// nor does it take over another's folder
	if known := a.cfg.Raft.State().IndexerByUUID(req.Endpoint.UUID); known != nil {
		if err := a.speaksFor(r, tlsconf.Indexer, known.Name); err != nil {
			return err
		}
	}
	reply, err := a.cfg.Coordinator.RegisterIndexer(r.Context(), &req)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

func (a *API) registerProjector(w http.ResponseWriter, r *http.Request) error {
	var req wire.RegisterProjector
	if err := rpc.Read(w, r, rpc.MaxUserBody, &req); err != nil {
		return err
	}
	if err := a.speaksFor(r, tlsconf.Projector, string(req.Endpoint.ID)); err != nil {
		return err
	}
	reply, err := a.cfg.Coordinator.RegisterProjector(r.Context(), &req)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

// report takes a component's report; ?kind= says which component it is.
func (a *API) report(w http.ResponseWriter, r *http.Request) error {
	var reply *wire.ReportReply
	var err error
	switch kind := r.URL.Query().Get("kind"); kind {
	case "projector":
		req := &wire.ProjectorReport{}
		if err := rpc.Read(w, r, rpc.MaxControlBody, req); err != nil {
			return err
		}
		if err := a.speaksFor(r, tlsconf.Projector, string(req.ID)); err != nil {
			return err
		}
		reply, err = a.cfg.Coordinator.HandleProjectorReport(r.Context(), req)
	case "indexer":
		req := &wire.IndexerReport{}
		if err := rpc.Read(w, r, rpc.MaxControlBody, req); err != nil {
			return err
		}
		if known := a.cfg.Raft.State().IndexerByUUID(req.UUID); known != nil {
			if err := a.speaksFor(r, tlsconf.Indexer, known.Name); err != nil {
				return err
			}
		}
		reply, err = a.cfg.Coordinator.HandleIndexerReport(r.Context(), req)
	default:
		return rpc.Refuse(errcode.BadRequest, "kind=%s: want projector or indexer", kind)
	}
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

func (a *API) stabilize(w http.ResponseWriter, r *http.Request) error {
	bucket, err := url.PathUnescape(mux.Vars(r)["bucket"])
	if err != nil {
		return rpc.Refuse(errcode.BadRequest, "bucket: %v", err)
	}
	var req wire.StabilizeRequest
	if err := rpc.Read(w, r, rpc.MaxControlBody, &req); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(time.Duration(max(req.WaitMS, 1))*time.Millisecond, maxStabilize))
	defer cancel()
	s, err := a.cfg.Coordinator.Stabilize(ctx, bucket, req.Need)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, s)
	return nil
}
