// Package api is the REST interface of every manager (gorilla/mux, JSON): DDL, listings, scans, status, and the
// messages of components to the leader. docs/api.md lists the calls and the codes.
//
// It guarantees that any node answers (a follower forwards, one hop), that a write is answered only when a majority
// has it, that a retry with the same Idempotency-Key has the one outcome, that reads are linearizable unless the
// caller requests ?consistency=stale, and that every error is problem JSON (RFC 9457) with a code. Bodies, pages and
// waits are limited. It decides nothing: the coordinator and the StateContext do.
package api

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"tidemark/errcode"
	"tidemark/indexerclient"
	"tidemark/internal/config"
	"tidemark/internal/detector"
	"tidemark/internal/history"
	"tidemark/internal/loglimit"
	"tidemark/internal/rpc"
	tables "tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api/v1"
	"tidemark/manager/auth"
	"tidemark/manager/consensus"
	"tidemark/manager/coordinator"
	"tidemark/manager/watch"
	"tidemark/projectorclient"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Timeouts; v1.TimeoutOf returns those of clients' calls.
const (
	statusTimeout  = time.Second            // for a follower's request to the leader
	aliveTimeout   = 300 * time.Millisecond // for a manager to show that it is alive
	maxStabilize   = 30 * time.Second
	maxKeyBytes    = 200
	busyRetryMS    = 100
	leaderRetryMS  = 200
	forwardsAtOnce = 64  // connections to one manager
	asksAtOnce     = 16  // connections to one manager, for short requests of one kind
	scansAtOnce    = 256 // scans that one manager passes on, shared among users
	retryAfterMS   = 1000
)

// Headers.
const (
	HeaderForwarded = "Tidemark-Forwarded"  // set on a forwarded request, which is not forwarded again
	HeaderKey       = "Idempotency-Key"     // of a write
	HeaderTimeout   = "Tidemark-Timeout-Ms" // how long the caller waits
	HeaderCAS       = "Tidemark-Cas"        // of the state that was read
	HeaderAge       = "Tidemark-Age-Ms"     // of a stale read: since the last contact with the leader
)

// Config configures an API. Registry, TLS, Auth, Tickets, Audit and Tracer may be nil; the other fields are required.
type Config struct {
	Name        string // of this manager
	REST        string // its base URL
	Host        string // the host that it listens on; a name is its own, too
	Expect      int    // --bootstrap-expect
	Raft        *consensus.Node
	Steward     *consensus.Steward
	JoinTimeout time.Duration // how long a manager waits to be admitted (as configured for Raft)
	Coordinator *coordinator.Coordinator
	Watch       *watch.Hub // run by the caller
	Registry    *prometheus.Registry
	TLS         *tlsconf.Source // for calls to managers and indexers; nil without TLS
	Logger      hclog.Logger
	// Auth authenticates the senders of requests; nil allows every caller everything.
	Auth *auth.Authenticator
	// Tickets issues tickets for scans on the indexers' own ports; nil: clients scan through this manager.
	Tickets *auth.Tickets
	// Open makes callers without credentials administrators while there are no users; FirstUser is set if the leader adds
	// one then.
	Open, FirstUser bool
	// Audit receives a line for each write, and for each request refused because of its sender (Audited), from several
	// goroutines; nil: there is no audit log.
	Audit  io.Writer
	Tracer trace.Tracer // nil: no spans
}

// API serves one manager: it routes each call to its group of handlers, here or at the leader.
type API struct {
	*access
	scans   *scans
	probes  *rpc.Client
	metrics metrics
	audit   audit
	// succession makes calls wait for the next leader.
	succession succession
	managers   *managerStatuses // whether anything can be stored
	past       *history.Cluster // statistics of the last hour
	refused    refusals
}

// refusals limits the log lines of refused requests: anyone can cause them, see package loglimit.
type refusals struct {
	mu    sync.Mutex
	lines loglimit.Limiter
}

func (r *refusals) due(message, addr string, now time.Time) (leftOut int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines.Due(message, addr, now)
}

