package scan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// MaxCopies bounds the copies of one node request.
const MaxCopies = 1024

// Cursor iterates over rows of one slice. A row is valid until the next call of Next. Close returns the first error
// of the iteration.
type Cursor interface {
	Next() bool
	Row() (key, docID []byte)
	Close() error
}

// Slice is one copy's snapshot at the timestamp of a scan.
type Slice interface {
	// Rows iterates over low <= key||docid < high; nil is open.
	Rows(ctx context.Context, low, high []byte, reverse bool) (Cursor, error)
	// Items returns the number of all rows.
	Items() int64
}

// Pinned holds snapshots while a node's part of a scan runs.
type Pinned struct {
	Vector  timestamp.Vector // of the timestamp
	Slices  []Slice          // one per requested copy
	Release func() error
}

// Pins provides a node's snapshots.
type Pins interface {
	// Pin returns the snapshots of copies at exactly ref. It waits until they exist, at most for wait or until ctx
	// ends. Errors are *Error with code SNAPSHOT_SKIPPED, SNAPSHOT_TOO_OLD, INDEX_NOT_HOSTED (no such copy),
	// INDEX_NOT_READY, INDEX_IN_ROLLBACK or TIMEOUT; or context.DeadlineExceeded when the wait was too short.
	Pin(ctx context.Context, id index.ID, copies []index.CopyID, ref wire.StabilityRef, wait time.Duration) (*Pinned,
		error)
	// Keep keeps the node's snapshots at a timestamp for d, for all copies of its bucket, because a later scan will
	// name it.
	Keep(ref wire.StabilityRef, d time.Duration)
	// KeepPages keeps snapshots of copies while a page of an answer is read, and for KeepFor after it. The caller
	// calls done when the page was read, or could not be. Errors are *Error: BUSY if too much is kept already.
	KeepPages(of Pages, copies []index.CopyID, ref wire.StabilityRef) (done func(read bool), err error)
	// EndPages releases what is kept for an answer.
	EndPages(of Pages)
}

func (r *NodeRequest) check() error {
	switch {
	case len(r.Copies) == 0 || len(r.Copies) > MaxCopies:
		return Errorf(errcode.BadRequest, "%d copies, want 1 to %d", len(r.Copies), MaxCopies)
	case len(r.Ranges) > MaxRanges:
		return Errorf(errcode.BadRequest, "%d ranges, want at most %d", len(r.Ranges), MaxRanges)
	case r.Distinct < 0 || r.Distinct > len(r.Desc):
		return Errorf(errcode.BadRequest, "distinct in %d of %d components", r.Distinct, len(r.Desc))
	case len(r.Over) > maxOver:
		return Errorf(errcode.BadRequest, "%d finished answers; the limit is %d at a time", len(r.Over), maxOver)
	case r.Limit < 0:
		return Errorf(errcode.BadRequest, "limit %d", r.Limit)
	case r.Pages != nil && len(r.Pages.For) > maxUser:
		return Errorf(errcode.BadRequest, "a user name of %d bytes; the limit is %d", len(r.Pages.For), maxUser)
	}
	if err := r.checkTimes(); err != nil {
		return err
	}
	if err := r.checkGroups(); err != nil {
		return err
	}
	return checkFilters(r.Where, len(r.Desc))
}

// checkTimes refuses durations that no coordinator requests.
func (r *NodeRequest) checkTimes() error {
	for _, one := range []struct {
		name            string
		is, least, most int64
	}{
		{"wait_ms", r.WaitMS, 0, DefaultMaxDuration.Milliseconds()},
		{"lasts_ms", r.LastsMS, 1, DefaultMaxDuration.Milliseconds()},
		{"keep_ms", r.KeepMS, 0, MaxKeep.Milliseconds()},
	} {
		if one.is < one.least || one.is > one.most {
			return Errorf(errcode.BadRequest, "%s %d, want %d to %d", one.name, one.is, one.least, one.most)
		}
	}
	return nil
}

func (r *NodeRequest) checkGroups() error {
	switch {
	case r.Groups == nil:
		return nil
	case r.Distinct > 0 || r.CountOnly:
		return Errorf(errcode.BadRequest, "groups cannot be combined with distinct rows or counts")
	}
	return r.Groups.check(len(r.Desc))
}

// leastLasts is how long a part may still take to send its result when the scan's time is over.
const leastLasts = time.Second

