// Package statecontext implements the replicated state of the index managers (IM-1): definitions, topologies,
// registrations, buckets with their timestamps and rollback contexts, and the request ledger. It also defines the
// commands that change the state and the codecs that store it.
//
// Apply is a pure function of (state, bytes): the same log produces the same state on every node and in every
// version. A State is immutable once returned; the next version shares everything that did not change, so taking a
// snapshot copies one pointer. Every accepted change raises cas by exactly one (a recovery also skips numbers, see
// RaiseEpoch); a rejection changes only the request ledger and the state time. The package never reads a clock or a
// random source, never depends on Go's map iteration order, does no I/O beyond the reader or writer of a snapshot, and
// never skips what it cannot decode.
package statecontext

import (
	"cmp"
	"iter"

	"github.com/tidwall/btree"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

// State is one immutable version of the StateContext. The zero value is not usable; see New. Values returned by
// accessors are shared between versions; callers must not modify them.
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
	removed    *btree.Map[string, uint64]       // cas at which each indexer was removed, by its uuid
	buckets    *btree.Map[string, *Bucket]
	indexes    *btree.Map[index.ID, *Index]
	names      *btree.Map[string, index.ID] // Index.key of every index that is not being dropped
	users      *btree.Map[string, *User]
	tokens     *btree.Map[string, *Token]
	settings   *btree.Map[string, *BucketSettings]
	rebalances rebalanceSet
	// differences holds the copies that their indexers have reported to differ from the KV data.
	differences *btree.Map[index.CopyID, *DifferingCopy]
	passed      bucketNumbers // highest numbers that forgotten buckets have used
	ledger      ledger
	placed      [index.MaxNodeID + 1]uint32 // number of copies per node that are not leaving; derived from indexes

	staging  *Staging  // a restore under way
	restored *Restored // the newest finished restore
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
	// Evicting reports whether the indexer is being removed for good: no new copy is placed on it, and its copies are
	// removed.
	Evicting bool `json:"evicting,omitempty"`
	// Offline records since when leaders have seen the indexer offline; nil while it is online. Changing it does not
	// change ModifiedCAS.
	Offline *Absence `json:"offline,omitempty"`
}

// Promoted is the replicated part of a bucket's newest stability timestamp (see Bucket.Timestamp) and of its
// promotion.
type Promoted struct {
	// Number rises by one with every promotion and at the end of every rollback.
	Number uint64 `json:"number"`
	// StateMS is the state time of the newest promotion or rollback end; 0 if there was none since the bucket was first
	// seen or came back.
	StateMS    int64                   `json:"state_ms"`
	RollbackID uint64                  `json:"rollback_id"` // of the newest finished rollback, 0 before the first
	Vector     timestamp.Vector        `json:"vector"`
	Logs       []timestamp.FailoverLog `json:"logs"`      // per vbucket, as of the newest promotion that changed it
	Revisions  []timestamp.MapRevision `json:"revisions"` // per vbucket: the map revision that its log came with
}

// Bucket is a bucket that a projector has reported at least once.
type Bucket struct {
	Name       string   `json:"name"`
	UUID       string   `json:"uuid"`
	VBuckets   int      `json:"vbuckets"`
	Generation uint64   `json:"generation"` // rises when the bucket is re-created or comes back
	Gone       bool     `json:"gone,omitempty"`
	Stability  Promoted `json:"stability"`
	// MutationTimestamp is the vector of current seqnos at the newest promotion.
	MutationTimestamp timestamp.Vector `json:"mutation_timestamp"`
	// BackfillTimestamp is the smallest side position of the active builds; it has no vbuckets while no build is active.
	BackfillTimestamp timestamp.Vector `json:"backfill_timestamp"`
	Rollback          *RollbackContext `json:"rollback,omitempty"`
	// ModifiedCAS is the cas of the newest change other than promotions and changes of BackfillTimestamp.
	ModifiedCAS uint64 `json:"modified_cas"`
}

// Timestamp returns the newest promoted stability timestamp.
func (b *Bucket) Timestamp() timestamp.Stability {
	s := &b.Stability
	return timestamp.Stability{Vector: s.Vector, Logs: s.Logs, Ref: timestamp.Ref{Generation: b.Generation,
		RollbackID: s.RollbackID, Number: s.Number, Hash: s.Vector.Hash()}}
}

// RollbackContext describes the rollback of a bucket in progress (IM-23).
type RollbackContext struct {
	ID        uint64                  `json:"id"`
	Step      RollbackStep            `json:"step"`
	Failover  timestamp.Vector        `json:"failover"` // set from step prepare on
	Restart   timestamp.Vector        `json:"restart"`  // set from step restart on
	Logs      []timestamp.FailoverLog `json:"logs"`     // per vbucket, the newest seen
	Revisions []timestamp.MapRevision `json:"revisions"`
}

// Index is the definition of an index together with its topology.
type Index struct {
	Definition index.Definition
	Topology   partition.Topology
	// TopologyCAS is the cas of the newest change of Topology, and its ETag.
	TopologyCAS uint64
	// PlacedCAS is the cas of the newest commit that added copies. A host's report counts only if it was made at a
	// definitions revision of PlacedCAS or higher.
	PlacedCAS uint64
}

