// Package fill fills new copies with files from other indexers, and sends files of this indexer's copies to them. A
// copy that cannot be filled this way is filled from KV, as if no indexer had files. Installed files are of the
// bucket's current branch and contain no rows known to be wrong. Copies take turns, and a waiting copy is never
// forgotten. The package does not decide which copies exist.
package fill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/core"
	"tidemark/indexer/health"
	"tidemark/indexer/meters"
	"tidemark/indexer/pace"
	"tidemark/indexer/peers"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/indexer/transfer"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// A new copy of a slice that another indexer holds is filled with that indexer's files. The copy joins the running
// streams at once, like every newcomer, but requests no side streams (ingest.Bucket.Defer). Once all files are
// received and checked, it is treated like a copy of an indexer that restarts with these files on its disk: it is
// removed from its bucket, the files replace its contents, and it is added again with their positions, from which the
// joining rule completes it. After any failure the copy requests everything from KV, as if no indexer had files.

const (
	// fillPause is the first pause while all sources are busy sending to others; it grows up to fillMost.
	fillPause = time.Second
	fillMost  = 8 * time.Second
	// fillPatience bounds how long a copy waits for its turn without progress, either here or at its sources; then KV
	// fills it. KV also fills it after it has waited fillLongest in total. That time excludes time in which files of
	// other copies arrived here, up to fillPatience for each of them, so that one slow transfer does not delay the
	// others for days.
	fillPatience = 10 * time.Minute
	fillLongest  = 6 * time.Hour
	// fillShare is the fraction of one processor's time spent checking received files.
	fillShare = 0.5
	// CheckFactor is how much faster received files are read again than files are sent, so that the check adds little
	// time.
	CheckFactor = 4
	// A transfer slower than fillLeast bytes per second after fillWarm is abandoned.
	fillLeast = 256 << 10
	fillWarm  = time.Minute
	// fillsAnew bounds how often a fill is retried because its bucket was rolled back meanwhile.
	fillsAnew = 3
	// fillsAway bounds how often a source that does not answer, or disappeared during a transfer, is retried.
	fillsAway = 4
)

var (
	// errNoSource is joined with the answer of each source.
	errNoSource = errors.New("no indexer could send it")
	// errAnew: the received files precede a rollback.
	errAnew = errors.New("the bucket was rolled back meanwhile")
	// errOtherBranch: one of the two indexers has not yet learned of a rollback that the other has learned of.
	errOtherBranch = errors.New("the bucket has another rollback state there")
	// errSlow: the transfer was too slow and is abandoned.
	errSlow = fmt.Errorf("files arrive at less than %d bytes a second", fillLeast)
	// errAway: the source does not answer, or disappeared during the transfer, as in a restart.
	errAway = errors.New("the sender is offline")
	// errLater: retry after other copies have had their turn.
	errLater = errors.New("later")
	// errLate: the copy has waited too long.
	errLate = errors.New("it waited too long for files")
	// errHalf: the copy was removed from its bucket and the files could not be installed. There is no fallback: open
	// streams may rely on its former position.
	errHalf = errors.New("the files could not be installed")
)

// Options are a filler's settings and its access to the indexer.
type Options struct {
	Store     *storage.Store
	Snapshots *snapshots.Set
	Marks     *copies.Marks
	Nodes     *peers.Nodes
	UUID      func() string // of this indexer
	// Rate bounds the bytes per second that are sent to others. 0: nothing is sent, and copies are filled from KV
	// alone. Below 0: no bound.
	Rate     int64
	Bucket   func(name string) *copies.Bucket
	Orphan   func(id index.CopyID) bool
	Settled  func() wire.Definitions // the definitions in force; waits until no list is being applied
	Present  func() wire.Definitions // the definitions in force
	Spawn    func(func(context.Context) error)
	Sides    func()         // notifies the indexer that side streams may be needed
	Health   *health.Health // the node's health
	Registry prometheus.Registerer
	Log      hclog.Logger
	Now      func() time.Time
}

