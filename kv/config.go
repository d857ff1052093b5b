package kv

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/tlsconf"
	"tidemark/kv/clustermap"
	"tidemark/kv/seglog"
	"tidemark/kv/server"
	"tidemark/kv/store"
)

// ErrConfig means that a Config cannot be used; the message says what is wrong with it.
var ErrConfig = errors.New("kv configuration")

// Peer is a member of the KV cluster. Addresses are host:port; those of this node may be empty (they are filled in when
// its listeners are open). MemcachedTLS is empty where TLS is not spoken; its host is that of Memcached.
type Peer struct{ ID, Memcached, Admin, MemcachedTLS string }

// BucketConfig names a bucket. VBuckets is a power of two up to 1024 and cannot change. Replicas, 0 to 3, counts when
// the first map is made; nodes that are too few for it keep as many as they can.
type BucketConfig struct {
	Name, UUID string
	VBuckets   int
	Replicas   int
}

// Config of a node. Zero values of the fields after Logger take the defaults of the packages below.
type Config struct {
	// NodeID is this node's name; Dir its folder, used by one process at a time.
	NodeID, Dir string
	// Listen is the memcached address, Admin the HTTP address, both host:port; port 0 takes a free one.
	Listen, Admin string
	// ListenTLS is the memcached address on which TLS is spoken; it is meant with TLS only.
	ListenTLS string
	// TLS is this node's certificate, of role kv; with it Admin is HTTPS, on all nodes of the cluster or on none. nil: no
	// TLS.
	TLS *tlsconf.Source
	// Nodes is the whole cluster including this node, in the same order on every node. Empty means this node alone. The
	// first map is derived from it; later the map says who is a member, and this only where members have moved to.
	Nodes []Peer
	// Join starts without vbuckets, to be added to a cluster by a rebalance; it counts until there is a map.
	Join bool
	// Buckets are made with the cluster. Others may be made, and these dropped, while it runs: then the map says so.
	Buckets []BucketConfig
	// User and Password are of the one who may do everything; other users are in the map. AllowPlain accepts them in
	// clear text also without TLS, and returns a client that does not know buckets the only one.
	User, Password string
	AllowPlain     bool
	// Nasty turns on habits of real engines that consumers must live with, for tests.
	Nasty server.Moods
	// QuotaBytes bounds the memory of all documents; 0 means 2 GiB.
	QuotaBytes int64
	Logger     hclog.Logger

	// MaxConnections on the memcached address.
	MaxConnections int
	// The server's patience: with a silent client, one that does not authenticate, one that sends half a frame, one that
	// takes no answers, and with a DCP consumer that takes nothing or answers no NOOP.
	IdleTimeout, AuthTimeout, FrameTimeout, WriteTimeout, DCPTimeout time.Duration
	// SegmentBytes is the size of a log segment, Housekeep the interval of syncing, expiring and compacting, PurgeAfter
	// the age at which tombstones may be forgotten.
	SegmentBytes int64
	Housekeep    time.Duration
	PurgeAfter   time.Duration
	// Heartbeat is how often members compare maps.
	Heartbeat time.Duration
	// Now is the clock, WrapFile wraps log files to inject faults. Both are for tests.
	Now      func() time.Time
	WrapFile func(seglog.File) seglog.File
}

// Longest names.
const (
	maxNodeID = 100
	maxUUID   = 64
)

