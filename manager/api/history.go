package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/history"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Defaults and limits of the part of the last hour that is returned.
const (
	historyMinutes = 60
	historyStep    = 30 // seconds
	maxHistoryStep = 600
	historyIndexes = 12
	ownHistoryPath = "/v1/history/own"
)

func (a *API) historyRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/history", handle: a.history, role: RoleRead, limit: v1.ReadTimeout, doc: operation{
			id: "getHistory", tag: tagReads, summary: "Times and rates of scans, index changes and buckets in the last hour, " +
				"asked of all managers and indexers at once: each remembers its own part, in memory",
			params: []param{
				{name: "minutes", number: true, means: "how many minutes back, 1 to 60; the default is 60"},
				{name: "step", number: true, means: "seconds per point, a multiple of 10, at most 600; the default is 30"},
				{name: "bucket", means: "only this bucket, and indexes on it; times of scans and changes are of all of them"},
				{name: "limit", number: true, means: "number of indexes, 1 to 64; the default is 12"}},
			answers: []answer{{status: 200, means: "what is remembered", body: v1.History{}}}}},
		{method: "GET", path: ownHistoryPath, handle: a.ownHistory, role: RoleComponent, limit: v1.ReadTimeout},
	}
}

// noteChange records the duration of an executed change of indexes.
func (a *API) noteChange(r *http.Request, rt *route, outcome string, began time.Time, took time.Duration) {
	dry := r.URL.Query().Get("dry_run") == "true"
	if rt.role == RoleDDL && rt.leader && outcome == outcomeOK && !dry {
		a.past.Changed(began.Add(took), took)
	}
}

// noteBuckets records the state of buckets if this manager leads, those with the largest lag first.
func (a *API) noteBuckets(now time.Time) {
	status, leads := a.cfg.Coordinator.Status()
	if !leads {
		return
	}
	all := make([]wire.BucketPast, 0, len(status.Buckets))
	for i := range status.Buckets {
		b := &status.Buckets[i]
		all = append(all, wire.BucketPast{Name: b.Name, Term: status.Term, Lag: b.Lag, Waiting: b.Waiting, Number: b.Number})
	}
	slices.SortFunc(all, func(a, b wire.BucketPast) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(a.Name, b.Name))
	})
	a.past.Buckets(now, all)
}

// ownHistory returns this manager's own records to another manager.
func (a *API) ownHistory(w http.ResponseWriter, r *http.Request) error {
	q, err := history.ParseQuery(r)
	if err != nil {
		return err
	}
	h := a.past.Report(q)
	h.Name = a.cfg.Name
	rpc.Write(w, r, http.StatusOK, h)
	return nil
}

func (a *API) history(w http.ResponseWriter, r *http.Request) error {
	minutes, err := within(r, "minutes", historyMinutes, historyMinutes)
	if err != nil {
		return err
	}
	step, err := within(r, "step", historyStep, maxHistoryStep)
	if err != nil {
		return err
	}
	limit, err := page(r, historyIndexes, wire.MaxLoads)
	if err != nil {
		return err
	}
	slot := int(wire.HistorySlot / time.Second)
	if step%slot != 0 {
		return rpc.Refuse(errcode.BadRequest, "step=%d: want a multiple of %d seconds", step, slot)
	}
	s := a.cfg.Raft.State()
	p := newPast(a.now(), minutes, step/slot, r.URL.Query().Get("bucket"))
	a.askPast(r.Context(), s, p)
	rpc.Write(w, r, http.StatusOK, p.answer(s, limit))
	return nil
}

// within parses a number of the query.
func within(r *http.Request, name string, preset, most int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return preset, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, rpc.Refuse(errcode.BadRequest, "%s=%.40s: want 1 to %d", name, text, most)
	}
	return n, nil
}

// askPast asks all managers and indexers in parallel, with one deadline.
func (a *API) askPast(ctx context.Context, s *statecontext.State, p *past) {
	ctx, cancel := context.WithTimeout(ctx, scansPatience)
	defer cancel()
	var asked sync.WaitGroup
	ask := func(role, name string, question func() (*wire.History, error)) {
		asked.Go(func() {
			h, err := question()
			p.take(role, name, h, err)
		})
	}
	for m := range s.Managers() {
		switch {
		case m.REST == a.cfg.REST:
			p.take("manager", m.Name, a.past.Report(p.asked), nil)
		case m.REST != "":
			ask("manager", m.Name, func() (*wire.History, error) {
				return getJSON[wire.History](ctx, a.ground, a.looks, m.REST+ownHistoryPath+history.Query(p.asked))
			})
		}
	}
	for _, i := range indexersOf(s) {
		ask("indexer", i.name, func() (*wire.History, error) { return a.indexers.History(ctx, i.admin, p.asked) })
	}
	asked.Wait()
}

