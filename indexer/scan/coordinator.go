package scan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Defaults of Options.
const (
	DefaultWait        = 10 * time.Second
	DefaultMaxDuration = 10 * time.Minute
	// recheck is how often a waiting scan looks again when nobody told it of a change.
	recheck = 50 * time.Millisecond
)

// Options of a Coordinator; zero values are the defaults.
type Options struct {
	// Wait is how long a scan may wait for its timestamp and for healthy replicas before its first row.
	Wait time.Duration
	// MaxDuration bounds a whole scan, the client's slowness included.
	MaxDuration time.Duration
	Logger      hclog.Logger
}

// Coordinator runs scans. Its methods may be called from any goroutine.
type Coordinator struct {
	catalog Catalog
	truth   Truth
	nodes   Nodes
	opts    Options
	tooLong error         // what ends a scan at MaxDuration
	turn    atomic.Uint64 // spreads scans over replicas
	load    detector.Load[index.NodeID]
	lagging *rpc.Places // of scans that wait for copies that lag behind what their sessions have seen
	over    over
}

// busier reports whether another node is asked in the place of one that has as good a copy.
func (c *Coordinator) busier(a, b index.NodeID) bool { return c.load.Busier(a, b, time.Now()) }

// NewCoordinator makes a coordinator of the given parts.
func NewCoordinator(catalog Catalog, truth Truth, nodes Nodes, o Options) *Coordinator {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.MaxDuration == 0 {
		o.MaxDuration = DefaultMaxDuration
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	return &Coordinator{catalog: catalog, truth: truth, nodes: nodes, opts: o,
		lagging: rpc.NewPlaces(maxLagging, "scans that wait for copies"),
		tooLong: Errorf(errcode.Timeout, "the scan took longer than %s", o.MaxDuration)}
}

// Result says what a scan or a count was.
type Result struct {
	Rows   int64 // rows given, or counted
	Ref    wire.StabilityRef
	Vector timestamp.Vector // empty unless it was wanted
	// Waited is how long it waited for a stability timestamp that is new enough.
	Waited  time.Duration
	Explain *v1.ScanExplain // nil: it was not asked for
	// Seen is what a session has seen then. SessionLost says why some of what it had seen before is there no more: all
	// that KV had when the scan began is shown then.
	Seen        scanport.Seen
	SessionLost string
	More        bool   // of a page: more rows follow it
	Cursor      string // behind which they do; "": the last row is too long for one
}

// Prepare looks an index up and checks a request against it, so that what is wrong is told before an answer begins.
// Errors are *Error.
func (c *Coordinator) Prepare(id index.ID, r Request) (Spec, error) {
	v, err := c.View(id)
	if err != nil {
		return Spec{}, err
	}
	return r.Compile(&v.Definition)
}

// Scan returns the rows to sink. On an error rows may have been given; it is an *Error, or the sink's own.
func (c *Coordinator) Scan(ctx context.Context, spec Spec, sink Sink) (Result, error) {
	return c.run(ctx, spec, false, sink)
}

// Count counts the rows, whatever limit and offset are. Different rows have to be looked at one by one.
func (c *Coordinator) Count(ctx context.Context, spec Spec) (Result, error) {
	if spec.Page != nil {
		return Result{}, Errorf(errcode.BadRequest, "a count has no pages: leave out want_cursor and cursor")
	}
	spec.Limit, spec.Offset = 0, 0
	return c.run(ctx, spec, spec.Distinct == 0 && spec.Groups == nil, discard{})
}

// discard takes rows and forgets them.
type discard struct{}

func (discard) Row(Row) error { return nil }

// View returns an index that can be scanned now. Errors are *Error.
func (c *Coordinator) View(id index.ID) (View, error) {
	v, err := c.catalog.View(id)
	if err == nil {
		err = Ready(&v)
	}
	return v, err
}

// Ready reports why an index cannot be scanned now: nil, or an *Error.
func Ready(v *View) error {
	switch {
	case v.Bucket.InRollback:
		return Errorf(errcode.IndexInRollback, "bucket %q is being rolled back: try again later", v.Bucket.Name)
	case v.Definition.State == index.Error:
		return Errorf(errcode.IndexNotReady, "index %s (%s) is in state error: %s", v.Definition.ID, v.Definition.Name,
			v.Definition.Reason)
	case v.Definition.State != index.Maintenance:
		return Errorf(errcode.IndexNotReady, "index %s (%s) is in state %s: wait until it is ready", v.Definition.ID,
			v.Definition.Name, v.Definition.State)
	}
	return nil
}

// run tries until a first row could be given; from then on the timestamp is fixed.
func (c *Coordinator) run(ctx context.Context, spec Spec, count bool, sink Sink) (Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.MaxDuration, c.tooLong)
	defer cancel()
	r := &run{c: c, spec: spec, count: count, sink: sink, user: rpc.Principal(ctx), deadline: time.Now().Add(c.opts.Wait),
		explain: explained{wanted: spec.Explain, began: time.Now()}}
	if r.user != rpc.Anonymous {
		r.pages.For = r.user
	}
	err := r.reset()
	if err == nil {
		err = r.all(ctx)
	}
	r.caughtUp()
	r.endPages()
	return r.result, err
}

