// Package clustermap has the map of a KV cluster, which states the node of each copy of each vbucket, and plans its
// changes.
//
// Every node derives the same first map from the same list of nodes. A map is replaced only by one with a higher
// (RevEpoch, Rev), and every change produces such a map. A plan leaves each vbucket with one active copy and with
// copies on distinct nodes, moves as few vbuckets as an even spread needs, and is a pure function of the map. Within
// an epoch one node, the leader, makes the revisions; an epoch begins when the leader changes, or when a map that may
// exist on some node must be superseded (Promises).
//
// The package does no I/O: it contacts no node, reads no clock and stores nothing.
package clustermap

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"

	"tidemark/kv/access"
	"tidemark/kv/mcbp"
)

// ErrMap means that a map is unusable: it does not fit the configuration, or a requested change is impossible.
var ErrMap = errors.New("unusable vbucket map")

// ErrNoMember means that the cluster has no node of that name; it wraps ErrMap.
var ErrNoMember = fmt.Errorf("%w: there is no such member", ErrMap)

// ErrNewer means that a newer version of the program wrote the map; it wraps ErrMap.
var ErrNewer = fmt.Errorf("%w: it was written by a newer version", ErrMap)

const (
	// Format is the version of the stored form, written with each revision. oldestFormat has no roles for parts of
	// buckets, no groups and no operations of a single bucket. Raise Format with every addition that this version
	// could not read.
	Format       = 3
	oldestFormat = 2
	// MaxReplicas is the maximum number of copies of a vbucket beside the active one.
	MaxReplicas = mcbp.MaxChain - 1
	// MaxNodes is the maximum number of nodes of a cluster.
	MaxNodes = 64
)

// capabilities are the bucket capabilities that the cluster config advertises to clients.
var capabilities = [...]string{"collections", "tombstonedUserXAttrs", "dcp", "cbhello", "touch", "cccp",
	"xdcrCheckpointing", "nodesExt", "xattr"}

// Node is one member of the cluster. Addresses are host:port; MemcachedTLS is empty on a node without TLS.
type Node struct {
	ID           string `json:"id"`
	Memcached    string `json:"memcached"`
	MemcachedTLS string `json:"memcached_tls,omitempty"`
	Admin        string `json:"admin"`
}

// Spec is the configuration of a bucket.
type Spec struct {
	Name, UUID         string
	VBuckets, Replicas int
}

// Map is the state of the cluster.
type Map struct {
	Format   int   `json:"format"`
	RevEpoch int64 `json:"rev_epoch"`
	Rev      int64 `json:"rev"`
	// Leader is the id of the node that makes the revisions of this epoch.
	Leader  string   `json:"leader"`
	Nodes   []Node   `json:"nodes"`
	Buckets []Bucket `json:"buckets"`
	// Dropped lists dropped buckets: all that were configured, and the newest of those created at run time.
	Dropped []Dropped `json:"dropped,omitempty"`
	// Operation is the operation in progress; nil if there is none.
	Operation *Operation `json:"operation,omitempty"`
	// Users are those created at run time, ordered by name. The slice is replaced, never modified.
	Users []access.User `json:"users,omitempty"`
	// Groups are the groups of users. The slice is replaced, never modified.
	Groups []access.Group `json:"groups,omitempty"`
	// Secret is shared by all nodes since the first user was created (access.Directory).
	Secret []byte `json:"secret,omitempty"`
}

// Bucket is a bucket's part of the map. Chains[v][0] is the id of the node with the active copy of vbucket v, the
// other ids are those of replicas. Incoming lists the nodes that are being filled with a vbucket; clients do not see
// them.
type Bucket struct {
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	Replicas int    `json:"replicas"`
	// Made means that the bucket was created at run time and is not configured; NoFlush that it cannot be flushed.
	Made     bool                `json:"made,omitempty"`
	NoFlush  bool                `json:"no_flush,omitempty"`
	Chains   [][]string          `json:"chains"`
	Incoming map[uint16][]string `json:"incoming,omitempty"`
	// Collections are the bucket's collections; nil for the default ones.
	Collections *Collections `json:"collections,omitempty"`
}

