package streams

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/timestamp"
)

// The simulation drives a Ledger against a small world: KV branches with takeovers, failovers that lose data, and
// stale owners; two projectors; two indexers; commands, answers and reports that are late, lost, reordered and
// repeated; new leaders at any step. While faults happen it checks that no polled indexer is left with a gap, and
// that no indexer sees two owners of one incarnation; after healing, that every vbucket is streamed to every indexer.

const (
	simVBs   = 3
	simNodes = 2
	simProjs = 2
)

var simNames = [simProjs]index.ProjectorID{"p1", "p2"}

type simVB struct { // state of KV
	log      timestamp.FailoverLog
	high     uint64
	purge    uint64
	owner    int
	zombie   int // the projector next to a failed-over node that still answers, or -1
	zlog     timestamp.FailoverLog
	zhigh    uint64
	zrev     uint64
	nextUUID uint64
	both     bool // every projector serves the node that has it
}

type simStream struct {
	inc index.Incarnation
	log timestamp.FailoverLog
	rev uint64
	cur uint64
}

type simProj struct {
	up      bool
	min     [simVBs]index.Incarnation
	run     [simVBs]*simStream
	ended   [simVBs]index.Incarnation // to be reported next
	full    bool
	reports []Report
}

type simNode struct {
	min  [simVBs]index.Incarnation
	cur  [simVBs]index.Incarnation
	from [simVBs]int
	open [simVBs]bool
	hw   [simVBs]uint64
	log  [simVBs]timestamp.FailoverLog
	rev  [simVBs]uint64
	// answered is the newest poll whose answer reached the ledger in time, and stood its position then.
	answered [simVBs]index.Incarnation
	stood    [simVBs]uint64
	// missing is since when it has reported that it does not receive the running stream, 0: it has reported that it
	// does.
	missing [simVBs]int64
}

type simMsg struct { // projector to indexer, in order
	v     int
	inc   index.Incarnation
	begin bool
	end   bool
	start uint64
	log   timestamp.FailoverLog
	rev   uint64
	purge uint64
}

type sim struct {
	r       *rand.Rand
	now     int64
	term    uint64
	l       *Ledger
	kv      [simVBs]*simVB
	pr      [simProjs]*simProj
	nd      [simNodes]*simNode
	link    [simProjs][simNodes][]simMsg
	pending []func() // commands and answers in transit
	owners  map[string]int
	trace   []string
	err     string
	refused map[string]bool
	rolled  int
	starts  int
	fetched index.Incarnation
	// everLost: since the last rollback a failover of the vbucket has lost something, so that a late answer may still
	// reveal it.
	everLost [simVBs]bool
	rev      uint64 // of the vbucket map
	calm     int    // one event in this many is a fault
}

func (s *sim) fail(form string, a ...any) {
	if s.err == "" {
		s.err = fmt.Sprintf(form, a...)
		s.ev("VIOLATION %s", s.err)
	}
}

func (s *sim) ev(form string, a ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%6d ", s.now)+fmt.Sprintf(form, a...))
}

func newSim(seed uint64) *sim {
	s := &sim{r: rand.New(rand.NewPCG(seed, 7)), owners: map[string]int{}, refused: map[string]bool{}, rev: 1}
	s.calm = []int{3, 6, 12, 30}[s.r.IntN(4)]
	for v := range s.kv {
		s.kv[v] = &simVB{nextUUID: uint64(100 * (v + 1)), zombie: -1, owner: v % simProjs}
		s.kv[v].log = timestamp.FailoverLog{{VBUUID: s.kv[v].nextUUID}}
		s.kv[v].both = seed%3 == 0
	}
	for p := range s.pr {
		s.pr[p] = &simProj{up: true, full: true}
	}
	for n := range s.nd {
		s.nd[n] = &simNode{}
	}
	s.leader()
	return s
}