// all makes attempts until one has come to the end.
func (r *run) all(ctx context.Context) error {
	for {
		err := r.attempt(ctx)
		if !r.reading.IsZero() { // that was no waiting
			r.deadline = r.deadline.Add(time.Since(r.reading))
		}
		switch {
		case err == nil && r.more:
			r.deadline = time.Now().Add(r.c.opts.Wait)
			continue
		case err == nil:
			r.end()
			return nil
		case ctx.Err() != nil:
			return contextError(ctx, err)
		case r.given && r.spec.Stability != NoStability, !r.again(err):
			return err
		}
		if busy := r.crowded(err); busy != nil {
			return busy
		}
		if time.Now().After(r.deadline) {
			return r.late(err)
		}
		r.spec.Progress.stuck()
		if err := r.c.await(ctx); err != nil {
			return err
		}
	}
}

// end says what a scan was that has come to its end.
func (r *run) end() {
	r.result.Explain = r.explained()
	r.result.Seen = r.seen()
	r.tellLost()
	if r.result.More {
		at := r.chosen()
		r.result.Cursor = r.spec.cursor(&at, r.pages.ID, r.last)
	}
}

// contextError prefers why the context ended to what broke because of it.
func contextError(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	var e *Error
	if errors.As(cause, &e) {
		return e
	}
	err = fmt.Errorf("the scan was given up: %w (%w)", cause, err)
	return &Error{Code: CodeOf(cause), Detail: err.Error(), Err: err}
}

// await waits until something may have changed.
func (c *Coordinator) await(ctx context.Context) error {
	t := time.NewTimer(recheck)
	defer t.Stop()
	select {
	case <-c.catalog.Changed():
	case <-t.C:
	case <-ctx.Done():
		return contextError(ctx, ctx.Err())
	}
	return nil
}

