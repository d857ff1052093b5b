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

// scene is what all parts of a Leader see, and by what they want something done: the time and the state that the step
// was given, components, buckets and proposals. All parts embed it; beside it, a part changes what it keeps itself.
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
	indexesDue bool // something came in on which an index may move on
	heldDirty  bool // the list of who holds which stability timestamp is to be made anew
}

// identity is whose commands these are.
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

// replica is the newest replicated state that duties work with.
type replica struct {
	newest   *statecontext.State // as of this step
	state    *statecontext.State // as of the newest sync
	syncedMS int64
	stale    bool   // the state has changed since sync
	atOnce   bool   // somebody waits for the next sync
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
	ordered []*bucket // the same, by name: what happens does not hang on the order of a map
}

// proposals are the coordinator's own, by keys that their duties choose.
type proposals struct {
	// flying are in flight, or landed and not yet seen in state, with what is done with the outcome.
	flying  map[string]outcomeDuty
	indexes int // of flying: steps of indexes
	landed  []string
	retryMS map[string]int64 // of those that failed: not before
}

// at takes over what the world is like.
func (l *scene) at(now Now) {
	l.nowMS, l.wallMS, l.stateMS, l.now.newest = now.MS, now.WallMS, now.StateMS, now.State
}

// do wants an effect.
func (l *scene) do(e Effect) { l.effects = append(l.effects, e) }

// reply answers who asked.
func reply[T any](l *scene, to chan T, v T) { l.do(answer[T]{to: to, v: v}) }

// replyFenced answers with the newest fence of a component in v; nil: with what is there.
func replyFenced[T any](l *scene, to chan T, v T, fence *wire.Fence, of *component) {
	a := answer[T]{to: to, v: v, fence: fence}
	if of != nil {
		a.of = of.receiver
	}
	l.do(a)
}

// fence is what every command of this term begins with; the counter is the receiver's, and starts at first.
func (l *scene) fence() wire.Fence {
	return wire.Fence{ClusterID: l.now.newest.ClusterID(), Epoch: l.epoch, Term: l.self.Term, Counter: l.first}
}

// firstCounter is where the counters of commands start. A leader may lay its duties down and take them up again in one
// term (its disk hung, and nobody else could lead): then its commands must be newer than those it has sent. The state's
// CAS has risen by then, with LeaderStarted at the latest.
func firstCounter(s *statecontext.State) uint64 { return s.CAS() << counterBits }

// counterBits leave room for 16 million commands to one receiver between two updates of the state.
const counterBits = 24

// outcomeDuty is what a duty does with the outcome of its proposal; nil: nothing.
type outcomeDuty func(res statecontext.Result, err error)

// propose puts a command of the coordinator's own on its way, unless one with the same key is. A failure is tried again
// by the duty that wanted it, after a rest.
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

// isFlying reports whether a command with this key is on its way, or landed and not yet seen.
func (l *scene) isFlying(key string) bool {
	_, is := l.proposals.flying[key]
	return is
}

// land forgets a command that was on its way.
func (l *scene) land(key string) {
	if l.isFlying(key) && strings.HasPrefix(key, indexPrefix) {
		l.proposals.indexes--
	}
	delete(l.proposals.flying, key)
}

// mayPropose reports whether a command with this key would go on its way now.
func (l *scene) mayPropose(key string) bool {
	return !l.isFlying(key) && l.hasRoom(key) && l.nowMS >= l.proposals.retryMS[key]
}

// hasRoom reports whether a command with this key may be on its way beside those that are. The stability timestamps',
// of which there is one, always may: scans wait for it. Steps of indexes, of which there may be thousands, and all else
// but rollbacks leave room to what comes after them.
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
	// urgentRoom is how many proposals of MaxProposals are kept for rollbacks.
	urgentRoom = MaxProposals / 4
	// indexesAtOnce bounds those that move indexes on.
	indexesAtOnce = MaxProposals / 2
)

const (
	stabilityKey   = "stability"
	rollbackPrefix = "rollback/"
)

// proposalRest is how long a duty waits after a proposal of its own failed.
const proposalRest = 200 // ms

// life judges by the age of the last sign of life; of one that has not been heard in this term, by the age of the term.
func (l *scene) life(c *component) liveness.Life {
	limits := liveness.Limits{SuspectMS: l.settings.SuspectAfter.Milliseconds(),
		OfflineMS: l.settings.OfflineAfter.Milliseconds()}
	return limits.Judge(liveness.Signs{AgeMS: l.nowMS - c.seenMS, Spoken: c.heard || c.hello || c.retry.Tries > 0,
		Refused: c.refused})
}

