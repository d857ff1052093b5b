package copies

import (
	"context"
	"slices"

	"tidemark/index"
	"tidemark/indexer/snapshots"
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
	k.wrong.found(id, vb, stray, elsewhere)
	k.node.Metrics.retaken.Inc()
	if elsewhere {
		k.letGo(k.node.Snapshots.Doubt(id))
	}
	return true
}

// retakeAgain asks again for what copies were to take anew when they went back. It runs in the loop. What cannot be
// asked for yet, as the vbucket goes back or nothing feeds it, is at one of the next looks.
func (k *Bucket) retakeAgain() {
	for _, s := range k.wrong.strays {
		if s.again && k.st.Retake(s.copy, s.vb) {
			k.wrong.found(s.copy, s.vb, s.rows, s.doubt)
			k.node.Sides()
		}
	}
}

// rowsGone takes over that a batch has deleted what was wrong, in the copies that it was written to.
func (k *Bucket) rowsGone(u *underway) {
	missed := u.missed()
	for _, s := range u.strays {
		if slices.Contains(missed, s.copy) {
			continue
		}
		// One that is shut is opened again, and has then lost it or not. What it has written since is newer than what has
		// gone: that the rows are gone durably is then seen later, never too early.
		if now := k.holds(s.copy); now != (RowsAt{}) && k.wrong.gone(s, now) {
			k.node.Snapshots.Trust(s.copy)
		}
	}
}

// goneForGood forgets what was wrong and has gone durably, as it was measured last. It runs in the loop.
func (k *Bucket) goneForGood() {
	if m := k.sizes.measured.Load(); m != nil && len(k.wrong.strays) > 0 {
		k.wrong.durable(func(id index.CopyID) RowsAt {
			if z := m.copies[id]; z.of == k.slices[id] {
				return z.durable
			}
			return RowsAt{}
		})
	}
}

// fellBack takes over that a copy was opened again, or will be: it may hold again what was wrong.
func (k *Bucket) fellBack(id index.CopyID, now RowsAt) {
	if k.wrong.wentBack(id, now) {
		k.letGo(k.node.Snapshots.Doubt(id))
	}
}

// letGo closes snapshots beside the loop: who closes the last one of files that were replaced, or are to be opened
// again, closes and removes these.
func (k *Bucket) letGo(all ...snapshots.Gone) {
	if all = slices.DeleteFunc(all, snapshots.Gone.None); len(all) == 0 {
		return
	}
	k.aside(func() {
		for _, g := range all {
			g.Close()
		}
	})
}

// holds is what a copy holds, zero of one that is not open here.
func (k *Bucket) holds(id index.CopyID) RowsAt {
	s := k.slices[id]
	if s == nil {
		return RowsAt{}
	}
	_, generation, batch, err := s.Counted()
	if err != nil {
		return RowsAt{}
	}
	return RowsAt{generation, batch}
}
