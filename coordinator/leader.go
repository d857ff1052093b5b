package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/wire"
)

// input is something that came in for the loop.
type input interface{ apply(l *leader) }

// leader is one term's coordinator. Everything below inbox belongs to the goroutine of loop.
type leader struct {
	cfg   Config
	term  uint64
	epoch uint64
	first uint64 // see firstCounter
	self  wire.Leader
	log   hclog.Logger
	inbox chan input
	ended chan struct{} // closed when the loop has ended
	crew  crew
	ctx   context.Context // of the term
	cache definitions
	shown atomic.Pointer[Status]
	// newest is the traced build that was asked for last, nil when it is over.
	newest atomic.Pointer[build]

	nowMS       int64
	startedMS   int64
	active      bool // the start sequence is over
	waited      bool // unheardMost is over
	state       *statecontext.State
	syncedMS    int64
	stale       bool // the state has changed since sync
	revision    uint64
	projectors  map[index.ProjectorID]*projector
	indexers    map[index.NodeID]*indexer
	buckets     map[string]*bucket
	ordered     []*bucket           // the same, by name: what happens does not hang on the order of a map
	alive       []index.ProjectorID // as the ledgers know it
	proposals   map[string]bool     // keys of the coordinator's own proposals in flight, or landed and not yet seen in state
	landed      []string
	retryMS     map[string]int64 // keys of proposals that failed: not before
	unsettled   []index.ID       // indexes that a duty has something to do for
	dutyDue     bool
	nearlyReady bool               // some build lacks nothing but a stability timestamp
	lackMS      map[index.ID]int64 // since when a build lacks a host
	pacer       stability.Pacer
	promoting   bool
	nextBucket  int // where the next promotion begins, so that large ones take turns
	checkMS     int64
	auditMS     int64
	backfillMS  int64
	missing     map[string]int // checks in a row that did not find a bucket
	held        []wire.Held
	heldPacked  []byte
	heldHash    uint64
	heldDirty   bool
	heldMS      int64    // when it was made
	hwWanted    []string // buckets of which indexers are to tell HW
	shownMS     int64
	lateMS      int64    // when publishLate looked last
	builds      []*build // traced
}

func newLeader(cfg Config, term uint64) *leader {
	s := cfg.Consensus.State()
	return &leader{cfg: cfg, term: term, epoch: s.Epoch(), first: firstCounter(s), self: wire.Leader{ID: cfg.Consensus.ID(), REST: cfg.REST, Term: term},
		log: cfg.Logger.With("term", term), inbox: make(chan input, inboxLength), ended: make(chan struct{}),
		cache: definitions{consensus: cfg.Consensus}, projectors: map[index.ProjectorID]*projector{},
		indexers: map[index.NodeID]*indexer{}, buckets: map[string]*bucket{}, proposals: map[string]bool{}, retryMS: map[string]int64{},
		lackMS: map[index.ID]int64{}, missing: map[string]int{}, pacer: cfg.Settings.Pacer}
}

// fence is what every command of this term begins with; the counter is the receiver's, and starts at first.
func (l *leader) fence() wire.Fence {
	return wire.Fence{ClusterID: l.cfg.Consensus.State().ClusterID(), Epoch: l.epoch, Term: l.term, Counter: l.first}
}

// firstCounter is where the counters of commands start. A leader may lay its duties down and take them up again in one term (its disk hung,
// and nobody else could lead): then its commands must be newer than those it has sent. The state's CAS has risen by then, with
// LeaderStarted at the latest.
func firstCounter(s *statecontext.State) uint64 { return s.CAS() << counterBits }

// counterBits leave room for 16 million commands to one receiver between two updates of the state.
const counterBits = 24

// run is the term: the loop and the lanes that it opens.
func (l *leader) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	l.crew, l.ctx = &goroutines{group: group}, ctx
	group.Go(func() error {
		defer close(l.ended)
		defer l.endBuilds()
		return l.loop(ctx)
	})
	return group.Wait()
}

// crew does beside the loop what takes time: the tasks of lanes, until ctx ends, and proposals.
type crew interface {
	open(ctx context.Context, owner string, q *lane)
	propose(do func())
}

// goroutines is the crew of Run: one for each lane and each proposal.
type goroutines struct{ group *errgroup.Group }

func (g *goroutines) open(ctx context.Context, _ string, q *lane) {
	for range q.workers {
		g.group.Go(func() error { return q.Run(ctx) })
	}
}

func (g *goroutines) propose(do func()) {
	g.group.Go(func() error {
		do()
		return nil
	})
}

// loop takes inputs and time, and keeps the duties going.
func (l *leader) loop(ctx context.Context) error {
	changes := l.cfg.Machine.Subscribe()
	defer changes.Close()
	clock := time.NewTicker(tick)
	defer clock.Stop()
	pace := time.NewTimer(tick) // when a promotion that scans wait for may be made
	defer pace.Stop()
	l.begin()
	for {
		var in input
		ticked := false
		select {
		case <-ctx.Done():
			return nil
		case in = <-l.inbox:
		case <-changes.C():
			l.stale = true
		case <-clock.C:
			ticked = true
		case <-pace.C:
		}
		l.nowMS = l.cfg.nowMS()
		if in != nil {
			in.apply(l)
		}
		l.step(ticked)
		if l.state.Epoch() != l.epoch {
			return errRestored
		}
		if l.active && !l.promoting && l.hurried() {
			if wait := l.pacer.Wait(l.nowMS, true); wait > 0 {
				pace.Reset(wait)
			}
		}
	}
}

