package statecontext

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/tidwall/btree"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// A restore goes through the log in three kinds of commands: BeginRestore announces the backup, RestoreChunk carries
// its state snapshot piece by piece, and FinishRestore verifies the whole and switches to it in one step. Every node
// switches at the same log position or not at all. The first command of a new leader discards a restore that has not
// finished.

// RestoreMode is the kind of cluster into which a backup is restored.
type RestoreMode uint8

// The modes.
const (
	// RestoreInPlace restores into the cluster from which the backup was made: existing indexes are kept as they are,
	// others come back with the copies that their hosts still hold, or are built.
	RestoreInPlace RestoreMode = 1
	// RestoreNewCluster restores into another cluster without indexes: all indexes are built, with new copies.
	RestoreNewCluster RestoreMode = 2
)

// String returns the word used in the API.
func (m RestoreMode) String() string {
	switch m {
	case RestoreInPlace:
		return "in-place"
	case RestoreNewCluster:
		return "new-cluster"
	}
	return fmt.Sprintf("mode(%d)", m)
}

// Bounds of a restore.
const (
	// MaxRestoreBytes bounds the state snapshot of a backup: ten times the state of 10,000 indexes in 100 buckets.
	MaxRestoreBytes = 256 << 20
	// RestoreChunkBytes is the number of bytes of the snapshot in one command.
	RestoreChunkBytes = 256 << 10
	// RestorePatienceMS is how long, in state time, a restore may make no progress: then the leader gives it up, and
	// another restore may begin.
	RestorePatienceMS = 10 * 60 * 1000
)

// Staging is a restore in progress.
type Staging struct {
	ID       string
	Mode     RestoreMode
	Bytes    uint64   // size of the whole snapshot
	Sum      [32]byte // SHA-256 of the snapshot
	SinceMS  int64    // state time at its newest piece, or at its beginning
	Received uint64
	chunks   [][]byte
}

// Restored describes the newest finished restore.
type Restored struct {
	ID      string
	Mode    RestoreMode
	CAS     uint64 // cas of the switch
	TimeMS  int64
	FromID  string // cluster id of the backup
	FromCAS uint64 // cas of the backup
}

// Staging returns the restore in progress, or nil if there is none.
func (s *State) Staging() *Staging { return s.staging }

// Restored returns the newest finished restore, or nil if there was none.
func (s *State) Restored() *Restored { return s.restored }

// BeginRestore begins a restore. During a restore, user requests are rejected (Restoring).
type BeginRestore struct {
	ID    string // chosen by the proposer; identifies the restore in the commands that follow
	Mode  RestoreMode
	Bytes uint64
	Sum   [32]byte
}

// RestoreChunk adds the next piece of the snapshot. A piece that was already received changes nothing.
type RestoreChunk struct {
	ID     string
	Offset uint64
	Data   []byte
}

// FinishRestore verifies the received snapshot and switches to it. Epoch must be above that of the state and that of
// the backup. Buckets holds what projectors found about buckets that the running cluster does not have; a bucket that
// is missing from it is gone.
type FinishRestore struct {
	ID      string
	Epoch   uint64
	Buckets []FoundBucket
	Rules   uint32 // as in BuildIndexes; only for indexes that come back with new copies
}

// FoundBucket describes a bucket that a projector has found.
type FoundBucket struct {
	Name     string
	UUID     string
	VBuckets int
}

// AbortRestore discards the restore in progress with this id; with an empty ID, any restore.
type AbortRestore struct{ ID string }

func (*BeginRestore) kind() kind  { return kindBeginRestore }
func (*RestoreChunk) kind() kind  { return kindRestoreChunk }
func (*FinishRestore) kind() kind { return kindFinishRestore }
func (*AbortRestore) kind() kind  { return kindAbortRestore }

func (c *BeginRestore) append(dst []byte) []byte {
	dst = append(appendString(dst, c.ID), byte(c.Mode))
	return append(appendUint(dst, c.Bytes), c.Sum[:]...)
}

