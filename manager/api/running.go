package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
	"tidemark/wire"
)

const (
	defaultScans = 200
	maxScans     = 1000
	// scansPatience limits the wait for all indexers together.
	scansPatience = 2 * time.Second
)

func (g running) runningRoutes() []route {
	limit := param{name: "limit", number: true, means: "number of scans, 1 to 1000; the default is 200"}
	return []route{
		{method: "GET", path: "/v1/scans", handle: g.runningScans, role: RoleRead, limit: v1.ReadTimeout, doc: operation{
			id: "listScans", tag: tagScans, summary: "Running scans and counts, asked of all indexers at once",
			params:  []param{limit},
			answers: []answer{{status: 200, means: "the scans, longest first", body: v1.RunningScans{}}}}},
		{method: "GET", path: "/v1/slow-scans", handle: g.slowScans, role: RoleRead, limit: v1.ReadTimeout, doc: operation{
			id: "listSlowScans", tag: tagScans, summary: "Scans and counts that took long, asked of all indexers at once",
			params:  []param{limit},
			answers: []answer{{status: 200, means: "the scans, newest first", body: v1.SlowScans{}}}}},
		{method: "PUT", path: "/v1/slow-scans", handle: g.slowFrom, role: RoleAdmin, limit: v1.ReadTimeout, doc: operation{
			id: "setSlowScans", tag: tagScans, summary: "Set the duration from which scans count as slow, on all indexers " +
				"until their processes end",
			body: v1.SlowFromRequest{}, answers: []answer{{status: 200, means: "the indexers that apply it from now on",
				body: v1.SlowFromReply{}}}, codes: []errcode.Code{errcode.InvalidArgument, errcode.Unavailable}}},
		{method: "DELETE", path: "/v1/scans/{id}", handle: g.cancelScan, role: RoleDDL, limit: v1.ReadTimeout, doc: operation{
			id: "cancelScan", tag: tagScans, summary: "End a running scan; its caller gets an error",
			answers: []answer{{status: 204, means: "it ends as soon as its client reads something"}},
			codes:   []errcode.Code{errcode.UnknownScan, errcode.Unavailable}}},
	}
}

