package core

import (
	"errors"
	"strings"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
)

// scene is the part of a Leader that all its parts share: the time and state of the step, components, buckets,
// proposals, and the list of effects. All parts embed it; besides it, a part changes only its own state.
type scene struct {
	settings Settings
	identity
	clock
	log     hclog.Logger
	active  bool // the start sequence is over
	now     replica
	effects []Effect // of this step

	components components
	buckets    buckets
	proposals  proposals

	indexes    unsettled
	indexesDue bool // an input arrived that may let an index move on
	heldDirty  bool // the list of held stability timestamps must be rebuilt
}

// identity identifies the leader that commands come from.
type identity struct {
	self  wire.Leader
	epoch uint64
	first uint64 // see firstCounter
}

// clock is the time of the step.
type clock struct {
	nowMS, wallMS, stateMS, startedMS int64
	stood                             stood
}

// replica is the replicated state that duties work with.
type replica struct {
	newest   *statecontext.State // as of this step
	state    *statecontext.State // as of the newest sync
	syncedMS int64
	stale    bool   // the state has changed since sync
	atOnce   bool   // a caller waits for the next sync
	revision uint64 // of the definitions in state
}

// components holds the projectors and indexers of the state.
type components struct {
	projectors map[index.ProjectorID]*projector
	indexers   map[index.NodeID]*indexer
	alive      []index.ProjectorID // live projectors, as last passed to the ledgers
	waited     bool                // maxUnreported has passed
	opened     Receiver            // the newest one
}

// buckets holds the buckets of the state.
type buckets struct {
	byName  map[string]*bucket
	ordered []*bucket // the same, ordered by name, so that effects do not depend on map order
}

// proposals holds the coordinator's own proposals, by keys that their duties choose.
type proposals struct {
	// flying holds proposals in flight, or committed and not yet visible in state, with the handlers of their outcomes.
	flying  map[string]outcomeDuty
	indexes int // those in flying that move indexes
	landed  []string
	retryMS map[string]int64 // earliest time of the next attempt, of failed ones
}

// at sets the time and the newest state of the step.
func (l *scene) at(now Now) {
	l.nowMS, l.wallMS, l.stateMS, l.now.newest = now.MS, now.WallMS, now.StateMS, now.State
}

// do adds an effect.
func (l *scene) do(e Effect) { l.effects = append(l.effects, e) }

// reply answers a request.
func reply[T any](l *scene, to chan T, v T) { l.do(answer[T]{to: to, v: v}) }

// replyFenced answers a request, with the newest fence of component of stored in fence; nil leaves fence as it is.
func replyFenced[T any](l *scene, to chan T, v T, fence *wire.Fence, of *component) {
	a := answer[T]{to: to, v: v, fence: fence}
	if of != nil {
		a.of = of.receiver
	}
	l.do(a)
}

// fence returns the fence with which the commands of this term begin; the counter, which starts at first, is counted
// per receiver.
func (l *scene) fence() wire.Fence {
	return wire.Fence{ClusterID: l.now.newest.ClusterID(), Epoch: l.epoch, Term: l.self.Term, Counter: l.first}
}

// firstCounter returns the start of the commands' counters. A leader may step down and resume in one term (its disk
// hung, and no other manager could lead): its new commands must then be newer than those sent before. The state's CAS
// has risen by then, at the latest with LeaderStarted.
func firstCounter(s *statecontext.State) uint64 { return s.CAS() << counterBits }

// counterBits leaves room for 16 million commands to one receiver between two updates of the state.
const counterBits = 24

// outcomeDuty handles the outcome of a proposal; it may be nil.
type outcomeDuty func(res statecontext.Result, err error)

// propose submits a command of the coordinator's own unless one with the same key is in flight, and reports whether
// it did. After a failure the duty proposes again, after a pause.
func (l *scene) propose(key string, body statecontext.Body, done outcomeDuty) bool {
	if !l.mayPropose(key) {
		return false
	}
	l.proposals.flying[key] = done
	if strings.HasPrefix(key, indexPrefix) {
		l.proposals.indexes++
	}
	l.do(Propose{Key: key, Body: body, Traced: strings.HasPrefix(key, indexPrefix)})
	return true
}

// isFlying reports whether a command with this key is in flight, or committed and not yet visible in state.
func (l *scene) isFlying(key string) bool {
	_, is := l.proposals.flying[key]
	return is
}