func (c *RestoreChunk) append(dst []byte) []byte {
	return appendBytes(appendUint(appendString(dst, c.ID), c.Offset), c.Data)
}

func (c *FinishRestore) append(dst []byte) []byte {
	dst = appendUint(appendString(dst, c.ID), c.Epoch)
	dst = appendUint(dst, uint64(len(c.Buckets)))
	for _, b := range c.Buckets {
		dst = appendInt(appendString(appendString(dst, b.Name), b.UUID), int64(b.VBuckets))
	}
	return appendUint(dst, uint64(c.Rules))
}

func (c *AbortRestore) append(dst []byte) []byte { return appendString(dst, c.ID) }

// decodeRestoreBody reads the commands of a restore.
func decodeRestoreBody(k kind, d *decoder) Body {
	switch k {
	case kindBeginRestore:
		c := &BeginRestore{ID: d.string(), Mode: RestoreMode(d.byte()), Bytes: d.uint()}
		d.fixed(c.Sum[:])
		return c
	case kindRestoreChunk:
		return &RestoreChunk{ID: d.string(), Offset: d.uint(), Data: d.bytes()}
	case kindFinishRestore:
		c := &FinishRestore{ID: d.string(), Epoch: d.uint()}
		for n := d.count(); n > 0 && d.err == nil; n-- {
			c.Buckets = append(c.Buckets, FoundBucket{Name: d.string(), UUID: d.string(), VBuckets: int(d.int())})
		}
		c.Rules = d.uint32()
		return c
	case kindAbortRestore:
		return &AbortRestore{ID: d.string()}
	}
	return nil
}

func (c *BeginRestore) apply(t *tx) *Rejection {
	if rejection := checkIdentity("restore id", c.ID); rejection != nil {
		return rejection
	}
	switch old := t.s.staging; {
	case old != nil && old.ID == c.ID:
		return reject(errcode.Restoring, "this restore is already running")
	case old != nil && t.s.timeMS-old.SinceMS < RestorePatienceMS:
		return reject(errcode.Restoring, "another restore is running; wait for its end")
	case c.Mode != RestoreInPlace && c.Mode != RestoreNewCluster:
		return reject(errcode.InvalidArgument, "restore mode %d", c.Mode)
	case c.Bytes == 0 || c.Bytes > MaxRestoreBytes:
		return reject(errcode.LimitExceeded, "a state of %d bytes; want 1 to %d", c.Bytes, MaxRestoreBytes)
	}
	t.s.staging = &Staging{ID: c.ID, Mode: c.Mode, Bytes: c.Bytes, Sum: c.Sum, SinceMS: t.s.timeMS}
	t.changed = true
	t.emitCluster()
	return nil
}

// under returns the restore in progress if it has this id.
func (t *tx) under(id string) (*Staging, *Rejection) {
	if g := t.s.staging; g != nil && g.ID == id {
		return g, nil
	}
	return nil, reject(errcode.RestoreMismatch, "the restore has ended: it was abandoned, or the leader has "+
		"changed; start it again")
}

func (c *RestoreChunk) apply(t *tx) *Rejection {
	old, rejection := t.under(c.ID)
	if rejection != nil {
		return rejection
	}
	switch end := c.Offset + uint64(len(c.Data)); {
	case len(c.Data) == 0 || end > old.Bytes || end < c.Offset:
		return reject(errcode.InvalidArgument, "a piece of %d bytes at %d of %d", len(c.Data), c.Offset, old.Bytes)
	case end <= old.Received:
		return nil // a duplicate
	case c.Offset != old.Received:
		return reject(errcode.RestoreMismatch, "a piece at %d, but the next one begins at %d", c.Offset, old.Received)
	}
	g := *old
	g.chunks = append(slices.Clip(g.chunks), bytes.Clone(c.Data))
	g.Received, g.SinceMS = g.Received+uint64(len(c.Data)), t.s.timeMS
	t.s.staging, t.changed = &g, true
	t.emitCluster()
	return nil
}

