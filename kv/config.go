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

// ErrConfig is wrapped if a Config cannot be used; the message gives the reason.
var ErrConfig = errors.New("kv configuration")

// Peer is a member of the KV cluster. Addresses are host:port; those of this node may be empty (they are set when its
// listeners are open). MemcachedTLS is empty if the node does not support TLS; its host is that of Memcached.
type Peer struct{ ID, Memcached, Admin, MemcachedTLS string }

// BucketConfig configures a bucket. VBuckets is a power of two up to 1024 and cannot change. Replicas, 0 to 3, is
// used when the first map is created; if there are too few nodes, the bucket has as many replicas as possible.
type BucketConfig struct {
	Name, UUID string
	VBuckets   int
	Replicas   int
}

// Config configures a node. Zero fields after Logger take the defaults of the packages below.
type Config struct {
	// NodeID is this node's name; Dir is its folder, used by one process at a time.
	NodeID, Dir string
	// Listen is the memcached address, Admin the HTTP address, both host:port; port 0 selects a free port.
	Listen, Admin string
	// ListenTLS is the memcached address for TLS; it requires TLS.
	ListenTLS string
	// TLS is this node's certificate, of role kv. With it Admin serves HTTPS; either all nodes of the cluster have one
	// or none. nil: no TLS.
	TLS *tlsconf.Source
	// Nodes is the whole cluster including this node, in the same order on every node. Empty means this node alone. The
	// first map is derived from it; later the map determines the members, and Nodes only provides new addresses of
	// members.
	Nodes []Peer
	// Join starts the node without vbuckets, to be added to a cluster by a rebalance. It is ignored once there is a map.
	Join bool
	// Buckets are created with the cluster. While the cluster runs, others may be created and these dropped, as the map
	// records.
	Buckets []BucketConfig
	// User and Password are the credentials of the user with all rights; other users are in the map. AllowPlain accepts
	// passwords in clear text even without TLS, and selects the only bucket for clients that select none.
	User, Password string
	AllowPlain     bool
	// Nasty enables behaviours of real engines that consumers must cope with, for tests.
	Nasty server.Moods
	// QuotaBytes bounds the memory of all documents; 0 means 2 GiB.
	QuotaBytes int64
	Logger     hclog.Logger

	// MaxConnections bounds the connections to the memcached address. They are never more than a third of the files that
	// the process may have open.
	MaxConnections int
	// Timeouts of the memcached server: for an idle client, one that does not authenticate, one that sends an incomplete
	// frame, one that reads no answers, and a DCP consumer that reads nothing or answers no NOOP.
	IdleTimeout, AuthTimeout, FrameTimeout, WriteTimeout, DCPTimeout time.Duration
	// SegmentBytes is the size at which a log segment is sealed, on a small disk at most max(1 MiB, disk/16); Housekeep is
	// the interval of syncing, expiring and compacting, PurgeAfter the age from which tombstones may be purged.
	SegmentBytes int64
	Housekeep    time.Duration
	PurgeAfter   time.Duration
	// Heartbeat is the interval at which members compare maps.
	Heartbeat time.Duration
	// Now is the clock; WrapFile wraps log files to inject faults. Both are for tests.
	Now      func() time.Time
	WrapFile func(seglog.File) seglog.File

	stopPatience time.Duration // 0: the default; shorter in tests
}

// Maximum lengths of names in bytes.
const (
	maxNodeID = 100
	maxUUID   = 64
)

// check validates the configuration and sets the defaults.
func (c *Config) check() error {
	c.setDefaults()
	switch {
	case !clustermap.Plain(c.NodeID, maxNodeID, "._%-"):
		return fmt.Errorf("%w: node id %q: want 1 to %d letters, digits, '.', '_', '%%' or '-'", ErrConfig, c.NodeID,
			maxNodeID)
	case c.Dir == "":
		return fmt.Errorf("%w: no folder is given", ErrConfig)
	case c.ListenTLS != "" && c.TLS == nil:
		return fmt.Errorf("%w: a memcached address with TLS (%s) needs a certificate and its key", ErrConfig, c.ListenTLS)
	case c.User == "" || c.Password == "":
		return fmt.Errorf("%w: user and password are required: clients always authenticate", ErrConfig)
	case !slices.ContainsFunc(c.Nodes, func(p Peer) bool { return p.ID == c.NodeID }):
		return fmt.Errorf("%w: node %q is not in its own list of %d nodes", ErrConfig, c.NodeID, len(c.Nodes))
	case len(c.Buckets) == 0:
		return fmt.Errorf("%w: no bucket is given", ErrConfig)
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

// check validates the configuration of one bucket for a cluster with this number of nodes.
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

// mapNodes converts the peers to nodes of the cluster map, with this node's actual addresses.
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

// specs returns the configured buckets.
func (c *Config) specs() (out []clustermap.Spec) {
	for _, b := range c.Buckets {
		out = append(out, clustermap.Spec{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets, Replicas: b.Replicas})
	}
	return out
}
