package projector

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/kv/kvclient/restmap"
	"tidemark/kv/mcbp"
	"tidemark/projector/core"
	"tidemark/projector/feed"
)

const (
	// mapsAge is how long a bucket's map source is kept after its last use.
	mapsAge = 10 * time.Minute
	// maxSources bounds the map sources: those of the buckets that are streamed, and as many others.
	maxSources = 2 * core.MaxBuckets
)

// managedMaps holds the map sources at the KV node's cluster manager, by bucket.
type managedMaps struct {
	// instead is set when the KV node itself provides no map.
	instead atomic.Bool

	mu      sync.Mutex
	sources map[string]*managedSource
}

// managedSource is the map source of one bucket.
type managedSource struct {
	*restmap.Source
	used time.Time
	held int // by watches: their number
}

// mapsOf returns the map source of a bucket at the cluster manager, nil if no manager is configured.
func (p *Projector) mapsOf(bucket string) *restmap.Source {
	if p.cfg.KVManager == "" {
		return nil
	}
	p.maps.mu.Lock()
	defer p.maps.mu.Unlock()
	return p.maps.of(bucket, time.Now(), p.newSource).Source
}

// holdMaps is mapsOf for a caller that needs the source until it calls release: meanwhile it is not evicted.
func (p *Projector) holdMaps(bucket string) (source *restmap.Source, release func()) {
	if p.cfg.KVManager == "" {
		return nil, func() {}
	}
	p.maps.mu.Lock()
	defer p.maps.mu.Unlock()
	s := p.maps.of(bucket, time.Now(), p.newSource)
	s.held++
	return s.Source, func() {
		p.maps.mu.Lock()
		defer p.maps.mu.Unlock()
		s.held--
		s.used = time.Now()
	}
}

func (p *Projector) newSource(bucket string) *restmap.Source {
	return restmap.New(restmap.Options{Managers: []string{p.cfg.KVManager}, Pinned: true, Bucket: bucket, User: p.cfg.User,
		Password: p.kvPassword, TLS: p.cfg.KVTLS, ReadTLS: p.cfg.ReadKVTLS, Network: p.cfg.KVNetwork,
		Logger: p.log.Named("maps")})
}

// of returns the source of a bucket, and creates it if necessary. It evicts sources that were not used for mapsAge
// and, if there is still no room, the least recently used one. The caller holds mu.
func (m *managedMaps) of(bucket string, now time.Time, fresh func(bucket string) *restmap.Source) *managedSource {
	if s := m.sources[bucket]; s != nil {
		s.used = now
		return s
	}
	if m.sources == nil {
		m.sources = map[string]*managedSource{}
	}
	oldest := ""
	for name, s := range m.sources {
		switch {
		case s.held > 0:
		case now.Sub(s.used) > mapsAge:
			delete(m.sources, name)
		case oldest == "" || s.used.Before(m.sources[oldest].used):
			oldest = name
		}
	}
	if len(m.sources) >= maxSources {
		delete(m.sources, oldest) // there is one: fewer than maxSources are held
	}
	s := &managedSource{Source: fresh(bucket), used: now}
	m.sources[bucket] = s
	return s
}

// kvPassword returns the password for the next connection.
func (p *Projector) kvPassword() (string, error) {
	if p.cfg.ReadPassword != nil {
		return p.cfg.ReadPassword()
	}
	return p.cfg.Password, nil
}

// TLSToKV returns the TLS configuration of the next connection to KV; nil means no TLS.
func (c *Config) TLSToKV() (*tls.Config, error) {
	if c.ReadKVTLS != nil {
		return c.ReadKVTLS()
	}
	return c.KVTLS, nil
}

// dialNode connects to the KV node, at its configured address or at the one that its manager lists.
func (p *Projector) dialNode(ctx context.Context, conf feed.Config) (feed.Feed, error) {
	source := p.mapsOf(conf.Bucket)
	if source == nil {
		return p.cfg.Feed.dialer()(ctx, conf)
	}
	conf.Managers = []string{p.cfg.KVManager}
	conf.Map = func(ctx context.Context) (*mcbp.ClusterConfig, error) {
		p.maps.instead.Store(true)
		a, err := source.Current(ctx)
		return a.Config, err
	}
	a, err := source.Current(ctx)
	if err != nil {
		return nil, err
	}
	if conf.Addr, err = a.Node(p.cfg.KVNetwork, p.cfg.KVTLS != nil); err != nil {
		return nil, err
	}
	c, err := p.cfg.Feed.dialer()(ctx, conf)
	if err == nil || ctx.Err() != nil {
		return c, err
	}
	// The node may have another address by now, in a cluster that was created anew: query its manager again instead of
	// using the cached map.
	a, aerr := source.Ask(ctx)
	if aerr != nil {
		return nil, err
	}
	now, aerr := a.Node(p.cfg.KVNetwork, p.cfg.KVTLS != nil)
	if aerr != nil || now == conf.Addr {
		return nil, err
	}
	conf.Addr = now
	return p.cfg.Feed.dialer()(ctx, conf)
}