// Filler fills copies from other indexers, one at a time, and sends files of this indexer's copies to others.
type Filler struct {
	Options
	fills   *prometheus.CounterVec // by outcome
	bytes   *prometheus.CounterVec // by direction
	sender  *transfer.Sender
	Sending *pace.Pace    // rate of sending files to other indexers
	Checked *pace.Pace    // rate of checking received files
	wake    chan struct{} // capacity 1

	mu    sync.Mutex
	queue []*fill
	under []*fill // taken from the queue: the fill whose turn it is, and others, see atOnce
	turn  *fill   // nil: the next fill may begin
}

// New returns a Filler; Run does the filling.
func New(o Options) *Filler {
	f := &Filler{Options: o, wake: make(chan struct{}, 1), Sending: pace.New(o.Rate, 0, o.Now),
		Checked: pace.New(CheckFactor*o.Rate, fillShare, o.Now),
		fills: meters.Counters(o.Registry, "fills_total",
			"Attempts to fill new copies with another indexer's files, by outcome.", "outcome"),
		bytes: meters.Counters(o.Registry, "fill_bytes_total",
			"Bytes of copies' files sent to other indexers and received from them.", "direction")}
	f.sender = &transfer.Sender{Open: f.export, Now: o.Now, Log: o.Log, Pace: f.Sending.Wait,
		Trouble: func(why string) { o.Health.Set("sending copies", why) },
		Spawn:   func(run func(context.Context) error) { o.Spawn(run) }}
	return f
}

// Sender returns the sender of this indexer's files.
func (f *Filler) Sender() *transfer.Sender { return f.sender }

// Take adds a copy to its bucket. An empty copy that other indexers hold is queued to be filled from one of them.
func (f *Filler) Take(ctx context.Context, k *copies.Bucket, s *storage.Slice, others []index.NodeID) error {
	later, err := k.Add(ctx, s, f.Rate != 0 && len(others) > 0, f.filling)
	if later {
		f.add(k, s, others)
	}
	return err
}

// fromKV lets a copy request side streams. It does nothing for a copy that is gone, nor for an installed one, which
// requests them already.
func (f *Filler) fromKV(ctx context.Context, o *fill) {
	_ = o.k.Undefer(ctx, o.s, func() bool { return !o.gone.Load() })
	f.Sides()
}

// one fills a copy, or leaves it to KV. again means that the fill was put back into the queue.
func (f *Filler) one(ctx context.Context, o *fill) (again bool) {
	m, began := o.s.Meta(), f.Now()
	node, err := f.fill(ctx, o)
	if errors.Is(err, errLater) && ctx.Err() == nil && f.putBack(o) {
		return true
	}
	outcome := "installed"
	switch {
	case err == nil:
		f.Log.Info("copy was filled with another indexer's files", "copy", m.Copy, "index", m.Index, "slice", m.Slice,
			"node", node, "took", f.Now().Sub(began))
	case ctx.Err() != nil || errors.Is(err, copies.ErrUnwanted) || errors.Is(err, errLater):
		outcome = "unwanted"
	default:
		outcome = "failed"
		f.Log.Warn("copy cannot be filled with another indexer's files; it is filled from KV", "copy", m.Copy, "index",
			m.Index, "slice", m.Slice, "error", err)
	}
	f.fills.WithLabelValues(outcome).Inc()
	if ended := ctx.Err() != nil && !o.gone.Load(); ended {
		return false // the process is ending: its successor continues with what is on disk
	}
	if o.shares { // it has received nothing
		f.Log.Warn("files received for an earlier copy cannot be removed yet: the disk hangs", "copy", m.Copy)
	} else if err := f.onDisk(o, "removing received files", o.s.DropIncoming); err != nil {
		f.Log.Warn("files received for a copy cannot be removed yet", "copy", m.Copy, "error", err)
	}
	f.fromKV(context.WithoutCancel(ctx), o)
	return false
}

// isOurs reports whether an error is caused by this node, so that trying other sources is pointless.
func isOurs(err error) bool {
	return errors.Is(err, copies.ErrUnwanted) || errors.Is(err, errHalf) || errors.Is(err, storage.ErrDiskFull)
}

