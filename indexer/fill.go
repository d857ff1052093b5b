package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/pace"
	"tidemark/indexer/peers"
	"tidemark/indexer/storage"
	"tidemark/indexer/transfer"
	"tidemark/ingest"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// A new copy of a slice that another indexer has is filled with that one's files. It joins the running streams at once,
// as every newcomer does, but asks for no side streams (ingest.Bucket.Defer). When all files are here and good, it is
// what an indexer is that starts again with them on its disk: it is taken away from its bucket, gets them in the place
// of what it had, and is added anew with their positions, from which the joining rule makes it whole. Whatever goes
// wrong leaves a copy that asks KV for everything, as if nobody had had files.

const (
	// fillPause is how long is waited at first when all who could send are sending to others; fillMost later on.
	fillPause = time.Second
	fillMost  = 8 * time.Second
	// fillPatience is how long a copy waits for its turn while nothing moves, neither here nor at who could send it; KV
	// fills it then, and in any case when it has waited fillLongest, without the time in which files of copies came here.
	fillPatience = 10 * time.Minute
	fillLongest  = 6 * time.Hour
	// fillShare is which part of a processor's time goes into checking what was received.
	fillShare = 0.5
	// fillCheck is how many times as fast as files are sent they are read again, so that the check takes little beside.
	fillCheck = 4
	// A transfer that brings less than fillLeast bytes a second, after fillWarm, is given up.
	fillLeast = 256 << 10
	fillWarm  = time.Minute
	// fillsAnew is how often a copy is asked for again because its bucket was rolled back meanwhile.
	fillsAnew = 3
	// fillsCut is how often it is asked for again because its source went in the middle.
	fillsCut = 4
)

var (
	// errUnwanted: nothing has to be filled any more.
	errUnwanted = errors.New("the copy is whole or gone")
	// errNobody: it is of what each of them has answered.
	errNobody = errors.New("no indexer could send it")
	// errAnew: what was sent is of before a rollback.
	errAnew = errors.New("the bucket was rolled back meanwhile")
	// errOtherBranch: who has the slice has not heard of a rollback that is known here, or the other way round.
	errOtherBranch = errors.New("the bucket is not rolled back there as it is here")
	// errSlow: a transfer is given up.
	errSlow = fmt.Errorf("files come at less than %d bytes a second", fillLeast)
	// errCut: the source went when it had sent something, as one does that is started again.
	errCut = errors.New("it went in the middle")
	// errLater: it is to be tried again, when others had their turn.
	errLater = errors.New("later")
	// errHalf: the copy was taken from its bucket and could not be given the files. Nothing else is tried: streams may be
	// open that know where it stood.
	errHalf = errors.New("the files could not be installed")
)

// filler fills copies from other indexers, one at a time, and sends files of copies here to others.
type filler struct {
	x       *Indexer
	nodes   *peers.Nodes
	sender  *transfer.Sender
	sending *pace.Pace    // of files to other indexers
	checked *pace.Pace    // of files that were received, while they are checked
	wake    chan struct{} // capacity 1

	mu    sync.Mutex
	queue []*fill
	now   *fill // under way
}

// fill is a copy that is to be filled.
type fill struct {
	s      *storage.Slice
	k      *bucket
	from   []index.NodeID          // who has the slice, by the definitions
	waited time.Duration           // in the queue, while no files came here
	moved  time.Time               // when something that it waits for, or it itself, was seen moving
	sent   map[index.NodeID]uint64 // of filler.mu: what busy sources have moved, as they said last
	cancel context.CancelFunc
	failed []error // why those that have gone from the list cannot send it
	anew   int     // of fillsAnew
	cut    int     // of fillsCut
	had    bool    // something has come
	pause  time.Duration
	after  time.Time     // it is not to be tried before
	gone   atomic.Bool   // the copy was let go: another one of its id is none of this fill's business
	puts   chan struct{} // of filler.mu; closed when its files are not being installed any more; nil: they are not yet
	// expected is how many bytes the files are that are being received
	expected atomic.Int64
}

func newFiller(x *Indexer) *filler {
	rate := x.cfg.TransferRate
	f := &filler{x: x, nodes: x.peers.Ask(1), wake: make(chan struct{}, 1), sending: pace.New(rate, 0, x.now),
		checked: pace.New(fillCheck*rate, fillShare, x.now)}
	f.sender = &transfer.Sender{Open: x.export, Now: x.now, Log: x.log, Pace: f.sending.Wait,
		Spawn: func(run func(context.Context) error) { x.spawn(run) }}
	return f
}

