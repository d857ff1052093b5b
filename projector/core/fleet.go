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

// MaxProcesses is how many processes serve one KV node. Each costs the leader reports and the node connections, so that
// all processes at all nodes would be too much: where there are more, each node has some of them.
const MaxProcesses = 3

// MaxKVNodes bounds the KV nodes that one process serves, each by a projector of its own.
const MaxKVNodes = 64

// Patience of a Fleet, in milliseconds.
const (
	// fleetStaleMS is how old the newest sight of a map may be: what nobody shows any more counts no more.
	fleetStaleMS = 60_000
	// fleetAwayMS is how long a node is missing in the maps before its projector ends, and its registration is taken back:
	// one that is failed over often comes back at once.
	fleetAwayMS = 10_000
	// fleetBackoffMS is before a node gets another projector when its own has failed, and twice as long each time, up to
	// fleetMaxBackoffMS; one that has run for fleetHealthyMS begins anew.
	fleetBackoffMS    = 1_000
	fleetMaxBackoffMS = 60_000
	fleetHealthyMS    = 60_000
)

// KVNode is a KV node of a cluster, as the newest map has it.
type KVNode struct {
	Name    string // host:port, the same from whatever network it is looked at
	Addr    string // host:port at which it is reached; empty when it has none
	Manager string // host:port of its cluster manager, where maps come from managers
	Why     string // why it is not served, else empty
}

// same reports whether a projector at n serves o as well.
func (n KVNode) same(o KVNode) bool {
	return n.Name == o.Name && n.Addr == o.Addr && n.Manager == o.Manager
}

// Fleet decides which KV nodes a process serves that follows the maps of a cluster (PR-4), from what its projectors see
// of them. The zero value knows nothing yet.
type Fleet struct {
	maps    map[string]*fleetMap // by bucket
	away    map[string]int64     // since when names that are running or registered are not wanted
	backoff map[string]backoff   // by node: of projectors that have failed
}

// backoff is why a node's projector has failed, and when there is another one.
type backoff struct {
	failures int // one after the other
	untilMS  int64
	why      string
}

// fleetMap is what the newest map of a bucket says.
type fleetMap struct {
	at     timestamp.MapRevision
	seenMS int64
	nodes  []KVNode
}

// Saw takes the nodes of a map, and reports whether it is news. Of one revision the first sight stays: nodes that do
// not know their own name are called by whoever asks.
func (f *Fleet) Saw(nowMS int64, bucket string, at timestamp.MapRevision, nodes []KVNode) (news bool) {
	old := f.maps[bucket]
	switch {
	case old == nil && len(f.maps) >= MaxBuckets:
		return false // the others show the same nodes
	case old == nil || at.Compare(old.at) > 0 || nowMS-old.seenMS > fleetStaleMS:
	case at == old.at:
		old.seenMS = nowMS
		return false
	default:
		return false // by one who lags, or was failed over
	}
	if f.maps == nil {
		f.maps = map[string]*fleetMap{}
	}
	f.maps[bucket] = &fleetMap{at: at, seenMS: nowMS, nodes: slices.Clone(nodes)}
	return true
}

// Failed notes that the projector of a node has ended by itself after it had run for so long, or could not begin, and
// why: that node is not served for a while, and the others are.
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

// Known reports whether a map was seen lately.
func (f *Fleet) Known(nowMS int64) bool {
	for _, m := range f.maps {
		if nowMS-m.seenMS <= fleetStaleMS {
			return true
		}
	}
	return false
}

// FleetFacts are what a Fleet decides from.
type FleetFacts struct {
	NowMS int64
	// Running are the process's projectors, by the names of their nodes.
	Running map[string]FleetMember
	// Process is the name of this one; its projectors are called as it, @, and the node.
	Process index.ProjectorID
	// Registered are the projectors that the managers list, of this process, of earlier ones of its name and of others.
	Registered []index.ProjectorID
	// Seed is a node that answers at one of the addresses that were given; without a name when none is known.
	Seed KVNode
	// Troubled: none of the projectors can ask its node.
	Troubled bool
}

// FleetMember is a projector of the process. One that is Ending still has its node's name.
type FleetMember struct {
	Node   KVNode
	Ending bool
}

// FleetStep is what is to be done.
type FleetStep struct {
	Start    []KVNode
	Stop     []string
	Leave    []string // nodes whose registrations are to be taken back
	Unserved []KVNode // with the reason of each
	Aside    int      // nodes that are left to other processes
}

// Step decides. Nothing is to be done twice: who is asked to stop is Ending from then on.
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

// absence is since when nodes are on no map.
type absence struct {
	before, now map[string]int64
	nowMS       int64
}

// lasts notes that a node is on no map, and reports whether it has been on none for long.
func (a absence) lasts(name string) bool {
	since, known := a.before[name]
	if !known {
		since = a.nowMS
	}
	a.now[name] = since
	return a.nowMS-since >= fleetAwayMS
}

// leaves finds the nodes of this process's registrations that are neither served nor wanted any more.
func leaves(x *FleetFacts, wanted map[string]KVNode, own []string, gone absence) (names []string) {
	for _, name := range own {
		_, has := x.Running[name]
		if _, is := wanted[name]; !is && !has && gone.lasts(name) {
			names = append(names, name)
		}
	}
	return names
}

// starts finds the nodes that are not served, and why those stay so for which nothing is started.
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
			n.Why = fmt.Sprintf("its projector ended by itself, %d times one after the other, and is started again soon: %s",
				failed.failures, failed.why)
			s.Unserved = append(s.Unserved, n)
		case n.Addr == "":
			s.Unserved = append(s.Unserved, n)
		case len(running)+len(s.Start) >= MaxKVNodes:
			n.Why = fmt.Sprintf("one process serves at most %d KV nodes: run a projector of its own for it, with its "+
				"address as --kv", MaxKVNodes)
			s.Unserved = append(s.Unserved, n)
		default:
			s.Start = append(s.Start, n)
		}
	}
}

// share leaves those nodes to other processes at which enough of them stand that come before this one there, and
// returns how many; own are the nodes of which this one has projectors registered, ascending.
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

// rank orders the processes at a node, at each node in another way.
func rank(process, node string) uint64 { return xxhash.Sum64String(process + "@" + node) }

// elsewhere reports whether a node is wanted under another name, as that of a node whose name was not known at first.
func elsewhere(wanted map[string]KVNode, n KVNode) bool {
	for _, o := range wanted {
		if n.Name != o.Name && (n.Addr == o.Addr || n.Manager != "" && n.Manager == o.Manager) {
			return true
		}
	}
	return false
}

// wanted are the nodes of the newest maps. Without any, the one that was given is a beginning; also when no map is
// fresh and none of their nodes answers.
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
			if nodes[n.Name].Addr == "" { // none, or by one that does not know it
				nodes[n.Name] = n
			}
		}
	}
	if x.Seed.Name != "" && (len(nodes) == 0 || !fresh && x.Troubled) && !elsewhere(nodes, x.Seed) {
		nodes[x.Seed.Name] = x.Seed
	}
	return nodes
}
