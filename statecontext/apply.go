package statecontext

import (
	"cmp"

	"github.com/tidwall/btree"

	"tidemark/errcode"
	"tidemark/index"
)

// Apply applies every command of one Raft entry, in order. It returns the next state (s itself does not change), one
// result per command, and the events of the updates in cas order. If err is not nil, it wraps ErrUndecodable, all
// other results are nil, and the node has to stop.
func Apply(s *State, raftIndex uint64, data []byte) (next *State, results []Result, events []Event, err error) {
	commands, err := Decode(data)
	if err != nil {
		return nil, nil, nil, err
	}
	next, results, events = ApplyCommands(s, raftIndex, commands)
	return next, results, events, nil
}

// ApplyCommands is like Apply, for commands that are already decoded.
func ApplyCommands(s *State, raftIndex uint64, commands []Command) (next *State, results []Result, events []Event) {
	results = make([]Result, len(commands))
	next = s
	for i := range commands {
		var more []Event
		next, results[i], more = applyOne(next, &commands[i])
		events = append(events, more...)
	}
	last := *next
	last.appliedIndex = raftIndex
	if err := assertInvariants(s, &last); err != nil {
		panic(err) // only under the build tag `invariants`
	}
	return &last, results, events
}

// applyOne applies one command and maintains the request ledger.
func applyOne(s *State, c *Command) (*State, Result, []Event) {
	base := *s
	base.timeMS = max(base.timeMS, c.TimeMS)
	base.wallMS = cmp.Or(c.WallMS, base.wallMS)
	keyed := c.Request.keyed()
	if keyed {
		if r, settled := base.settled(c); settled {
			return &base, r, nil
		}
	}
	t := tx{s: base, cas: base.cas + 1}
	rejection := t.admit(c)
	looked := rejection == nil // otherwise the command was refused before it was examined
	if looked {
		if rejection = c.Body.apply(&t); rejection == nil {
			t.endSplits()
		}
	}
	if rejection != nil {
		t = tx{s: base, result: Result{Rejection: rejection, Buckets: t.result.Buckets}}
	}
	if t.changed {
		t.s.cas = t.cas
	}
	t.result.CAS, t.result.Changed = t.s.cas, t.changed
	if keyed && looked && !rejection.passes() {
		t.s.remember(c.Request, t.result)
	}
	t.sign(c.Request)
	return &t.s, t.result, t.events
}

// settled returns the result of a request that is not applied, because its outcome is remembered or cannot be
// remembered.
func (s *State) settled(c *Command) (Result, bool) {
	if r, known := s.recall(c.Request); known {
		return r, true
	}
	if rejection := s.makeRoom(c); rejection != nil {
		return Result{CAS: s.cas, Rejection: rejection}, true
	}
	return Result{}, false
}

// sign sets the principal of the request, if there is one, on all events of the command.
func (t *tx) sign(r *Request) {
	if r == nil {
		return
	}
	for i := range t.events {
		t.events[i].By = r.Principal
	}
}

// tx applies one command to its own version of the state. A rejection discards that version.
type tx struct {
	s       State
	cas     uint64 // cas of the state if the command changes it
	changed bool
	result  Result
	events  []Event
	owned   ownership
	touched []index.ID // indexes changed by the command
}

// ownership tracks which maps of the version have already been copied.
type ownership struct {
	managers, projectors, indexers, nodes, removed, buckets, indexes, names, users, tokens, settings, rebalances,
	steps, differences bool
}

// admit makes the checks that are common to all commands; its rejections are not remembered. Before the cluster has
// an id, only BootstrapCluster and LeaderStarted are valid. User commands are rejected during a restore.
func (t *tx) admit(c *Command) *Rejection {
	if t.s.staging != nil && c.waitsForRestore() {
		return reject(errcode.Restoring, "the cluster is being restored from a backup; nothing was done: try again "+
			"when it is over")
	}
	if need := RequiredFormat(c); need > t.s.formatLevel {
		return reject(errcode.FormatNotAllowed,
			"the command needs format level %d, the cluster is at %d; finalize the upgrade first", need,
			t.s.formatLevel)
	}
	if t.s.clusterID != "" {
		return nil
	}
	switch c.Body.(type) {
	case *BootstrapCluster, *LeaderStarted:
		return nil
	}
	return reject(errcode.NotBootstrapped, "the cluster has no id yet; wait until its first leader has bootstrapped it")
}

