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

// leader is one term's coordinator: the loop's step over its parts. Everything below inbox belongs to the goroutine of
// loop, but for what is atomic.
type leader struct {
	cfg   Config
	term  uint64
	epoch uint64
	first uint64 // see firstCounter
	self  wire.Leader
	log   hclog.Logger
	ended chan struct{} // closed when the loop has ended
	crew  crew
	ctx   context.Context // of the term
	inbox chan input

	nowMS     int64
	startedMS int64
	active    bool // the start sequence is over
	now       replica

	components components
	buckets    buckets
	proposals  proposals
	reserved   map[*reservation]struct{} // by statements that place copies
	duties     duties
	promotion  promotion
	periodic   periodic
	held       heldList
	cache      definitions
	shown      shown
	builds     builds
	evictions  map[index.NodeID]stuckEviction
	moves      rebalancing
}

// replica is the newest replicated state that the loop works with.
type replica struct {
	state    *statecontext.State
	syncedMS int64
	stale    bool   // the state has changed since sync
	revision uint64 // of its definitions
}

// components are the projectors and indexers that the state knows.
type components struct {
	projectors map[index.ProjectorID]*projector
	indexers   map[index.NodeID]*indexer
	alive      []index.ProjectorID // as the ledgers know it
	waited     bool                // unheardMost is over
}

// buckets are those that the state knows.
type buckets struct {
	byName  map[string]*bucket
	ordered []*bucket      // the same, by name: what happens does not hang on the order of a map
	missing map[string]int // checks in a row that did not find a bucket
}

// proposals are the coordinator's own, by keys that their duties choose.
type proposals struct {
	flying  map[string]bool // in flight, or landed and not yet seen in state
	landed  []string
	retryMS map[string]int64 // of those that failed: not before
}

// duties is what the index state machine remembers between two steps.
type duties struct {
	unsettled   []index.ID // indexes that it has something to do for
	due         bool
	nearlyReady bool               // some build lacks nothing but a stability timestamp
	lackMS      map[index.ID]int64 // since when a build lacks a host
}

// promotion is what the promotion of stability timestamps remembers between two steps.
type promotion struct {
	pacer    stability.Pacer
	flying   bool
	next     int      // bucket where the next one begins, so that large ones take turns
	hwWanted []string // buckets of which indexers are to tell HW
}

// periodic is when a duty that looks now and then looked last.
type periodic struct{ checkMS, auditMS, backfillMS, differMS int64 }

// heldList is which copies hold which stability timestamp, for scans.
type heldList struct {
	list   []wire.Held
	packed []byte
	hash   uint64
	dirty  bool
	madeMS int64
}

// shown is the picture that others look at.
type shown struct {
	status atomic.Pointer[Status]
	atMS   int64
	lateMS int64 // when publishLate looked last
}

// builds are the traced ones.
type builds struct {
	newest atomic.Pointer[build] // that was asked for last, nil when it is over
	all    []*build
}

func newLeader(cfg Config, term uint64) *leader {
	s := cfg.Consensus.State()
	return &leader{cfg: cfg, term: term, epoch: s.Epoch(), first: firstCounter(s),
		self: wire.Leader{ID: cfg.Consensus.ID(), REST: cfg.REST, Term: term},
		log:  cfg.Logger.With("term", term), inbox: make(chan input, inboxLength), ended: make(chan struct{}),
		cache:      definitions{consensus: cfg.Consensus},
		components: components{projectors: map[index.ProjectorID]*projector{}, indexers: map[index.NodeID]*indexer{}},
		buckets:    buckets{byName: map[string]*bucket{}, missing: map[string]int{}},
		proposals:  proposals{flying: map[string]bool{}, retryMS: map[string]int64{}},
		reserved:   map[*reservation]struct{}{},
		duties:     duties{lackMS: map[index.ID]int64{}},
		evictions:  map[index.NodeID]stuckEviction{},
		promotion:  promotion{pacer: cfg.Settings.Pacer}}
}

// fence is what every command of this term begins with; the counter is the receiver's, and starts at first.
func (l *leader) fence() wire.Fence {
	return wire.Fence{ClusterID: l.cfg.Consensus.State().ClusterID(), Epoch: l.epoch, Term: l.term, Counter: l.first}
}