// leader starts a new leader: the hello answers are the current state, some of them missing.
func (s *sim) leader() {
	s.term++
	s.pending = nil
	s.l, _ = New(DefaultConfig(), simVBs, 1, s.term)
	s.l.SetIndexers([]index.NodeID{0, 1})
	s.l.SetProjectors(s.now, s.alive())
	s.l.SetWanted(s.now, true)
	streams := map[index.ProjectorID]Report{}
	minimum := map[index.NodeID][]index.Incarnation{}
	var unanswered []index.ProjectorID
	for p, pr := range s.pr {
		pr.reports, pr.full = nil, true
		if !pr.up {
			continue
		}
		if s.r.IntN(6) > 0 {
			streams[simNames[p]] = s.report(p)
		} else {
			unanswered = append(unanswered, simNames[p])
		}
	}
	for n, nd := range s.nd {
		if s.r.IntN(6) > 0 {
			minimum[index.NodeID(n)] = slices.Clone(nd.min[:])
		}
	}
	s.l.Adopt(s.now, streams, minimum, unanswered)
	s.ev("LEADER term %d", s.term)
}

func (s *sim) alive() (ids []index.ProjectorID) {
	for p, pr := range s.pr {
		if pr.up {
			ids = append(ids, simNames[p])
		}
	}
	return ids
}

// report returns the projector's full report.
func (s *sim) report(p int) Report {
	st := Report{Full: true}
	for v, run := range s.pr[p].run {
		if run == nil {
			continue
		}
		st.Streams = append(st.Streams, Running{VBucket: uint16(v), Incarnation: run.inc, Log: run.log,
			Revision: timestamp.MapRevision{Rev: run.rev}})
	}
	return st
}

// hosted returns what the KV node of p would stream of v.
func (s *sim) hosted(p, v int) (log timestamp.FailoverLog, high, purge, rev uint64, ok bool) {
	k := s.kv[v]
	switch p {
	case k.owner:
		return k.log, k.high, k.purge, s.rev, true
	case k.zombie:
		return k.zlog, k.zhigh, 0, k.zrev, true
	}
	if k.both && k.zombie < 0 {
		return k.log, k.high, k.purge, s.rev, true
	}
	return nil, 0, 0, 0, false
}

func (s *sim) branch(v int, at uint64) {
	k := s.kv[v]
	log := timestamp.FailoverLog{}
	for _, e := range k.log {
		if e.Seqno < at || e.Seqno == at && s.r.IntN(2) == 0 || e.Seqno == 0 {
			log = append(log, e)
		}
	}
	k.nextUUID++
	k.log = append(timestamp.FailoverLog{{VBUUID: k.nextUUID, Seqno: at}}, log...)
	k.high, k.purge = at, min(k.purge, at)
	s.rev++
}

func (s *sim) endStream(p, v int, say bool) {
	run := s.pr[p].run[v]
	if run == nil {
		return
	}
	s.pr[p].run[v] = nil
	if say {
		s.pr[p].ended[v] = run.inc
		for n := range s.nd {
			s.link[p][n] = append(s.link[p][n], simMsg{v: v, inc: run.inc, end: true})
		}
	} else {
		s.pr[p].full = true
	}
	s.ev("p%d ends vb%d %v", p+1, v, run.inc)
}

// act executes one action of the ledger: every command is delivered independently.
func (s *sim) act(a Action) {
	s.ev("ledger: %s %v vbs %v %+v", a.Kind, a.Incarnation, a.VBuckets, a.Starts)
	l := s.l
	if a.Kind == FetchLogs {
		s.fetched = a.Incarnation
	}
	for _, st := range a.Starts {
		s.checkStart(st)
	}
	later := func(f func()) { s.pending = append(s.pending, f) }
	for _, node := range a.Nodes {
		n := int(node)
		later(func() {
			ps := s.poll(n, a)
			later(func() {
				if l != s.l {
					return
				}
				l.Positions(node, a.Incarnation, ps)
				for _, p := range ps {
					if s.fetched.Compare(a.Incarnation) < 0 {
						s.nd[n].answered[p.VBucket], s.nd[n].stood[p.VBucket] = a.Incarnation, p.HW
					}
				}
			})
		})
	}
	for _, id := range a.Projectors {
		p := slices.Index(simNames[:], id)
		later(func() {
			if !s.pr[p].up {
				return
			}
			switch a.Kind {
			case FetchLogs:
				var gs []Log
				for _, vb := range a.VBuckets {
					if log, high, purge, rev, ok := s.hosted(p, int(vb)); ok {
						gs = append(gs, Log{VBucket: vb, Log: log, High: high, Purge: purge, Revision: timestamp.MapRevision{Rev: rev}})
					}
				}
				later(func() {
					if l == s.l {
						l.Logs(id, a.Incarnation, gs)
					}
				})
			case StartStreams:
				rs := s.start(p, a)
				later(func() {
					if l == s.l {
						l.Started(s.now, id, a.Incarnation, rs)
					}
				})
			case StopStreams:
				for _, vb := range a.VBuckets {
					pr := s.pr[p]
					if a.Incarnation.Compare(pr.min[vb]) > 0 {
						pr.min[vb] = a.Incarnation
					}
					if run := pr.run[vb]; run != nil && run.inc.Compare(a.Incarnation) <= 0 {
						s.endStream(p, int(vb), true)
					}
				}
			}
		})
	}
}