// past combines the records of several processes.
type past struct {
	asked wire.HistoryQuery

	mu         sync.Mutex
	scans      map[string]*latencies // by consistency
	ddl        latencies
	loads      map[index.ID]*loads
	omitted    int
	beyond     uint64
	buckets    map[bucketAt]*wire.BucketPast
	unnoted    int
	of         []v1.HistoryOf
	unanswered []v1.UnreachableProcess
}

type bucketAt struct {
	name  string
	point int
}

// newPast returns a request for the points of the given number of minutes up to now, of which the last one may be
// incomplete; of one bucket, or of all with "".
func newPast(now time.Time, minutes, each int, bucket string) *past {
	points := int(time.Duration(minutes)*time.Minute/wire.HistorySlot) / each
	last := history.SlotOf(now) / int64(each)
	return &past{asked: wire.HistoryQuery{From: (last - int64(points) + 1) * int64(each), Each: each, Points: points,
		Bucket: bucket},
		scans: map[string]*latencies{}, loads: map[index.ID]*loads{}, buckets: map[bucketAt]*wire.BucketPast{},
		of: []v1.HistoryOf{}}
}

// latencies holds durations by point, and in total.
type latencies struct {
	points map[int]*history.Latencies
	all    history.Latencies
}

func (l *latencies) add(w *wire.LatencyPast) {
	if l.points == nil {
		l.points = map[int]*history.Latencies{}
	}
	if l.points[w.At] == nil {
		l.points[w.At] = &history.Latencies{}
	}
	l.points[w.At].Add(w)
	l.all.Add(w)
}

// loads holds counts and total durations by point, and in total.
type loads struct {
	points map[int]*load
	all    load
}

type load struct{ scans, rows, errors, nanos uint64 }

func (l *load) add(scans, rows, errors, nanos uint64) {
	l.scans, l.rows, l.errors, l.nanos = l.scans+scans, l.rows+rows, l.errors+errors, l.nanos+nanos
}

func (l *load) indexLoad() v1.IndexLoad {
	return v1.IndexLoad{Scans: l.scans, Rows: l.rows, Errors: l.errors,
		MeanMS: inMS(time.Duration(l.nanos / max(l.scans, 1)))}
}

func inMS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// take adds the records of a process, or that it did not answer.
func (p *past) take(role, name string, h *wire.History, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.unanswered = append(p.unanswered, v1.UnreachableProcess{Role: role, Name: name, Error: err.Error()})
		return
	}
	p.of = append(p.of, v1.HistoryOf{Role: role, Name: name, SinceMS: h.SinceMS})
	for i := range h.Scans {
		w := &h.Scans[i]
		if p.scans[w.Of] == nil {
			p.scans[w.Of] = &latencies{}
		}
		p.scans[w.Of].add(w)
	}
	for i := range h.Changes {
		p.ddl.add(&h.Changes[i])
	}
	for i := range h.Indexes {
		p.takeLoad(&h.Indexes[i])
	}
	p.omitted, p.beyond, p.unnoted = max(p.omitted, h.Omitted), p.beyond+h.Beyond, max(p.unnoted, h.Unnoted)
	for i := range h.Buckets {
		b := h.Buckets[i]
		at := bucketAt{b.Name, b.At}
		if p.buckets[at] == nil {
			p.buckets[at] = &wire.BucketPast{Name: b.Name, At: b.At}
		}
		history.Worse(p.buckets[at], &b)
	}
}

func (p *past) takeLoad(w *wire.LoadPast) {
	n := min(len(w.At), len(w.Scans), len(w.Rows), len(w.Errors), len(w.Nanos))
	l := p.loads[w.Index]
	if l == nil {
		l = &loads{points: map[int]*load{}}
		p.loads[w.Index] = l
	}
	for i := range n {
		if l.points[w.At[i]] == nil {
			l.points[w.At[i]] = &load{}
		}
		l.points[w.At[i]].add(w.Scans[i], w.Rows[i], w.Errors[i], w.Nanos[i])
		l.all.add(w.Scans[i], w.Rows[i], w.Errors[i], w.Nanos[i])
	}
}

