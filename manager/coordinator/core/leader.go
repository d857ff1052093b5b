// Package core is the coordinator of one term as a function: Leader.Step takes an input and time, and returns what it
// wants done. inputs.go lists all that can come in, effects.go all that can be wanted.
//
// What it promises: every duty works from the replicated state and from what components have reported
// (level-triggered), so that a lost message or a new leader loses nothing; the same inputs give the same effects, but
// for their order among receivers.
//
// What it never does: wait, start something, read a clock, take a lock, or decide anything that packages lifecycle,
// liveness, stability, streams, rollback and rebalance decide.
package core

import (
	"errors"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Leader is the coordinator of one term: a step takes an input, and time, over its parts, and says what it wants done.
// It waits for nothing, starts nothing and reads no clock. It is owned by one goroutine.
type Leader struct {
	settings Settings
	self     wire.Leader
	epoch    uint64
	first    uint64 // see firstCounter
	log      hclog.Logger

	nowMS     int64
	wallMS    int64
	startedMS int64
	active    bool // the start sequence is over
	now       replica
	effects   []Effect // of this step

	components components
	buckets    buckets
	proposals  proposals
	reserved   map[*Reservation]struct{} // by statements that place copies
	duties     duties
	promotion  promotion
	periodic   periodic
	refused    refused // differences
	held       heldList
	shown      shown
	builds     []*build // that are traced
	evictions  map[index.NodeID]stuckEviction
	moves      rebalancing
}

// replica is the newest replicated state that the loop works with.
type replica struct {
	newest   *statecontext.State // as of this step
	state    *statecontext.State // as of the newest sync
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
	opened     Receiver            // the newest
}

// buckets are those that the state knows.
type buckets struct {
	byName  map[string]*bucket
	ordered []*bucket      // the same, by name: what happens does not hang on the order of a map
	missing map[string]int // checks in a row that did not find a bucket
}

// proposals are the coordinator's own, by keys that their duties choose.
type proposals struct {
	// flying are in flight, or landed and not yet seen in state, with what is done with the outcome.
	flying  map[string]outcomeDuty
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
type periodic struct {
	checkMS, auditMS, backfillMS, differMS int64
	audits                                 uint64 // that were begun
	differOut                              bool   // more copies differ than are remembered, and that was said
}

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
	newest *Status
	atMS   int64
	lateMS int64 // when publishLate looked last
}

// New begins a term, and says what it wants done first.
func New(settings Settings, self wire.Leader, log hclog.Logger, now Now) (*Leader, []Effect) {
	l := &Leader{settings: settings, self: self, epoch: now.State.Epoch(), first: firstCounter(now.State), log: log,
		components: components{projectors: map[index.ProjectorID]*projector{}, indexers: map[index.NodeID]*indexer{}},
		buckets:    buckets{byName: map[string]*bucket{}, missing: map[string]int{}},
		proposals:  proposals{flying: map[string]outcomeDuty{}, retryMS: map[string]int64{}},
		reserved:   map[*Reservation]struct{}{},
		duties:     duties{lackMS: map[index.ID]int64{}},
		evictions:  map[index.NodeID]stuckEviction{},
		promotion:  promotion{pacer: settings.Pacer}}
	l.at(now)
	l.startedMS, l.periodic.checkMS = l.nowMS, l.nowMS
	l.sync()
	l.log.Info("coordinator starts", "projectors", len(l.components.projectors), "indexers", len(l.components.indexers),
		"buckets", len(l.buckets.byName))
	return l, l.effects
}

// at takes over what the world is like.
func (l *Leader) at(now Now) { l.nowMS, l.wallMS, l.now.newest = now.MS, now.WallMS, now.State }

// do wants an effect.
func (l *Leader) do(e Effect) { l.effects = append(l.effects, e) }

// reply answers who asked.
func reply[T any](l *Leader, to chan T, v T) { l.do(answer[T]{to: to, v: v}) }

// replyFenced answers with the newest fence of a component in v; nil: with what is there.
func replyFenced[T any](l *Leader, to chan T, v T, fence *wire.Fence, of *component) {
	a := answer[T]{to: to, v: v, fence: fence}
	if of != nil {
		a.of = of.receiver
	}
	l.do(a)
}

// Active reports whether the start sequence is over.
func (l *Leader) Active() bool { return l.active }

// fence is what every command of this term begins with; the counter is the receiver's, and starts at first.
func (l *Leader) fence() wire.Fence {
	return wire.Fence{ClusterID: l.now.newest.ClusterID(), Epoch: l.epoch, Term: l.self.Term, Counter: l.first}
}

// firstCounter is where the counters of commands start. A leader may lay its duties down and take them up again in one
// term (its disk hung, and nobody else could lead): then its commands must be newer than those it has sent. The state's
// CAS has risen by then, with LeaderStarted at the latest.
func firstCounter(s *statecontext.State) uint64 { return s.CAS() << counterBits }

// counterBits leave room for 16 million commands to one receiver between two updates of the state.
const counterBits = 24

// Step takes an input, lets the duties follow that it gives cause for, and returns what they want done, in order. The
// list is valid until the next step.
func (l *Leader) Step(now Now, in Input) []Effect {
	clear(l.effects)
	l.effects = l.effects[:0]
	l.at(now)
	in.apply(l)
	_, ticked := in.(Tick)
	l.follow(ticked)
	if l.now.state.Epoch() != l.epoch {
		l.do(Anew{})
	} else if u := l.urgency(); l.active && !l.promotion.flying && u != stability.Calm {
		if wait := l.promotion.pacer.Wait(l.nowMS, u); wait > 0 {
			l.do(Wake{After: wait})
		}
	}
	return l.effects
}

func (t Tick) apply(l *Leader) {
	for _, s := range t.Left {
		s.left = true // it may come in only now
		if b := l.buckets.byName[s.Bucket]; b != nil {
			b.waiters = slices.DeleteFunc(b.waiters, func(o *Stabilize) bool { return o.left })
		}
	}
}

func (Woken) apply(*Leader) {}

func (Changed) apply(l *Leader) { l.now.stale = true }

func (Committed) apply(l *Leader) { l.sync() }

// syncEvery bounds how often a changed state is looked through: with thousands of indexes that costs a millisecond.
const syncEvery = 5 // ms

// follow is what follows every input.
func (l *Leader) follow(ticked bool) {
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
func (l *Leader) decide(ticked bool) {
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
func (l *Leader) sync() {
	l.now.stale, l.now.syncedMS = false, l.nowMS
	for _, key := range l.proposals.landed {
		delete(l.proposals.flying, key)
		l.duties.due = true
	}
	l.proposals.landed = l.proposals.landed[:0]
	l.now.state = l.now.newest
	if r := l.now.state.DefinitionsRevision(); r != l.now.revision {
		l.now.revision = r
		l.do(Describe{State: l.now.state})
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
func (l *Leader) tryActivate() {
	late := l.nowMS-l.startedMS >= l.settings.HelloWait.Milliseconds()
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

// outcomeDuty is what a duty does with the outcome of its proposal; nil: nothing.
type outcomeDuty func(l *Leader, res statecontext.Result, err error)

// propose puts a command of the coordinator's own on its way, unless one with the same key is. A failure is tried again
// by the duty that wanted it, after a rest.
func (l *Leader) propose(key string, body statecontext.Body, done outcomeDuty) bool {
	if !l.mayPropose(key) {
		return false
	}
	l.proposals.flying[key] = done
	l.do(Propose{Key: key, Body: body, Traced: strings.HasPrefix(key, indexPrefix)})
	return true
}

// isFlying reports whether a command with this key is on its way, or landed and not yet seen.
func (l *Leader) isFlying(key string) bool {
	_, is := l.proposals.flying[key]
	return is
}

// mayPropose reports whether a command with this key would go on its way now.
func (l *Leader) mayPropose(key string) bool {
	return !l.isFlying(key) && len(l.proposals.flying) < MaxProposals && l.nowMS >= l.proposals.retryMS[key]
}

// MaxProposals bounds the coordinator's own proposals in flight, so that users' DDL is never crowded out.
const MaxProposals = 32

// proposalRest is how long a duty waits after a proposal of its own failed.
const proposalRest = 200 // ms

func (p *Proposed) apply(l *Leader) {
	done := l.proposals.flying[p.Key]
	delete(l.proposals.retryMS, p.Key)
	if p.Err == nil {
		l.proposals.landed = append(l.proposals.landed, p.Key) // its duty looks again when the state shows it
	} else {
		delete(l.proposals.flying, p.Key)
		l.proposals.retryMS[p.Key] = l.nowMS + proposalRest
		if !errors.Is(p.Err, ErrTermOver) {
			l.log.Debug("proposal failed", "what", p.Key, "error", p.Err)
		}
	}
	l.now.stale, l.duties.due = true, true
	if done != nil {
		done(l, p.Result, p.Err)
	}
}