// Operation is a rebalance in progress. Nodes are the ids of the nodes that remain, Targets the chains to reach, by
// bucket in the map's order; a bucket that does not change has no targets.
type Operation struct {
	ID    string   `json:"id"`
	Nodes []string `json:"nodes"`
	// Bucket is the only bucket whose replicas are created or removed; empty if all buckets are spread.
	Bucket  string       `json:"bucket,omitempty"`
	Targets [][][]string `json:"targets"`
	// VBuckets is the number of vbuckets that had to change when the operation began.
	VBuckets int `json:"vbuckets"`
}

// Derive returns the first map: of each bucket, node i of n gets the i-th of n equal runs of vbuckets, and the
// replicas of a run are spread over the other nodes.
func Derive(nodes []Node, specs []Spec) Map {
	m := Map{Format: Format, RevEpoch: 1, Rev: 1, Leader: nodes[0].ID, Nodes: slices.Clone(nodes)}
	for _, s := range specs {
		m.Buckets = append(m.Buckets, Bucket{Name: s.Name, UUID: s.UUID, Replicas: s.Replicas,
			Chains: chains(nodes, s.VBuckets, s.Replicas)})
	}
	return m
}

// chains spreads the vbuckets of a new bucket over the nodes.
func chains(nodes []Node, vbuckets, replicas int) (out [][]string) {
	n := len(nodes)
	for v := range vbuckets {
		owner := v * n / vbuckets
		chain := []string{nodes[owner].ID}
		for r := range min(replicas, n-1) {
			chain = append(chain, nodes[(owner+1+(v+r)%(n-1))%n].ID)
		}
		out = append(out, chain)
	}
	return out
}

// Alone returns the map of a node that waits to be added to a cluster: no vbucket has a copy. Every other map
// replaces it.
func Alone(node Node, specs []Spec) Map {
	m := Map{Format: Format, Leader: node.ID, Nodes: []Node{node}}
	for _, s := range specs {
		m.Buckets = append(m.Buckets, Bucket{Name: s.Name, UUID: s.UUID, Replicas: s.Replicas,
			Chains: make([][]string, s.VBuckets)})
	}
	return m
}

// Clone returns a copy that shares no mutable data with m.
func (m Map) Clone() Map {
	m.Nodes, m.Buckets = slices.Clone(m.Nodes), slices.Clone(m.Buckets)
	for i := range m.Buckets {
		m.Buckets[i].Chains = slices.Clone(m.Buckets[i].Chains) // chains are replaced, never changed
		m.Buckets[i].Incoming = maps.Clone(m.Buckets[i].Incoming)
	}
	return m
}

// next returns a clone with the next revision.
func (m Map) next() Map {
	n := m.Clone()
	n.Format = Format
	n.Rev++
	return n
}

// UnmarshalJSON implements json.Unmarshaler. It returns ErrNewer if decoding fails and the text has a newer format.
func (m *Map) UnmarshalJSON(text []byte) error {
	type plain Map
	err := json.Unmarshal(text, (*plain)(m))
	if err == nil {
		return nil
	}
	var of struct {
		Format int `json:"format"`
	}
	if json.Unmarshal(text, &of) == nil && of.Format > Format {
		return newer(of.Format)
	}
	return err
}

func newer(format int) error {
	return fmt.Errorf("%w, with format %d, and this program reads up to %d: update this node's program", ErrNewer, format,
		Format)
}

// Newer reports whether m replaces o.
func (m Map) Newer(o Map) bool {
	if m.RevEpoch != o.RevEpoch {
		return m.RevEpoch > o.RevEpoch
	}
	return m.Rev > o.Rev
}

// Node returns the member with this id.
func (m Map) Node(id string) (Node, bool) {
	i := slices.IndexFunc(m.Nodes, func(n Node) bool { return n.ID == id })
	if i < 0 {
		return Node{}, false
	}
	return m.Nodes[i], true
}

// Bucket returns the bucket with this name; nil if there is none.
func (m Map) Bucket(name string) *Bucket {
	for i := range m.Buckets {
		if m.Buckets[i].Name == name {
			return &m.Buckets[i]
		}
	}
	return nil
}

