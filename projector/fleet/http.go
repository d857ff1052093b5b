package fleet

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tidemark/errcode"
	"tidemark/internal/logging"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/wire"
)

// Reasons of /readyz that only processes with several projectors use.
const (
	reasonNoNode   = "no_kv_node"
	reasonUnserved = "kv_unserved"
)

// pathOf returns the path of a node's projector, under the process's own address, so that one port is enough.
func pathOf(node string) string { return "/kv/" + url.PathEscape(node) }

// table returns the routes of the admin server. Requests below a node's path go to its projector, within that one's
// own limits.
func (f *Fleet) table() *route.Table {
	const limit = 10 * time.Second
	all := route.Certified()
	process := prometheus.NewRegistry()
	route.RegisterProcess(process, f.cfg.Projector.TLS)
	return &route.Table{Lacks: "this process runs a projector for each KV node and has no call %s of its own; " +
		"GET /v1/projectors lists their addresses", Routes: []route.Route{
		{Path: "/kv/{node}/{rest:.*}", Role: route.Role{Name: "as the projector's call"}, Body: rpc.MaxControlBody,
			Stream: true, Handle: f.pass},
		{Method: http.MethodGet, Path: "/v1/projectors", Role: all, Limit: limit, Handle: rpc.Show(
			func(context.Context) (*wire.ProjectorProcess, error) { return f.process(), nil })},
		{Method: http.MethodGet, Path: "/v1/logging", Role: all, Limit: limit, Handle: logging.Get(f.log)},
		{Method: http.MethodPut, Path: "/v1/logging", Role: route.Only(tlsconf.Manager), Body: rpc.MaxUserBody,
			Limit: limit, Handle: logging.Put(f.log)},
		route.Metrics(route.Readers(f.managers.OrToken), f.metrics(process)),
		route.Alive(), route.Ready(f.reasons),
	}}
}

// pass forwards a request to the projector of a node.
func (f *Fleet) pass(w http.ResponseWriter, r *http.Request) error {
	node := r.PathValue("node")
	f.mu.Lock()
	m := f.members[node]
	f.mu.Unlock()
	var h http.Handler
	if m != nil {
		m.serving.Lock()
		h = m.handler
		m.serving.Unlock()
	}
	if h == nil {
		return rpc.Refuse(errcode.Unavailable, "projector %s does not serve a KV node %q, or no longer serves it; look it "+
			"up in /v1/projectors, and try again", f.cfg.Projector.ID, node)
	}
	r = r.Clone(r.Context())
	r.URL.Path, r.URL.RawPath = "/"+r.PathValue("rest"), ""
	h.ServeHTTP(w, r)
	return nil
}

// Serve implements projector.Host.
func (m *member) Serve(h http.Handler) (stop func()) {
	set := func(h http.Handler) {
		m.serving.Lock()
		defer m.serving.Unlock()
		m.handler = h
	}
	set(h)
	return func() { set(nil) }
}

// all returns the members, ordered by node name.
func (f *Fleet) all() (members []*member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.members)) {
		members = append(members, f.members[name])
	}
	return members
}

func (f *Fleet) process() *wire.ProjectorProcess {
	p := &wire.ProjectorProcess{Projectors: []wire.ProjectorEndpoint{}}
	for _, m := range f.all() {
		p.Projectors = append(p.Projectors, wire.ProjectorEndpoint{ID: f.idOf(m.node.Name), BootID: m.p.BootID(),
			Admin: m.URL()})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.unserved {
		p.Unserved = append(p.Unserved, wire.UnservedNode{Node: n.Name, Error: n.Why})
	}
	return p
}

// reasons returns those of all projectors, each with its node's name, and those of unserved nodes.
func (f *Fleet) reasons() (all []rpc.Reason) {
	members := f.all()
	for _, m := range members {
		for _, r := range m.p.Reasons() {
			all = append(all, rpc.Reason{Code: r.Code, Detail: m.node.Name + ": " + r.Detail})
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(members) == 0 && f.aside == 0 && len(f.unserved) == 0 {
		why := "none of the given KV nodes was found yet"
		if f.seedErr != "" {
			why = "none of the given KV nodes answers: " + f.seedErr
		}
		all = append(all, rpc.Reason{Code: reasonNoNode, Detail: why})
	}
	for _, n := range f.unserved {
		all = append(all, rpc.Reason{Code: reasonUnserved, Detail: n.Name + ": " + n.Why})
	}
	return all
}

// metrics returns a handler that writes the metrics of the process, and those of each projector, labelled with its
// node's name.
func (f *Fleet) metrics(process prometheus.Gatherer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		promhttp.HandlerFor(prometheus.Gatherers{process, f.projectors()}, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	})
}

// projectors returns a registry of the present projectors' metrics.
func (f *Fleet) projectors() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	nodes := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "tidemark", Subsystem: "projector", Name: "kv_nodes",
		Help: "KV nodes of the cluster of a process with --kv-all, by whether it serves them."}, []string{"state"})
	registry.MustRegister(nodes)
	for _, m := range f.all() {
		registry.MustRegister(prometheus.WrapCollectorWith(prometheus.Labels{"kv_node": m.node.Name}, m.p.Metrics()))
	}
	f.mu.Lock()
	nodes.WithLabelValues("served").Set(float64(len(f.members)))
	nodes.WithLabelValues("unserved").Set(float64(len(f.unserved)))
	f.mu.Unlock()
	return registry
}
