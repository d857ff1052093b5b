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

// Host is a process that runs several projectors, one per KV node, as one of them sees it. Its methods do not block.
type Host interface {
	// URL is the base URL of the projector's admin server.
	URL() string
	// Serve passes requests under URL to h, until stop is called.
	Serve(h http.Handler) (stop func())
	// Sharers returns how many projectors share the memory allowance of one at present, at least 1.
	Sharers() int
	// Saw passes on a cluster map that the projector has read, and the host:port of the KV node that it was read from.
	Saw(config *mcbp.ClusterConfig, addr string)
}

// sharers returns how many projectors share the memory allowance of one.
func (p *Projector) sharers() int {
	if p.cfg.Host == nil {
		return 1
	}
	return max(p.cfg.Host.Sharers(), 1)
}

// url returns the base URL at which the projector is reached.
func (p *Projector) url() string {
	if p.cfg.Host != nil {
		return p.cfg.Host.URL()
	}
	return p.cfg.TLS.BaseURL(rpc.Advertised(p.listener.Addr(), p.cfg.Advertise))
}

// serve answers requests until ctx ends; then requests that wait for KV are cancelled.
func (p *Projector) serve(ctx context.Context) error {
	h := p.tasks.counted(p.table().Handler())
	if p.cfg.Host == nil {
		server := &route.Server{Handler: h, TLS: p.cfg.TLS, Log: p.log, Tracer: p.cfg.Tracer, Grace: stopGrace, Cut: true}
		return server.Serve(ctx, p.listener)
	}
	defer p.cfg.Host.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		both, done := joined(r.Context(), ctx)
		defer done()
		h.ServeHTTP(w, r.WithContext(both))
	}))()
	<-ctx.Done()
	return nil
}

// saw passes a cluster map on to the host.
func (p *Projector) saw(config *mcbp.ClusterConfig, addr string) {
	if p.cfg.Host != nil {
		p.cfg.Host.Saw(config, addr)
	}
}

// Reasons returns what keeps the projector from serving, as shown by its /readyz.
func (p *Projector) Reasons() []rpc.Reason { return p.reasons() }

// Troubled reports whether the KV node cannot be queried about some bucket.
func (p *Projector) Troubled() bool { return len(p.troubles.list(p.cfg.KV, time.Now())) > 0 }

// Metrics returns the collector behind its /metrics.
func (p *Projector) Metrics() prometheus.Collector { return p.registry }

// ID returns the projector's id in the cluster.
func (p *Projector) ID() index.ProjectorID { return p.cfg.ID }

// BootID distinguishes this projector from earlier ones of its id, in this or in earlier processes.
func (p *Projector) BootID() string { return p.bootID }

// Definitions returns the newest definitions from the leader, nil before the first. The caller must not modify them.
func (p *Projector) Definitions() *wire.Definitions {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.defs.newest
}