// Waits reports whether the index waits for BUILD INDEX. Until then its hosts do not receive the definition.
func (x *Index) Waits() bool { return x.Definition.State == index.Pending && x.Definition.Deferred }

// CAS returns the update counter: it rises by one with every update, and by another SkippedUpdates at a recovery
// (IM-2).
func (s *State) CAS() uint64 { return s.cas }

// AppliedIndex returns the index of the newest applied Raft entry.
func (s *State) AppliedIndex() uint64 { return s.appliedIndex }

// ClusterID returns the id of the cluster, empty until BootstrapCluster.
func (s *State) ClusterID() string { return s.clusterID }

// Epoch returns the first component of every fence. It rises whenever Raft terms may start again.
func (s *State) Epoch() uint64 { return s.epoch }

// FormatLevel returns the newest command format that may be proposed.
func (s *State) FormatLevel() uint64 { return s.formatLevel }

// TimeMS returns the state time in milliseconds: how long the cluster has had a leader. It is the highest value that
// a proposer has stamped (see Clock). It never goes back and does not depend on a wall clock; use it for ages.
func (s *State) TimeMS() int64 { return s.timeMS }

// WallMS returns when the newest command was proposed, by the wall clock of the leader at that time. It is for
// display only: it goes back if that clock was set back, or if the next leader's clock is behind.
func (s *State) WallMS() int64 { return s.wallMS }

// DefinitionsRevision returns the cas of the newest change that projectors and indexers must receive: definitions,
// topology, endpoints, buckets and their rollbacks. Promotions and indexes that wait for BUILD INDEX do not change
// it.
func (s *State) DefinitionsRevision() uint64 { return s.revision }

// Placements is the indexes and indexers of a state at one definitions revision. It shares them with the state and
// keeps no other part of it alive, such as stability timestamps.
type Placements struct {
	revision uint64
	indexes  *btree.Map[index.ID, *Index]
	indexers *btree.Map[index.NodeID, *Indexer]
}

// Placements returns the placements of the state.
func (s *State) Placements() Placements { return Placements{s.revision, s.indexes, s.indexers} }

// Revision returns the definitions revision.
func (p Placements) Revision() uint64 { return p.revision }

// Index returns an index with its topology, or nil if it does not exist.
func (p Placements) Index(id index.ID) *Index { x, _ := p.indexes.Get(id); return x }

// Indexes returns all indexes in the order of their ids.
func (p Placements) Indexes() iter.Seq[*Index] { return values(p.indexes) }

// IndexCount returns the number of indexes, including those that are being dropped.
func (p Placements) IndexCount() int { return p.indexes.Len() }

// Indexer returns an indexer, or nil if it does not exist.
func (p Placements) Indexer(n index.NodeID) *Indexer { i, _ := p.indexers.Get(n); return i }

// Indexers returns all indexers in the order of their node ids.
func (p Placements) Indexers() iter.Seq[*Indexer] { return values(p.indexers) }

// Load returns the number of copies on a node that are not leaving.
func (s *State) Load(n index.NodeID) int {
	if int(n) >= len(s.placed) {
		return 0
	}
	return int(s.placed[n])
}

// count adds an index's copies to the load of their nodes; by is 1, or ^uint32(0) (-1) to subtract them.
func (s *State) count(x *Index, by uint32) {
	for _, c := range x.Topology.Copies {
		if c.State != partition.Leaving && int(c.Node) < len(s.placed) {
			s.placed[c.Node] += by
		}
	}
}

// Term returns the Raft term of the newest LeaderStarted in this epoch.
func (s *State) Term() uint64 { return s.term }

// LeaderID returns the id of the manager that began Term.
func (s *State) LeaderID() string { return s.leader }

// Limits returns the limits in force.
func (s *State) Limits() Limits { return s.limits }

// Manager returns the manager with this Raft server id, or nil if it does not exist.
func (s *State) Manager(id string) *Manager { m, _ := s.managers.Get(id); return m }

// Managers returns all managers in the order of their ids.
func (s *State) Managers() iter.Seq[*Manager] { return values(s.managers) }

// Projector returns a projector, or nil if it does not exist.
func (s *State) Projector(id index.ProjectorID) *Projector { p, _ := s.projectors.Get(id); return p }

// Projectors returns all projectors in the order of their ids.
func (s *State) Projectors() iter.Seq[*Projector] { return values(s.projectors) }

// Indexer returns an indexer, or nil if it does not exist.
func (s *State) Indexer(n index.NodeID) *Indexer { i, _ := s.indexers.Get(n); return i }

// IndexerByUUID returns the indexer whose data folder has this uuid, or nil if it does not exist.
func (s *State) IndexerByUUID(uuid string) *Indexer {
	n, ok := s.nodes.Get(uuid)
	if !ok {
		return nil
	}
	return s.Indexer(n)
}

