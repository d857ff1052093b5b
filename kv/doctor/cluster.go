package doctor

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// cluster is the combined view of all nodes.
type cluster struct {
	config  *mcbp.ClusterConfig // the newest map that any node returned
	via     string              // host of the node that returned it
	network string
	tls     bool
	nodes   []member
	answers []*facts
	// managers are the cluster managers that the caller named, shown the newest map that one of them returned.
	managers []managerAnswer
	shown    *managerAnswer
}

// member is a node of the map.
type member struct {
	name   string // address, or a description of a node without one
	err    error  // the node has no address
	active int    // active vbuckets by the map
	facts  *facts // nil until the node was examined
}

// newCluster takes the nodes from the newest of the maps.
func newCluster(answers []*facts, managers []managerAnswer, network string, tls bool) *cluster {
	c := &cluster{answers: answers, managers: managers, shown: newestOf(managers), network: network, tls: tls}
	seed := ""
	if c.shown != nil {
		c.config, seed = c.shown.answer.Config, c.shown.addr
	}
	for _, f := range answers {
		if f.config != nil && f.config.Newer(c.config) {
			c.config, seed = f.config, f.addr
		}
	}
	if c.config == nil {
		return c
	}
	c.via, _, _ = net.SplitHostPort(seed)
	if c.network == "" {
		c.network = c.config.NetworkOf(seed)
	}
	for n := range c.config.NumNodes() {
		m := member{active: len(c.config.Owned(n))}
		if m.name, m.err = c.config.KVAddrIn(c.network, n, c.via, tls); m.err != nil {
			m.name = fmt.Sprintf("node %d of the map", n)
		}
		c.nodes = append(c.nodes, m)
	}
	return c
}

// addresses returns the addresses of the map's nodes.
func (c *cluster) addresses() (out []string) {
	for _, m := range c.nodes {
		if m.err == nil && !slices.Contains(out, m.name) {
			out = append(out, m.name)
		}
	}
	return out
}

// take records the answers of the map's nodes. Without a map, all nodes that were examined count.
func (c *cluster) take(answers []*facts) {
	c.answers = answers
	for i := range c.nodes {
		at := slices.IndexFunc(answers, func(f *facts) bool { return f.addr == c.nodes[i].name })
		if at >= 0 && c.nodes[i].err == nil {
			c.nodes[i].facts = answers[at]
		}
	}
}

// examined returns the nodes to judge: those of the map, and seeds outside it that do not answer.
func (c *cluster) examined() (out []*facts) {
	for _, f := range c.answers {
		member := slices.ContainsFunc(c.nodes, func(m member) bool { return m.facts == f })
		if member || c.config == nil || f.err != nil {
			out = append(out, f)
		}
	}
	return out
}

// judge returns the report.
func (c *cluster) judge(o Options) *Report {
	all := c.examined()
	r := &Report{Network: c.network, Nodes: len(all), Result: OK}
	for _, m := range c.nodes {
		if m.err != nil {
			r.Nodes++
		}
	}
	p := &reporter{}
	c.judgeManagers(p, o)
	c.reach(p, all)
	var answering []*facts
	for _, f := range all {
		if f.err == nil || f.features != nil { // the node accepted the login
			answering = append(answering, f)
		}
	}
	p.each(checkLogin, all, login(o.KV.User))
	p.each(checkTLS, all, encryption(o.Now()))
	if len(answering) > 0 {
		c.maps(p, answering)
		judgeEach(p, answering, o)
	}
	r.Checks = p.bounded()
	for _, k := range r.Checks {
		if k.Result.worse(r.Result) {
			r.Result = k.Result
		}
	}
	if c.config != nil {
		r.UUID, r.VBuckets = c.config.UUID, c.config.NumVBuckets()
	}
	if r.cause = causeOf(all); len(c.managers) > 0 && c.shown == nil {
		r.cause = causeOfManagers(c.managers)
	}
	return r
}

// reach judges which nodes are reachable.
func (c *cluster) reach(p *reporter, all []*facts) {
	for _, f := range all {
		active, of := c.has(f)
		found := finding{result: OK, seen: "it answers"}
		switch {
		case f.err == nil || refused(f.err):
		case of && active == 0:
			found = finding{Warning, "it has no vbucket, and " + f.unreachable(c.tls),
				"no stream needs it; if it has left the cluster, the map is out of date, otherwise check that it runs"}
		default:
			found = finding{Fails, f.unreachable(c.tls),
				"check that the node runs and that its memcached port is open from here (" +
					"11210, with TLS 11207); if it is lost permanently, fail it over" + c.otherNetworks()}
		}
		p.add(checkReach, found, f.addr)
	}
	for _, m := range c.nodes {
		if m.err == nil {
			continue
		}
		found := finding{Fails, m.err.Error(),
			"choose another network (--kv-network), or give the node an address in this one; " +
				"with TLS it needs the service kvSSL"}
		if m.active == 0 {
			found.result = Warning
		}
		p.add(checkReach, found, m.name)
	}
}