// New returns an API.
func New(cfg Config) *API {
	probes := rpc.NewClient(probesAtOnce, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Indexer))
	alive := detector.New(detector.HTTP(probes.HTTP(), func(addr string) string {
		return cfg.TLS.BaseURL(addr) + "/healthz"
	}))
	g := &ground{cfg: cfg, now: time.Now, limiting: make(chan struct{}, 1),
		rpc:        rpc.NewClient(forwardsAtOnce, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Manager)),
		fresh:      rpc.NewFreshClient(forwardsAtOnce, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Manager)),
		readIndex:  rpc.NewClient(asksAtOnce, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Manager)),
		looks:      rpc.NewClient(asksAtOnce, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Manager)),
		indexers:   indexerclient.New(forwardsAtOnce, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Indexer)),
		projectors: projectorclient.New(forwardsAtOnce, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Projector))}
	a := over(g)
	a.probes, a.succession = probes, newSuccession(cfg.Raft)
	a.scans.alive, a.scans.ways = alive, rpc.NewClient(scansAtOnce, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Indexer))
	a.metrics = newMetrics(cfg.Registry)
	a.audit = audit{to: cfg.Audit, manager: cfg.Name, log: cfg.Logger, failed: a.metrics.unaudited.Inc}
	a.past = history.NewCluster(a.began)
	return a
}

// over returns the groups of handlers that have state of their own.
func over(g *ground) *API {
	c := &currency{ground: g, began: time.Now(), asking: make(chan struct{}, 1)}
	a := &access{ground: g, currency: c}
	statuses := newManagerStatuses(func(ctx context.Context) []v1.ManagerStatus {
		var st v1.Status
		health{g, c}.addManagers(ctx, g.cfg.Raft.State(), &st)
		return st.Managers
	})
	return &API{access: a, managers: statuses, scans: &scans{access: a, places: rpc.NewPlaces(scansAtOnce, "scans")}}
}

// Close closes idle connections, and ends what is asked in the background.
func (a *API) Close() {
	a.managers.close()
	for _, c := range []*rpc.Client{a.rpc, a.readIndex, a.looks} {
		c.Close()
	}
	a.scans.alive.Close()
	a.probes.Close()
	a.scans.ways.Close()
	a.indexers.Close()
	a.projectors.Close()
}

// Role is the permission that a call requires.
type Role string

// Roles, from no permission to all.
const (
	RoleNone      Role = "none"      // anyone: liveness and readiness
	RoleMetrics   Role = "metrics"   // metrics
	RoleRead      Role = "read"      // listings, status, scans
	RoleDDL       Role = "ddl"       // changes of indexes
	RoleAdmin     Role = "admin"     // changes of the cluster
	RoleComponent Role = "component" // messages between managers, projectors and indexers
)

// route is one call. To add one: write the handler, and a route literal with its doc in the list of its group (as in
// readRoutes); then see openapi.go.
type route struct {
	method string
	path   string
	handle func(w http.ResponseWriter, r *http.Request) error
	role   Role
	// leader is set if a follower forwards the call, one hop. The leader always serves writes and messages of
	// components, and reads without ?consistency=stale.
	leader bool
	// again is set if the call is idempotent. A caller without an Idempotency-Key then waits for the next leader even if
	// the last one may have executed the call.
	again bool
	// handsOn is set if leadership may move during the call, and the old leader still answers it.
	handsOn bool
	// limit is the longest time that the call may take; callers may want less (Tidemark-Timeout-Ms).
	limit time.Duration
	// places limits concurrent calls served here; nil: no limit.
	places *rpc.Places
	// stream is set if the answer lasts as long as the client listens; limit does not apply, and the handler bounds each
	// write.
	stream bool
	// lasts is set if it may take hours, longer than a TLS connection lives (rpc.Lasting).
	lasts bool
	// body is the limit of a body in bytes; 0: rpc.MaxUserBody.
	body int64
	// upload is set if the body may take nearly as long as the call. It is forwarded while it arrives, so that a
	// forwarding manager cannot send it again.
	upload bool
	doc    operation
}

// often returns 1 for calls that each component makes ten times a second.
func (rt *route) often() int {
	if strings.HasPrefix(rt.path, "/v1/components/") {
		return 1
	}
	return 0
}

// component reports whether components make the call; they may repeat it.
func (rt *route) component() bool { return rt.role == RoleComponent }

func (rt *route) maxBody() int64 { return cmp.Or(rt.body, rpc.MaxUserBody) }

// bodyTime returns how long the body of a call may take to arrive. An upload leaves a tenth of limit for the rest: a
// slow body must not look like a slow leader.
func (rt *route) bodyTime(limit time.Duration) time.Duration {
	if rt.upload {
		return limit - limit/10
	}
	return min(limit, tables.BodyTime)
}

