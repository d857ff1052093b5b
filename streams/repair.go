package streams

import (
	"math"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Kind is the kind of an Action.
type Kind uint8

// The kinds.
const (
	// PollPositions asks Nodes for their positions in VBuckets and fences incarnations below Incarnation. The answers go
	// to Positions.
	PollPositions Kind = iota + 1
	// FetchLogs asks Projectors for the failover logs of VBuckets. The answers go to Logs.
	FetchLogs
	// StartStreams asks Projectors for Starts: all projectors, of which each starts what its KV nodes host, or a single
	// one if several have reported that they host the same. The answers go to Started.
	StartStreams
	// StopStreams asks Projectors to end the streams of VBuckets whose incarnation is Incarnation or older.
	StopStreams
)

// String returns the name of the kind.
func (k Kind) String() string {
	names := [...]string{"", "poll", "logs", "start", "stop"}
	if int(k) >= len(names) {
		return "unknown"
	}
	return names[k]
}

// Action is a request that the ledger wants sent. All are idempotent. Kind determines the meaning of the other
// fields.
type Action struct {
	Kind        Kind
	Incarnation index.Incarnation
	VBuckets    []uint16            // of all kinds but StartStreams
	Nodes       []index.NodeID      // of PollPositions: the receivers
	Projectors  []index.ProjectorID // of the other kinds: the receivers
	Starts      []Start             // of StartStreams
}

func (l *Ledger) queue(a Action) { l.queued = append(l.queued, a) }

func (l *Ledger) diverge(v int, why string) {
	if l.diverged.Reason == "" {
		l.diverged = Divergence{VBucket: uint16(v), Reason: why}
	}
}

// phase of a repair.
type phase uint8

const (
	polling phase = iota + 1
	fetching
)

// repair is the batch of vbuckets that is being requested again; there is at most one. Membership is frozen for it:
// it keeps the participants with which it began.
type repair struct {
	inc       index.Incarnation
	vbs       []uint16 // ascending
	phase     phase
	sinceMS   int64
	nodes     []index.NodeID
	positions map[index.NodeID]map[uint16]Position
	logs      map[index.ProjectorID]map[uint16]Log
}

func (r *repair) has(v int) bool {
	_, found := slices.BinarySearch(r.vbs, uint16(v))
	return found
}

// fences reports whether the repair in progress, nil for none, fences streams of the vbucket under this incarnation.
func (r *repair) fences(v int, inc index.Incarnation) bool {
	return r != nil && r.has(v) && inc.Compare(r.inc) < 0
}

// Positions processes an indexer's answer to PollPositions of this incarnation (IM-21).
func (l *Ledger) Positions(node index.NodeID, incarnation index.Incarnation, positions []Position) {
	r := l.repair
	if r == nil || r.inc != incarnation || r.phase != polling {
		return
	}
	m := make(map[uint16]Position, len(positions))
	for _, p := range positions {
		m[p.VBucket] = p
	}
	r.positions[node] = m
}

// Logs processes a projector's answer to FetchLogs of this incarnation. It lists only what its KV nodes host.
func (l *Ledger) Logs(p index.ProjectorID, incarnation index.Incarnation, logs []Log) {
	r := l.repair
	if r == nil || r.inc != incarnation || r.phase != fetching {
		return
	}
	m := make(map[uint16]Log, len(logs))
	for _, g := range logs {
		if len(g.Log) > 0 {
			m[g.VBucket] = g
		}
	}
	r.logs[p] = m
}

// Step returns the actions due at nowMS. It is cheap if there are none.
func (l *Ledger) Step(nowMS int64) []Action {
	if !l.adopted {
		return nil
	}
	l.stopStrays()
	if l.wanted && !l.rollback {
		l.expire(nowMS)
		l.deal(nowMS)
		if l.repair == nil {
			l.openRepair(nowMS)
		}
		if l.repair != nil {
			l.stepRepair(nowMS)
		}
	}
	actions := l.queued
	l.queued = nil
	return actions
}

// stopStrays stops streams that count nowhere. If the request is lost, the projector's next report renews it.
func (l *Ledger) stopStrays() {
	if len(l.strays) == 0 {
		return
	}
	type group struct {
		p   index.ProjectorID
		inc index.Incarnation
	}
	groups := map[group][]uint16{}
	for s, inc := range l.strays {
		g := group{s.projector, inc}
		groups[g] = append(groups[g], s.vb)
	}
	clear(l.strays)
	order := make([]group, 0, len(groups))
	for g := range groups {
		order = append(order, g)
	}
	slices.SortFunc(order, func(a, b group) int {
		if a.p != b.p {
			if a.p < b.p {
				return -1
			}
			return 1
		}
		return a.inc.Compare(b.inc)
	})
	for _, g := range order {
		slices.Sort(groups[g])
		l.queue(Action{Kind: StopStreams, Incarnation: g.inc, VBuckets: groups[g], Projectors: []index.ProjectorID{g.p}})
	}
}

// never is later than any time.
const never = math.MaxInt64

// expire gives up requests whose BEGIN did not arrive in time.
func (l *Ledger) expire(nowMS int64) {
	if l.counts[Requested] == 0 || nowMS < l.expireMS {
		return
	}
	l.expireMS = never
	for v := range l.vbs {
		e := &l.vbs[v]
		if e.State != Requested {
			continue
		}
		due := e.SinceMS + l.patience(l.cfg.BeginWait, e.tries-1)
		l.expireMS = min(l.expireMS, due+1)
		if nowMS > due {
			reason := "no BEGIN arrived"
			if e.Reason != waiting {
				reason = e.Reason
			}
			l.set(v, nowMS, Lost, reason)
		}
	}
}

// openRepair begins the next batch: every ended or lost vbucket that has rested.
func (l *Ledger) openRepair(nowMS int64) {
	if len(l.projectors) == 0 || l.counts[Lost]+l.counts[Ended] == 0 || nowMS < l.repairMS {
		return
	}
	var vbs []uint16
	l.repairMS = never
	for v := range l.vbs {
		e := &l.vbs[v]
		if !e.isDown() {
			continue
		}
		if e.restMS <= nowMS {
			vbs = append(vbs, uint16(v))
		} else {
			l.repairMS = min(l.repairMS, e.restMS)
		}
	}
	if len(vbs) == 0 {
		return
	}
	l.repairs++
	nodes := l.participants.nodes()
	l.repair = &repair{inc: l.issued.next(), vbs: vbs, phase: polling, sinceMS: nowMS, nodes: nodes,
		positions: map[index.NodeID]map[uint16]Position{}, logs: map[index.ProjectorID]map[uint16]Log{}}
	if len(nodes) > 0 {
		for _, v := range vbs { // the polled indexers refuse older incarnations, whatever becomes of this repair
			l.raiseFence(int(v), l.repair.inc)
		}
		l.queue(Action{Kind: PollPositions, Incarnation: l.repair.inc, VBuckets: vbs, Nodes: nodes})
	}
}

func (l *Ledger) stepRepair(nowMS int64) {
	r := l.repair
	late := nowMS-r.sinceMS >= l.cfg.AnswerWait.Milliseconds()
	if r.phase == polling && (late || len(r.positions) >= len(r.nodes)) {
		r.phase, r.sinceMS = fetching, nowMS
		l.queue(Action{Kind: FetchLogs, Incarnation: r.inc, VBuckets: r.vbs, Projectors: l.projectors})
		return
	}
	// If every vbucket is covered, the missing answers get only a part of AnswerWait: a KV node may hang.
	if r.phase == fetching && !late && nowMS-r.sinceMS >= l.cfg.AnswerWait.Milliseconds()/restPart {
		late = l.covered(r)
	}
	if r.phase != fetching || !late && len(r.logs) < len(l.projectors) {
		return
	}
	l.repair = nil
	l.decide(nowMS, r)
}

// restPart is the divisor of AnswerWait for missing answers when the others cover every vbucket.
const restPart = 4

// covered reports whether some answer has each vbucket's log under a map no older than any known.
func (l *Ledger) covered(r *repair) bool {
	for _, vb := range r.vbs {
		_, newest := r.holders(vb)
		if e := &l.vbs[vb]; e.Revision.Compare(newest) > 0 {
			newest = e.Revision
		}
		shown := false
		for _, logs := range r.logs {
			g, has := logs[vb]
			shown = shown || has && g.Revision.Compare(newest) >= 0
		}
		if !shown {
			return false
		}
	}
	return true
}

// decide computes the restart timestamps of a batch and requests its streams, or finds that the bucket must roll
// back.
func (l *Ledger) decide(nowMS int64, r *repair) {
	starts := map[index.ProjectorID][]Start{} // "": for all projectors
	for _, vb := range r.vbs {
		v := int(vb)
		if !l.vbs[v].isDown() {
			continue // a newer event has changed it meanwhile
		}
		holders, seen := r.holders(vb)
		log, ok := l.bestLog(v, r, seen)
		if !ok {
			l.rest(nowMS, v, "no projector hosts it under the newest vbucket map")
			continue
		}
		for _, h := range holders {
			if max(h.HW, h.Reach) > h.Log.Common(log.Log) {
				l.mustRollBack(nowMS, r, v, "an indexer holds data that is not on KV's branch")
				return
			}
		}
		if !l.valid(v, log.Log) {
			l.mustRollBack(nowMS, r, v, "the committed stability timestamp is not on KV's branch")
			return
		}
		s := Restart(l.receivers(r, vb, holders), log, l.vbs[v].refused)
		s.Incarnation = r.inc
		p := l.share(r, vb, log.Revision)
		starts[p] = append(starts[p], s)
	}
	for _, p := range sortedKeys(starts) {
		for _, s := range starts[p] {
			l.stopFormer(s.VBucket)
			l.request(int(s.VBucket), nowMS, r.inc, s.Seqno, p)
		}
		projectors := l.projectors
		if p != "" {
			projectors = []index.ProjectorID{p}
		}
		l.queue(Action{Kind: StartStreams, Incarnation: r.inc, Starts: starts[p], Projectors: projectors})
	}
}

// share selects the projector that is to stream a vbucket if several serve the KV node that hosts it (PR-4). They
// alternate by vbucket, and with each try, so that one that cannot is followed by the next; the target of a move
// comes first. Only projectors that have answered are considered. It returns "" if no other projector is known at the
// node: then all are asked, since the map may have changed meanwhile, and each starts what its node hosts.
func (l *Ledger) share(r *repair, vb uint16, newest timestamp.MapRevision) index.ProjectorID {
	e := &l.vbs[vb]
	var hosts []index.ProjectorID
	for _, p := range sortedKeys(r.logs) {
		if g, ok := r.logs[p][vb]; ok && g.Revision == newest {
			hosts = append(hosts, p)
		}
	}
	lonely := func(p index.ProjectorID) bool {
		return !slices.ContainsFunc(l.projectors, func(o index.ProjectorID) bool { return l.kv.beside(int(vb), p, o) })
	}
	if len(hosts) == 0 || len(hosts) == 1 && lonely(hosts[0]) {
		return ""
	}
	if e.tries == 0 && slices.Contains(hosts, e.move.to) {
		return e.move.to
	}
	return hosts[(int(vb)+e.tries)%len(hosts)]
}

// stopFormer stops the stream of a moving vbucket at its former owner, which is not aware of the move.
func (l *Ledger) stopFormer(vb uint16) {
	if e := &l.vbs[vb]; e.move.to != "" && e.tries == 0 {
		l.strays[stray{e.Owner, vb}] = e.Incarnation
	}
}

// rest makes a vbucket that cannot be started now Lost, and delays the next try.
func (l *Ledger) rest(nowMS int64, v int, reason string) {
	e := &l.vbs[v]
	e.tries++
	e.restMS = nowMS + l.patience(l.cfg.RetryWait, e.tries-1)
	l.set(v, nowMS, Lost, reason)
}

// mustRollBack records the divergence. The batch rests until the rollback is committed.
func (l *Ledger) mustRollBack(nowMS int64, r *repair, v int, why string) {
	l.diverge(v, why)
	for _, vb := range r.vbs {
		if e := &l.vbs[vb]; e.isDown() {
			l.rest(nowMS, int(vb), "the bucket must be rolled back: "+why)
		}
	}
}

// holders returns the positions of the participating indexers in a vbucket, and the newest vbucket map that any has
// seen.
func (r *repair) holders(vb uint16) (hs []Position, seen timestamp.MapRevision) {
	for _, n := range r.nodes {
		p, ok := r.positions[n][vb]
		if !ok {
			continue
		}
		if p.Revision.Compare(seen) > 0 {
			seen = p.Revision
		}
		if p.Participant {
			hs = append(hs, p)
		}
	}
	return hs, seen
}

// receivers returns the holders without those that did not receive the stream before: they get what they lack by
// their own catchup streams, as otherwise KV would send it again to all. If none did receive it, all of them count.
func (l *Ledger) receivers(r *repair, vb uint16, holders []Position) []Position {
	if !l.participants.anyShut() {
		return holders
	}
	var open []Position
	for _, n := range r.nodes {
		if p, ok := r.positions[n][vb]; ok && p.Participant && !l.participants.lacks(n, vb) {
			open = append(open, p)
		}
	}
	if len(open) == 0 {
		return holders
	}
	return open
}

// bestLog returns the log under the newest vbucket map among the answers. ok is false if a newer map is known
// anywhere: a failed-over KV node that still answers has an old log, which makes holders of the newer branch look
// diverged.
func (l *Ledger) bestLog(v int, r *repair, seen timestamp.MapRevision) (Log, bool) {
	var best Log
	found := false
	for _, p := range sortedKeys(r.logs) {
		g, ok := r.logs[p][uint16(v)]
		if ok && (!found || g.Revision.Compare(best.Revision) > 0) {
			best, found = g, true
		}
	}
	if !found || best.Revision.Compare(seen) < 0 || best.Revision.Compare(l.vbs[v].Revision) < 0 {
		return best, false
	}
	if best.Revision.Compare(l.vbs[v].Revision) > 0 {
		l.vbs[v].Revision = best.Revision
	}
	return best, true
}

func sortedKeys[V any](m map[index.ProjectorID]V) []index.ProjectorID {
	keys := make([]index.ProjectorID, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Restart computes the restart timestamp of one vbucket (IM-21): the smallest position of the holders, with the
// branch of KV's log that covers it. The holders must be valid on that log. A holder below the purge seqno, or at or
// below a start that KV refused, is not a participant: KV would answer ROLLBACK although no branch diverged, because
// deletions are purged. It recovers by its own catchup stream. If no holder is left the stream starts at KV's high
// seqno.
func Restart(holders []Position, kv Log, refused uint64) Start {
	s := Start{VBucket: kv.VBucket, Seqno: timestamp.Infinity}
	var reach uint64
	for _, h := range holders {
		if h.HW < kv.Purge || h.HW > 0 && h.HW <= refused {
			continue
		}
		s.Seqno = min(s.Seqno, h.HW)
		reach = max(reach, h.Reach)
	}
	if s.Seqno == timestamp.Infinity {
		s.Seqno, reach = kv.High, 0
	}
	s.VBUUID = kv.Log.Covering(s.Seqno)
	if s.VBUUID == 0 && len(kv.Log) > 0 {
		s.VBUUID = kv.Log[len(kv.Log)-1].VBUUID
	}
	s.Window = timestamp.Window{Start: s.Seqno, End: max(s.Seqno, reach)}
	s.Branch = kv.Log.Newest()
	s.Previous, _ = kv.Log.Previous(s.Seqno)
	return s
}