// WithAddresses returns the map with other addresses of its members. Unknown ids, and addresses that are empty or
// have no port, are ignored. If an address differs, the revision rises and the result is true.
func (m Map) WithAddresses(nodes []Node) (Map, bool) {
	n := m.next()
	for i, have := range n.Nodes {
		at := slices.IndexFunc(nodes, func(x Node) bool { return x.ID == have.ID })
		if at < 0 {
			continue
		}
		if usable(nodes[at].Memcached) {
			n.Nodes[i].Memcached = nodes[at].Memcached
		}
		if usable(nodes[at].MemcachedTLS) {
			n.Nodes[i].MemcachedTLS = nodes[at].MemcachedTLS
		}
		if usable(nodes[at].Admin) {
			n.Nodes[i].Admin = nodes[at].Admin
		}
	}
	if slices.Equal(n.Nodes, m.Nodes) {
		return m, false
	}
	return n, true
}

// usable reports whether an address has a port; a placeholder has none.
func usable(address string) bool {
	_, port, err := split(address)
	return err == nil && port > 0
}

// Check refuses a map that is unusable, or lacks buckets that are configured.
func (m Map) Check(specs []Spec) error {
	switch {
	case m.Format > Format:
		return newer(m.Format)
	case m.Format < oldestFormat:
		return fmt.Errorf("%w: stored with format %d, this program reads %d to %d", ErrMap, m.Format, oldestFormat,
			Format)
	case len(m.Nodes) == 0 || len(m.Nodes) > MaxNodes:
		return fmt.Errorf("%w: %d nodes, want 1 to %d", ErrMap, len(m.Nodes), MaxNodes)
	case m.Operation != nil && len(m.Operation.Targets) != len(m.Buckets):
		return fmt.Errorf("%w: an operation with targets for %d of %d buckets", ErrMap, len(m.Operation.Targets),
			len(m.Buckets))
	}
	if _, ok := m.Node(m.Leader); !ok {
		return fmt.Errorf("%w: its leader %q is not a member", ErrMap, m.Leader)
	}
	if err := errors.Join(access.CheckAll(m.Users), access.CheckGroups(m.Groups)); err != nil {
		return fmt.Errorf("%w: %w", ErrMap, err)
	}
	if err := m.checkSpecs(specs); err != nil {
		return err
	}
	for i := range m.Buckets {
		if err := m.checkBucket(i); err != nil {
			return err
		}
	}
	return nil
}

// checkBucket checks the bucket at index i.
func (m Map) checkBucket(i int) error {
	b := &m.Buckets[i]
	switch {
	case m.Bucket(b.Name) != b:
		return fmt.Errorf("%w: two buckets %q", ErrMap, b.Name)
	case b.Made && !validVBuckets(len(b.Chains)):
		return fmt.Errorf("%w: bucket %q has %d vbuckets: want a power of two up to %d", ErrMap, b.Name, len(b.Chains),
			MaxVBuckets)
	case b.Collections != nil && b.Collections.Manifest == nil:
		return fmt.Errorf("%w: bucket %q: collections without a manifest", ErrMap, b.Name)
	case m.Operation != nil && len(m.Operation.Targets[i]) != len(b.Chains) &&
		(m.Operation.Bucket == "" || m.Operation.Bucket == b.Name || len(m.Operation.Targets[i]) > 0):
		return fmt.Errorf("%w: bucket %q: an operation for %d of %d vbuckets", ErrMap, b.Name, len(m.Operation.Targets[i]),
			len(b.Chains))
	}
	for v, chain := range b.Chains {
		if err := m.checkChain(chain); err != nil {
			return fmt.Errorf("bucket %q vbucket %d: %w", b.Name, v, err)
		}
	}
	return nil
}

func (m Map) checkChain(chain []string) error {
	if len(chain) == 0 || len(chain) > mcbp.MaxChain {
		return fmt.Errorf("%w: %d copies, want 1 to %d", ErrMap, len(chain), mcbp.MaxChain)
	}
	for i, id := range chain {
		if _, ok := m.Node(id); !ok || slices.Contains(chain[:i], id) {
			return fmt.Errorf("%w: a copy on node %q, which is not a member or already has one", ErrMap, id)
		}
	}
	return nil
}

