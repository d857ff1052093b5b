package streams

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Hosted is the set of active vbuckets of a projector's KV node.
type Hosted struct {
	Node     string // the KV node: several projectors may serve it
	Revision timestamp.MapRevision
	VBuckets []uint16
}

// hosted is Hosted, indexed by vbucket.
type hosted struct {
	node     string
	revision timestamp.MapRevision
	has      []bool
}

// kvNodes tracks the projectors' KV nodes.
type kvNodes struct {
	// hosts is what each projector's node hosts, including projectors that are not alive, because they report it once
	// only.
	hosts map[index.ProjectorID]hosted
	// shared lists the projectors at one KV node, by vbucket, if there are several, as of the newest audit.
	shared map[int][]index.ProjectorID
	// traffic is the change rate of the vbuckets.
	traffic traffic
}

// newKVNodes returns the empty state for n vbuckets.
func newKVNodes(n int) kvNodes {
	return kvNodes{hosts: map[index.ProjectorID]hosted{}, traffic: newTraffic(n)}
}

// noteShared records, at an audit, which of n vbuckets more than one projector could stream: projectors at one KV
// node report it under the same map. Audits are also answered by projectors that stream nothing of the bucket, and
// therefore do not watch their node.
func (k *kvNodes) noteShared(logs map[index.ProjectorID][]Log, n int) {
	newest := map[uint16]timestamp.MapRevision{}
	hosts := map[uint16][]index.ProjectorID{}
	for _, p := range sortedKeys(logs) {
		for _, g := range logs[p] {
			switch at, seen := newest[g.VBucket]; {
			case !seen || g.Revision.Compare(at) > 0:
				newest[g.VBucket], hosts[g.VBucket] = g.Revision, []index.ProjectorID{p}
			case g.Revision == at:
				hosts[g.VBucket] = append(hosts[g.VBucket], p)
			}
		}
	}
	k.shared = map[int][]index.ProjectorID{}
	for vb, all := range hosts {
		if len(all) > 1 && int(vb) < n {
			k.shared[int(vb)] = all
		}
	}
}

// beside reports whether another projector at the same KV node could stream a vbucket in place of p.
func (k *kvNodes) beside(v int, p, other index.ProjectorID) bool {
	all := k.shared[v]
	return p != other && slices.Contains(all, p) && slices.Contains(all, other)
}

// sameNode reports whether two projectors serve the same KV node. One that has just started may not have reported its
// node; then the newest audit decides.
func (k *kvNodes) sameNode(v int, p, other index.ProjectorID) bool {
	own, known := k.hosts[p]
	return p == other || known && own.node == k.hosts[other].node || !known && k.beside(v, p, other)
}

// Hosted processes the active vbuckets of a projector's KV node (IM-14). If another node hosts the vbucket of a
// running stream under a newer map than any known here, that stream is void, whether its own node reports that or
// hangs: it is requested again.
func (l *Ledger) Hosted(nowMS int64, p index.ProjectorID, h Hosted) {
	has := make([]bool, len(l.vbs))
	for _, v := range h.VBuckets {
		if int(v) < len(has) {
			has[v] = true
		}
	}
	l.kv.hosts[p] = hosted{node: h.Node, revision: h.Revision, has: has}
	for v := range l.vbs {
		l.taken(v, nowMS)
	}
}

// Forget drops the state of a projector that was removed from the cluster.
func (l *Ledger) Forget(p index.ProjectorID) { delete(l.kv.hosts, p) }

// taken requests a stream again if another KV node hosts its vbucket by now. The revision of the newer map is kept:
// logs under an older one are ignored from now on. Otherwise an owner that was failed over and still answers would be
// asked forever.
func (l *Ledger) taken(v int, nowMS int64) {
	e := &l.vbs[v]
	if e.State != Begun {
		return
	}
	for _, p := range l.projectors {
		h, known := l.kv.hosts[p]
		if !known || !h.has[v] || h.revision.Compare(e.Revision) <= 0 || l.kv.sameNode(v, e.Owner, p) {
			continue
		}
		e.Revision, e.restMS = h.revision, 0
		l.set(v, nowMS, Lost, takenReason)
		return
	}
}

const takenReason = "another projector hosts it under a newer vbucket map"