// changedDefinitions marks an update that projectors and indexers must receive.
func (t *tx) changedDefinitions() { t.changed, t.s.revision = true, t.cas }

// changedIndex marks an update of an index. Projectors and indexers do not receive indexes that wait for BUILD INDEX.
func (t *tx) changedIndex(x *Index) {
	t.changed = true
	if !x.Waits() {
		t.changedDefinitions()
	}
}

// calendar returns the creation time to record, for display: the time given by the requester, or else the proposer's
// wall clock.
func (t *tx) calendar(wallMS int64) int64 {
	if wallMS != 0 {
		return wallMS
	}
	return t.s.wallMS
}

func (t *tx) emit(e Event) {
	e.CAS, e.TimeMS = t.cas, t.s.wallMS
	t.events = append(t.events, e)
}

// own returns a map of this version that may be modified. It copies the map on first use.
func own[K orderedKey, V any](m **btree.Map[K, V], done *bool) *btree.Map[K, V] {
	if !*done {
		*m, *done = (*m).Copy(), true
	}
	return *m
}

func (t *tx) setManager(m Manager) {
	m.ModifiedCAS, t.changed = t.cas, true
	own(&t.s.managers, &t.owned.managers).Set(m.ID, &m)
	t.emit(Event{Kind: EventManager, Name: m.ID, Manager: &m})
}

// emitCluster emits an event with all fields of the cluster.
func (t *tx) emitCluster() {
	t.emit(Event{Kind: EventCluster, Name: t.s.clusterID, Cluster: t.s.Cluster()})
}

// emitIndexer emits an event with all fields of an indexer.
func (t *tx) emitIndexer(i *Indexer) {
	t.emit(Event{Kind: EventIndexer, Name: i.UUID, Node: i.Node, Indexer: i, Going: t.s.Going(i.Node)})
}

func (t *tx) setBucket(b *Bucket) { own(&t.s.buckets, &t.owned.buckets).Set(b.Name, b) }

// setIndex stores a new version of an index. definition and topology say which parts changed, which decides the cas
// values to set and the events to emit.
func (t *tx) setIndex(x Index, definition, topology bool) {
	t.changedIndex(&x)
	if definition {
		x.Definition.ModifiedCAS = t.cas
	}
	if topology {
		x.TopologyCAS = t.cas
	}
	p := &x
	t.touched = append(t.touched, x.Definition.ID)
	var was index.State
	if old, had := own(&t.s.indexes, &t.owned.indexes).Set(x.Definition.ID, p); had {
		was = old.Definition.State
		t.s.count(old, ^uint32(0))
	}
	t.s.count(p, 1)
	e := Event{Index: x.Definition.ID, Bucket: x.Definition.Bucket, Name: x.Definition.Name}
	if definition {
		e.Kind, e.Definition, e.Was = EventIndex, &p.Definition, was
		t.emit(e)
	}
	if topology {
		e.Kind, e.Definition, e.Was, e.Topology = EventTopology, nil, 0, &p.Topology
		t.emit(e)
	}
}

func (t *tx) index(id index.ID) (*Index, *Rejection) {
	if x := t.s.Index(id); x != nil {
		return x, nil
	}
	return nil, reject(errcode.UnknownIndex, "there is no index with id %d; it may have been dropped", id)
}

// bucket returns a bucket that is not gone and has the expected generation (0: any).
func (t *tx) bucket(name string, generation uint64) (*Bucket, *Rejection) {
	b := t.s.Bucket(name)
	switch {
	case b == nil:
		return nil, reject(errcode.UnknownBucket, "bucket %q is not registered; a projector must report it first", name)
	case b.Gone:
		return nil, reject(errcode.BucketGone, "bucket %q (uuid %s) was deleted", name, b.UUID)
	case generation != 0 && generation != b.Generation:
		return nil, reject(errcode.GenerationMismatch, "bucket %q has generation %d, the command was made for %d; "+
			"repeat the decision with the present state",
			name, b.Generation, generation)
	}
	return b, nil
}