// atMS returns when a point begins.
func (p *past) atMS(point int) int64 {
	return (p.asked.From + int64(point)*int64(p.asked.Each)) * wire.HistorySlot.Milliseconds()
}

// answer returns the API answer, with at most limit indexes.
func (p *past) answer(s *statecontext.State, limit int) *v1.History {
	bucket := p.asked.Bucket
	h := &v1.History{FromMS: p.atMS(0), ToMS: p.atMS(p.asked.Points), StepMS: p.atMS(1) - p.atMS(0),
		Scans: []v1.LatencyHistory{}, DDL: p.latency("", &p.ddl), Indexes: []v1.IndexHistory{},
		ScansUnnamed: p.beyond, Buckets: p.bucketHistory(bucket), BucketsOmitted: p.unnoted, Of: p.of,
		Unreachable: p.unanswered}
	for of, l := range p.scans {
		h.Scans = append(h.Scans, p.latency(of, l))
	}
	slices.SortFunc(h.Scans, func(a, b v1.LatencyHistory) int { return cmp.Compare(a.Consistency, b.Consistency) })
	for id, l := range p.loads {
		if one := p.indexHistory(s, id, l); bucket == "" || one.Bucket == bucket {
			h.Indexes = append(h.Indexes, one)
		}
	}
	slices.SortFunc(h.Indexes, func(a, b v1.IndexHistory) int {
		return cmp.Or(cmp.Compare(b.Scans, a.Scans), cmp.Compare(a.ID, b.ID))
	})
	h.IndexesOmitted = p.omitted + max(len(h.Indexes)-limit, 0)
	h.Indexes = h.Indexes[:min(len(h.Indexes), limit)]
	slices.SortFunc(h.Of, func(a, b v1.HistoryOf) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(h.Unreachable, func(a, b v1.UnreachableProcess) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name))
	})
	return h
}

func (p *past) latency(consistency string, l *latencies) v1.LatencyHistory {
	h := v1.LatencyHistory{Consistency: consistency, Latency: percentiles(&l.all), Points: []v1.LatencyPoint{}}
	for point := range p.asked.Points {
		if at := l.points[point]; at != nil {
			h.Points = append(h.Points, v1.LatencyPoint{AtMS: p.atMS(point), Latency: percentiles(at)})
		}
	}
	return h
}

func percentiles(l *history.Latencies) v1.Latency {
	return v1.Latency{Count: l.Count(), MeanMS: inMS(l.Mean()), P50MS: inMS(l.Percentile(0.5)),
		P95MS: inMS(l.Percentile(0.95)), P99MS: inMS(l.Percentile(0.99))}
}

func (p *past) indexHistory(s *statecontext.State, id index.ID, l *loads) v1.IndexHistory {
	h := v1.IndexHistory{ID: id, IndexLoad: l.all.indexLoad(), Points: []v1.IndexPoint{}}
	if x := s.Index(id); x != nil {
		d := &x.Definition
		h.Name, h.Bucket, h.Scope, h.Collection = d.Name, d.Bucket, d.Member.Scope, d.Member.Collection
	}
	for point := range p.asked.Points {
		if at := l.points[point]; at != nil {
			h.Points = append(h.Points, v1.IndexPoint{AtMS: p.atMS(point), IndexLoad: at.indexLoad()})
		}
	}
	return h
}

// bucketHistory returns the history of one bucket, or of all with "".
func (p *past) bucketHistory(only string) []v1.BucketHistory {
	all := []v1.BucketHistory{}
	names := map[string]bool{}
	for at := range p.buckets {
		names[at.name] = only == "" || at.name == only
	}
	for name, wanted := range names {
		if !wanted {
			continue
		}
		h := v1.BucketHistory{Name: name, Points: []v1.BucketPoint{}}
		var before *wire.BucketPast
		for point := range p.asked.Points {
			b := p.buckets[bucketAt{name, point}]
			if b == nil {
				before = nil
				continue
			}
			one := v1.BucketPoint{AtMS: p.atMS(point), Lag: b.Lag, ScansWaiting: b.Waiting}
			if before != nil && b.Number >= before.Number { // else the bucket was re-created
				one.Timestamps = new(b.Number - before.Number)
			}
			h.Points, before = append(h.Points, one), b
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b v1.BucketHistory) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
