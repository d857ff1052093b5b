package gocb

import (
	"errors"
	"fmt"

	"github.com/couchbase/gocbcore/v10"

	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// What a node counts of a message besides key and value: header, extras, and the prefix of the default collection.
const (
	markerBytes   = mcbp.HeaderSize + 20
	mutationBytes = mcbp.HeaderSize + 31 + 1
	deletionBytes = mcbp.HeaderSize + 21 + 1
	otherBytes    = mcbp.HeaderSize + 13
)

// SnapshotMarker is called by gocbcore, as are the following.
func (s *stream) SnapshotMarker(m gocbcore.DcpSnapshotMarker) {
	s.c.add(s, feed.Event{Kind: feed.SnapshotMarker, SnapStart: m.StartSeqNo, SnapEnd: m.EndSeqNo,
		SnapFlags: mcbp.SnapshotFlags(m.SnapshotType)}, markerBytes, false)
}

// Mutation queues a new version of a document.
func (s *stream) Mutation(m gocbcore.DcpMutation) {
	e := feed.Event{Kind: feed.Mutation, Seqno: m.SeqNo, RevSeqno: m.RevNo, CAS: m.Cas, Flags: m.Flags, Expiry: m.Expiry,
		Collection: m.CollectionID, Datatype: mcbp.Datatype(m.Datatype), Key: m.Key, Value: m.Value}
	e.Decode()
	s.c.add(s, e, mutationBytes+len(m.Key)+len(m.Value), true)
}

// Deletion queues the removal of a document.
func (s *stream) Deletion(m gocbcore.DcpDeletion) {
	e := feed.Event{Kind: feed.Deletion, Seqno: m.SeqNo, RevSeqno: m.RevNo, CAS: m.Cas,
		Collection: m.CollectionID, Datatype: mcbp.Datatype(m.Datatype), Key: m.Key, Value: m.Value}
	e.Decode()
	s.c.add(s, e, deletionBytes+len(m.Key)+len(m.Value), true)
}

// Expiration queues the removal of a document whose time is over.
func (s *stream) Expiration(m gocbcore.DcpExpiration) {
	e := feed.Event{Kind: feed.Expiration, Seqno: m.SeqNo, RevSeqno: m.RevNo, CAS: m.Cas, Collection: m.CollectionID,
		Key: m.Key}
	s.c.add(s, e, deletionBytes+len(m.Key), true)
}

// End queues the end that the node has said. Any other end is the connection's.
func (s *stream) End(_ gocbcore.DcpStreamEnd, err error) {
	reason, said := endReason(err)
	s.forget()
	c := s.c
	c.mu.Lock()
	dropped := s.abandoned
	c.mu.Unlock()
	switch {
	case dropped:
	case said:
		c.add(s, feed.Event{Kind: feed.StreamEnd, EndReason: reason}, mcbp.HeaderSize+4, false)
	default:
		c.fail(fmt.Errorf("%w: DCP connection %q to %s: %w", feed.ErrClosed, c.conf.Name, c.conf.Addr, err))
	}
}

// endReason is the code of an end that the node has said; false if it has said none.
func endReason(err error) (mcbp.EndReason, bool) {
	if err == nil {
		return mcbp.EndOK, true
	}
	for _, r := range []struct {
		of   error
		code mcbp.EndReason
	}{
		{gocbcore.ErrDCPStreamClosed, mcbp.EndClosed}, {gocbcore.ErrDCPStreamStateChanged, mcbp.EndStateChanged},
		{gocbcore.ErrDCPStreamDisconnected, mcbp.EndDisconnected}, {gocbcore.ErrDCPStreamTooSlow, mcbp.EndTooSlow},
		{gocbcore.ErrDCPBackfillFailed, mcbp.EndBackfillFailed}, {gocbcore.ErrDCPStreamFilterEmpty, mcbp.EndFilterEmpty},
	} {
		if errors.Is(err, r.of) {
			return r.code, true
		}
	}
	var code uint32
	if _, serr := fmt.Sscanf(err.Error(), "unknown stream close reason (%d)", &code); serr == nil {
		return mcbp.EndReason(code), true
	}
	return 0, false
}

// SeqNoAdvanced queues a seqno without an item.
func (s *stream) SeqNoAdvanced(m gocbcore.DcpSeqNoAdvanced) {
	s.c.add(s, feed.Event{Kind: feed.SeqnoAdvanced, Seqno: m.SeqNo}, otherBytes, false)
}

// OSOSnapshot queues the bracket of an out-of-order snapshot, which nobody has asked for.
func (s *stream) OSOSnapshot(m gocbcore.DcpOSOSnapshot) {
	s.c.add(s, feed.Event{Kind: feed.OSO, Flags: m.SnapshotType}, otherBytes, false)
}

// system queues a system event; of those only the seqno counts for us.
func (s *stream) system(event uint32, seqno uint64, key []byte) {
	s.collection(event, seqno, key, false)
}

// collection queues a system event about a collection.
func (s *stream) collection(event uint32, seqno uint64, key []byte, emptiesDefault bool) {
	s.c.add(s, feed.Event{Kind: feed.SystemEvent, Flags: event, Seqno: seqno, Key: key, EmptiesDefault: emptiesDefault},
		otherBytes+len(key), false)
}

// The system events, by their numbers in the protocol.

// CreateCollection is one of the system events, as are the following.
func (s *stream) CreateCollection(m gocbcore.DcpCollectionCreation) {
	s.collection(0, m.SeqNo, m.Key, m.CollectionID == 0)
}

// DeleteCollection says that a collection has gone.
func (s *stream) DeleteCollection(m gocbcore.DcpCollectionDeletion) {
	s.collection(1, m.SeqNo, nil, m.CollectionID == 0)
}

// FlushCollection says that a collection was emptied.
func (s *stream) FlushCollection(m gocbcore.DcpCollectionFlush) {
	s.collection(2, m.SeqNo, nil, m.CollectionID == 0)
}

// CreateScope says that a scope has come.
func (s *stream) CreateScope(m gocbcore.DcpScopeCreation) { s.system(3, m.SeqNo, m.Key) }

// DeleteScope says that a scope has gone.
func (s *stream) DeleteScope(m gocbcore.DcpScopeDeletion) { s.system(4, m.SeqNo, nil) }

// ModifyCollection says that a collection has other properties.
func (s *stream) ModifyCollection(m gocbcore.DcpCollectionModification) { s.system(5, m.SeqNo, nil) }