// begin is what comes before the first step.
func (l *leader) begin() {
	l.nowMS = l.cfg.nowMS()
	l.startedMS, l.checkMS = l.nowMS, l.nowMS
	l.sync()
	l.log.Info("coordinator starts", "projectors", len(l.projectors), "indexers", len(l.indexers), "buckets", len(l.buckets))
}

// syncEvery bounds how often a changed state is looked through: with thousands of indexes that costs a millisecond.
const syncEvery = 5 // ms

// step is what follows every input.
func (l *leader) step(ticked bool) {
	if l.stale && (l.nowMS-l.syncedMS >= syncEvery || l.nowMS < l.syncedMS) {
		l.sync()
	}
	if ticked {
		l.wantHW()
		l.watch()
		l.checkBuckets()
	}
	if !l.active {
		l.tryActivate()
	}
	if l.active {
		for _, b := range l.ordered {
			if b.due || ticked {
				b.due = false
				l.stepBucket(b)
			}
		}
		if l.dutyDue || ticked {
			l.dutyDue = false
			l.stepEvaluation()
			l.stepIndexes()
			l.followBuilds()
		}
		if ticked {
			l.stepAudit()
			l.stepBackfill()
		}
		l.promote()
	}
	if ticked {
		for _, b := range l.ordered {
			if len(b.waiters) > 0 {
				l.serve(b)
			}
		}
		l.publishLate()
		l.show()
	}
}

// sync takes over the newest replicated state.
func (l *leader) sync() {
	l.stale, l.syncedMS = false, l.nowMS
	for _, key := range l.landed {
		delete(l.proposals, key)
		l.dutyDue = true
	}
	l.landed = l.landed[:0]
	l.state = l.cfg.Consensus.State()
	if r := l.state.DefinitionsRevision(); r != l.revision {
		l.revision = r
		l.cache.note(l.state)
		l.reconcileComponents()
		l.reconcileBuckets()
		l.survey()
		l.dutyDue = true
		l.pushDefinitions()
	}
	for _, b := range l.ordered {
		l.refreshBucket(b, l.state.Bucket(b.name))
	}
}

// tryActivate ends the start sequence: all known components have answered, or patience is over. Then running streams
// are adopted; those of projectors that have not answered are unknown for as long as these may live.
func (l *leader) tryActivate() {
	late := l.nowMS-l.startedMS >= l.cfg.Settings.HelloWait.Milliseconds()
	for _, p := range l.projectors {
		if !p.hello && !late {
			return
		}
	}
	for _, n := range l.indexers {
		if !n.hello && !late {
			return
		}
	}
	l.active = true
	l.watchProjectors()
	for _, b := range l.ordered {
		l.adopt(b)
	}
	l.log.Info("coordinator is active", "after_ms", l.nowMS-l.startedMS)
}

// post hands an input to the loop; it waits for room, and gives up when the term or ctx ends.
func (l *leader) post(ctx context.Context, in input) error {
	select {
	case l.inbox <- in:
		return nil
	case <-l.ended:
		return ErrNotLeading
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
}

// propose puts a command of the coordinator's own on its way, unless one with the same key is. Its outcome comes back as
// an input; a failure is tried again by the duty that wanted it, after a rest.
func (l *leader) propose(key string, body statecontext.Body, done func(l *leader, res statecontext.Result, err error)) bool {
	if !l.mayPropose(key) {
		return false
	}
	l.proposals[key] = true
	l.crew.propose(func() {
		ctx := l.ctx
		if strings.HasPrefix(key, indexPrefix) {
			ctx = l.traced(ctx, "")
		}
		res, err := l.cfg.Consensus.Propose(ctx, statecontext.Command{Body: body})
		if err == nil {
			err = res.Err()
		}
		_ = l.post(l.ctx, &proposed{key: key, res: res, err: err, done: done}) // the term is over: nobody to tell
	})
	return true
}

// mayPropose tells whether a command with this key would go on its way now.
func (l *leader) mayPropose(key string) bool {
	return !l.proposals[key] && len(l.proposals) < maxProposals && l.nowMS >= l.retryMS[key]
}

// proposalRest is how long a duty waits after a proposal of its own failed.
const proposalRest = 200 // ms

// proposed is the outcome of a proposal.
type proposed struct {
	key  string
	res  statecontext.Result
	err  error
	done func(l *leader, res statecontext.Result, err error)
}

func (p *proposed) apply(l *leader) {
	delete(l.retryMS, p.key)
	if p.err == nil {
		l.landed = append(l.landed, p.key) // its duty looks again when the state shows it
	} else {
		delete(l.proposals, p.key)
		l.retryMS[p.key] = l.nowMS + proposalRest
		if !errors.Is(p.err, context.Canceled) {
			l.log.Debug("proposal failed", "what", p.key, "error", p.err)
		}
	}
	l.stale, l.dutyDue = true, true
	if p.done != nil {
		p.done(l, p.res, p.err)
	}
}
