// Package store holds the documents of a KV bucket: in memory by key and by seqno, and in a log on disk.
//
// What a Ticket has waited for, and whatever a Snapshot shows, has been passed to the operating system and survives a
// kill of the process. A failed write takes back everything that depended on it before anything of it is visible.
// Seqnos of an active vbucket rise (by one, without Options.Gaps), and only the newest version of a key is kept. A
// Snapshot is a state that the vbucket really had at its End. An active vbucket begins a new branch (failover log
// entry) after an unclean stop, and a vbucket that becomes active begins one where its last complete snapshot ended.
// A replica stores versions with their original numbers, and remembers the snapshot it is in. Memory is bounded by a
// quota shared by all buckets of the node.
//
// The store does not sync each write: the log is synced every second and at an orderly close. A crash of the machine
// may lose the last second, which the new branch shows; after a failed sync, writes are refused until the loss is
// repaired. A writer never waits for a reader of snapshots.
package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/kv/seglog"
)

// Errors of this package; test them with errors.Is.
var (
	// ErrNotFound: there is no such document.
	ErrNotFound = errors.New("document not found")
	// ErrExists: the document exists, or exists with another CAS.
	ErrExists = errors.New("document exists or has another cas")
	// ErrNotMyVBucket: this node does not serve the vbucket.
	ErrNotMyVBucket = errors.New("not my vbucket")
	// ErrTemporary: the log could not be written (a full disk, or almost full); nothing was changed, retry later.
	ErrTemporary = errors.New("the write cannot be stored now, try again later")
	// ErrSealed: the vbucket is being handed over; for clients it is an ErrTemporary.
	ErrSealed = fmt.Errorf("%w: the vbucket is being handed over", ErrTemporary)
	// ErrSealBroken: a vbucket that was to be handed over was written to meanwhile.
	ErrSealBroken = errors.New("vbucket is not sealed at the expected seqno")
	// ErrNotReplica: only a replica accepts versions with numbers of their own.
	ErrNotReplica = errors.New("vbucket is not a replica")
	// ErrOrder: a version is out of order.
	ErrOrder = errors.New("version out of order")
	// ErrNoMemory: the quota is used up; delete documents or raise it.
	ErrNoMemory = errors.New("memory quota is used up")
)

// Defaults and bounds of a bucket.
const (
	DefaultQuotaBytes  = 2 << 30
	DefaultPurgeAfter  = 72 * time.Hour
	defaultHousekeep   = time.Second
	minPinBytes        = 64 << 20 // versions held for slow snapshots: at least this much per vbucket
	expirePerRound     = 1024     // documents expired per vbucket and round
	MaxVBuckets        = 1024
	compactionSlack    = 2 // segments of garbage beyond the live data that are tolerated
	relocateBatchBytes = 1 << 20
	maxBackoff         = 63 // maximum number of rounds between two attempts to rewrite everything
)

// Quota bounds the memory of all buckets of a node together.
type Quota struct {
	limit int64
	used  atomic.Int64
}

// NewQuota returns a quota; limit 0 means DefaultQuotaBytes.
func NewQuota(limit int64) *Quota {
	if limit <= 0 {
		limit = DefaultQuotaBytes
	}
	return &Quota{limit: limit}
}

// Full reports whether more additional bytes would exceed the quota.
func (q *Quota) Full(more int64) bool { return q.used.Load()+more > q.limit }

// Used returns the bytes in use.
func (q *Quota) Used() int64 { return q.used.Load() }

// Limit returns the limit in bytes.
func (q *Quota) Limit() int64 { return q.limit }

func (q *Quota) add(n int64) { q.used.Add(n) }

// Options configures a bucket.
type Options struct {
	// Dir is the bucket's folder, Name its name, UUID its identity (checked against the folder).
	Dir, Name, UUID string
	// VBuckets is the number of vbuckets, a power of two up to MaxVBuckets; it cannot change.
	VBuckets int
	// State returns the state of each vbucket on this node; nil means that all are active.
	State func(vb uint16) State
	Quota *Quota
	// PurgeAfter is the age from which tombstones may be purged; at twice that age they are. 0 means DefaultPurgeAfter.
	PurgeAfter time.Duration
	// SegmentBytes is the size at which a segment of the log is sealed, on a small disk at most max(1 MiB, disk/16).
	// It and Housekeep (sync, expiry and compaction interval) have defaults.
	SegmentBytes int64
	Housekeep    time.Duration
	// Now is the clock, Random a source of random 64-bit numbers.
	Now    func() time.Time
	Random func() uint64
	Logger hclog.Logger
	// Gaps leaves out every third sequence number, for tests: real engines leave some out, too.
	Gaps bool
	// WrapFile, when set, wraps the log's files (fault injection).
	WrapFile func(seglog.File) seglog.File
	// Disk is shared by the buckets of a node; nil means that the bucket has the disk of Dir for itself.
	Disk *Disk
}