// Lasts returns how long the node's part of the scan may take, bounded whatever was sent.
func (r *NodeRequest) Lasts() time.Duration {
	ms := min(max(r.LastsMS, leastLasts.Milliseconds()), DefaultMaxDuration.Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

// Serve answers a coordinator's request on this node: it pins the snapshots, merges the slices and writes frames to
// w. flush, unless nil, is called after each frame that is not soon followed by another one. An error that prevents
// rows, or further rows, is written as a frame and also returned; the caller only has to close the connection. Serve
// ends when ctx does, and when w fails.
func Serve(ctx context.Context, w io.Writer, flush func(), req NodeRequest, pins Pins) error {
	f := NewFrameWriter(w, flush)
	err := serve(ctx, f, req, pins)
	if err == nil {
		return f.End()
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = AsError(err)
	}
	return errors.Join(err, f.Fail(err))
}

func serve(ctx context.Context, f *FrameWriter, req NodeRequest, pins Pins) (err error) {
	p, err := open(ctx, req, pins)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if req.Explain {
		f.looked = p.Looked
	}
	if err := f.Header(p.vector, p.count); err != nil || req.CountOnly {
		return err
	}
	for {
		row, err := p.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.Row(row); err != nil {
			return err
		}
	}
}

// Open returns the rows that Serve would write, for a coordinator on this very node. Its errors are *Error. The
// snapshots are held until the stream is closed.
func Open(ctx context.Context, req NodeRequest, pins Pins) (RowStream, error) {
	p, err := open(ctx, req, pins)
	if err != nil {
		return nil, AsError(err)
	}
	return p, nil
}

// part is a node's part of a scan: the merged rows of some of its copies. It implements RowStream.
type part struct {
	pinned  *Pinned
	done    func(read bool)  // reports that it was read
	vector  timestamp.Vector // empty: not requested
	count   int64            // of a counting request, else -1
	limit   int64            // 0: none
	cursors []sliceSource
	cells   []cells  // instead of cursors
	joining *joining // joins cells
	merge   merger
	again   repeats
	rows    int64  // rows returned
	looked  Looked // for a count
	begun   bool
	shown   bool // the merge's first row has been returned
}

// open pins the snapshots of a request. For a counting request it also counts.
func open(ctx context.Context, req NodeRequest, pins Pins) (p *part, err error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	pinned, done, err := pinPages(ctx, req, pins)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			done(false)
			err = errors.Join(err, pinned.Release())
		}
	}()
	if (req.Named || req.KeepMS > 0 || req.Pages != nil) && pinned.Vector.Hash() != req.Ref.Hash {
		return nil, Errorf(errcode.SnapshotTooOld, "timestamp %d differs from this indexer's", req.Ref.Number)
	}
	if req.KeepMS > 0 {
		pins.Keep(req.Ref, time.Duration(req.KeepMS)*time.Millisecond)
	}
	p = &part{pinned: pinned, done: done, count: -1, limit: req.Limit, merge: merger{reverse: req.Reverse},
		again: repeats{parts: req.Distinct, desc: req.Desc}}
	if req.WantVector {
		p.vector = pinned.Vector
	}
	ranges := req.Ranges
	if req.After != nil {
		if ranges, err = req.behind(ranges); err != nil {
			return nil, err
		}
	}
	sieve := sieve{filters: req.Where, desc: req.Desc, reverse: req.Reverse}
	if req.CountOnly {
		sieve.reverse = false
		p.count, p.looked, err = count(ctx, pinned.Slices, ranges, sieve)
		return p, err
	}
	p.cursors = make([]sliceSource, len(pinned.Slices))
	for i, s := range pinned.Slices {
		p.cursors[i] = sliceSource{ctx: ctx, slice: s, ranges: ranges, reverse: req.Reverse, sieve: sieve}
	}
	if req.Groups != nil {
		p.gather(&req)
	}
	return p, nil
}

// behind cuts off what precedes After.
func (r *NodeRequest) behind(ranges []Range) ([]Range, error) {
	if r.Groups != nil {
		return r.Groups.behind(ranges, r.After.Key, r.Desc, r.Reverse)
	}
	return behind(ranges, *r.After, r.Reverse), nil
}

