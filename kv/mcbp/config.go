package mcbp

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ErrConfig is wrapped if a cluster config is not usable; the message names the field.
var ErrConfig = errors.New("mcbp: unusable cluster config")

// ErrNoVBuckets is wrapped in addition to ErrConfig if the type of a bucket has no vbuckets: it never has a map.
var ErrNoVBuckets = errors.New("a memcached bucket has no vbuckets")

// Limits of a cluster config.
const (
	// MaxConfigBytes bounds the JSON of a cluster config (1,024 vbuckets with three
	// replicas on 100 nodes take about 40 KiB).
	MaxConfigBytes = 4 << 20
	// MaxConfigNodes bounds the nodes of a cluster config.
	MaxConfigNodes = 4096
	// MaxChain bounds the copies of one vbucket: the owner and three replicas.
	MaxChain = 4
)

// HostPlaceholder in a config stands for the host through which the client reached the node.
const HostPlaceholder = "$HOST"

// ClusterConfig is the bucket map in answers to GET_CLUSTER_CONFIG and in NOT_MY_VBUCKET: the nodes, and the owner of
// each vbucket. Newer configs have a higher (RevEpoch, Rev).
type ClusterConfig struct {
	Rev                   int64            `json:"rev"`
	RevEpoch              int64            `json:"revEpoch"`
	Name                  string           `json:"name,omitempty"`
	UUID                  string           `json:"uuid,omitempty"`
	NodeLocator           string           `json:"nodeLocator"`
	BucketCapabilitiesVer string           `json:"bucketCapabilitiesVer"`
	BucketCapabilities    []string         `json:"bucketCapabilities"`
	Nodes                 []ConfigNode     `json:"nodes"`
	NodesExt              []ConfigNodeExt  `json:"nodesExt"`
	VBucketServerMap      VBucketServerMap `json:"vBucketServerMap"`
}

// ConfigNode is a node of the bucket in the old form: host and REST port, and
// the memcached port.
type ConfigNode struct {
	Hostname string         `json:"hostname"`
	Ports    map[string]int `json:"ports,omitempty"` // "direct": memcached
}

// ConfigNodeExt is a node in the new form. The first len(Nodes) entries are in
// the order of Nodes; later ones do not serve the bucket.
type ConfigNodeExt struct {
	Hostname string         `json:"hostname,omitempty"`
	ThisNode bool           `json:"thisNode,omitempty"`
	Services map[string]int `json:"services"` // "kv", "kvSSL", "mgmt", "mgmtSSL"
	// AlternateAddresses are the node's addresses in other networks, by the network's name.
	AlternateAddresses map[string]AlternateAddress `json:"alternateAddresses,omitempty"`
}

// AlternateAddress is a node's address in another network. If it has no ports, those of Services apply.
type AlternateAddress struct {
	Hostname string         `json:"hostname"`
	Ports    map[string]int `json:"ports,omitempty"`
}

// Services in a config with their ports: documents and the cluster manager, without TLS and with it.
const (
	ServiceKV         = "kv"
	ServiceKVTLS      = "kvSSL"
	ServiceManager    = "mgmt"
	ServiceManagerTLS = "mgmtSSL"
)

// Names of networks: the one that the nodes use among themselves, and the additional one that Couchbase supports.
const (
	NetworkDefault  = "default"
	NetworkExternal = "external"
)

// VBucketServerMap has the nodes of each vbucket: VBucketMap[v][0] is the owner (an index into ServerList), the
// others are its replicas, -1 for none.
type VBucketServerMap struct {
	HashAlgorithm string   `json:"hashAlgorithm"`
	NumReplicas   int      `json:"numReplicas"`
	ServerList    []string `json:"serverList,omitempty"`
	VBucketMap    [][]int  `json:"vBucketMap"`
}

// Marshal encodes the config as JSON, after Validate.
func (c *ClusterConfig) Marshal() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return json.Marshal(c)
}

// ParseClusterConfig decodes and validates a config.
func ParseClusterConfig(data []byte) (*ClusterConfig, error) {
	if len(data) > MaxConfigBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrConfig, len(data), MaxConfigBytes)
	}
	var c ClusterConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.pair()
	return &c, nil
}

