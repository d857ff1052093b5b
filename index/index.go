// Package index holds the basic types of all other packages: index definitions, the ids of indexes, copies, nodes and
// projectors, the incarnation of a stream, and the index state machine (IM-3).
//
// Every type is a plain value: ids are comparable, and ids that may exceed 2^53 are strings in JSON. The package does
// no I/O. Its only logic is which state may follow which.
package index

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ID identifies an index permanently. It is never reused, not even by an index of the same name. Source: IM-3.
type ID uint64

// CopyID identifies one placement of one slice (index, slice, replica, node). It is never reused. It is also the name
// of the folder of the copy, so that the files of a re-created index, or of a slice that has moved back, are never
// mixed up with older ones.
type CopyID uint64

// NodeID is an indexer's number, 0 to MaxNodeID (IM-1, PR-14: the topic id of its catchup stream).
type NodeID uint8

// MaxNodeID is the highest NodeID; 251 to 255 are topic ids of shared streams (PR-14).
const MaxNodeID NodeID = 250

// ProjectorID is the configured name of a projector.
type ProjectorID string

// SliceID is the number of a slice within its index, 0 to Partitions-1.
type SliceID uint16

// AllSlices in a statement stands for every slice of the index that the receiver hosts (UpsertDeletion).
const AllSlices SliceID = 0xFFFF

// String returns the decimal form.
func (id ID) String() string { return strconv.FormatUint(uint64(id), 10) }

// String returns the decimal form.
func (id CopyID) String() string { return strconv.FormatUint(uint64(id), 10) }

// ParseID parses the decimal form of an index id.
func ParseID(s string) (ID, error) {
	u, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("index id %q: want a decimal number", s)
	}
	return ID(u), nil
}

// MarshalText encodes the id as decimal text, so that it is a string in JSON.
func (id ID) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(id), 10), nil }

// UnmarshalText decodes what MarshalText returned.
func (id *ID) UnmarshalText(b []byte) error {
	u, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("index id %q: want a decimal number", b)
	}
	*id = ID(u)
	return nil
}

// MarshalText encodes the id as decimal text, so that it is a string in JSON.
func (id CopyID) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(id), 10), nil }

// UnmarshalText decodes what MarshalText returned.
func (id *CopyID) UnmarshalText(b []byte) error {
	u, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("copy id %q: want a decimal number", b)
	}
	*id = CopyID(u)
	return nil
}

// Incarnation orders the successive streams of one vbucket: by epoch, then Raft term, then counter. Everything that a
// stream sends carries its incarnation. Indexers and the coordinator drop what carries an older one
// (docs/timestamps.md, "The vbucket ledger").
type Incarnation struct {
	Epoch   uint64 `json:"epoch"`
	Term    uint64 `json:"term"`
	Counter uint64 `json:"counter"`
}

// Compare returns a negative number, 0 or a positive number if i is older than, equal to or newer than o.
func (i Incarnation) Compare(o Incarnation) int {
	switch {
	case i == o:
		return 0
	case i.Epoch != o.Epoch:
		return sign(i.Epoch > o.Epoch)
	case i.Term != o.Term:
		return sign(i.Term > o.Term)
	}
	return sign(i.Counter > o.Counter)
}

// IsZero reports whether i is the zero value, which no stream has.
func (i Incarnation) IsZero() bool { return i == Incarnation{} }

// String returns epoch.term.counter.
func (i Incarnation) String() string { return fmt.Sprintf("%d.%d.%d", i.Epoch, i.Term, i.Counter) }

func sign(more bool) int {
	if more {
		return 1
	}
	return -1
}

// KeyExpr is one component of a secondary key.
type KeyExpr struct {
	Expr string `json:"expr"`           // canonical text, as printed by package expression
	Desc bool   `json:"desc,omitempty"` // descending order
}

// Using names the storage of an index (IM-3). The only one is "ordered".
type Using string

// UsingOrdered is the ordered store of package storage.
const UsingOrdered Using = "ordered"

// ExprType names the language of the expressions (IM-3). The only one is "n1ql".
type ExprType string

// ExprN1QL is the language of package expression.
const ExprN1QL ExprType = "n1ql"

// PartitionScheme is the way in which the entries of an index are distributed over its slices.
type PartitionScheme string

// The schemes. The empty scheme is by a hash of the document's id.
const (
	PartitionHash  PartitionScheme = "hash"  // by a hash of components of the key
	PartitionRange PartitionScheme = "range" // by the range of values in which the leading component lies
)

// PartitionBy is the partitioning of an index over its slices (RT-2). The zero value is by a hash of the document's
// id.
type PartitionBy struct {
	Scheme PartitionScheme `json:"scheme"`
	// canonical texts of key expressions of the index; for a range only the leading one
	Exprs []string `json:"expressions"`
	// Values, for a range, are JSON values in ascending order, one less than there are slices. A slice holds the entries
	// from one value (inclusive) to the next (exclusive).
	Values []json.RawMessage `json:"values,omitempty"`
}

