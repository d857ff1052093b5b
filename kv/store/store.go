// Package store holds the documents of a KV bucket: in memory by key and by sequence number, and in a log on disk.
//
// It promises: what a Ticket has waited for, and whatever a Snapshot shows, has been handed to the operating system and
// is there again after the process was killed; a failed write takes back everything that depended on it, so that nobody
// has seen it; sequence numbers of an active vbucket rise (by one, without Options.Gaps) and only the newest version of
// a key is kept; a Snapshot is a state the vbucket really had at its End; an active vbucket begins a new branch
// (failover log entry) after an unclean stop, and a vbucket that becomes active begins one where its last complete
// snapshot ended. A replica takes over versions as they are, with their numbers, and remembers the snapshot it is in.
// Memory is bounded by a quota shared by all buckets of the node.
//
// It never syncs per write (the log is synced every second and at an orderly close: a crash of the whole machine may
// lose the last second, and the new branch says so; while a sync that failed is made good, writes are refused), and a
// writer never waits for a reader of snapshots.
package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/kv/seglog"
)

// Errors of this package; test with errors.Is.
var (
	// ErrNotFound: there is no such document.
	ErrNotFound = errors.New("document not found")
	// ErrExists: the document exists, or exists with another CAS.
	ErrExists = errors.New("document exists or has another cas")
	// ErrNotMyVBucket: this node does not serve the vbucket.
	ErrNotMyVBucket = errors.New("not my vbucket")
	// ErrTemporary: the log could not be written (a full disk); nothing was changed, try again later.
	ErrTemporary = errors.New("cannot be stored now, try again later")
	// ErrSealed: the vbucket is being handed over; it is an ErrTemporary for clients.
	ErrSealed = fmt.Errorf("%w: the vbucket is being handed over", ErrTemporary)
	// ErrSealBroken: a vbucket that was to be handed over has been written meanwhile.
	ErrSealBroken = errors.New("vbucket is not sealed at the expected seqno")
	// ErrNotReplica: only a replica takes versions with numbers of their own.
	ErrNotReplica = errors.New("vbucket is no replica")
	// ErrOrder: a version comes out of order.
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
	maxBackoff         = 63 // rounds between two tries to write all anew
)

// Quota is the memory that all buckets of a node may use together.
type Quota struct {
	limit int64
	used  atomic.Int64
}

// NewQuota makes a quota; limit 0 means DefaultQuotaBytes.
func NewQuota(limit int64) *Quota {
	if limit <= 0 {
		limit = DefaultQuotaBytes
	}
	return &Quota{limit: limit}
}

// Full says whether more bytes would exceed the quota.
func (q *Quota) Full(more int64) bool { return q.used.Load()+more > q.limit }

// Used and Limit are in bytes.
func (q *Quota) Used() int64 { return q.used.Load() }

// Limit is in bytes.
func (q *Quota) Limit() int64 { return q.limit }

func (q *Quota) add(n int64) { q.used.Add(n) }

// Options of a bucket.
type Options struct {
	// Dir is the bucket's folder, Name its name, UUID its identity (checked against the folder).
	Dir, Name, UUID string
	// VBuckets is their number, a power of two up to MaxVBuckets; it cannot change.
	VBuckets int
	// State says what this node is to each vbucket; nil means that all are active.
	State func(vb uint16) State
	Quota *Quota
	// PurgeAfter is the age from which tombstones may be forgotten; at twice of it they are. 0 means DefaultPurgeAfter.
	PurgeAfter time.Duration
	// SegmentBytes and Housekeep (sync, expiry and compaction interval) have defaults.
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
	unsynced  atomic.Bool // the last sync failed, and not all is written anew yet
	syncing   sync.Mutex  // held from the beginning of a sync until it is known what has become of it
	skip      int         // rounds of Run before that is tried again; backoff is how many they were last
	backoff   int
	nextPurge time.Time // not before it are tombstones looked for; Run's
	stats     Counters
}

// Counters of a bucket since it was opened.
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
	log, report, err := seglog.Open(seglog.Options{
		Dir: opts.Dir, Identity: identity(opts), SegmentBytes: opts.SegmentBytes, Wrap: opts.WrapFile,
	}, b.replay)
	if err != nil {
		return nil, report, fmt.Errorf("bucket %q: %w", opts.Name, err)
	}
	b.log = log
	b.commit = newCommitter(log, opts.Now)
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

// VBucket returns a vbucket, nil when the number is not one of the bucket's.
func (b *Bucket) VBucket(id uint16) *VBucket {
	if int(id) >= len(b.vbs) {
		return nil
	}
	return b.vbs[id]
}