// routes returns every call. Of two matching paths, the first one is used.
func (a *API) routes() []route {
	g := a.ground
	h, m := health{g, a.currency}, members{g}
	return slices.Concat(users{g}.userRoutes(), sessions{a.access}.sessionRoutes(), a.scans.scanRoutes(),
		statements{g}.ddlRoutes(), statements{g}.patchRoutes(), indexes{g}.readRoutes(), h.nodeRoutes(),
		backups{g}.clusterRoutes(), rebalances{g}.rebalanceRoutes(), m.memberRoutes(),
		components{a.access, m}.componentRoutes(), g.errorRoutes(), events{a.access}.watchRoutes(),
		views{g}.viewRoutes(), stats{g}.statsRoutes(), logs{g}.loggingRoutes(), running{g}.runningRoutes(),
		a.historyRoutes())
}

// RouteInfo describes the requirements of a call, for tests.
type RouteInfo struct {
	Method, Path string // as registered with the router
	Role         Role
	Leader       bool // the leader serves it
}

// Routes lists every call.
func (a *API) Routes() (list []RouteInfo) {
	for _, rt := range a.routes() {
		list = append(list, RouteInfo{Method: rt.method, Path: rt.path, Role: rt.role, Leader: rt.leader})
	}
	return list
}

// Handler serves every call.
func (a *API) Handler() http.Handler { return a.router(a.serve) }

// router routes each call to the handler that serve returns for it.
func (a *API) router(serve func(route) http.Handler) http.Handler {
	m := tables.NewMux()
	routes := a.routes()
	slices.SortStableFunc(routes, func(a, b route) int { return b.often() - a.often() }) // the router tries them in order
	for _, rt := range routes {
		m.Handle(rt.method, rt.path, serve(rt))
	}
	return m.Handler("the API has no call %s; docs/api.md lists the calls")
}

// serve returns a handler that authenticates a call, limits its time, answers it here or at the leader, writes its
// error, and logs writes.
func (a *API) serve(rt route) http.Handler {
	name := rt.method + " " + rt.path
	write := rt.method != http.MethodGet && (rt.role == RoleDDL || rt.role == RoleAdmin)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit := patience(r, rt.limit)
		rpc.Bound(w, r, rt.maxBody(), rt.bodyTime(limit))
		if rt.lasts {
			var release func()
			r, release = rpc.Lasting(r)
			defer release()
		}
		if !rt.stream {
			ctx, cancel := context.WithTimeout(r.Context(), limit)
			defer cancel()
			r = r.WithContext(ctx)
		}
		kept := &rpc.Keeper{ResponseWriter: w, Status: http.StatusOK}
		if a.cfg.Tracer != nil {
			var span trace.Span
			r, span = rpc.ServerSpan(a.cfg.Tracer, r, name)
			defer func() { rpc.EndServerSpan(span, kept.Status) }()
			w = kept
		}
		r, err := a.authorize(r, &rt)
		if err != nil {
			a.metrics.request(name, a.refuse(w, r, name, err))
			return
		}
		began := a.now()
		if write || rt.audits() {
			w = kept
		}
		here, outcome := a.answer(w, r, &rt)
		if here || outcome != outcomeOK { // if forwarding failed it was answered here
			a.metrics.request(name, outcome)
			a.auditWrite(r, &rt, kept.Status, outcome, began)
		} else {
			a.auditWrite(r, &rt, kept.Status, auditPassedOn, began)
		}
		if write {
			took := a.now().Sub(began)
			if here {
				a.metrics.write(name, took)
				a.noteChange(r, &rt, outcome, began, took)
			}
			a.logWrite(r, name, kept.Status, outcome, here, took)
		}
	})
}

// passedBy returns the manager that has forwarded a request, if that is certain; "" for none.
func (a *API) passedBy(r *http.Request) string {
	if p, ok := tlsconf.PeerOfRequest(r); a.cfg.TLS != nil && (!ok || p.Role != tlsconf.Manager) {
		return ""
	}
	return r.Header.Get(HeaderForwarded)
}

// auditWrite records a write in the audit log.
func (a *API) auditWrite(r *http.Request, rt *route, status int, outcome string, began time.Time) {
	if now := a.now(); rt.audits() {
		a.audit.note(r, a.passedBy(r), Audited{Time: now.UTC(), Principal: rpc.Principal(r.Context()), Status: status,
			Outcome: outcome, TookMS: now.Sub(began).Milliseconds()})
	}
}