// fill tries the sources one after the other. Errors wrap errLater if one of them may be able to send the copy later.
func (f *Filler) fill(ctx context.Context, o *fill) (from index.NodeID, err error) {
	if o.late {
		return 0, errors.Join(errLate, o.why())
	}
	if f.inRollback(o.k.Name()) && o.patient(f.Now()) {
		return 0, fmt.Errorf("%w: %w", errLater, errOtherBranch)
	}
	d := f.Settled()
	o.sources(&d)
	var busy error
	for i, asked := 0, false; i < len(o.from); i++ {
		if asked && f.overtaken(o) {
			return 0, fmt.Errorf("%w: the disk hung, so another copy is filled first", errLater)
		}
		asked = true
		err := f.from(ctx, o, o.from[i])
		switch {
		case err == nil || ctx.Err() != nil || isOurs(err):
			return o.from[i], err
		case f.again(o, o.from[i], err):
			busy = err
		default:
			o.failed[o.from[i]] = err
			o.from = slices.Delete(o.from, i, i+1)
			i--
		}
	}
	if busy == nil || !o.patient(f.Now()) {
		return 0, errors.Join(o.why(), busy, errNoSource)
	}
	return 0, fmt.Errorf("%w: %w", errLater, busy)
}

// overtaken reports whether another copy has the turn: o has lost it while a disk hung. A request of o would end what
// the source sends to that copy, because a source sends one copy at a time to an indexer.
func (f *Filler) overtaken(o *fill) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.turn != nil && f.turn != o
}

// sources updates the list of sources to the current definitions: a copy may have waited for hours, in which other
// indexers may have acquired its slice. A source that answered that it has no files is tried again, as it may have
// some by now; a source that failed otherwise is not.
func (o *fill) sources(d *wire.Definitions) {
	m := o.s.Meta()
	for _, n := range core.Others(d, m.Index, m.Copy) {
		err := o.failed[n]
		var said *rpc.Problem
		none := errors.As(err, &said) && said.Code == errcode.NotFound && !errors.Is(err, errAway)
		if !slices.Contains(o.from, n) && (err == nil || none) {
			o.from = append(o.from, n)
		}
	}
	o.from = slices.DeleteFunc(o.from, func(n index.NodeID) bool {
		return !slices.ContainsFunc(d.Indexers, func(e wire.Endpoint) bool { return e.Node == n })
	})
}

// why returns the errors of the sources that have failed.
func (o *fill) why() error {
	var all []error
	for _, n := range slices.Sorted(maps.Keys(o.failed)) {
		all = append(all, fmt.Errorf("node %d: %w", n, o.failed[n]))
	}
	return errors.Join(all...)
}

// again reports whether a source that could not send a copy now may be tried again.
func (f *Filler) again(o *fill, node index.NodeID, err error) bool {
	switch {
	case errors.Is(err, errAnew) && o.anew < fillsAnew:
		o.anew++
		o.moved = f.Now() // restart the patience, however long it was receiving
	case errors.Is(err, errAway) && o.away[node] < fillsAway:
		o.away[node]++
		o.moved = f.Now()
	case errors.Is(err, transfer.ErrBusy), errors.Is(err, errOtherBranch):
		if said := (*transfer.Busy)(nil); errors.As(err, &said) {
			f.mu.Lock()
			o.saw(node, said.Moved, f.Now())
			f.mu.Unlock()
		}
	default:
		return false
	}
	return true
}

// about describes a copy whose files are sent.
type about struct {
	Meta       storage.Meta `json:"meta"`
	Format     string       `json:"format"` // format of the files
	Source     string       `json:"source"` // see storage.Export
	Generation uint64       `json:"generation"`
	RollbackID uint64       `json:"rollback_id"`
	Tombstones bool         `json:"tombstones"` // the files may contain tombstones of a side stream
}

// fits returns an error unless the files are of the same slice of the same index and bucket, and in a format that is
// known here.
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