// check validates the configuration and fills in what may be left out.
func (c *Config) check() error {
	c.setDefaults()
	switch {
	case !clustermap.Plain(c.NodeID, maxNodeID, "._%-"):
		return fmt.Errorf("%w: node id %q: want 1 to %d letters, digits, '.', '_', '%%' or '-'", ErrConfig, c.NodeID,
			maxNodeID)
	case c.Dir == "":
		return fmt.Errorf("%w: no folder given", ErrConfig)
	case c.ListenTLS != "" && c.TLS == nil:
		return fmt.Errorf("%w: a memcached address with TLS (%s) needs a certificate and its key", ErrConfig, c.ListenTLS)
	case c.User == "" || c.Password == "":
		return fmt.Errorf("%w: user and password are needed: clients always authenticate", ErrConfig)
	case !slices.ContainsFunc(c.Nodes, func(p Peer) bool { return p.ID == c.NodeID }):
		return fmt.Errorf("%w: node %q is not in its own list of %d nodes", ErrConfig, c.NodeID, len(c.Nodes))
	case len(c.Buckets) == 0:
		return fmt.Errorf("%w: no bucket given", ErrConfig)
	}
	for i, p := range c.Nodes {
		if slices.ContainsFunc(c.Nodes[:i], func(q Peer) bool { return q.ID == p.ID }) {
			return fmt.Errorf("%w: node %q is listed twice", ErrConfig, p.ID)
		}
	}
	for i, b := range c.Buckets {
		if err := b.check(len(c.Nodes)); err != nil {
			return err
		}
		if slices.ContainsFunc(c.Buckets[:i], func(o BucketConfig) bool { return o.Name == b.Name }) {
			return fmt.Errorf("%w: bucket %q is listed twice", ErrConfig, b.Name)
		}
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if len(c.Nodes) == 0 {
		c.Nodes = []Peer{{ID: c.NodeID}}
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.IdleTimeout <= 0 && c.Nasty.Has(server.IdleClose) {
		c.IdleTimeout = server.IdleCloseAfter
	}
	if c.PurgeAfter <= 0 && c.Nasty.Has(server.Purges) {
		c.PurgeAfter = time.Second
	}
}

// check looks at one bucket of a cluster of so many nodes.
func (b *BucketConfig) check(nodes int) error {
	switch {
	case !clustermap.ValidBucketName(b.Name):
		return fmt.Errorf("%w: bucket name %q: want 1 to %d letters, digits, '.', '_', '%%' or '-', not beginning with '.'",
			ErrConfig, b.Name, clustermap.MaxBucketName)
	case !clustermap.Plain(b.UUID, maxUUID, "-"):
		return fmt.Errorf("%w: bucket %q: uuid %q: want 1 to %d letters, digits or '-'", ErrConfig, b.Name, b.UUID, maxUUID)
	case b.VBuckets < 1 || b.VBuckets > store.MaxVBuckets || b.VBuckets&(b.VBuckets-1) != 0:
		return fmt.Errorf("%w: bucket %q: %d vbuckets: want a power of two up to %d", ErrConfig, b.Name, b.VBuckets,
			store.MaxVBuckets)
	case b.Replicas < 0 || b.Replicas > clustermap.MaxReplicas:
		return fmt.Errorf("%w: bucket %q: %d replicas: want 0 to %d", ErrConfig, b.Name, b.Replicas, clustermap.MaxReplicas)
	case b.VBuckets < nodes:
		return fmt.Errorf("%w: bucket %q: %d vbuckets for %d nodes: want at least one each", ErrConfig, b.Name, b.VBuckets,
			nodes)
	}
	return nil
}

// mapNodes returns the peers the form of the cluster map, with this node's real addresses.
func (n *Node) mapNodes(peers []Peer) []clustermap.Node {
	out := make([]clustermap.Node, len(peers))
	for i, p := range peers {
		if p.ID == n.config.NodeID {
			if n.listenerTLS != nil {
				p.MemcachedTLS = n.advertised(p.MemcachedTLS, n.MemcachedTLSAddr())
			}
			p.Memcached, p.Admin = n.advertised(p.Memcached, n.MemcachedAddr()), n.advertised(p.Admin, n.AdminAddr())
		}
		out[i] = clustermap.Node{ID: p.ID, Memcached: p.Memcached, MemcachedTLS: p.MemcachedTLS, Admin: p.Admin}
	}
	return out
}

// specs is what the configuration says of the buckets.
func (c *Config) specs() (out []clustermap.Spec) {
	for _, b := range c.Buckets {
		out = append(out, clustermap.Spec{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets, Replicas: b.Replicas})
	}
	return out
}