// IsZero reports whether the entries are distributed by the document's id.
func (p *PartitionBy) IsZero() bool { return p.Scheme == "" && len(p.Exprs) == 0 && len(p.Values) == 0 }

// Equal reports whether p and o are the same partitioning.
func (p *PartitionBy) Equal(o *PartitionBy) bool {
	return p.Scheme == o.Scheme && slices.Equal(p.Exprs, o.Exprs) && slices.EqualFunc(p.Values, o.Values, sameJSON)
}

// sameJSON reports whether two texts are equal except for white space between tokens. Indented answers have more of
// it.
func sameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// Definition is an index as defined by the user, with its current state (IM-3).
type Definition struct {
	ID          ID          `json:"id"`
	Name        string      `json:"name"`
	Bucket      string      `json:"bucket"`
	BucketUUID  string      `json:"bucket_uuid"`
	Member      Member      `json:"member,omitzero"` // collection of the bucket that has the documents
	State       State       `json:"state"`
	Reason      string      `json:"reason,omitempty"` // in state error: a code and what to do
	Deferred    bool        `json:"deferred,omitempty"`
	Using       Using       `json:"using"`
	ExprType    ExprType    `json:"expr_type"`
	IsPrimary   bool        `json:"is_primary"`
	Keys        []KeyExpr   `json:"keys,omitempty"`
	Where       string      `json:"where,omitempty"`
	PartitionBy PartitionBy `json:"partition_by,omitzero"`
	Partitions  uint16      `json:"num_partition"`
	Replicas    uint8       `json:"num_replica"`     // additional copies of each slice
	Nodes       []string    `json:"nodes,omitempty"` // uuids or names of indexers that may host it; empty = any
	Statement   string      `json:"definition"`      // canonical DDL text
	// lowest version of expression.Rules that made entries; 0: not recorded
	Rules     uint32 `json:"expression_rules,omitempty"`
	CreatedMS int64  `json:"created_ms"` // unix milliseconds, from the wall clock of the leader at that time
	// Replaces is the index of the same name that this one is to replace with other slices (a split). When this one is
	// READY it takes over the name, and the other one is dropped. Until then the name does not resolve to it. 0: none.
	Replaces ID `json:"replaces,omitempty"`
	// Origin, for an index that was split, is the index of that name that CREATE INDEX made. Subscribers identify the
	// index by that id, before and after the split. 0: its own id.
	Origin ID `json:"origin,omitempty"`
	// SplitFailed is why the last split of the index failed, "" if it did not.
	SplitFailed string `json:"split_failed,omitempty"`
	// SplitCause, for an index that Replaces another, is why that one is split automatically; "" if a user requested it.
	SplitCause string `json:"split_cause,omitempty"`
	// AutoSplitOff disables automatic splits and merges of the index.
	AutoSplitOff bool `json:"auto_split_off,omitempty"`
	// RequestedPartitions is the number of slices that the user requested, if the index was split automatically since.
	// 0: it has as many as requested.
	RequestedPartitions uint16 `json:"requested_partitions,omitempty"`
	ModifiedCAS         uint64 `json:"modified_cas"` // cas of the last change of this object: its ETag
}

// First returns the id by which subscribers identify the index. A split does not change it.
func (d *Definition) First() ID {
	if d.Origin != 0 {
		return d.Origin
	}
	return d.ID
}

// LeastPartitions returns the minimum number of slices after automatic merges: the number that the user requested.
func (d *Definition) LeastPartitions() uint16 {
	if d.RequestedPartitions != 0 {
		return d.RequestedPartitions
	}
	return d.Partitions
}

// DefaultCollection is the name of the scope that every bucket has, and of the default collection in it.
const DefaultCollection = "_default"

// Member is a collection of a bucket, by its names and, once the index exists, by the id that they had then. A
// collection that was dropped and created again has another id, and is another collection. The zero value is the
// default collection.
type Member struct {
	Scope      string `json:"scope,omitempty"`
	Collection string `json:"collection,omitempty"`
	ID         uint32 `json:"collection_id,omitempty"`
	// Manifest is the uid of the manifest in which the id was found; earlier manifests may lack the collection.
	Manifest uint64 `json:"manifest_uid,omitempty"`
}

// IsZero reports whether m is the default collection.
func (m Member) IsZero() bool { return m == Member{} }

// Keyspace is the location of the documents of an index: a bucket, and the names of a collection unless it is the
// default one.
type Keyspace struct{ Bucket, Scope, Collection string }

// KeyspaceOf returns the keyspace in canonical form: the default collection has no names.
func KeyspaceOf(bucket, scope, collection string) Keyspace {
	k := Keyspace{bucket, scope, collection}
	if scope == DefaultCollection && collection == DefaultCollection {
		k.Scope, k.Collection = "", ""
	}
	return k
}

// InBucket returns the default collection of a bucket.
func InBucket(bucket string) Keyspace { return Keyspace{Bucket: bucket} }

