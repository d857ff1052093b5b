// Package route provides the basis of every HTTP port: a table with, for each call, the roles that may make it, the
// limits of its body, its duration and its concurrency; and the server of such a table.
//
// It guarantees that all ports refuse requests in the same form, as problem JSON: an unknown path (404), an unknown
// method (405, with Allow), a missing permission (403), a body that is too large (413) or too slow (408), one call
// too many (503), and any error that a handler returns. It does not depend on the calls' contents. The calls common
// to all ports are here, too: health, metrics, and the metrics that every process has (process.go).
package route

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/wire"
)

// BodyTime is how long a body may take to arrive, so that it does not hold a place for long.
const BodyTime = 10 * time.Second

const (
	// healthTime limits the answer of liveness and readiness checks.
	healthTime = 5 * time.Second
	// scrapeTime limits the answer to Prometheus, which waits for 10 s by default.
	scrapeTime = 30 * time.Second
	// scrapesAtOnce is how many of these are made at a time, because some values are slow to read.
	scrapesAtOnce = 4
)

// Route is one call of a table.
type Route struct {
	Method string // GET includes HEAD; "" is any
	// Path begins with a slash, and is matched against the escaped path. {name} matches one segment, {name:regexp} what
	// the expression matches; a handler gets the unescaped value by PathValue.
	Path string
	Role Role
	Body int64 // limit of a body in bytes, which has BodyTime to arrive; 0: no body
	// Limit is the longest time of the call, including its body: its context ends then, upon which the handler must
	// return an error.
	Limit time.Duration
	// Stream is set if the answer lasts as long as the client listens; Limit does not apply, and the handler bounds each
	// write.
	Stream bool
	// Lasts is set if the call may take hours, longer than a TLS connection lives (rpc.Lasting).
	Lasts  bool
	Places *rpc.Places // limits concurrent calls; own, or shared with other routes; nil: no limit
	Handle rpc.HandlerFunc
}

// Table holds the calls of a port. Of two matching routes the first one is used; no route may occur twice.
type Table struct {
	Routes []Route
	Lacks  string // the error for other paths, with %s for the path
	// Fail answers with the error of a route; nil: rpc.WriteProblem.
	Fail func(w http.ResponseWriter, err error)
}

// Handler returns a handler for the calls of the table. It panics like Mux.Handle.
func (t *Table) Handler() http.Handler {
	fail := t.Fail
	if fail == nil {
		fail = rpc.WriteProblem
	}
	m := NewMux()
	for _, rt := range t.Routes {
		m.Handle(rt.Method, rt.Path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := rt.call(w, r); err != nil {
				fail(w, err)
			}
		}))
	}
	return m.Handler(t.Lacks)
}

// call makes a call within its limits. The body's begin first: it may arrive while the sender is being authenticated.
func (rt *Route) call(w http.ResponseWriter, r *http.Request) error {
	rpc.Bound(w, r, rt.Body, BodyTime)
	if err := rt.Role.admit(r); err != nil {
		return err
	}
	if rt.Lasts {
		var release func()
		r, release = rpc.Lasting(r)
		defer release()
	}
	ctx := r.Context()
	if !rt.Stream {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rt.Limit)
		defer cancel()
	}
	if rt.Role.For != nil {
		ctx = rpc.WithPrincipal(ctx, rt.Role.For(r))
	}
	if rt.Places != nil {
		who := rpc.Principal(ctx)
		if err := rt.Places.Enter(who); err != nil {
			return err
		}
		defer rt.Places.Leave(who)
	}
	return rt.Handle(w, r.WithContext(ctx))
}

// Alive returns the liveness check, open to anyone.
func Alive() Route {
	return Route{Method: http.MethodGet, Path: "/healthz", Role: Anybody(), Limit: healthTime,
		Handle: rpc.Show(func(context.Context) (wire.OK, error) { return wire.OK{}, nil })}
}

// Ready returns the readiness check, open to anyone: 200 if there are no reasons against it.
func Ready(reasons func() []rpc.Reason) Route {
	return Route{Method: http.MethodGet, Path: "/readyz", Role: Anybody(), Limit: healthTime,
		Handle: rpc.Show(func(context.Context) (ok wire.OK, err error) {
			if p := rpc.Unready(reasons()); p != nil {
				err = p
			}
			return ok, err
		})}
}