func (g running) runningScans(w http.ResponseWriter, r *http.Request) error {
	limit, err := scansPage(r)
	if err != nil {
		return err
	}
	list := v1.RunningScans{Scans: []v1.RunningScan{}}
	var reports []*wire.IndexerScans
	s, all := g.cfg.Raft.State(), 0
	reports, list.Unreachable = g.askScans(r.Context(), indexersOf(s), limit, 0)
	for _, t := range reports {
		all += t.Running
		for i := range t.Scans {
			x := &t.Scans[i]
			list.Scans = append(list.Scans, v1.RunningScan{ScanInfo: scanInfo(s, t.Name, &x.ScanInfo), ForMS: x.ForMS,
				State: x.State, Rows: x.Rows, ScanTimes: v1.ScanTimes(x.ScanTimes), Cancelled: x.Cancelled})
		}
	}
	slices.SortFunc(list.Scans, func(a, b v1.RunningScan) int {
		return cmp.Or(cmp.Compare(b.ForMS, a.ForMS), strings.Compare(a.ID, b.ID))
	})
	list.Scans = list.Scans[:min(len(list.Scans), limit)]
	list.Omitted = max(all-len(list.Scans), 0)
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

func (g running) slowScans(w http.ResponseWriter, r *http.Request) error {
	limit, err := scansPage(r)
	if err != nil {
		return err
	}
	list := v1.SlowScans{Scans: []v1.SlowScan{}}
	var reports []*wire.IndexerScans
	s, all := g.cfg.Raft.State(), 0
	reports, list.Unreachable = g.askScans(r.Context(), indexersOf(s), 0, limit)
	for _, t := range reports {
		all += t.SlowKept
		list.From = append(list.From, v1.SlowFrom{Indexer: t.Name, FromMS: t.SlowMS})
		list.Forgotten += t.SlowTotal - min(uint64(t.SlowKept), t.SlowTotal)
		for i := range t.Slow {
			x := &t.Slow[i]
			list.Scans = append(list.Scans, v1.SlowScan{ScanInfo: scanInfo(s, t.Name, &x.ScanInfo), TookMS: x.TookMS,
				Rows: x.Rows, ScanTimes: v1.ScanTimes(x.ScanTimes), Code: x.Code, Detail: x.Detail})
		}
	}
	slices.SortFunc(list.From, func(a, b v1.SlowFrom) int { return strings.Compare(a.Indexer, b.Indexer) })
	ended := func(s *v1.SlowScan) float64 { return float64(s.SinceMS) + s.TookMS }
	slices.SortFunc(list.Scans, func(a, b v1.SlowScan) int {
		return cmp.Or(cmp.Compare(ended(&b), ended(&a)), strings.Compare(a.ID, b.ID))
	})
	list.Scans = list.Scans[:min(len(list.Scans), limit)]
	list.Omitted = max(all-len(list.Scans), 0)
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

// maxSlowFrom is the longest threshold for slow scans, in milliseconds.
const maxSlowFrom = int64(time.Hour / time.Millisecond)

// slowFrom sets the threshold for slow scans on all indexers, in parallel.
func (g running) slowFrom(w http.ResponseWriter, r *http.Request) error {
	var req v1.SlowFromRequest
	if err := rpc.Read(r, &req); err != nil {
		return err
	}
	if req.FromMS < -1 || req.FromMS > maxSlowFrom {
		return rpc.Refuse(errcode.InvalidArgument, "from_ms %d: want 1 to %d, -1 for none, or 0 for the indexers' "+
			"configured value", req.FromMS, maxSlowFrom)
	}
	indexers := indexersOf(g.cfg.Raft.State())
	reply := v1.SlowFromReply{Indexers: []string{}}
	errs := g.setSlowFrom(r.Context(), indexers, &wire.SlowFrom{FromMS: req.FromMS, By: rpc.Principal(r.Context())})
	for n, i := range indexers {
		if err := errs[n]; err != nil {
			reply.Unreachable = append(reply.Unreachable, v1.UnreachableIndexer{Indexer: i.name, Error: err.Error()})
			continue
		}
		reply.Indexers = append(reply.Indexers, i.name)
	}
	if len(reply.Indexers) == 0 && len(indexers) > 0 {
		return rpc.Refuse(errcode.Unavailable, "no indexer answered: %v", errors.Join(errs...))
	}
	slices.Sort(reply.Indexers)
	slices.SortFunc(reply.Unreachable, func(a, b v1.UnreachableIndexer) int {
		return strings.Compare(a.Indexer, b.Indexer)
	})
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

// setSlowFrom sends req to the indexers and returns the outcome at each.
func (g running) setSlowFrom(ctx context.Context, indexers []indexerAt, req *wire.SlowFrom) []error {
	ctx, cancel := context.WithTimeout(ctx, scansPatience)
	defer cancel()
	errs := make([]error, len(indexers))
	var calls sync.WaitGroup
	for n, i := range indexers {
		calls.Go(func() { errs[n] = g.indexers.SlowFrom(ctx, i.admin, req) })
	}
	calls.Wait()
	return errs
}

func scansPage(r *http.Request) (limit int, err error) {
	return page(r, defaultScans, maxScans)
}

// scanInfo adds the index's name, if this manager's state has it.
func scanInfo(s *statecontext.State, indexer string, w *wire.ScanInfo) v1.ScanInfo {
	c := v1.ScanInfo{ID: w.ID, Indexer: indexer, Index: w.Index, Op: w.Op, User: w.User, RequestID: w.RequestID,
		SinceMS: w.SinceMS, Consistency: w.Consistency, Stability: w.Stability, Bounds: w.Bounds}
	if x := s.Index(w.Index); x != nil {
		d := &x.Definition
		c.Name, c.Bucket, c.Scope, c.Collection = d.Name, d.Bucket, d.Member.Scope, d.Member.Collection
	}
	return c
}

// indexerAt is the name and address of an indexer to ask.
type indexerAt struct{ name, admin string }

// indexersOf returns the indexers, one per address: if two registrations share one, a single process answers for
// both.
func indexersOf(s *statecontext.State) (all []indexerAt) {
	for i := range s.Indexers() {
		if !slices.ContainsFunc(all, func(o indexerAt) bool { return o.admin == i.Admin }) {
			all = append(all, indexerAt{i.Name, i.Admin})
		}
	}
	return all
}

// askScans asks indexers in parallel, with one deadline, and returns the names of those that did not answer.
func (g running) askScans(ctx context.Context, indexers []indexerAt, running, slow int) (reports []*wire.IndexerScans,
	unanswered []v1.UnreachableIndexer) {
	ctx, cancel := context.WithTimeout(ctx, scansPatience)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, i := range indexers {
		asked.Go(func() {
			one, err := g.indexers.Scans(ctx, i.admin, running, slow)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unanswered = append(unanswered, v1.UnreachableIndexer{Indexer: i.name, Error: err.Error()})
				return
			}
			reports = append(reports, one)
		})
	}
	asked.Wait()
	slices.SortFunc(unanswered, func(a, b v1.UnreachableIndexer) int { return strings.Compare(a.Indexer, b.Indexer) })
	return reports, unanswered
}

// cancelScan ends a scan at the indexer named in its id.
func (g running) cancelScan(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	name := id[:max(strings.LastIndexByte(id, '.'), 0)]
	named := slices.DeleteFunc(indexersOf(g.cfg.Raft.State()), func(i indexerAt) bool { return i.name != name })
	switch err := g.cancelAt(r.Context(), named, &wire.CancelScan{ID: id, By: rpc.Principal(r.Context())}); {
	case err != nil:
		return err
	case len(named) > 0:
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return rpc.Refuse(errcode.UnknownScan, "there is no scan %.100q: an id begins with the indexer's name, as GET "+
		"/v1/scans shows it", id)
}

// cancelAt asks all indexers of a name at once; one may be registered twice, at different addresses. It returns an
// error if none has ended the scan: rather that of one that did not answer than that of one that does not know the
// scan.
func (g running) cancelAt(ctx context.Context, named []indexerAt, req *wire.CancelScan) error {
	ctx, cancel := context.WithTimeout(ctx, scansPatience)
	defer cancel()
	errs := make(chan error, len(named))
	for _, i := range named {
		go func() {
			err := g.indexers.CancelScan(ctx, i.admin, req)
			if p := new(rpc.Problem); err != nil && !errors.As(err, &p) {
				err = rpc.Refuse(errcode.Unavailable, "indexer %s at %s, which may run the scan, does not answer: %v", i.name,
					i.admin, err)
			}
			errs <- err
		}()
	}
	var worst error
	for range named {
		err := <-errs
		p := new(rpc.Problem)
		switch {
		case err == nil:
			return nil
		case worst == nil, errors.As(err, &p) && p.Code != errcode.UnknownScan:
			worst = err
		}
	}
	return worst
}
