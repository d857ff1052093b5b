package scan

import (
	"context"
	"errors"
	"fmt"
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
	// recheck is how often a waiting scan checks for a change without being notified.
	recheck = 50 * time.Millisecond
)

// Options configures a Coordinator. Zero values select the defaults.
type Options struct {
	// Wait is how long a scan may wait for its timestamp and for healthy copies before its first row.
	Wait time.Duration
	// MaxDuration bounds a whole scan, including the time that a slow client takes.
	MaxDuration time.Duration
	Logger      hclog.Logger
}

// Coordinator runs scans. Its methods may be called from any goroutine.
type Coordinator struct {
	catalog Catalog
	truth   Truth
	nodes   Nodes
	opts    Options
	tooLong error         // the cause that ends a scan at MaxDuration
	turn    atomic.Uint64 // spreads scans over replicas
	load    detector.Load[index.NodeID]
	lagging *rpc.Places // limits scans that wait for copies behind what their sessions have seen
	over    over
}

// NewCoordinator returns a coordinator.
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
		lagging: rpc.NewPlaces(maxLagging, "scans waiting for copies"),
		tooLong: Errorf(errcode.Timeout, "the scan took longer than %s", o.MaxDuration)}
}

// Result describes a finished scan or count.
type Result struct {
	Rows   int64 // rows returned, or counted
	Ref    wire.StabilityRef
	Vector timestamp.Vector // empty unless requested
	// Waited is how long the scan waited for a new enough stability timestamp.
	Waited  time.Duration
	Explain *v1.ScanExplain // nil unless requested
	// Seen is what the session has seen after the scan. SessionLost explains why some of what it had seen before no
	// longer exists; the answer then shows everything that KV had when the scan began.
	Seen        scanport.Seen
	SessionLost string
	More        bool   // of a page: more rows follow
	Cursor      string // continues behind the page; "": the last row is too long for a cursor
}

// Prepare looks an index up and checks a request against it, so that errors are reported before an answer begins. Its
// errors are *Error.
func (c *Coordinator) Prepare(id index.ID, r Request) (Spec, error) {
	v, err := c.View(id)
	if err != nil {
		return Spec{}, err
	}
	return r.Compile(&v.Definition)
}

// Scan passes the rows to sink. If it returns an error, some rows may have been passed already; the error is an
// *Error, or the sink's own.
func (c *Coordinator) Scan(ctx context.Context, spec Spec, sink Sink) (Result, error) {
	return c.run(ctx, spec, false, sink)
}

// Count counts the rows, regardless of limit and offset. Distinct rows and groups have to be read one by one.
func (c *Coordinator) Count(ctx context.Context, spec Spec) (Result, error) {
	if spec.Page != nil {
		return Result{}, Errorf(errcode.BadRequest, "a count has no pages: omit want_cursor and cursor")
	}
	spec.Limit, spec.Offset = 0, 0
	return c.run(ctx, spec, spec.Distinct == 0 && spec.Groups == nil, discard{})
}

// discard is a sink that drops rows.
type discard struct{}

func (discard) Row(Row) error { return nil }

// View returns an index that can be scanned now. Its errors are *Error.
func (c *Coordinator) View(id index.ID) (View, error) {
	v, err := c.catalog.View(id)
	if err == nil {
		err = Ready(&v)
	}
	return v, err
}

// Ready returns why an index cannot be scanned now: nil, or an *Error.
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

// run carries out a scan or a count.
func (c *Coordinator) run(ctx context.Context, spec Spec, count bool, sink Sink) (Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.MaxDuration, c.tooLong)
	defer cancel()
	ends, _ := ctx.Deadline()
	r := &run{c: c, spec: spec, count: count, deadline: time.Now().Add(c.opts.Wait), ends: ends,
		lag:     lag{places: c.lagging, user: rpc.Principal(ctx)},
		explain: explained{wanted: spec.Explain, began: time.Now()}}
	r.out = output{spec: &r.spec, sink: sink}
	if user := r.lag.user; user != rpc.Anonymous {
		r.pages.For = wire.Cut(user, maxUser)
	}
	err := r.out.reset()
	if err == nil {
		err = r.all(ctx)
	}
	r.result.Rows = r.out.rows
	r.result.Waited += r.lag.end()
	if r.result.Cursor == "" {
		r.pages.end(&r.spec, &c.over)
	}
	return r.result, err
}

// all makes attempts until one succeeds. Once rows have been returned, attempts keep the timestamp.
func (r *run) all(ctx context.Context) error {
	for {
		err := r.attempt(ctx)
		if !r.reading.IsZero() { // reading does not count as waiting
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
		case r.out.given && r.spec.Stability != NoStability, !r.again(err):
			return err
		}
		if busy := r.lag.crowded(r.spec.Index, err); busy != nil {
			return busy
		}
		if time.Now().After(r.deadline) {
			return r.late(err)
		}
		r.spec.Progress.stuck()
		if err := r.c.await(ctx, r.bucket); err != nil {
			return err
		}
	}
}

// end completes the result of a successful scan.
func (r *run) end() {
	r.result.Explain = r.explained()
	r.result.Seen = r.seen()
	r.result.SessionLost = r.session.explanation()
	if r.result.More {
		at := r.session.at(r.plan.ref.Ref)
		r.result.Cursor = r.spec.cursor(&at, r.pages.ID, r.out.last)
	}
}

