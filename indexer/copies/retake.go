package copies

import (
	"context"
	"slices"

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

// retakeAgain asks again for what copies were to take anew when they went back. It runs in the loop. What cannot be
// asked for yet, as the vbucket goes back or nothing feeds it, is at one of the next looks.
func (k *Bucket) retakeAgain() {
	for _, s := range k.wrong.strays {
		if s.again && k.st.Retake(s.copy, s.vb) {
			k.wrong.found(s.copy, s.vb, s.rows)
			k.node.Sides()
		}
	}
}

// rowsGone takes over that a batch has deleted what was wrong, in the copies that it was written to.
func (k *Bucket) rowsGone(u *underway) {
	missed := u.missed()
	for _, s := range u.strays {
		if !slices.Contains(missed, s.copy) && k.wrong.gone(s) {
			k.node.Snapshots.Trust(s.copy)
		}
	}
}
