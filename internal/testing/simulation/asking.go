package simulation

import (
	"fmt"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/indexer/core"
	projects "tidemark/projector/core"
	"tidemark/wire"
)

// This file models how nodes request side streams. In most seeds a node requests each vbucket from a random projector
// and gets the answer at once. In seeds with askedSides it works as package indexer does: core.Sides decides what to
// request from which projector and when to retry, requests and answers take time, and a projector that is down does
// not answer.

// newSides returns the side-stream requests of a node that starts now.
func (s *Sim) newSides() *core.Sides { return core.NewSides(uint64(s.nowMS) << 10) }

func (s *Sim) instant() time.Time { return time.UnixMilli(s.nowMS) }

// onItsWay puts a message on the network that must not be lost: when the network is full, it arrives at once.
func (s *Sim) onItsWay(f func()) {
	if len(s.late) < maxLate {
		s.later(f)
	} else {
		f()
	}
}

// askSides compares what a bucket wants with the answers and sends the requests that are due.
func (s *Sim) askSides(n *node, h *hosted) {
	streams := h.st.SideStreams()
	for _, up := range n.sides.Watch(h.name, streams, false, s.instant()) {
		s.ev("n%d gives side %d of %s/%d up", n.num, up.ID, h.name, up.VBucket)
		h.st.SideFailed(up.VBucket, up.ID)
	}
	abandoned := h.st.Abandoned()
	requests := n.sides.Ask(&core.SideWants{Bucket: h.name, Streams: streams, Wants: h.st.Wants(),
		Projectors: s.endpoints(), Revision: n.lists.InForce.Revision, Owner: h.st.Owner,
		ComesBack: func([]index.CopyID) bool { return false }}, s.instant())
	for _, r := range requests {
		for _, w := range r.Wants {
			h.st.OpenSide(w, r.ID)
		}
	}
	for _, stop := range n.sides.Settle(h.name, streams, abandoned, s.instant()).Stop {
		sides := n.sides
		s.onItsWay(func() {
			h.dropSide(stop.ID)
			sides.Ended(stop.Addr, s.instant())
		})
	}
	for _, r := range requests {
		n.sides.Sent(r, s.instant())
		s.Report.Asked++
		s.sendRequest(n, h, r)
	}
}

func (s *Sim) endpoints() []wire.ProjectorEndpoint {
	all := make([]wire.ProjectorEndpoint, len(s.proj))
	for p := range s.proj {
		all[p].ID, all[p].Admin = s.proj[p].name, string(s.proj[p].name)
	}
	return all
}

// sendRequest delivers a request to its projector, and the answer to the node if that is still the process that sent
// the request.
func (s *Sim) sendRequest(n *node, h *hosted, r *core.SideRequest) {
	sides, req := n.sides, s.message(n, h, r)
	s.onItsWay(func() {
		p := slices.IndexFunc(s.proj[:], func(p *projector) bool { return p.name == r.Projector.ID })
		reply := s.serveRequest(n, h, p, req)
		s.onItsWay(func() {
			sides.Ended(r.Projector.Admin, s.instant())
			if n.up && n.buckets[h.name] == h {
				answerRequest(h, r, sides.Answered(r, reply, reply == nil))
			}
		})
	})
}

// message returns a request as it is sent.
func (s *Sim) message(n *node, h *hosted, r *core.SideRequest) *wire.StreamRequest {
	name := fmt.Sprintf("n%d", n.num)
	return r.Message(n.who.Fence.ClusterID, s.bucket(h.name).uuid, &wire.Endpoint{Node: index.NodeID(n.id),
		BootID: n.bootID(), Backfill: name, Catchup: name})
}

// serveRequest returns a projector's reply to a request, nil if the projector is down.
func (s *Sim) serveRequest(n *node, h *hosted, p int, req *wire.StreamRequest) *wire.StreamReply {
	if p < 0 || !s.proj[p].up {
		return nil
	}
	_, id, err := projects.CheckRequest(req)
	if err != nil {
		s.fail("n%d asks for a side stream: %v", n.num, err)
		return nil
	}
	want := &req.Buckets[0].Restart
	results := make([]wire.StartResult, want.Len())
	for i := range results {
		q := want.At(i)
		var x *side
		if x, results[i] = s.offer(h, p, req, &q); x != nil && n.up && n.buckets[h.name] == h {
			s.startSide(n, h, x)
		}
	}
	return &wire.StreamReply{TopicID: id, Buckets: []wire.StreamOutcome{{Bucket: h.name, Results: results}}}
}

// answerRequest applies the answer for each vbucket.
func answerRequest(h *hosted, r *core.SideRequest, all []core.SideAnswer) {
	for _, a := range all {
		switch a.Fate {
		case core.SideBegins:
		case core.SideRefused:
			h.st.SideRefused(a.VBucket, r.ID, a.Result.Purge)
		case core.SideFails:
			h.st.SideFailed(a.VBucket, r.ID)
		}
	}
}
