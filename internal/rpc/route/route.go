// Package route is what every HTTP port is made of: a table that says of each call who may make it, how many bytes it
// takes, how long it may take and how many of it are under way at a time; and the server of such a table.
//
// It promises that what a table refuses is refused in the same words on every port, as problem JSON: a path that is in
// no row (404), another method (405, with Allow), somebody else (403), a body that is too large (413) or does not come
// (408), one call too many (503), and whatever error a handler returns. It knows nothing of what is asked. What every
// port shows alike is here, too: its health, its metrics and the end of its certificate.
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

// BodyTime is how long a body may take to come in: it must not hold a place for long.
const BodyTime = 10 * time.Second

const (
	// healthTime is for the answer to whether a process lives, or is ready.
	healthTime = 5 * time.Second
	// scrapeTime is for an answer to Prometheus, which waits for 10 s unless it is told otherwise.
	scrapeTime = 30 * time.Second
	// scrapesAtOnce is how many of these are made at a time, for all that is slow to read.
	scrapesAtOnce = 4
)

// Route is one call of a table.
type Route struct {
	Method string // GET is HEAD, too; "" is any
	// Path begins with a slash, and is held against what the client has sent, escapes and all. {name} is one part of it,
	// {name:regexp} what the expression takes; a handler gets it unescaped, by PathValue.
	Path string
	Role Role
	Body int64 // the most bytes of a body, which has BodyTime to come in; 0: no byte is taken
	// Limit is the most time that the call takes, its body included: its context ends then, at which the handler ends
	// with an error.
	Limit time.Duration
	// Stream: the answer lasts for as long as somebody listens; Limit does not hold, and the handler bounds each write.
	Stream bool
	// Lasts: it may take hours, more than a connection with TLS lives (rpc.Lasting).
	Lasts  bool
	Places *rpc.Places // that calls take, of the table's own or shared with other routes; nil: as many as come
	Handle rpc.HandlerFunc
}

// Table is what a port answers. Of two routes that match the first one counts; none of them may be there twice.
type Table struct {
	Routes []Route
	Lacks  string // the refusal of other paths, which stand for its %s
	// Fail answers with the error of a route; nil: rpc.WriteProblem does.
	Fail func(w http.ResponseWriter, err error)
}

// Handler serves the calls of the table. It panics where Mux.Handle does.
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

// call does a call within its bounds, those of its body first: it may come in while somebody is asked who sends it.
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

// Alive is the call by which anybody sees that a process lives.
func Alive() Route {
	return Route{Method: http.MethodGet, Path: "/healthz", Role: Anybody(), Limit: healthTime,
		Handle: rpc.Show(func(context.Context) (wire.OK, error) { return wire.OK{}, nil })}
}

// Ready is the call by which anybody sees whether a process can do what it is for: 200 when nothing is in its way.
func Ready(reasons func() []rpc.Reason) Route {
	return Route{Method: http.MethodGet, Path: "/readyz", Role: Anybody(), Limit: healthTime,
		Handle: rpc.Show(func(context.Context) (ok wire.OK, err error) {
			if p := rpc.Unready(reasons()); p != nil {
				err = p
			}
			return ok, err
		})}
}

// Metrics is the call by which Prometheus reads the metrics of a port. Its places are its own: a scrape that waits for
// what stands still takes none from other calls, and none of these keeps a scrape out.
func Metrics(who Role, h http.Handler) Route {
	return Route{Method: http.MethodGet, Path: "/metrics", Role: who, Limit: scrapeTime,
		Places: rpc.NewPlaces(scrapesAtOnce, "scrapes"), Handle: func(w http.ResponseWriter, r *http.Request) error {
			h.ServeHTTP(w, r)
			return nil
		}}
}

// Role says who may make a call.
type Role struct {
	Name string // for people
	// Check says why somebody may not: a *rpc.Problem, else it is FORBIDDEN; nil: everybody may.
	Check func(r *http.Request) error
	// For is on whose behalf one asks who may, who gets the places; nil, or "": nobody has said.
	For func(r *http.Request) string
}

// Anybody is whoever reaches the port.
func Anybody() Role { return Role{Name: "anybody"} }

// Only is who shows a certificate of one of these roles; on a port without TLS, which is on loopback, everybody.
func Only(roles ...tlsconf.Role) Role {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return Role{Name: strings.Join(names, ", "), Check: tlsconf.Only(roles...)}
}

// Certified is who shows a certificate of any role; on a port without TLS everybody.
func Certified() Role {
	return Role{Name: "any certificate", Check: tlsconf.Only(tlsconf.Roles()...)}
}

// Readers of metrics are who shows a certificate of any role, or a token, which orToken makes count (that of
// managerclient.Client).
func Readers(orToken func(check func(r *http.Request) error) func(r *http.Request) error) Role {
	o := Certified()
	return Role{Name: o.Name + ", or a token of role metrics", Check: orToken(o.Check)}
}

// admit refuses who may not make a call, and what a page of another site makes a browser send.
func (o *Role) admit(r *http.Request) error {
	err := rpc.CheckOrigin(r)
	if err == nil && o.Check != nil {
		err = o.Check(r)
	}
	if err == nil {
		return nil
	}
	if p, ok := err.(*rpc.Problem); ok { //nolint:errorlint // what has one in its chain says more than it
		return p
	}
	return rpc.Refuse(errcode.Forbidden, "%s: %v", r.URL.Path, err)
}

// Mux leads requests to handlers, by path and method. A path is what the client wrote, "." and ".." included.
type Mux struct {
	router  *mux.Router
	paths   []string // in their order
	methods map[string][]string
}

// NewMux returns one that leads nowhere.
func NewMux() *Mux {
	return &Mux{router: mux.NewRouter().UseEncodedPath().SkipClean(true), methods: map[string][]string{}}
}

// Handle adds a handler; of two that match the first one counts. See Route for method and path. It panics, as
// http.ServeMux does, where the path is none that can be asked for, or is there with the method: the router would pass
// over the handler without a word.
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

// Handler serves all that was added; lacks is the refusal of other paths, %s.
func (m *Mux) Handler(lacks string) http.Handler {
	for _, path := range m.paths {
		methods := slices.Compact(slices.Sorted(slices.Values(m.methods[path])))
		m.router.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			rpc.WriteProblem(w, rpc.Refuse(errcode.MethodNotAllowed, "%s takes %s, not %s", r.URL.Path,
				strings.Join(methods, " or "), r.Method))
		})
	}
	m.router.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rpc.WriteProblem(w, rpc.Refuse(errcode.NotFound, lacks, r.URL.Path))
	})
	return m.router
}

// values lets a handler have the parts of the path by PathValue, decoded.
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
