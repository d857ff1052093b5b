package coordinator

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
	"tidemark/wire"
)

const (
	// abortTime limits the abort of a restore; a new leader's first command aborts it as well.
	abortTime = 5 * time.Second
	// bucketsAtOnce limits concurrent queries about buckets.
	bucketsAtOnce = 8
)

// RestoreRequest requests that a backup be restored.
type RestoreRequest struct {
	ID     string // identifies the request: repeated under the same id, it is executed once
	Backup *statecontext.Backup
	Mode   statecontext.RestoreMode
	DryRun bool // only return the plan
}

// RestoreOutcome is the effect of a restore, or, of a dry run, its plan.
type RestoreOutcome struct {
	Plan     statecontext.RestorePlan
	CAS      uint64 // of the switch; of a dry run, the present one
	Epoch    uint64
	Replayed bool // the same request was executed before; Plan is empty
}

// isAgain returns an error if r, the restore executed under this request's id, was a different one.
func (req *RestoreRequest) isAgain(r *statecontext.Restored) error {
	if b := req.Backup; r.FromID != b.ClusterID || r.FromCAS != b.CAS || r.Mode != req.Mode {
		return &statecontext.Rejection{Code: errcode.RequestMismatch, Message: fmt.Sprintf("the "+
			"Idempotency-Key was used to restore the backup of cluster %s at cas %d (%s); nothing was done: use another "+
			"key for this backup", r.FromID, r.FromCAS, r.Mode)}
	}
	return nil
}

// Restore replaces definitions and limits by those of a checked backup: all of it or nothing, even if this leader
// dies in the middle. Errors wrap codes of package errcode, ErrNotLeading or ErrNoProjector, or come from the
// proposals (package consensus).
func (c *Coordinator) Restore(ctx context.Context, req RestoreRequest) (RestoreOutcome, error) {
	if _, err := c.leadingNow(ctx); err != nil {
		return RestoreOutcome{}, err
	}
	s := c.cfg.Consensus.State()
	if r := s.Restored(); r != nil && r.ID == req.ID {
		if err := req.isAgain(r); err != nil {
			return RestoreOutcome{}, err
		}
		return RestoreOutcome{CAS: r.CAS, Epoch: s.Epoch(), Replayed: true}, nil
	}
	found, err := c.findBuckets(ctx, s, req.Backup.State)
	if err != nil {
		return RestoreOutcome{}, err
	}
	epoch := max(s.Epoch()+1, req.Backup.Epoch+1, uint64(max(0, c.cfg.Now().Unix())))
	plan, err := statecontext.PlanRestore(s, req.Backup.State, req.Mode, epoch, found, c.orphans())
	if err != nil || req.DryRun {
		return RestoreOutcome{Plan: plan, CAS: s.CAS(), Epoch: s.Epoch()}, err
	}
	res, err := c.carryRestore(ctx, req, &statecontext.FinishRestore{ID: req.ID, Epoch: epoch, Buckets: found,
		Rules: c.newRules()})
	if err != nil {
		return RestoreOutcome{}, err
	}
	c.cfg.Logger.Warn("backup restored", "mode", req.Mode, "of", req.Backup.ClusterID, "cas", req.Backup.CAS,
		"epoch", epoch,
		"kept", plan.Kept, "differing", plan.Differing, "adopted", plan.Adopted, "rebuilt", plan.Rebuilt,
		"waiting", plan.Waiting, "failed", plan.Failed, "dropped", plan.Dropped)
	return RestoreOutcome{Plan: plan, CAS: res.CAS, Epoch: epoch}, nil
}

// orphans returns the copies that indexers have reported as not placed by the state, at most wire.MaxOrphans per
// indexer.
func (c *Coordinator) orphans() map[index.CopyID]bool {
	all := make(map[index.CopyID]bool)
	status, _ := c.Status()
	for _, i := range status.Indexers {
		for _, o := range i.Orphans {
			if o.Index != 0 { // else the folder is damaged
				all[o.Copy] = true
			}
		}
	}
	return all
}

// carryRestore sends the state through the log in chunks, and switches to it.
func (c *Coordinator) carryRestore(ctx context.Context, req RestoreRequest,
	finish *statecontext.FinishRestore) (statecontext.Result, error) {
	data := req.Backup.Snapshot
	begin := &statecontext.BeginRestore{ID: req.ID, Mode: req.Mode, Bytes: uint64(len(data)), Sum: sha256.Sum256(data)}
	res, err := c.proposeFor(ctx, begin)
	if errors.Is(err, errcode.Restoring) {
		return res, err // another restore, or this one on another connection
	}
	for at := 0; at < len(data) && err == nil; at += statecontext.RestoreChunkBytes {
		_, err = c.proposeFor(ctx, &statecontext.RestoreChunk{ID: req.ID, Offset: uint64(at),
			Data: data[at:min(at+statecontext.RestoreChunkBytes, len(data))]})
	}
	if err == nil {
		res, err = c.proposeFor(ctx, finish)
	}
	if err == nil {
		return res, nil
	}
	abort, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	// If this fails, leadership is lost, or the restore times out.
	if _, aborted := c.proposeFor(abort, &statecontext.AbortRestore{ID: req.ID}); aborted != nil {
		c.cfg.Logger.Warn("failed restore could not be abandoned", "error", aborted)
	}
	return res, fmt.Errorf("restore: %w", err)
}

// findBuckets queries the projectors about the buckets that only the backup contains. Errors wrap ErrNoProjector if the
// KV node of a projector that could not be queried may have a bucket.
func (c *Coordinator) findBuckets(ctx context.Context, s, backup *statecontext.State) ([]statecontext.FoundBucket,
	error) {
	var names []string
	for b := range backup.Buckets() {
		if s.Bucket(b.Name) == nil {
			names = append(names, b.Name)
		}
	}
	answers := make([]*statecontext.FoundBucket, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(bucketsAtOnce)
	for i, name := range names {
		g.Go(func() error {
			found, err := c.queryBucket(ctx, &wire.BucketRequest{Bucket: name})
			err = definite(err)
			if errors.Is(err, core.ErrUnknownBucket) {
				return nil // it does not exist
			}
			if err != nil {
				return err
			}
			answers[i] = &statecontext.FoundBucket{Name: name, UUID: found.UUID, VBuckets: found.VBuckets}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var all []statecontext.FoundBucket
	for _, a := range answers {
		if a != nil {
			all = append(all, *a)
		}
	}
	return all, nil
}