func (c *AbortRestore) apply(t *tx) *Rejection {
	if t.s.staging == nil || c.ID != "" && c.ID != t.s.staging.ID {
		return nil
	}
	t.s.staging, t.changed = nil, true
	t.emitCluster()
	return nil
}

func (c *FinishRestore) apply(t *tx) *Rejection {
	g, rejection := t.under(c.ID)
	if rejection != nil {
		return rejection
	}
	data := make([]byte, 0, g.Received)
	for _, b := range g.chunks {
		data = append(data, b...)
	}
	if uint64(len(data)) != g.Bytes || sha256.Sum256(data) != g.Sum {
		return reject(errcode.RestoreMismatch, "%d of %d bytes were received, or their checksum differs from the announced "+
			"one", len(data), g.Bytes)
	}
	// The leader has verified the backup, and the state that results from it, with all checks of its version
	// (PlanRestore). Apply makes only checks that every version of the format level makes in the same way: a check that
	// only some versions have would make the replicas diverge.
	backup, err := decodeSnapshot(t.s.formatLevel, bytes.NewReader(data))
	if err != nil {
		return reject(errcode.BackupUnusable, "%v", err)
	}
	m := merger{t: t, backup: backup, mode: g.Mode, found: c.Buckets, epoch: c.Epoch, rules: c.Rules}
	if rejection := m.merge(); rejection != nil {
		return rejection
	}
	s := &t.s
	s.staging = nil
	s.restored = &Restored{ID: c.ID, Mode: g.Mode, CAS: t.cas, TimeMS: s.wallMS, FromID: backup.clusterID,
		FromCAS: backup.cas}
	t.changedDefinitions()
	t.emit(Event{Kind: EventCluster, Name: s.clusterID, Cluster: s.Cluster(), Restored: true})
	return nil
}

// merger builds the restored state from the running state, in t.s.
type merger struct {
	t      *tx
	backup *State
	mode   RestoreMode
	found  []FoundBucket
	epoch  uint64
	rules  uint32
	plan   RestorePlan

	running *btree.Map[index.ID, *Index]
	used    map[index.CopyID]bool // copies of the indexes that are kept
	orphans map[index.CopyID]bool // set by PlanRestore only
}

// merge keeps what is more recent in the running cluster: its members, components, buckets, time and counters. It
// takes indexes, settings and limits from the backup, and forgets the outcomes of requests.
func (m *merger) merge() *Rejection {
	if rejection := m.admit(); rejection != nil {
		return rejection
	}
	s, b := &m.t.s, m.backup
	s.epoch, s.limits = m.epoch, b.limits.usable()
	s.nextIndexID, s.nextCopyID = max(s.nextIndexID, b.nextIndexID), max(s.nextCopyID, b.nextCopyID)
	s.ledger = s.ledger.cleared()
	if m.mode == RestoreInPlace {
		m.mergeNodes()
	}
	s.passed = s.passed.above(b.passed)
	if rejection := m.mergeBuckets(); rejection != nil {
		return rejection
	}
	s.settings = btree.NewMap[string, *BucketSettings](0)
	for x := range b.AllBucketSettings() {
		back := *x
		back.ModifiedCAS = m.t.cas
		s.settings.Set(back.Bucket, &back)
	}
	if rejection := m.mergeIndexes(); rejection != nil {
		return rejection
	}
	m.t.forgetBuckets()
	return nil
}

// admit rejects a backup that may not be restored into this cluster.
func (m *merger) admit() *Rejection {
	s, b := &m.t.s, m.backup
	switch {
	case m.mode == RestoreInPlace && b.clusterID != s.clusterID:
		return reject(errcode.BackupOfOther, "the backup is of cluster %s, this is %s; to create its indexes here, "+
			"restore it with mode new-cluster", b.clusterID, s.clusterID)
	case m.mode == RestoreNewCluster && b.clusterID == s.clusterID:
		return reject(errcode.BackupOfOther, "the backup is of this cluster %s; restore it in place", b.clusterID)
	case m.mode == RestoreNewCluster && s.indexes.Len() > 0:
		return reject(errcode.BackupOfOther, "this cluster has %d indexes of its own; drop them, or restore into an "+
			"empty cluster", s.indexes.Len())
	case b.formatLevel > s.formatLevel:
		return reject(errcode.FormatNotAllowed, "the backup is of format level %d, the cluster is at %d; finalize the "+
			"upgrade first", b.formatLevel, s.formatLevel)
	case m.epoch <= max(s.epoch, b.epoch):
		return reject(errcode.StaleTerm, "epoch %d; the cluster is at %d, the backup at %d", m.epoch, s.epoch, b.epoch)
	}
	return nil
}

