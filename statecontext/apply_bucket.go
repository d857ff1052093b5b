package statecontext

import (
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/timestamp"
)

// Reasons with which Apply itself puts an index into state error. They are part of the state, so changing a text
// requires a new format level.
const (
	reasonRecreated = "BUCKET_GONE: the bucket was re-created; BUILD INDEX makes the index anew, or drop it"
	reasonDeleted   = "BUCKET_GONE: the bucket was deleted; drop the index, or re-create the bucket and BUILD INDEX"
	// reasonElsewhere is for an index on a collection: a re-created bucket does not have it, even under the same name.
	reasonElsewhere = index.ReasonCollectionGone + "it was of another bucket; drop the index and create it again"
	reasonNotThere  = "BUCKET_GONE: the bucket was not there when the index was restored; drop the index, or re-create " +
		"the bucket and BUILD INDEX"
)

func (c *SetBucket) apply(t *tx) *Rejection {
	old, seen := t.s.Bucket(c.Name), t.s.Seen(c.Name)
	if c.Seen != nil && *c.Seen != seen && (old == nil || old.UUID != c.UUID || old.Gone) {
		return reject(errcode.GenerationMismatch, "bucket %q is at generation %d (gone: %t), and was at %d (gone: %t) when "+
			"a projector was asked", c.Name, seen.Generation, seen.Gone, c.Seen.Generation, c.Seen.Gone)
	}
	if old == nil && t.s.buckets.Len() >= int(t.s.limits.Buckets) {
		return reject(errcode.LimitExceeded, "%d buckets are registered; the limit is "+
			"%d", t.s.buckets.Len(), t.s.limits.Buckets)
	}
	return t.putBucket(c)
}

// putBucket is SetBucket without the limit on the number of buckets.
func (t *tx) putBucket(c *SetBucket) *Rejection {
	if rejection := checkIdentity("bucket name", c.Name); rejection != nil {
		return rejection
	}
	if rejection := checkIdentity("bucket uuid", c.UUID); rejection != nil {
		return rejection
	}
	if c.VBuckets < 1 || c.VBuckets > timestamp.MaxVBuckets {
		return reject(errcode.InvalidArgument, "bucket %q has %d vbuckets; want 1 to %d", c.Name, c.VBuckets,
			timestamp.MaxVBuckets)
	}
	old := t.s.Bucket(c.Name)
	generation := t.s.passed.generation + 1
	if old != nil {
		t.result.Number = old.Generation
		if old.UUID == c.UUID && !old.Gone {
			if old.VBuckets != c.VBuckets {
				return reject(errcode.InvalidArgument, "bucket %q has %d vbuckets, but %d were reported under the same "+
					"uuid", c.Name,
					old.VBuckets, c.VBuckets)
			}
			return nil
		}
		generation = old.Generation + 1
		t.fail(c.Name, c.UUID, reasonRecreated)
	}
	b := &Bucket{
		Name: c.Name, UUID: c.UUID, VBuckets: c.VBuckets, Generation: generation,
		MutationTimestamp: timestamp.New(c.VBuckets),
		Stability: Promoted{
			Vector:    timestamp.New(c.VBuckets),
			Logs:      make([]timestamp.FailoverLog, c.VBuckets),
			Revisions: make([]timestamp.MapRevision, c.VBuckets),
		},
		ModifiedCAS: t.cas,
	}
	// Numbers continue, so that data that an indexer kept from an older generation, or from a forgotten bucket, never
	// looks like data of this one.
	b.Stability.Number, b.Stability.RollbackID = t.s.passed.stability, t.s.passed.rollback
	if old != nil {
		b.Stability.Number, b.Stability.RollbackID = old.Stability.Number, old.lastRollback()
	}
	t.setBucket(b)
	t.result.Number = generation
	t.changedDefinitions()
	t.emit(t.bucketEvent(b))
	return nil
}

func (c *BucketGone) apply(t *tx) *Rejection {
	old := t.s.Bucket(c.Name)
	if old == nil {
		return reject(errcode.UnknownBucket, "bucket %q is not registered", c.Name)
	}
	if old.UUID != c.UUID {
		return reject(errcode.GenerationMismatch, "bucket %q now has uuid %s, not %s", c.Name, old.UUID, c.UUID)
	}
	t.result.Number = old.Generation
	if old.Gone {
		return nil
	}
	b := *old
	b.Gone, b.BackfillTimestamp, b.ModifiedCAS = true, timestamp.Vector{}, t.cas
	b.Stability.RollbackID, b.Rollback = old.lastRollback(), nil
	t.setBucket(&b)
	t.fail(c.Name, "", reasonDeleted)
	t.changedDefinitions()
	t.emit(t.bucketEvent(&b))
	t.forgetBucket(c.Name)
	return nil
}