// checkStart checks that no indexer whose answer came in time is left with a gap, except because of purged deletions
// or KV's refusal, or if it has not received the stream for long.
func (s *sim) checkStart(st Start) {
	v := int(st.VBucket)
	for n, nd := range s.nd {
		if since := nd.missing[v]; since > 0 && s.now-since > DefaultConfig().MismatchWait.Milliseconds() {
			continue
		}
		if nd.answered[v] == st.Incarnation && nd.stood[v] < st.Seqno && nd.stood[v] >= s.kv[v].purge &&
			!s.refusedAbove(v, nd.stood[v]) {
			s.fail("n%d stood at %d of vb%d when it was asked under %v, yet the stream starts at %d", n, nd.stood[v], v,
				st.Incarnation, st.Seqno)
		}
	}
}

func (s *sim) poll(n int, a Action) (ps []Position) {
	nd := s.nd[n]
	for _, vb := range a.VBuckets {
		v := int(vb)
		if a.Incarnation.Compare(nd.min[v]) < 0 {
			continue
		}
		if nd.min[v] = a.Incarnation; nd.cur[v].Compare(a.Incarnation) < 0 {
			nd.open[v] = false
		}
		ps = append(ps, Position{VBucket: vb, Participant: true, HW: nd.hw[v], Reach: nd.hw[v], Log: nd.log[v],
			Revision: timestamp.MapRevision{Rev: nd.rev[v]}})
	}
	return ps
}

func (s *sim) start(p int, a Action) (rs []Started) {
	pr := s.pr[p]
	for _, st := range a.Starts {
		v := int(st.VBucket)
		r := Started{VBucket: st.VBucket}
		log, high, purge, rev, ok := s.hosted(p, v)
		switch {
		case st.Incarnation.Compare(pr.min[v]) < 0:
			r.Outcome = Stale
		case !ok:
			pr.min[v] = st.Incarnation
			r.Outcome = NotMine
		case st.Seqno > 0 && (st.Seqno < purge || st.Seqno > high || max(st.Seqno, st.Window.End) > log.ValidUpTo(st.VBUUID)):
			pr.min[v] = st.Incarnation
			pr.run[v] = nil
			r.Outcome = RolledKV
			s.refused[fmt.Sprint(v, st.Seqno)] = true
			s.ev("p%d vb%d %v ROLLBACK at %d (log %v purge %d)", p+1, v, st.Incarnation, st.Seqno, log, purge)
		default:
			if pr.run[v] == nil || pr.run[v].inc != st.Incarnation {
				s.starts++
				pr.min[v] = st.Incarnation
				pr.run[v] = &simStream{inc: st.Incarnation, log: log, rev: rev, cur: st.Seqno}
				for n := range s.nd {
					s.link[p][n] = append(s.link[p][n], s.beginMsg(p, v))
				}
			}
			r.Outcome, r.Log, r.Purge, r.Revision = Streams, log, purge, timestamp.MapRevision{Rev: rev}
		}
		rs = append(rs, r)
	}
	return rs
}

func (s *sim) beginMsg(p, v int) simMsg {
	run := s.pr[p].run[v]
	_, _, purge, _, _ := s.hosted(p, v)
	return simMsg{v: v, inc: run.inc, begin: true, start: run.cur, log: run.log, rev: run.rev, purge: purge}
}

// pump advances a stream.
func (s *sim) pump(p, v int) {
	run := s.pr[p].run[v]
	if run == nil {
		return
	}
	log, high, _, _, ok := s.hosted(p, v)
	if !ok || log.Newest() != run.log.Newest() { // KV closed it, or forgot to
		if s.r.IntN(3) == 0 {
			s.endStream(p, v, s.r.IntN(2) == 0)
		}
		return
	}
	if run.cur < high {
		run.cur++
		for n := range s.nd {
			s.link[p][n] = append(s.link[p][n], simMsg{v: v, inc: run.inc, start: run.cur})
		}
	}
}