// IsDefault reports whether k is the default collection.
func (k Keyspace) IsDefault() bool { return k.Scope == "" && k.Collection == "" }

// String returns the form for people: bucket, or bucket.scope.collection.
func (k Keyspace) String() string {
	if k.IsDefault() {
		return k.Bucket
	}
	return k.Bucket + "." + k.Scope + "." + k.Collection
}

// Member returns the collection by its names.
func (k Keyspace) Member() Member { return Member{Scope: k.Scope, Collection: k.Collection} }

// Keyspaces returns the possible meanings of a text: a bucket, whose name may contain dots, and then a collection of
// a bucket.
func Keyspaces(text string) []Keyspace {
	all := []Keyspace{InBucket(text)}
	if parts := strings.Split(text, "."); len(parts) > 2 {
		n := len(parts)
		all = append(all, KeyspaceOf(strings.Join(parts[:n-2], "."), parts[n-2], parts[n-1]))
	}
	return all
}

// Keyspace returns the location of the documents of the index.
func (d *Definition) Keyspace() Keyspace {
	return Keyspace{d.Bucket, d.Member.Scope, d.Member.Collection}
}

// ReasonCollectionGone is the prefix of the reason of an index whose collection was dropped. The index stays in state
// error until it is dropped.
const ReasonCollectionGone = "COLLECTION_GONE: "

// CollectionGone reports whether the index is in state error because its collection was dropped.
func (d *Definition) CollectionGone() bool {
	return d.State == Error && strings.HasPrefix(d.Reason, ReasonCollectionGone)
}

// ReasonCannotEvaluate is the prefix of the reason of an index that a projector cannot evaluate. The index is rebuilt
// automatically as soon as all projectors can.
const ReasonCannotEvaluate = "CANNOT_EVALUATE: "

// CannotEvaluate reports whether the index is in state error because a projector cannot evaluate it.
func (d *Definition) CannotEvaluate() bool {
	return d.State == Error && strings.HasPrefix(d.Reason, ReasonCannotEvaluate)
}

// Desc returns the direction of each key component, in the form that package collate expects. A primary index has one
// ascending component.
func (d *Definition) Desc() []bool {
	if d.IsPrimary {
		return []bool{false}
	}
	desc := make([]bool, len(d.Keys))
	for i, k := range d.Keys {
		desc[i] = k.Desc
	}
	return desc
}

// State is the state of an index. Its text in the API is that of the requirements, except for Maintenance: "ready".
type State uint8

// The states of the index state machine (docs/architecture.md, "States of an index").
const (
	Pending     State = iota + 1 // replicated, being prepared; if Deferred: waits for BUILD
	Backfill                     // being built
	Maintenance                  // "ready": kept current, serves scans
	Dropping                     // being removed from its hosts
	Error                        // stopped, see Definition.Reason
)

var (
	// ErrTransition is wrapped if a state may not follow another.
	ErrTransition = errors.New("illegal index state transition")
	// ErrState is wrapped if a text is not the name of a state.
	ErrState = errors.New("unknown index state")
)

// next returns the states that may follow s. It is the whole state machine.
func (s State) next() []State {
	switch s {
	case Pending:
		return []State{Backfill, Dropping, Error}
	case Backfill:
		return []State{Maintenance, Dropping, Error, Pending}
	case Maintenance:
		return []State{Dropping, Error, Backfill}
	case Error:
		return []State{Pending, Backfill, Dropping}
	case Dropping:
		return nil
	}
	return nil
}

// CheckTransition returns an error wrapping ErrTransition unless `to` may follow s. Every state may follow itself.
func (s State) CheckTransition(to State) error {
	if s == to {
		return nil
	}
	for _, n := range s.next() {
		if n == to {
			return nil
		}
	}
	return fmt.Errorf("%w: from %s to %s", ErrTransition, s, to)
}

// Active reports whether projectors evaluate an index in this state (PR-16).
func (s State) Active() bool { return s == Backfill || s == Maintenance }

// ToBeReady reports whether an index in this state is on its way to ready.
func (s State) ToBeReady() bool { return s == Pending || s == Backfill }

// String returns the word used in the API.
func (s State) String() string {
	switch s {
	case Pending:
		return "pending"
	case Backfill:
		return "backfill"
	case Maintenance:
		return "ready"
	case Dropping:
		return "dropping"
	case Error:
		return "error"
	}
	return "state(" + strconv.Itoa(int(s)) + ")"
}

// ParseState parses the result of String.
func ParseState(s string) (State, error) {
	for _, st := range []State{Pending, Backfill, Maintenance, Dropping, Error} {
		if st.String() == s {
			return st, nil
		}
	}
	return 0, fmt.Errorf("%w: %q", ErrState, s)
}

// MarshalText encodes the state as its word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText decodes what MarshalText returned.
func (s *State) UnmarshalText(b []byte) (err error) {
	*s, err = ParseState(string(b))
	return err
}
