package core

import (
	"time"

	"tidemark/index"
)

// Stored is a copy as a node has it on its disk.
type Stored struct {
	Copy       index.CopyID
	Index      index.ID
	CreatedMS  int64 // of the index
	BucketUUID string
	VBuckets   int
}

// Is reports whether a stored copy is a wanted one: ids of copies are not used again within an epoch, but a lost
// majority may make them begin again lower.
func (w *Wanted) Is(s Stored) bool {
	return w.Index.ID == s.Index && s.CreatedMS == w.Index.CreatedMS &&
		w.Bucket.UUID == s.BucketUUID && w.Bucket.VBuckets == s.VBuckets
}

// Fate is what becomes of a copy that is on a node's disk when a list of definitions is taken over.
type Fate uint8

// Fates.
const (
	Stays    Fate = iota // it is wanted
	Goes                 // a commit took it away: it is dropped
	Orphaned             // nobody here knows why it is not wanted: it is kept for now, neither served nor fed
)

// FateOf says what becomes of a copy; want are the copies that the list places here, named those of the list that it
// follows, nil where it follows none (see Lists.Follows).
func FateOf(s Stored, want, named map[index.CopyID]Wanted) Fate {
	if _, ok := want[s.Copy]; ok {
		return Stays
	}
	if w, ok := named[s.Copy]; ok && w.Is(s) {
		return Goes
	}
	return Orphaned
}

// Orphan is a copy that no list of an epoch has named since it was found.
type Orphan struct {
	Index index.ID
	Epoch uint64
	Found time.Time // by this process, under that epoch
}

// Left is the rest of its grace; 0: it is over, less: it never is.
func (o *Orphan) Left(grace time.Duration, now time.Time) time.Duration {
	if grace < 0 {
		return -1
	}
	return max(grace-now.Sub(o.Found), 0)
}

// Due reports whether the leader of an epoch, which does not place it, may have it dropped as a copy of an index.
func (o *Orphan) Due(of index.ID, epoch uint64, grace time.Duration, now time.Time) bool {
	return o.Index == of && o.Epoch == epoch && o.Left(grace, now) == 0
}