// mergeNodes adds the tombstones of the backup, and the indexers that exist only there if their node ids are free.
func (m *merger) mergeNodes() {
	s := &m.t.s
	indexers, nodes, removed := s.indexers.Copy(), s.nodes.Copy(), s.removed.Copy()
	m.backup.removed.Scan(func(uuid string, _ uint64) bool {
		if _, known := removed.Get(uuid); !known && s.IndexerByUUID(uuid) == nil {
			removed.Set(uuid, m.t.cas)
		}
		return true
	})
	for i := range m.backup.Indexers() {
		_, gone := removed.Get(i.UUID)
		_, taken := indexers.Get(i.Node)
		if gone || taken || i.Node > index.MaxNodeID || s.IndexerByUUID(i.UUID) != nil {
			continue
		}
		back := *i
		back.ModifiedCAS, back.Offline = m.t.cas, nil // of the backup's time: a leader records it anew
		indexers.Set(back.Node, &back)
		nodes.Set(back.UUID, back.Node)
	}
	s.indexers, s.nodes, s.removed = indexers, nodes, removed
}

// mergeBuckets adds the buckets that exist only in the backup, as projectors have found them.
func (m *merger) mergeBuckets() *Rejection {
	for b := range m.backup.Buckets() {
		if m.t.s.Bucket(b.Name) != nil {
			continue
		}
		now := FoundBucket{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets}
		at := slices.IndexFunc(m.found, func(f FoundBucket) bool { return f.Name == b.Name })
		if at >= 0 {
			now = m.found[at]
		}
		set := SetBucket{Name: now.Name, UUID: now.UUID, VBuckets: now.VBuckets}
		if rejection := m.t.putBucket(&set); rejection != nil {
			return rejection
		}
		back := *m.t.s.Bucket(b.Name)
		// Numbers continue, so that data that an indexer kept from the bucket never looks like data still to come.
		back.Generation = max(back.Generation, b.Generation+1)
		back.Stability.Number, back.Stability.RollbackID = max(back.Stability.Number, b.Stability.Number),
			max(back.Stability.RollbackID, b.lastRollback())
		back.Gone = at < 0
		m.t.setBucket(&back)
		m.plan.Buckets++
	}
	m.t.events, m.t.result.Number = nil, 0 // one event stands for all changes
	return nil
}

// mergeIndexes combines the indexes. An index of the running cluster that is also in the backup stays as it is now,
// with its replicas, nodes and slices, and keeps serving; the others make room for those of the backup. A restore
// ends every split.
func (m *merger) mergeIndexes() *Rejection {
	s := &m.t.s
	m.running, m.used = s.indexes, make(map[index.CopyID]bool)
	s.indexes, s.names = btree.NewMap[index.ID, *Index](0), btree.NewMap[string, index.ID](0)
	s.placed = [len(s.placed)]uint32{}
	missing := make(map[index.ID]*Index) // in the backup but not in the running cluster, by First
	for x := range m.backup.Indexes() {
		f := &x.Definition
		if f.State == index.Dropping || f.Replaces != 0 {
			continue
		}
		if missing[f.First()] != nil {
			return reject(errcode.BackupUnusable, "the backup has index %d twice, once after a split", f.First())
		}
		missing[f.First()] = x
	}
	m.mergeRunning(missing)
	for x := range m.backup.Indexes() {
		if missing[x.Definition.First()] != x {
			continue
		}
		if rejection := m.bring(*x); rejection != nil {
			return rejection
		}
	}
	return nil
}

