package store

import (
	"context"
	"fmt"
	"math"
	"time"

	"tidemark/kv/seglog"
)

// compactions is what Run remembers of one compaction for the next.
type compactions struct {
	refused uint64   // Disk.deletionsRefused at its begin
	left    int64    // garbage that a compaction of the whole log has left (states, headers)
	short   shortage // of the last one that had no room
	failed  Repeated // what the log has about failures
}

// Compact removes garbage from the log, oldest segment first: records that are still needed are appended again, then
// the segment is dropped. It runs while more than half of the log (and more than compactionSlack segments) is
// garbage, so that on average each written byte is rewritten at most about once; on a disk that is almost full, while a
// segment and an eighth of what is needed are garbage; and on one without room for deletions, see squeeze. Tombstones
// are purged only in the oldest segment: there no older version of their key can reappear. An error is that of the
// context, of a file, or ErrTemporary if there is no room or a write has failed: the next call tries it again, but
// fails at once for a minute while there is still no room. It is for Run alone.
func (b *Bucket) Compact(ctx context.Context) error {
	space := b.commit.space
	space.look() // others may fill the disk, or free it
	if b.compacted.short.lasts(space, b.now()) {
		return errNotNow
	}
	b.compacted.left = min(b.compacted.left, b.garbage())
	low, refused := space.documents.Swap(false), space.deletionsRefused.Load()
	// Another bucket's deletions need the room that this one's garbage takes.
	full := refused != b.compacted.refused || space.full()
	b.compacted.refused = refused
	if full {
		if err := b.squeeze(ctx); err != nil {
			return err
		}
	}
	for _, number := range b.log.Sealed() { // not those sealed meanwhile: states of vbuckets are copied again and again
		live := b.liveBytes.Load()
		most := 2*live + compactionSlack*b.opts.SegmentBytes
		if low || space.low() {
			most = min(most, live+live/8+b.opts.SegmentBytes)
		}
		if b.log.Size() <= most {
			return nil
		}
		if err := b.compactSegment(ctx, number, b.opts.PurgeAfter); err != nil {
			return err
		}
	}
	return nil
}

// squeeze compacts a log on a disk that has no room for deletions, until there is room for documents again. What was
// deleted until then may be less than what Compact waits for, and would stay for ever: but it is at least as much as
// the tombstones have taken, and so a deletion costs no room in the end. A log without new garbage is left alone.
func (b *Bucket) squeeze(ctx context.Context) error {
	if b.garbage() <= b.compacted.left+b.commit.space.deletionReserve/squeezeShare {
		return nil
	}
	if err := b.rotate(); err != nil {
		return err
	}
	written := b.commit.appended()
	for _, number := range b.log.Sealed() {
		if err := b.compactSegment(ctx, number, b.opts.PurgeAfter); err != nil {
			return err
		}
		if !b.commit.space.low() {
			return nil
		}
	}
	if b.commit.appended() == written { // otherwise there may be new garbage
		b.compacted.left = b.garbage()
	}
	return nil
}

// garbage returns the bytes of the log that are not needed.
func (b *Bucket) garbage() int64 { return b.log.Size() - b.liveBytes.Load() }

// rotate seals the current segment, so that it can be compacted.
func (b *Bucket) rotate() error {
	b.commit.writeMu.Lock()
	defer b.commit.writeMu.Unlock()
	return b.log.Rotate()
}

// purgeDue rewrites the log once if there are tombstones that may be purged: they count as live data, and Compact
// alone would keep them for ever in a log with little garbage, or in its newest segment. It checks at most once per
// PurgeAfter, so that tombstones are purged at an age between once and twice PurgeAfter.
func (b *Bucket) purgeDue(ctx context.Context) error {
	now := b.now()
	if now.Before(b.nextPurge) {
		return nil
	}
	if !b.due(now) {
		b.nextPurge = now.Add(min(dueAgain, b.opts.PurgeAfter/64))
		return nil
	}
	b.nextPurge = now.Add(b.opts.PurgeAfter)
	err := b.PurgeTombstones(ctx, b.opts.PurgeAfter)
	if err != nil {
		b.nextPurge = now.Add(dueAgain)
	}
	return err
}

// dueAgain is the pause before the next check after a purge has failed, or nothing could be purged, since a check may
// examine every document; and the pause after a compaction had no room.
const dueAgain = time.Minute

// due reports whether a tombstone may be purged. It examines as little as possible, and nothing of a vbucket without
// tombstones.
func (b *Bucket) due(now time.Time) bool {
	cutoff := cutoffAt(now, b.opts.PurgeAfter)
	for _, v := range b.vbs {
		if v.due(cutoff) {
			return true
		}
	}
	return false
}

