package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"tidemark/index"
	"tidemark/timestamp"
)

// MaxProcesses is how many processes serve one KV node. Each process costs the leader reports and the node
// connections. If there are more processes than that, each node is served by some of them, not by all.
const MaxProcesses = 3

// MaxKVNodes bounds the KV nodes that one process serves, each by a projector of its own.
const MaxKVNodes = 64

// Limits of a Fleet, in milliseconds.
const (
	// fleetStaleMS is the age at which a map that no node has shown again no longer counts.
	fleetStaleMS = 60_000
	// fleetAwayMS is how long a node must be missing from the maps before its projector ends and its registration is
	// removed: a node that is failed over often comes back at once.
	fleetAwayMS = 10_000
	// fleetBackoffMS is the pause before a node's failed projector is started again. It doubles with each failure, up to
	// fleetMaxBackoffMS, and starts over when the projector has run for fleetHealthyMS.
	fleetBackoffMS    = 1_000
	fleetMaxBackoffMS = 60_000
	fleetHealthyMS    = 60_000
)

// KVNode is a KV node of a cluster, as listed in the newest map.
type KVNode struct {
	Name    string // host:port, the same from every network
	Addr    string // host:port to connect to; empty if the node has none
	Manager string // host:port of its cluster manager, if maps come from managers
	Why     string // why the node is not served; empty if it is
}

// same reports whether a projector that serves n also serves o: name and addresses are equal.
func (n KVNode) same(o KVNode) bool {
	return n.Name == o.Name && n.Addr == o.Addr && n.Manager == o.Manager
}

// Fleet decides which KV nodes a process that follows a cluster's maps serves (PR-4), from the maps that its
// projectors see. The zero value has seen no map.
type Fleet struct {
	maps    map[string]*fleetMap // by bucket
	away    map[string]int64     // since when nodes that are running or registered are missing from the maps
	backoff map[string]backoff   // by node: after failures of its projector
}

// backoff is why a node's projector has failed, and when it is started again.
type backoff struct {
	failures int // consecutive
	untilMS  int64
	why      string
}

// fleetMap is the newest map of a bucket.
type fleetMap struct {
	at     timestamp.MapRevision
	seenMS int64
	nodes  []KVNode
}

// Saw records the nodes of a bucket's map, and reports whether the map was new. If the same revision is seen again,
// the first one's nodes stay: a node that does not know its own name is named by the address at which it was queried,
// so names may differ.
func (f *Fleet) Saw(nowMS int64, bucket string, at timestamp.MapRevision, nodes []KVNode) (news bool) {
	old := f.maps[bucket]
	switch {
	case old == nil && len(f.maps) >= MaxBuckets:
		return false // the maps of the other buckets list the same nodes
	case old == nil || at.Compare(old.at) > 0 || nowMS-old.seenMS > fleetStaleMS:
	case at == old.at:
		old.seenMS = nowMS
		return false
	default:
		return false // from a node that lags behind or was failed over
	}
	if f.maps == nil {
		f.maps = map[string]*fleetMap{}
	}
	f.maps[bucket] = &fleetMap{at: at, seenMS: nowMS, nodes: slices.Clone(nodes)}
	return true
}

// Failed records that a node's projector could not start, or ended by itself after ranMS, and why. It returns for how
// long the node is not served; other nodes are not affected.
func (f *Fleet) Failed(nowMS int64, node string, ranMS int64, why string) (backoffMS int64) {
	if f.backoff == nil {
		f.backoff = map[string]backoff{}
	}
	failures := f.backoff[node].failures + 1
	if ranMS >= fleetHealthyMS {
		failures = 1
	}
	backoffMS = fleetMaxBackoffMS
	if failures < 8 {
		backoffMS = min(int64(fleetBackoffMS)<<(failures-1), fleetMaxBackoffMS)
	}
	f.backoff[node] = backoff{failures: failures, untilMS: nowMS + backoffMS, why: why}
	return backoffMS
}

// Known reports whether a map was seen within the last fleetStaleMS.
func (f *Fleet) Known(nowMS int64) bool {
	for _, m := range f.maps {
		if nowMS-m.seenMS <= fleetStaleMS {
			return true
		}
	}
	return false
}

// FleetFacts is the input of Fleet.Step.
type FleetFacts struct {
	NowMS int64
	// Running holds the process's projectors by node name.
	Running map[string]FleetMember
	// Process is the name of this process; its projectors are named <process>@<node>.
	Process index.ProjectorID
	// Registered lists the projectors that the managers list: those of this process, of earlier processes of its name,
	// and of others.
	Registered []index.ProjectorID
	// Seed is a node that answers at one of the configured addresses; its name is empty if none answers.
	Seed KVNode
	// Troubled is set if none of the projectors can reach its node.
	Troubled bool
}

// FleetMember is a projector of the process. It keeps its node's name while it is Ending.
type FleetMember struct {
	Node   KVNode
	Ending bool
}

// FleetStep lists what the caller has to do.
type FleetStep struct {
	Start    []KVNode
	Stop     []string
	Leave    []string // nodes whose registrations are to be removed
	Unserved []KVNode // with the reason in Why
	Aside    int      // nodes that are left to other processes
}