// Metrics returns the call that Prometheus scrapes. It has its own places: a scrape that waits for a blocked value
// takes none from other calls, and they cannot keep a scrape out.
func Metrics(who Role, h http.Handler) Route {
	return Route{Method: http.MethodGet, Path: "/metrics", Role: who, Limit: scrapeTime,
		Places: rpc.NewPlaces(scrapesAtOnce, "scrapes"), Handle: func(w http.ResponseWriter, r *http.Request) error {
			h.ServeHTTP(w, r)
			return nil
		}}
}

// Role determines which senders may make a call.
type Role struct {
	Name string // for documentation and errors
	// Check returns why a sender may not make the call: a *rpc.Problem, else it becomes FORBIDDEN; a nil Check permits
	// everyone.
	Check func(r *http.Request) error
	// For returns the principal of the sender, which the places count; nil, or "": unknown.
	For func(r *http.Request) string
}

// Anybody permits every sender that reaches the port.
func Anybody() Role { return Role{Name: "anybody"} }

// Only permits senders with a certificate of one of these roles; on a port without TLS, which is on loopback,
// everyone.
func Only(roles ...tlsconf.Role) Role {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return Role{Name: strings.Join(names, ", "), Check: tlsconf.Only(roles...)}
}

// Certified permits senders with a certificate of any role; on a port without TLS everyone.
func Certified() Role {
	return Role{Name: "any certificate", Check: tlsconf.Only(tlsconf.Roles()...)}
}

// Readers permits reading metrics with a certificate of any role, or with a token, which orToken checks (that of
// managerclient.Client).
func Readers(orToken func(check func(r *http.Request) error) func(r *http.Request) error) Role {
	o := Certified()
	return Role{Name: o.Name + ", or a token of role metrics", Check: orToken(o.Check)}
}

// admit rejects senders without permission, and requests from pages of another site.
func (o *Role) admit(r *http.Request) error {
	err := rpc.CheckOrigin(r)
	if err == nil && o.Check != nil {
		err = o.Check(r)
	}
	if err == nil {
		return nil
	}
	if p, ok := err.(*rpc.Problem); ok { //nolint:errorlint // an error that wraps a Problem has more text than it
		return p
	}
	return rpc.Refuse(errcode.Forbidden, "%s: %v", r.URL.Path, err)
}

// Mux routes requests to handlers, by path and method. A path is matched as the client sent it, including "." and
// "..".
type Mux struct {
	router  *mux.Router
	paths   []string // in order of registration
	methods map[string][]string
}

// NewMux returns an empty Mux.
func NewMux() *Mux {
	return &Mux{router: mux.NewRouter().UseEncodedPath().SkipClean(true), methods: map[string][]string{}}
}

// Handle adds a handler; of two matching ones the first one is used. See Route for method and path. Like
// http.ServeMux it panics if the path is invalid, or registered with the method already: the router would silently
// ignore the handler.
func (m *Mux) Handle(method, path string, h http.Handler) {
	at := m.router.Handle(path, values(h))
	if err := at.GetError(); err != nil {
		panic(fmt.Sprintf("route %s %q: %v", method, path, err))
	}
	if has := m.methods[path]; slices.Contains(has, method) || slices.Contains(has, "") {
		panic(fmt.Sprintf("route %s %q is there already", method, path))
	}
	if method == "" {
		m.methods[path] = append(m.methods[path], method)
		return
	}
	methods := []string{method}
	if method == http.MethodGet {
		methods = append(methods, http.MethodHead)
	}
	at.Methods(methods...)
	if m.methods[path] == nil {
		m.paths = append(m.paths, path)
	}
	m.methods[path] = append(m.methods[path], methods...)
}

// Handler returns a handler for all registered calls; lacks is the error for other paths, with %s for the path.
func (m *Mux) Handler(lacks string) http.Handler {
	for _, path := range m.paths {
		methods := slices.Compact(slices.Sorted(slices.Values(m.methods[path])))
		m.router.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			rpc.WriteProblem(w, rpc.Refuse(errcode.MethodNotAllowed, "%s accepts %s, not %s", r.URL.Path,
				strings.Join(methods, " or "), r.Method))
		})
	}
	m.router.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rpc.WriteProblem(w, rpc.Refuse(errcode.NotFound, lacks, r.URL.Path))
	})
	return m.router
}

// values makes the variables of the path available by PathValue, decoded.
func values(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range mux.Vars(r) {
			if plain, err := url.PathUnescape(value); err == nil { // always: net/http has parsed it
				value = plain
			}
			r.SetPathValue(name, value)
		}
		h.ServeHTTP(w, r)
	})
}