// firstCounter is where the counters of commands start. A leader may lay its duties down and take them up again in one
// term (its disk hung, and nobody else could lead): then its commands must be newer than those it has sent. The state's
// CAS has risen by then, with LeaderStarted at the latest.
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
			l.now.stale = true
		case <-clock.C:
			ticked = true
		case <-pace.C:
		}
		l.nowMS = l.cfg.nowMS()
		if in != nil {
			in.apply(l)
		}
		l.step(ticked)
		if l.now.state.Epoch() != l.epoch {
			return errRestored
		}
		if u := l.urgency(); l.active && !l.promotion.flying && u != stability.Calm {
			if wait := l.promotion.pacer.Wait(l.nowMS, u); wait > 0 {
				pace.Reset(wait)
			}
		}
	}
}

// begin is what comes before the first step.
func (l *leader) begin() {
	l.nowMS = l.cfg.nowMS()
	l.startedMS, l.periodic.checkMS = l.nowMS, l.nowMS
	l.sync()
	l.log.Info("coordinator starts", "projectors", len(l.components.projectors), "indexers", len(l.components.indexers),
		"buckets", len(l.buckets.byName))
}

// syncEvery bounds how often a changed state is looked through: with thousands of indexes that costs a millisecond.
const syncEvery = 5 // ms

// step is what follows every input.
func (l *leader) step(ticked bool) {
	if l.now.stale && (l.nowMS-l.now.syncedMS >= syncEvery || l.nowMS < l.now.syncedMS) {
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
		l.decide(ticked)
	}
	if ticked {
		for _, b := range l.buckets.ordered {
			if len(b.waiters) > 0 {
				l.serve(b)
			}
		}
		l.publishLate()
		l.show()
	}
}

// decide lets the duties run that only a leader has who has taken over.
func (l *leader) decide(ticked bool) {
	for _, b := range l.buckets.ordered {
		if b.due || ticked {
			b.due = false
			l.stepBucket(b)
		}
	}
	if l.duties.due || ticked {
		l.duties.due = false
		l.stepEvaluation()
		l.stepEvictions()
		l.stepIndexes()
		l.followBuilds()
	}
	if ticked {
		l.stepAudit()
		l.stepDifferences()
		l.stepRebalance()
		l.stepBackfill()
	}
	l.promote()
}

// sync takes over the newest replicated state.
func (l *leader) sync() {
	l.now.stale, l.now.syncedMS = false, l.nowMS
	for _, key := range l.proposals.landed {
		delete(l.proposals.flying, key)
		l.duties.due = true
	}
	l.proposals.landed = l.proposals.landed[:0]
	l.now.state = l.cfg.Consensus.State()
	if r := l.now.state.DefinitionsRevision(); r != l.now.revision {
		l.now.revision = r
		l.cache.note(l.now.state)
		l.reconcileComponents()
		l.reconcileBuckets()
		l.survey()
		l.duties.due = true
		l.pushDefinitions()
	}
	for _, b := range l.buckets.ordered {
		l.refreshBucket(b, l.now.state.Bucket(b.name))
	}
}

// tryActivate ends the start sequence: all known components have answered, or patience is over. Then running streams
// are adopted; those of projectors that have not answered are unknown for as long as these may live.
func (l *leader) tryActivate() {
	late := l.nowMS-l.startedMS >= l.cfg.Settings.HelloWait.Milliseconds()
	for _, p := range l.components.projectors {
		if !p.hello && !late {
			return
		}
	}
	for _, n := range l.components.indexers {
		if !n.hello && !late {
			return
		}
	}
	l.active = true
	l.watchProjectors()
	for _, b := range l.buckets.ordered {
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

// propose puts a command of the coordinator's own on its way, unless one with the same key is. Its outcome comes back
// as an input; a failure is tried again by the duty that wanted it, after a rest.
func (l *leader) propose(key string, body statecontext.Body, done func(l *leader, res statecontext.Result,
	err error)) bool {
	if !l.mayPropose(key) {
		return false
	}
	l.proposals.flying[key] = true
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

// mayPropose reports whether a command with this key would go on its way now.
func (l *leader) mayPropose(key string) bool {
	return !l.proposals.flying[key] && len(l.proposals.flying) < maxProposals && l.nowMS >= l.proposals.retryMS[key]
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
	delete(l.proposals.retryMS, p.key)
	if p.err == nil {
		l.proposals.landed = append(l.proposals.landed, p.key) // its duty looks again when the state shows it
	} else {
		delete(l.proposals.flying, p.key)
		l.proposals.retryMS[p.key] = l.nowMS + proposalRest
		if !errors.Is(p.err, context.Canceled) {
			l.log.Debug("proposal failed", "what", p.key, "error", p.err)
		}
	}
	l.now.stale, l.duties.due = true, true
	if p.done != nil {
		p.done(l, p.res, p.err)
	}
}