func (s *sim) receive(p, n int) {
	q := s.link[p][n]
	if len(q) == 0 {
		return
	}
	m := q[0]
	s.link[p][n] = q[1:]
	nd, v := s.nd[n], m.v
	if !m.begin {
		if !nd.open[v] || nd.cur[v] != m.inc || nd.from[v] != p {
			return
		}
		if m.end {
			nd.open[v] = false
			return
		}
		if o, ok := s.owners[fmt.Sprint(n, v, m.inc)]; ok && o != p {
			s.fail("n%d accepts vb%d %v from p%d and p%d", n, v, m.inc, o+1, p+1)
		}
		s.owners[fmt.Sprint(n, v, m.inc)] = p
		nd.hw[v] = max(nd.hw[v], m.start)
		return
	}
	older := m.inc.Compare(nd.min[v]) < 0 || m.inc.Compare(nd.cur[v]) < 0
	if older || m.inc == nd.cur[v] && nd.from[v] != p || m.rev < nd.rev[v] {
		return
	}
	if up := nd.log[v].Common(m.log); nd.hw[v] > up { // diverged: restores locally
		nd.hw[v] = up
	}
	nd.hw[v] = max(nd.hw[v], m.start) // a gap, which catchup fills
	nd.min[v], nd.cur[v], nd.from[v], nd.open[v], nd.log[v], nd.rev[v] = m.inc, m.inc, p, true, m.log, m.rev
}

// refusedAbove reports whether KV refused a start at or above the position, so that a holder there is no participant.
func (s *sim) refusedAbove(v int, hw uint64) bool {
	for at := hw; at <= hw+200; at++ {
		if s.refused[fmt.Sprint(v, at)] {
			return true
		}
	}
	return false
}

// rollback does all of IM-23 at once: diverged state is restored.
func (s *sim) rollback() {
	s.rolled++
	d, _ := s.l.Diverged()
	s.ev("ROLLBACK vb%d %s", d.VBucket, d.Reason)
	diverged := false
	for _, nd := range s.nd {
		diverged = diverged || s.everLost[d.VBucket] || nd.hw[d.VBucket] > nd.log[d.VBucket].Common(s.kv[d.VBucket].log)
	}
	if !diverged {
		s.fail("a needless rollback of vb%d: %s", d.VBucket, d.Reason)
	}
	s.l.SetRollback(s.now, true)
	for _, nd := range s.nd {
		for v, k := range s.kv {
			if up := nd.log[v].Common(k.log); nd.hw[v] > up {
				nd.hw[v] = up
			}
			nd.log[v], nd.rev[v] = k.log, max(nd.rev[v], s.rev)
		}
	}
	s.everLost = [simVBs]bool{}
	s.l.SetRollback(s.now, false)
}

func (s *sim) fault() {
	v, p, n := s.r.IntN(simVBs), s.r.IntN(simProjs), s.r.IntN(simNodes)
	k := s.kv[v]
	switch s.r.IntN(9) {
	case 0: // failover: the tail is lost
		was := k.owner
		zlog, zhigh, zrev := k.log, k.high, s.rev
		lost := min(k.high, uint64(s.r.IntN(4)))
		s.everLost[v] = s.everLost[v] || lost > 0
		s.branch(v, k.high-lost)
		k.owner, k.zombie = s.r.IntN(simProjs), -1
		if k.owner != was && s.r.IntN(2) == 0 {
			k.zombie, k.zlog, k.zhigh, k.zrev = was, zlog, zhigh, zrev
		}
		s.ev("FAILOVER vb%d log %v owner p%d zombie %v", v, k.log, k.owner+1, k.zombie >= 0)
	case 1: // takeover: nothing is lost
		s.branch(v, k.high)
		k.owner, k.zombie = 1-k.owner, -1
		s.ev("TAKEOVER vb%d log %v owner p%d", v, k.log, k.owner+1)
	case 2:
		s.ev("CRASH p%d", p+1)
		s.pr[p] = &simProj{full: true}
		for n := range s.nd {
			s.link[p][n] = nil
		}
		s.l.SetProjectors(s.now, s.alive())
	case 3: // a connection breaks; what was in transit is lost, BEGIN is repeated
		s.link[p][n] = nil
		for w := range simVBs {
			if s.nd[n].from[w] == p {
				s.nd[n].open[w] = false
			}
			if s.pr[p].run[w] != nil {
				s.link[p][n] = append(s.link[p][n], s.beginMsg(p, w))
			}
		}
	case 4, 5:
		s.leader()
	case 6:
		if len(s.pending) > 0 { // a message is lost
			i := s.r.IntN(len(s.pending))
			s.pending = append(s.pending[:i:i], s.pending[i+1:]...)
		}
	case 7:
		s.endStream(p, v, s.r.IntN(2) == 0)
	case 8:
		k.purge = max(k.purge, k.high-min(k.high, uint64(s.r.IntN(3))))
	}
}