// pair sorts the nodes into the order of the server list, to which the numbers of the map refer: an engine may list
// them in another order. If a server is not found among the nodes the order is not changed.
func (c *ClusterConfig) pair() {
	order := c.order()
	if order == nil {
		return
	}
	nodes, ext := slices.Clone(c.Nodes), slices.Clone(c.NodesExt)
	for i, n := range order {
		ext[i] = c.NodesExt[n]
		if len(nodes) > 0 {
			nodes[i] = c.Nodes[n]
		}
	}
	c.Nodes, c.NodesExt = nodes, ext
}

// order returns the nodes in the order of the vbucket map's server list, followed by those that are not in it. It
// returns nil if they are in that order already, or if servers and nodes cannot be matched.
func (c *ClusterConfig) order() []int {
	list := c.VBucketServerMap.ServerList
	if len(list) == 0 || len(list) > len(c.NodesExt) || len(c.Nodes) > 0 && len(c.Nodes) < len(list) {
		return nil
	}
	known := len(c.NodesExt)
	if len(c.Nodes) > 0 {
		known = min(known, len(c.Nodes)) // later ones do not serve the bucket
	}
	at := map[string]int{}
	for i, e := range c.NodesExt[:known] {
		at[joinHostPort(canonical(c.hostOf(i, HostPlaceholder)), e.Services["kv"])] = i
	}
	order, taken, same := make([]int, 0, known), make([]bool, known), true
	for i, server := range list {
		host, port := splitHost(server)
		n, ok := at[bracketed(canonical(host))+":"+port]
		if !ok || taken[n] {
			return nil
		}
		order, taken[n], same = append(order, n), true, same && n == i
	}
	if same {
		return nil
	}
	for n := range known {
		if !taken[n] {
			order = append(order, n)
		}
	}
	return order
}

// Validate checks that the map is usable for routing: vbucket locator, a power of two of vbuckets, every node index
// within the nodes.
func (c *ClusterConfig) Validate() error {
	n := len(c.VBucketServerMap.VBucketMap)
	nodes := c.NumNodes()
	switch {
	case c.NodeLocator != "" && c.NodeLocator != "vbucket":
		return fmt.Errorf("%w: nodeLocator is %q, want \"vbucket\": %w; use a Couchbase or ephemeral bucket", ErrConfig,
			c.NodeLocator, ErrNoVBuckets)
	case n > MaxVBuckets || bits.OnesCount(uint(n)) != 1:
		return fmt.Errorf("%w: vBucketMap has %d vbuckets, want a power of two from 1 to %d", ErrConfig, n, MaxVBuckets)
	case nodes < 1 || nodes > MaxConfigNodes || len(c.NodesExt) > MaxConfigNodes:
		return fmt.Errorf("%w: %d nodes, want 1 to %d", ErrConfig, nodes, MaxConfigNodes)
	}
	for vb, chain := range c.VBucketServerMap.VBucketMap {
		if err := checkChain(vb, chain, nodes); err != nil {
			return err
		}
	}
	return c.checkPorts()
}

// checkPorts refuses services with invalid ports.
func (c *ClusterConfig) checkPorts() error {
	for i, e := range c.NodesExt {
		if service, port, bad := badPort(e.Services); bad {
			return fmt.Errorf("%w: nodesExt[%d] service %q has port %d", ErrConfig, i, service, port)
		}
		for network, a := range e.AlternateAddresses {
			if service, port, bad := badPort(a.Ports); bad {
				return fmt.Errorf("%w: nodesExt[%d] service %q in network %q has port %d", ErrConfig, i, service, network, port)
			}
		}
	}
	return nil
}

func checkChain(vb int, chain []int, nodes int) error {
	if len(chain) == 0 || len(chain) > MaxChain {
		return fmt.Errorf("%w: vbucket %d has a chain of %d nodes, want 1 to %d", ErrConfig, vb, len(chain), MaxChain)
	}
	for _, node := range chain {
		if node < -1 || node >= nodes {
			return fmt.Errorf("%w: vbucket %d names node %d, there are %d", ErrConfig, vb, node, nodes)
		}
	}
	return nil
}

// badPort returns a service with an invalid port.
func badPort(ports map[string]int) (service string, port int, bad bool) {
	for service, port := range ports {
		if port < 0 || port > 65535 {
			return service, port, true
		}
	}
	return "", 0, false
}

