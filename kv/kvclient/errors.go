package kvclient

import (
	"errors"
	"fmt"

	"tidemark/kv/mcbp"
	"tidemark/wire"
)

// Errors of this package. They are wrapped with the operation and its target.
var (
	// ErrAuth: the node refused the user or the password, offers no acceptable mechanism, or could not prove that it
	// knows the password itself.
	ErrAuth = errors.New("kvclient: authentication failed")
	// ErrNoBucket: no such bucket, or this user may not open it.
	ErrNoBucket = errors.New("kvclient: no such bucket or no access to it")
	// ErrNoCollection: there is no such scope or collection, or not any more.
	ErrNoCollection = errors.New("kvclient: no such collection")
	// ErrNotMyVBucket: the node does not own the vbucket; ask the owner.
	ErrNotMyVBucket = errors.New("kvclient: node does not own the vbucket")
	// ErrTemporary: the node is busy, out of memory or warming up; retry later.
	ErrTemporary = errors.New("kvclient: temporary failure of the node")
	// ErrKeyNotFound: no document has this key.
	ErrKeyNotFound = errors.New("kvclient: key not found")
	// ErrKeyExists: a document has this key, or its CAS differs from the given one.
	ErrKeyExists = errors.New("kvclient: key exists or its CAS differs")
	// ErrTooBig: key or value exceed the protocol's limits.
	ErrTooBig = errors.New("kvclient: key or value too long")
	// ErrClosed: the connection or the client was closed, by us or by the node.
	ErrClosed = errors.New("kvclient: connection closed")
	// ErrSilent: an answer was due, and nothing moved on the connection for Options.OpTimeout. It wraps ErrClosed.
	ErrSilent = fmt.Errorf("%w", ErrClosed)
	// ErrAmbiguous: the answer to a write was lost and its retry was refused, so that the refusal may be the result of
	// the first attempt.
	ErrAmbiguous = errors.New("kvclient: unknown whether the write took effect")
	// ErrNoMap: no node returned a usable cluster map.
	ErrNoMap = errors.New("kvclient: no cluster map")
	// ErrNotSupported: the engine lacks a required feature.
	ErrNotSupported = errors.New("kvclient: the engine lacks a required feature")
	// ErrProtocol: the node sent something that the protocol does not permit.
	ErrProtocol = errors.New("kvclient: protocol violation")
)

// StatusError is an answer with a status other than success. errors.Is matches it with the sentinel error of its
// status.
type StatusError struct {
	Op     mcbp.Opcode
	Status mcbp.Status
	// Detail is the readable part of the body, cut to 200 bytes.
	Detail string
	// Config is the map in a NOT_MY_VBUCKET answer, if it is usable.
	Config *mcbp.ClusterConfig
}

// maxDetail bounds the part of an answer in an error message, in bytes.
const maxDetail = 200

// NewStatusError returns the error for an answer; nil for success.
func NewStatusError(f mcbp.Frame) error {
	if f.Status() == mcbp.StatusOK {
		return nil
	}
	e := &StatusError{Op: f.Op, Status: f.Status()}
	if e.Status == mcbp.StatusNotMyVBucket {
		if c, err := mcbp.ParseClusterConfig(f.Value); err == nil {
			e.Config = c
		}
		return e
	}
	e.Detail = printable(f.Value)
	return e
}

// Error returns the operation, the status, the node's text and advice.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("kvclient: %v answered %v", e.Op, e.Status)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if a := e.advice(); a != "" {
		text += "; " + a
	}
	return text
}

// advice returns what to do about the error; "" if there is nothing to do.
func (e *StatusError) advice() string {
	switch {
	case e.Is(ErrAuth) && e.Status == mcbp.StatusNoAccess:
		return "the user lacks the right: for DCP and statistics see docs/couchbase.md"
	case e.Is(ErrAuth):
		return "check the user and the password"
	case e.Is(ErrNoBucket):
		return "check the bucket's name, that it was not deleted, and that the user may read it"
	case e.Is(ErrNoCollection):
		return "check the names of scope and collection, and that they were not dropped"
	case e.Is(ErrTemporary) && e.Status != mcbp.StatusLocked:
		return "the node is warming up, is short of memory or cannot write its disk: try again"
	case e.Is(ErrNotSupported):
		return "the engine is too old, or does not support it"
	}
	return ""
}

// Is maps the status to the package's sentinels.
func (e *StatusError) Is(target error) bool {
	switch e.Status {
	case mcbp.StatusKeyNotFound:
		switch e.Op {
		case mcbp.OpSelectBucket:
			return target == ErrNoBucket
		case mcbp.OpGetClusterConfig: // the engine has not received a map yet
			return target == ErrTemporary
		}
		return target == ErrKeyNotFound
	case mcbp.StatusKeyExists, mcbp.StatusNotStored:
		return target == ErrKeyExists
	case mcbp.StatusTooBig:
		return target == ErrTooBig
	case mcbp.StatusNotMyVBucket:
		return target == ErrNotMyVBucket
	case mcbp.StatusTemporary, mcbp.StatusNoMemory, mcbp.StatusBusy, mcbp.StatusLocked, mcbp.StatusNotInitialized,
		mcbp.StatusNoManifest, mcbp.StatusManifestAhead:
		return target == ErrTemporary
	case mcbp.StatusNoBucket:
		return target == ErrNoBucket
	case mcbp.StatusUnknownCollection, mcbp.StatusUnknownScope:
		return target == ErrNoCollection
	case mcbp.StatusNoAccess:
		if e.Op == mcbp.OpSelectBucket {
			return target == ErrNoBucket
		}
		return target == ErrAuth
	case mcbp.StatusAuthError, mcbp.StatusAuthStale:
		return target == ErrAuth
	case mcbp.StatusUnknownCommand, mcbp.StatusNotSupported:
		return target == ErrNotSupported
	}
	return false
}

// printable returns the part of a body for an error message. It is "" if the body is not text.
func printable(b []byte) string {
	for _, c := range b[:min(len(b), maxDetail)] {
		if c < 0x20 && c != '\n' && c != '\t' || c == 0x7f {
			return ""
		}
	}
	return wire.Cut(string(b[:min(len(b), maxDetail+1)]), maxDetail)
}