func (s *sim) step(heal bool) {
	s.now += int64(5 + s.r.IntN(40))
	p, v, n := s.r.IntN(simProjs), s.r.IntN(simVBs), s.r.IntN(simNodes)
	switch x := s.r.IntN(100); {
	case x < 18:
		s.pump(p, v)
	case x < 36:
		for range 3 {
			s.receive(s.r.IntN(simProjs), s.r.IntN(simNodes))
		}
	case x < 54:
		for range 3 {
			if len(s.pending) == 0 {
				break
			}
			i := s.r.IntN(len(s.pending))
			f := s.pending[i]
			if s.pending = append(s.pending[:i:i], s.pending[i+1:]...); !heal && s.r.IntN(20) == 0 {
				s.pending = append(s.pending, f) // a retry
			}
			f()
		}
	case x < 62:
		for _, a := range s.l.Step(s.now) {
			s.act(a)
		}
		if _, bad := s.l.Diverged(); bad {
			s.rollback()
		}
	case x < 68: // a report is made; reports of one projector arrive in order
		if pr := s.pr[p]; pr.up {
			st := s.report(p)
			st.Full = pr.full || s.r.IntN(3) == 0 || heal
			for w, inc := range pr.ended {
				if !inc.IsZero() && pr.run[w] == nil {
					st.Streams = append(st.Streams, Running{VBucket: uint16(w), Incarnation: inc, Ended: true})
				}
			}
			pr.ended, pr.full = [simVBs]index.Incarnation{}, false
			pr.reports = append(pr.reports, st)
		}
	case x < 74:
		if pr := s.pr[p]; pr.up && len(pr.reports) > 0 {
			s.l.Projector(s.now, simNames[p], pr.reports[0])
			pr.reports = pr.reports[1:]
		}
	case x < 80:
		nd := s.nd[n]
		var a []Acceptance
		for w := range simVBs {
			inc := nd.cur[w]
			if nd.min[w].Compare(inc) > 0 {
				inc = nd.min[w]
			}
			a = append(a, Acceptance{VBucket: uint16(w), Incarnation: inc, Projector: simNames[nd.from[w]], Open: nd.open[w]})
			switch e := s.l.At(w); {
			case e.State != Begun:
			case nd.open[w] && inc == e.Incarnation && simNames[nd.from[w]] == e.Owner:
				nd.missing[w] = 0
			case nd.missing[w] == 0:
				nd.missing[w] = s.now
			}
		}
		s.l.Indexer(s.now, index.NodeID(n), a)
	case x < 82:
		if !s.pr[p].up {
			s.ev("RESTART p%d", p+1)
			s.pr[p].up = true
			s.l.SetProjectors(s.now, s.alive())
		}
	case x < 84:
		s.audit()
	case x < 87:
		s.look(p)
	default:
		if heal {
			s.kv[v].zombie = -1
		} else if s.r.IntN(s.calm) == 0 {
			s.fault()
		} else {
			s.kv[v].high++
		}
	}
	for v := range simVBs {
		if e := s.l.At(v); e.State == Begun && e.Incarnation.Term > s.term {
			s.fail("vb%d begun under a term to come", v)
		}
	}
}

