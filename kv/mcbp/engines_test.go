package mcbp

import (
	"errors"
	"strings"
	"testing"
)

// Cluster configs as sent by engines of the versions 5.1 and 6.0: without revEpoch, with fields that have no meaning
// here, placeholders and missing host names, ports only in the server list, nodes in another order than the servers.

const (
	// one node that does not know its own name
	config51Single = `{"rev":24,"name":"world","uri":"/pools/default/buckets/world?bucket_uuid=0a1b2c3d4e5f60718293a4b5c6d7e8f9",
"streamingUri":"/pools/default/bucketsStreaming/world?bucket_uuid=0a1b2c3d4e5f60718293a4b5c6d7e8f9",
"nodes":[{"couchApiBase":"http://$HOST:8092/world%2B0a1b2c3d4e5f60718293a4b5c6d7e8f9","hostname":"$HOST:8091","ports":{"proxy":11211,"direct":11210}}],
"nodesExt":[{"services":{"mgmt":8091,"mgmtSSL":18091,"fts":8094,"kv":11210,"kvSSL":11207,"capi":8092,"capiSSL":18092,"projector":9999,"n1ql":8093},"thisNode":true}],
"nodeLocator":"vbucket","uuid":"0a1b2c3d4e5f60718293a4b5c6d7e8f9","ddocs":{"uri":"/pools/default/buckets/world/ddocs"},
"vBucketServerMap":{"hashAlgorithm":"CRC","numReplicas":1,"serverList":["$HOST:11210"],"vBucketMap":[[0,-1],[0,-1],[0,-1],[0,-1]]},
"bucketCapabilitiesVer":"","bucketCapabilities":["xdcrCheckpointing","touch","couchapi","cccp","xdcrCheckpointing","nodesExt","dcp","xattr"]}`

	// two nodes and one without the bucket; during a rebalance, with the future map
	config60Three = `{"rev":118,"name":"world","nodes":[{"couchApiBase":"http://10.0.0.1:8092/world","hostname":"10.0.0.1:8091","ports":{"direct":11210}},
{"couchApiBase":"http://10.0.0.2:8092/world","hostname":"10.0.0.2:8091","ports":{"direct":11210}}],
"nodesExt":[{"services":{"mgmt":8091,"kv":11210,"kvSSL":11207},"hostname":"10.0.0.1","alternateAddresses":{"external":{"hostname":"kv1.example.org","ports":{"mgmt":8091,"kv":21210}}}},
{"services":{"mgmt":8091,"kv":11210,"kvSSL":11207},"thisNode":true,"hostname":"10.0.0.2"},
{"services":{"mgmt":8091,"n1ql":8093},"hostname":"10.0.0.3"}],
"nodeLocator":"vbucket","uuid":"u","ddocs":{"uri":"x"},"bucketCapabilitiesVer":"","bucketCapabilities":["dcp"],"clusterCapabilitiesVer":[1,0],"clusterCapabilities":{},
"vBucketServerMap":{"hashAlgorithm":"CRC","numReplicas":1,"serverList":["10.0.0.1:11210","10.0.0.2:11210"],"vBucketMap":[[0,1],[1,0]],"vBucketMapForward":[[1,0],[1,0]]}}`

	// the servers in another order than the nodes
	config60Order = `{"rev":5,"name":"world","nodes":[{"hostname":"10.0.0.1:8091","ports":{"direct":11210}},{"hostname":"10.0.0.2:8091","ports":{"direct":11210}},{"hostname":"10.0.0.3:8091","ports":{"direct":11210}}],
"nodesExt":[{"services":{"kv":11210,"kvSSL":11207},"hostname":"10.0.0.1"},{"services":{"kv":11210,"kvSSL":11207},"thisNode":true,"hostname":"10.0.0.2"},{"services":{"kv":11210,"kvSSL":11207},"hostname":"10.0.0.3"}],
"nodeLocator":"vbucket","vBucketServerMap":{"serverList":["10.0.0.3:11210","10.0.0.1:11210"],"vBucketMap":[[0,1],[1,-1]]}}`

	// a server that is not among the nodes (any more), and ports of nodes only in the server list
	config51Leaving = `{"rev":6,"name":"world","nodes":[{"hostname":"10.0.0.1:8091"}],"nodesExt":[{"services":{"mgmt":8091},"hostname":"10.0.0.1"}],
"nodeLocator":"vbucket","vBucketServerMap":{"serverList":["10.0.0.1:11210","10.0.0.2:11210"],"vBucketMap":[[0],[1]]}}`

	// before the map exists, and a bucket that never has one
	configEmpty     = `{"rev":1,"name":"world","nodes":[],"nodesExt":[],"nodeLocator":"vbucket","vBucketServerMap":{"serverList":[],"vBucketMap":[]}}`
	configMemcached = `{"rev":3,"name":"cache","nodeLocator":"ketama","nodes":[{"hostname":"$HOST:8091","ports":{"direct":11210}}],"nodesExt":[{"services":{"kv":11210}}],"bucketCapabilities":["cbhello"]}`
)