// NumNodes returns the number of nodes to which vBucketMap can refer. While nodes are added or removed the server
// list may be longer than the list of nodes.
func (c *ClusterConfig) NumNodes() int {
	if n := max(len(c.Nodes), len(c.VBucketServerMap.ServerList)); n > 0 {
		return n
	}
	return len(c.NodesExt)
}

// NumVBuckets returns the number of vbuckets of the bucket.
func (c *ClusterConfig) NumVBuckets() int { return len(c.VBucketServerMap.VBucketMap) }

// Owner returns the node (an index for KVAddr) that has the active copy of a vbucket, or -1 if there is none.
func (c *ClusterConfig) Owner(vbucket uint16) int {
	if int(vbucket) >= c.NumVBuckets() {
		return -1
	}
	return c.VBucketServerMap.VBucketMap[vbucket][0]
}

// Owned returns the vbuckets whose active copy is on node, ascending.
func (c *ClusterConfig) Owned(node int) []uint16 {
	var out []uint16
	for vb, chain := range c.VBucketServerMap.VBucketMap {
		if chain[0] == node {
			out = append(out, uint16(vb))
		}
	}
	return out
}

// ThisNode returns the node that sent this config, or -1 if the config does not identify it.
func (c *ClusterConfig) ThisNode() int {
	for i, e := range c.NodesExt {
		if e.ThisNode && i < c.NumNodes() {
			return i
		}
	}
	return -1
}

// Newer reports whether c replaces old: a higher epoch, or a higher revision in
// the same epoch. Everything replaces nil.
func (c *ClusterConfig) Newer(old *ClusterConfig) bool {
	if old == nil {
		return true
	}
	if c.RevEpoch != old.RevEpoch {
		return c.RevEpoch > old.RevEpoch
	}
	return c.Rev > old.Rev
}

// KVAddr returns the memcached address host:port of a node. bootstrapHost replaces HostPlaceholder and a missing
// hostname (a single node that does not know its own name). tls selects the encrypted port.
func (c *ClusterConfig) KVAddr(node int, bootstrapHost string, tls bool) (string, error) {
	if node < 0 || node >= c.NumNodes() {
		return "", fmt.Errorf("%w: no node %d, there are %d", ErrConfig, node, c.NumNodes())
	}
	service := ServiceKV
	if tls {
		service = ServiceKVTLS
	}
	if node < len(c.NodesExt) {
		if port := c.NodesExt[node].Services[service]; port > 0 {
			return joinHostPort(c.hostOf(node, bootstrapHost), port), nil
		}
	}
	if !tls && node < len(c.VBucketServerMap.ServerList) {
		return FillHost(c.VBucketServerMap.ServerList[node], bootstrapHost), nil
	}
	if !tls && node < len(c.Nodes) {
		if port := c.Nodes[node].Ports["direct"]; port > 0 {
			return joinHostPort(c.hostOf(node, bootstrapHost), port), nil
		}
	}
	return "", fmt.Errorf("%w: node %d has no %q service", ErrConfig, node, service)
}

// services returns the services whose addresses identify a network.
func services() []string {
	return []string{ServiceKV, ServiceKVTLS, ServiceManager, ServiceManagerTLS}
}

// NetworkOf returns the network in which address (host:port as dialled) belongs to a node's Data Service or manager,
// by the rules of Couchbase's clients: first by host and port, then by the host alone. The default is NetworkDefault.
func (c *ClusterConfig) NetworkOf(address string) string {
	host, port := splitHost(address)
	host = canonical(host)
	for _, same := range []func(h string, ports map[string]int) bool{
		func(h string, ports map[string]int) bool {
			return canonical(h) == host &&
				slices.ContainsFunc(services(), func(s string) bool { return strconv.Itoa(ports[s]) == port })
		},
		func(h string, _ map[string]int) bool { return canonical(h) == host },
	} {
		if n := c.networkWhere(same); n != "" {
			return n
		}
	}
	return NetworkDefault
}

// networkWhere returns the network of the first node for which same is true, NetworkDefault before others, "" for
// none.
func (c *ClusterConfig) networkWhere(same func(host string, ports map[string]int) bool) string {
	for i, e := range c.NodesExt {
		if h := c.hostOf(i, ""); h != "" && same(h, e.Services) {
			return NetworkDefault
		}
	}
	for _, e := range c.NodesExt {
		for _, name := range slices.Sorted(maps.Keys(e.AlternateAddresses)) {
			a := e.AlternateAddresses[name]
			ports := a.Ports
			if len(ports) == 0 {
				ports = e.Services
			}
			if same(a.Hostname, ports) {
				return name
			}
		}
	}
	return ""
}