// otherNetworks returns advice if the map has addresses of other networks, which are not dialled.
func (c *cluster) otherNetworks() string {
	if c.config == nil {
		return ""
	}
	var names []string
	for _, e := range c.config.NodesExt {
		for name := range e.AlternateAddresses {
			if name != c.network && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("; the map has addresses in other networks too: --kv-network %s",
		strings.Join(names[:min(len(names), maxNamed)], " or "))
}

// has returns how many active vbuckets a node has by the map, and whether the map contains the node.
func (c *cluster) has(f *facts) (active int, of bool) {
	for _, m := range c.nodes {
		if m.facts == f {
			active, of = active+m.active, true
		}
	}
	return active, of
}

// maps judges the cluster map, and the nodes' views of it.
func (c *cluster) maps(p *reporter, all []*facts) {
	p.each(checkMap, all, func(f *facts) (finding, bool) { return c.mapOf(f) })
	if c.config == nil {
		return
	}
	v, copies := c.config.NumVBuckets(), c.config.VBucketServerMap.NumReplicas
	unowned := 0
	for vb := range v {
		if c.config.Owner(uint16(vb)) < 0 {
			unowned++
		}
	}
	switch {
	case v > timestamp.MaxVBuckets:
		p.add(checkMap, finding{Fails, fmt.Sprintf("%d vbuckets", v), fmt.Sprintf("a bucket with indexes may have at most %d",
			timestamp.MaxVBuckets)})
	case unowned > 0:
		p.add(checkMap, finding{Fails, fmt.Sprintf("%d of %d vbuckets have no node", unowned, v),
			"fail over or add back the node that had them; scans wait until a node has them"})
	}
	nodes := fmt.Sprintf("%d vbuckets with %s on %s, revision %d.%d", v, many(copies, "replica"), many(len(c.nodes),
		"node"),
		c.config.RevEpoch, c.config.Rev)
	if c.network != mcbp.NetworkDefault {
		nodes += fmt.Sprintf(", by the addresses of network %q", c.network)
	}
	p.add(checkMap, finding{result: OK, seen: nodes})
	c.actives(p)
}

// actives judges whether each node has as many active vbuckets as the map assigns to it.
func (c *cluster) actives(p *reporter) {
	for _, m := range c.nodes {
		if m.facts == nil || m.facts.seqnosErr != nil || m.facts.err != nil {
			continue
		}
		if got := len(m.facts.seqnos); got != m.active {
			p.add(checkActive, finding{Warning, fmt.Sprintf("it has %d active, %d by the newest map", got, m.active),
				"this is temporary while vbuckets move; if it persists, check the rebalance or failover of the cluster"}, m.name)
			continue
		}
		p.add(checkActive, finding{result: OK, seen: "as many active as in the map"}, m.name)
	}
}

// mapOf judges the map of one node.
func (c *cluster) mapOf(f *facts) (finding, bool) {
	switch {
	case f.err != nil:
		return finding{}, false
	case f.configErr != nil && c.shown != nil && errors.Is(f.configErr, kvclient.ErrNotSupported):
		return finding{Warning, "it returns no map itself; the cluster manager's map is used",
			"nothing, as long as its manager answers"}, true
	case f.configErr != nil:
		return configFails(f), true
	case c.config != nil && c.config.Newer(f.config):
		return finding{Warning,
			fmt.Sprintf("its map is older: revision %d.%d, not %d.%d", f.config.RevEpoch, f.config.Rev,
				c.config.RevEpoch, c.config.Rev), "it should soon have the newest; if not, the node has lost its " +
				"cluster manager"}, true
	case c.config != nil && f.config.UUID != c.config.UUID:
		return finding{Fails, fmt.Sprintf("its bucket has the uuid %s, not %s", f.config.UUID, c.config.UUID),
			"the nodes are of two clusters, or the bucket was just created again: name nodes of one cluster"}, true
	case c.nameless(f):
		return finding{Warning, "it does not know its own host name ($HOST): a client on another machine connects to itself",
			"with more than one node set the nodes' host names in the cluster manager"}, true
	}
	return finding{}, false
}

// nameless reports whether a node of a cluster of several nodes has no hostname for itself in its map.
func (c *cluster) nameless(f *facts) bool {
	n := f.config.ThisNode()
	if n < 0 || f.config.NumNodes() < 2 {
		return false
	}
	addr, err := f.config.KVAddr(n, mcbp.HostPlaceholder, false)
	return err == nil && strings.HasPrefix(addr, mcbp.HostPlaceholder)
}

func many(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