// run is one scan on its way.
type run struct {
	c        *Coordinator
	spec     Spec
	count    bool
	sink     Sink
	user     string    // for whom
	deadline time.Time // of waiting
	reading  time.Time // since when an attempt reads; zero: it waits for its first slices
	least    *wire.StabilityRef
	floor    *wire.StabilityRef // of the session, nil: none
	floored  bool               // least is floor
	keeps    bool               // the session stays as it is
	shown    *scanport.Seen     // what the pages before have shown, without stability
	lost     string             // why some of what the session had seen is there no more
	unasked  bool               // and KV could not be asked for what is left
	lags     bool               // it is one of those that wait for copies that lag behind their sessions
	lagSince time.Time          // since when it waits for them; zero: it does not
	hurry    time.Time          // until when it waits as one too many of them; zero: it is not
	era      Era
	bucket   string
	result   Result
	plan     plan
	layout   partition.Layout // of the index
	pages    Pages
	pagedOn  []index.NodeID // who keeps the timestamp for the next page

	// of all pages together
	repeats repeats
	folding *folding // of groups; nil: rows are asked for
	skip    int64    // rows that are still to be passed over
	after   *Row     // the last row seen, without stability: the next page begins behind it
	more    bool     // the page is full
	last    *Row     // of a page of the caller's that is full
	held    holdback
	whole   bool // all slices are opened at once: one that was to be opened later was too late
	given   bool // the sink has been given a row
	// renewing is until when copies are looked for in the place of those that failed since; zero: none is lacking.
	renewing time.Time
	explain  explained
}

// reset begins with the first row, or the first that is still to come of an answer that is gone on with; what was
// waited counts.
func (r *run) reset() error {
	r.result, r.skip = Result{Waited: r.result.Waited}, r.spec.Offset
	r.last = nil
	r.repeats = repeats{parts: r.spec.Distinct, desc: r.spec.Desc}
	if r.spec.Groups != nil {
		r.folding = newFolding(r.spec.Groups, r.spec.Desc)
	}
	if p := r.spec.Resume; p != nil {
		r.result.Rows, r.skip = p.Rows, 0
		r.after = &Row{Key: bytes.Clone(p.Last.Key), DocID: bytes.Clone(p.Last.DocID)}
		if r.spec.Page != nil && p.Rows == r.spec.Limit {
			r.last = r.after
		}
		_, err := r.repeats.seen(p.Last.Key)
		return err
	}
	if p := r.spec.Page; p != nil && p.after != nil {
		r.after = p.after
		_, err := r.repeats.seen(p.after.Key)
		return err
	}
	return nil
}

// again reports whether another attempt may go better.
func (r *run) again(err error) bool {
	var sink *sinkError
	if errors.As(err, &sink) {
		return false
	}
	switch CodeOf(err) {
	case errcode.SnapshotSkipped, errcode.SnapshotTooOld:
		if r.spec.At != nil {
			return false
		}
		// This timestamp cannot be had. A newer one is asked for.
		r.least = nil
		return true
	case errcode.Unavailable, errcode.Timeout:
		return true
	case errcode.IndexNotReady, errcode.IndexNotHosted:
		return r.plan.ref != (wire.StabilityRef{}) // a node said so, which may know less than the catalog
	}
	return false
}

// late turns the last reason to wait into the answer.
func (r *run) late(err error) error {
	e := *AsError(err)
	if e.Code == errcode.SnapshotSkipped {
		e.Code = errcode.Timeout
	}
	e.Detail = fmt.Sprintf("%s (waited %s)", e.Detail, r.c.opts.Wait)
	if r.floored && r.floor != nil {
		e.Detail += fmt.Sprintf("; the session has seen timestamp %d, and gets nothing older", r.floor.Number)
	}
	return &e
}

func (r *run) attempt(ctx context.Context) error {
	r.spec.Progress.Enter(Opening)
	r.plan, r.reading = plan{}, time.Time{} // what the catalog says counts, whatever nodes have said before
	view, err := r.c.View(r.spec.Index)
	if err != nil {
		return err
	}
	if err := r.consistency(ctx, &view); err != nil {
		return err
	}
	if err := r.choose(&view); err != nil {
		return err
	}
	if r.after == nil || r.spec.Stability != NoStability { // else it goes on behind what was seen
		if err := r.reset(); err != nil {
			return err
		}
		r.held.begin(false)
	}
	r.result.Ref, r.layout = r.plan.ref, view.Topology.Layout
	r.explain.attempts++
	if d, ok := r.sink.(Dated); ok {
		d.At(r.plan.ref, r.seen())
	}
	before := r.result.Rows
	r.more, err = r.gather(ctx)
	if r.spec.Stability == NoStability && r.result.Rows > before {
		shown := r.seen()
		r.shown = &shown
	}
	if err != nil && r.spec.At != nil {
		err = r.spec.gone(err)
	}
	return err
}

