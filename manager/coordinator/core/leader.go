// Package core is the coordinator of one term as a function: Leader.Step takes an input and the time, and returns the
// effects to carry out. inputs.go lists all inputs, effects.go all effects.
//
// It guarantees: every duty works from the replicated state and from the components' reports (level-triggered), so
// that a lost message or a new leader loses nothing; the same inputs give the same effects, apart from their order
// among receivers.
//
// It never waits, starts goroutines, reads a clock or takes a lock, and it decides nothing that packages lifecycle,
// liveness, stability, streams, rollback and rebalance decide.
package core

import (
	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Leader is the coordinator of one term: a step passes an input and the time to its parts and returns effects. It
// does not block, starts nothing and reads no clock. It is owned by one goroutine.
type Leader struct {
	*scene
	picture     picture
	builds      builds
	promotion   promotion
	audits      audits
	ledgers     ledgers
	membership  membership
	intake      intake
	places      places
	evictions   evictions
	attendance  attendance
	moves       moves
	splits      splits
	differences differences
	lives       lives
}

// New begins a term and returns the first effects.
func New(settings Settings, self wire.Leader, log hclog.Logger, now Now) (*Leader, []Effect) {
	s := &scene{settings: settings, log: log,
		identity:   identity{self: self, epoch: now.State.Epoch(), first: firstCounter(now.State)},
		components: components{projectors: map[index.ProjectorID]*projector{}, indexers: map[index.NodeID]*indexer{}},
		buckets:    buckets{byName: map[string]*bucket{}},
		proposals:  proposals{flying: map[string]outcomeDuty{}, retryMS: map[string]int64{}}}
	l := &Leader{scene: s}
	l.evictions = evictions{scene: s, stuck: map[index.NodeID]stuckEviction{}}
	l.picture = picture{scene: s, evictions: &l.evictions, moves: &l.moves, splits: &l.splits}
	l.builds = builds{scene: s}
	l.promotion = promotion{scene: s, pacer: settings.Pacer}
	l.audits = audits{scene: s, promotion: &l.promotion}
	l.ledgers = ledgers{scene: s, promotion: &l.promotion, audits: &l.audits, rollbacks: rollbacks{s, &l.promotion},
		lost: map[index.ID]lost{}}
	l.membership = membership{scene: s, ledgers: &l.ledgers}
	l.intake = intake{scene: s, promotion: &l.promotion, membership: &l.membership, held: heldList{scene: s}}
	l.places = places{scene: s, picture: &l.picture, reserved: map[*Reservation]struct{}{}}
	l.attendance = attendance{scene: s}
	l.moves = moves{scene: s}
	l.splits = splits{scene: s}
	l.differences = differences{scene: s, refused: refused{}}
	l.lives = lives{scene: s, picture: &l.picture, lackMS: map[index.ID]int64{}}
	l.at(now)
	l.startedMS, l.ledgers.checkMS = l.nowMS, l.nowMS
	l.sync()
	l.log.Info("coordinator starts", "projectors", len(l.components.projectors), "indexers", len(l.components.indexers),
		"buckets", len(l.buckets.byName))
	return l, l.effects
}

// Active reports whether the start sequence is over.
func (l *Leader) Active() bool { return l.active }

// Step takes an input, runs the duties that depend on it, and returns their effects in order. The slice is valid
// until the next step.
func (l *Leader) Step(now Now, in Input) []Effect {
	clear(l.effects)
	l.effects = l.effects[:0]
	l.lives.pause(l.membership.pause(now.MS))
	l.at(now)
	l.take(in)
	_, ticked := in.(Tick)
	l.follow(ticked)
	if l.now.state.Epoch() != l.epoch {
		l.do(Anew{})
	} else if wait := l.promotion.wake(); wait > 0 && l.active && !l.promotion.flying {
		l.do(Wake{After: wait})
	}
	return l.effects
}

// syncEvery limits how often a changed state is taken over: with thousands of indexes that costs a millisecond.
const syncEvery = 5 // ms

// follow runs the duties after an input.
func (l *Leader) follow(ticked bool) {
	if l.now.atOnce || l.now.stale && !l.rests(l.now.syncedMS, syncEvery) {
		l.sync()
	}
	if ticked {
		l.promotion.wantHW()
		l.membership.watch()
		l.ledgers.checkBuckets()
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
				l.promotion.serve(b)
			}
		}
		l.promotion.publishLate()
		l.picture.show()
	}
}

// decide runs the duties that need an active leader, one whose start sequence is over.
func (l *Leader) decide(ticked bool) {
	for _, b := range l.buckets.ordered {
		if b.due || ticked {
			b.due = false
			l.ledgers.stepBucket(b)
		}
	}
	if (l.indexesDue || ticked) && l.lives.due() {
		l.indexesDue = false
		l.lives.stepEvaluation()
		l.evictions.step()
		l.lives.stepIndexes()
		l.builds.follow()
	}
	if ticked {
		l.audits.step()
		l.differences.step()
		l.attendance.step()
		l.moves.step()
		l.endRestore()
		l.splits.step()
		l.lives.stepBackfill()
	}
	l.promotion.promote()
}

// endRestore aborts a restore that has sent nothing for RestorePatienceMS: the manager that ran it has gone, or could
// not end it. All user requests wait for the end of a restore.
func (l *Leader) endRestore() {
	g := l.now.state.Staging()
	if g == nil || l.since(g.SinceMS) < statecontext.RestorePatienceMS {
		return
	}
	l.propose("restore", &statecontext.AbortRestore{ID: g.ID}, func(_ statecontext.Result, err error) {
		if err == nil {
			l.log.Warn("restore without progress was abandoned", "restore", g.ID)
		}
	})
}

// sync takes over the newest replicated state.
func (l *Leader) sync() {
	l.now.stale, l.now.atOnce, l.now.syncedMS = false, false, l.nowMS
	for _, key := range l.proposals.landed {
		l.land(key)
		l.indexesDue = true
	}
	l.proposals.landed = l.proposals.landed[:0]
	l.now.state = l.now.newest
	if r := l.now.state.DefinitionsRevision(); r != l.now.revision {
		l.now.revision = r
		l.do(Describe{State: l.now.state})
		l.membership.reconcile()
		l.ledgers.reconcile()
		l.lives.survey()
		l.indexesDue = true
		l.membership.pushDefinitions()
	}
	for _, b := range l.buckets.ordered {
		l.ledgers.refresh(b, l.now.state.Bucket(b.name))
	}
}

// tryActivate ends the start sequence once all known components have answered, or HelloWait is over. An indexer that
// was offline before this term is not waited for after a failed attempt. Then running streams are adopted; those of
// projectors that have not answered stay unknown while the projector may be alive.
func (l *Leader) tryActivate() {
	late := l.nowMS-l.startedMS >= l.settings.HelloWait.Milliseconds()
	for _, p := range l.components.projectors {
		if !p.hello && !p.replaced && !late {
			return
		}
	}
	for _, n := range l.components.indexers {
		if !n.hello && !n.replaced && !late && !(l.offline(n.node) && n.retry.Tries > 0) {
			return
		}
	}
	l.active = true
	l.membership.watchProjectors()
	for _, b := range l.buckets.ordered {
		l.ledgers.adopt(b)
	}
	for _, p := range l.components.projectors { // no ledger has seen their reports since the hello
		p.running = nil
		p.reports.Forget()
	}
	l.log.Info("coordinator is active", "after_ms", l.nowMS-l.startedMS)
}
