package clustermap

import "slices"

// place spreads the vbuckets of one bucket over nodes: active copies evenly (the counts of two nodes differ by at
// most one), replicas as evenly as distinct nodes for each vbucket's copies allow. A copy stays in place unless its
// node has more than its share.
func place(chains [][]string, nodes []string, replicas int) [][]string {
	return placeReplicas(chains, placeActive(chains, nodes), nodes, replicas)
}

// placeReplicas places the replicas of vbuckets whose active nodes are already decided.
func placeReplicas(chains [][]string, active, nodes []string, replicas int) [][]string {
	copies := min(replicas+1, len(nodes))
	out := make([][]string, len(chains))
	for v := range chains {
		out[v] = append(make([]string, 0, copies), active[v])
	}
	if copies == 1 {
		return out
	}
	share := (len(chains)*(copies-1) + len(nodes) - 1) / len(nodes)
	load := map[string]int{}
	for v, chain := range chains { // keep replicas that may stay
		for _, id := range chain {
			if len(out[v]) < copies && slices.Contains(nodes, id) && !slices.Contains(out[v], id) && load[id] < share {
				out[v] = append(out[v], id)
				load[id]++
			}
		}
	}
	for v := range out {
		for len(out[v]) < copies {
			id := least(nodes, load, func(id string) bool { return !slices.Contains(out[v], id) })
			out[v] = append(out[v], id)
			load[id]++
		}
	}
	level(out, nodes, load)
	return out
}

// level moves replicas from nodes to others that have at least two fewer, until there is none to move. Each move
// makes the loads more even, so it ends.
func level(chains [][]string, nodes []string, load map[string]int) {
	for moved := true; moved; {
		moved = false
		for _, chain := range chains {
			for i := 1; i < len(chain); i++ {
				to := least(nodes, load, func(id string) bool { return !slices.Contains(chain, id) })
				if to != "" && load[to]+1 < load[chain[i]] {
					load[to]++
					load[chain[i]]--
					chain[i] = to
					moved = true
				}
			}
		}
	}
}

// placeActive returns the active node of each vbucket.
func placeActive(chains [][]string, nodes []string) []string {
	share, extra := len(chains)/len(nodes), len(chains)%len(nodes)
	had := map[string]int{}
	for _, chain := range chains {
		had[chain[0]]++
	}
	order := slices.Clone(nodes) // the remainder goes to the nodes that have most
	slices.SortStableFunc(order, func(a, b string) int { return had[b] - had[a] })
	room := map[string]int{}
	for i, id := range order {
		if room[id] = share; i < extra {
			room[id]++
		}
	}
	out := make([]string, len(chains))
	take := func(v int, id string) bool {
		if out[v] != "" || room[id] == 0 {
			return false
		}
		out[v] = id
		room[id]--
		return true
	}
	for v, chain := range chains {
		take(v, chain[0])
	}
	for v, chain := range chains { // promoting a replica moves no data
		for _, id := range chain[1:] {
			take(v, id)
		}
	}
	for v := range chains {
		if out[v] == "" {
			take(v, slices.MaxFunc(nodes, func(a, b string) int { return room[a] - room[b] }))
		}
	}
	return out
}

// least returns the first of the permitted nodes with the smallest load; "" if none is permitted.
func least(nodes []string, load map[string]int, may func(id string) bool) string {
	best := ""
	for _, id := range nodes {
		if may(id) && (best == "" || load[id] < load[best]) {
			best = id
		}
	}
	return best
}