// choose takes a timestamp and copies.
func (r *run) choose(view *View) (err error) {
	r.beginPages()
	turn, busier := r.turn()
	r.plan, err = choose(view, r.spec.Ranges, r.least, r.spec.At, turn, r.c.nodes, busier)
	switch {
	case err != nil && r.spec.At != nil && r.spec.later():
		return r.spec.expired(err)
	case err == nil && r.plan.behind && r.floored:
		r.lag()
	}
	return err
}

// turn says which of several equally good copies are asked: of pages the same ones for each, which keep their
// timestamp.
func (r *run) turn() (uint64, func(a, b index.NodeID) bool) {
	if r.spec.Page != nil {
		return r.pages.ID, func(_, _ index.NodeID) bool { return false }
	}
	return r.c.turn.Add(1), r.c.busier
}

// consistency finds the timestamp that the scan must be at or above, once.
func (r *run) consistency(ctx context.Context, view *View) error {
	if err := r.session(view); err != nil { // this indexer lags itself
		r.lag()
		return err
	}
	if r.least == nil || r.least.Generation != view.Bucket.Generation || r.least.RollbackID != view.Bucket.RollbackID {
		r.least, r.floored = nil, false
		if err := r.truth(ctx, view); err != nil {
			return err
		}
	}
	if r.spec.At == nil && r.floor != nil && (r.least == nil || r.least.Compare(r.floor.Ref) < 0) {
		r.least, r.floored = r.floor, true
	}
	return nil
}

// truth asks for the timestamp that the request's consistency wants, if it wants one, or that holds what is left of
// what the session has seen.
func (r *run) truth(ctx context.Context, view *View) error {
	if r.spec.Consistency == AtPlus || r.spec.Consistency == Session {
		return r.askKV(ctx, view, r.deadline)
	}
	if r.lost == "" || r.spec.At != nil { // of an answer that is gone on with the timestamp is settled
		return nil
	}
	deadline := r.deadline
	if soon := time.Now().Add(lostPatience); soon.Before(deadline) {
		deadline = soon
	}
	err := r.askKV(ctx, view, deadline)
	if err != nil && ctx.Err() == nil { // what is held answers it, and the caller is told
		r.unasked = true
		return nil
	}
	r.unasked = r.unasked && r.shown != nil // pages may have been given without
	return err
}

// askKV asks for the timestamp of all that KV has, or of what tokens name, until a deadline.
func (r *run) askKV(ctx context.Context, view *View, deadline time.Time) error {
	wait, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	r.spec.Progress.Enter(Waiting)
	defer r.spec.Progress.Enter(Opening)
	began := time.Now()
	defer func() { r.result.Waited += time.Since(began) }()
	var s wire.BucketStability
	var err error
	if r.spec.Consistency == AtPlus {
		s, err = r.c.atPlus(wait, view.Bucket, r.spec.Tokens, time.Until(deadline))
	}
	// All that KV has is more than any tokens name.
	if err == nil && (r.spec.Consistency != AtPlus || r.lost != "") {
		s, err = r.c.session(wait, view.Bucket.Name, time.Until(deadline))
	}
	if err != nil {
		if wait.Err() != nil && ctx.Err() == nil {
			e := *AsError(err)
			if e.Code == errcode.Cancelled || e.Code == errcode.Internal {
				e.Code = errcode.Timeout
			}
			return &e
		}
		return AsError(err)
	}
	least := s.Named()
	r.least = &least
	return nil
}