// unfilled reports whether a copy has nothing of what was before it.
func unfilled(s *storage.Slice) bool {
	stable, _ := s.Timestamp()
	return stable.Total() == 0 && !slices.ContainsFunc(s.Positions(), func(p ingest.Position) bool { return p.Side > 0 })
}

func (f *filler) add(k *bucket, s *storage.Slice, from []index.NodeID) {
	now := f.x.now()
	f.mu.Lock()
	f.queue = append(f.queue, &fill{s: s, k: k, from: slices.Clone(from), moved: now,
		sent: map[index.NodeID]uint64{}})
	f.mu.Unlock()
	wake(f.wake)
}

// fills reports whether something is under way, or waits, for a copy.
func (f *filler) fills(s *storage.Slice) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now != nil && f.now.s == s && !f.now.gone.Load() ||
		slices.ContainsFunc(f.queue, func(o *fill) bool { return o.s == s })
}

// patient reports whether it may still wait for its turn.
func (o *fill) patient(now time.Time) bool {
	return now.Sub(o.moved) <= fillPatience && o.waited <= fillLongest
}

// saw notes what a busy source has moved since its process began.
func (o *fill) saw(node index.NodeID, moved uint64, now time.Time) {
	if was, heard := o.sent[node]; !heard || was != moved {
		o.sent[node], o.moved = moved, now
	}
}

