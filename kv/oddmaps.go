package kv

import (
	"net"
	"strconv"

	"tidemark/kv/mcbp"
)

// goneHost and gonePort are the address of a node that no longer exists, of whose end a cluster manager has not
// learned yet; nothing listens there.
const goneHost, gonePort = "127.0.0.1", 9

// odd changes a config into that of a cluster manager whose node has no host name, and which still lists a node that
// is gone. If a vbucket has fewer copies than it should, that node is listed for the missing ones.
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

// hostless returns an address with $HOST in place of its host.
func hostless(address string) string {
	if _, port, err := net.SplitHostPort(address); err == nil {
		return net.JoinHostPort(mcbp.HostPlaceholder, port)
	}
	return address
}
