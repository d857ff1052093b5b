package simulation

// fault triggers one of this seed's faults.
func (s *Sim) fault(b *kvBucket, v, p int, n *node) {
	switch e := s.events[s.dice.plan.Intn(len(s.events))]; e {
	case failovers:
		s.failover(b, v)
	case flushes:
		s.flush(b)
	case takeovers:
		s.takeover(b, v)
	case nodeCrashes:
		if n.up {
			s.crashNode(n)
		}
	case projectorCrashes:
		if s.proj[p].up {
			s.crashProjector(p)
		}
	case fullDisks:
		n.full = !n.full
		s.ev("disk of n%d full: %v", n.num, n.full)
	case tornFiles:
		if n.up {
			s.reopen(n)
		}
	case brokenConnections, stalls, drops, streamEnds:
		s.streamFault(e, b, v, p, n)
	default:
		s.controlFault(e, b, v)
	}
}

// streamFault triggers a fault of a stream or a connection.
func (s *Sim) streamFault(e fault, b *kvBucket, v, p int, n *node) {
	switch e {
	case brokenConnections:
		s.ev("connection p%d->n%d %s/%d breaks", p, n.num, b.name, v)
		if s.dice.plan.Intn(2) == 0 {
			s.breakAll(p, n.num)
		} else {
			s.breakConn(p, connKey{n.num, b.name, v}, b)
		}
	case stalls:
		s.stall(p, connKey{n.num, b.name, v})
	case drops:
		if st := s.proj[p].stream(b, v); st != nil && st.drop[n.num] {
			s.resume(p, b, v, n)
		} else if st != nil {
			st.drop[n.num] = true
			if s.dice.plan.Intn(2) == 0 {
				st.mute[n.num] = true
			} else {
				s.emit(p, n.num, b, v, st.down(n.num, nil).Drop(st.ks.cur+1), st.ks.cur)
			}
			s.ev("p%d drops %s/%d for n%d after %d", p, b.name, v, n.num, st.ks.cur)
		}
	case streamEnds:
		s.endStream(p, b, v, s.dice.plan.Intn(2) == 0)
	}
}

// controlFault triggers a change of the leader, of indexes or of the time.
func (s *Sim) controlFault(e fault, b *kvBucket, v int) {
	switch e {
	case leaderChanges:
		if s.dice.plan.Intn(3) == 0 {
			s.ev("the leader is deposed")
			s.depose()
		} else {
			s.elect()
			s.Report.Leaders++
		}
	case ddl:
		if s.dice.plan.Intn(3) == 0 {
			s.dropIndex(b)
		} else {
			s.createIndex(b)
		}
	case purges:
		if !b.early || b.vb[v].cur.high() > young {
			s.purge(b, v)
		}
	case moves:
		s.placeBeside(b)
	case epochs:
		if s.dice.plan.Intn(4) == 0 {
			s.raiseEpoch()
		}
	case pauses:
		s.pass(int64(s.dice.plan.Intn(2000)))
	}
}