// refuse answers a request that is not permitted, and returns the code of the answer. The log has a line a minute for
// each code and sending host; the metrics count all refusals.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, name string, err error) string {
	p := a.problem(err)
	if p.Status == http.StatusUnauthorized && r.Header.Get(HeaderConsole) == "" { // the console shows its own login form
		w.Header().Set("WWW-Authenticate", `Basic realm="tidemark", Bearer realm="tidemark"`)
	}
	if leftOut, due := a.refused.due(string(p.Code), r.RemoteAddr, a.now()); due {
		a.cfg.Logger.Info("refused", "request_id", rpc.RequestID(r.Context()), "route", name, "remote", r.RemoteAddr,
			"status", p.Status, "outcome", p.Code, "left_out", leftOut)
	}
	a.audit.refused(r, a.passedBy(r), Audited{Time: a.now().UTC(), Status: p.Status, Outcome: string(p.Code),
		Detail: p.Detail})
	rpc.WriteProblem(w, p)
	return string(p.Code)
}

// outcomeOK is the outcome of a call that was not refused.
const outcomeOK = "OK"

// answer answers a call here or at the leader, and returns where, and the outcome: the code with which it was refused
// here, or OK.
func (a *API) answer(w http.ResponseWriter, r *http.Request, rt *route) (here bool, outcome string) {
	err := a.checkCluster(r, a.cfg.Raft.ClusterID())
	if err == nil {
		err = rt.checkQuery(r)
	}
	if err == nil {
		err = rt.checkHeaders(r)
	}
	if err == nil {
		here, err = a.attempt(w, r, rt)
	}
	if err == nil {
		return here, outcomeOK
	}
	p := a.problem(err)
	rpc.WriteProblem(w, p)
	return here, string(p.Code)
}

// once answers a call here or at the present leader, and reports whether here.
func (a *API) once(w http.ResponseWriter, r *http.Request, rt *route) (here bool, err error) {
	_, serving := a.cfg.Raft.Serving()
	stale := rt.method == http.MethodGet && r.URL.Query().Get("consistency") == "stale"
	w.Header().Del(rpc.HeaderLeader) // of an earlier attempt
	if leader, ok := a.leaderOf(a.cfg.Raft.State()); ok {
		w.Header().Set(rpc.HeaderLeader, leader.REST)
	}
	if !rt.leader || serving || stale {
		return true, rt.do(w, r)
	}
	return false, a.forward(w, r, rt)
}

// do serves a call here, within the limit of places.
func (rt *route) do(w http.ResponseWriter, r *http.Request) error {
	if rt.places != nil {
		who := rpc.Principal(r.Context())
		if err := rt.places.Enter(who); err != nil {
			return err
		}
		defer rt.places.Leave(who)
	}
	return rt.handle(w, r)
}

// logWrite logs the outcome of a write: at level info if it was executed here, at debug if it was forwarded.
func (a *API) logWrite(r *http.Request, name string, status int, outcome string, here bool, took time.Duration) {
	log, what := a.cfg.Logger.Debug, "write passed on"
	if here {
		log, what = a.cfg.Logger.Info, "write"
	}
	log(what, "request_id", rpc.RequestID(r.Context()), "principal", rpc.Principal(r.Context()), "route", name, "path",
		rpc.WithoutSecrets(r.URL.Path),
		"status", status, "outcome", outcome, "took", took, "from", r.Header.Get(HeaderForwarded))
}

// checkCluster rejects managers, projectors and indexers of another cluster than own. The log has a line a minute for
// each host that has such nodes, whatever clusters they belong to. own is an argument because a test
// of that then needs no cluster.
func (a *API) checkCluster(r *http.Request, own string) error {
	theirs := r.Header.Get(rpc.HeaderCluster)
	if theirs == "" || own == "" || theirs == own {
		return nil
	}
	if leftOut, due := a.refused.due("of another cluster", r.RemoteAddr, a.now()); due {
		a.cfg.Logger.Warn("a request from a node of another cluster was refused", "from", r.RemoteAddr, "cluster", theirs,
			"this", own, "call", r.Method+" "+rpc.WithoutSecrets(r.URL.Path), "left_out", leftOut)
	}
	return fmt.Errorf("%w: the caller belongs to cluster %.60s, manager %s to cluster %s", wire.ErrForeignCluster, theirs,
		a.cfg.Name, own)
}

// checkQuery rejects undocumented parameters, and undocumented values of enumerations. It ignores the queries of
// components, load balancers and Prometheus.
func (rt *route) checkQuery(r *http.Request) error {
	if r.URL.RawQuery == "" || rt.component() || rt.role == RoleNone || rt.path == metricsPath {
		return nil
	}
	given, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return rpc.Refuse(errcode.BadRequest, "the query of %s is malformed: %v", r.URL.Path, err)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		at := slices.IndexFunc(rt.doc.params, func(p param) bool { return p.name == name })
		if at < 0 {
			return rt.unknownParam(r, name)
		}
		if len(given[name]) > 1 {
			return rpc.Refuse(errcode.BadRequest, "parameter %s is given %d times; %s %s accepts it "+
				"once", name, len(given[name]), r.Method,
				r.URL.Path)
		}
		if p := rt.doc.params[at]; len(p.enum) > 0 && !slices.Contains(p.enum, given.Get(name)) {
			return rpc.Refuse(errcode.BadRequest, "%s=%.40s: want %s", name, given.Get(name), strings.Join(p.enum, " or "))
		}
	}
	return nil
}

