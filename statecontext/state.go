// Package statecontext is the replicated state of the index managers (IM-1): definitions, topologies, registrations,
// buckets with their timestamps and rollback contexts, and the request ledger, together with the commands that change
// it and the codecs that store it.
//
// It promises that Apply is a function of (state, bytes): the same log gives the same state on every node, for ever. A
// State never changes after it was returned; the next one shares what did not change, so that a snapshot is one pointer
// copy. Every accepted change moves cas by exactly one; a rejection moves nothing but the request ledger and the state
// time. It never reads a clock or a random source, never depends on the order of a Go map, never does I/O beyond the
// reader or writer of a snapshot, and never skips what it cannot decode.
package statecontext

import (
	"cmp"
	"iter"

	"github.com/tidwall/btree"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

// State is one immutable version of the StateContext. The zero value is not usable; see New. Everything that an
// accessor returns is shared between versions and must not be changed.
type State struct {
	cas          uint64
	appliedIndex uint64
	clusterID    string
	epoch        uint64
	formatLevel  uint64
	timeMS       int64
	wallMS       int64
	revision     uint64
	term         uint64
	leader       string
	limits       Limits
	nextIndexID  index.ID
	nextCopyID   index.CopyID
	nextNodeID   index.NodeID

	managers   *btree.Map[string, *Manager]
	projectors *btree.Map[index.ProjectorID, *Projector]
	indexers   *btree.Map[index.NodeID, *Indexer]
	nodes      *btree.Map[string, index.NodeID] // by the indexer's uuid
	removed    *btree.Map[string, uint64]       // tombstones of indexer uuids: the cas of their removal
	buckets    *btree.Map[string, *Bucket]
	indexes    *btree.Map[index.ID, *Index]
	names      *btree.Map[string, index.ID] // Index.key of every index that is not being dropped
	users      *btree.Map[string, *User]
	tokens     *btree.Map[string, *Token]
	settings   *btree.Map[string, *BucketSettings]
	rebalances rebalanceSet
	// differences are the copies that differ from the KV data, as their indexers have told.
	differences *btree.Map[index.CopyID, *DifferingCopy]
	passed      bucketNumbers // the highest of buckets that were forgotten
	ledger      ledger
	placed      [index.MaxNodeID + 1]uint32 // copies of each node that are not leaving; follows from indexes

	staging  *Staging  // a restore under way
	restored *Restored // the newest restore that was finished
}

// New returns the state before the first command.
func New() *State {
	return &State{
		formatLevel: 1,
		limits:      DefaultLimits(),
		nextIndexID: 1,
		nextCopyID:  1,
		managers:    btree.NewMap[string, *Manager](0),
		projectors:  btree.NewMap[index.ProjectorID, *Projector](0),
		indexers:    btree.NewMap[index.NodeID, *Indexer](0),
		nodes:       btree.NewMap[string, index.NodeID](0),
		removed:     btree.NewMap[string, uint64](0),
		buckets:     btree.NewMap[string, *Bucket](0),
		indexes:     btree.NewMap[index.ID, *Index](0),
		names:       btree.NewMap[string, index.ID](0),
		users:       btree.NewMap[string, *User](0),
		tokens:      btree.NewMap[string, *Token](0),
		settings:    btree.NewMap[string, *BucketSettings](0),
		differences: newDifferences(),
		rebalances:  newRebalanceSet(),
		ledger:      newLedger(),
	}
}

// Manager is an index manager that has registered.
type Manager struct {
	ID          string `json:"id"`   // Raft server id: name and a random suffix
	Name        string `json:"name"` // as configured
	REST        string `json:"rest"` // base URL
	Raft        string `json:"raft"` // host:port
	FormatLevel uint64 `json:"format_level"`
	ModifiedCAS uint64 `json:"modified_cas"`
}

// Projector is a projector that has registered.
type Projector struct {
	ID          index.ProjectorID `json:"id"`
	Admin       string            `json:"admin"` // base URL
	BootID      string            `json:"boot_id"`
	ModifiedCAS uint64            `json:"modified_cas"`
}

// DataAddrs are the data ports of an indexer, one per type of stream, host:port.
type DataAddrs struct {
	Maintenance string `json:"maintenance"`
	Backfill    string `json:"backfill"`
	Catchup     string `json:"catchup"`
}

// Indexer is an indexer that has registered.
type Indexer struct {
	Node        index.NodeID `json:"node"`
	UUID        string       `json:"uuid"` // of its data folder
	BootID      string       `json:"boot_id"`
	Name        string       `json:"name"`
	Zone        string       `json:"zone,omitempty"`
	Capacity    uint32       `json:"capacity"` // relative weight for placement; 0 counts as 1
	Admin       string       `json:"admin"`    // base URL
	Scan        string       `json:"scan"`     // host:port
	Data        DataAddrs    `json:"data"`
	ModifiedCAS uint64       `json:"modified_cas"`
	// Evicting says that it is being removed for good: no copy is placed on it any more, and those that it has go.
	Evicting bool `json:"evicting,omitempty"`
	// Offline is since when it has been away, as leaders have seen it; nil: it is there. No ModifiedCAS goes with it.
	Offline *Absence `json:"offline,omitempty"`
}

// Promoted is what is replicated of a bucket's newest stability timestamp, which Bucket.Timestamp returns, and of its
// promotion.
type Promoted struct {
	// rises by one with every promotion and every end of a rollback
	Number uint64 `json:"number"`
	// StateMS is the state time of the newest of them; 0: there was none since the bucket was first seen, or came back.
	StateMS    int64                   `json:"state_ms"`
	RollbackID uint64                  `json:"rollback_id"` // of the newest finished rollback, 0 before the first
	Vector     timestamp.Vector        `json:"vector"`
	Logs       []timestamp.FailoverLog `json:"logs"`      // per vbucket, as known at the newest promotion that changed it
	Revisions  []timestamp.MapRevision `json:"revisions"` // per vbucket: the map revision its log came with
}

// Bucket is a bucket that has at least once been named by a projector.
type Bucket struct {
	Name       string   `json:"name"`
	UUID       string   `json:"uuid"`
	VBuckets   int      `json:"vbuckets"`
	Generation uint64   `json:"generation"` // rises when the bucket is re-created or comes back
	Gone       bool     `json:"gone,omitempty"`
	Stability  Promoted `json:"stability"`
	// MutationTimestamp is what was current at the newest promotion.
	MutationTimestamp timestamp.Vector `json:"mutation_timestamp"`
	// BackfillTimestamp is the smallest side position of the active builds; it has no vbuckets while none is active.
	BackfillTimestamp timestamp.Vector `json:"backfill_timestamp"`
	Rollback          *RollbackContext `json:"rollback,omitempty"`
	// of the newest change but promotions and the backfill timestamp
	ModifiedCAS uint64 `json:"modified_cas"`
}

// Timestamp returns the newest promoted stability timestamp.
func (b *Bucket) Timestamp() timestamp.Stability {
	s := &b.Stability
	return timestamp.Stability{Vector: s.Vector, Logs: s.Logs, Ref: timestamp.Ref{Generation: b.Generation,
		RollbackID: s.RollbackID, Number: s.Number, Hash: s.Vector.Hash()}}
}

// RollbackContext is the rollback of a bucket that is under way (IM-23).
type RollbackContext struct {
	ID        uint64                  `json:"id"`
	Step      RollbackStep            `json:"step"`
	Failover  timestamp.Vector        `json:"failover"` // from step prepare on
	Restart   timestamp.Vector        `json:"restart"`  // from step restart on
	Logs      []timestamp.FailoverLog `json:"logs"`     // per vbucket, with the newest that were seen
	Revisions []timestamp.MapRevision `json:"revisions"`
}

// Index is a definition together with where it lives.
type Index struct {
	Definition index.Definition
	Topology   partition.Topology
	// TopologyCAS is the cas of the newest change of Topology: its ETag.
	TopologyCAS uint64
	// PlacedCAS is the cas of the newest commit that added copies. A host's report counts only when it was made under
	// a definitions revision at or above it.
	PlacedCAS uint64
}

// Waits reports whether the index waits for BUILD INDEX: until then its hosts are told nothing of it.
func (x *Index) Waits() bool { return x.Definition.State == index.Pending && x.Definition.Deferred }

// CAS rises by one with every update, and by SkippedUpdates more at a recovery (IM-2).
func (s *State) CAS() uint64 { return s.cas }

// AppliedIndex is the index of the newest Raft entry that was applied.
func (s *State) AppliedIndex() uint64 { return s.appliedIndex }

// ClusterID is empty until BootstrapCluster.
func (s *State) ClusterID() string { return s.clusterID }

// Epoch is the first part of every fence: it rises where terms may restart.
func (s *State) Epoch() uint64 { return s.epoch }

// FormatLevel is the newest command format that may be proposed.
func (s *State) FormatLevel() uint64 { return s.formatLevel }

// TimeMS is the state time, the highest that a proposer has stamped (Clock): for how long the cluster has been led, in
// milliseconds. It never goes back, is for ages, and no wall clock moves it.
func (s *State) TimeMS() int64 { return s.timeMS }

// WallMS is when the newest command was proposed, by the wall clock of the leader then: for people. It goes back where
// that clock was set, or the next leader's is behind.
func (s *State) WallMS() int64 { return s.wallMS }

// DefinitionsRevision is the cas of the newest change that projectors and indexers must learn: definitions, topology,
// endpoints, buckets and their rollbacks. Promotions, and indexes that wait for BUILD INDEX, do not move it.
func (s *State) DefinitionsRevision() uint64 { return s.revision }

// Placements are the indexes and indexers of a state at one revision of the definitions: shared with the state, and
// keeping nothing else of it alive, such as stability timestamps.
type Placements struct {
	revision uint64
	indexes  *btree.Map[index.ID, *Index]
	indexers *btree.Map[index.NodeID, *Indexer]
}

// Placements returns those of the state.
func (s *State) Placements() Placements { return Placements{s.revision, s.indexes, s.indexers} }

// Revision is that of the definitions.
func (p Placements) Revision() uint64 { return p.revision }

// Index returns an index with its topology, nil when there is none.
func (p Placements) Index(id index.ID) *Index { x, _ := p.indexes.Get(id); return x }

// Indexes returns all indexes by id.
func (p Placements) Indexes() iter.Seq[*Index] { return values(p.indexes) }

// IndexCount is the number of indexes, those that are being dropped too.
func (p Placements) IndexCount() int { return p.indexes.Len() }

// Indexer returns an indexer, nil when there is none.
func (p Placements) Indexer(n index.NodeID) *Indexer { i, _ := p.indexers.Get(n); return i }

// Indexers returns all indexers by node id.
func (p Placements) Indexers() iter.Seq[*Indexer] { return values(p.indexers) }

// Load is how many copies a node has that are not leaving.
func (s *State) Load(n index.NodeID) int {
	if int(n) >= len(s.placed) {
		return 0
	}
	return int(s.placed[n])
}

// count adds an index's copies to their nodes' load, or with by -1 takes them away.
func (s *State) count(x *Index, by uint32) {
	for _, c := range x.Topology.Copies {
		if c.State != partition.Leaving && int(c.Node) < len(s.placed) {
			s.placed[c.Node] += by
		}
	}
}

// Term is the Raft term of the newest LeaderStarted in this epoch.
func (s *State) Term() uint64 { return s.term }

// LeaderID is the manager that began Term.
func (s *State) LeaderID() string { return s.leader }

// Limits are the bounds in force.
func (s *State) Limits() Limits { return s.limits }

// Manager returns the manager with this Raft server id, nil when there is none.
func (s *State) Manager(id string) *Manager { m, _ := s.managers.Get(id); return m }

// Managers returns all managers by id.
func (s *State) Managers() iter.Seq[*Manager] { return values(s.managers) }

// Projector returns a projector, nil when there is none.
func (s *State) Projector(id index.ProjectorID) *Projector { p, _ := s.projectors.Get(id); return p }

// Projectors returns all projectors by id.
func (s *State) Projectors() iter.Seq[*Projector] { return values(s.projectors) }

// Indexer returns an indexer, nil when there is none.
func (s *State) Indexer(n index.NodeID) *Indexer { i, _ := s.indexers.Get(n); return i }

// IndexerByUUID returns the indexer whose folder has this uuid, nil when there is none.
func (s *State) IndexerByUUID(uuid string) *Indexer {
	n, ok := s.nodes.Get(uuid)
	if !ok {
		return nil
	}
	return s.Indexer(n)
}

// Removed reports whether the indexer with this uuid was removed from the cluster and may not come back.
func (s *State) Removed(uuid string) bool { _, ok := s.removed.Get(uuid); return ok }

// Indexers returns all indexers by node id.
func (s *State) Indexers() iter.Seq[*Indexer] { return values(s.indexers) }

// Bucket returns a bucket, nil when there is none.
func (s *State) Bucket(name string) *Bucket { b, _ := s.buckets.Get(name); return b }

// Buckets returns all buckets by name.
func (s *State) Buckets() iter.Seq[*Bucket] { return values(s.buckets) }

// Index returns an index with its topology, nil when there is none.
func (s *State) Index(id index.ID) *Index { x, _ := s.indexes.Get(id); return x }

// Definition returns an index's definition, nil when there is none.
func (s *State) Definition(id index.ID) *index.Definition {
	if x := s.Index(id); x != nil {
		return &x.Definition
	}
	return nil
}

// Topology returns an index's topology, nil when there is none.
func (s *State) Topology(id index.ID) *partition.Topology {
	if x := s.Index(id); x != nil {
		return &x.Topology
	}
	return nil
}

// IndexByName returns the index of this name on the bucket's default collection that is not being dropped, nil when
// there is none.
func (s *State) IndexByName(bucket, name string) *Index {
	return s.IndexIn(index.InBucket(bucket), name)
}

// IndexByPath returns the index of this name in one of the keyspaces that a text may mean; one in a bucket that is gone
// only when there is no other.
func (s *State) IndexByPath(keyspace, name string) *Index {
	var gone *Index
	for _, k := range index.Keyspaces(keyspace) {
		x, b := s.IndexIn(k, name), s.Bucket(k.Bucket)
		switch {
		case b == nil || b.Gone:
			gone = cmp.Or(gone, x)
		case x != nil || k.Bucket == keyspace: // it names a bucket, and nothing else
			return x
		}
	}
	return gone
}

// IndexIn returns the index of this name in a keyspace that is not being dropped, nil when there is none.
func (s *State) IndexIn(k index.Keyspace, name string) *Index {
	id, _ := s.names.Get(spaceKey(k, name))
	if x := s.Index(id); x != nil && x.Definition.Name == name { // else the text is another key of the map
		return x
	}
	return nil
}

// Successor returns the index that is being built in the place of another one, nil when there is none.
func (s *State) Successor(of *index.Definition) *Index {
	id, _ := s.names.Get(successorKey(of))
	if x := s.Index(id); x != nil && x.Definition.Replaces == of.ID {
		return x
	}
	return nil // or of another index, which has the name since this one was dropped
}

// Indexes returns all indexes by id, those that are being dropped too.
func (s *State) Indexes() iter.Seq[*Index] { return values(s.indexes) }

// IndexesAfter returns the indexes with ids above this one, by id: ids rise, so that whoever reads in parts misses none
// that was there all the time, and sees none twice.
func (s *State) IndexesAfter(id index.ID) iter.Seq[*Index] {
	return func(yield func(*Index) bool) {
		s.indexes.Ascend(id+1, func(_ index.ID, x *Index) bool { return yield(x) })
	}
}

// IndexCount is the number of indexes, those that are being dropped too.
func (s *State) IndexCount() int { return s.indexes.Len() }

// IndexesOf returns the indexes of a bucket that are not being dropped, by name; a successor stands behind the one
// whose name it is to have.
func (s *State) IndexesOf(bucket string) iter.Seq[*Index] {
	return func(yield func(*Index) bool) {
		prefix := nameKey(bucket, "")
		s.names.Ascend(prefix, func(key string, id index.ID) bool {
			if len(key) < len(prefix) || key[:len(prefix)] != prefix {
				return false
			}
			return yield(s.Index(id))
		})
	}
}

// LedgerLen is the number of requests whose outcome is remembered.
func (s *State) LedgerLen() int { return s.ledger.len() }

// nameKey orders names within their bucket; neither part may hold a zero byte.
func nameKey(bucket, name string) string { return bucket + "\x00" + name }

// spaceKey orders the names of a bucket's indexes; those of one name by collection, the default one first.
func spaceKey(k index.Keyspace, name string) string {
	if k.IsDefault() {
		return nameKey(k.Bucket, name)
	}
	return nameKey(k.Bucket, name) + "\x00" + k.Scope + "\x00" + k.Collection
}

// successorKey orders a successor behind the index whose name it is to have. No name that users give leads to it.
func successorKey(f *index.Definition) string {
	return nameKey(f.Bucket, f.Name) + "\x00" + f.Member.Scope + "\x00" + f.Member.Collection + "\x00successor"
}

// key is under which names has an index that is not being dropped.
func (x *Index) key() string {
	if f := &x.Definition; f.Replaces != 0 {
		return successorKey(f)
	}
	return spaceKey(x.Definition.Keyspace(), x.Definition.Name)
}

// orderedKey is what keys of the maps are made of.
type orderedKey interface{ ~string | ~uint64 | ~uint8 }

// values returns the values of a map in the order of its keys.
func values[K orderedKey, V any](m *btree.Map[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		m.Scan(func(_ K, v V) bool { return yield(v) })
	}
}