// drop ends what is under way for a copy that goes. After it nothing is installed in it, or added to its bucket.
func (f *filler) drop(ctx context.Context, id index.CopyID) error {
	f.mu.Lock()
	f.queue = slices.DeleteFunc(f.queue, func(o *fill) bool { return o.s.Meta().Copy == id })
	var puts chan struct{}
	if f.now != nil && f.now.s.Meta().Copy == id {
		f.now.gone.Store(true)
		f.now.cancel()
		puts = f.now.puts
	}
	f.mu.Unlock()
	if puts == nil {
		return nil
	}
	select {
	case <-puts:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// underWay is the copy that receives files, what of them is here, and how much they are; 0 when none does.
func (f *filler) underWay() (id index.CopyID, received, expected uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil || f.now.expected.Load() == 0 {
		return 0, 0, 0
	}
	return f.now.s.Meta().Copy, uint64(max(f.now.s.Incoming(), 0)), uint64(f.now.expected.Load())
}

// putting notes that files are being installed in a copy, unless it was let go. done is called when they are, or are
// not.
func (f *filler) putting(o *fill) (done func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.gone.Load() {
		return nil, errUnwanted
	}
	o.puts = make(chan struct{})
	return func() { close(o.puts) }, nil
}

// Expire lets KV fill what has waited too long for a source, until ctx ends.
func (f *filler) Expire(ctx context.Context) error {
	for last := f.x.now(); pace.Sleep(ctx, fillPause) == nil; {
		now := f.x.now()
		late := f.late(now, max(now.Sub(last), 0))
		last = now
		for _, o := range late {
			f.x.log.Warn("a copy has waited too long for files: it is filled from KV", "copy", o.s.Meta().Copy)
			if err := o.s.DropIncoming(); err != nil {
				f.x.log.Warn("files that were received for a copy stay for now", "copy", o.s.Meta().Copy, "error", err)
			}
			f.x.metrics.fills.WithLabelValues("failed").Inc()
			f.fromKV(ctx, o)
		}
	}
	return nil
}

// late takes off the queue what has waited too long; past is the time since it was looked at last.
func (f *filler) late(now time.Time, past time.Duration) (late []*fill) {
	f.mu.Lock()
	defer f.mu.Unlock()
	moving := f.now != nil && f.now.expected.Load() > 0
	f.queue = slices.DeleteFunc(f.queue, func(o *fill) bool {
		if moving {
			o.moved = now
		} else {
			o.waited += past
		}
		if !o.patient(now) {
			late = append(late, o)
		}
		return !o.patient(now)
	})
	return late
}

// fromKV lets side streams be wanted for a copy. Of one that is gone nothing is here; one that was installed is wanted
// already.
func (f *filler) fromKV(ctx context.Context, o *fill) {
	id := o.s.Meta().Copy
	_ = o.k.do(ctx, func() {
		if o.k.slices[id] == o.s && !o.gone.Load() {
			o.k.st.Defer(id, false)
		}
	})
	wake(f.x.sides)
}

// Run fills until ctx ends.
func (f *filler) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		below, o, pause := f.next(ctx)
		if o == nil {
			timer := time.NewTimer(pause)
			select {
			case <-f.wake:
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		f.one(below, o)
		o.cancel()
	}
	return nil
}

// next takes the first that may be tried now; where there is none, pause is how long that may stay so.
func (f *filler) next(ctx context.Context) (below context.Context, o *fill, pause time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now, pause = nil, time.Hour
	now := f.x.now()
	for i, o := range f.queue {
		if wait := o.after.Sub(now); wait > 0 {
			pause = min(pause, wait)
			continue
		}
		f.now, f.queue = o, slices.Delete(f.queue, i, i+1)
		below, o.cancel = context.WithCancel(ctx)
		return below, o, 0
	}
	return ctx, nil, pause
}

// putBack lets a fill be tried again later, behind others; false when its copy was let go.
func (f *filler) putBack(o *fill) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.gone.Load() {
		return false
	}
	o.pause = min(max(2*o.pause, fillPause), fillMost)
	o.after = f.x.now().Add(o.pause)
	f.now, f.queue = nil, append(f.queue, o)
	return true
}

// one fills a copy, or lets KV do it.
func (f *filler) one(ctx context.Context, o *fill) {
	m, began := o.s.Meta(), f.x.now()
	node, err := f.fill(ctx, o)
	if errors.Is(err, errLater) && ctx.Err() == nil && f.putBack(o) {
		return
	}
	outcome := "installed"
	switch {
	case err == nil:
		f.x.log.Info("a copy was filled with another indexer's files", "copy", m.Copy, "index", m.Index, "slice", m.Slice,
			"node", node, "took", f.x.now().Sub(began))
	case ctx.Err() != nil || errors.Is(err, errUnwanted) || errors.Is(err, errLater):
		outcome = "unwanted"
	default:
		outcome = "failed"
		f.x.log.Warn("a copy cannot be filled with another indexer's files: it is filled from KV", "copy", m.Copy, "index",
			m.Index, "slice", m.Slice, "error", err)
	}
	f.x.metrics.fills.WithLabelValues(outcome).Inc()
	if ended := ctx.Err() != nil && !o.gone.Load(); ended {
		return // the process: the next one goes on with what is here
	}
	if err := o.s.DropIncoming(); err != nil {
		f.x.log.Warn("files that were received for a copy stay for now", "copy", m.Copy, "error", err)
	}
	f.fromKV(context.WithoutCancel(ctx), o)
}

// fill asks one after the other who has the slice. Errors wrap errLater when one of them may send it later.
func (f *filler) fill(ctx context.Context, o *fill) (from index.NodeID, err error) {
	if f.x.inRollback(o.k.name) && o.patient(f.x.now()) {
		return 0, fmt.Errorf("%w: %w", errLater, errOtherBranch)
	}
	d := f.x.settled()
	o.from = slices.DeleteFunc(o.from, func(n index.NodeID) bool {
		return !slices.ContainsFunc(d.Indexers, func(e wire.Endpoint) bool { return e.Node == n })
	})
	var busy error
	for i := 0; i < len(o.from); i++ {
		err := f.from(ctx, o, o.from[i])
		switch {
		case err == nil || ctx.Err() != nil || errors.Is(err, errUnwanted) || errors.Is(err, errHalf) ||
			errors.Is(err, storage.ErrDiskFull):
			return o.from[i], err
		case f.again(o, o.from[i], err):
			busy = err
		default:
			o.failed = append(o.failed, fmt.Errorf("node %d: %w", o.from[i], err))
			o.from = slices.Delete(o.from, i, i+1)
			i--
		}
	}
	if busy == nil || !o.patient(f.x.now()) {
		return 0, errors.Join(append(o.failed, busy, errNobody)...)
	}
	return 0, fmt.Errorf("%w: %w", errLater, busy)
}

// again reports whether a node that could not send a copy now may be asked again.
func (f *filler) again(o *fill, node index.NodeID, err error) bool {
	switch {
	case errors.Is(err, errAnew) && o.anew < fillsAnew:
		o.anew++
		o.moved = f.x.now() // however long it was receiving
	case errors.Is(err, errCut) && o.cut < fillsCut:
		o.cut++
		o.moved = f.x.now()
	case errors.Is(err, transfer.ErrBusy), errors.Is(err, errOtherBranch):
		if said := (*transfer.Busy)(nil); errors.As(err, &said) {
			f.mu.Lock()
			o.saw(node, said.Moved, f.x.now())
			f.mu.Unlock()
		}
	default:
		return false
	}
	return true
}

// about is what an indexer says of a copy that it sends.
type about struct {
	Meta       storage.Meta `json:"meta"`
	Format     string       `json:"format"` // of the files
	Source     string       `json:"source"` // see storage.Export
	Generation uint64       `json:"generation"`
	RollbackID uint64       `json:"rollback_id"`
	Tombstones bool         `json:"tombstones"` // there may be some of a side stream
}

// fits: files are of the same slice of the same index and bucket, and of a form that is known here.
func (a *about) fits(m storage.Meta) error {
	theirs := a.Meta
	theirs.Copy = m.Copy
	if !reflect.DeepEqual(theirs, m) {
		return fmt.Errorf("files of %+v, want %+v", a.Meta, m)
	}
	if a.Format != storage.ExportFormat {
		return fmt.Errorf("files of format %s, want %s", a.Format, storage.ExportFormat)
	}
	return nil
}

// same reports whether files are of the bucket as it is here now, after the same rollbacks.
func (f *filler) same(k *bucket, said *about) bool {
	return k.generation.Load() == said.Generation && k.rollback.Load() == said.RollbackID && !f.x.inRollback(k.name)
}

// from brings a copy here from one node, and installs it.
func (f *filler) from(ctx context.Context, o *fill, node index.NodeID) (err error) {
	m, began, got := o.s.Meta(), f.x.now(), 0.0
	var in *storage.Incoming
	defer func() {
		o.expected.Store(0)
		if in != nil {
			err = errors.Join(err, in.Close())
		}
	}()
	var said about
	r := transfer.Receiver{
		Name: f.x.identity.get().UUID,
		Peer: func(ctx context.Context, q *transfer.Question) (io.ReadCloser, error) {
			// Each question has a deadline of its own, for links of any length; a node is silent where it is that alone.
			return f.nodes.Watched(ctx, node, transfer.Path, q, nil)
		},
		Begin: func(offer *transfer.Offer) (transfer.Sink, error) {
			if err := json.Unmarshal(offer.About, &said); err != nil {
				return nil, fmt.Errorf("what is said of the files: %w", err)
			}
			if err := said.fits(m); err != nil {
				return nil, err
			}
			if !f.same(o.k, &said) {
				return nil, errOtherBranch
			}
			began = f.x.now()
			files := make([]storage.File, len(offer.Files))
			for i, file := range offer.Files {
				files[i] = storage.File(file)
			}
			var err error
			in, err = o.s.Receive(said.Source, files)
			o.expected.Store(offer.Bytes())
			return in, err
		},
		Got: func(n int) error {
			f.x.metrics.filled.WithLabelValues("received").Add(float64(n))
			got += float64(n)
			o.had = true
			if took := f.x.now().Sub(began); took > fillWarm && got < fillLeast*took.Seconds() {
				return errSlow
			}
			if !f.same(o.k, &said) {
				return errAnew
			}
			return nil
		},
	}
	if _, _, err = r.Receive(ctx, &transfer.Want{Index: m.Index, CreatedMS: m.CreatedMS, Slice: m.Slice,
		BucketUUID: m.BucketUUID, Generation: o.k.generation.Load(), RollbackID: o.k.rollback.Load()}); err != nil {
		if o.had && lost(err) {
			err = fmt.Errorf("%w: %w", errCut, err)
		}
		return err
	}
	if err := in.Verify(ctx, f.x.checkPace()); err != nil {
		if errors.Is(err, storage.ErrDamaged) { // nothing of it is gone on with
			err = errors.Join(err, in.Discard())
		}
		return err
	}
	return f.install(ctx, o, in, &said)
}

// setTransferRate takes over what the cluster has set, 0: nothing. An indexer that sends no files goes on so.
func (x *Indexer) setTransferRate(rate int64) {
	if rate == 0 {
		rate = x.cfg.TransferRate
	}
	x.fills.sending.Set(rate)
	x.fills.checked.Set(fillCheck * rate)
}

// checkPace lets the check of what was received go no faster than files are sent, and take no more than its share.
func (x *Indexer) checkPace() func(ctx context.Context, n int) error {
	resumed := x.now()
	return func(ctx context.Context, n int) error {
		x.fills.checked.Worked(x.now().Sub(resumed))
		err := x.fills.checked.Wait(ctx, n)
		resumed = x.now()
		return err
	}
}

// lost reports whether a transfer ended because the source does not answer, or does not know of it any more.
func lost(err error) bool {
	var refused *rpc.Problem
	if errors.As(err, &refused) {
		return refused.Code == errcode.NotFound || refused.Code == errcode.Unavailable || refused.Code == errcode.Internal
	}
	return !errors.Is(err, errSlow) && !errors.Is(err, errAnew) && !errors.Is(err, storage.ErrIO) &&
		!errors.Is(err, storage.ErrDiskFull) && !errors.Is(err, storage.ErrInvalid)
}

// install gives a copy the files. Nothing is written to a copy that was taken away from its bucket; added again, it is
// as after a restart of the process. Meanwhile lists of definitions are taken over that leave it where it is.
func (f *filler) install(ctx context.Context, o *fill, in *storage.Incoming, said *about) error {
	x, id := f.x, o.s.Meta().Copy
	done, err := f.putting(o)
	if err != nil {
		return err
	}
	defer done()
	if said.Tombstones {
		if err := x.marks.set(id); err != nil {
			return err
		}
	}
	if err := o.k.takeAway(ctx, o.s, func() error {
		switch s, ok := x.store.Slice(id); {
		case !ok || s != o.s || x.isOrphan(id) || !unfilled(o.s) || len(x.snapshots.Refs(id)) > 0:
			return errUnwanted
		case o.k.st.Generation() != said.Generation || o.k.st.RollbackID() != said.RollbackID || x.inRollback(o.k.name):
			return errAnew
		}
		return nil
	}); err != nil {
		return err
	}
	// from here on it is not left in the middle: ctx may end, the bucket has the copy again
	ctx = context.WithoutCancel(ctx)
	x.snapshots.Drop(id)
	if err := o.s.Install(ctx, in); err != nil {
		x.spawn(func(ctx context.Context) error {
			o.k.bringBackOpen(ctx, o.s)
			return nil
		})
		return errors.Join(errHalf, err)
	}
	return o.k.bringBack(ctx, o.s)
}

// settled returns the definitions that are in force when no list is being taken over: copies are made before it is.
func (x *Indexer) settled() wire.Definitions {
	x.applying.Lock()
	defer x.applying.Unlock()
	return x.present()
}

func (x *Indexer) inRollback(bucket string) bool {
	d := x.present()
	return slices.ContainsFunc(d.Buckets, func(b wire.Bucket) bool { return b.Name == bucket && b.InRollback })
}

// export makes what another indexer wants of a copy here that was exact once, and lacks little now.
func (x *Indexer) export(ctx context.Context, w *transfer.Want) (transfer.Export, error) {
	if x.cfg.TransferRate == 0 {
		return nil, rpc.Refuse(errcode.NotFound, "this indexer sends no files: it was started with --transfer-rate 0")
	}
	for _, s := range x.store.Slices() {
		m := s.Meta()
		if m.Index != w.Index || m.Slice != w.Slice || m.CreatedMS != w.CreatedMS || m.BucketUUID != w.BucketUUID ||
			x.isOrphan(m.Copy) {
			continue
		}
		if k := x.bucketNamed(m.Bucket); k != nil {
			return x.exportFrom(ctx, k, s, w)
		}
	}
	return nil, rpc.Refuse(errcode.NotFound, "no copy of slice %d of index %s is here", w.Slice, w.Index)
}

// sendable is a copy as it stands when somebody wants its files.
type sendable struct {
	about
	fit     bool   // it is here, and nothing of it is put back or in doubt
	wrong   bool   // see errWrongRows
	emptied uint64 // see wrongUntil
	empty   int    // vbuckets of which it has nothing
}

// sendable looks at a copy. It runs in the loop.
func (k *bucket) sendable(s *storage.Slice) sendable {
	m := s.Meta()
	c := sendable{about: about{Meta: m, Format: storage.ExportFormat, Generation: k.st.Generation(),
		RollbackID: k.st.RollbackID()}}
	c.wrong, c.emptied = k.wrongUntil(m.Copy)
	c.fit = k.slices[m.Copy] == s && k.st.RestoringOf(m.Copy) == 0 && !k.x.snapshots.InDoubt(m.Copy)
	for vb := 0; c.fit && vb < k.vbuckets; vb++ {
		// what is to be taken anew is nothing, also before its rows have gone
		if p, _ := k.st.Position(m.Copy, vb); p.Side == 0 && !p.Whole() {
			c.empty++
		}
	}
	return c
}

// refusal says why a copy is not sent to who wants it; nil: it is.
func (c *sendable) refusal(s *storage.Slice, w *transfer.Want) error {
	m := c.Meta
	stable, _ := s.Timestamp()
	switch {
	case stable.Total() == 0:
		return rpc.Refuse(errcode.NotFound, "copy %s of index %s is not filled here", m.Copy, m.Index)
	case !c.fit:
		return rpc.Refuse(errcode.Unavailable, "copy %s of index %s is put back to an earlier state here now", m.Copy,
			m.Index)
	case c.wrong:
		return errWrongRows(m)
	case 2*c.empty > m.VBuckets: // of others KV is asked for what is missing, as after a restart with them
		return rpc.Refuse(errcode.Unavailable, "copy %s of index %s lacks %d of %d vbuckets here now", m.Copy, m.Index,
			c.empty, m.VBuckets)
	case c.Generation != w.Generation || c.RollbackID != w.RollbackID:
		return rpc.Refuse(errcode.Unavailable, "copy %s is of generation %d and rollback %d of its bucket, not of %d and %d",
			m.Copy, c.Generation, c.RollbackID, w.Generation, w.RollbackID)
	}
	return nil
}

// exportFrom makes what is wanted of one copy.
func (x *Indexer) exportFrom(ctx context.Context, k *bucket, s *storage.Slice, w *transfer.Want) (transfer.Export,
	error) {
	m := s.Meta()
	var c sendable
	if err := k.do(ctx, func() { c = k.sendable(s) }); err != nil {
		return nil, rpc.Refuse(errcode.Unavailable, "copy %s: %v", m.Copy, err)
	}
	if err := c.refusal(s, w); err != nil {
		return nil, err
	}
	e, err := x.exportOf(ctx, s, &c.about)
	if err != nil {
		return nil, err
	}
	wrong, count := false, c.emptied
	if err = k.do(ctx, func() { wrong, count = k.wrongUntil(m.Copy) }); err == nil && (wrong || count != c.emptied) {
		err = errWrongRows(m)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// errWrongRows refuses to send files that have, or may have, rows of a vbucket that is being taken anew. Their
// positions say that it is whole: who got them would never ask KV for it.
func errWrongRows(m storage.Meta) error {
	return rpc.Refuse(errcode.Unavailable, "copy %s of index %s is taking vbuckets anew here now", m.Copy, m.Index)
}

func (x *Indexer) exportOf(ctx context.Context, s *storage.Slice, said *about) (transfer.Export, error) {
	said.Tombstones = x.marks.has(said.Meta.Copy)
	e, err := s.Export(ctx)
	if err != nil {
		return nil, err
	}
	// marked before the first one is written
	said.Source, said.Tombstones = e.Source, said.Tombstones || x.marks.has(said.Meta.Copy)
	text, err := json.Marshal(said)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	x.log.Info("a copy's files are sent to another indexer", "copy", said.Meta.Copy, "index", said.Meta.Index, "slice",
		said.Meta.Slice, "files", len(e.Files))
	return &exported{Export: e, about: text, x: x}, nil
}

// exported is an export as package transfer sends it.
type exported struct {
	*storage.Export
	about []byte
	x     *Indexer
}

// Files implements transfer.Export.
func (e *exported) Files() []transfer.File {
	files := make([]transfer.File, len(e.Export.Files))
	for i, f := range e.Export.Files {
		files[i] = transfer.File(f)
	}
	return files
}

// About implements transfer.Export.
func (e *exported) About() []byte { return e.about }

// ReadAt implements transfer.Export.
func (e *exported) ReadAt(name string, p []byte, at int64) (int, error) {
	n, err := e.Export.ReadAt(name, p, at)
	e.x.metrics.filled.WithLabelValues("sent").Add(float64(n))
	return n, err
}
