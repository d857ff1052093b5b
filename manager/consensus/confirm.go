package consensus

import (
	"context"

	"github.com/hashicorp/raft"
)

// confirmer proves that this node still leads: in this term, a majority answers a heartbeat that was sent after the
// proof was requested. The library's VerifyLeader accepts any answer that arrives after it was called; if the leader
// was stopped for a while, a follower may have given that answer before it elected another leader. The fields belong
// to the goroutine of verify.
type confirmer struct {
	base    *base
	links   *links
	reigns  *reigns
	round   uint64
	peers   map[raft.ServerID]*peer
	answers chan heartbeatAnswer
}

// peer is another voter. At most one heartbeat per peer is in flight, so that a peer that hangs costs one goroutine.
type peer struct {
	id    raft.ServerID
	addr  raft.ServerAddress
	asked bool
}

type heartbeatAnswer struct {
	peer  *peer
	round uint64 // round in which the heartbeat was sent
	term  uint64 // term of the peer, 0 if it did not answer
	yes   bool
}

// answersLength is the buffer for answers to proofs that were given up.
const answersLength = 64

func newConfirmer(rd *reads) *confirmer {
	return &confirmer{base: rd.base, links: rd.links, reigns: rd.reigns, peers: map[raft.ServerID]*peer{},
		answers: make(chan heartbeatAnswer, answersLength)}
}

// confirm returns nil if no other node can have led in a later term before the call. It retries while the reign
// lasts, and returns a NotLeaderError when the reign is over: without a majority, Raft ends it within its lease.
func (c *confirmer) confirm(ctx context.Context, now reign) error {
	need, err := c.voters()
	if err != nil {
		return err
	}
	c.round++
	for _, p := range c.peers {
		c.ask(p, now.term)
	}
	for need > 0 {
		c.reigns.mu.Lock()
		serving, changed := c.reigns.serving, c.reigns.changed
		c.reigns.mu.Unlock()
		if serving != now {
			return c.base.notLeader()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ErrClosed
		case a := <-c.answers:
			a.peer.asked = false
			switch {
			case a.term > now.term:
				return c.base.notLeader()
			case a.yes && a.round == c.round && a.term == now.term:
				need--
			case c.peers[a.peer.id] == a.peer:
				c.ask(a.peer, now.term)
			}
		}
	}
	if c.base.raft.CurrentTerm() != now.term { // its own vote counts, too
		return c.base.notLeader()
	}
	return nil
}

// voters updates c.peers and returns how many of them, together with this node, make a majority.
func (c *confirmer) voters() (need int, err error) {
	f := c.base.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return 0, c.base.outcome(err)
	}
	voters, own := map[raft.ServerID]*peer{}, 0
	for _, s := range f.Configuration().Servers {
		switch old := c.peers[s.ID]; {
		case s.Suffrage != raft.Voter:
		case s.ID == c.base.id:
			own = 1
		case old != nil && old.addr == s.Address:
			voters[s.ID] = old
		default:
			voters[s.ID] = &peer{id: s.ID, addr: s.Address}
		}
	}
	c.peers = voters
	return (len(voters)+own)/2 + 1 - own, nil
}

// ask sends a heartbeat to p, unless one is in flight; the next is sent when that one is answered.
func (c *confirmer) ask(p *peer, term uint64) {
	if p.asked {
		return
	}
	p.asked = true
	a := heartbeatAnswer{peer: p, round: c.round}
	c.links.asking.Go(func() {
		a.term, a.yes = c.links.heartbeat(p.id, p.addr, term)
		select {
		case c.answers <- a:
		case <-c.base.done:
		}
	})
}