func (v *VBucket) due(cutoff uint32) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.tombstones == 0 {
		return false
	}
	for _, d := range v.docs {
		if v.forgettableLocked(d, cutoff) {
			return true
		}
	}
	return false
}

// cutoffAt returns the unix second before which a tombstone must have been made to be purged.
func cutoffAt(now time.Time, age time.Duration) uint32 { return uint32(now.Add(-age).Unix()) }

// forgettableLocked reports whether d is a tombstone that is no longer needed. The newest version of a vbucket, and
// that of a collection, always stays: its seqno is the high seqno, which streams must reach.
func (v *VBucket) forgettableLocked(d *Doc, cutoff uint32) bool {
	return d.Deleted && d.DeleteTime < cutoff && d.Seqno < v.written && len(v.open.all) == 0 && !v.collections.newest(d)
}

// compactSegment rewrites the needed records of the oldest sealed segment and drops it. A write that fails meanwhile
// stops it: a version that was superseded only by a write taken back later would not have been rewritten.
func (b *Bucket) compactSegment(ctx context.Context, number uint64, purgeAfter time.Duration) error {
	end, err := b.opts.Disk.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := b.fits(number); err != nil {
		return fmt.Errorf("compact segment %d: %w", number, err)
	}
	if err := b.emptySegment(ctx, number, cutoffAt(b.now(), purgeAfter)); err != nil {
		return fmt.Errorf("compact segment %d: %w", number, err)
	}
	if err := b.log.DropFirst(number); err != nil {
		return err
	}
	b.stats.SegmentsDropped.Add(1)
	b.commit.space.look()
	b.commit.space.fit(b.log.Largest())
	return nil
}

// fits returns an error if the disk has no room for what is needed of a segment: a compaction that gets stuck halfway
// would only take room, and the next one would copy the same again.
func (b *Bucket) fits(number uint64) error {
	space := b.commit.space
	space.look()
	if !space.lacks(b.log.Largest() + compactionBytes) {
		return nil
	}
	need, err := b.needed(number)
	if err == nil && space.lacks(need+compactionBytes) {
		b.compacted.short = shortage{bytes: need + compactionBytes, until: b.now().Add(dueAgain)}
		err = fmt.Errorf("%w: it needs %d bytes, and only %d are free under %s: make room on the disk", ErrTemporary,
			need+compactionBytes, space.free(), space.dir)
	}
	return err
}

// shortage is what a compaction has found missing. To find it, a segment is read, and the open one may be sealed:
// Compact does that again only once there is room for it, or after a pause.
type shortage struct {
	bytes int64     // the room that it needs
	until time.Time // end of the pause: the segment may have become emptier
}

// lasts reports whether there is still no room, and the pause is not over.
func (s shortage) lasts(space *space, now time.Time) bool {
	return now.Before(s.until) && space.lacks(s.bytes)
}

// needed returns the size of the documents that are still needed of a segment.
func (b *Bucket) needed(number uint64) (bytes int64, err error) {
	err = b.log.ReadSegment(number, func(r seglog.Record) error {
		kind, vb, rest, err := recordPlace(r.Payload)
		if err != nil || kind != recordDoc {
			return err
		}
		collection, key, seqno, _, err := docIdentity(rest)
		if v := b.VBucket(vb); err == nil && v != nil && v.newest(collection, key, seqno) {
			bytes += seglog.FrameOverhead + int64(len(r.Payload))
		}
		return err
	})
	return bytes, err
}

// newest reports whether a version is the newest of its key.
func (v *VBucket) newest(collection uint32, key []byte, seqno uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.docs[docID{collection, string(key)}]
	return d != nil && d.Seqno == seqno
}