// gather makes the part return cells of the rows.
func (p *part) gather(req *NodeRequest) {
	p.cells = make([]cells, len(p.cursors))
	for i := range p.cells {
		p.cells[i] = newCells(p.cursors[i], req, len(p.cursors))
	}
	p.cursors = nil
	p.joining = &joining{g: req.Groups, desc: req.Groups.desc(req.Desc), limit: req.Limit}
}

// next returns a row, which is valid until the next call.
func (p *part) next() (Row, error) {
	if !p.begun {
		if err := p.begin(); err != nil {
			return Row{}, err
		}
	}
	if p.joining != nil {
		return p.nextCell()
	}
	for p.count < 0 && (p.limit == 0 || p.rows < p.limit) {
		if p.shown {
			p.shown = false
			if err := p.merge.advance(); err != nil {
				return Row{}, err
			}
		}
		row, _, ok := p.merge.top()
		if !ok {
			break
		}
		p.shown = true
		repeated, err := p.again.seen(row.Key)
		if err != nil {
			return Row{}, err
		}
		if !repeated {
			p.rows++
			return row, nil
		}
	}
	return Row{}, io.EOF
}

// begin adds all slices to the merge.
func (p *part) begin() error {
	p.begun = true
	p.merge.inputs = make([]merged, 0, len(p.cursors)+len(p.cells))
	for i := range p.cursors {
		if err := p.merge.add(&p.cursors[i]); err != nil {
			return err
		}
	}
	for i := range p.cells {
		if err := p.merge.add(&p.cells[i]); err != nil {
			return err
		}
	}
	return nil
}

// nextCell returns a cell, which is valid until the next call.
func (p *part) nextCell() (Row, error) {
	row, ok, err := p.joining.next(&p.merge)
	switch {
	case err != nil:
		return Row{}, err
	case !ok:
		return Row{}, io.EOF
	}
	p.rows++
	return row, nil
}

// Next implements RowStream.
func (p *part) Next() (Row, error) {
	row, err := p.next()
	if err != nil && !errors.Is(err, io.EOF) {
		return row, AsError(err)
	}
	return row, err
}

// Count implements RowStream.
func (p *part) Count() int64 {
	if p.count >= 0 {
		return p.count
	}
	return p.rows
}

// Vector implements RowStream.
func (p *part) Vector() timestamp.Vector { return p.vector }

// Looked implements RowStream.
func (p *part) Looked() Looked {
	all := p.looked
	for i := range p.cursors {
		all.Add(p.cursors[i].looked)
	}
	for i := range p.cells {
		all.Add(p.cells[i].rows.looked)
	}
	return all
}

// Close implements RowStream. It releases the snapshots.
func (p *part) Close() error {
	var errs []error
	for i := range p.cursors {
		errs = append(errs, p.cursors[i].close())
	}
	for i := range p.cells {
		errs = append(errs, p.cells[i].close())
	}
	p.done(true)
	return errors.Join(append(errs, p.pinned.Release())...)
}

// pinPages is pin, and also keeps the snapshots of a page for the next page. The caller reports with done whether the
// page was read.
func pinPages(ctx context.Context, req NodeRequest, pins Pins) (pinned *Pinned, done func(read bool), err error) {
	for _, o := range req.Over {
		pins.EndPages(o)
	}
	done = func(bool) {}
	if req.Pages != nil { // before pinning, so that nothing is released in between
		if done, err = pins.KeepPages(*req.Pages, req.Copies, req.Ref); err != nil {
			return nil, nil, err
		}
	}
	if pinned, err = pin(ctx, req, pins); err != nil {
		done(false)
		return nil, nil, err
	}
	return pinned, done, nil
}

// LateError reports that a copy has not reached a timestamp in time.
type LateError struct {
	Copy index.CopyID
	Why  string // what is wrong with the copy, if known
	Err  error  // why the wait ended
}

// Error returns the copy and what is wrong with it.
func (e *LateError) Error() string {
	text := fmt.Sprintf("copy %s has no snapshot of it yet", e.Copy)
	if e.Why != "" {
		text += ": " + e.Why
	}
	if !errors.Is(e.Err, context.DeadlineExceeded) {
		text += fmt.Sprintf(" (%v)", e.Err)
	}
	return text
}

// Unwrap returns why the wait ended.
func (e *LateError) Unwrap() error { return e.Err }