// bucketEvent returns an event with all fields of a bucket.
func (t *tx) bucketEvent(b *Bucket) Event {
	return Event{Kind: EventBucket, Name: b.Name, Bucket: b.Name, Number: b.Generation, UUID: b.UUID, VBuckets: b.VBuckets,
		Removed:         b.Gone,
		StabilitySource: t.s.BucketSettings(b.Name).StabilitySource}
}

// fail puts every index of a bucket into state error, except those whose collection is already gone. uuid is the
// bucket's new uuid, "" if the bucket was deleted: the collection of an index that was created on a bucket with
// another uuid is gone.
func (t *tx) fail(bucket, uuid, reason string) {
	for x := range t.s.IndexesOf(bucket) {
		failed := *x
		f := &failed.Definition
		why := reason
		if !f.Member.IsZero() && uuid != "" && uuid != f.BucketUUID {
			why = reasonElsewhere
		}
		if f.CollectionGone() || f.State == index.Error && f.Reason == why {
			continue
		}
		f.State, f.Reason = index.Error, why
		t.setIndex(failed, true, false)
	}
}

// lastRollback returns the newest rollback id that was assigned.
func (b *Bucket) lastRollback() uint64 {
	if b.Rollback != nil {
		return b.Rollback.ID
	}
	return b.Stability.RollbackID
}

func (c *AdvanceStability) apply(t *tx) *Rejection {
	size, advanced := 0, 0
	for i := range c.Buckets {
		size += len(c.Buckets[i].Stability) + len(c.Buckets[i].Mutation)
	}
	if size > MaxStabilityBytes {
		return reject(errcode.LimitExceeded, "stability timestamps of %d bytes in one command; the limit is %d: promote "+
			"fewer buckets at a time", size, MaxStabilityBytes)
	}
	var first *Rejection
	for i := range c.Buckets {
		a := &c.Buckets[i]
		b, rejection := t.advance(a)
		if rejection != nil {
			if first == nil {
				first = rejection
			}
			t.result.Buckets = append(t.result.Buckets, BucketRejection{Bucket: a.Bucket, Rejection: rejection})
			continue
		}
		advanced++
		t.setBucket(b)
		t.changed = true
		t.emit(Event{Kind: EventStability, Name: b.Name, Bucket: b.Name, Number: b.Stability.Number})
	}
	if advanced == 0 && first == nil {
		return reject(errcode.InvalidArgument, "no bucket to promote")
	}
	if advanced == 0 {
		return first
	}
	return nil
}

// follows rejects a promotion that is not the next one of the bucket in its present state.
func (a *BucketAdvance) follows(old *Bucket) *Rejection {
	if old.Rollback != nil || a.RollbackID != old.Stability.RollbackID {
		return reject(errcode.RollbackMismatch, "bucket %q is at rollback %d (step %s), the promotion was made at %d",
			a.Bucket, old.lastRollback(), old.step(), a.RollbackID)
	}
	if a.Number != old.Stability.Number+1 {
		return reject(errcode.StabilityNotMonotone, "bucket %q: promotion %d follows %d", a.Bucket, a.Number,
			old.Stability.Number)
	}
	return nil
}

// onto applies a delta to the old vector. The delta must use all of its bytes.
func (a *BucketAdvance) onto(what string, delta []byte, old timestamp.Vector) (timestamp.Vector, *Rejection) {
	v, rest, err := timestamp.ApplyDeltaShared(delta, old)
	if err != nil || len(rest) > 0 {
		return v, reject(errcode.InvalidArgument, "bucket %q: %s timestamp: %v, %d bytes left over", a.Bucket, what, err,
			len(rest))
	}
	return v, nil
}