// KVAddrIn is KVAddr in a network. It fails if a node has no address there, because the default one would not be
// reachable.
func (c *ClusterConfig) KVAddrIn(network string, node int, bootstrapHost string, tls bool) (string, error) {
	if network == "" || network == NetworkDefault {
		return c.KVAddr(node, bootstrapHost, tls)
	}
	service := ServiceKV
	if tls {
		service = ServiceKVTLS
	}
	return c.addrIn(network, node, service)
}

// ManagerAddrIn returns the address host:port of a node's cluster manager in a network; bootstrapHost replaces
// HostPlaceholder and a missing name.
func (c *ClusterConfig) ManagerAddrIn(network string, node int, bootstrapHost string, tls bool) (string, error) {
	service := ServiceManager
	if tls {
		service = ServiceManagerTLS
	}
	if network != "" && network != NetworkDefault {
		return c.addrIn(network, node, service)
	}
	if node < 0 || node >= c.NumNodes() {
		return "", fmt.Errorf("%w: no node %d, there are %d", ErrConfig, node, c.NumNodes())
	}
	port := 0
	if node < len(c.NodesExt) {
		port = c.NodesExt[node].Services[service]
	}
	if port == 0 && node < len(c.Nodes) { // old maps
		port = c.Nodes[node].Ports["httpsMgmt"]
		if !tls {
			_, text := splitHost(c.Nodes[node].Hostname)
			port, _ = strconv.Atoi(text)
		}
	}
	if port <= 0 || port > 65535 {
		return "", fmt.Errorf("%w: node %d has no %q service", ErrConfig, node, service)
	}
	return joinHostPort(c.hostOf(node, bootstrapHost), port), nil
}

// addrIn returns the address of a node's service in a network other than the default one.
func (c *ClusterConfig) addrIn(network string, node int, service string) (string, error) {
	if node < 0 || node >= len(c.NodesExt) {
		return "", fmt.Errorf("%w: no node %d, there are %d", ErrConfig, node, len(c.NodesExt))
	}
	e := c.NodesExt[node]
	a, ok := e.AlternateAddresses[network]
	if !ok {
		return "", fmt.Errorf("%w: node %d has no address in network %q", ErrConfig, node, network)
	}
	ports := a.Ports
	if len(ports) == 0 {
		ports = e.Services
	}
	if ports[service] == 0 {
		return "", fmt.Errorf("%w: node %d has no %q service in network %q", ErrConfig, node, service, network)
	}
	return joinHostPort(a.Hostname, ports[service]), nil
}

// hostOf returns a node's host without its port.
func (c *ClusterConfig) hostOf(node int, bootstrapHost string) string {
	host := ""
	if node < len(c.NodesExt) {
		host = c.NodesExt[node].Hostname
	}
	if host == "" && node < len(c.Nodes) {
		host, _ = splitHost(c.Nodes[node].Hostname)
	}
	host = strings.Trim(host, "[]")
	if host == "" || host == HostPlaceholder {
		return bootstrapHost
	}
	return host
}

// FillHost replaces HostPlaceholder in an address by the host from which the map was received.
func FillHost(address, host string) string {
	return strings.ReplaceAll(address, HostPlaceholder, bracketed(host))
}

// joinHostPort returns host:port, with brackets around an IPv6 address.
func joinHostPort(host string, port int) string { return bracketed(host) + ":" + strconv.Itoa(port) }

// splitHost splits host:port; an IPv6 address has brackets, or no port. port is "" if there is none.
func splitHost(address string) (host, port string) {
	i := strings.LastIndexByte(address, ':')
	if _, err := netip.ParseAddr(address); err == nil || i < 0 || strings.HasSuffix(address, "]") {
		return strings.Trim(address, "[]"), ""
	}
	return strings.Trim(address[:i], "[]"), address[i+1:]
}

// canonical returns the canonical form of a host, since an address can be written in several ways.
func canonical(host string) string {
	host = strings.Trim(host, "[]")
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String()
	}
	if host == HostPlaceholder {
		return host
	}
	return strings.ToLower(host)
}

// bracketed adds brackets to an IPv6 address.
func bracketed(host string) string {
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		return "[" + host + "]"
	}
	return host
}