// seen returns what the session has seen after rows of the chosen timestamp.
func (r *run) seen() scanport.Seen { return r.session.seen(&r.spec, r.plan.ref.Ref) }

// contextError returns why the context ended, in preference to the error that this caused.
func contextError(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	var e *Error
	if errors.As(cause, &e) {
		return e
	}
	err = fmt.Errorf("the scan was abandoned: %w (%w)", cause, err)
	return &Error{Code: CodeOf(cause), Detail: err.Error(), Err: err}
}

// await waits until something in a bucket may have changed.
func (c *Coordinator) await(ctx context.Context, bucket string) error {
	t := time.NewTimer(recheck)
	defer t.Stop()
	select {
	case <-c.catalog.Changed(bucket):
	case <-t.C:
	case <-ctx.Done():
		return contextError(ctx, ctx.Err())
	}
	return nil
}

// run is one scan in progress.
type run struct {
	c        *Coordinator
	spec     Spec
	bucket   string // of the index; "": it is not known
	count    bool
	ends     time.Time // end of the whole scan
	deadline time.Time // end of waiting
	reading  time.Time // since when an attempt has been reading; zero: it waits for its first slices
	// renewing is until when replacements for failed copies are searched for; zero: no copy is missing.
	renewing time.Time
	least    *wire.StabilityRef // oldest acceptable timestamp; nil: any
	floored  bool               // least comes from the session
	session  session
	lag      lag
	plan     plan
	layout   partition.Layout // of the index
	pages    paging
	out      output // of all pages together
	more     bool   // gather has stopped at the end of a page
	whole    bool   // open all slices at once: one that was to be opened later came too late
	explain  explained
	result   Result
}

// again reports whether another attempt may succeed.
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
		// This timestamp cannot be made. Request a newer one.
		r.least = nil
		return true
	case errcode.Unavailable, errcode.Timeout:
		return true
	case errcode.Busy: // a client that has seen no row retries itself, without occupying a place meanwhile
		return r.out.given
	case errcode.IndexNotReady, errcode.IndexNotHosted:
		return r.plan.ref != (wire.StabilityRef{}) // a node reported it, whose state may be older than the catalog
	}
	return false
}

// late turns the last reason to wait into the final error.
func (r *run) late(err error) error {
	e := *AsError(err)
	if e.Code == errcode.SnapshotSkipped {
		e.Code = errcode.Timeout
	}
	e.Detail = fmt.Sprintf("%s (waited %s)", e.Detail, r.c.opts.Wait)
	if r.floored && r.session.floor != nil {
		e.Detail += fmt.Sprintf("; the session has already read timestamp %d, and may not read an older "+
			"one", r.session.floor.Number)
	}
	return &e
}

func (r *run) attempt(ctx context.Context) error {
	r.spec.Progress.Enter(Opening)
	r.plan, r.reading = plan{}, time.Time{} // the catalog decides, whatever nodes have reported before
	view, err := r.c.View(r.spec.Index)
	r.bucket = view.Definition.Bucket
	if err != nil {
		return err
	}
	if err := r.consistency(ctx, &view); err != nil {
		return err
	}
	if err := r.choose(&view); err != nil {
		return err
	}
	// otherwise the scan continues behind the rows it has returned
	if r.out.after == nil || r.spec.Stability != NoStability {
		r.result = Result{Waited: r.result.Waited}
		if err := r.out.reset(); err != nil {
			return err
		}
		r.out.held.begin(false)
	}
	r.result.Ref, r.layout = r.plan.ref, view.Topology.Layout
	r.explain.attempts++
	if d, ok := r.out.sink.(Dated); ok {
		d.At(r.plan.ref, r.seen())
	}
	before := r.out.rows
	r.more, err = r.gather(ctx)
	if r.spec.Stability == NoStability && r.out.rows > before {
		shown := r.seen()
		r.session.shown = &shown
	}
	if err != nil && r.spec.At != nil {
		err = r.spec.gone(err)
	}
	return err
}

// choose picks the timestamp and the copies.
func (r *run) choose(view *View) (err error) {
	r.pages.begin(&r.spec, &r.c.over)
	turn, busier := r.turn()
	r.plan, err = choose(view, r.spec.Ranges, r.least, r.spec.At, turn, r.c.nodes, busier)
	if err == nil && r.spec.small() {
		r.plan.together(turn, r.c.nodes.IsHere, busier)
	}
	switch {
	case err != nil && r.spec.At != nil && r.spec.later():
		return r.spec.expired(err)
	case err == nil && r.plan.behind && r.floored:
		r.lag.begin(r.out.given)
	}
	return err
}

// turn returns how to choose among equally good copies. For pages it is fixed, because the copies keep the pages'
// snapshots.
func (r *run) turn() (uint64, func(a, b index.NodeID) bool) {
	if r.spec.Page != nil {
		return r.pages.ID, func(_, _ index.NodeID) bool { return false }
	}
	now := time.Now()
	return r.c.turn.Add(1), func(a, b index.NodeID) bool { return r.c.load.Busier(a, b, now) }
}