// advance returns the bucket after the promotion.
func (t *tx) advance(a *BucketAdvance) (*Bucket, *Rejection) {
	old, rejection := t.bucket(a.Bucket, a.Generation)
	if rejection != nil {
		return nil, rejection
	}
	if rejection := a.follows(old); rejection != nil {
		return nil, rejection
	}
	stability, rejection := a.onto("stability", a.Stability, old.Stability.Vector)
	if rejection != nil {
		return nil, rejection
	}
	mutation, rejection := a.onto("mutation", a.Mutation, old.MutationTimestamp)
	if rejection != nil {
		return nil, rejection
	}
	for v, s := range stability.Seqnos {
		if s < old.Stability.Vector.Seqnos[v] {
			return nil, reject(errcode.StabilityNotMonotone, "bucket %q vbucket %d: %d is below the present %d; only a "+
				"rollback goes back",
				a.Bucket, v, s, old.Stability.Vector.Seqnos[v])
		}
	}
	b := *old
	changed, rejection := b.setLogs(a.Logs)
	if rejection != nil {
		return nil, rejection
	}
	if !changed && stability.Equal(old.Stability.Vector) {
		return nil, reject(errcode.StabilityNotMonotone, "bucket %q: promotion %d changes nothing", a.Bucket, a.Number)
	}
	b.Stability.Number, b.Stability.StateMS = a.Number, t.s.timeMS
	b.Stability.Vector, b.MutationTimestamp = stability, mutation
	return &b, nil
}

// setLogs stores changed failover logs and reports whether any of them differs from the stored one.
func (b *Bucket) setLogs(changes []timestamp.VBucketLog) (changed bool, rejection *Rejection) {
	if len(changes) == 0 {
		return false, nil
	}
	logs, revisions := slices.Clone(b.Stability.Logs), slices.Clone(b.Stability.Revisions)
	changed, rejection = b.mergeLogs(logs, revisions, changes)
	if rejection != nil {
		return false, rejection
	}
	b.Stability.Logs, b.Stability.Revisions = logs, revisions
	return changed, nil
}

// mergeLogs stores changed logs and their map revisions in per-vbucket lists. It rejects a lower revision, which
// comes from a stale producer.
func (b *Bucket) mergeLogs(logs []timestamp.FailoverLog, revisions []timestamp.MapRevision,
	changes []timestamp.VBucketLog) (changed bool, rejection *Rejection) {
	for _, l := range changes {
		v := int(l.VBucket)
		if v >= b.VBuckets {
			return false, reject(errcode.InvalidArgument, "bucket %q: failover log of vbucket %d, the bucket has %d", b.Name, v,
				b.VBuckets)
		}
		if l.Revision.Compare(revisions[v]) < 0 {
			return false, reject(errcode.StaleRevision, "bucket %q vbucket %d: a failover log of map revision %d.%d, but that "+
				"of %d.%d is already stored",
				b.Name, v, l.Revision.Epoch, l.Revision.Rev, revisions[v].Epoch, revisions[v].Rev)
		}
		changed = changed || !l.Log.Equal(logs[v]) || l.Revision != revisions[v]
		logs[v], revisions[v] = l.Log, l.Revision
	}
	return changed, nil
}

func (b *Bucket) step() RollbackStep {
	if b.Rollback == nil {
		return NoRollback
	}
	return b.Rollback.Step
}

func (c *SetBackfillTimestamp) apply(t *tx) *Rejection {
	old, rejection := t.bucket(c.Bucket, c.Generation)
	if rejection != nil {
		return rejection
	}
	if n := c.Vector.Len(); n != 0 && n != old.VBuckets {
		return reject(errcode.InvalidArgument, "bucket %q: backfill timestamp of %d vbuckets, the bucket has %d", c.Bucket, n,
			old.VBuckets)
	}
	if c.Vector.Equal(old.BackfillTimestamp) {
		return nil
	}
	b := *old
	b.BackfillTimestamp = c.Vector
	t.setBucket(&b)
	t.changed = true
	t.emit(Event{Kind: EventBackfill, Name: c.Bucket, Bucket: c.Bucket})
	return nil
}

func (c *SetRollbackStep) apply(t *tx) *Rejection {
	old, rejection := t.bucket(c.Bucket, c.Generation)
	if rejection != nil {
		return rejection
	}
	if old.step() != c.From {
		return reject(errcode.StepMismatch, "bucket %q: the rollback is in step %s, the command expects %s", c.Bucket,
			old.step(), c.From)
	}
	if c.ID != old.lastRollback() {
		return reject(errcode.RollbackMismatch, "bucket %q is at rollback %d, the command was made for %d", c.Bucket,
			old.lastRollback(), c.ID)
	}
	b := *old
	if rejection := b.moveRollback(c, t.s.timeMS); rejection != nil {
		return rejection
	}
	b.ModifiedCAS = t.cas
	t.setBucket(&b)
	t.result.Number = b.lastRollback()
	t.changedDefinitions()
	t.emit(Event{Kind: EventRollback, Name: b.Name, Bucket: b.Name, Number: b.lastRollback(), Step: c.To})
	return nil
}