// land drops a command that was in flight.
func (l *scene) land(key string) {
	if l.isFlying(key) && strings.HasPrefix(key, indexPrefix) {
		l.proposals.indexes--
	}
	delete(l.proposals.flying, key)
}

// mayPropose reports whether a command with this key could be proposed now.
func (l *scene) mayPropose(key string) bool {
	return !l.isFlying(key) && l.hasRoom(key) && l.nowMS >= l.proposals.retryMS[key]
}

// hasRoom reports whether a command with this key may be proposed in addition to those in flight. The one for
// stability timestamps always may: scans wait for it. Commands that move indexes, of which there may be thousands,
// leave room for all others, and all others but rollbacks leave room for rollbacks.
func (l *scene) hasRoom(key string) bool {
	most := MaxProposals - urgentRoom
	switch {
	case key == stabilityKey:
		return true
	case strings.HasPrefix(key, rollbackPrefix):
		most = MaxProposals
	case strings.HasPrefix(key, indexPrefix) && l.proposals.indexes >= indexesAtOnce:
		return false
	}
	return len(l.proposals.flying) < most
}

// MaxProposals bounds the coordinator's own proposals in flight, so that users' DDL is never crowded out.
const MaxProposals = 32

const (
	// urgentRoom is how many of MaxProposals are reserved for rollbacks.
	urgentRoom = MaxProposals / 4
	// indexesAtOnce limits the proposals that move indexes.
	indexesAtOnce = MaxProposals / 2
)

const (
	stabilityKey   = "stability"
	rollbackPrefix = "rollback/"
)

// proposalRest is the pause of a duty after its proposal has failed.
const proposalRest = 200 // ms

// life judges a component by the age of its last sign of life, or by the age of the term if it has not reported in
// this term.
func (l *scene) life(c *component) liveness.Life {
	limits := liveness.Limits{SuspectMS: l.settings.SuspectAfter.Milliseconds(),
		OfflineMS: l.settings.OfflineAfter.Milliseconds()}
	return limits.Judge(liveness.Signs{AgeMS: l.nowMS - c.seenMS, Contacted: c.reported || c.hello || c.retry.Tries > 0,
		Refused: c.refused})
}

// offline reports whether an indexer is offline, or was for the previous leader and has not answered this one yet. An
// indexer that has just registered is not offline.
func (l *scene) offline(node index.NodeID) bool {
	n, i := l.components.indexers[node], l.now.state.Indexer(node)
	return n != nil && (l.life(&n.component) == liveness.Offline || !n.hello && i != nil && i.Offline != nil)
}

// away reports whether no copies may be placed on an indexer: it is offline, or it is suspect and has not answered
// this new leader.
func (l *scene) away(node index.NodeID) bool {
	n := l.components.indexers[node]
	return l.offline(node) || n != nil && !n.hello && l.life(&n.component) == liveness.Suspect
}

// unhealthy reports whether a new index should rather be placed elsewhere: the indexer is away or reports a problem,
// such as a full disk.
func (l *scene) unhealthy(node index.NodeID) bool {
	n := l.components.indexers[node]
	return l.away(node) || n != nil && n.health != ""
}

// isOffline reports whether an indexer is known and offline.
func (l *scene) isOffline(n *indexer) bool {
	return n != nil && l.life(&n.component) == liveness.Offline
}

// isReachable reports whether an indexer is known and not offline.
func (l *scene) isReachable(n *indexer) bool {
	return n != nil && l.life(&n.component) != liveness.Offline
}

// rests reports whether less than ms milliseconds have passed since sinceMS. A clock that was set back ends the
// pause.
func (l *scene) rests(sinceMS, ms int64) bool { return l.nowMS-sinceMS < ms && l.nowMS >= sinceMS }

// stateOf returns the replicated state of a bucket; nil if it was re-created or removed.
func (l *scene) stateOf(b *bucket) *statecontext.Bucket {
	if s := l.now.state.Bucket(b.name); s != nil && s.Generation == b.generation {
		return s
	}
	return nil
}

// send sends a message to a component.
func (l *scene) send(c *component, by Lane, key string, m Message) {
	l.do(Send{To: c.receiver, Lane: by, Key: key, Message: m})
}

// find returns the bucket of a reference; nil if it was re-created.
func (l *scene) find(r BucketRef) *bucket {
	if b := l.buckets.byName[r.Name]; b != nil && b.generation == r.Generation {
		return b
	}
	return nil
}

