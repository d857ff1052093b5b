package storage

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"tidemark/ingest"
	"tidemark/timestamp"
)

// Limits of what is stored. The limits on documents that users see are smaller and are enforced where keys are made.
const (
	MaxDocID      = 1 << 12   // bytes of a document id (the KV protocol has 250)
	MaxKey        = 1 << 20   // bytes of one collated key
	MaxBatchBytes = 512 << 20 // of keys and ids in one batch
)

// Update states the complete set of keys of one document in this slice as of Seqno. Without keys the document has no
// entry.
type Update struct {
	VBucket uint16
	DocID   []byte
	Seqno   uint64
	Keys    [][]byte // collated composite keys; each is self-delimiting; duplicates count once
}

// VBPosition is the position of a slice in one vbucket after a batch.
type VBPosition struct {
	VBucket  uint16
	Position ingest.Position
	Log      timestamp.FailoverLog // nil: unchanged
}

// Batch is what one flush applies, whole or not at all. When Flush returns, the caller may reuse the slices of the
// batch, except Common, and Timestamp together with it: these must not be modified any more.
type Batch struct {
	Updates   []Update
	Positions []VBPosition
	// Common, if set, has the positions of all vbuckets after the batch, and Positions is not used. Slices share it.
	// If no update changes anything, nothing is written: the slice takes these positions in memory, and KeepCommon
	// makes them durable.
	Common *ingest.Common
	// KeepTombstones reports for which vbuckets a document without keys keeps an entry in the back index, so that a
	// late event of a side stream cannot bring it back. Nil: none.
	KeepTombstones func(vbucket uint16) bool
	// Yields leaves a part of the memory to batches that do not yield: such a batch uses that part only after one
	// more memtable has been written.
	Yields bool
	// Timestamp is the stability timestamp that the slice holds exactly after this batch. Its zero value means that
	// the slice is between two of them.
	Timestamp timestamp.Vector
}

// check returns an error wrapping ErrInvalid if something in the batch cannot be stored.
func (b *Batch) check(vbuckets int) error {
	if err := b.checkUpdates(vbuckets); err != nil {
		return err
	}
	for i := range b.Positions {
		if v := b.Positions[i].VBucket; int(v) >= vbuckets {
			return fmt.Errorf("%w: position of vbucket %d, the bucket has %d", ErrInvalid, v, vbuckets)
		}
	}
	if c := b.Common; c != nil && (len(c.Positions) != vbuckets || len(c.Logs) != vbuckets) {
		return fmt.Errorf("%w: %d positions and %d logs, the bucket has %d vbuckets", ErrInvalid, len(c.Positions),
			len(c.Logs), vbuckets)
	}
	if n := b.Timestamp.Len(); n != 0 {
		if err := b.Timestamp.Check(vbuckets); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}

// checkUpdates checks the limits of documents, keys and the whole batch.
func (b *Batch) checkUpdates(vbuckets int) error {
	total := 0
	for i := range b.Updates {
		u := &b.Updates[i]
		switch {
		case int(u.VBucket) >= vbuckets:
			return fmt.Errorf("%w: update of vbucket %d, the bucket has %d", ErrInvalid, u.VBucket, vbuckets)
		case len(u.DocID) == 0 || len(u.DocID) > MaxDocID:
			return fmt.Errorf("%w: document id of %d bytes, want 1 to %d", ErrInvalid, len(u.DocID), MaxDocID)
		}
		total += len(u.DocID)
		for _, k := range u.Keys {
			if len(k) == 0 || len(k) > MaxKey {
				return fmt.Errorf("%w: key of %d bytes for document %q, want 1 to %d", ErrInvalid, len(k), u.DocID, MaxKey)
			}
			total += 2*len(k) + len(u.DocID)
		}
	}
	if total > MaxBatchBytes {
		return fmt.Errorf("%w: batch of %d bytes, want at most %d: split it", ErrInvalid, total, MaxBatchBytes)
	}
	return nil
}

// coalesce sorts the updates by (vbucket, document id) and keeps only the newest of each document. It reuses order.
func coalesce(order []*Update, updates []Update) []*Update {
	order = order[:0]
	for i := range updates {
		order = append(order, &updates[i])
	}
	slices.SortFunc(order, func(x, y *Update) int {
		if c := cmp.Compare(x.VBucket, y.VBucket); c != 0 {
			return c
		}
		if c := bytes.Compare(x.DocID, y.DocID); c != 0 {
			return c
		}
		return cmp.Compare(y.Seqno, x.Seqno)
	})
	return slices.CompactFunc(order, func(x, y *Update) bool {
		return x.VBucket == y.VBucket && bytes.Equal(x.DocID, y.DocID)
	})
}

// sortedSet returns the sorted keys without duplicates. It copies keys, which belongs to the caller, into dst.
func sortedSet(dst, keys [][]byte) [][]byte {
	dst = append(dst[:0], keys...)
	if len(dst) < 2 {
		return dst
	}
	slices.SortFunc(dst, bytes.Compare)
	return slices.CompactFunc(dst, bytes.Equal)
}
