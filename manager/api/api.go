// Package api is the REST interface of every manager (gorilla/mux, JSON): DDL, listings, scans, status, and what
// components send to the leader. docs/api.md lists the calls and the codes.
//
// It promises that any node answers (a follower forwards, one hop), that a write is answered only when a majority has
// it, that a retry with the same Idempotency-Key gives the one outcome, that reads are linearizable unless the caller
// asks for ?consistency=stale, and that every error is problem JSON (RFC 9457) with a code. Bodies, pages and waits
// are limited. It decides nothing: the coordinator and the StateContext do.
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
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"tidemark/errcode"
	"tidemark/indexerclient"
	"tidemark/internal/config"
	"tidemark/internal/detector"
	"tidemark/internal/history"
	"tidemark/internal/rpc"
	tables "tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/manager/auth"
	"tidemark/manager/consensus"
	"tidemark/manager/coordinator"
	"tidemark/manager/watch"
	"tidemark/projectorclient"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Limits of time; v1.TimeoutOf tells clients those of their calls.
const (
	statusTimeout  = time.Second            // for a follower to ask the leader
	aliveTimeout   = 300 * time.Millisecond // for a manager to show that it lives
	maxStabilize   = 30 * time.Second
	maxKeyBytes    = 200
	busyRetryMS    = 100
	leaderRetryMS  = 200
	forwardsAtOnce = 64  // connections to one manager
	asksAtOnce     = 16  // connections to one manager, for short questions of one kind
	scansAtOnce    = 256 // scans that one manager passes on; users share these places out
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

// Config joins the api to what it serves. All fields but Registry, Tracer and Forward are required.
type Config struct {
	Name        string // of this manager
	REST        string // its base URL
	Expect      int    // --bootstrap-expect
	Raft        *consensus.Node
	Steward     *consensus.Steward
	JoinTimeout time.Duration // how long a manager waits to be taken in (that of Raft)
	Coordinator *coordinator.Coordinator
	Watch       *watch.Hub // run by the caller
	Registry    *prometheus.Registry
	TLS         *tlsconf.Source // of the calls to managers and indexers; nil without TLS
	Logger      hclog.Logger
	// Auth says who sends a request; nil lets everybody do everything.
	Auth *auth.Authenticator
	// Tickets are for clients that scan on the indexers' own ports; nil: they come by way of this manager.
	Tickets *auth.Tickets
	// Open: while there are no users, who shows no credentials is an administrator.
	Open bool
	// Audit takes a line for each write and each refusal because of who asks (Audited), from several goroutines; nil: none
	// is kept.
	Audit  io.Writer
	Tracer trace.Tracer // nil: no spans
}

// API serves one manager: it leads each call to the group of handlers that has it, here or at the leader.
type API struct {
	*access
	scans   *scans
	probes  *rpc.Client
	metrics metrics
	audit   audit
	// succession lets calls wait for the next leader.
	succession succession
	past       *history.Cluster // the last hour
	// foreign is the cluster of the node that was refused last.
	foreign atomic.Pointer[string]
}

// New makes it.
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

// over puts the groups that keep something on their ground.
func over(g *ground) *API {
	c := &currency{ground: g, began: time.Now(), asking: make(chan struct{}, 1)}
	a := &access{ground: g, currency: c}
	return &API{access: a, scans: &scans{access: a, places: rpc.NewPlaces(scansAtOnce, "scans")}}
}

// Close drops idle connections.
func (a *API) Close() {
	for _, c := range []*rpc.Client{a.rpc, a.readIndex, a.looks} {
		c.Close()
	}
	a.scans.alive.Close()
	a.probes.Close()
	a.scans.ways.Close()
	a.indexers.Close()
	a.projectors.Close()
}

// Role is what a caller must be allowed to do.
type Role string

// Roles, from nothing to all.
const (
	RoleNone      Role = "none"      // anybody: whether it lives, whether it can serve
	RoleMetrics   Role = "metrics"   // metrics
	RoleRead      Role = "read"      // listings, status, scans
	RoleDDL       Role = "ddl"       // changes of indexes
	RoleAdmin     Role = "admin"     // changes of the cluster
	RoleComponent Role = "component" // what managers, projectors and indexers say to each other
)

// route is one call. To add one: write the handler, and a route literal with its doc in the list of its group (as
// readRoutes); then see openapi.go.
type route struct {
	method string
	path   string
	handle func(w http.ResponseWriter, r *http.Request) error
	role   Role
	// leader: a follower forwards it, one hop. Writes and what components send are always the leader's; reads unless
	// they ask for ?consistency=stale.
	leader bool
	// again: done twice it is as if done once. Who asks without a key waits for the next leader, too, where the last one
	// took the call with it.
	again bool
	// handsOn: another manager may lead while the leader does it, and the leader answers all the same.
	handsOn bool
	// limit is the most time that the call takes; callers may want less (Tidemark-Timeout-Ms).
	limit time.Duration
	// places are taken by calls that are done here; nil: as many as come.
	places *rpc.Places
	// stream: the answer lasts as long as the client listens; limit does not hold, and the handler bounds each write.
	stream bool
	// lasts: it may take hours, more than a connection with TLS lives (rpc.Lasting).
	lasts bool
	// body is the most bytes of a body; 0: rpc.MaxUserBody.
	body int64
	// upload: the body may take nearly as long as the call, and is passed on as it comes, so that nobody who passes it on
	// can send it again.
	upload bool
	doc    operation
}

// often is 1 for what comes ten times a second from each component.
func (rt *route) often() int {
	if strings.HasPrefix(rt.path, "/v1/components/") {
		return 1
	}
	return 0
}

// component: what components send may be sent twice.
func (rt *route) component() bool { return rt.role == RoleComponent }

func (rt *route) maxBody() int64 { return cmp.Or(rt.body, rpc.MaxUserBody) }

// bodyTime is how long a body may take to come in, of a call that may take limit. An upload leaves a tenth of that for
// the rest: a body that is too slow must not look like a leader that is.
func (rt *route) bodyTime(limit time.Duration) time.Duration {
	if rt.upload {
		return limit - limit/10
	}
	return min(limit, tables.BodyTime)
}

// routes lists every call. Of two paths that match, the first one counts.
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

// RouteInfo is what a call needs, for tests.
type RouteInfo struct {
	Method, Path string // as the router has them
	Role         Role
	Leader       bool // the leader answers it
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

// router leads each call to what serve makes of its route.
func (a *API) router(serve func(route) http.Handler) http.Handler {
	m := tables.NewMux()
	routes := a.routes()
	slices.SortStableFunc(routes, func(a, b route) int { return b.often() - a.often() }) // they are tried in their order
	for _, rt := range routes {
		m.Handle(rt.method, rt.path, serve(rt))
	}
	return m.Handler("there is no %s; the calls are listed in docs/api.md")
}

// serve bounds a call in time, sends it to the leader when it must go there, writes its error, and logs writes.
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
		if here || outcome != outcomeOK { // what could not be passed on was answered here
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

// passedBy is the manager that has passed a request on, as far as its sender can be believed; "" for none.
func (a *API) passedBy(r *http.Request) string {
	if p, ok := tlsconf.PeerOfRequest(r); a.cfg.TLS != nil && (!ok || p.Role != tlsconf.Manager) {
		return ""
	}
	return r.Header.Get(HeaderForwarded)
}

// auditWrite notes a write.
func (a *API) auditWrite(r *http.Request, rt *route, status int, outcome string, began time.Time) {
	if now := a.now(); rt.audits() {
		a.audit.note(r, a.passedBy(r), Audited{Time: now.UTC(), Principal: rpc.Principal(r.Context()), Status: status,
			Outcome: outcome, TookMS: now.Sub(began).Milliseconds()})
	}
}

// refuse answers somebody who may not, says so in the log, and returns the code of the answer.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, name string, err error) string {
	p := a.problem(err)
	if p.Status == http.StatusUnauthorized && r.Header.Get(HeaderConsole) == "" { // a page asks by itself, not the browser
		w.Header().Set("WWW-Authenticate", `Basic realm="tidemark", Bearer realm="tidemark"`)
	}
	a.cfg.Logger.Info("refused", "request_id", rpc.RequestID(r.Context()), "route", name, "remote", r.RemoteAddr, "status",
		p.Status, "outcome", p.Code)
	a.audit.refused(r, a.passedBy(r), Audited{Time: a.now().UTC(), Status: p.Status, Outcome: string(p.Code),
		Detail: p.Detail})
	rpc.WriteProblem(w, p)
	return string(p.Code)
}

// outcomeOK is the outcome of a call that was not refused.
const outcomeOK = "OK"

// answer does a call here or at the leader, and returns which, and its outcome: the code it was refused with here, or
// OK.
func (a *API) answer(w http.ResponseWriter, r *http.Request, rt *route) (here bool, outcome string) {
	err := a.checkCluster(r)
	if err == nil {
		err = rt.checkQuery(r)
	}
	if err == nil {
		err = rt.checkHeaders(r)
	}
	if err == nil {
		here, err = a.untilLed(w, r, rt)
	}
	if err == nil {
		return here, outcomeOK
	}
	p := a.problem(err)
	rpc.WriteProblem(w, p)
	return here, string(p.Code)
}

// once does a call here or at who leads now, and returns which.
func (a *API) once(w http.ResponseWriter, r *http.Request, rt *route) (here bool, err error) {
	_, serving := a.cfg.Raft.Serving()
	stale := rt.method == http.MethodGet && r.URL.Query().Get("consistency") == "stale"
	w.Header().Del(rpc.HeaderLeader) // of an earlier try
	if leader, ok := a.leaderOf(a.cfg.Raft.State()); ok {
		w.Header().Set(rpc.HeaderLeader, leader.REST)
	}
	if !rt.leader || serving || stale {
		return true, rt.do(w, r)
	}
	return false, a.forward(w, r, rt)
}

// do does a call here, on a place of its own.
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

// logWrite says what came of a write: at level info where it was done, at debug where it was passed on.
func (a *API) logWrite(r *http.Request, name string, status int, outcome string, here bool, took time.Duration) {
	log, what := a.cfg.Logger.Debug, "write passed on"
	if here {
		log, what = a.cfg.Logger.Info, "write"
	}
	log(what, "request_id", rpc.RequestID(r.Context()), "principal", rpc.Principal(r.Context()), "route", name, "path",
		rpc.WithoutSecrets(r.URL.Path),
		"status", status, "outcome", outcome, "took", took, "from", r.Header.Get(HeaderForwarded))
}

// checkCluster refuses managers, projectors and indexers of another cluster, and says so in the log.
func (a *API) checkCluster(r *http.Request) error {
	theirs, own := r.Header.Get(rpc.HeaderCluster), a.cfg.Raft.ClusterID()
	if theirs == "" || own == "" || theirs == own {
		return nil
	}
	if last := a.foreign.Swap(&theirs); last == nil || *last != theirs { // once for as long as it is the same
		a.cfg.Logger.Warn("a node of another cluster was refused", "from", r.RemoteAddr, "cluster", theirs, "this", own,
			"call", r.Method+" "+rpc.WithoutSecrets(r.URL.Path))
	}
	return fmt.Errorf("%w: the caller is of cluster %.60s, manager %s is of cluster %s", wire.ErrForeignCluster, theirs,
		a.cfg.Name, own)
}

// checkQuery refuses parameters that the call's documentation does not name, and values that are none of those it
// takes. What components, load balancers and Prometheus ask is theirs.
func (rt *route) checkQuery(r *http.Request) error {
	if r.URL.RawQuery == "" || rt.component() || rt.role == RoleNone || rt.path == metricsPath {
		return nil
	}
	given, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return rpc.Refuse(errcode.BadRequest, "the query of %s cannot be read: %v", r.URL.Path, err)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		at := slices.IndexFunc(rt.doc.params, func(p param) bool { return p.name == name })
		if at < 0 {
			return rt.unknownParam(r, name)
		}
		if len(given[name]) > 1 {
			return rpc.Refuse(errcode.BadRequest, "%s is given %d times; %s %s takes it once", name, len(given[name]), r.Method,
				r.URL.Path)
		}
		if p := rt.doc.params[at]; len(p.enum) > 0 && !slices.Contains(p.enum, given.Get(name)) {
			return rpc.Refuse(errcode.BadRequest, "%s=%.40s: want %s", name, given.Get(name), strings.Join(p.enum, " or "))
		}
	}
	return nil
}

// checkHeaders refuses a header that says what a write depends on and is empty, as where a script's variable was, or
// there twice: it must not count as none. It refuses a body, too, that has to be unpacked.
func (rt *route) checkHeaders(r *http.Request) error {
	if how := r.Header.Get("Content-Encoding"); how != "" && !strings.EqualFold(how, "identity") {
		return rpc.Refuse(errcode.UnsupportedMediaType, "content encoding %.40q: send the body as it is", how)
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
			return rpc.Refuse(code, "the header %s is there %d times; send it once", name, len(given))
		}
		return rpc.Refuse(code, "the header %s is empty; leave it out, or give it a value", name)
	}
	return nil
}

