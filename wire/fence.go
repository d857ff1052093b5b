// Package wire holds the messages between managers, projectors and indexers, and the fence that every command carries.
// docs/protocol.md lists which message goes where.
//
// The messages are plain values with one meaning each. Bodies travel as CBOR (compact, vectors as varints) or, for
// human readers, as JSON with the same names (package internal/rpc). Readers ignore unknown fields, so that a field
// may be added without a new format. FormatVersion rises only if the meaning of an existing field changes.
package wire

import (
	"errors"
	"fmt"

	"tidemark/errcode"
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
	// Boot is the boot id of the process that the command is meant for: at the address of a component that has ended,
	// another one may listen. It is empty in a fence that a receiver keeps.
	Boot string `json:"boot,omitempty"`
}

var (
	// ErrFenced is wrapped if a command comes from a deposed leader or was overtaken by a later one.
	ErrFenced = errors.New("fenced: a newer leader or a newer command was already accepted")
	// ErrForeignCluster is wrapped if a command comes from another cluster.
	ErrForeignCluster = errors.New("command of another cluster")
)

// MeantFor returns a refusal with errcode.AnotherProcess if a request that names the boot id meant was received by a
// process with another one. A request that names none is for any process.
func MeantFor(meant, boot string) error {
	if meant == "" || meant == boot {
		return nil
	}
	return errcode.Refuse(errcode.AnotherProcess, "the request is meant for the process with boot id %.64q, this one has "+
		"%q", meant, boot)
}

// Admit checks the fence f of a command against h, the highest fence seen by the process with this boot id, and returns
// the new highest one. The zero value of h accepts any cluster. Errors wrap ErrForeignCluster, ErrFenced or
// errcode.AnotherProcess.
func (h Fence) Admit(boot string, f Fence) (Fence, error) {
	if f.ClusterID == "" || h.ClusterID != "" && h.ClusterID != f.ClusterID {
		return h, fmt.Errorf("%w: the command is from cluster %q, this component belongs to "+
			"%q", ErrForeignCluster, f.ClusterID, h.ClusterID)
	}
	if err := MeantFor(f.Boot, boot); err != nil {
		return h, err
	}
	f.Boot = ""
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

// Leader identifies the leading manager, which coordinates.
type Leader struct {
	ID   string `json:"id"`
	REST string `json:"rest"` // base URL
	Term uint64 `json:"term"`
}

// StabilityRef identifies a stability timestamp and its bucket.
type StabilityRef struct {
	Bucket string `json:"bucket"`
	timestamp.Ref
}

// BucketStability is a stability timestamp with the name of its bucket, as published to indexers (IM-15).
type BucketStability struct {
	Bucket string `json:"bucket"`
	timestamp.Stability
}

// Named returns the reference of s.
func (s *BucketStability) Named() StabilityRef { return StabilityRef{Bucket: s.Bucket, Ref: s.Ref} }

// Ack is an indexer's answer to a stability timestamp (IM-17): its outcome in the copies that serve scans. Exceptions
// names the copies whose outcome differs from Made.
type Ack struct {
	StabilityRef
	Made       bool           `json:"made"` // a snapshot at exactly this timestamp exists; false: skipped
	Exceptions []index.CopyID `json:"exceptions,omitempty"`
}
