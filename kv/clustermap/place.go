package clustermap

import "slices"

// place spreads the vbuckets of one bucket over nodes: actives evenly (their numbers differ by one at most), replicas
// as evenly as keeping copies apart allows. A copy stays where it is as long as its node has not more than its share.
func place(chains [][]string, nodes []string, replicas int) [][]string {
	return placeReplicas(chains, placeActive(chains, nodes), nodes, replicas)
}

// placeReplicas is place where the owner of each vbucket is decided.
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
	for v, chain := range chains { // what may stay
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

// level moves replicas from nodes with many to nodes with at least two less, as long as there is one to move. Each move
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

// placeActive returns each vbucket its owner.
func placeActive(chains [][]string, nodes []string) []string {
	share, extra := len(chains)/len(nodes), len(chains)%len(nodes)
	had := map[string]int{}
	for _, chain := range chains {
		had[chain[0]]++
	}
	order := slices.Clone(nodes) // the odd ones go to those that have most
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
	for v, chain := range chains { // a replica that becomes active moves nothing
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

// least is the first of the nodes with the smallest load that may be used.
func least(nodes []string, load map[string]int, may func(id string) bool) string {
	best := ""
	for _, id := range nodes {
		if may(id) && (best == "" || load[id] < load[best]) {
			best = id
		}
	}
	return best
}
