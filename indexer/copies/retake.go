package copies

import (
	"context"

	"tidemark/index"
	"tidemark/indexer/storage"
)

// Retake implements verify.Bucket.
func (k *Bucket) Retake(ctx context.Context, id index.CopyID, vb int, stray []storage.Row, elsewhere bool) error {
	err := k.do(ctx, func() { k.retake(id, vb, stray, elsewhere) })
	k.node.Sides()
	return err
}

// Owners implements verify.Bucket.
func (k *Bucket) Owners(ctx context.Context) (owners []index.ProjectorID, err error) {
	err = k.do(ctx, func() {
		for vb := range k.vbuckets {
			owners = append(owners, k.st.Owner(vb))
		}
	})
	return owners, err
}

// Name implements verify.Bucket, and so do UUID and VBuckets.
func (k *Bucket) Name() string { return k.name }

// UUID is that of the bucket in KV.
func (k *Bucket) UUID() string { return k.uuid }

// VBuckets is how many it has.
func (k *Bucket) VBuckets() int { return k.vbuckets }

// retake lets a vbucket of a copy be taken anew, without rows that should not be there. elsewhere: scans have another
// copy, and shall see nothing of this one until it is right. It runs in the loop; false: the vbucket goes back or joins
// just now, and its next turn tells.
func (k *Bucket) retake(id index.CopyID, vb int, stray []storage.Row, elsewhere bool) bool {
	if !k.st.Retake(id, vb) {
		return false
	}
	k.wrong.found(id, vb, stray)
	k.node.Metrics.retaken.Inc()
	if elsewhere {
		k.node.Snapshots.Doubt(id)
	}
	return true
}
