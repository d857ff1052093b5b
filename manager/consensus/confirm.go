package consensus

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

// confirmer proves that this node still leads: a majority answers, in this term, a heartbeat that was sent after the
// proof was asked for. The library's VerifyLeader is content with any answer that comes in after it was called; after a
// leader was stopped for a while, that may be one that a follower gave before it elected another leader. Its fields
// belong to the goroutine of verify.
type confirmer struct {
	node    *Node
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

func newConfirmer(n *Node) *confirmer {
	return &confirmer{node: n, peers: map[raft.ServerID]*peer{}, answers: make(chan heartbeatAnswer, answersLength)}
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
		c.node.mu.Lock()
		serving, changed := c.node.serving, c.node.changed
		c.node.mu.Unlock()
		if serving != now {
			return c.node.notLeader()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ErrClosed
		case a := <-c.answers:
			a.peer.asked = false
			switch {
			case a.term > now.term:
				return c.node.notLeader()
			case a.yes && a.round == c.round && a.term == now.term:
				need--
			case c.peers[a.peer.id] == a.peer:
				c.ask(a.peer, now.term)
			}
		}
	}
	if c.node.raft.CurrentTerm() != now.term { // its own vote counts too
		return c.node.notLeader()
	}
	return nil
}

// voters brings peers up to date and gives how many of them make a majority, together with this node.
func (c *confirmer) voters() (need int, err error) {
	f := c.node.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return 0, c.node.outcome(err)
	}
	voters, own := map[raft.ServerID]*peer{}, 0
	for _, s := range f.Configuration().Servers {
		switch old := c.peers[s.ID]; {
		case s.Suffrage != raft.Voter:
		case s.ID == c.node.id:
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
	c.node.asking.Go(func() {
		a.term, a.yes = c.node.heartbeat(p.id, p.addr, term)
		select {
		case c.answers <- a:
		case <-c.node.done:
		}
	})
}

// heartbeat sends the heartbeat of a term that this node led, as the library does, and returns the answer. After a
// failure it rests as long as the library's heartbeats do.
func (n *Node) heartbeat(id raft.ServerID, addr raft.ServerAddress, term uint64) (theirs uint64, yes bool) {
	req := &raft.AppendEntriesRequest{Term: term, RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(n.id), Addr: n.trans.EncodePeer(n.id, n.trans.LocalAddr()),
	}}
	var resp raft.AppendEntriesResponse
	if err := n.trans.AppendEntries(id, addr, req, &resp); err != nil {
		rest := time.NewTimer(n.cfg.Heartbeat / heartbeatsPerCall)
		defer rest.Stop()
		select {
		case <-rest.C:
		case <-n.done:
		}
		return 0, false
	}
	return resp.Term, resp.Success
}
