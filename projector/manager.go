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
	// mapsAge is how long what is known of a bucket's maps is kept when nobody streams it or has asked for it.
	mapsAge = 10 * time.Minute
	// maxSources bounds the buckets of which maps are known: those that are streamed, and as many names beside.
	maxSources = 2 * core.MaxBuckets
)

// managedMaps are what the KV node's cluster manager shows, by bucket.
type managedMaps struct {
	// instead says that the node shows no map itself.
	instead atomic.Bool

	mu      sync.Mutex
	sources map[string]*managedSource
}

// managedSource is where the maps of one bucket come from.
type managedSource struct {
	*restmap.Source
	asked time.Time
	held  int // by watches
}

// mapsOf is where the maps of a bucket come from beside the node; nil without a manager.
func (p *Projector) mapsOf(bucket string) *restmap.Source {
	if p.cfg.KVManager == "" {
		return nil
	}
	p.maps.mu.Lock()
	defer p.maps.mu.Unlock()
	return p.maps.of(bucket, time.Now(), p.newSource).Source
}

// holdMaps is mapsOf for whoever needs the maps until release: what others ask for meanwhile comes from the same place.
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
		s.asked = time.Now()
	}
}

func (p *Projector) newSource(bucket string) *restmap.Source {
	return restmap.New(restmap.Options{Managers: []string{p.cfg.KVManager}, Pinned: true, Bucket: bucket, User: p.cfg.User,
		Password: p.kvPassword, TLS: p.cfg.KVTLS, ReadTLS: p.cfg.ReadKVTLS, Network: p.cfg.KVNetwork, Logger: p.log.Named("maps")})
}

// of finds or makes the source of a bucket, and forgets those that nobody has wanted for long, or, where there is no
// room, the one that nobody has wanted for longest. The caller holds mu.
func (m *managedMaps) of(bucket string, now time.Time, fresh func(bucket string) *restmap.Source) *managedSource {
	if s := m.sources[bucket]; s != nil {
		s.asked = now
		return s
	}
	if m.sources == nil {
		m.sources = map[string]*managedSource{}
	}
	oldest := ""
	for name, s := range m.sources {
		switch {
		case s.held > 0:
		case now.Sub(s.asked) > mapsAge:
			delete(m.sources, name)
		case oldest == "" || s.asked.Before(m.sources[oldest].asked):
			oldest = name
		}
	}
	if len(m.sources) >= maxSources {
		delete(m.sources, oldest) // there is one, as fewer are held
	}
	s := &managedSource{Source: fresh(bucket), asked: now}
	m.sources[bucket] = s
	return s
}

// kvPassword is the password for the next connection.
func (p *Projector) kvPassword() (string, error) {
	if p.cfg.ReadPassword != nil {
		return p.cfg.ReadPassword()
	}
	return p.cfg.Password, nil
}

// TLSToKV returns how the next connection to KV is encrypted; nil for not at all.
func (c *Config) TLSToKV() (*tls.Config, error) {
	if c.ReadKVTLS != nil {
		return c.ReadKVTLS()
	}
	return c.KVTLS, nil
}

// dialNode connects to the KV node: at its address, or where its manager says that it is.
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
	// The node may be elsewhere by now, in a cluster that was made anew: its manager is asked, whatever was known.
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