func TestConfigsOfEngines(t *testing.T) {
	for _, tt := range []struct {
		name, json string
		this       int
		kv, kvSSL  []string // by owner of vbucket 0, 1, …; "-" for an error
	}{
		{"5.1, one node without a name", config51Single, 0, []string{"seed:11210", "seed:11210", "seed:11210", "seed:11210"},
			[]string{"seed:11207", "seed:11207", "seed:11207", "seed:11207"}},
		{"6.0, rebalancing", config60Three, 1, []string{"10.0.0.1:11210", "10.0.0.2:11210"},
			[]string{"10.0.0.1:11207", "10.0.0.2:11207"}},
		{"6.0, servers in another order", config60Order, 2, []string{"10.0.0.3:11210", "10.0.0.1:11210"},
			[]string{"10.0.0.3:11207", "10.0.0.1:11207"}},
		{"5.1, a server beyond the nodes", config51Leaving, -1, []string{"10.0.0.1:11210", "10.0.0.2:11210"},
			[]string{"-", "-"}},
	} {
		c, err := ParseClusterConfig([]byte(tt.json))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if c.ThisNode() != tt.this || c.RevEpoch != 0 {
			t.Errorf("%s: this node is %d, want %d; epoch %d", tt.name, c.ThisNode(), tt.this, c.RevEpoch)
		}
		for vb := range uint16(c.NumVBuckets()) {
			for encrypted, want := range map[bool][]string{false: tt.kv, true: tt.kvSSL} {
				a, err := c.KVAddr(c.Owner(vb), "seed", encrypted)
				if err != nil {
					a = "-"
				}
				if a != want[vb] {
					t.Errorf("%s: vbucket %d, TLS %t: %s, want %s", tt.name, vb, encrypted, a, want[vb])
				}
			}
		}
	}
	external, err := ParseClusterConfig([]byte(config60Three))
	if err != nil {
		t.Fatal(err)
	}
	if n := external.NetworkOf("kv1.example.org:21210"); n != NetworkExternal {
		t.Errorf("network %q", n)
	}
	if a, err := external.KVAddrIn(NetworkExternal, 0, "seed", false); a != "kv1.example.org:21210" {
		t.Errorf("%s %v", a, err)
	}
	if _, err := ParseClusterConfig([]byte(configEmpty)); !errors.Is(err, ErrConfig) || errors.Is(err, ErrNoVBuckets) {
		t.Errorf("before the map is made: %v", err)
	}
	if _, err := ParseClusterConfig([]byte(configMemcached)); !errors.Is(err, ErrConfig) ||
		!errors.Is(err, ErrNoVBuckets) || !strings.Contains(err.Error(), "ephemeral") {
		t.Errorf("a memcached bucket: %v", err)
	}
}

// A cluster behind a gateway has one address with forwarded ports: the port identifies the network.
func TestNetworkOf(t *testing.T) {
	node := func(host, external string, kv, outside int) ConfigNodeExt {
		n := ConfigNodeExt{Hostname: host, Services: map[string]int{"kv": kv, "kvSSL": kv + 1}}
		if external != "" {
			n.AlternateAddresses = map[string]AlternateAddress{NetworkExternal: {Hostname: external}}
		}
		if outside > 0 {
			n.AlternateAddresses[NetworkExternal] = AlternateAddress{Hostname: external, Ports: map[string]int{"kv": outside,
				"kvSSL": outside + 1}}
		}
		return n
	}
	for _, tt := range []struct {
		name, address, want string
		nodes               []ConfigNodeExt
	}{
		{"inside", "10.0.0.1:11210", NetworkDefault, []ConfigNodeExt{node("10.0.0.1", "db.example.org", 11210, 31210)}},
		{"inside, with TLS", "10.0.0.1:11211", NetworkDefault, []ConfigNodeExt{node("10.0.0.1", "10.0.0.1", 11210, 31210)}},
		{"outside", "db.example.org:31210", NetworkExternal, []ConfigNodeExt{node("10.0.0.1", "db.example.org", 11210, 31210)}},
		{"outside, with TLS", "db.example.org:31211", NetworkExternal,
			[]ConfigNodeExt{node("10.0.0.1", "db.example.org", 11210, 31210)}},
		{"outside, the same ports", "db.example.org:11210", NetworkExternal,
			[]ConfigNodeExt{node("10.0.0.1", "db.example.org", 11210, 0)}},
		{"one host, two ports: inside", "gate:11210", NetworkDefault, []ConfigNodeExt{node("gate", "gate", 11210, 31210)}},
		{"one host, two ports: outside", "gate:31210", NetworkExternal, []ConfigNodeExt{node("gate", "gate", 11210, 31210)}},
		{"an unknown port, inside", "10.0.0.1:9", NetworkDefault,
			[]ConfigNodeExt{node("10.0.0.1", "db.example.org", 11210, 31210)}},
		{"an unknown port, outside", "db.example.org:9", NetworkExternal,
			[]ConfigNodeExt{node("10.0.0.1", "db.example.org", 11210, 31210)}},
		{"the second node", "b.example.org:31210", NetworkExternal,
			[]ConfigNodeExt{node("10.0.0.1", "a.example.org", 11210, 31210), node("10.0.0.2", "b.example.org", 11210, 31210)}},
		{"IPv6", "[fd00::1]:11210", NetworkDefault, []ConfigNodeExt{node("fd00::1", "2001:db8::1", 11210, 0)}},
		{"IPv6, outside", "[2001:db8::1]:11210", NetworkExternal, []ConfigNodeExt{node("fd00::1", "2001:db8::1", 11210, 0)}},
		{"an unknown host", "elsewhere:11210", NetworkDefault, []ConfigNodeExt{node("10.0.0.1", "db.example.org", 11210, 31210)}},
		{"a node without a name", "elsewhere:11210", NetworkDefault, []ConfigNodeExt{node("", "db.example.org", 11210, 0)}},
	} {
		c := &ClusterConfig{NodesExt: tt.nodes}
		if got := c.NetworkOf(tt.address); got != tt.want {
			t.Errorf("%s: %s is in %q, want %q", tt.name, tt.address, got, tt.want)
		}
	}
}