// offline reports whether an indexer is, or was for the leader before and has not answered this one yet. One that has
// just registered is not.
func (l *scene) offline(node index.NodeID) bool {
	n, i := l.components.indexers[node], l.now.state.Indexer(node)
	return n != nil && (l.life(&n.component) == liveness.Offline || !n.hello && i != nil && i.Offline != nil)
}

// away reports whether nothing is to be placed on an indexer: it is offline, or this leader, which has just begun, has
// waited in vain for its first answer.
func (l *scene) away(node index.NodeID) bool {
	n := l.components.indexers[node]
	return l.offline(node) || n != nil && !n.hello && l.life(&n.component) == liveness.Suspect
}

// isOffline reports whether an indexer is known, and offline.
func (l *scene) isOffline(n *indexer) bool {
	return n != nil && l.life(&n.component) == liveness.Offline
}

// isReachable reports whether an indexer is known, and not offline.
func (l *scene) isReachable(n *indexer) bool {
	return n != nil && l.life(&n.component) != liveness.Offline
}

// rests reports whether less than ms milliseconds have passed since. A clock that was set back ends the rest.
func (l *scene) rests(sinceMS, ms int64) bool { return l.nowMS-sinceMS < ms && l.nowMS >= sinceMS }

// stateOf returns what the state says of a bucket; nil when it was re-created since, or is not there.
func (l *scene) stateOf(b *bucket) *statecontext.Bucket {
	if s := l.now.state.Bucket(b.name); s != nil && s.Generation == b.generation {
		return s
	}
	return nil
}

// tell has something said to a component.
func (l *scene) tell(c *component, by Lane, key string, say Message) {
	l.do(Tell{To: c.receiver, Lane: by, Key: key, Say: say})
}

// find returns the bucket that is meant; nil when it was re-created since.
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

// wholeness is whole, and whether it is known: a leader that has just begun has not heard of every indexer yet, and of
// the copies of a bucket that is rolled back nobody knows before it is over and they have said that they are back.
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
		return has, true // nothing is built
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

// isPresent reports whether what a component has said of a bucket is of its present generation and branch.
func isPresent(b *statecontext.Bucket, generation, rollbackID uint64) bool {
	return generation == b.Generation && rollbackID == b.Stability.RollbackID
}

// awayFor is for how long an indexer has been offline, whoever led, while somebody could hear it; 0 when it is not, or
// nobody knows yet.
func (l *scene) awayFor(node index.NodeID) int64 {
	n, i := l.components.indexers[node], l.now.state.Indexer(node)
	if i == nil || !l.isOffline(n) {
		return 0
	}
	if i.Offline == nil { // it is not noted yet
		return 1
	}
	return max(l.since(i.Offline.StateMS), 1)
}

// repairIn is after how long what an indexer has is made anew elsewhere, if it stays away; 0: it is time. It is not to
// be where ok is false: the indexer is there, has nothing or is being removed, or the settings say so.
func (l *scene) repairIn(i *statecontext.Indexer) (ms int64, ok bool) {
	after := l.settings.RepairAfter.Milliseconds()
	if after <= 0 || i.Offline == nil || i.Evicting || l.now.state.Load(i.Node) == 0 {
		return 0, false
	}
	return max(after-l.since(i.Offline.RepairMS), 0), true
}

// role is what may be done with an indexer now.
func (l *scene) role(s *statecontext.State, node index.NodeID) rebalance.Role {
	switch i := s.Indexer(node); {
	case l.offline(node), i != nil && i.Evicting: // the latter is being removed
		return rebalance.Lost
	case s.Going(node):
		return rebalance.Going
	}
	return rebalance.Serving
}

// exprRules sums up what the projectors have reported. One that has no definitions yet says nothing.
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

// proposed takes over what came of a proposal.
func (l *scene) proposed(p *Proposed) {
	done := l.proposals.flying[p.Key]
	delete(l.proposals.retryMS, p.Key)
	if p.Err == nil {
		l.proposals.landed = append(l.proposals.landed, p.Key) // its duty looks again when the state shows it
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

// logged logs a step of an index when it is committed.
func (l *scene) logged(what string, d *index.Definition) outcomeDuty {
	return func(_ statecontext.Result, err error) {
		if err == nil {
			l.log.Info(what, "index", d.Name, "bucket", d.Bucket, "id", d.ID)
		}
	}
}
