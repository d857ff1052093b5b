package indexer

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tidemark/errcode"
	"tidemark/indexer/core"
	"tidemark/internal/logging"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/internal/version"
	"tidemark/wire"
)

// adminHandler serves each message of package wire that indexers take, health and metrics. It stands on a port of its
// own: no command ever waits behind data. Over TLS only managers command it.
func (x *Indexer) adminHandler() http.Handler {
	r := mux.NewRouter()
	const limit = rpc.MaxControlBody
	manager, anyone := tlsconf.Only(tlsconf.Manager), tlsconf.Only(tlsconf.Roles()...)
	add := func(method, path string, check func(*http.Request) error, h http.Handler) {
		r.Handle(path, rpc.Guard(check, h)).Methods(method)
	}
	add(http.MethodPut, "/v1/hello", manager, rpc.Handle(limit, x.hello))
	add(http.MethodPut, "/v1/definitions", manager, rpc.Handle(limit, x.definitions))
	add(http.MethodPost, "/v1/definitions:change", manager, rpc.Handle(limit, x.change))
	add(http.MethodPost, "/v1/poll", manager, rpc.Handle(limit, x.poll))
	add(http.MethodPut, "/v1/stability", manager, rpc.Handle(limit, x.stability))
	add(http.MethodPut, "/v1/rollback", manager, rpc.Handle(limit, x.rollback))
	add(http.MethodPost, "/v1/orphans:drop", manager, rpc.Handle(limit, x.dropOrphans))
	add(http.MethodGet, "/v1/logging", anyone, logging.Handler(x.log))
	add(http.MethodPut, "/v1/logging", manager, logging.Handler(x.log))
	add(http.MethodGet, "/v1/status", anyone, http.HandlerFunc(x.status))
	add(http.MethodGet, "/v1/stats", anyone, http.HandlerFunc(x.serveStats))
	add(http.MethodGet, "/v1/positions", anyone, http.HandlerFunc(x.positions))
	add(http.MethodGet, "/v1/scans", manager, http.HandlerFunc(x.runningScans))
	add(http.MethodGet, "/v1/history", manager, http.HandlerFunc(x.history))
	add(http.MethodPost, "/v1/scans:cancel", manager, rpc.Handle(limit, x.cancelScan))
	add(http.MethodPost, "/v1/scans:slow", manager, rpc.Handle(limit, x.slowFrom))
	add(http.MethodPost, "/v1/samples", manager, rpc.Handle(limit, x.sample))
	x.metrics.registry.MustRegister(collector{x})
	add(http.MethodGet, "/metrics", x.managers.OrToken(anyone), promhttp.HandlerFor(x.metrics.registry,
		promhttp.HandlerOpts{MaxRequestsInFlight: scrapesAtOnce}))
	r.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		rpc.Write(w, r, http.StatusOK,
			wire.OK{})
	}).Methods(http.MethodGet)
	r.HandleFunc("/readyz", x.ready).Methods(http.MethodGet)
	otherwise(r, "an indexer's admin port")
	return r
}

// otherwise answers what has no route with problem JSON.
func otherwise(r *mux.Router, who string) {
	r.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rpc.WriteProblem(w, rpc.Refuse(errcode.NotFound, "%s has no %s", who, r.URL.Path))
	})
	r.MethodNotAllowedHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rpc.WriteProblem(w, rpc.Refuse(errcode.MethodNotAllowed, "%s does not take %s", r.URL.Path, r.Method))
	})
}

// admit checks a command's fence, and counts those that are refused.
func (x *Indexer) admit(f wire.Fence) error {
	err := x.identity.admit(f)
	if errors.Is(err, wire.ErrFenced) {
		x.metrics.fenced.Inc()
	}
	return err
}

func (x *Indexer) hello(ctx context.Context, req *wire.HelloRequest) (*wire.IndexerHello, error) {
	if err := x.admit(req.Fence); err != nil {
		return nil, err
	}
	x.managers.SetManagers(req.Managers)
	x.managers.SetLeader(req.Leader)
	h := &wire.IndexerHello{Report: *x.fullReport(ctx, func(string) bool { return false })}
	h.Report.Shorten()
	for _, k := range x.allBuckets() {
		m := wire.MinimumIncarnations{Bucket: k.Name()}
		if err := k.Do(ctx, func(st *core.Bucket) { m.Incarnations = st.Minimum() }); err == nil {
			h.Minimum = append(h.Minimum, m)
		}
	}
	return h, nil
}