// Bucket is an open bucket.
type Bucket struct {
	opts      Options
	log       *seglog.Log
	commit    *committer
	vbs       []*VBucket
	quota     *Quota
	liveBytes atomic.Int64
	pinLimit  int64
	failing   atomic.Bool // the last write failed
	unsynced  atomic.Bool // the last sync failed, and not everything has been rewritten yet
	hung      bool        // the log says that the disk hangs; owned by Run, as low is
	low       bool        // the disk was almost full when Run looked last
	syncs     pendingSince
	syncing   sync.Mutex // held during a sync and the handling of its result
	skip      int        // rounds of Run before the rewrite is retried; backoff is the last number of rounds
	backoff   int
	nextPurge time.Time // time of the next search for tombstones; owned by Run
	compacted compactions
	stats     Counters
}

// Counters holds totals of a bucket since it was opened.
type Counters struct {
	Writes, WriteBytes, WriteErrors, Expired, Purged, Relocated, SegmentsDropped atomic.Int64
	Replicated, Resets                                                           atomic.Int64
}

// Open opens or creates a bucket.
func Open(opts Options) (*Bucket, seglog.Report, error) {
	if opts.VBuckets < 1 || opts.VBuckets > MaxVBuckets || opts.VBuckets&(opts.VBuckets-1) != 0 {
		return nil, seglog.Report{}, fmt.Errorf("bucket %q: %d vbuckets: must be a power of two up to %d", opts.Name,
			opts.VBuckets, MaxVBuckets)
	}
	opts.setDefaults()
	b := &Bucket{opts: opts, quota: opts.Quota, pinLimit: max(minPinBytes, opts.Quota.Limit()/int64(opts.VBuckets))}
	for i := range opts.VBuckets {
		b.vbs = append(b.vbs, &VBucket{id: uint16(i), bucket: b, state: Dead, docs: map[docID]*Doc{},
			listeners: map[Listener]struct{}{}})
		b.vbs[i].collections = newCollections()
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil { // whose disk is measured
		return nil, seglog.Report{}, fmt.Errorf("bucket %q: make log folder: %w", opts.Name, err)
	}
	if opts.Disk == nil {
		opts.Disk = NewDisk(opts.Dir)
	}
	space := newSpace(opts.Disk, opts.SegmentBytes)
	opts.SegmentBytes = space.segment
	b.opts = opts
	log, report, err := seglog.Open(seglog.Options{
		Dir: opts.Dir, Identity: identity(opts), SegmentBytes: opts.SegmentBytes, Wrap: opts.WrapFile,
	}, b.replay)
	if err != nil {
		return nil, report, fmt.Errorf("bucket %q: %w", opts.Name, err)
	}
	b.log = log
	space.fit(log.Largest())
	b.commit = newCommitter(log, space, opts.Now)
	b.commit.onWrite = b.wrote
	if err := b.begin(report); err != nil {
		_ = log.Close(false)
		return nil, report, fmt.Errorf("bucket %q: %w", opts.Name, err)
	}
	return b, report, nil
}

func (o *Options) setDefaults() {
	if o.Quota == nil {
		o.Quota = NewQuota(0)
	}
	if o.PurgeAfter <= 0 {
		o.PurgeAfter = DefaultPurgeAfter
	}
	if o.Housekeep <= 0 {
		o.Housekeep = defaultHousekeep
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = seglog.DefaultSegmentBytes
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
}

func identity(o Options) string {
	return fmt.Sprintf("%s/%s/%d", o.Name, o.UUID, o.VBuckets)
}

// VBucket returns a vbucket, nil if the id is out of range.
func (b *Bucket) VBucket(id uint16) *VBucket {
	if int(id) >= len(b.vbs) {
		return nil
	}
	return b.vbs[id]
}

// VBuckets returns the number of vbuckets.
func (b *Bucket) VBuckets() int { return len(b.vbs) }

// Name returns the bucket's name.
func (b *Bucket) Name() string { return b.opts.Name }

// UUID returns the bucket's uuid.
func (b *Bucket) UUID() string { return b.opts.UUID }

// Counters returns the bucket's running totals.
func (b *Bucket) Counters() *Counters { return &b.stats }

// DiskBytes returns the size of the log in bytes.
func (b *Bucket) DiskBytes() int64 { return b.log.Size() }

// LiveBytes returns the bytes of the log that are still needed.
func (b *Bucket) LiveBytes() int64 { return b.liveBytes.Load() }

// Failing reports whether the last write to the log, or its sync, failed.
func (b *Bucket) Failing() bool { return b.failing.Load() || b.unsynced.Load() }

// Quota returns the quota that the bucket shares with the other buckets of its node.
func (b *Bucket) Quota() *Quota { return b.quota }

// PurgeAfter returns the age from which tombstones may be purged.
func (b *Bucket) PurgeAfter() time.Duration { return b.opts.PurgeAfter }

func (b *Bucket) now() time.Time { return b.opts.Now() }

// newUUID returns a new vbuuid: 48 random bits, never 0, as in KV engines (every JSON parser preserves it).
func (b *Bucket) newUUID() uint64 {
	for {
		if u := b.opts.Random() >> 16; u != 0 {
			return u
		}
	}
}

func (b *Bucket) wrote(bytes int, _ time.Duration, err error) {
	if err == nil {
		b.stats.Writes.Add(1)
		b.stats.WriteBytes.Add(int64(bytes))
		if b.failing.Swap(false) {
			b.opts.Logger.Info("log can be written again", "bucket", b.opts.Name)
		}
		return
	}
	b.stats.WriteErrors.Add(1)
	if !b.failing.Swap(true) {
		b.opts.Logger.Error("log cannot be written: writes are refused until it can; make room on the disk",
			"bucket", b.opts.Name, "folder", filepath.Clean(b.opts.Dir), "error", err)
	}
}

// Run does the bucket's housekeeping until ctx ends: it syncs the log, expires documents, compacts, and purges old
// tombstones. Syncs have a loop of their own, so that the loss in a crash of the machine does not depend on how long
// the rest takes.
func (b *Bucket) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { b.every(ctx, func() { _ = b.sync() }); return nil }) // retried, see keep
	g.Go(func() error { b.every(ctx, func() { b.keep(ctx) }); return nil })
	g.Go(func() error { b.every(ctx, b.watch); return nil }) // while the others hang with the disk
	return g.Wait()
}

