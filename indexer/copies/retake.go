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

// Name implements verify.Bucket, as do UUID and VBuckets.
func (k *Bucket) Name() string { return k.name }

// UUID returns the uuid of the bucket in KV.
func (k *Bucket) UUID() string { return k.uuid }

// VBuckets returns the number of its vbuckets.
func (k *Bucket) VBuckets() int { return k.vbuckets }

// retake makes a vbucket of a copy be taken from KV again, and the stray rows be deleted with it. elsewhere means that
// scans have another copy, so that they must not use this one until it is correct. retake runs in the loop, and
// returns false if the vbucket is being restored or is joining; the next verification will find the difference again.
func (k *Bucket) retake(id index.CopyID, vb int, stray []storage.Row, elsewhere bool) bool {
	if !k.st.Retake(id, vb) {
		return false
	}
	k.wrong.found(id, vb, stray, elsewhere)
	k.node.Metrics.retaken.Inc()
	if elsewhere {
		k.closeSnapshots(k.node.Snapshots.Doubt(id))
	}
	return true
}

// retakeAgain retakes the vbuckets whose copy was reopened before the retake was durable. It runs in the loop.
// Vbuckets that cannot be retaken yet, because they are being restored or nothing feeds them, are tried again at one
// of the next looks.
func (k *Bucket) retakeAgain() {
	for _, s := range k.wrong.strays {
		if s.again && k.st.Retake(s.copy, s.vb) {
			k.wrong.found(s.copy, s.vb, s.rows, s.doubt)
			k.node.Sides()
		}
	}
}

// rowsGone records that a batch has deleted stray rows, in the copies to which it was written.
func (k *Bucket) rowsGone(u *underway) {
	missed := u.missed()
	for _, s := range u.strays {
		if slices.Contains(missed, s.copy) {
			continue
		}
		// A shut copy is reopened later and may or may not have lost the deletion. What it has written since is newer
		// than the deletion, so the deletion is considered durable late at worst, never too early.
		if now := k.holds(s.copy); now != (RowsAt{}) && k.wrong.gone(s, now) {
			k.node.Snapshots.Trust(s.copy)
		}
	}
}

// goneForGood forgets stray rows whose deletion was durable at the last measurement. It runs in the loop.
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

// fellBack records that a copy was or will be reopened, and may hold stray rows again.
func (k *Bucket) fellBack(id index.CopyID, now RowsAt) {
	if k.wrong.wentBack(id, now) {
		k.closeSnapshots(k.node.Snapshots.Doubt(id))
	}
}

// closeSnapshots closes snapshots outside the loop: closing the last snapshot of replaced files, or of files to be
// reopened, also closes and removes the files.
func (k *Bucket) closeSnapshots(all ...snapshots.Gone) {
	if all = slices.DeleteFunc(all, snapshots.Gone.None); len(all) == 0 {
		return
	}
	k.aside(func() {
		for _, g := range all {
			g.Close()
		}
	})
}

// holds returns what a copy holds, zero if it is not open here.
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