// mergeRunning puts the indexes of the running cluster that stay into the restored state, and removes them from
// missing.
func (m *merger) mergeRunning(missing map[index.ID]*Index) {
	for x := range values(m.running) {
		f := &x.Definition
		b := missing[f.First()]
		switch {
		case f.State == index.Dropping: // see below
		case f.Replaces != 0:
			m.plan.Splits++
		case b != nil && sameIndex(f, &b.Definition):
			delete(missing, f.First())
			m.take(x)
			m.planKept(x, b)
		case !hasID(b, f.ID):
			m.planDropped(f)
		}
	}
	for x := range values(m.running) {
		f := &x.Definition
		if f.State == index.Dropping && !hasID(missing[f.First()], f.ID) {
			m.take(x) // its drop continues
		}
	}
}

// hasID reports whether an index has this id; x may be nil.
func hasID(x *Index, id index.ID) bool { return x != nil && x.Definition.ID == id }

// take adds an index to the restored state.
func (m *merger) take(x *Index) {
	f := &x.Definition
	m.t.s.indexes.Set(f.ID, x)
	m.t.s.count(x, 1)
	if f.State != index.Dropping {
		m.t.s.names.Set(x.key(), f.ID)
	}
	for _, c := range x.Topology.Copies {
		m.used[c.ID] = true
	}
}

// sameIndex reports whether two definitions with the same First index the same data. The places and the number of its
// copies, its number of slices, and the bucket of that name for which it was built may have changed since.
func sameIndex(x, y *index.Definition) bool {
	return x.Name == y.Name && x.Bucket == y.Bucket && x.Member == y.Member && x.IsPrimary == y.IsPrimary &&
		x.Where == y.Where && slices.Equal(x.Keys, y.Keys) && x.PartitionBy.Scheme == y.PartitionBy.Scheme &&
		slices.Equal(x.PartitionBy.Exprs, y.PartitionBy.Exprs)
}

// bring restores an index of the backup.
func (m *merger) bring(x Index) *Rejection {
	f := &x.Definition
	if f.Name == "" || m.t.s.IndexIn(f.Keyspace(), f.Name) != nil || m.t.s.Index(f.ID) != nil {
		return reject(errcode.BackupUnusable, "two indexes %q on bucket %q", f.Name, f.Keyspace().String())
	}
	if err := x.Topology.Layout.Check(); err != nil {
		return reject(errcode.BackupUnusable, "index %d: %v", f.ID, err)
	}
	b := m.t.s.Bucket(f.Bucket)
	if b == nil {
		return reject(errcode.BackupUnusable, "index %d is of bucket %q, which the backup does not have", f.ID, f.Bucket)
	}
	m.settle(f, b)
	held := m.adopt(&x)
	if rejection := m.place(&x, held); rejection != nil {
		return rejection
	}
	if f.State != index.Error && len(held) == 0 {
		f.Rules = m.rules
	}
	m.planBrought(&x)
	f.ModifiedCAS, x.TopologyCAS, x.PlacedCAS = m.t.cas, m.t.cas, m.t.cas
	m.take(&x)
	return nil
}

// settle sets the state in which an index of the backup comes back on a bucket.
func (m *merger) settle(f *index.Definition, b *Bucket) {
	elsewhere := !f.Member.IsZero() && b.UUID != f.BucketUUID // the collection ids of another bucket mean nothing here
	if m.mode == RestoreNewCluster && !b.Gone {
		f.BucketUUID = b.UUID
	}
	switch {
	case b.Gone:
		f.State, f.Reason = index.Error, reasonNotThere
	case elsewhere:
		f.State, f.Reason = index.Error, reasonElsewhere
	case b.UUID != f.BucketUUID:
		f.State, f.Reason = index.Error, reasonRecreated
	case f.State == index.Error && m.mode == RestoreInPlace:
	default:
		f.Deferred = f.State == index.Pending && f.Deferred
		f.State, f.Reason = index.Pending, ""
	}
}