// same reports whether files are of the bucket's current generation, after the same rollbacks.
func (f *Filler) same(k *copies.Bucket, said *about) bool {
	return k.Generation() == said.Generation && k.Rollback() == said.RollbackID && !f.inRollback(k.Name())
}

// from transfers a copy from one node, and installs it.
func (f *Filler) from(ctx context.Context, o *fill, node index.NodeID) (err error) {
	if f.Nodes.Suspect(node) { // another transfer has found it silent already
		return fmt.Errorf("%w: %w", errAway, detector.ErrSilent)
	}
	m, began, got := o.s.Meta(), f.Now(), 0.0
	offered := false
	var in *storage.Incoming
	defer func() {
		o.expected.Store(0)
		if in != nil {
			err = errors.Join(err, f.onDisk(o, "closing received files", in.Close))
		}
	}()
	var said about
	r := transfer.Receiver{
		Name: f.UUID(),
		Peer: func(ctx context.Context, q *transfer.Request) (io.ReadCloser, error) {
			// Each request has its own deadline, for links of any length; the detector finds out whether the node is
			// silent.
			return f.Nodes.Watched(ctx, node, transfer.Path, q, nil)
		},
		Begin: func(offer *transfer.Offer) (transfer.Sink, error) {
			offered = true
			if err := json.Unmarshal(offer.About, &said); err != nil {
				return nil, fmt.Errorf("description of the files: %w", err)
			}
			if err := said.fits(m); err != nil {
				return nil, err
			}
			if !f.same(o.k, &said) {
				return nil, errOtherBranch
			}
			began = f.Now()
			files := make([]storage.File, len(offer.Files))
			for i, file := range offer.Files {
				files[i] = storage.File(file)
			}
			if err := f.onDisk(o, "creating the folder for received files", func() (err error) {
				in, err = o.s.Receive(said.Source, files)
				return err
			}); err != nil {
				return nil, err
			}
			o.expected.Store(offer.Bytes())
			return receiving{f, o, in}, nil
		},
		Got: func(n int) error {
			f.bytes.WithLabelValues("received").Add(float64(n))
			got += float64(n)
			o.had = true
			if took := f.Now().Sub(began); took > fillWarm && got < fillLeast*took.Seconds() {
				return errSlow
			}
			if !f.same(o.k, &said) {
				return errAnew
			}
			return nil
		},
	}
	if _, _, err = r.Receive(ctx, &transfer.Want{Index: m.Index, CreatedMS: m.CreatedMS, Slice: m.Slice,
		BucketUUID: m.BucketUUID, Generation: o.k.Generation(), RollbackID: o.k.Rollback()}); err != nil {
		return o.isAway(err, offered)
	}
	if err := f.onDisk(o, checking, func() error { return in.Verify(ctx, f.checkPace(o)) }); err != nil {
		if errors.Is(err, storage.ErrDamaged) { // do not resume a transfer whose files are damaged
			err = errors.Join(err, f.onDisk(o, "removing received files", in.Discard))
		}
		return err
	}
	return f.install(ctx, o, in, &said)
}

// installing is the disk step in which received files replace what a copy holds. It does not include waits for the
// copy's bucket.
const installing = "installing received files"

// checking is the disk step in which received files are read again.
const checking = "checking received files"

// receiving is a transfer.Sink whose disk writes are watched for hanging.
type receiving struct {
	f *Filler
	o *fill
	*storage.Incoming
}

// Append implements transfer.Sink.
func (r receiving) Append(name string, at int64, p []byte) error {
	return r.f.onDisk(r.o, "writing received files", func() error { return r.Incoming.Append(name, at, p) })
}

