package coordinator

import (
	"tidemark/streams"
)

// beginRollback notes that a bucket has to be rolled back, once.
func (l *leader) beginRollback(b *bucket, d streams.Divergence) {
	if b.complained == d.Reason {
		return
	}
	b.complained = d.Reason
	l.log.Error("the bucket must be rolled back", "bucket", b.name, "vbucket", d.VBucket, "reason", d.Reason)
}