// every calls f at each housekeeping interval until ctx ends.
func (b *Bucket) every(ctx context.Context, f func()) {
	tick := time.NewTicker(b.opts.Housekeep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// keep does the housekeeping except syncs. While a failed sync is being repaired, it does only that.
func (b *Bucket) keep(ctx context.Context) {
	if b.unsynced.Load() {
		_ = b.renew(ctx)
		return
	}
	b.Expire()
	err := b.Compact(ctx)
	if !errors.Is(err, errNotNow) && ctx.Err() == nil && b.compacted.failed.First("", err) {
		b.opts.Logger.Warn("compaction postponed", "bucket", b.opts.Name, "error", err)
	}
	if err := b.purgeDue(ctx); err != nil && ctx.Err() == nil {
		b.opts.Logger.Warn("purge of tombstones postponed", "bucket", b.opts.Name, "error", err)
	}
}

// sync syncs the log. If that fails, writes are refused until everything that is needed has been written to new files
// and synced there (renew): a later successful sync of the same files would prove nothing.
func (b *Bucket) sync() error {
	b.syncing.Lock()
	defer b.syncing.Unlock()
	b.syncs.begin(b.now())
	err := b.log.Sync()
	b.syncs.end()
	if err == nil {
		return nil
	}
	b.commit.setUnsynced(err)
	if !b.unsynced.Swap(true) {
		b.opts.Logger.Error("log cannot be synced: writes are refused until all documents are written to new files; check "+
			"the disk",
			"bucket", b.opts.Name, "folder", filepath.Clean(b.opts.Dir), "error", err)
	}
	return err
}

// errNotNow means that nothing is attempted in this round.
var errNotNow = errors.New("trying again later")

// renew writes everything that is needed to new files and accepts writes again. After a failure it pauses for a
// growing number of rounds.
func (b *Bucket) renew(ctx context.Context) error {
	if b.skip > 0 {
		b.skip--
		return errNotNow
	}
	err := b.rewrite(ctx)
	if err == nil {
		b.syncing.Lock() // a sync that began earlier must still report what is repaired here
		defer b.syncing.Unlock()
		err = b.log.Sync()
	}
	if err != nil {
		if ctx.Err() == nil {
			b.opts.Logger.Warn("documents are not written to new files yet", "bucket", b.opts.Name, "error", err)
		}
		b.backoff = min(2*b.backoff+1, maxBackoff)
		b.skip = b.backoff
		return err
	}
	b.commit.setUnsynced(nil)
	b.unsynced.Store(false)
	b.backoff = 0
	b.opts.Logger.Info("all documents are in new files, which are synced", "bucket", b.opts.Name)
	return nil
}

// Expire turns expired documents into tombstones, a bounded number per call.
func (b *Bucket) Expire() {
	now := uint32(b.now().Unix())
	for _, v := range b.vbs {
		n, ticket, err := v.expire(now, expirePerRound)
		if err == nil {
			err = ticket.Wait()
		}
		if err != nil {
			return // reported by wrote; retried in the next round
		}
		b.stats.Expired.Add(int64(n))
	}
}

// Close writes what is left, syncs, and writes the marker of an orderly stop. The bucket must not be used afterwards.
func (b *Bucket) Close() error {
	werr := b.commit.current().Wait()
	b.release()
	if err := b.log.Close(werr == nil); err != nil {
		return fmt.Errorf("bucket %q: %w", b.opts.Name, err)
	}
	return werr
}

// Abandon closes the bucket without the marker of an orderly stop, as a crash would.
func (b *Bucket) Abandon() error {
	b.release()
	return b.log.Close(false)
}

// release returns the bucket's memory to the node's quota.
func (b *Bucket) release() {
	b.commit.settle()
	for _, v := range b.vbs {
		v.mu.Lock()
		b.quota.add(-v.bytes)
		v.docs, v.list, v.bytes, v.stale, v.staleBytes = map[docID]*Doc{}, nil, 0, 0, 0
		v.mu.Unlock()
	}
}