// VBuckets is their number.
func (b *Bucket) VBuckets() int { return len(b.vbs) }

// Name and UUID identify the bucket.
func (b *Bucket) Name() string { return b.opts.Name }

// UUID identifies the bucket.
func (b *Bucket) UUID() string { return b.opts.UUID }

// Counters are the bucket's running totals.
func (b *Bucket) Counters() *Counters { return &b.stats }

// DiskBytes is the size of the log, LiveBytes what of it is still needed.
func (b *Bucket) DiskBytes() int64 { return b.log.Size() }

// LiveBytes is the part of the log that is still needed.
func (b *Bucket) LiveBytes() int64 { return b.liveBytes.Load() }

// Failing says whether the last write to the log, or its sync, failed.
func (b *Bucket) Failing() bool { return b.failing.Load() || b.unsynced.Load() }

// Unsynced says whether a sync has failed, and not everything is written anew yet.
func (b *Bucket) Unsynced() bool { return b.unsynced.Load() }

// Quota is the memory that the bucket shares with the others of its node.
func (b *Bucket) Quota() *Quota { return b.quota }

// PurgeAfter is the age from which tombstones may be forgotten.
func (b *Bucket) PurgeAfter() time.Duration { return b.opts.PurgeAfter }

func (b *Bucket) now() time.Time { return b.opts.Now() }

// newUUID makes a vbuuid: 48 random bits, never 0, as KV engines do (it survives every JSON reader).
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

// Run keeps the bucket's house until ctx ends: syncs the log, expires documents, compacts, forgets old tombstones. What
// a crash of the machine takes away does not depend on how long the others take.
func (b *Bucket) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { b.every(ctx, func() { _ = b.sync() }); return nil }) // tried again, see keep
	g.Go(func() error { b.every(ctx, func() { b.keep(ctx) }); return nil })
	return g.Wait()
}

// every calls f each time that the house is to be kept, until ctx ends.
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

// keep does what is to be done beside syncs, in which nothing else of it may happen.
func (b *Bucket) keep(ctx context.Context) {
	if b.unsynced.Load() {
		_ = b.renew(ctx)
		return
	}
	b.Expire()
	if err := b.Compact(ctx); err != nil && ctx.Err() == nil {
		b.opts.Logger.Warn("compaction postponed", "bucket", b.opts.Name, "error", err)
	}
	if err := b.purgeDue(ctx); err != nil && ctx.Err() == nil {
		b.opts.Logger.Warn("purge of tombstones postponed", "bucket", b.opts.Name, "error", err)
	}
}

// sync syncs the log. When that fails, writes are refused until everything that is needed has been written to new files
// and synced there (renew): a second sync that succeeds would prove nothing.
func (b *Bucket) sync() error {
	b.syncing.Lock()
	defer b.syncing.Unlock()
	err := b.log.Sync()
	if err == nil {
		return nil
	}
	b.commit.setUnsynced(err)
	if !b.unsynced.Swap(true) {
		b.opts.Logger.Error("log cannot be synced: writes are refused until all documents are written to new files; look "+
			"after the disk",
			"bucket", b.opts.Name, "folder", filepath.Clean(b.opts.Dir), "error", err)
	}
	return err
}

// errNotNow says that it is not tried in this round.
var errNotNow = errors.New("tried again later")

// renew writes everything that is needed to new files and lets writes in again, after rounds that grow when it fails.
func (b *Bucket) renew(ctx context.Context) error {
	if b.skip > 0 {
		b.skip--
		return errNotNow
	}
	err := b.rewrite(ctx)
	if err == nil {
		b.syncing.Lock() // who has begun before still finds, and tells of, what is made good now
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

// Expire turns documents whose time is up into tombstones, a bounded number per call.
func (b *Bucket) Expire() {
	now := uint32(b.now().Unix())
	for _, v := range b.vbs {
		n, ticket, err := v.expire(now, expirePerRound)
		if err == nil {
			err = ticket.Wait()
		}
		if err != nil {
			return // reported by wrote; tried again in the next round
		}
		b.stats.Expired.Add(int64(n))
	}
}

// Close writes what is left, syncs and leaves the marker of an orderly stop. Nobody may use the bucket any more.
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

// release gives the bucket's memory back to the node's quota.
func (b *Bucket) release() {
	for _, v := range b.vbs {
		v.mu.Lock()
		b.quota.add(-v.bytes)
		v.docs, v.list, v.bytes, v.stale, v.staleBytes = map[docID]*Doc{}, nil, 0, 0, 0
		v.mu.Unlock()
	}
}