// Role is a node's role for a vbucket.
type Role int

// Roles of a node.
const (
	// None: the node has no copy.
	None Role = iota
	// Active: the node has the active copy.
	Active
	// Replica: the node has a replica, or is being filled with one.
	Replica
)

// Role returns the role of node id for vbucket vb, and the id of the node with the active copy.
func (b *Bucket) Role(vb uint16, id string) (role Role, active string) {
	chain := b.Chains[vb]
	switch {
	case len(chain) == 0:
		return None, ""
	case chain[0] == id:
		return Active, id
	case slices.Contains(chain, id), slices.Contains(b.Incoming[vb], id):
		return Replica, chain[0]
	}
	return None, chain[0]
}

// Config returns the cluster config of a bucket that node self sends to clients.
func (m Map) Config(bucket, self string) (*mcbp.ClusterConfig, error) {
	b := m.Bucket(bucket)
	if b == nil {
		return nil, fmt.Errorf("%w: no bucket %q", ErrMap, bucket)
	}
	c := &mcbp.ClusterConfig{
		Rev: m.Rev, RevEpoch: m.RevEpoch, Name: b.Name, UUID: b.UUID, NodeLocator: "vbucket",
		BucketCapabilities: slices.Clone(capabilities[:]),
		VBucketServerMap:   mcbp.VBucketServerMap{HashAlgorithm: "CRC", NumReplicas: b.Replicas},
	}
	if err := m.addNodes(c, self); err != nil {
		return nil, err
	}
	index := map[string]int{}
	for i, n := range m.Nodes {
		index[n.ID] = i
	}
	for _, chain := range b.Chains {
		row := make([]int, b.Replicas+1)
		for i := range row {
			if row[i] = -1; i < len(chain) {
				row[i] = index[chain[i]]
			}
		}
		c.VBucketServerMap.VBucketMap = append(c.VBucketServerMap.VBucketMap, row)
	}
	return c, c.Validate()
}

// Services returns the services of all members, as node self reports them.
func (m Map) Services(self string) ([]mcbp.ConfigNodeExt, error) {
	var c mcbp.ClusterConfig
	err := m.addNodes(&c, self)
	return c.NodesExt, err
}

// addNodes adds the members to a cluster config that node self reports.
func (m Map) addNodes(c *mcbp.ClusterConfig, self string) error {
	for _, n := range m.Nodes {
		host, port, err := split(n.Memcached)
		if err != nil {
			return fmt.Errorf("%w: node %q: memcached address: %w", ErrMap, n.ID, err)
		}
		services := map[string]int{mcbp.ServiceKV: port}
		if n.MemcachedTLS != "" {
			if _, services[mcbp.ServiceKVTLS], err = split(n.MemcachedTLS); err != nil {
				return fmt.Errorf("%w: node %q: memcached address with TLS: %w", ErrMap, n.ID, err)
			}
		}
		mgmt := 0
		if n.Admin != "" {
			if _, mgmt, err = split(n.Admin); err != nil {
				return fmt.Errorf("%w: node %q: admin address: %w", ErrMap, n.ID, err)
			}
			manager := mcbp.ServiceManager
			if n.MemcachedTLS != "" { // the admin address speaks TLS where the memcached one does
				manager = mcbp.ServiceManagerTLS
			}
			services[manager] = mgmt
		}
		c.Nodes = append(c.Nodes, mcbp.ConfigNode{Hostname: net.JoinHostPort(host, strconv.Itoa(mgmt)),
			Ports: map[string]int{"direct": port}})
		name := host
		if name == mcbp.HostPlaceholder { // this list expresses it by an absent hostname
			name = ""
		}
		c.NodesExt = append(c.NodesExt, mcbp.ConfigNodeExt{Hostname: name, ThisNode: n.ID == self, Services: services})
		c.VBucketServerMap.ServerList = append(c.VBucketServerMap.ServerList, n.Memcached)
	}
	return nil
}

func split(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q: %w", address, err)
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q: no port number", address)
	}
	return host, port, nil
}
