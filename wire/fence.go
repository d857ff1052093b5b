// Package wire holds the messages between managers, projectors and indexers, and the fence that every command carries.
// docs/protocol.md lists which message goes where.
//
// It promises plain values with one meaning each. Bodies travel as CBOR (compact, vectors as varints) or, for people,
// as JSON with the same names (package internal/rpc); readers ignore fields they do not know, so that a field may be
// added without a new format. FormatVersion rises only when the meaning of an existing field changes.
package wire

import (
	"errors"
	"fmt"

	"tidemark/index"
	"tidemark/timestamp"
)

// FormatVersion is sent with every request (header Tidemark-Format); a receiver refuses one it does not know.
const FormatVersion = 1

// Fence orders the commands of successive leaders: cluster id, epoch, Raft term and a counter per receiver
// (docs/architecture.md, "The control way"). A receiver refuses a lower one; an equal one is a retry and is accepted.
type Fence struct {
	ClusterID string `json:"cluster_id"`
	Epoch     uint64 `json:"epoch"`
	Term      uint64 `json:"term"`
	Counter   uint64 `json:"counter"`
}

var (
	// ErrFenced is wrapped when a command comes from a deposed leader or is overtaken by a later one.
	ErrFenced = errors.New("fenced: a newer leader or a newer command was seen")
	// ErrForeignCluster is wrapped when a command comes from another cluster.
	ErrForeignCluster = errors.New("command of another cluster")
)

// Admit checks a command's fence against the highest one seen (h, the zero value accepts any cluster) and gives the
// highest one from now on. Errors wrap ErrForeignCluster or ErrFenced.
func (h Fence) Admit(f Fence) (Fence, error) {
	if f.ClusterID == "" || h.ClusterID != "" && h.ClusterID != f.ClusterID {
		return h, fmt.Errorf("%w: from %q, this one belongs to %q", ErrForeignCluster, f.ClusterID, h.ClusterID)
	}
	if f.Less(h) {
		return h, fmt.Errorf("%w: got epoch %d term %d counter %d, highest epoch %d term %d counter %d", ErrFenced,
			f.Epoch, f.Term, f.Counter, h.Epoch, h.Term, h.Counter)
	}
	return f, nil
}

// Less reports whether f is older than h.
func (f Fence) Less(h Fence) bool {
	switch {
	case f.Epoch != h.Epoch:
		return f.Epoch < h.Epoch
	case f.Term != h.Term:
		return f.Term < h.Term
	}
	return f.Counter < h.Counter
}

// Leader says who coordinates.
type Leader struct {
	ID   string `json:"id"`
	REST string `json:"rest"` // base URL
	Term uint64 `json:"term"`
}

// StabilityRef names one stability timestamp of a bucket that is named, too.
type StabilityRef struct {
	Bucket string `json:"bucket"`
	timestamp.Ref
}

// BucketStability is a stability timestamp as published to indexers (IM-15): with the name of its bucket.
type BucketStability struct {
	Bucket string `json:"bucket"`
	timestamp.Stability
}

// Named returns the reference of s.
func (s *BucketStability) Named() StabilityRef { return StabilityRef{Bucket: s.Bucket, Ref: s.Ref} }

// Ack is an indexer's answer to a stability timestamp (IM-17): what became of it in the copies that serve scans.
// Exceptions name those whose outcome differs from Made.
type Ack struct {
	StabilityRef
	Made       bool           `json:"made"` // a snapshot at exactly this timestamp exists; false: skipped
	Exceptions []index.CopyID `json:"exceptions,omitempty"`
}