func (c *RollbackLogs) apply(t *tx) *Rejection {
	old, rejection := t.bucket(c.Bucket, c.Generation)
	if rejection != nil {
		return rejection
	}
	if old.step() != Started {
		return reject(errcode.StepMismatch, "bucket %q: the rollback is in step %s; it accepts failover logs in step %s",
			c.Bucket, old.step(), Started)
	}
	if c.ID != old.Rollback.ID {
		return reject(errcode.RollbackMismatch, "bucket %q is at rollback %d, the command was made for %d", c.Bucket,
			old.Rollback.ID, c.ID)
	}
	b, r := *old, *old.Rollback
	r.Logs, r.Revisions = slices.Clone(r.Logs), slices.Clone(r.Revisions)
	changed, rejection := b.mergeLogs(r.Logs, r.Revisions, c.Logs)
	if rejection != nil || !changed {
		return rejection
	}
	b.Rollback, b.ModifiedCAS = &r, t.cas
	t.setBucket(&b)
	t.changedDefinitions()
	t.emit(Event{Kind: EventRollback, Name: b.Name, Bucket: b.Name, Number: r.ID, Step: r.Step})
	return nil
}

// moveRollback performs the step at the given state time. b is a copy that may be modified.
func (b *Bucket) moveRollback(c *SetRollbackStep, stateMS int64) *Rejection {
	var r RollbackContext
	if b.Rollback != nil {
		r = *b.Rollback
	}
	var rejection *Rejection
	switch {
	case c.To == Started: // from none, or again from any step: a newer failover log was seen
		r = b.restartedRollback()
	case c.From == Started && c.To == Prepare:
		r.Failover, rejection = c.Failover, b.wholeTimestamp("failover", c.Failover)
	case c.From == Prepare && c.To == Restart:
		r.Restart, rejection = c.Restart, b.wholeTimestamp("restart", c.Restart)
	case c.From == Restart && c.To == RollingBack:
	case c.From == RollingBack && c.To == NoRollback:
		return b.finishRollback(c, stateMS)
	default:
		return reject(errcode.IllegalTransition, "bucket %q: rollback from step %s to %s", b.Name, c.From, c.To)
	}
	if rejection != nil {
		return rejection
	}
	if c.To == Started || c.To == Prepare {
		r.Logs, r.Revisions = slices.Clone(r.Logs), slices.Clone(r.Revisions)
		if _, rejection := b.mergeLogs(r.Logs, r.Revisions, c.Logs); rejection != nil {
			return rejection
		}
	}
	r.Step = c.To
	b.Rollback = &r
	return nil
}

// restartedRollback returns a new context, with the logs of the preceding context, or those of the stability
// timestamp if there is none.
func (b *Bucket) restartedRollback() RollbackContext {
	r := RollbackContext{ID: b.lastRollback() + 1, Logs: b.Stability.Logs, Revisions: b.Stability.Revisions}
	if b.Rollback != nil {
		r.Logs, r.Revisions = b.Rollback.Logs, b.Rollback.Revisions
	}
	return r
}

// wholeTimestamp rejects a timestamp whose number of vbuckets differs from the bucket's.
func (b *Bucket) wholeTimestamp(name string, v timestamp.Vector) *Rejection {
	if v.Len() != b.VBuckets {
		return reject(errcode.InvalidArgument, "bucket %q: %s timestamp of %d vbuckets, the bucket has %d", b.Name, name,
			v.Len(), b.VBuckets)
	}
	return nil
}

// finishRollback ends the rollback: the bucket continues from c.Stability under the new rollback id.
func (b *Bucket) finishRollback(c *SetRollbackStep, stateMS int64) *Rejection {
	if c.Stability.Len() != b.VBuckets {
		return reject(errcode.InvalidArgument, "bucket %q: stability timestamp of %d vbuckets, the bucket has %d", b.Name,
			c.Stability.Len(), b.VBuckets)
	}
	if !b.Stability.Vector.Covers(c.Stability) {
		return reject(errcode.StabilityNotMonotone, "bucket %q: a rollback may not end above the stability timestamp "+
			"that it began with", b.Name)
	}
	s := b.Stability
	s.Number++
	s.StateMS = stateMS
	s.RollbackID, s.Vector, s.Logs, s.Revisions = b.Rollback.ID, c.Stability, b.Rollback.Logs, b.Rollback.Revisions
	b.Stability, b.MutationTimestamp, b.Rollback = s, c.Stability, nil
	return nil
}
