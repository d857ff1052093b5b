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
	"strconv"
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
	forwardsAtOnce = 64  // connections to one manager
	scansAtOnce    = 256 // scans that one manager passes on
	retryAfterMS   = 1000
)

// Headers.
const (
	HeaderForwarded = "Tidemark-Forwarded"  // set on a forwarded request: it is not forwarded again
	HeaderKey       = "Idempotency-Key"     // of a write
	HeaderTimeout   = "Tidemark-Timeout-Ms" // the caller's patience
	HeaderCAS       = "Tidemark-Cas"        // of the state that was read
	HeaderAge       = "Tidemark-Age-Ms"     // of a stale read: since the leader was last heard of
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
	cfg    Config
	rpc    *rpc.Client
	now    func() time.Time
	scans  *rpc.Client
	places chan struct{} // one for each scan that is passed on
}

// New makes it.
func New(cfg Config) *API {
	return &API{cfg: cfg, rpc: rpc.NewClient(forwardsAtOnce), scans: rpc.NewClient(scansAtOnce), now: time.Now,
		places: make(chan struct{}, scansAtOnce)}
}

// Close drops idle connections.
func (a *API) Close() {
	a.rpc.Close()
	a.scans.Close()
}

// route is one call.
type route struct {
	method, path string
	handle       func(w http.ResponseWriter, r *http.Request) error
	// leader: a follower forwards it. writes and what components send are always the leader's; reads unless stale.
	leader bool
	limit  time.Duration
	// component: what components send. It may be sent twice, and its body is bounded by rpc.MaxControlBody instead of
	// rpc.MaxUserBody.
	component bool
}

func (rt *route) maxBody() int64 {
	if rt.component {
		return rpc.MaxControlBody
	}
	return rpc.MaxUserBody
}

func (a *API) routes() []route {
	return []route{
		{"POST", "/v1/statements", a.statements, true, WriteTimeout, false},
		{"POST", "/v1/indexes:build", a.build, true, WriteTimeout, false},
		{"POST", "/v1/indexes", a.create, true, WriteTimeout, false},
		{"GET", "/v1/indexes", a.list, true, ReadTimeout, false},
		{"POST", "/v1/indexes/{ref:.+}:scan", a.scan, false, ScanTimeout, false},
		{"POST", "/v1/indexes/{ref:.+}:count", a.scan, false, ScanTimeout, false},
		{"GET", "/v1/indexes/{ref:.+}", a.describe, true, ReadTimeout, false},
		{"DELETE", "/v1/indexes/{ref:.+}", a.drop, true, WriteTimeout, false},
		{"GET", "/v1/status", a.status, false, ReadTimeout, false},
		{"GET", "/v1/state", a.state, true, ReadTimeout, false},
		{"GET", "/v1/readindex", a.readIndex, true, ReadTimeout, false},
		{"GET", "/v1/bootstrap", a.bootstrap, false, ReadTimeout, false},
		{"POST", "/v1/cluster/managers", a.registerManager, true, WriteTimeout, true},
		{"POST", "/v1/cluster/indexers", a.registerIndexer, true, WriteTimeout, true},
		{"POST", "/v1/cluster/projectors", a.registerProjector, true, WriteTimeout, true},
		{"POST", "/v1/components/{id}/reports", a.report, true, ReadTimeout, true},
		{"POST", "/v1/buckets/{bucket}:stabilize", a.stabilize, true, maxStabilize + ReadTimeout, true},
		{"GET", "/healthz", a.healthz, false, ReadTimeout, false},
		{"GET", "/readyz", a.readyz, false, ReadTimeout, false},
	}
}

// Handler serves every call.
func (a *API) Handler() http.Handler {
	m := mux.NewRouter().UseEncodedPath().SkipClean(true) // a path is what the client wrote, "." and ".." included
	routes := a.routes()
	metrics := promhttp.HandlerFor(a.cfg.Registry, promhttp.HandlerOpts{})
	routes = append(routes, route{"GET", "/metrics", func(w http.ResponseWriter, r *http.Request) error {
		metrics.ServeHTTP(w, r)
		return nil
	}, false, ReadTimeout, false})
	allowed := map[string][]string{}
	for _, rt := range routes {
		methods := []string{rt.method}
		if rt.method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
		allowed[rt.path] = append(allowed[rt.path], methods...)
		m.Handle(rt.path, a.serve(rt)).Methods(methods...)
	}
	for _, rt := range routes { // any other method on these paths, in their order
		if methods := allowed[rt.path]; methods != nil {
			m.HandleFunc(rt.path, wrongMethod(methods))
			delete(allowed, rt.path)
		}
	}
	m.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rpc.WriteProblem(w, rpc.NewProblem(http.StatusNotFound, rpc.CodeNotFound, "there is no %s; the calls are listed in docs/api.md", r.URL.Path))
	})
	return m
}

func wrongMethod(methods []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		rpc.WriteProblem(w, rpc.NewProblem(http.StatusMethodNotAllowed, rpc.CodeMethod, "%s takes %s, not %s", r.URL.Path, strings.Join(methods, " or "), r.Method))
	}
}

// serve bounds a call in time, sends it to the leader when it must go there, and writes its error.
func (a *API) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience(r, rt.limit))
		defer cancel()
		r = r.WithContext(ctx)
		_, serving := a.cfg.Raft.Serving()
		stale := rt.method == http.MethodGet && r.URL.Query().Get("consistency") == "stale"
		if leader, ok := a.leaderOf(a.cfg.Raft.State()); ok {
			w.Header().Set(rpc.HeaderLeader, leader.REST)
		}
		var err error
		switch {
		case !rt.leader || serving || stale:
			err = rt.handle(w, r)
		default:
			err = a.forward(w, r, &rt)
		}
		if err != nil {
			rpc.WriteProblem(w, a.problem(err))
		}
	})
}

// patience is how long the caller wants to wait, at most the call's own limit.
func patience(r *http.Request, limit time.Duration) time.Duration {
	if ms, err := strconv.ParseInt(r.Header.Get(HeaderTimeout), 10, 64); err == nil && ms > 0 && ms < limit.Milliseconds() {
		return time.Duration(ms) * time.Millisecond
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
