package coordinator

import (
	"context"
	"errors"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Stepper is one term's coordinator that does nothing by itself: its caller says when time passes, when an answer comes
// in, when a lane does its next task and when a proposal is made. Run does the same in the order that goroutines happen
// to have; a simulation does it in the order that its seed decides. It is owned by one goroutine.
type Stepper struct {
	l       *leader
	hands   *hands
	arrived []input
	cancel  context.CancelFunc
}

// hands is the crew of a Stepper: what there is to do, until it is asked for.
type hands struct {
	lanes     []openLane
	proposals []func()
}

type openLane struct {
	ctx   context.Context
	owner string
	q     *lane
}

func (h *hands) open(ctx context.Context, owner string, q *lane) {
	h.lanes = append(h.lanes, openLane{ctx: ctx, owner: owner, q: q})
}

func (h *hands) propose(do func()) { h.proposals = append(h.proposals, do) }

// NewStepper begins the term. Errors are those of New.
func NewStepper(cfg Config, term uint64) (*Stepper, error) {
	c, err := New(cfg)
	if err != nil {
		return nil, err
	}
	s := &Stepper{l: newLeader(c.cfg, term), hands: &hands{}}
	s.l.crew = s.hands
	s.l.ctx, s.cancel = context.WithCancel(context.Background())
	s.l.begin()
	return s, nil
}

// End ends the term: nothing more is done.
func (s *Stepper) End() {
	s.cancel()
	close(s.l.ended)
}

// Tick lets time alone move what it moves. It is false when the duties must begin anew, because the state was restored.
func (s *Stepper) Tick() bool { return s.step(nil, true) }

// Changed tells that the replicated state has changed.
func (s *Stepper) Changed() bool {
	s.l.now.stale = true
	return s.step(nil, false)
}

// Arrived is the number of answers that have come and were not taken.
func (s *Stepper) Arrived() int { return len(s.arrived) }

// Take takes the i-th of the answers that have come.
func (s *Stepper) Take(i int) bool {
	in := s.arrived[i]
	s.arrived = append(s.arrived[:i:i], s.arrived[i+1:]...)
	return s.step(in, false)
}

func (s *Stepper) step(in input, ticked bool) bool {
	s.l.nowMS = s.l.cfg.nowMS()
	if in != nil {
		in.apply(s.l)
	}
	s.l.step(ticked)
	s.drain()
	return s.l.now.state.Epoch() == s.l.epoch
}

// drain keeps what was posted, so that posting never waits.
func (s *Stepper) drain() {
	for {
		select {
		case in := <-s.l.inbox:
			s.arrived = append(s.arrived, in)
		default:
			return
		}
	}
}

// Lanes lists whom tasks wait for, by the position that Work takes: the address of each lane's receiver, "" when
// nothing waits there.
func (s *Stepper) Lanes() []string {
	kept := s.hands.lanes[:0]
	for _, o := range s.hands.lanes {
		if o.ctx.Err() == nil {
			kept = append(kept, o)
		}
	}
	clear(s.hands.lanes[len(kept):])
	s.hands.lanes = kept
	owners := make([]string, len(kept))
	for i, o := range kept {
		if o.q.waiting() {
			owners[i] = o.owner
		}
	}
	return owners
}

// Work does the next task of the i-th lane of the newest Lanes.
func (s *Stepper) Work(i int) {
	o := s.hands.lanes[i]
	if t, ok := o.q.take(); ok && o.ctx.Err() == nil {
		t.do(o.ctx)
	}
	s.drain()
}

// Proposals is the number of proposals that wait to be made.
func (s *Stepper) Proposals() int { return len(s.hands.proposals) }

// Propose makes the i-th proposal.
func (s *Stepper) Propose(i int) {
	do := s.hands.proposals[i]
	s.hands.proposals = append(s.hands.proposals[:i:i], s.hands.proposals[i+1:]...)
	do()
	s.drain()
}

// ProjectorReport takes a projector's level state.
func (s *Stepper) ProjectorReport(r *wire.ProjectorReport) *wire.ReportReply {
	in := &projectorReport{r: r, reply: make(chan *wire.ReportReply, 1)}
	s.step(in, false)
	return <-in.reply
}

// IndexerReport takes an indexer's level state.
func (s *Stepper) IndexerReport(r *wire.IndexerReport) *wire.ReportReply {
	in := &indexerReport{r: r, reply: make(chan *wire.ReportReply, 1)}
	s.step(in, false)
	return <-in.reply
}

// IndexerRegistered answers an indexer whose registration was committed.
func (s *Stepper) IndexerRegistered(node index.NodeID, boot string) *wire.RegisterReply {
	return s.registered(&registration{node: node, boot: boot, isNode: true})
}

// ProjectorRegistered answers a projector whose registration was committed.
func (s *Stepper) ProjectorRegistered(id index.ProjectorID, boot string) *wire.RegisterReply {
	return s.registered(&registration{projector: id, boot: boot})
}

func (s *Stepper) registered(r *registration) *wire.RegisterReply {
	r.reply = make(chan *wire.RegisterReply, 1)
	s.step(r, false)
	return <-r.reply
}

// Stabilize asks what Coordinator.Stabilize does. The answer is there when ask says so.
func (s *Stepper) Stabilize(bucket string, need timestamp.Vector) (ask func() (at wire.Stability, err error, ok bool)) {
	w := &waiter{ctx: s.l.ctx, bucket: bucket, need: need, reply: make(chan stabilized, 1)}
	s.step(w, false)
	return func() (wire.Stability, error, bool) {
		select {
		case a := <-w.reply:
			return a.s, a.err, true
		default:
			return wire.Stability{}, nil, s.l.ctx.Err() != nil
		}
	}
}

// View returns what the leader knows of a bucket. Errors wrap ErrUnknownBucket.
func (s *Stepper) View(bucket string) (BucketView, error) {
	q := &viewQuery{bucket: bucket, reply: make(chan *BucketView, 1)}
	q.apply(s.l)
	if v := <-q.reply; v != nil {
		return *v, nil
	}
	return BucketView{}, errors.Join(ErrUnknownBucket, errors.New(bucket))
}

// Active reports whether the start sequence is over.
func (s *Stepper) Active() bool { return s.l.active }
