package ingest

import (
	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// The coordinator and the projectors of the simulation. Commands and answers are late, lost or overtaken.

type simProj struct {
	up     bool
	st     [simVBs]*simMain
	minInc [simVBs]uint64
	topo   []index.CopyID // copies to feed
	rev    int
	conn   [simNodes]uint64
}

// simMain is a maintenance stream.
type simMain struct {
	inc   uint64
	ks    simStream
	comp  uint64
	known bool // comp counts
	topo  []index.CopyID
	drop  [simNodes]bool
}

// simMsg is on its way from a projector to a node or to the coordinator (e.VBucket, e.Incarnation are filled in).
type simMsg struct {
	e   keyversion.Event
	src Source
}

type simLed struct {
	inc   uint64
	owner int
	state string // lost, requested, begun
	tries int
}

type simRepair struct {
	inc        uint64
	age, phase int
	parts      map[int]Progress
	logs       map[int]simLog
	refused    uint64
}

type simLog struct {
	fl    timestamp.FailoverLog
	rev   timestamp.MapRevision
	purge uint64
	high  uint64
}

type simCand struct {
	seqno, inc uint64
	fl         timestamp.FailoverLog
}

type simCoord struct {
	led     [simVBs]simLed
	rep     [simVBs]*simRepair
	cand    [simVBs]simCand
	rev     [simVBs]timestamp.MapRevision
	refused [simVBs]uint64
	s       timestamp.Stability
	inc     uint64
	rolling bool
	rbInc   uint64
	rbLogs  []timestamp.FailoverLog
	rbAcks  map[int]bool
	rbAge   int
	topo    []index.CopyID // committed: routers feed them
	rev2    int
}

func projID(p int) index.ProjectorID { return index.ProjectorID([]string{"p0", "p1"}[p]) }

func incOf(u uint64) index.Incarnation { return index.Incarnation{Epoch: 1, Term: 1, Counter: u} }

func (s *sim) newInc() uint64 { s.co.inc++; return s.co.inc }

func (s *sim) later(f func()) {
	if len(s.late) < 300 {
		s.late = append(s.late, f)
	}
}

// toNode runs a command at a node, some time, if it is up then.
func (s *sim) toNode(ni int, f func(*simNode)) {
	s.later(func() {
		if n := s.nodes[ni]; n.up {
			f(n)
			s.collect(n)
		}
	})
}

func (s *sim) toProj(p int, f func(*simProj)) {
	s.later(func() {
		if pr := s.proj[p]; pr.up {
			f(pr)
		}
	})
}

func (s *sim) emit(p, to int, v int, inc uint64, e keyversion.Event) {
	e.VBucket, e.Incarnation = uint16(v), incOf(inc)
	src := Source{Projector: projID(p)}
	if to < simNodes {
		if !s.nodes[to].up {
			return
		}
		src.Connection = s.proj[p].conn[to]
	}
	for _, part := range s.parts(e) {
		s.conn[p][to] = append(s.conn[p][to], simMsg{part, src})
	}
}

// parts cuts some of the events that are about several indexes; not in runs that show what another rule is for: their
// seeds stay what they are.
func (s *sim) parts(e keyversion.Event) []keyversion.Event {
	if s.off.others("wholeParts") {
		return []keyversion.Event{e}
	}
	at := 0
	for at < len(e.Statements) && e.Statements[at].Index == e.Statements[0].Index {
		at++
	}
	if at == len(e.Statements) || s.cut.Intn(2) == 0 {
		return []keyversion.Event{e}
	}
	head, tail := e, e
	head.Statements, head.More = e.Statements[:at], true
	tail.Statements, tail.Part = e.Statements[at:], 1
	return []keyversion.Event{head, tail}
}

func (s *sim) beginMsg(p, v, to int) keyversion.Event {
	st := s.proj[p].st[v]
	g := &keyversion.Begin{Start: st.ks.cur, Log: st.ks.branch.fl, Purge: st.ks.branch.purge, Revision: st.ks.branch.rev}
	for _, id := range st.topo {
		if to < simNodes && s.copies[id].node == to {
			g.Copies = append(g.Copies, id)
		}
	}
	return keyversion.Event{Kind: keyversion.StreamBegin, Begin: g}
}

func (s *sim) rebegin(p, to int) {
	for v := range simVBs {
		if st := s.proj[p].st[v]; st != nil {
			if to < simNodes {
				st.drop[to] = false
			}
			s.emit(p, to, v, st.inc, s.beginMsg(p, v, to))
		}
	}
}

func (s *sim) breakConn(p, to int) {
	s.conn[p][to] = nil
	if to < simNodes {
		old := s.proj[p].conn[to]
		s.connID++
		s.proj[p].conn[to] = s.connID
		if n := s.nodes[to]; n.up {
			n.b.ConnectionLost(old)
			for _, id := range sortedKeys(n.side) {
				x := n.side[id]
				switch {
				case x.p != p:
				case len(s.off) == 0 && s.r.Intn(2) == 0:
					x.told = false // the router goes on over the next connection
				default:
					delete(n.side, id)
					n.b.SideFailed(x.v, id)
				}
			}
		}
	}
}

func (s *sim) endStream(p, v int, say bool) {
	st := s.proj[p].st[v]
	if st == nil {
		return
	}
	if say {
		for to := range simNodes + 1 {
			s.emit(p, to, v, st.inc, keyversion.Event{Kind: keyversion.StreamEnd})
		}
	}
	s.ev("p%d stream vb%d inc %d ends (said %v)", p, v, st.inc, say)
	s.proj[p].st[v] = nil
}

func (s *sim) sync(p, v int) {
	st := s.proj[p].st[v]
	if !st.known {
		return
	}
	for to := range simNodes + 1 {
		s.emit(p, to, v, st.inc, keyversion.Event{Kind: keyversion.Sync, Seqno: st.comp,
			Begin: &keyversion.Begin{Log: st.ks.branch.fl}})
	}
}

// pump moves one item of a maintenance stream.
func (s *sim) pump(p, v int) {
	st := s.proj[p].st[v]
	if st == nil {
		return
	}
	k := &st.ks
	if !k.mid {
		if k.cur >= k.branch.high() {
			if k.branch != s.kv[v].cur && k.branch != s.kv[v].zombie && s.r.Intn(3) == 0 {
				s.endStream(p, v, true)
			}
			return
		}
		k.marker(k.cur + 1 + uint64(s.r.Intn(int(k.branch.high()-k.cur))))
	}
	if len(k.items) > 0 {
		it := k.items[0]
		k.items, k.cur = k.items[1:], it.seqno
		for to := range simNodes {
			if e := s.event(to, it, k.window, st.topo); len(e.Statements) > 0 && !st.drop[to] {
				s.emit(p, to, v, st.inc, e)
			}
		}
	}
	if len(k.items) == 0 {
		k.mid, k.cur = false, k.window.End
		st.comp, st.known = k.window.End, true
		s.sync(p, v)
	} else if s.off["snapshotEnds"] {
		st.comp, st.known = k.cur, true
		s.sync(p, v)
	}
}

// coRecv: BEGIN, SYNC and END as the coordinator sees them.
func (s *sim) coRecv(p int, m simMsg) {
	co := s.co
	v, inc := int(m.e.VBucket), m.e.Incarnation.Counter
	l := &co.led[v]
	switch m.e.Kind {
	case keyversion.StreamBegin:
		g := m.e.Begin
		if inc < l.inc || co.rolling || g.Revision.Compare(co.rev[v]) < 0 && !s.off["staleLog"] {
			return
		}
		if l.state == "begun" && inc == l.inc && p != l.owner {
			for q := range 2 {
				s.toProj(q, func(pr *simProj) { s.stop(q, v, inc) })
			}
			*l = simLed{inc: inc + 1, state: "lost"}
			co.inc += 2
			return
		}
		if r := co.rep[v]; r != nil && inc < r.inc {
			return
		}
		*l = simLed{inc: inc, owner: p, state: "begun"}
		co.rev[v], co.refused[v] = g.Revision, 0
		if co.s.Vector.Seqnos[v] > co.s.Logs[v].Common(g.Log) {
			s.startRollback("S is not on the branch of BEGIN")
		}
	case keyversion.Sync:
		if inc == l.inc && l.state == "begun" && l.owner == p && !co.rolling {
			co.cand[v] = simCand{m.e.Seqno, inc, m.e.Begin.Log}
		}
	case keyversion.StreamEnd:
		if inc == l.inc && l.owner == p {
			l.state = "lost"
		}
	}
}

func (s *sim) stop(p, v int, inc uint64) {
	pr := s.proj[p]
	pr.minInc[v] = max(pr.minInc[v], inc)
	if st := pr.st[v]; st != nil && st.inc <= inc {
		s.endStream(p, v, true)
	}
}

func (s *sim) promote() {
	co := s.co
	if co.rolling {
		return
	}
	for ni, n := range s.nodes { // at most 4 outstanding
		if n.up && co.s.Number >= n.ack+4 && len(n.stores) > 0 && n.b.RollbackID() == co.s.RollbackID && s.r.Intn(20) > 0 {
			_ = ni
			return
		}
	}
	t := co.s
	t.Vector, t.Logs = t.Vector.Clone(), append([]timestamp.FailoverLog{}, t.Logs...)
	change := false
	for v := range simVBs {
		c, l := co.cand[v], co.led[v]
		if c.inc == 0 || c.inc != l.inc || l.state != "begun" {
			continue
		}
		if t.Vector.Seqnos[v] > 0 && t.Vector.Seqnos[v] > t.Logs[v].Common(c.fl) {
			continue
		}
		if c.seqno > t.Vector.Seqnos[v] || c.seqno == t.Vector.Seqnos[v] && c.fl.Newest() != t.Logs[v].Newest() {
			t.Vector.Set(v, timestamp.Position{VBUUID: c.fl.Newest(), Seqno: c.seqno})
			t.Logs[v] = c.fl
			change = true
		}
	}
	if change {
		t.Number++
		co.s = t
		s.ev("S%d %v rollback %d", t.Number, t.Vector.Seqnos, t.RollbackID)
		s.publish()
	}
}

func (s *sim) publish() {
	t := s.co.s
	for ni := range s.nodes {
		s.toNode(ni, func(n *simNode) { n.b.Publish(t) })
	}
}

// startRollback: the condensed machine: stop, logs, rewind S, command until all have acknowledged.
func (s *sim) startRollback(why string) {
	co := s.co
	co.rolling, co.rbAge, co.rbLogs, co.rbAcks = true, 0, nil, map[int]bool{}
	co.rbInc = s.newInc()
	co.s.RollbackID++
	co.rep = [simVBs]*simRepair{}
	s.rollbacks++
	s.ev("ROLLBACK %d: %s", co.s.RollbackID, why)
	for v := range simVBs {
		co.led[v] = simLed{inc: co.rbInc, state: "lost"}
		for p := range 2 {
			inc := co.rbInc
			s.toProj(p, func(*simProj) { s.stop(p, v, inc) })
		}
	}
}

func (s *sim) rollbackStep() {
	co := s.co
	if co.rbAge++; co.rbLogs == nil {
		logs := make([]timestamp.FailoverLog, simVBs)
		for v := range simVBs {
			logs[v] = s.kv[v].cur.fl
			if z := s.kv[v].zombie; z != nil && s.off["staleLog"] && s.r.Intn(2) == 0 {
				logs[v] = z.fl
			}
		}
		co.rbLogs = logs
		t := &co.s
		t.Vector, t.Logs = t.Vector.Clone(), append([]timestamp.FailoverLog{}, t.Logs...)
		for v := range simVBs {
			t.Vector.Seqnos[v] = min(t.Vector.Seqnos[v], t.Logs[v].Common(logs[v]))
			t.Vector.VBUUIDs[v], t.Logs[v] = logs[v].Newest(), logs[v]
		}
		t.Number++
		co.cand = [simVBs]simCand{}
		s.ev("  rewound to %v", t.Vector.Seqnos)
		return
	}
	id, logs, inc := co.s.RollbackID, co.rbLogs, co.rbInc
	for ni := range s.nodes {
		if co.rbAcks[ni] || s.r.Intn(3) > 0 {
			continue
		}
		s.toNode(ni, func(n *simNode) {
			if s.r.Intn(3) == 0 {
				n.b.RollbackAsk(id, logs, incOf(inc), func(c index.CopyID, v int) []Held { return s.heldStates(n, c, v) })
			}
			switch n.b.Rollback(id, logs, incOf(inc)) {
			case RollbackDone:
				s.later(func() {
					if id == co.s.RollbackID {
						co.rbAcks[ni] = true
					}
				})
			case RollbackStale:
				s.later(func() {
					if id == co.s.RollbackID && co.rolling {
						co.rbLogs = nil
					}
				})
			}
		})
	}
	if co.rbAge > 3 && (len(co.rbAcks) == simNodes || s.r.Intn(60) == 0) {
		co.rolling = false
		s.ev("  rollback %d over", id)
	}
}

func (s *sim) coStep() {
	co := s.co
	if co.rolling && s.r.Intn(3) > 0 {
		s.rollbackStep()
		return
	}
	switch s.r.Intn(8) {
	case 0:
		s.promote()
		return
	case 1:
		if co.s.Number > 0 && s.r.Intn(3) == 0 {
			s.publish()
		}
		return
	case 2:
		s.tell()
		return
	}
	if co.rolling {
		return
	}
	v := s.r.Intn(simVBs)
	l := &co.led[v]
	if co.rep[v] != nil {
		s.repairStep(v)
	} else if l.state == "lost" || l.state == "requested" && s.r.Intn(12<<min(l.tries, 6)) == 0 || l.state == "begun" &&
		s.silent(v) && s.r.Intn(4) == 0 {
		co.rep[v] = &simRepair{inc: s.newInc(), parts: map[int]Progress{}, logs: map[int]simLog{}, refused: co.refused[v]}
	}
}

// silent: what the coordinator would see as missing SYNC, a changed map, or a heartbeat that names another owner.
func (s *sim) silent(v int) bool {
	l := s.co.led[v]
	st := s.proj[l.owner].st[v]
	if st == nil || st.inc != l.inc || st.ks.branch != s.kv[v].cur {
		return true
	}
	for _, n := range s.nodes {
		if !n.up {
			continue
		}
		c := n.b.vbs[v].cur
		if n.b.vbs[v].min.Counter > l.inc || c.inc.Counter == l.inc && c.projector != projID(l.owner) {
			return true
		}
		if !c.open || c.inc.Counter != l.inc {
			if s.mismatch[v]++; s.mismatch[v] > 200 {
				s.mismatch[v] = 0
				return true
			}
		}
	}
	return false
}

func (s *sim) repairStep(v int) {
	co := s.co
	r := co.rep[v]
	r.age++
	switch r.phase {
	case 0:
		for ni := range s.nodes {
			s.toNode(ni, func(n *simNode) {
				pp := n.b.Poll([]uint16{uint16(v)}, incOf(r.inc))[0]
				s.later(func() {
					if r.phase == 1 {
						r.parts[ni] = pp
					}
				})
			})
		}
		r.phase = 1
	case 1:
		if len(r.parts) < simNodes && s.r.Intn(12) > 0 {
			return
		}
		for p := range 2 {
			s.toProj(p, func(*simProj) {
				if k := s.hosted(p, v); k != nil {
					a := simLog{k.fl, k.rev, k.purge, k.high()}
					s.later(func() { r.logs[p] = a })
				}
			})
		}
		r.phase, r.age = 2, 0
	default:
		if len(r.logs) > 0 && (len(r.logs) == 2 || s.r.Intn(6) == 0) || r.age > 30 {
			s.request(v, r)
		}
	}
}

// request: the restart timestamp of one vbucket.
func (s *sim) request(v int, r *simRepair) {
	co := s.co
	co.rep[v] = nil
	lg, ok := simLog{}, false
	for p := range 2 {
		if a, have := r.logs[p]; have && (!ok || !s.off["staleLog"] && a.rev.Compare(lg.rev) > 0) {
			lg, ok = a, true
		}
	}
	if !ok || !s.off["staleLog"] && lg.rev.Compare(co.rev[v]) < 0 {
		return
	}
	for _, p := range r.parts {
		if !s.off["staleLog"] && lg.rev.Compare(p.Revision) < 0 {
			return // an indexer knows a newer map
		}
	}
	if co.s.Vector.Seqnos[v] > co.s.Logs[v].Common(lg.fl) {
		s.startRollback("S diverged")
		return
	}
	start, end, fl := ^uint64(0), uint64(0), lg.fl
	for ni := range s.nodes {
		p, ok := r.parts[ni]
		if !ok || !p.Participant {
			continue
		}
		if max(p.HW, p.Reach) > p.Log.Common(lg.fl) {
			s.startRollback("participant diverged")
			return
		}
		if p.HW < lg.purge || p.HW > 0 && p.HW <= r.refused {
			continue
		}
		end = max(end, p.Reach)
		if p.HW < start {
			start, fl = p.HW, p.Log
		}
	}
	if start == ^uint64(0) {
		start, end, fl = lg.high, lg.high, lg.fl
	}
	co.led[v] = simLed{inc: r.inc, state: "requested", tries: co.led[v].tries + 1}
	s.ev("request vb%d inc %d from %d", v, r.inc, start)
	for p := range 2 {
		s.toProj(p, func(pr *simProj) { s.startStream(p, v, r.inc, start, end, fl) })
	}
}

func (s *sim) startStream(p, v int, inc, start, end uint64, fl timestamp.FailoverLog) {
	pr := s.proj[p]
	if inc < pr.minInc[v] || pr.st[v] != nil && pr.st[v].inc == inc {
		return
	}
	pr.minInc[v] = inc
	k := s.hosted(p, v)
	if k == nil {
		return
	}
	pr.st[v] = nil
	if !k.admit(start, end, fl) {
		s.ev("p%d vb%d inc %d ROLLBACK (start %d reach %d %v, has %v purge %d)", p, v, inc, start, end, fl, k.fl, k.purge)
		s.later(func() {
			if l := &s.co.led[v]; l.inc == inc && l.state == "requested" {
				l.state = "lost"
				s.co.refused[v] = max(s.co.refused[v], start)
			}
		})
		return
	}
	st := &simMain{inc: inc, ks: simStream{branch: k, cur: start}, topo: pr.topo}
	if end <= start {
		st.comp, st.known = start, true
	}
	pr.st[v] = st
	s.ev("p%d BEGIN vb%d inc %d from %d branch %d", p, v, inc, start, k.fl.Newest())
	for to := range simNodes + 1 {
		s.emit(p, to, v, inc, s.beginMsg(p, v, to))
	}
}