// session returns a timestamp at or above what KV has now.
func (c *Coordinator) session(ctx context.Context, bucket string, wait time.Duration) (wire.BucketStability, error) {
	need, err := c.truth.CurrentSeqnos(ctx, bucket)
	if err != nil {
		return wire.BucketStability{}, err
	}
	if s, ok := c.catalog.Newest(bucket); ok && s.Vector.Reaches(need) {
		return s, nil
	}
	s, err := c.truth.Stabilize(ctx, bucket, need, wait)
	if err != nil && CodeOf(err) == errcode.TokenLost { // no write of the caller's: the answer was of before a failover
		return s, Errorf(errcode.Unavailable, "KV of bucket %q failed over while it was asked how far it is: %w", bucket, err)
	}
	return s, err
}

// atPlus returns a timestamp that covers the tokens. A token of a branch that is not known here is judged by a
// timestamp as new as KV.
func (c *Coordinator) atPlus(ctx context.Context, b wire.Bucket, tokens []Token,
	wait time.Duration) (wire.BucketStability, error) {
	if err := beyond(&b, tokens); err != nil {
		return wire.BucketStability{}, err
	}
	s, ok := c.catalog.Newest(b.Name)
	if !ok || !knows(&s, &b, tokens) {
		var err error
		if s, err = c.session(ctx, b.Name, wait); err != nil {
			return s, err
		}
		if len(s.Logs) != b.VBuckets || s.Vector.Len() != b.VBuckets {
			return s, Errorf(errcode.Unavailable, "timestamp %d of bucket %q comes without failover logs", s.Number, b.Name)
		}
	}
	need, err := asked(&s, tokens)
	if err != nil || s.Vector.Covers(need) {
		return s, err
	}
	return c.truth.Stabilize(ctx, b.Name, need, wait)
}

// beyond refuses tokens of vbuckets that the bucket does not have: nil, or an *Error.
func beyond(b *wire.Bucket, tokens []Token) error {
	var refused *Error
	for _, t := range tokens {
		if int(t.VBucket) < b.VBuckets {
			continue
		}
		if refused == nil {
			refused = Errorf(errcode.BadRequest, "token of vbucket %d: bucket %q has %d", t.VBucket, b.Name, b.VBuckets)
		}
		refused.lose(t)
	}
	if refused == nil {
		return nil
	}
	return refused
}

// knows reports whether a timestamp is of the bucket as it is now and has the branches of all tokens.
func knows(s *wire.BucketStability, b *wire.Bucket, tokens []Token) bool {
	if s.Generation != b.Generation || s.RollbackID != b.RollbackID || s.Vector.Len() != b.VBuckets ||
		len(s.Logs) != b.VBuckets {
		return false
	}
	return !slices.ContainsFunc(tokens, func(t Token) bool { return s.Logs[t.VBucket].ValidUpTo(t.VBUUID) == 0 })
}

// asked returns what the tokens ask for above s, of the other vbuckets nothing; an error of the code TokenLost when the
// write of one is on no branch of KV's.
func asked(s *wire.BucketStability, tokens []Token) (timestamp.Vector, error) {
	need := timestamp.New(s.Vector.Len())
	var lost *Error
	for _, t := range tokens {
		log := s.Logs[t.VBucket]
		if !log.Valid(t.VBUUID, t.Seqno) {
			if lost == nil {
				lost = Errorf(errcode.TokenLost, "vbucket %d: the write at seqno %d of branch %d was lost in a "+
					"failover; the bucket is on branch %d", t.VBucket, t.Seqno, t.VBUUID, log.Newest())
			}
			lost.lose(t)
			continue
		}
		if t.Seqno > max(s.Vector.Seqnos[t.VBucket], need.Seqnos[t.VBucket]) {
			need.Set(int(t.VBucket), timestamp.Position{VBUUID: log.Newest(), Seqno: t.Seqno})
		}
	}
	if lost != nil {
		return need, lost
	}
	return need, nil
}

// sinkError marks an error of the sink: nothing can be done about it here.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return "the client takes no more rows: " + e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }
