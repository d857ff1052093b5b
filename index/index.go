// Package index holds the nouns that every other package speaks of: index definitions, the ids of indexes, copies,
// nodes and projectors, the incarnation of a stream, and the index state machine (IM-3).
//
// It promises that every type is a plain value: comparable where it is an id, and with a JSON form in which ids that
// may pass 2^53 are strings. It never does I/O and decides nothing but which state may follow which.
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

// ID identifies an index for ever; it is never reused, also not by an index of the same name. Source: IM-3.
type ID uint64

// CopyID identifies one placement of one slice (index, slice, replica, node). It is never reused, and it is the name of
// the folder that holds the copy, so that a re-created index or a slice that moved back is never mixed up with an older
// one.
type CopyID uint64

// NodeID is an indexer's number, 0 to MaxNodeID (IM-1, PR-14: the topic id of its catchup stream).
type NodeID uint8

// MaxNodeID is the highest NodeID; 251 to 255 are topic ids of shared streams (PR-14).
const MaxNodeID NodeID = 250

// ProjectorID is the configured name of a projector.
type ProjectorID string

// SliceID is the number of a slice within its index, 0 to Partitions-1.
type SliceID uint16

// AllSlices in a statement means every slice of the index that the receiver hosts (UpsertDeletion).
const AllSlices SliceID = 0xFFFF

// String returns the decimal form.
func (id ID) String() string { return strconv.FormatUint(uint64(id), 10) }

// String returns the decimal form.
func (id CopyID) String() string { return strconv.FormatUint(uint64(id), 10) }

// ParseID reads the decimal form of an index id.
func ParseID(s string) (ID, error) {
	u, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("index id %q: want a decimal number", s)
	}
	return ID(u), nil
}

// MarshalText makes the JSON form a string.
func (id ID) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(id), 10), nil }

// UnmarshalText reads what MarshalText wrote.
func (id *ID) UnmarshalText(b []byte) error {
	u, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("index id %q: want a decimal number", b)
	}
	*id = ID(u)
	return nil
}

// MarshalText makes the JSON form a string.
func (id CopyID) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(id), 10), nil }

// UnmarshalText reads what MarshalText wrote.
func (id *CopyID) UnmarshalText(b []byte) error {
	u, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("copy id %q: want a decimal number", b)
	}
	*id = CopyID(u)
	return nil
}

// Incarnation orders the attempts at one vbucket's stream: epoch, then Raft term, then counter. Everything that a
// stream carries belongs to one; an older one is dropped by indexers and by the coordinator
// (docs/timestamps.md, "The vbucket ledger").
type Incarnation struct {
	Epoch   uint64 `json:"epoch"`
	Term    uint64 `json:"term"`
	Counter uint64 `json:"counter"`
}

// Compare is negative, zero or positive as i is older than, equal to or newer than o.
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

// IsZero reports whether this is no incarnation at all.
func (i Incarnation) IsZero() bool { return i == Incarnation{} }

// String gives epoch.term.counter.
func (i Incarnation) String() string { return fmt.Sprintf("%d.%d.%d", i.Epoch, i.Term, i.Counter) }

func sign(more bool) int {
	if more {
		return 1
	}
	return -1
}

// KeyExpr is one component of a secondary key.
type KeyExpr struct {
	Expr string `json:"expr"`           // canonical text, as package expression prints it
	Desc bool   `json:"desc,omitempty"` // descending order
}

// Using names the storage of an index (IM-3). There is one: "ordered".
type Using string

// UsingOrdered is the ordered store of package storage.
const UsingOrdered Using = "ordered"

// ExprType names the language of the expressions (IM-3). There is one: "n1ql".
type ExprType string

// ExprN1QL is the language of package expression.
const ExprN1QL ExprType = "n1ql"

// PartitionScheme says what spreads the entries of an index over its slices.
type PartitionScheme string

// The schemes. No scheme is by a hash of the document's id.
const (
	PartitionHash  PartitionScheme = "hash"  // by a hash of components of the key
	PartitionRange PartitionScheme = "range" // by where the leading component of the key stands between values
)

// PartitionBy says how the entries of an index are spread over its slices (RT-2). The zero value: by a hash of the
// document's id.
type PartitionBy struct {
	Scheme PartitionScheme `json:"scheme"`
	// canonical text, each a key expression of the index; of range the leading one
	Exprs []string `json:"expressions"`
	// Values, of range: JSON values in ascending order, one less than there are slices. A slice holds what stands from one
	// value (included) to the next (excluded).
	Values []json.RawMessage `json:"values,omitempty"`
}

// IsZero tells that the entries are spread by the document's id.
func (p *PartitionBy) IsZero() bool { return p.Scheme == "" && len(p.Exprs) == 0 && len(p.Values) == 0 }

// Equal reports whether both say the same.
func (p *PartitionBy) Equal(o *PartitionBy) bool {
	return p.Scheme == o.Scheme && slices.Equal(p.Exprs, o.Exprs) && slices.EqualFunc(p.Values, o.Values, sameJSON)
}

// sameJSON compares texts but for the space between their parts, which answers for people have more of.
func sameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// Definition is an index as the user asked for it and what has become of it (IM-3).
type Definition struct {
	ID          ID          `json:"id"`
	Name        string      `json:"name"`
	Bucket      string      `json:"bucket"`
	BucketUUID  string      `json:"bucket_uuid"`
	Member      Member      `json:"member,omitzero"` // of the bucket: the collection that the documents are in
	State       State       `json:"state"`
	Reason      string      `json:"reason,omitempty"` // of state error: a code and what to do
	Deferred    bool        `json:"deferred,omitempty"`
	Using       Using       `json:"using"`
	ExprType    ExprType    `json:"expr_type"`
	IsPrimary   bool        `json:"is_primary"`
	Keys        []KeyExpr   `json:"keys,omitempty"`
	Where       string      `json:"where,omitempty"`
	PartitionBy PartitionBy `json:"partition_by,omitzero"`
	Partitions  uint16      `json:"num_partition"`
	Replicas    uint8       `json:"num_replica"`     // copies of each slice beside the first
	Nodes       []string    `json:"nodes,omitempty"` // uuids or names of indexers that may hold it; empty = any
	Statement   string      `json:"definition"`      // canonical DDL text
	// lowest version of expression.Rules by which entries were made; 0: not recorded
	Rules     uint32 `json:"expression_rules,omitempty"`
	CreatedMS int64  `json:"created_ms"` // unix milliseconds, by the wall clock of the leader then
	// Replaces is the index of the same name that this one is built for, with other slices (a split): when it is READY the
	// name is its, and that one is dropped. Until then no name leads to it. 0: of no other.
	Replaces ID `json:"replaces,omitempty"`
	// Origin, of an index that was split, is the one of that name which CREATE INDEX made: subscribers know it by that id,
	// before and after. 0: by its own.
	Origin ID `json:"origin,omitempty"`
	// SplitFailed is why the newest split of the index came to nothing, "" where it did not.
	SplitFailed string `json:"split_failed,omitempty"`
	// SplitCause, of an index that Replaces another, is why that is split by itself; "" where somebody asked for it.
	SplitCause string `json:"split_cause,omitempty"`
	// AutoSplitOff tells that it gets more or fewer slices only when somebody asks for them.
	AutoSplitOff bool `json:"auto_split_off,omitempty"`
	// AskedPartitions is how many slices were asked for, of an index that has more since it was split by itself; 0: as
	// many as it has.
	AskedPartitions uint16 `json:"asked_partitions,omitempty"`
	ModifiedCAS     uint64 `json:"modified_cas"` // cas of the newest change of this object: its ETag
}

// First is the id by which subscribers know the index: no split changes it.
func (d *Definition) First() ID {
	if d.Origin != 0 {
		return d.Origin
	}
	return d.ID
}

// LeastPartitions is how many slices the index keeps, whatever is merged by itself: those that were asked for.
func (d *Definition) LeastPartitions() uint16 {
	if d.AskedPartitions != 0 {
		return d.AskedPartitions
	}
	return d.Partitions
}

// DefaultCollection is the name of the scope that every bucket has, and of the collection in it.
const DefaultCollection = "_default"

// Member is a collection of a bucket by its names, and, once the index is made, by the id that these had then: a
// collection that is dropped and made again has another one, and is another one. The zero value is the default
// collection.
type Member struct {
	Scope      string `json:"scope,omitempty"`
	Collection string `json:"collection,omitempty"`
	ID         uint32 `json:"collection_id,omitempty"`
	// Manifest is the uid of the manifest in which the id was found; an earlier one says nothing of it.
	Manifest uint64 `json:"manifest_uid,omitempty"`
}

// IsZero tells the default collection.
func (m Member) IsZero() bool { return m == Member{} }

// Keyspace is where the documents of an index are: a bucket, and the names of a collection unless it is the default
// one.
type Keyspace struct{ Bucket, Scope, Collection string }

// KeyspaceOf gives a keyspace its one form: the default collection has no names.
func KeyspaceOf(bucket, scope, collection string) Keyspace {
	k := Keyspace{bucket, scope, collection}
	if scope == DefaultCollection && collection == DefaultCollection {
		k.Scope, k.Collection = "", ""
	}
	return k
}

// InBucket is the default collection of a bucket.
func InBucket(bucket string) Keyspace { return Keyspace{Bucket: bucket} }

// IsDefault reports whether it is the default collection.
func (k Keyspace) IsDefault() bool { return k.Scope == "" && k.Collection == "" }

// String is what people read: bucket, or bucket.scope.collection.
func (k Keyspace) String() string {
	if k.IsDefault() {
		return k.Bucket
	}
	return k.Bucket + "." + k.Scope + "." + k.Collection
}

// Member is the collection by its names.
func (k Keyspace) Member() Member { return Member{Scope: k.Scope, Collection: k.Collection} }

// Keyspaces are what a text may mean: a bucket, whose name may have points, then a collection of one.
func Keyspaces(text string) []Keyspace {
	all := []Keyspace{InBucket(text)}
	if parts := strings.Split(text, "."); len(parts) > 2 {
		n := len(parts)
		all = append(all, KeyspaceOf(strings.Join(parts[:n-2], "."), parts[n-2], parts[n-1]))
	}
	return all
}

// Keyspace is where the documents of the index are.
func (d *Definition) Keyspace() Keyspace {
	return Keyspace{d.Bucket, d.Member.Scope, d.Member.Collection}
}

// ReasonCollectionGone begins the reason of an index whose collection was dropped. It stays so until it is dropped.
const ReasonCollectionGone = "COLLECTION_GONE: "

// CollectionGone tells an index in state error because its collection was dropped.
func (d *Definition) CollectionGone() bool {
	return d.State == Error && strings.HasPrefix(d.Reason, ReasonCollectionGone)
}

// ReasonCannotEvaluate begins the reason of an index that a projector cannot evaluate. Such an index is built again by
// itself when all projectors can.
const ReasonCannotEvaluate = "CANNOT_EVALUATE: "

// CannotEvaluate tells an index in state error because a projector cannot evaluate it.
func (d *Definition) CannotEvaluate() bool {
	return d.State == Error && strings.HasPrefix(d.Reason, ReasonCannotEvaluate)
}

// Desc returns the direction of each key component, as package collate wants it. A primary index has one ascending one.
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

// State of an index. Its text, which people and programs see, is that of the seeds but for Maintenance: "ready".
type State uint8

// The states of the index state machine (docs/architecture.md, "States of an index").
const (
	Pending     State = iota + 1 // replicated, being prepared; with Deferred: waits for BUILD
	Backfill                     // being built
	Maintenance                  // "ready": kept current, answers scans
	Dropping                     // being removed from its hosts
	Error                        // stopped, see Definition.Reason
)

var (
	// ErrTransition is wrapped when a state may not follow another.
	ErrTransition = errors.New("illegal index state transition")
	// ErrState is wrapped when a text names no state.
	ErrState = errors.New("unknown index state")
)

// next is the whole state machine: which states may follow which.
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

// CheckTransition returns an error wrapping ErrTransition unless `to` may follow s. Staying is always legal.
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

// ToBeReady reports whether an index in this state is not ready yet, and is on its way to be.
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

// ParseState reads what String gives.
func ParseState(s string) (State, error) {
	for _, st := range []State{Pending, Backfill, Maintenance, Dropping, Error} {
		if st.String() == s {
			return st, nil
		}
	}
	return 0, fmt.Errorf("%w: %q", ErrState, s)
}

// MarshalText makes the JSON form the word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *State) UnmarshalText(b []byte) (err error) {
	*s, err = ParseState(string(b))
	return err
}