// isAway wraps an error of a transfer in errAway if the node has gone; offered means that it had begun to answer.
func (o *fill) isAway(err error, offered bool) error {
	if !errors.Is(err, transfer.ErrBusy) && (o.had && lost(err) || !offered && silent(err)) {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	return err
}

// SetRate applies the cluster's setting; 0 means that there is none. An indexer that was started to send no files
// keeps to that.
func (f *Filler) SetRate(rate int64) {
	if rate == 0 {
		rate = f.Rate
	}
	f.Sending.Set(rate)
	f.Checked.Set(CheckFactor * rate)
}

// checkPace limits the check of received files to the checking rate, and to fillShare of a processor.
func (f *Filler) checkPace(o *fill) func(ctx context.Context, n int) error {
	resumed := f.Now()
	return func(ctx context.Context, n int) error {
		f.begins(o, "")
		f.Checked.Worked(f.Now().Sub(resumed))
		err := f.Checked.Wait(ctx, n)
		resumed = f.Now()
		f.begins(o, checking)
		return err
	}
}

// silent reports whether the first request got no answer from an indexer: it is unreachable, or something between the
// two answered.
func silent(err error) bool {
	var refused *rpc.Problem
	return !errors.As(err, &refused) ||
		refused.Code == errcode.Internal && refused.Status >= http.StatusInternalServerError
}

// lost reports whether a transfer ended because the source does not answer, or no longer knows the transfer.
func lost(err error) bool {
	var refused *rpc.Problem
	if errors.As(err, &refused) {
		return refused.Code == errcode.NotFound || refused.Code == errcode.Unavailable || refused.Code == errcode.Internal
	}
	return !errors.Is(err, errSlow) && !errors.Is(err, errAnew) && !errors.Is(err, storage.ErrIO) &&
		!errors.Is(err, storage.ErrDiskFull) && !errors.Is(err, storage.ErrInvalid)
}

// mayInstall returns an error if the copy must no longer get files, or not these files.
func (f *Filler) mayInstall(o *fill, st *core.Bucket, said *about) error {
	id := o.s.Meta().Copy
	switch s, ok := f.Store.Slice(id); {
	case !ok || s != o.s || f.Orphan(id) || !copies.Unfilled(o.s) || len(f.Snapshots.Refs(id)) > 0:
		return copies.ErrUnwanted
	case st.Generation() != said.Generation || st.RollbackID() != said.RollbackID || f.inRollback(o.k.Name()):
		return errAnew
	}
	return nil
}

// install gives a copy the files. Nothing is written to the copy while it is removed from its bucket; when it is
// added again, it is as after a restart of the process. In the meantime, lists of definitions are applied only if
// they leave the copy where it is.
func (f *Filler) install(ctx context.Context, o *fill, in *storage.Incoming, said *about) error {
	id := o.s.Meta().Copy
	done, err := f.putting(o)
	if err != nil {
		return err
	}
	defer done()
	if said.Tombstones {
		if err := f.onDisk(o, installing, func() error { return f.Marks.Set(id) }); err != nil {
			return err
		}
	}
	if err := f.onDisk(o, leaving, func() error {
		return o.k.TakeAway(ctx, o.s, func(st *core.Bucket) error { return f.mayInstall(o, st, said) })
	}); err != nil {
		return err
	}
	// no cancellation from here on: it would leave the installation half done, and the bucket without the copy
	ctx = context.WithoutCancel(ctx)
	f.Snapshots.Drop(id)
	if err := f.onDisk(o, installing, func() error { return o.s.Install(ctx, in) }); err != nil {
		return errors.Join(errHalf, err, o.k.BringBackOpen(ctx, o.s))
	}
	return o.k.BringBack(ctx, o.s)
}

func (f *Filler) inRollback(bucket string) bool {
	d := f.Present()
	return slices.ContainsFunc(d.Buckets, func(b wire.Bucket) bool { return b.Name == bucket && b.InRollback })
}

// export prepares files of a copy that was exact before and lacks little now, for another indexer.
func (f *Filler) export(ctx context.Context, w *transfer.Want, step func()) (transfer.Export, error) {
	if f.Rate == 0 {
		return nil, rpc.Refuse(errcode.NotFound, "this indexer sends no files: it was started with --transfer-rate 0")
	}
	for _, s := range f.Store.Slices() {
		m := s.Meta()
		if m.Index != w.Index || m.Slice != w.Slice || m.CreatedMS != w.CreatedMS || m.BucketUUID != w.BucketUUID ||
			f.Orphan(m.Copy) {
			continue
		}
		if k := f.Bucket(m.Bucket); k != nil {
			return f.exportFrom(ctx, k, s, w, step)
		}
	}
	return nil, rpc.Refuse(errcode.NotFound, "this indexer has no copy of slice %d of index %s", w.Slice, w.Index)
}

// sendable is the state of a copy at a request for its files.
type sendable struct {
	about
	copies.Standing
}

// refusal returns why a copy is not sent to the requesting indexer; nil if it is sent.
func (c *sendable) refusal(s *storage.Slice, w *transfer.Want) error {
	m := c.Meta
	stable, _ := s.Timestamp()
	switch {
	case stable.Total() == 0:
		return rpc.Refuse(errcode.NotFound, "copy %s of index %s is not complete on this indexer", m.Copy, m.Index)
	case !c.Fit:
		return rpc.Refuse(errcode.Unavailable, "copy %s of index %s is being restored to an earlier state on this "+
			"indexer", m.Copy,
			m.Index)
	case c.Wrong:
		return errWrongRows(m)
	case 2*c.Empty > m.VBuckets: // below that, the receiver requests the missing vbuckets from KV, as after a restart
		return rpc.Refuse(errcode.Unavailable, "copy %s of index %s lacks %d of %d vbuckets on this indexer", m.Copy, m.Index,
			c.Empty, m.VBuckets)
	case c.about.Generation != w.Generation || c.about.RollbackID != w.RollbackID:
		return rpc.Refuse(errcode.Unavailable, "copy %s has generation %d and rollback %d of its bucket, not %d and %d",
			m.Copy, c.about.Generation, c.about.RollbackID, w.Generation, w.RollbackID)
	}
	return nil
}

// exportFrom prepares the export of one copy.
func (f *Filler) exportFrom(ctx context.Context, k *copies.Bucket, s *storage.Slice, w *transfer.Want,
	step func()) (transfer.Export, error) {
	m := s.Meta()
	at, err := k.Standing(ctx, s)
	if err != nil {
		return nil, rpc.Refuse(errcode.Unavailable, "copy %s: %v", m.Copy, err)
	}
	c := sendable{Standing: at, about: about{Meta: m, Format: storage.ExportFormat, Generation: at.Generation,
		RollbackID: at.RollbackID}}
	if err := c.refusal(s, w); err != nil {
		return nil, err
	}
	e, err := f.exportOf(ctx, s, &c.about, step)
	if err != nil {
		return nil, err
	}
	if at, err = k.Standing(ctx, s); err == nil && (at.Wrong || at.Emptied != c.Emptied) {
		err = errWrongRows(m)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// errWrongRows refuses to send files that have, or may have, rows of a vbucket that is being taken anew. Their
// positions claim that the vbucket is whole: a receiver would never request it from KV.
func errWrongRows(m storage.Meta) error {
	return rpc.Refuse(errcode.Unavailable, "copy %s of index %s is streaming vbuckets again on this "+
		"indexer", m.Copy, m.Index)
}

func (f *Filler) exportOf(ctx context.Context, s *storage.Slice, said *about, step func()) (transfer.Export, error) {
	said.Tombstones = f.Marks.Has(said.Meta.Copy)
	e, err := s.Export(ctx, step)
	if err != nil {
		return nil, err
	}
	// the mark is set before the first tombstone is written
	said.Source, said.Tombstones = e.Source, said.Tombstones || f.Marks.Has(said.Meta.Copy)
	text, err := json.Marshal(said)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	f.Log.Info("sending a copy's files to another indexer", "copy", said.Meta.Copy, "index", said.Meta.Index, "slice",
		said.Meta.Slice, "files", len(e.Files))
	return &exported{Export: e, about: text, sent: f.bytes.WithLabelValues("sent")}, nil
}

// exported adapts an export to transfer.Export.
type exported struct {
	*storage.Export
	about []byte
	sent  prometheus.Counter
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
	e.sent.Add(float64(n))
	return n, err
}
