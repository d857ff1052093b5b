package core

import (
	"time"

	"tidemark/index"
)

// Stored describes a copy on the node's disk.
type Stored struct {
	Copy       index.CopyID
	Index      index.ID
	CreatedMS  int64 // creation time of the index
	BucketUUID string
	VBuckets   int
}

// Is reports whether s is this wanted copy. The id alone does not prove it: ids are not reused within an epoch, but
// after the loss of a majority they may start again lower.
func (w *Wanted) Is(s Stored) bool {
	return w.Index.ID == s.Index && s.CreatedMS == w.Index.CreatedMS &&
		w.Bucket.UUID == s.BucketUUID && w.Bucket.VBuckets == s.VBuckets
}

// Fate is what happens to a copy on disk when the node takes over a list of definitions.
type Fate uint8

// Fates.
const (
	Stays Fate = iota // it stays: the list places it here
	Goes              // a commit removed it: the node drops it
	// the reason for its absence from the list is unknown: the node keeps it for a grace period and neither serves
	// nor feeds it
	Orphaned
)

// FateOf returns the fate of a copy. want holds the copies that the new list places here; named those of the list
// that it follows, nil if it follows none (see Lists.Follows).
func FateOf(s Stored, want, named map[index.CopyID]Wanted) Fate {
	if _, ok := want[s.Copy]; ok {
		return Stays
	}
	if w, ok := named[s.Copy]; ok && w.Is(s) {
		return Goes
	}
	return Orphaned
}

// Orphan is a copy that no list of the epoch has contained since this process found it.
type Orphan struct {
	Index index.ID
	Epoch uint64
	Found time.Time // by this process, under that epoch
}

// Left returns the rest of the grace period: 0 if it is over, negative if it never ends.
func (o *Orphan) Left(grace time.Duration, now time.Time) time.Duration {
	if grace < 0 {
		return -1
	}
	return max(grace-now.Sub(o.Found), 0)
}

// Due reports whether a leader of the given epoch, which does not place the copy, may have it dropped as a copy of
// that index.
func (o *Orphan) Due(of index.ID, epoch uint64, grace time.Duration, now time.Time) bool {
	return o.Index == of && o.Epoch == epoch && o.Left(grace, now) == 0
}