func (rt *route) unknownParam(r *http.Request, name string) error {
	if len(rt.doc.params) == 0 {
		return rpc.Refuse(errcode.BadRequest, "unknown parameter %.40q; %s %s takes none in the query", name, r.Method,
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
	return rpc.Refuse(errcode.BadRequest, "unknown parameter %.40q%s; %s %s knows %s", name, meant, r.Method, r.URL.Path,
		strings.Join(known, ", "))
}

// patience is how long the caller wants to wait, at most the call's own limit.
func patience(r *http.Request, limit time.Duration) time.Duration {
	if ms, err := strconv.ParseInt(r.Header.Get(HeaderTimeout), 10, 64); err == nil && ms > 0 &&
		ms < limit.Milliseconds() {
		return time.Duration(ms) * time.Millisecond
	}
	return limit
}

// leaderOf finds the leader's REST address in the state.
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

// leaderless is the answer where no manager is known to lead: in an election it is over in a moment; else it says who
// has to come back.
func (g *ground) leaderless() *rpc.Problem {
	return noLeader("no leader is known at the moment, try again; %s", majorityText(g.voters()))
}

// voters names the managers that elect a leader, in brackets.
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

// noLeader is the answer when nobody can be asked.
func noLeader(format string, args ...any) *rpc.Problem {
	p := rpc.Refuse(errcode.NoLeader, format, args...)
	p.RetryAfterMS = leaderRetryMS
	return p
}
