// Package api is the REST interface of every manager (gorilla/mux, JSON): DDL, listings, scans, status, and what
// components send to the leader. docs/api.md lists the calls and the codes.
//
// It promises that any node answers (a follower forwards, one hop), that a write is answered only when a majority has
// it, that a retry with the same Idempotency-Key gives the one outcome, that reads are linearizable unless the caller
// asks for ?consistency=stale, and that every error is problem JSON (RFC 9457) with a code. Bodies, pages and waits
// are limited. It decides nothing: the coordinator and the StateContext do.
package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/mux"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tidemark/consensus"
	"tidemark/coordinator"
	"tidemark/internal/rpc"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Limits of time.
const (
	WriteTimeout   = 10 * time.Second // for DDL
	ReadTimeout    = 5 * time.Second
	ScanTimeout    = 10 * time.Minute       // for a whole scan
	statusTimeout  = time.Second            // for a follower to ask the leader
	aliveTimeout   = 300 * time.Millisecond // for a manager to show that it lives
	maxStabilize   = 30 * time.Second
	maxKeyBytes    = 200
	busyRetryMS    = 100
	leaderRetryMS  = 200
	forwardsAtOnce = 64 // connections to one manager or indexer
)

// Headers.
const (
	HeaderForwarded = "Tidemark-Forwarded"  // set on a forwarded request: it is not forwarded again
	HeaderKey       = "Idempotency-Key"     // of a write
	HeaderTimeout   = "Tidemark-Timeout-Ms" // the caller's patience
	HeaderCAS       = "Tidemark-Cas"        // of the state that was read
)

// Config joins the api to what it serves. All fields but Registry are required.
type Config struct {
	Name        string // of this manager
	REST        string // its base URL
	Expect      int    // --bootstrap-expect
	Raft        *consensus.Node
	Coordinator *coordinator.Coordinator
	Registry    *prometheus.Registry
	Logger      hclog.Logger
}

// API serves one manager.
type API struct {
	cfg   Config
	rpc   *rpc.Client
	now   func() time.Time
	scans *http.Client
}

// New makes it.
func New(cfg Config) *API {
	c := rpc.NewClient(forwardsAtOnce)
	return &API{cfg: cfg, rpc: c, scans: c.HTTP(), now: time.Now}
}

// Close drops idle connections.
func (a *API) Close() { a.rpc.Close() }

// route is one call.
type route struct {
	method, path string
	handle       func(w http.ResponseWriter, r *http.Request) error
	// leader: a follower forwards it. writes and what components send are always the leader's; reads unless stale.
	leader bool
	limit  time.Duration
}

func (a *API) routes() []route {
	return []route{
		{"POST", "/v1/statements", a.statements, true, WriteTimeout},
		{"POST", "/v1/indexes:build", a.build, true, WriteTimeout},
		{"POST", "/v1/indexes", a.create, true, WriteTimeout},
		{"GET", "/v1/indexes", a.list, true, ReadTimeout},
		{"POST", "/v1/indexes/{ref:.+}:scan", a.scan, false, ScanTimeout},
		{"POST", "/v1/indexes/{ref:.+}:count", a.scan, false, ScanTimeout},
		{"GET", "/v1/indexes/{ref:.+}", a.describe, true, ReadTimeout},
		{"DELETE", "/v1/indexes/{ref:.+}", a.drop, true, WriteTimeout},
		{"GET", "/v1/status", a.status, false, ReadTimeout},
		{"GET", "/v1/state", a.state, true, ReadTimeout},
		{"GET", "/v1/readindex", a.readIndex, true, ReadTimeout},
		{"GET", "/v1/bootstrap", a.bootstrap, false, ReadTimeout},
		{"POST", "/v1/cluster/managers", a.registerManager, true, WriteTimeout},
		{"POST", "/v1/cluster/indexers", a.registerIndexer, true, WriteTimeout},
		{"POST", "/v1/cluster/projectors", a.registerProjector, true, WriteTimeout},
		{"POST", "/v1/components/{id}/reports", a.report, true, ReadTimeout},
		{"POST", "/v1/buckets/{bucket}:stabilize", a.stabilize, true, maxStabilize + ReadTimeout},
		{"GET", "/healthz", a.healthz, false, ReadTimeout},
		{"GET", "/readyz", a.readyz, false, ReadTimeout},
	}
}

// Handler serves every call.
func (a *API) Handler() http.Handler {
	m := mux.NewRouter().UseEncodedPath()
	allowed := map[string][]string{}
	for _, rt := range a.routes() {
		allowed[rt.path] = append(allowed[rt.path], rt.method)
		m.Handle(rt.path, a.serve(rt)).Methods(rt.method)
	}
	m.Handle("/metrics", promhttp.HandlerFor(a.cfg.Registry, promhttp.HandlerOpts{})).Methods(http.MethodGet)
	for path, methods := range allowed { // any other method on these paths
		m.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			rpc.WriteProblem(w, rpc.NewProblem(http.StatusMethodNotAllowed, rpc.CodeMethod, "%s takes %s, not %s", r.URL.Path, strings.Join(methods, " or "), r.Method))
		})
	}
	m.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rpc.WriteProblem(w, rpc.NewProblem(http.StatusNotFound, rpc.CodeNotFound, "there is no %s; the calls are listed in docs/api.md", r.URL.Path))
	})
	return m
}

// serve bounds a call in time, sends it to the leader when it must go there, and writes its error.
func (a *API) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience(r, rt.limit))
		defer cancel()
		r = r.WithContext(ctx)
		_, serving := a.cfg.Raft.Serving()
		stale := rt.method == http.MethodGet && r.URL.Query().Get("consistency") == "stale"
		var err error
		switch {
		case !rt.leader || serving || stale:
			err = rt.handle(w, r)
		default:
			err = a.forward(w, r)
		}
		if err != nil {
			rpc.WriteProblem(w, a.problem(err))
		}
	})
}

// patience is how long the caller wants to wait, at most the call's own limit.
func patience(r *http.Request, limit time.Duration) time.Duration {
	if ms, err := time.ParseDuration(r.Header.Get(HeaderTimeout) + "ms"); err == nil && ms > 0 {
		return min(ms, limit)
	}
	return limit
}

// leaderOf finds the leader's REST address in the state.
func (a *API) leaderOf(s *statecontext.State) (wire.Leader, bool) {
	l := a.cfg.Raft.Leader()
	if !l.Known {
		return wire.Leader{}, false
	}
	if m := s.Manager(l.ID); m != nil && m.REST != "" {
		return wire.Leader{ID: m.Name, REST: m.REST, Term: a.cfg.Raft.Term()}, true
	}
	return wire.Leader{ID: l.ID}, false
}

// noLeader is the answer when nobody can be asked.
func noLeader(format string, args ...any) *rpc.Problem {
	p := rpc.NewProblem(http.StatusServiceUnavailable, rpc.CodeNoLeader, format, args...)
	p.RetryAfterMS = leaderRetryMS
	return p
}