// adopt returns the copies that their hosts may still hold: one of each slice and replica, ascending by id.
func (m *merger) adopt(x *Index) (held []partition.Copy) {
	f := &x.Definition
	ofAnother := f.State == index.Error && f.BucketUUID != m.t.s.Bucket(f.Bucket).UUID
	if m.mode == RestoreNewCluster || ofAnother {
		return nil
	}
	for _, state := range []partition.CopyState{partition.Allocated, partition.Placed} {
		for _, c := range x.Topology.Copies {
			now := m.present(c.Node)
			if c.State != state || m.used[c.ID] || now == nil || isTaken(held, c, now.Node) {
				continue
			}
			held = append(held, partition.Copy{ID: c.ID, Slice: c.Slice, Replica: c.Replica, Node: now.Node,
				State: partition.Placed})
		}
	}
	slices.SortFunc(held, func(a, b partition.Copy) int { return cmp.Compare(a.ID, b.ID) })
	return held
}

// present returns the indexer that is now registered for a node of the backup, or nil if there is none.
func (m *merger) present(node index.NodeID) *Indexer {
	if was := m.backup.Indexer(node); was != nil {
		return m.t.s.IndexerByUUID(was.UUID)
	}
	return nil
}

// isTaken reports whether held has a copy in c's place, or one of the same slice on node.
func isTaken(held []partition.Copy, c partition.Copy, node index.NodeID) bool {
	return slices.ContainsFunc(held, func(h partition.Copy) bool {
		return h.Slice == c.Slice && (h.Replica == c.Replica || h.Node == node)
	})
}

// place gives every slice of every replica that has no copy a new one, on the node with the fewest copies. It
// considers the nodes that the definition allows; if they are too few, all nodes; and if those are too few, also the
// ones that are to be emptied.
func (m *merger) place(x *Index, held []partition.Copy) *Rejection {
	f := &x.Definition
	all := m.allowed(f.Nodes, false)
	if len(all) <= int(f.Replicas) {
		all = m.allowed(nil, false)
	}
	if len(all) <= int(f.Replicas) {
		all = m.allowed(nil, true)
	}
	copies, load := slices.Clone(held), m.t.s.placed
	each, parts := int(f.Replicas)+1, int(x.Topology.Layout.Partitions)
	has, onNode := make([]bool, parts*each), make([]nodeSet, parts)
	for _, c := range held {
		load[c.Node]++
		if int(c.Slice) < parts && int(c.Replica) < each {
			has[int(c.Slice)*each+int(c.Replica)] = true
			onNode[c.Slice].add(c.Node)
		}
	}
	for slice := range index.SliceID(parts) {
		for replica := range each {
			r := partition.Replica(replica)
			if has[int(slice)*each+replica] {
				continue
			}
			free := slices.DeleteFunc(slices.Clone(all), onNode[slice].has)
			if len(free) == 0 {
				return reject(errcode.PlacementImpossible, "index %q on %q has %d replicas and needs %d indexers; only %d are "+
					"present and not being removed: start more", f.Name, f.Bucket,
					f.Replicas, each, len(all))
			}
			best := slices.MinFunc(free, func(a, b index.NodeID) int { return cmp.Compare(load[a], load[b]) })
			copies = append(copies, partition.Copy{ID: m.t.s.nextCopyID, Slice: slice, Replica: r, Node: best,
				State: partition.Placed})
			m.t.s.nextCopyID++
			load[best]++
			onNode[slice].add(best)
		}
	}
	x.Topology.Copies = copies
	return nil
}

// allowed returns the nodes that a definition allows by uuid or name, ascending; all nodes if it names none. Nodes
// that are being removed are left out; nodes that are to be emptied are included only if going is set.
func (m *merger) allowed(names []string, going bool) (nodes []index.NodeID) {
	for i := range m.t.s.Indexers() {
		if i.Evicting || m.t.s.Going(i.Node) && !going {
			continue
		}
		if len(names) == 0 || slices.Contains(names, i.UUID) || slices.Contains(names, i.Name) {
			nodes = append(nodes, i.Node)
		}
	}
	return nodes
}