// Step returns what to do now. The caller marks a projector that it stops as Ending, so that it is not stopped twice.
func (f *Fleet) Step(x FleetFacts) (s FleetStep) {
	wanted := f.wanted(&x)
	own, aside := share(&x, wanted)
	s.Aside = aside
	gone := absence{before: f.away, now: map[string]int64{}, nowMS: x.NowMS}
	for _, name := range slices.Sorted(maps.Keys(x.Running)) {
		m := x.Running[name]
		n, is := wanted[name]
		moved := is && n.Addr != "" && !n.same(m.Node)
		lost := !is && gone.lasts(name)
		if !m.Ending && (moved || lost || !is && elsewhere(wanted, m.Node)) {
			s.Stop = append(s.Stop, name)
		}
	}
	f.starts(&s, &x, wanted)
	s.Leave = leaves(&x, wanted, own, gone)
	f.away = gone.now
	return s
}

// absence tracks since when nodes are missing from all maps.
type absence struct {
	before, now map[string]int64
	nowMS       int64
}

// lasts records that a node is on no map, and reports whether that has been so for fleetAwayMS.
func (a absence) lasts(name string) bool {
	since, known := a.before[name]
	if !known {
		since = a.nowMS
	}
	a.now[name] = since
	return a.nowMS-since >= fleetAwayMS
}

// leaves returns the nodes of this process's registrations that are neither served nor wanted any more.
func leaves(x *FleetFacts, wanted map[string]KVNode, own []string, gone absence) (names []string) {
	for _, name := range own {
		_, has := x.Running[name]
		if _, is := wanted[name]; !is && !has && gone.lasts(name) {
			names = append(names, name)
		}
	}
	return names
}

// starts adds to s the nodes to start, and the nodes that stay unserved with the reason.
func (f *Fleet) starts(s *FleetStep, x *FleetFacts, wanted map[string]KVNode) {
	running := x.Running
	maps.DeleteFunc(f.backoff, func(name string, _ backoff) bool {
		_, has := running[name]
		_, is := wanted[name]
		return !has && !is
	})
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		n := wanted[name]
		_, has := running[name]
		failed := f.backoff[name]
		switch {
		case has:
		case x.NowMS < failed.untilMS:
			n.Why = fmt.Sprintf("its projector failed %d times in a row and is started again soon: %s",
				failed.failures, failed.why)
			s.Unserved = append(s.Unserved, n)
		case n.Addr == "":
			s.Unserved = append(s.Unserved, n)
		case len(running)+len(s.Start) >= MaxKVNodes:
			n.Why = fmt.Sprintf("one process serves at most %d KV nodes: run another projector for this node, with its "+
				"address as --kv", MaxKVNodes)
			s.Unserved = append(s.Unserved, n)
		default:
			s.Start = append(s.Start, n)
		}
	}
}

// share removes from wanted the nodes at which MaxProcesses other processes rank before this one, and returns their
// number as aside. own are the nodes for which this process has registered projectors, ascending.
func share(x *FleetFacts, wanted map[string]KVNode) (own []string, aside int) {
	before := map[string]int{}
	for _, id := range x.Registered {
		process, node, several := strings.Cut(string(id), "@")
		switch {
		case !several:
		case process == string(x.Process):
			own = append(own, node)
		case rank(process, node) < rank(string(x.Process), node):
			before[node]++
		}
	}
	for node, n := range before {
		if _, is := wanted[node]; is && n >= MaxProcesses {
			delete(wanted, node)
			aside++
		}
	}
	slices.Sort(own)
	return own, aside
}

// rank orders the processes at a node. The order differs from node to node, which spreads the nodes over the
// processes.
func rank(process, node string) uint64 { return xxhash.Sum64String(process + "@" + node) }

// elsewhere reports whether n is wanted under another name, because its name was not known at first.
func elsewhere(wanted map[string]KVNode, n KVNode) bool {
	for _, o := range wanted {
		if n.Name != o.Name && (n.Addr == o.Addr || n.Manager != "" && n.Manager == o.Manager) {
			return true
		}
	}
	return false
}

// wanted returns the nodes of the newest maps. The seed is added if there are none, and also if no map is fresh and
// no projector reaches its node.
func (f *Fleet) wanted(x *FleetFacts) map[string]KVNode {
	fresh := f.Known(x.NowMS)
	nodes := map[string]KVNode{}
	for _, bucket := range slices.Sorted(maps.Keys(f.maps)) {
		m := f.maps[bucket]
		if fresh && x.NowMS-m.seenMS > fleetStaleMS {
			delete(f.maps, bucket)
			continue
		}
		for _, n := range m.nodes {
			if nodes[n.Name].Addr == "" { // not listed yet, or listed by a node that does not know its address
				nodes[n.Name] = n
			}
		}
	}
	if x.Seed.Name != "" && (len(nodes) == 0 || !fresh && x.Troubled) && !elsewhere(nodes, x.Seed) {
		nodes[x.Seed.Name] = x.Seed
	}
	return nodes
}
