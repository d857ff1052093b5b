package mcbp

import (
	"fmt"
	"testing"
)

// Hosts are IPv6 addresses in all the forms that managers and engines use: in brackets with a port, alone with
// brackets or without, as $HOST, with a zone.
func TestIPv6(t *testing.T) {
	for _, tt := range []struct {
		name, nodes, ext, list, via string
		kv, manager                 string // of node 0
	}{
		{"no names", `"$HOST:8091"`, ``, `"$HOST:11210"`, "::1", "[::1]:11210", "[::1]:8091"},
		{"only in the old list", `"[fd00::1]:8091"`, ``, `"[fd00::1]:11210"`, "::1", "[fd00::1]:11210", "[fd00::1]:8091"},
		{"in the new list", `"[fd00::1]:8091"`, `"hostname":"fd00::1",`, `"[fd00::1]:11210"`, "::1", "[fd00::1]:11210",
			"[fd00::1]:8091"},
		{"in brackets", `"[fd00::1]:8091"`, `"hostname":"[fd00::1]",`, `"[fd00::1]:11210"`, "::1", "[fd00::1]:11210",
			"[fd00::1]:8091"},
		{"without a port", `"fd00::1"`, ``, `"[fd00::1]:11210"`, "::1", "[fd00::1]:11210", "[fd00::1]:8091"},
		{"in brackets without a port", `"[fd00::1]"`, ``, `"[fd00::1]:11210"`, "::1", "[fd00::1]:11210", "[fd00::1]:8091"},
		{"a zone", `"$HOST:8091"`, ``, `"$HOST:11210"`, "fe80::1%lo", "[fe80::1%lo]:11210", "[fe80::1%lo]:8091"},
		{"another network", `"10.0.0.1:8091"`,
			`"hostname":"10.0.0.1","alternateAddresses":{"external":{"hostname":"[2001:DB8::1]"}},`, `"10.0.0.1:11210"`, "::1",
			"10.0.0.1:11210", "10.0.0.1:8091"},
	} {
		c, err := ParseClusterConfig(fmt.Appendf(nil, `{"rev":1,"nodeLocator":"vbucket",
"nodes":[{"hostname":%s,"ports":{"direct":11210}}],"nodesExt":[{%s"services":{"mgmt":8091,"kv":11210}}],
"vBucketServerMap":{"serverList":[%s],"vBucketMap":[[0]]}}`, tt.nodes, tt.ext, tt.list))
		if err != nil {
			t.Fatal(err)
		}
		kv, err := c.KVAddr(0, tt.via, false)
		if err != nil || kv != tt.kv {
			t.Errorf("%s: documents at %s, %v", tt.name, kv, err)
		}
		c.NodesExt[0].Services[ServiceManager] = 0 // like old maps, which have it in the old list
		if manager, err := c.ManagerAddrIn("", 0, tt.via, false); err == nil && manager != tt.manager {
			t.Errorf("%s: manager at %s", tt.name, manager)
		}
		c.NodesExt[0].Services[ServiceManager] = 8091
		if manager, err := c.ManagerAddrIn("", 0, tt.via, false); err != nil || manager != tt.manager {
			t.Errorf("%s: manager at %s, %v", tt.name, manager, err)
		}
		c.NodesExt, c.Nodes[0].Ports = nil, nil // the server list alone
		if kv, err := c.KVAddr(0, tt.via, false); err != nil || kv != tt.kv {
			t.Errorf("%s: documents by the list at %s, %v", tt.name, kv, err)
		}
	}
	external := &ClusterConfig{NodesExt: []ConfigNodeExt{{Hostname: "10.0.0.1", Services: map[string]int{ServiceKV: 11210},
		AlternateAddresses: map[string]AlternateAddress{NetworkExternal: {Hostname: "[2001:DB8::1]"}}}}}
	for dialled, want := range map[string]string{
		"[2001:db8:0::1]:11210": NetworkExternal, "[2001:db8::1]:9": NetworkExternal, "2001:db8::1": NetworkExternal,
		"[2001:db8::2]:11210": NetworkDefault, "10.0.0.1:11210": NetworkDefault,
	} {
		if got := external.NetworkOf(dialled); got != want {
			t.Errorf("%s is in %s", dialled, got)
		}
	}
}

// Nodes are paired with the server list even if an address is written in two ways.
func TestIPv6Pairs(t *testing.T) {
	c, err := ParseClusterConfig([]byte(`{"rev":1,"nodeLocator":"vbucket",
"nodesExt":[{"hostname":"fd00::2","services":{"kv":11210}},
{"hostname":"FD00:0::1","thisNode":true,"services":{"kv":11210}}],
"vBucketServerMap":{"serverList":["[fd00::1]:11210","[fd00::2]:11210"],"vBucketMap":[[0],[1]]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.ThisNode() != 0 {
		t.Errorf("%+v", c.NodesExt)
	}
}

func TestSplitHost(t *testing.T) {
	for address, want := range map[string][2]string{
		"h:1": {"h", "1"}, "h": {"h"}, "[::1]:1": {"::1", "1"}, "[::1]": {"::1"}, "::1": {"::1"},
		"$HOST:1": {"$HOST", "1"}, "$HOST": {"$HOST"}, "": {""}, "[fe80::1%lo]:1": {"fe80::1%lo", "1"},
		"fe80::1%lo": {"fe80::1%lo"}, ":1": {"", "1"},
	} {
		if host, port := splitHost(address); host != want[0] || port != want[1] {
			t.Errorf("%q: %q %q", address, host, port)
		}
	}
}

func TestFillHost(t *testing.T) {
	for _, tt := range [][3]string{{"$HOST:8091", "::1", "[::1]:8091"}, {"$HOST:1", "[::1]", "[::1]:1"},
		{"$HOST:1", "kv1", "kv1:1"}, {"kv2:1", "::1", "kv2:1"}} {
		if got := FillHost(tt[0], tt[1]); got != tt[2] {
			t.Errorf("%s at %s: %s", tt[0], tt[1], got)
		}
	}
}