// Removed reports whether the indexer with this uuid was removed from the cluster; it may not register again.
func (s *State) Removed(uuid string) bool { _, ok := s.removed.Get(uuid); return ok }

// Indexers returns all indexers in the order of their node ids.
func (s *State) Indexers() iter.Seq[*Indexer] { return values(s.indexers) }

// Bucket returns a bucket, or nil if it does not exist.
func (s *State) Bucket(name string) *Bucket { b, _ := s.buckets.Get(name); return b }

// Buckets returns all buckets in the order of their names.
func (s *State) Buckets() iter.Seq[*Bucket] { return values(s.buckets) }

// Index returns an index with its topology, or nil if it does not exist.
func (s *State) Index(id index.ID) *Index { x, _ := s.indexes.Get(id); return x }

// Definition returns the definition of an index, or nil if it does not exist.
func (s *State) Definition(id index.ID) *index.Definition {
	if x := s.Index(id); x != nil {
		return &x.Definition
	}
	return nil
}

// Topology returns the topology of an index, or nil if it does not exist.
func (s *State) Topology(id index.ID) *partition.Topology {
	if x := s.Index(id); x != nil {
		return &x.Topology
	}
	return nil
}

// IndexByName returns the index with this name in the bucket's default collection, or nil if it does not exist.
// Indexes that are being dropped are not found.
func (s *State) IndexByName(bucket, name string) *Index {
	return s.IndexIn(index.InBucket(bucket), name)
}

// IndexByPath returns the index with this name in one of the keyspaces that the text may denote (index.Keyspaces). It
// returns an index of a bucket that is gone only if there is no other.
func (s *State) IndexByPath(keyspace, name string) *Index {
	var gone *Index
	for _, k := range index.Keyspaces(keyspace) {
		x, b := s.IndexIn(k, name), s.Bucket(k.Bucket)
		switch {
		case b == nil || b.Gone:
			gone = cmp.Or(gone, x)
		case x != nil || k.Bucket == keyspace: // keyspace can only be the name of a bucket
			return x
		}
	}
	return gone
}

// IndexIn returns the index with this name in a keyspace, or nil if it does not exist. Indexes that are being dropped
// are not found.
func (s *State) IndexIn(k index.Keyspace, name string) *Index {
	id, _ := s.names.Get(spaceKey(k, name))
	if x := s.Index(id); x != nil && x.Definition.Name == name { // otherwise the key is one of another form
		return x
	}
	return nil
}

// Successor returns the index that is being built to replace the given one, or nil if there is none.
func (s *State) Successor(of *index.Definition) *Index {
	id, _ := s.names.Get(successorKey(of))
	if x := s.Index(id); x != nil && x.Definition.Replaces == of.ID {
		return x
	}
	return nil // or the entry belongs to another index, which took the name after this one was dropped
}

// Indexes returns all indexes in the order of their ids, including those that are being dropped.
func (s *State) Indexes() iter.Seq[*Index] { return values(s.indexes) }

// IndexesAfter returns the indexes with ids above id, in the order of their ids. Ids only rise, so a caller that
// reads in pages misses no index that existed throughout, and sees none twice.
func (s *State) IndexesAfter(id index.ID) iter.Seq[*Index] {
	return func(yield func(*Index) bool) {
		s.indexes.Ascend(id+1, func(_ index.ID, x *Index) bool { return yield(x) })
	}
}

// IndexCount returns the number of indexes, including those that are being dropped.
func (s *State) IndexCount() int { return s.indexes.Len() }

// IndexesOf returns the indexes of a bucket that are not being dropped, in the order of their names. A successor
// follows the index that it replaces.
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

// LedgerLen returns the number of requests whose outcome is remembered.
func (s *State) LedgerLen() int { return s.ledger.len() }

// nameKey returns the key that orders names within their bucket. Neither part may contain a zero byte.
func nameKey(bucket, name string) string { return bucket + "\x00" + name }

// spaceKey returns the key of an index name in a keyspace. Equal names are ordered by collection, the default
// collection first.
func spaceKey(k index.Keyspace, name string) string {
	if k.IsDefault() {
		return nameKey(k.Bucket, name)
	}
	return nameKey(k.Bucket, name) + "\x00" + k.Scope + "\x00" + k.Collection
}

// successorKey returns the key of a successor, which sorts after the index that it replaces. No user-given name maps
// to it.
func successorKey(f *index.Definition) string {
	return nameKey(f.Bucket, f.Name) + "\x00" + f.Member.Scope + "\x00" + f.Member.Collection + "\x00successor"
}

// key returns the key under which State.names lists an index that is not being dropped.
func (x *Index) key() string {
	if f := &x.Definition; f.Replaces != 0 {
		return successorKey(f)
	}
	return spaceKey(x.Definition.Keyspace(), x.Definition.Name)
}

// orderedKey is the constraint on the maps' key types.
type orderedKey interface{ ~string | ~uint64 | ~uint8 }

// values returns the values of a map in the order of their keys.
func values[K orderedKey, V any](m *btree.Map[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		m.Scan(func(_ K, v V) bool { return yield(v) })
	}
}