// whole reports whether a copy could serve alone.
func (l *scene) whole(x *statecontext.Index, c partition.Copy) bool {
	whole, _ := l.wholeness(x, c)
	return whole
}

// wholeness returns whole, and whether it is known: a new leader has no report of every indexer yet, and during a
// rollback of its bucket a copy is unknown until the rollback is over and the indexer has reported it on the new
// branch.
func (l *scene) wholeness(x *statecontext.Index, c partition.Copy) (whole, known bool) {
	n := l.components.indexers[c.Node]
	if n == nil {
		return false, false
	}
	r, has := n.copies[c.ID]
	if !has && !n.full {
		return false, l.isOffline(n)
	}
	if !x.Definition.State.Active() {
		return has, true // nothing is built yet
	}
	b := l.now.state.Bucket(x.Definition.Bucket)
	switch {
	case b == nil || b.Gone || !has:
		return false, true
	case b.Rollback != nil:
		return false, false
	case !r.Ready:
		return false, true
	}
	onBranch := isPresent(b, r.Held.Generation, r.Held.RollbackID)
	return onBranch, onBranch
}

// isPresent reports whether a report of a bucket is of its present generation and branch.
func isPresent(b *statecontext.Bucket, generation, rollbackID uint64) bool {
	return generation == b.Generation && rollbackID == b.Stability.RollbackID
}

// awayFor returns for how many milliseconds an indexer has been offline, over all terms, counting only time in which
// some leader could get reports from it; 0 if it is online or this leader does not know yet.
func (l *scene) awayFor(node index.NodeID) int64 {
	n, i := l.components.indexers[node], l.now.state.Indexer(node)
	if i == nil || !l.isOffline(n) {
		return 0
	}
	if i.Offline == nil { // not recorded yet
		return 1
	}
	return max(l.since(i.Offline.StateMS), 1)
}

// repairIn returns the time in milliseconds until an indexer's copies are made anew elsewhere if it stays away; 0:
// now. ok is false if they will not be: the indexer is online, has no copies or is being removed, or repairs are
// switched off.
func (l *scene) repairIn(i *statecontext.Indexer) (ms int64, ok bool) {
	after := l.settings.RepairAfter.Milliseconds()
	if after <= 0 || i.Offline == nil || i.Evicting || l.now.state.Load(i.Node) == 0 {
		return 0, false
	}
	return max(after-l.since(i.Offline.RepairMS), 0), true
}

// role returns the role of an indexer for planning.
func (l *scene) role(s *statecontext.State, node index.NodeID) rebalance.Role {
	switch i := s.Indexer(node); {
	case l.offline(node), i != nil && i.Evicting: // the latter is being removed
		return rebalance.Lost
	case s.Going(node):
		return rebalance.Going
	}
	return rebalance.Serving
}

// exprRules returns the rules that the projectors have reported. A projector that has no definitions yet does not
// count.
func (l *scene) exprRules() (r ExprRules) {
	for q := range l.now.state.Projectors() {
		p := l.components.projectors[q.ID]
		if p == nil || p.evaluation == nil || p.evaluation.Rules == 0 || l.life(&p.component) == liveness.Offline {
			continue
		}
		if r.Highest = max(r.Highest, p.evaluation.Rules); r.Lowest == 0 || p.evaluation.Rules < r.Lowest {
			r.Lowest = p.evaluation.Rules
		}
	}
	return r
}

// proposed takes the outcome of a proposal.
func (l *scene) proposed(p *Proposed) {
	done := l.proposals.flying[p.Key]
	delete(l.proposals.retryMS, p.Key)
	if p.Err == nil {
		l.proposals.landed = append(l.proposals.landed, p.Key) // its duty runs again when the state shows it
	} else {
		l.land(p.Key)
		l.proposals.retryMS[p.Key] = l.nowMS + proposalRest
		if !errors.Is(p.Err, ErrTermOver) {
			l.log.Debug("proposal failed", "what", p.Key, "error", p.Err)
		}
	}
	l.now.stale, l.indexesDue = true, true
	if done != nil {
		done(p.Result, p.Err)
	}
}

const indexPrefix = "index/"

func indexKey(id index.ID) string { return indexPrefix + id.String() }

// logged returns a handler that logs a step of an index when it is committed.
func (l *scene) logged(what string, d *index.Definition) outcomeDuty {
	return func(_ statecontext.Result, err error) {
		if err == nil {
			l.log.Info(what, "index", d.Name, "bucket", d.Bucket, "id", d.ID)
		}
	}
}
