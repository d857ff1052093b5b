// Package clustermap says which node of a KV cluster holds which vbucket of a bucket, and writes that down for clients.
//
// It promises that every node derives the same map from the same list of nodes, that a map once made is kept (it names node
// ids; addresses are looked up), and that the revision rises whenever what clients see changes. It never moves a vbucket.
package clustermap

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"tidemark/mcbp"
)

// ErrMap means that a map and the list of nodes do not fit together.
var ErrMap = errors.New("unusable vbucket map")

const (
	// revEpoch is the epoch of static maps: there is no election that could make another.
	revEpoch = 1
	// Format is the version of the stored form.
	Format = 1
)

// capabilities are what clients may ask of a bucket.
var capabilities = [...]string{"collections", "tombstonedUserXAttrs", "dcp", "cbhello", "touch", "cccp", "xdcrCheckpointing", "nodesExt", "xattr"}

// Node is one member of the cluster. Addresses are host:port; MemcachedTLS is empty where TLS is not spoken.
type Node struct {
	ID           string `json:"id"`
	Memcached    string `json:"memcached"`
	MemcachedTLS string `json:"memcached_tls,omitempty"`
	Admin        string `json:"admin"`
}

// Map is a bucket's map. Chains[v][0] is the id of the node with the active copy of vbucket v, the others have replicas.
type Map struct {
	Format   int        `json:"format"`
	RevEpoch int64      `json:"rev_epoch"`
	Rev      int64      `json:"rev"`
	Bucket   string     `json:"bucket"`
	UUID     string     `json:"uuid"`
	Nodes    []Node     `json:"nodes"`
	Chains   [][]string `json:"chains"`
}

// Derive makes the first map of a bucket: node i of n gets the i-th of n equal runs of vbuckets.
func Derive(bucket, uuid string, vbuckets int, nodes []Node) Map {
	m := Map{Format: Format, RevEpoch: revEpoch, Rev: 1, Bucket: bucket, UUID: uuid, Nodes: slices.Clone(nodes)}
	for v := range vbuckets {
		m.Chains = append(m.Chains, []string{nodes[v*len(nodes)/vbuckets].ID})
	}
	return m
}

// WithNodes gives the map the present addresses; the revision rises when they differ from the known ones. Every node that
// the map names must be in the list.
func (m Map) WithNodes(nodes []Node) (Map, error) {
	for _, chain := range m.Chains {
		for _, id := range chain {
			if !slices.ContainsFunc(nodes, func(n Node) bool { return n.ID == id }) {
				return m, fmt.Errorf("%w: bucket %q has vbuckets on node %q, which is not in the list of %d nodes: list all nodes of the cluster",
					ErrMap, m.Bucket, id, len(nodes))
			}
		}
	}
	if !slices.Equal(m.Nodes, nodes) {
		m.Nodes = slices.Clone(nodes)
		m.Rev++
	}
	return m, nil
}

// Check refuses a stored map that does not belong to this bucket.
func (m Map) Check(bucket, uuid string, vbuckets int) error {
	switch {
	case m.Format != Format:
		return fmt.Errorf("%w: stored with format %d, this program reads %d", ErrMap, m.Format, Format)
	case m.Bucket != bucket || m.UUID != uuid:
		return fmt.Errorf("%w: stored for bucket %q (%s), wanted %q (%s): a bucket keeps its name and uuid", ErrMap, m.Bucket, m.UUID, bucket, uuid)
	case len(m.Chains) != vbuckets:
		return fmt.Errorf("%w: bucket %q was made with %d vbuckets, wanted %d: the number cannot change", ErrMap, bucket, len(m.Chains), vbuckets)
	}
	for v, chain := range m.Chains {
		if len(chain) == 0 || len(chain) > mcbp.MaxChain {
			return fmt.Errorf("%w: vbucket %d has %d copies", ErrMap, v, len(chain))
		}
	}
	return nil
}

// Owner is the id of the node with the active copy.
func (m Map) Owner(vb uint16) string {
	if int(vb) >= len(m.Chains) {
		return ""
	}
	return m.Chains[vb][0]
}

// Config is the cluster config that node self gives to clients.
func (m Map) Config(self string) (*mcbp.ClusterConfig, error) {
	c := &mcbp.ClusterConfig{
		Rev: m.Rev, RevEpoch: m.RevEpoch, Name: m.Bucket, UUID: m.UUID, NodeLocator: "vbucket",
		BucketCapabilities: slices.Clone(capabilities[:]),
		VBucketServerMap:   mcbp.VBucketServerMap{HashAlgorithm: "CRC"},
	}
	index := map[string]int{}
	for i, n := range m.Nodes {
		host, port, err := split(n.Memcached)
		if err != nil {
			return nil, fmt.Errorf("%w: node %q: memcached address: %w", ErrMap, n.ID, err)
		}
		services := map[string]int{"kv": port}
		if n.MemcachedTLS != "" {
			if _, services["kvSSL"], err = split(n.MemcachedTLS); err != nil {
				return nil, fmt.Errorf("%w: node %q: memcached address with TLS: %w", ErrMap, n.ID, err)
			}
		}
		mgmt := 0
		if n.Admin != "" {
			if _, mgmt, err = split(n.Admin); err != nil {
				return nil, fmt.Errorf("%w: node %q: admin address: %w", ErrMap, n.ID, err)
			}
			services["mgmt"] = mgmt
		}
		index[n.ID] = i
		c.Nodes = append(c.Nodes, mcbp.ConfigNode{Hostname: net.JoinHostPort(host, strconv.Itoa(mgmt)), Ports: map[string]int{"direct": port}})
		name := host
		if name == mcbp.HostPlaceholder { // in this list it is said by leaving it out
			name = ""
		}
		c.NodesExt = append(c.NodesExt, mcbp.ConfigNodeExt{Hostname: name, ThisNode: n.ID == self, Services: services})
		c.VBucketServerMap.ServerList = append(c.VBucketServerMap.ServerList, n.Memcached)
	}
	for _, chain := range m.Chains {
		nodes := make([]int, len(chain))
		for i, id := range chain {
			nodes[i] = index[id]
		}
		c.VBucketServerMap.VBucketMap = append(c.VBucketServerMap.VBucketMap, nodes)
		c.VBucketServerMap.NumReplicas = max(c.VBucketServerMap.NumReplicas, len(chain)-1)
	}
	return c, c.Validate()
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