func (x *Indexer) poll(ctx context.Context, req *wire.PollRequest) (*wire.PollReply, error) {
	if err := x.admit(req.Fence); err != nil {
		return nil, err
	}
	k := x.bucketNamed(req.Bucket)
	if k == nil {
		return core.Poll(nil, req), nil
	}
	var reply *wire.PollReply
	err := k.Do(ctx, func(st *core.Bucket) { reply = core.Poll(st, req) })
	return reply, err
}

func (x *Indexer) stability(ctx context.Context, req *wire.StabilityRequest) (*wire.StabilityReply, error) {
	if err := x.admit(req.Fence); err != nil {
		return nil, err
	}
	all, missing := x.catalog.Told(req)
	for i := range all {
		s := &all[i]
		x.catalog.Published(s)
		k := x.bucketNamed(s.Bucket)
		if k == nil {
			continue
		}
		if err := k.Do(ctx, func(st *core.Bucket) { st.Publish(s.Stability) }); err != nil {
			return nil, err
		}
	}
	return &wire.StabilityReply{Missing: missing}, nil
}

// rollback does one step of the rollback machine (IM-23). "rollback" answers when everything is back.
func (x *Indexer) rollback(ctx context.Context, req *wire.RollbackRequest) (*wire.RollbackReply, error) {
	if err := x.admit(req.Fence); err != nil {
		return nil, err
	}
	reply := &wire.RollbackReply{RollbackID: req.RollbackID}
	k := x.bucketNamed(req.Bucket)
	if k == nil {
		return reply, nil
	}
	switch req.Step {
	case "prepare":
		return k.Prepare(ctx, req)
	case "rollback":
		return reply, k.CarryOut(ctx, req, reply)
	}
	return nil, rpc.Refuse(errcode.BadRequest, "rollback step %q: want prepare or rollback", req.Step)
}

// Status is the answer of GET /v1/status.
type Status struct {
	Endpoint  wire.Endpoint       `json:"endpoint"`
	ClusterID string              `json:"cluster_id"`
	Version   string              `json:"version"`
	Fence     wire.Fence          `json:"fence"`
	Health    string              `json:"health,omitempty"`
	Report    *wire.IndexerReport `json:"report"`
	Sides     []SideStatus        `json:"side_streams"`
}

// SideStatus is one open side stream.
type SideStatus struct {
	Bucket  string `json:"bucket"`
	VBucket int    `json:"vbucket"`
	Begun   bool   `json:"begun"`
	At      uint64 `json:"at"`
	To      uint64 `json:"to"`
}

func (x *Indexer) status(w http.ResponseWriter, r *http.Request) {
	id := x.identity.get()
	s := Status{Endpoint: x.Endpoint(), ClusterID: id.ClusterID, Version: version.Full(), Fence: id.Fence,
		Health: x.health.First(), Report: x.fullReport(r.Context(), func(string) bool { return true })}
	for _, k := range x.allBuckets() {
		_ = k.Do(r.Context(), func(st *core.Bucket) { // a bucket that goes has nothing to show
			for _, p := range st.SideStreams() {
				s.Sides = append(s.Sides, SideStatus{Bucket: k.Name(), VBucket: p.VBucket, Begun: p.Begun, At: p.At, To: p.To})
			}
		})
	}
	rpc.Write(w, r, http.StatusOK, s)
}

// positions draws, per bucket and vbucket, the stream that feeds it and where each copy stands: why something waits.
func (x *Indexer) positions(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	for _, k := range x.allBuckets() {
		text := "" // a bucket that goes has nothing to show
		_ = k.Do(r.Context(), func(st *core.Bucket) { text = st.String() })
		if _, err := fmt.Fprintf(w, "bucket %s: %s", k.Name(), text); err != nil {
			return
		}
	}
}
