package scanserver

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

const (
	// DefaultSlow is the duration from which on a scan counts as slow.
	DefaultSlow = time.Second
	// maxSlow bounds the slow scans that are remembered.
	maxSlow = 256
	// maxSlowDetail bounds the remembered error of a slow scan, in bytes.
	maxSlowDetail = 300
)

// running tracks the scans in progress, and the slow ones that have ended.
type running struct {
	name  string        // name of the indexer
	began time.Duration // value of slow when the process started
	now   func() time.Time
	// hurry is called for each scan that waits for its first rows, but not for a copy to be filled
	hurry func() (over func())

	mu    sync.Mutex
	slow  time.Duration // duration from which on a scan is slow; below 0: never
	next  uint64        // id of the next scan; ids of later processes are greater
	open  map[uint64]*active
	kept  []wire.SlowScan // in the order in which they ended, starting at index at
	at    int
	total uint64
}

func newRunning(name string, slow time.Duration, now func() time.Time, hurry func() func()) *running {
	if hurry == nil {
		hurry = func() func() { return func() {} }
	}
	slow = cmp.Or(slow, DefaultSlow)
	return &running{name: name, slow: slow, began: slow, now: now, hurry: hurry,
		next: uint64(now().UnixMicro()), open: map[uint64]*active{}}
}

// active is a scan or count in progress.
type active struct {
	id        uint64
	index     index.ID
	op        string
	user      string
	requestID string
	began     time.Time
	request   scan.Request
	progress  *scan.Progress
	cancel    context.CancelCauseFunc
	cancelled atomic.Bool
}

// begin registers a scan and sets the progress of its spec. It returns the scan's context, which ends when the scan
// is cancelled.
func (r *running) begin(ctx context.Context, op string, req *scan.Request, spec *scan.Spec) (context.Context, *active) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &active{index: spec.Index, op: op, user: rpc.Principal(ctx), requestID: rpc.RequestID(ctx), began: r.now(),
		request: *req, progress: scan.NewProgress(r.hurry()), cancel: cancel}
	spec.Progress = a.progress
	r.mu.Lock()
	defer r.mu.Unlock()
	a.id = r.next
	r.next++
	r.open[a.id] = a
	return ctx, a
}

// end records the end of a scan, and keeps it if it was slow.
func (r *running) end(a *active, err error) {
	a.cancel(nil)
	a.progress.End()
	took := r.now().Sub(a.began)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, a.id)
	if r.slow < 0 || took < r.slow {
		return
	}
	one := wire.SlowScan{ScanInfo: r.info(a), TookMS: millis(took), Rows: a.progress.Rows(),
		ScanTimes: a.progress.Times(), Code: codeOK}
	if err != nil {
		one.Code, one.Detail = string(scan.CodeOf(err)), wire.Cut(scan.AsError(err).Detail, maxSlowDetail)
	}
	r.total++
	if len(r.kept) < maxSlow {
		r.kept = append(r.kept, one)
		return
	}
	r.kept[r.at] = one
	r.at = (r.at + 1) % maxSlow
}

func (r *running) info(a *active) wire.ScanInfo {
	return wire.ScanInfo{ID: r.idOf(a.id), Index: a.index, Op: a.op, User: a.user, RequestID: a.requestID,
		SinceMS: a.began.UnixMilli(), Consistency: string(a.request.Consistency), Stability: string(a.request.Stability),
		Bounds: a.request.Brief()}
}

// idOf returns a scan's id: the indexer's name, by which the scan can be located, and a number.
func (r *running) idOf(n uint64) string { return r.name + "." + strconv.FormatUint(n, 36) }

// list returns at most mostRunning running scans, longest first, and at most mostSlow slow ones, newest first.
func (r *running) list(mostRunning, mostSlow int) *wire.IndexerScans {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &wire.IndexerScans{Name: r.name, SlowMS: millis(r.slow), Running: len(r.open), SlowKept: len(r.kept),
		SlowTotal: r.total}
	all := make([]*active, 0, len(r.open))
	for _, a := range r.open {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b *active) int { return cmp.Compare(a.id, b.id) })
	for _, a := range all[:min(len(all), mostRunning)] {
		s.Scans = append(s.Scans, wire.RunningScan{ScanInfo: r.info(a), ForMS: millis(now.Sub(a.began)),
			State: a.progress.Phase().String(), Rows: a.progress.Rows(), ScanTimes: a.progress.Times(),
			Cancelled: a.cancelled.Load()})
	}
	for i := range min(len(r.kept), mostSlow) {
		s.Slow = append(s.Slow, r.kept[(r.at+len(r.kept)-1-i)%len(r.kept)])
	}
	return s
}

// endFor cancels a scan on behalf of a user. It returns false if the scan is not in progress.
func (r *running) endFor(id, who string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, a := range r.open {
		if r.idOf(n) == id {
			a.cancelled.Store(true)
			a.cancel(scan.Errorf(errcode.ScanCancelled, "scan %s was cancelled by %s", id, who))
			return true
		}
	}
	return false
}

// Running returns at most mostRunning of the scans that this node coordinates, longest first, and at most mostSlow
// slow ones, newest first.
func (s *Server) Running(mostRunning, mostSlow int) *wire.IndexerScans {
	return s.running.list(mostRunning, mostSlow)
}

// Cancel ends a scan that this node coordinates. The scan's client gets an error that names who cancelled it, as soon
// as the client accepts data.
func (s *Server) Cancel(req *wire.CancelScan) error {
	if !s.running.endFor(req.ID, req.By) {
		return rpc.Refuse(errcode.UnknownScan, "there is no running scan %.100q on indexer %s", req.ID, s.running.name)
	}
	return nil
}

// SetSlow sets the duration from which on scans that end from now on count as slow, until the process ends; below 0:
// none does, 0: the initial value.
func (s *Server) SetSlow(from time.Duration) {
	r := s.running
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slow = cmp.Or(from, r.began)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// sendingWriter writes to the client, and records the time as sending in the scan's progress.
type sendingWriter struct {
	io.Writer
	progress *scan.Progress
}

// Write implements io.Writer.
func (s sendingWriter) Write(b []byte) (int, error) {
	defer s.progress.Enter(s.progress.Enter(scan.Sending))
	return s.Writer.Write(b)
}

// sending returns f with its time recorded as sending in a scan's progress: how long the client, or the connection to
// it, accepts no data.
func sending(p *scan.Progress, f func([]byte) error) func([]byte) error {
	return func(b []byte) error {
		defer p.Enter(p.Enter(scan.Sending))
		return f(b)
	}
}
