package kvclient_test

import (
	"slices"
	"sync"

	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
)

// doc is a stored document; history has the values in order of arrival.
type doc struct {
	value   string
	flags   uint32
	cas     uint64
	history []string
}

// kvStore answers the document operations of a test server. fault is called for every request, and may answer with a
// status of its own.
type kvStore struct {
	mu     sync.Mutex
	docs   map[string]*doc
	seqno  map[uint16]uint64
	owned  map[uint16]bool // nil: all
	cas    uint64
	ops    int
	fault  func(f mcbp.Frame, n int) (status mcbp.Status, act action)
	config func() []byte // body of NOT_MY_VBUCKET
}

// action is what a fault does in addition to its status.
type action int

const (
	actNone   action = iota // continue
	actStatus               // answer with the status
	actDrop                 // close the connection before the operation
	actLose                 // do the operation, and close without an answer
	actMute                 // do nothing, and send nothing
)

func newStore() *kvStore {
	return &kvStore{docs: map[string]*doc{}, seqno: map[uint16]uint64{}}
}

// failing sets fault while requests may be in progress.
func (s *kvStore) failing(fault func(f mcbp.Frame, n int) (mcbp.Status, action)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

func (s *kvStore) handle(p *kvclienttest.Peer, f mcbp.Frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops++
	act, status := actNone, mcbp.StatusOK
	if s.fault != nil {
		status, act = s.fault(f, s.ops)
	}
	switch act {
	case actStatus:
		p.Reply(f, status, mcbp.Frame{})
		return true
	case actDrop:
		return false
	case actMute:
		return true
	}
	status, with := s.apply(f)
	if act == actLose {
		return false
	}
	p.Reply(f, status, with)
	return true
}

func (s *kvStore) apply(f mcbp.Frame) (mcbp.Status, mcbp.Frame) {
	switch f.Op {
	case mcbp.OpGetAllVBSeqnos:
		var v []byte
		for vb := range uint16(4) {
			if s.owned == nil || s.owned[vb] {
				v = mcbp.AppendVBSeqno(v, mcbp.VBucketSeqno{VBucket: vb, Seqno: s.seqno[vb]})
			}
		}
		return mcbp.StatusOK, mcbp.Frame{Value: v}
	case mcbp.OpGet, mcbp.OpSet, mcbp.OpAdd, mcbp.OpReplace, mcbp.OpDelete:
	default:
		return mcbp.StatusUnknownCommand, mcbp.Frame{}
	}
	if s.owned != nil && !s.owned[f.VBucket()] || f.VBucket() != mcbp.VBucket(f.Key, 4) {
		return mcbp.StatusNotMyVBucket, mcbp.Frame{Value: s.config()}
	}
	d := s.docs[string(f.Key)]
	switch {
	case f.Op == mcbp.OpAdd && d != nil:
		return mcbp.StatusKeyExists, mcbp.Frame{}
	case f.Op != mcbp.OpSet && f.Op != mcbp.OpAdd && d == nil:
		return mcbp.StatusKeyNotFound, mcbp.Frame{}
	case f.CAS != 0 && d == nil:
		return mcbp.StatusKeyNotFound, mcbp.Frame{}
	case f.CAS != 0 && d.cas != f.CAS:
		return mcbp.StatusKeyExists, mcbp.Frame{}
	case f.Op == mcbp.OpGet:
		return mcbp.StatusOK, mcbp.Frame{Header: mcbp.Header{CAS: d.cas}, Extras: mcbp.AppendGetReply(nil, d.flags),
			Value: []byte(d.value)}
	}
	s.cas++
	s.seqno[f.VBucket()]++
	out := mcbp.Frame{Header: mcbp.Header{CAS: s.cas}, Extras: mcbp.MutationToken{VBUUID: 100 + uint64(f.VBucket()),
		Seqno: s.seqno[f.VBucket()]}.AppendExtras(nil)}
	if f.Op == mcbp.OpDelete {
		delete(s.docs, string(f.Key))
		return mcbp.StatusOK, out
	}
	if d == nil {
		d = &doc{}
		s.docs[string(f.Key)] = d
	}
	ex, _ := mcbp.DecodeStore(f.Extras)
	d.value, d.flags, d.cas = string(f.Value), ex.Flags, s.cas
	d.history = append(d.history, d.value)
	return mcbp.StatusOK, out
}

func (s *kvStore) get(key string) (string, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.docs[key]; d != nil {
		return d.value, slices.Clone(d.history)
	}
	return "", nil
}
