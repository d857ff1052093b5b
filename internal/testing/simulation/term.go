package simulation

import (
	"context"
	"slices"

	"tidemark/index"
	"tidemark/manager/coordinator"
	"tidemark/manager/coordinator/core"
	"tidemark/timestamp"
	"tidemark/wire"
)

// term drives the coordinator of one term, as the product's loop does, but does nothing by itself: the seed decides
// when time passes, when an answer arrives, when a lane sends its next message and when a proposal is made.
type term struct {
	lead      *leader
	leader    *core.Leader
	gate      *coordinator.Gateway
	split     func(context.Context, core.BeginSplit) *core.SplitTried
	lanes     []*lane // in the order of their opening
	wait      []*lane // see waiting
	proposals []core.Propose
	splits    []core.BeginSplit // that wait
	arrived   []core.Input      // answers that have arrived and were not processed
	ended     bool
}

// lane is a queue of messages to one receiver.
type lane struct {
	to    core.Open
	name  core.Lane
	queue core.Queue
}

func newTerm(c *coordinator.Coordinator, lead *leader, number uint64) *term {
	t := &term{lead: lead}
	d, effects := c.Begin(number, t.step)
	t.leader, t.gate, t.split = d.Leader, d.Gate, d.Split
	t.carryOut(effects)
	return t
}

func (t *term) step(in core.Input) {
	now := t.lead.sim.nowMS
	t.carryOut(t.leader.Step(core.Now{MS: now, WallMS: now, StateMS: t.lead.StateTimeMS(), State: t.lead.State()}, in))
}

// carryOut carries out immediate effects and queues the others until the seed chooses them.
func (t *term) carryOut(effects []core.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case core.Open:
			t.close(e.Instead)
			for _, name := range e.Lanes() {
				t.lanes = append(t.lanes, &lane{to: e, name: name})
			}
		case core.Close:
			t.close(e.To)
		case core.Send:
			for _, q := range t.lanes {
				if q.to.To == e.To && q.name == e.Lane {
					q.queue.Put(e)
				}
			}
		case core.Propose:
			t.proposals = append(t.proposals, e)
		case core.BeginSplit:
			t.splits = append(t.splits, e)
		case core.PlanRepair:
			t.arrive(e.Plan())
		}
		t.gate.Do(e)
	}
}

func (t *term) close(r core.Receiver) {
	t.lanes = slices.DeleteFunc(t.lanes, func(q *lane) bool { return q.to.To == r })
}

// end ends the term: later answers are dropped.
func (t *term) end() { t.ended = true }

func (t *term) arrive(in core.Input) {
	if in != nil && !t.ended {
		t.arrived = append(t.arrived, in)
	}
}

// take processes the i-th arrived answer.
func (t *term) take(i int) {
	in := t.arrived[i]
	t.arrived = slices.Delete(t.arrived, i, i+1)
	t.step(in)
}

// waiting returns the lanes with queued messages. The list is valid until the next call.
func (t *term) waiting() []*lane {
	t.wait = t.wait[:0]
	for _, q := range t.lanes {
		if q.queue.Len() > 0 {
			t.wait = append(t.wait, q)
		}
	}
	return t.wait
}

// say sends the next message of a lane.
func (t *term) say(q *lane) {
	if next, ok := q.queue.Take(); ok {
		t.arrive(t.gate.Send(context.Background(), next))
		q.queue.Done(next)
	}
}

// propose makes the i-th waiting proposal; the waiting splits are numbered after the proposals.
func (t *term) propose(i int) {
	if k := i - len(t.proposals); k >= 0 {
		e := t.splits[k]
		t.splits = slices.Delete(t.splits, k, k+1)
		t.arrive(t.split(context.Background(), e))
		return
	}
	p := t.proposals[i]
	t.proposals = slices.Delete(t.proposals, i, i+1)
	t.arrive(t.gate.Propose(context.Background(), p))
}

func (t *term) projectorReport(r *wire.ProjectorReport) *wire.ReportReply {
	in := &core.ProjectorReported{Report: r, Reply: make(chan *wire.ReportReply, 1)}
	t.step(in)
	return <-in.Reply
}

func (t *term) indexerReport(r *wire.IndexerReport) *wire.ReportReply {
	in := &core.IndexerReported{Report: r, Reply: make(chan *wire.ReportReply, 1)}
	t.step(in)
	return <-in.Reply
}

func (t *term) indexerRegistered(node index.NodeID, boot string) *wire.RegisterReply {
	return t.registered(&core.Registered{IsNode: true, Node: node, Boot: boot})
}

func (t *term) projectorRegistered(id index.ProjectorID, boot string) *wire.RegisterReply {
	return t.registered(&core.Registered{Projector: id, Boot: boot})
}

func (t *term) registered(r *core.Registered) *wire.RegisterReply {
	r.Reply = make(chan *wire.RegisterReply, 1)
	t.step(r)
	return <-r.Reply
}

// stabilize requests a stability timestamp at or above need. ask returns the answer, and reports whether there is
// one.
func (t *term) stabilize(bucket string, need timestamp.Vector) (ask func() (core.Stabilized, bool)) {
	in := &core.Stabilize{Bucket: bucket, Need: need, Reply: make(chan core.Stabilized, 1)}
	t.step(in)
	return func() (core.Stabilized, bool) {
		select {
		case a := <-in.Reply:
			return a, true
		default:
			return core.Stabilized{}, t.ended
		}
	}
}