// look makes a projector report what its KV node hosts under the newest map; the report may be late.
func (s *sim) look(p int) {
	if !s.pr[p].up {
		return
	}
	h := Hosted{Node: string(simNames[p]), Revision: timestamp.MapRevision{Rev: s.rev}}
	if s.kv[0].both {
		h.Node = "both"
	}
	for v, k := range s.kv {
		if _, _, _, _, ok := s.hosted(p, v); ok && p != k.zombie {
			h.VBuckets = append(h.VBuckets, uint16(v))
		}
	}
	l := s.l
	s.pending = append(s.pending, func() {
		if l == s.l {
			l.Hosted(s.now, simNames[p], h)
		}
	})
}

// audit compares the streams with the state of KV.
func (s *sim) audit() {
	logs := map[index.ProjectorID][]Log{}
	for p, pr := range s.pr {
		if !pr.up {
			continue
		}
		logs[simNames[p]] = nil
		for v := range simVBs {
			if log, high, purge, rev, ok := s.hosted(p, v); ok {
				logs[simNames[p]] = append(logs[simNames[p]], Log{VBucket: uint16(v), Log: log, High: high, Purge: purge,
					Revision: timestamp.MapRevision{Rev: rev}})
			}
		}
	}
	s.l.Audit(s.now, logs, func(v int) uint64 {
		p := slices.Index(simNames[:], s.l.At(v).Owner)
		if p < 0 || s.pr[p].run[v] == nil {
			return 0
		}
		return s.pr[p].run[v].cur
	})
}

// uneven describes an imbalance: of two projectors at one node one streams at least two vbuckets more.
func (s *sim) uneven() string {
	load := map[index.ProjectorID]int{}
	for v := range s.kv {
		load[s.l.At(v).Owner]++
	}
	for v, k := range s.kv {
		for _, p := range simNames {
			if e := s.l.At(v); k.both && load[e.Owner]-load[p] > 1 {
				return fmt.Sprintf("vb%d is streamed by %s; the shares are %v", v, e.Owner, load)
			}
		}
	}
	return ""
}

// settled describes what is still wrong.
func (s *sim) settled() string {
	for v, k := range s.kv {
		e := s.l.At(v)
		if e.State != Begun || e.Owner != simNames[k.owner] && !k.both {
			return fmt.Sprintf("vb%d %s %s %v (%s), KV's owner is p%d", v, e.State, e.Owner, e.Incarnation, e.Reason, k.owner+1)
		}
		for n, nd := range s.nd {
			if !nd.open[v] || nd.cur[v] != e.Incarnation || simNames[nd.from[v]] != e.Owner || nd.hw[v] != k.high {
				return fmt.Sprintf("n%d vb%d at %d of %d, open %v %v from p%d; ledger %v", n, v, nd.hw[v], k.high, nd.open[v],
					nd.cur[v],
					nd.from[v]+1, e.Incarnation)
			}
		}
	}
	return s.uneven()
}

func (s *sim) run() string {
	for i := 0; i < 1500 && s.err == ""; i++ {
		s.step(false)
	}
	s.ev("HEALING")
	for i := 0; i < 20000 && s.err == ""; i++ {
		s.step(true)
		if i%20 == 0 && s.settled() == "" {
			return s.still()
		}
	}
	if s.err == "" {
		s.fail("stuck: %s", s.settled())
	}
	return s.err
}

// still checks that in a healthy and balanced state no stream is started any more, and no vbucket oscillates.
// Messages in transit are delivered first.
func (s *sim) still() string {
	s.ev("STILL")
	before := 0
	for i := 0; i < 3000 && s.err == ""; i++ {
		if s.step(true); i == 1000 {
			before = s.starts
		}
	}
	if s.starts != before && s.err == "" {
		s.fail("%d streams were started although all is well", s.starts-before)
	}
	return s.err
}

func TestSimulation(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 30
	}
	rolled, starts := 0, 0
	for seed := range seeds {
		s := newSim(seed)
		if e := s.run(); e != "" {
			for _, l := range s.trace[max(0, len(s.trace)-80):] {
				t.Log(l)
			}
			t.Fatalf("seed %d: %s", seed, e)
		}
		rolled, starts = rolled+s.rolled, starts+s.starts
	}
	if rolled == 0 || starts == 0 {
		t.Fatalf("nothing happened: %d rollbacks, %d starts", rolled, starts)
	}
	t.Logf("%d seeds, %d streams started, %d rollbacks", seeds, starts, rolled)
}