// pin pins the snapshots, within the request's wait.
func pin(ctx context.Context, req NodeRequest, pins Pins) (*Pinned, error) {
	pinned, err := pins.Pin(ctx, req.Index, req.Copies, req.Ref, time.Duration(req.WaitMS)*time.Millisecond)
	switch {
	case err == nil && len(pinned.Slices) != len(req.Copies):
		return nil, errors.Join(Errorf(errcode.Internal, "%d snapshots for %d copies", len(pinned.Slices), len(req.Copies)),
			pinned.Release())
	case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return nil, Errorf(errcode.Timeout, "timestamp %d was not reached: %v", req.Ref.Number, err)
	}
	return pinned, err
}

func count(ctx context.Context, all []Slice, ranges []Range, sieve sieve) (n int64, looked Looked, err error) {
	for _, s := range all {
		if len(sieve.filters) == 0 && len(ranges) == 1 && ranges[0].Low == nil && ranges[0].High == nil {
			n += s.Items()
			continue
		}
		c := &sliceSource{ctx: ctx, slice: s, ranges: ranges, sieve: sieve}
		for {
			if _, err = c.next(); err != nil {
				break
			}
			n++
		}
		looked.Add(c.looked)
		if !errors.Is(err, io.EOF) {
			return 0, looked, err
		}
	}
	return n, looked, nil
}

// stepsToFar is how many rows that fail the conditions are stepped over before the source opens a new cursor at the
// next possible match: opening a cursor costs as much as some dozens of steps.
const stepsToFar = 64

// sliceSource iterates over the rows of one slice that meet the conditions, range by range.
type sliceSource struct {
	ctx     context.Context
	slice   Slice
	ranges  []Range // ranges after the current one
	present Range
	reverse bool
	sieve   sieve
	cursor  Cursor
	looked  Looked
}

func (s *sliceSource) next() (Row, error) {
	for {
		if s.cursor == nil {
			if len(s.ranges) == 0 {
				return Row{}, io.EOF
			}
			if err := s.open(s.take()); err != nil {
				return Row{}, err
			}
		}
		row, some, err := s.nextOfCursor()
		if some || err != nil {
			return row, err
		}
		if s.cursor != nil { // goTo has opened the next cursor
			continue
		}
		if err := s.ctx.Err(); err != nil {
			return Row{}, fmt.Errorf("scan: %w", context.Cause(s.ctx))
		}
	}
}

// nextOfCursor returns the next row that meets the conditions. It returns false if the cursor has ended, or if goTo
// was used to skip ahead.
func (s *sliceSource) nextOfCursor() (Row, bool, error) {
	var to far
	for steps := 0; s.cursor.Next(); {
		key, docID := s.cursor.Row()
		s.looked.Read++
		if len(s.sieve.filters) == 0 {
			return Row{Key: key, DocID: docID}, true, nil
		}
		if steps > 0 && to.passed(key, s.reverse) {
			s.looked.Filtered++
			if steps++; steps > stepsToFar {
				return Row{}, false, s.goTo(to)
			}
			continue
		}
		takes, further, err := s.sieve.takes(key)
		if err != nil || takes {
			return Row{Key: key, DocID: docID}, takes, err
		}
		s.looked.Filtered++
		if to, steps = further, 1; to.none {
			return Row{}, false, s.goTo(to)
		}
	}
	return Row{}, false, s.close()
}

// goTo skips to a bound.
func (s *sliceSource) goTo(to far) error {
	if err := s.close(); err != nil {
		return err
	}
	if err := s.ctx.Err(); err != nil {
		return fmt.Errorf("scan: %w", context.Cause(s.ctx))
	}
	if r, some := to.rest(s.present, s.reverse); some {
		return s.open(r)
	}
	return nil
}

// take returns the next range.
func (s *sliceSource) take() (r Range) {
	i := 0
	if s.reverse {
		i = len(s.ranges) - 1
	}
	r = s.ranges[i]
	if s.reverse {
		s.ranges = s.ranges[:i]
	} else {
		s.ranges = s.ranges[1:]
	}
	return r
}

func (s *sliceSource) open(r Range) (err error) {
	s.present = r
	s.cursor, err = s.slice.Rows(s.ctx, r.Low, r.High, s.reverse)
	return err
}

func (s *sliceSource) close() error {
	if s.cursor == nil {
		return nil
	}
	c := s.cursor
	s.cursor = nil
	return c.Close()
}
