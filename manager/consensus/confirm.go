package consensus

import (
	"context"

	"github.com/hashicorp/raft"
)

// confirmer proves that this node still leads: a majority answers, in this term, a heartbeat that was sent after the
// proof was asked for. The library's VerifyLeader is content with any answer that comes in after it was called; after a
// leader was stopped for a while, that may be one that a follower gave before it elected another leader. Its fields
// belong to the goroutine of verify.
type confirmer struct {
	base    *base
	links   *links
	reigns  *reigns
	round   uint64
	peers   map[raft.ServerID]*peer
	answers chan heartbeatAnswer
}

// peer is another voter. One heartbeat is on its way to each at a time, so that one that hangs costs one goroutine.
type peer struct {
	id    raft.ServerID
	addr  raft.ServerAddress
	asked bool
}

type heartbeatAnswer struct {
	peer  *peer
	round uint64 // in which it was sent
	term  uint64 // of the peer, 0 when it gave no answer
	yes   bool
}

// answersLength is the room for answers to proofs that have been given up.
const answersLength = 64

func newConfirmer(rd *reads) *confirmer {
	return &confirmer{base: rd.base, links: rd.links, reigns: rd.reigns, peers: map[raft.ServerID]*peer{},
		answers: make(chan heartbeatAnswer, answersLength)}
}

// confirm returns nil when nobody can have led in a later term before it was called. It tries for as long as the reign
// lasts, and ends with a NotLeaderError when that is over: without a majority Raft sees to it within its lease.
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
	if c.base.raft.CurrentTerm() != now.term { // its own vote counts too
		return c.base.notLeader()
	}
	return nil
}

// voters brings peers up to date and gives how many of them make a majority, together with this node.
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

// ask sends a heartbeat, unless one is on its way: then its answer makes room for the next.
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
