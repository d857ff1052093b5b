package gocb

import (
	"errors"
	"fmt"

	"github.com/couchbase/gocbcore/v10"

	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// What a node counts for a message besides key and value: header, extras, and the prefix of the default collection.
const (
	markerBytes   = mcbp.HeaderSize + 20
	mutationBytes = mcbp.HeaderSize + 31 + 1
	deletionBytes = mcbp.HeaderSize + 21 + 1
	otherBytes    = mcbp.HeaderSize + 13
)

// SnapshotMarker is called by gocbcore, like the methods below.
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

// Expiration queues the removal of a document that has expired.
func (s *stream) Expiration(m gocbcore.DcpExpiration) {
	e := feed.Event{Kind: feed.Expiration, Seqno: m.SeqNo, RevSeqno: m.RevNo, CAS: m.Cas, Collection: m.CollectionID,
		Key: m.Key}
	s.c.add(s, e, deletionBytes+len(m.Key), true)
}

// End queues the end that the node has sent. Any other end is that of the connection.
func (s *stream) End(_ gocbcore.DcpStreamEnd, err error) {
	reason, known := endReason(err)
	s.unregister()
	c := s.c
	c.mu.Lock()
	dropped := s.abandoned
	c.mu.Unlock()
	switch {
	case dropped:
	case known:
		c.add(s, feed.Event{Kind: feed.StreamEnd, EndReason: reason}, mcbp.HeaderSize+4, false)
	default:
		c.fail(fmt.Errorf("%w: DCP connection %q to %s: %w", feed.ErrClosed, c.conf.Name, c.conf.Addr, err))
	}
}

// endReason returns the reason of an end that the node has sent; false if the end does not come from the node.
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

// OSOSnapshot queues the bracket of an out-of-order snapshot, which is never requested.
func (s *stream) OSOSnapshot(m gocbcore.DcpOSOSnapshot) {
	s.c.add(s, feed.Event{Kind: feed.OSO, Flags: m.SnapshotType}, otherBytes, false)
}

// system queues a system event, of which only the seqno matters.
func (s *stream) system(event uint32, seqno uint64, key []byte) {
	s.collection(event, seqno, key, false)
}

// collection queues a system event about a collection.
func (s *stream) collection(event uint32, seqno uint64, key []byte, emptiesDefault bool) {
	s.c.add(s, feed.Event{Kind: feed.SystemEvent, Flags: event, Seqno: seqno, Key: key, EmptiesDefault: emptiesDefault},
		otherBytes+len(key), false)
}

// The system events, by their numbers in the protocol.

// CreateCollection queues the first of the system events; the others follow.
func (s *stream) CreateCollection(m gocbcore.DcpCollectionCreation) {
	s.collection(0, m.SeqNo, m.Key, m.CollectionID == 0)
}

// DeleteCollection queues that a collection was dropped.
func (s *stream) DeleteCollection(m gocbcore.DcpCollectionDeletion) {
	s.collection(1, m.SeqNo, nil, m.CollectionID == 0)
}

// FlushCollection queues that a collection was emptied.
func (s *stream) FlushCollection(m gocbcore.DcpCollectionFlush) {
	s.collection(2, m.SeqNo, nil, m.CollectionID == 0)
}

// CreateScope queues that a scope was created.
func (s *stream) CreateScope(m gocbcore.DcpScopeCreation) { s.system(3, m.SeqNo, m.Key) }

// DeleteScope queues that a scope was dropped.
func (s *stream) DeleteScope(m gocbcore.DcpScopeDeletion) { s.system(4, m.SeqNo, nil) }

// ModifyCollection queues that a collection's properties were changed.
func (s *stream) ModifyCollection(m gocbcore.DcpCollectionModification) { s.system(5, m.SeqNo, nil) }