// emptySegment appends the needed records of the oldest segment again and waits until they are stored.
func (b *Bucket) emptySegment(ctx context.Context, number uint64, cutoff uint32) error {
	states := map[uint16]bool{}
	stored := b.commit.since()
	var last *Ticket
	err := b.log.ReadSegment(number, func(r seglog.Record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		t, err := b.relocateRecord(r.Payload, cutoff, states)
		if err != nil {
			return err
		}
		if t != nil {
			last = t
		}
		if last.Size() > relocateBatchBytes {
			return last.Wait()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := b.saveStates(states); err != nil {
		return err
	}
	return stored(b.commit.current())
}

// relocateRecord appends a record again if it is needed; states collects the vbuckets whose state has to be written,
// too.
func (b *Bucket) relocateRecord(payload []byte, cutoff uint32, states map[uint16]bool) (*Ticket, error) {
	kind, vb, rest, err := recordPlace(payload)
	if err != nil {
		return nil, err
	}
	v := b.VBucket(vb)
	if v == nil {
		return nil, fmt.Errorf("%w: vbucket %d", errRecord, vb)
	}
	if kind != recordDoc { // a reset in the oldest segment has nothing left to void
		states[vb] = true
		return nil, nil
	}
	collection, key, seqno, _, err := docIdentity(rest)
	if err != nil {
		return nil, err
	}
	t, purged, err := v.relocate(collection, key, seqno, cutoff)
	if purged {
		states[vb] = true
	}
	return t, err
}

// saveStates appends the states of vbuckets again.
func (b *Bucket) saveStates(vbuckets map[uint16]bool) error {
	for vb := range vbuckets {
		v := b.vbs[vb]
		v.mu.Lock()
		_, err := v.saveLocked()
		v.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// relocate appends the stored version again if it is the newest of its key; an old tombstone is purged instead.
func (v *VBucket) relocate(collection uint32, key []byte, seqno uint64, cutoff uint32) (t *Ticket, purged bool,
	err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.steadyLocked(); err != nil {
		return nil, false, err
	}
	d := v.docs[docID{collection, string(key)}]
	if d == nil || d.Seqno != seqno {
		return nil, false, nil
	}
	if v.forgettableLocked(d, cutoff) {
		v.forgetLocked(d)
		return nil, true, nil
	}
	t, err = v.bucket.commit.appendCopy(func(dst []byte) []byte { return appendDoc(dst, v.id, d) })
	if err == nil {
		v.bucket.stats.Relocated.Add(1)
	}
	return t, false, err
}

// forgetLocked purges a tombstone.
func (v *VBucket) forgetLocked(d *Doc) {
	delete(v.docs, d.id())
	v.collections.leaving = nil
	v.supersedeLocked(d, d.Seqno) // by nothing: left out of all later snapshots
	v.purge = max(v.purge, d.Seqno)
	v.bucket.stats.Purged.Add(1)
	if v.crowdedLocked() {
		v.pruneLocked()
	}
}

// ForgetTombstones purges the vbucket's tombstones of any age, except those that a reader still needs (see Purged).
// The log keeps them until it is rewritten. It serves to simulate an engine that purges at a bad moment.
func (v *VBucket) ForgetTombstones() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.steadyLocked(); err != nil {
		return err
	}
	before := v.purge
	for _, d := range v.docs {
		if v.forgettableLocked(d, math.MaxUint32) {
			v.forgetLocked(d)
		}
	}
	if v.purge == before {
		return nil
	}
	_, err := v.saveLocked()
	return err
}

// PurgeTombstones purges all tombstones older than age at once, and rewrites the whole log for it. It must not run
// concurrently with Run, which does the same when tombstones are due.
func (b *Bucket) PurgeTombstones(ctx context.Context, age time.Duration) error {
	if err := b.rotate(); err != nil {
		return err
	}
	for _, number := range b.log.Sealed() {
		if err := b.compactSegment(ctx, number, age); err != nil {
			return err
		}
	}
	return nil
}

// rewrite writes everything in memory to new segments and drops all earlier ones. It does not read those: they may be
// unreadable.
func (b *Bucket) rewrite(ctx context.Context) error {
	b.commit.writeMu.Lock()
	err := b.log.Renew() // if this cannot be synced, the rest is not written either
	b.commit.writeMu.Unlock()
	if err != nil {
		return err
	}
	sealed := b.log.Sealed()
	stored := b.commit.since()
	last := sealed[len(sealed)-1]
	for _, v := range b.vbs {
		if err := v.rewrite(ctx); err != nil {
			return err
		}
		if err := b.log.Lost(last); err != nil { // a new segment is not synced: the old ones must stay
			return err
		}
	}
	if err := stored(b.commit.current()); err != nil { // see compactSegment
		return err
	}
	return b.log.DropThrough(last)
}

// rewrite appends the vbucket's state and the newest version of each key again.
func (v *VBucket) rewrite(ctx context.Context) error {
	v.mu.Lock()
	docs := make([]*Doc, 0, len(v.docs))
	for _, d := range v.docs {
		docs = append(docs, d)
	}
	_, err := v.saveLocked()
	v.mu.Unlock()
	for len(docs) > 0 && err == nil {
		if err = ctx.Err(); err != nil {
			break
		}
		var t *Ticket
		if docs, t, err = v.rewriteSome(docs); err == nil {
			err = t.Wait()
		}
	}
	return err
}

func (v *VBucket) rewriteSome(docs []*Doc) (left []*Doc, t *Ticket, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.steadyLocked(); err != nil {
		return nil, nil, err
	}
	for i, d := range docs {
		if v.docs[d.id()] != d {
			continue // the newer version is in the new segments
		}
		if t, err = v.bucket.commit.appendCopy(func(dst []byte) []byte { return appendDoc(dst, v.id, d) }); err != nil {
			return nil, nil, err
		}
		if t.Size() > relocateBatchBytes {
			return docs[i+1:], t, nil
		}
	}
	return nil, t, nil
}
