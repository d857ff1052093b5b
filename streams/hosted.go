package streams

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Hosted is what a projector's KV node says that it has as active.
type Hosted struct {
	Node     string // the KV node: several projectors may stand at it
	Revision timestamp.MapRevision
	VBuckets []uint16
}

// hosted is Hosted by vbucket.
type hosted struct {
	node     string
	revision timestamp.MapRevision
	has      []bool
}

// kvNodes are the projectors' KV nodes.
type kvNodes struct {
	// hosts is what each has said that its node hosts; also of those that are not alive: they tell it once.
	hosts map[index.ProjectorID]hosted
	// shared are the projectors at one KV node, by vbucket, where there is more than one, as the newest audit says.
	shared map[int][]index.ProjectorID
	// traffic is what their vbuckets take.
	traffic traffic
}

// newKVNodes knows nothing of the nodes of n vbuckets.
func newKVNodes(n int) kvNodes {
	return kvNodes{hosts: map[index.ProjectorID]hosted{}, traffic: newTraffic(n)}
}

// noteShared notes, at an audit, which of n vbuckets more than one projector could stream: those at one KV node show it
// under the same map. Also who streams nothing of the bucket, and therefore does not look at its node, answers audits.
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

// beside reports whether another projector could stream a vbucket in p's stead, at the same KV node.
func (k *kvNodes) beside(v int, p, other index.ProjectorID) bool {
	all := k.shared[v]
	return p != other && slices.Contains(all, p) && slices.Contains(all, other)
}

// one reports whether two projectors stand at one KV node. One that has just begun may not have told at which: then
// the newest audit says it.
func (k *kvNodes) one(v int, p, other index.ProjectorID) bool {
	own, told := k.hosts[p]
	return p == other || told && own.node == k.hosts[other].node || !told && k.beside(v, p, other)
}

// Hosted takes what a projector's KV node has (IM-14). A stream that runs, of a vbucket which another node has under a
// newer map than any known here, is none any more, whether its own node says so or hangs: it is asked for again.
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

// Forget drops what was known of a projector that is no part of the cluster any more.
func (l *Ledger) Forget(p index.ProjectorID) { delete(l.kv.hosts, p) }

// taken asks for a stream again whose vbucket another KV node has by now. What the newer map says stands: a log under
// an older one does not count from now on, or an owner that was failed over, and answers on, would be asked for ever.
func (l *Ledger) taken(v int, nowMS int64) {
	e := &l.vbs[v]
	if e.State != Begun {
		return
	}
	for _, p := range l.projectors {
		h, told := l.kv.hosts[p]
		if !told || !h.has[v] || h.revision.Compare(e.Revision) <= 0 || l.kv.one(v, e.Owner, p) {
			continue
		}
		e.Revision, e.restMS = h.revision, 0
		l.set(v, nowMS, Lost, takenReason)
		return
	}
}

const takenReason = "another projector hosts it under a newer vbucket map"
