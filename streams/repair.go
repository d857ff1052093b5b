package streams

import (
	"math"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Kind of an Action.
type Kind uint8

// The kinds.
const (
	// PollPositions asks Nodes for their positions of VBuckets and fences incarnations below Incarnation. Answers go to
	// Positions.
	PollPositions Kind = iota + 1
	// FetchLogs asks Projectors for the failover logs of VBuckets. Answers go to Logs.
	FetchLogs
	// StartStreams asks Projectors for Starts: all of them, each starts what its KV nodes host; one of them where several
	// said that they host the same. Answers go to Started.
	StartStreams
	// StopStreams asks Projectors to end the streams of VBuckets whose incarnation is Incarnation or older.
	StopStreams
)

// String names the kind.
func (k Kind) String() string {
	names := [...]string{"", "poll", "logs", "start", "stop"}
	if int(k) >= len(names) {
		return "unknown"
	}
	return names[k]
}

// Action is what the ledger wants done. All of it is idempotent. Kind says what the other fields mean.
type Action struct {
	Kind        Kind
	Incarnation index.Incarnation
	VBuckets    []uint16            // of all kinds but StartStreams
	Nodes       []index.NodeID      // of PollPositions: whom to ask
	Projectors  []index.ProjectorID // of the other kinds: whom to ask
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

// repair is the one batch of vbuckets that is being asked for again. Membership is paused for it: it keeps the
// participants it began with.
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

// fences reports whether a repair that is under way, nil for none, fences off streams of the vbucket that are so old.
func (r *repair) fences(v int, inc index.Incarnation) bool {
	return r != nil && r.has(v) && inc.Compare(r.inc) < 0
}

// Positions takes an indexer's answer to PollPositions of this incarnation (IM-21).
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

// Logs takes a projector's answer to FetchLogs of this incarnation. It lists what its KV nodes host only.
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

// Step returns what is to be done at nowMS. It is cheap when there is nothing.
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

// stopStrays ends streams that count for nobody. Should the request be lost, the projector's next report renews it.
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

// expire gives up on BEGINs that did not come.
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
			reason := "no BEGIN came"
			if e.Reason != waiting {
				reason = e.Reason
			}
			l.set(v, nowMS, Lost, reason)
		}
	}
}

// openRepair begins the next batch: everything that is ended or lost and has rested.
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
	nodes := l.takers.nodes()
	l.repair = &repair{inc: l.issued.next(), vbs: vbs, phase: polling, sinceMS: nowMS, nodes: nodes,
		positions: map[index.NodeID]map[uint16]Position{}, logs: map[index.ProjectorID]map[uint16]Log{}}
	if len(nodes) > 0 {
		for _, v := range vbs { // whatever becomes of this repair, who is polled refuses what is older
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
	// Where every vbucket is known, who has not answered is waited for a part of patience only: its KV node may hang.
	if r.phase == fetching && !late && nowMS-r.sinceMS >= l.cfg.AnswerWait.Milliseconds()/restPart {
		late = l.covered(r)
	}
	if r.phase != fetching || !late && len(r.logs) < len(l.projectors) {
		return
	}
	l.repair = nil
	l.decide(nowMS, r)
}

// restPart is which part of AnswerWait is left to projectors when the others have shown every vbucket.
const restPart = 4

// covered reports whether somebody has shown each vbucket's log under a map no older than any known.
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

// decide computes the restart timestamps of a batch and asks for its streams, or finds that the bucket must roll back.
func (l *Ledger) decide(nowMS int64, r *repair) {
	starts := map[index.ProjectorID][]Start{} // "": of all
	for _, vb := range r.vbs {
		v := int(vb)
		if !l.vbs[v].isDown() {
			continue // something newer came meanwhile
		}
		holders, seen := r.holders(vb)
		log, ok := l.bestLog(v, r, seen)
		if !ok {
			l.rest(nowMS, v, "no projector hosts it under the newest vbucket map")
			continue
		}
		for _, h := range holders {
			if max(h.HW, h.Reach) > h.Log.Common(log.Log) {
				l.mustRollBack(nowMS, r, v, "an indexer holds what is not on KV's branch")
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
			l.letGo(s.VBucket)
			l.request(int(s.VBucket), nowMS, r.inc, s.Seqno, p)
		}
		projectors := l.projectors
		if p != "" {
			projectors = []index.ProjectorID{p}
		}
		l.queue(Action{Kind: StartStreams, Incarnation: r.inc, Starts: starts[p], Projectors: projectors})
	}
}

// share picks the projector that is to stream a vbucket when several stand at the KV node that has it (PR-4): they take
// turns by vbucket, and with each try, so that one that cannot is followed by the next; one that it moves to is the
// first. Only those count that have answered. It is "" where nobody else is known at the node: then all are asked, for
// the map may have changed since, and each starts what is its own.
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

// letGo ends the stream of a vbucket that moves at its former owner, which does not know.
func (l *Ledger) letGo(vb uint16) {
	if e := &l.vbs[vb]; e.move.to != "" && e.tries == 0 {
		l.strays[stray{e.Owner, vb}] = e.Incarnation
	}
}

// rest: it cannot be started now.
func (l *Ledger) rest(nowMS int64, v int, reason string) {
	e := &l.vbs[v]
	e.tries++
	e.restMS = nowMS + l.patience(l.cfg.RetryWait, e.tries-1)
	l.set(v, nowMS, Lost, reason)
}

// mustRollBack notes the divergence; until the rollback is committed the batch rests.
func (l *Ledger) mustRollBack(nowMS int64, r *repair, v int, why string) {
	l.diverge(v, why)
	for _, vb := range r.vbs {
		if e := &l.vbs[vb]; e.isDown() {
			l.rest(nowMS, int(vb), "the bucket must be rolled back: "+why)
		}
	}
}

// holders returns the positions of the indexers that take part for a vbucket, and the newest vbucket map any has seen.
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

// receivers leaves out the holders that did not receive the stream before: what they lack comes by their own catchup
// streams, as KV would else send all of it again to everybody. If nobody did, all of them count.
func (l *Ledger) receivers(r *repair, vb uint16, holders []Position) []Position {
	if !l.takers.anyShut() {
		return holders
	}
	var open []Position
	for _, n := range r.nodes {
		if p, ok := r.positions[n][vb]; ok && p.Participant && !l.takers.lacks(n, vb) {
			open = append(open, p)
		}
	}
	if len(open) == 0 {
		return holders
	}
	return open
}

// bestLog picks, of the answers, the log under the newest vbucket map. It is not used when anybody knows a newer map: a
// failed-over KV node that still answers shows an old log and makes holders of the newer branch look diverged.
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

// Restart computes the restart timestamp of one vbucket (IM-21): the smallest position of the holders, named by the
// branch of KV's log that covers it. The holders must be valid on that log. A holder below the purge seqno, or at or
// below a start that KV refused, is no participant: KV would answer ROLLBACK although no branch diverged, because
// deletions are gone; it recovers by its own catchup stream. With no holder left the stream starts at KV's present.
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
