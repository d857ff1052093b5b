package projector

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/kv/mcbp"
	"tidemark/wire"
)

// Host is a process that runs several projectors, one for each KV node, as one of them sees it. Its methods do not
// wait.
type Host interface {
	// URL is the base URL of the projector's admin server.
	URL() string
	// Serve passes requests under URL to h, until stop is called.
	Serve(h http.Handler) (stop func())
	// Sharers is how many projectors share what memory one may take by now, at least 1.
	Sharers() int
	// Saw takes a cluster map that the projector has seen, and the host:port of the KV node that it has asked.
	Saw(config *mcbp.ClusterConfig, addr string)
}

// sharers is how many projectors share what memory one may take.
func (p *Projector) sharers() int {
	if p.cfg.Host == nil {
		return 1
	}
	return max(p.cfg.Host.Sharers(), 1)
}

// url is the base URL under which others reach it.
func (p *Projector) url() string {
	if p.cfg.Host != nil {
		return p.cfg.Host.URL()
	}
	return p.cfg.TLS.BaseURL(rpc.Advertised(p.listener.Addr(), p.cfg.Advertise))
}

// serve answers requests until ctx ends, whose end ends what waits for KV.
func (p *Projector) serve(ctx context.Context) error {
	h := p.tasks.counted(p.table().Handler())
	if p.cfg.Host == nil {
		server := &route.Server{Handler: h, TLS: p.cfg.TLS, Log: p.log, Tracer: p.cfg.Tracer, Grace: stopGrace, Cut: true}
		return server.Serve(ctx, p.listener)
	}
	defer p.cfg.Host.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, done := joined(r.Context(), ctx)
		defer done()
		h.ServeHTTP(w, r.WithContext(asked))
	}))()
	<-ctx.Done()
	return nil
}

// saw tells the host of a cluster map.
func (p *Projector) saw(config *mcbp.ClusterConfig, addr string) {
	if p.cfg.Host != nil {
		p.cfg.Host.Saw(config, addr)
	}
}

// Reasons says what keeps it from serving, as its /readyz does.
func (p *Projector) Reasons() []rpc.Reason { return p.reasons() }

// Troubled reports whether there is something about which its KV node cannot be asked.
func (p *Projector) Troubled() bool { return len(p.troubles.list(p.cfg.KV, time.Now())) > 0 }

// Metrics are what its /metrics shows.
func (p *Projector) Metrics() prometheus.Collector { return p.registry }

// ID is its name among the projectors of the cluster.
func (p *Projector) ID() index.ProjectorID { return p.cfg.ID }

// BootID tells its process, and this projector in it, from earlier ones of its id.
func (p *Projector) BootID() string { return p.bootID }

// Definitions are the newest that the leader has told it, nil before the first. They are shared: do not change them.
func (p *Projector) Definitions() *wire.Definitions {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.defs.newest
}