// checkHeaders rejects a header that a write depends on if it is empty, as with an unset variable in a script, or
// repeated: it must not be treated as absent. It also rejects a compressed body.
func (rt *route) checkHeaders(r *http.Request) error {
	if how := r.Header.Get("Content-Encoding"); how != "" && !strings.EqualFold(how, "identity") {
		return rpc.Refuse(errcode.UnsupportedMediaType, "content encoding %.40q is not supported: send the body without "+
			"encoding", how)
	}
	for _, name := range []string{HeaderKey, headerIfMatch} {
		given := r.Header.Values(name)
		if len(given) == 0 || len(given) == 1 && given[0] != "" || !slices.Contains(rt.doc.headers, name) {
			continue
		}
		code := errcode.BadRequest
		if name == HeaderKey {
			code = errcode.BadIdempotencyKey
		}
		if len(given) > 1 {
			return rpc.Refuse(code, "the header %s is given %d times; send it once", name, len(given))
		}
		return rpc.Refuse(code, "the header %s is empty; omit it, or give it a value", name)
	}
	return nil
}

func (rt *route) unknownParam(r *http.Request, name string) error {
	if len(rt.doc.params) == 0 {
		return rpc.Refuse(errcode.BadRequest, "unknown parameter %.40q; %s %s has no query parameters", name, r.Method,
			r.URL.Path)
	}
	known := make([]string, len(rt.doc.params))
	for i, p := range rt.doc.params {
		known[i] = p.name
	}
	meant := ""
	if like := config.Nearest(name, known); like != "" {
		meant = "; did you mean " + like + "?"
	}
	return rpc.Refuse(errcode.BadRequest, "unknown parameter %.40q%s; %s %s accepts %s", name, meant, r.Method, r.URL.Path,
		strings.Join(known, ", "))
}

// patience returns how long the caller wants to wait, at most the call's own limit.
func patience(r *http.Request, limit time.Duration) time.Duration {
	if ms, err := strconv.ParseInt(r.Header.Get(HeaderTimeout), 10, 64); err == nil && ms > 0 &&
		ms < limit.Milliseconds() {
		return time.Duration(ms) * time.Millisecond
	}
	return limit
}

// leaderOf returns the leader with its REST address from the state.
func (g *ground) leaderOf(s *statecontext.State) (wire.Leader, bool) {
	l := g.cfg.Raft.Leader()
	if !l.Known {
		return wire.Leader{}, false
	}
	if m := s.Manager(l.ID); m != nil && m.REST != "" {
		return wire.Leader{ID: m.Name, REST: m.REST, Term: g.cfg.Raft.Term()}, true
	}
	return wire.Leader{ID: l.ID}, false
}

// inNoCluster reports whether this manager belongs to no cluster yet: it has neither members in its log nor a state.
func (g *ground) inNoCluster() bool {
	servers, err := g.cfg.Raft.Servers()
	return (err != nil || len(servers) == 0) && g.cfg.Raft.State().ClusterID() == ""
}

// leaderless returns the error while no leader is known: an election is over in a moment; otherwise the text names
// the managers that must come back. A manager that is in no cluster yet has lost none.
func (g *ground) leaderless() *rpc.Problem {
	if g.inNoCluster() {
		return noLeader("%s", inNoClusterText)
	}
	return noLeader("this manager knows no leader at the moment, try again; %s", majorityText(g.voters()))
}

// voters returns the names of the voting managers, in brackets.
func (g *ground) voters() string {
	servers, err := g.cfg.Raft.Servers()
	if err != nil {
		return ""
	}
	var names []string
	for _, v := range servers {
		if v.Voter {
			name := v.ID
			if m := g.cfg.Raft.State().Manager(v.ID); m != nil {
				name = m.Name + " at " + m.REST
			}
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return " (" + strings.Join(names, ", ") + ")"
}

// noLeader returns the error when no leader can be asked.
func noLeader(format string, args ...any) *rpc.Problem {
	p := rpc.Refuse(errcode.NoLeader, format, args...)
	p.RetryAfterMS = leaderRetryMS
	return p
}
