package snapshots

import (
	"context"
	"errors"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/storage"
	"tidemark/wire"
)

// Bucket is the part of a bucket that Pins uses.
type Bucket interface {
	// Flushed returns the newest stability timestamp at or below which no snapshot is outstanding; nil: none.
	Flushed() *wire.StabilityRef
	// Rollback returns the id of the newest rollback that was carried out.
	Rollback() uint64
	// Gone returns a channel that is closed when the bucket has left this node.
	Gone() <-chan struct{}
}

// Pins provides snapshots to the node's parts of scans.
type Pins struct {
	Snapshots *Set
	Store     *storage.Store
	Bucket    func(name string) (Bucket, bool)
	// Wrong returns why a copy may lag: a problem of the copy or of the node; "": none.
	Wrong func(index.CopyID) string
}

// Pin implements scan.Pins.
func (p *Pins) Pin(ctx context.Context, id index.ID, copies []index.CopyID, ref wire.StabilityRef,
	wait time.Duration) (*scan.Pinned, error) {
	k, ok := p.Bucket(ref.Bucket)
	if !ok {
		return nil, scan.Errorf(errcode.IndexNotHosted, "this node does not hold bucket %q", ref.Bucket)
	}
	got := make([]*storage.Snapshot, 0, len(copies))
	release := func() error {
		var first error
		for _, snap := range got {
			if err := snap.Close(); first == nil {
				first = err
			}
		}
		return first
	}
	pinned := &scan.Pinned{Slices: make([]scan.Slice, 0, len(copies)), Release: release}
	waits := false
	for _, c := range copies {
		h, ok := p.Snapshots.Acquire(c, &ref)
		if !ok {
			if !waits { // most scans read an existing snapshot and need no timer
				var end context.CancelFunc
				ctx, end = context.WithTimeout(ctx, wait)
				defer end()
				waits = true
			}
			var err error
			if h, err = p.wait(ctx, k, id, c, ref); err != nil {
				return nil, errors.Join(err, release())
			}
		}
		got = append(got, h.Snap)
		pinned.Vector = h.Vector
		pinned.Slices = append(pinned.Slices, slice{h.Snap})
	}
	return pinned, nil
}

// Keep implements scan.Pins.
func (p *Pins) Keep(ref wire.StabilityRef, d time.Duration) {
	p.Snapshots.KeepFor(ref, d)
}

// KeepPages implements scan.Pins.
func (p *Pins) KeepPages(of scan.Pages, copies []index.CopyID, ref wire.StabilityRef) (func(read bool), error) {
	return p.Snapshots.KeepPages(of, copies, ref)
}

// EndPages implements scan.Pins.
func (p *Pins) EndPages(of scan.Pages) { p.Snapshots.EndPages(of) }

// Hold returns a copy's snapshot at ref as soon as it exists, or an error if it never will, for example because its
// bucket k has left this node: a new bucket of the same name is a different one.
func (p *Pins) Hold(ctx context.Context, k Bucket, id index.ID, c index.CopyID, ref wire.StabilityRef) (Held, error) {
	return p.wait(ctx, k, id, c, ref)
}

// never returns why a copy will never have a snapshot at ref that it does not have now; nil: it may get one.
func (p *Pins) never(k Bucket, id index.ID, c index.CopyID, ref wire.StabilityRef) error {
	s, ok := p.Store.Slice(c)
	switch {
	case !ok || s.Meta().Index != id:
		return scan.Errorf(errcode.IndexNotHosted, "copy %s of index %s is not on this node", c, id)
	case k.Rollback() > ref.RollbackID:
		return scan.Errorf(errcode.IndexInRollback, "bucket %q was rolled back after timestamp %d", ref.Bucket, ref.Number)
	}
	if refs := p.Snapshots.Refs(c); len(refs) > 0 && refs[0].Compare(ref.Ref) > 0 {
		return scan.Errorf(errcode.SnapshotTooOld, "copy %s holds timestamps %d to %d, no longer %d%s", c,
			refs[0].Number, refs[len(refs)-1].Number, ref.Number, p.Snapshots.whyNotKept(ref))
	}
	return nil
}

// wait waits for a copy's snapshot at ref, or returns why it will not come.
func (p *Pins) wait(ctx context.Context, k Bucket, id index.ID, c index.CopyID, ref wire.StabilityRef) (h Held,
	err error) {
	for {
		changed := p.Snapshots.ChangesOf(c)
		f := k.Flushed() // before Acquire: a snapshot is added before its timestamp counts as flushed
		passed := p.Snapshots.HasSkipped(c, ref) || f != nil && f.Compare(ref.Ref) >= 0
		if h, ok := p.Snapshots.Acquire(c, &ref); ok {
			return h, nil
		}
		if err := p.never(k, id, c, ref); err != nil {
			return Held{}, err
		}
		if passed {
			return Held{}, scan.Errorf(errcode.SnapshotSkipped, "copy %s could not be made exact at timestamp %d", c,
				ref.Number)
		}
		select {
		case <-changed:
		case <-k.Gone():
			return Held{}, scan.Errorf(errcode.IndexNotHosted, "this node no longer holds bucket %q", ref.Bucket)
		case <-ctx.Done():
			return Held{}, &scan.LateError{Copy: c, Why: p.Wrong(c), Err: context.Cause(ctx)}
		}
	}
}

// Slice returns a snapshot in the form that scans read.
func Slice(snap *storage.Snapshot) scan.Slice { return slice{snap} }

// slice implements scan.Slice on a snapshot.
type slice struct{ snap *storage.Snapshot }

// Rows implements scan.Slice.
func (s slice) Rows(ctx context.Context, low, high []byte, reverse bool) (scan.Cursor, error) {
	rows, err := s.snap.Scan(ctx, storage.Range{Low: low, High: high}, reverse)
	if err != nil {
		return nil, Coded(err)
	}
	return cursor{rows}, nil
}

// Items implements scan.Slice.
func (s slice) Items() int64 { return s.snap.Items() }

// cursor maps storage's errors to the codes of scans.
type cursor struct{ *storage.Rows }

// Close implements scan.Cursor.
func (c cursor) Close() error { return Coded(c.Rows.Close()) }

// Coded maps an error of package storage to the error that scans return for it.
func Coded(err error) error {
	if errors.Is(err, storage.ErrDamaged) {
		return scan.Errorf(errcode.Damaged, "%w", err)
	}
	return err
}
