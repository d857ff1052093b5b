package kv

import (
	"net"
	"strconv"

	"tidemark/kv/mcbp"
)

// goneHost and gonePort are of a node of which a cluster manager has not heard yet that it is no more; nobody listens
// there.
const goneHost, gonePort = "127.0.0.1", 9

// odd makes a config as a cluster manager does for a node that has no name, and that knows one more node, which is
// gone. Where there are fewer copies than there should be, that one is said to have them.
func odd(c *mcbp.ClusterConfig) {
	if self := c.ThisNode(); self >= 0 {
		c.Nodes[self].Hostname = hostless(c.Nodes[self].Hostname)
		c.VBucketServerMap.ServerList[self] = hostless(c.VBucketServerMap.ServerList[self])
		c.NodesExt[self].Hostname = ""
	}
	n, address := len(c.Nodes), net.JoinHostPort(goneHost, strconv.Itoa(gonePort))
	c.Nodes = append(c.Nodes, mcbp.ConfigNode{Hostname: address,
		Ports: map[string]int{"direct": gonePort}})
	c.NodesExt = append(c.NodesExt, mcbp.ConfigNodeExt{Hostname: goneHost, Services: map[string]int{"kv": gonePort}})
	c.VBucketServerMap.ServerList = append(c.VBucketServerMap.ServerList, address)
	for _, chain := range c.VBucketServerMap.VBucketMap {
		for i := range chain {
			if chain[i] < 0 && i > 0 {
				chain[i] = n
				break
			}
		}
	}
}

// hostless is an address with $HOST in the place of its host.
func hostless(address string) string {
	if _, port, err := net.SplitHostPort(address); err == nil {
		return net.JoinHostPort(mcbp.HostPlaceholder, port)
	}
	return address
}
