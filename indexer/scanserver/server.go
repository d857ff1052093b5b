// Package scanserver answers scans at an indexer's port: of managers and of clients that come with a ticket, for which
// it coordinates (package scan), and the parts that other indexers coordinate. It promises that what is under way at
// once is bounded, that a client that has gone ends its scan, and that nobody scans whom no manager has let in. It
// decides nothing about what a scan may see.
package scanserver

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanport"
	"tidemark/indexer/snapshots"
	"tidemark/internal/history"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/wire"
)

const (
	// MaxScans bounds the scans that this node coordinates at a time; users share them out (rpc.Places).
	MaxScans = 256
	// countTime is for a whole count, and what it waits for before.
	countTime = scan.DefaultMaxDuration + time.Minute
)

// Options of a Server. MaxClients and ClientStall that are 0 take the constants of these names, and MaxParts MaxScans.
type Options struct {
	Name        string        // of the indexer
	Slow        time.Duration // from when on a scan is kept as a slow one; 0: DefaultSlow, below 0: none is
	Catalog     scan.Catalog
	Truth       scan.Truth
	Definitions func() wire.Definitions // in force
	Pins        *snapshots.Pins
	Nodes       *peers.Nodes
	Keeps       *peers.Nodes // the same, to have timestamps kept: those who read wait for none of these connections
	Managers    Managers
	MaxClients  int
	MaxParts    int // of scans that other nodes coordinate, at a time
	ClientStall time.Duration
	Registry    prometheus.Registerer
	Tracer      trace.Tracer // nil: no spans
	Log         hclog.Logger
	Now         func() time.Time
	// Hurry is told that a scan waits here, until what it returns is called; nil: nobody wants to know.
	Hurry func() (over func())
}

// Server serves scans: managers', clients', and the parts that other indexers ask for.
type Server struct {
	coordinator  *scan.Coordinator
	definitions  func() wire.Definitions
	pins         scan.Pins
	snapshots    *snapshots.Set
	silent       func(index.NodeID) time.Time // since when, and
	nameOf       func(index.NodeID) string    // how it is called; see peers.Peers
	metrics      *metrics
	tracer       trace.Tracer
	log          hclog.Logger
	now          func() time.Time
	scans, parts *rpc.Places // what is under way
	book         scanBook
	past         *history.Scans
	running      *running
	clients      *clients
}

// New returns a server of which nothing runs.
func New(o Options) *Server {
	s := &Server{definitions: o.Definitions, pins: o.Pins, snapshots: o.Pins.Snapshots, silent: o.Nodes.SilentSince,
		nameOf:  o.Nodes.Name,
		metrics: newMetrics(o.Registry), tracer: o.Tracer, log: o.Log,
		now: o.Now, past: history.NewScans(o.Now()),
		scans: rpc.NewPlaces(MaxScans, "scans"), parts: rpc.NewPlaces(cmp.Or(o.MaxParts, MaxScans), "parts of scans"),
		running: newRunning(o.Name, o.Slow, o.Now, o.Hurry),
	}
	s.coordinator = scan.NewCoordinator(o.Catalog, o.Truth, scanNodes{o.Nodes, o.Keeps, o.Pins, s.keep, s.metrics.keeps},
		scan.Options{Logger: o.Log.Named("scan")})
	s.clients = newClients(s, o.Managers)
	if o.MaxClients > 0 {
		s.clients.most = o.MaxClients
	}
	if o.ClientStall > 0 {
		s.clients.stall = o.ClientStall
	}
	return s
}

// Routes are what the server answers at a port. Users come by way of a manager, which knows what they may do, or with
// a ticket of one; how many of these there are is bounded by clients.
func (s *Server) Routes() []route.Route {
	asked, ticket := route.Only(tlsconf.Manager, tlsconf.Admin), route.Anybody()
	asked.For, ticket.Name = scan.AskedFor, "anybody with a ticket"
	const path = "/v1/indexes/{id:[0-9]+}"
	return []route.Route{
		{Method: http.MethodPost, Path: path + ":scan", Role: asked, Body: rpc.MaxUserBody, Stream: true, Places: s.scans,
			Handle: s.scan},
		{Method: http.MethodPost, Path: path + ":count", Role: asked, Body: rpc.MaxUserBody, Limit: countTime,
			Places: s.scans, Handle: s.count},
		s.slicesRoute(), s.keepRoute(),
		{Method: http.MethodGet, Path: scanport.Path, Role: ticket, Stream: true, Handle: s.clients.handle},
	}
}

// Run watches the clients of long scans. It ends every connection of clients when ctx ends, and returns when nothing is
// served to them any more.
func (s *Server) Run(ctx context.Context) error { return s.clients.run(ctx) }

// Load is how many scans are coordinated here now, and how many clients are connected.
func (s *Server) Load() (scans, clients int) {
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	return s.scans.Taken(), s.clients.there
}

// Stats are the figures of the indexes that were scanned here and are defined.
func (s *Server) Stats(defs *wire.Definitions) []wire.ScanStats { return s.book.list(defs) }

// Past says what is known of scans that have ended here.
func (s *Server) Past(q wire.HistoryAsked) *wire.History {
	if q.Bucket == "" {
		return s.past.Tell(q, nil)
	}
	on, defs := map[index.ID]bool{}, s.definitions()
	for i := range defs.Indexes {
		on[defs.Indexes[i].ID] = defs.Indexes[i].Bucket == q.Bucket
	}
	return s.past.Tell(q, func(id index.ID) bool { return on[id] })
}

// prepare reads the request and checks it against the index.
func (s *Server) prepare(r *http.Request) (scan.Request, scan.Spec, error) {
	refuse := func(err error) (scan.Request, scan.Spec, error) { return scan.Request{}, scan.Spec{}, err }
	id, err := index.ParseID(r.PathValue("id"))
	if err != nil {
		return refuse(scan.Errorf(errcode.BadRequest, "%w", err))
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return refuse(err)
	}
	resume, err := scanport.ParsePlace(r.Header.Get(scanport.HeaderResume))
	if err != nil {
		return refuse(scan.Errorf(errcode.BadRequest, "%w", err))
	}
	return s.parse(id, body, resume, strings.Join(r.Header.Values(scanport.HeaderSession), ","))
}

// parse reads a request's body and checks it against the index. session is of a session, beside what the body has.
func (s *Server) parse(id index.ID, body, resume []byte, session string) (scan.Request, scan.Spec, error) {
	req, err := scan.ParseRequest(body)
	if err == nil {
		err = req.Continue(session)
	}
	if err != nil {
		return req, scan.Spec{}, err
	}
	req.Resume = resume
	spec, err := s.coordinator.Prepare(id, req)
	return req, spec, err
}

func (s *Server) scan(w http.ResponseWriter, r *http.Request) error {
	began := s.now()
	req, spec, err := s.prepare(r)
	if err != nil {
		s.doneHTTP(r, began, &spec, scan.Result{}, err)
		return scan.ProblemOf(err)
	}
	ctx, active := s.running.begin(r.Context(), scanport.Scan, &req, &spec)
	defer func() { s.running.end(active, err) }()
	out := scan.NewAnswer(w)
	enc := scan.NewEncoder(sendingWriter{out, active.progress}, out.Flush, out.Whole, spec)
	if r.Header.Get(scanport.HeaderPlaces) == "true" {
		enc.WithPlaces()
	}
	result, err := s.coordinator.Scan(ctx, spec, seeing{enc, out})
	s.doneHTTP(r, began, &spec, result, err)
	var gone error
	switch {
	case err == nil:
		gone = enc.End(result)
	case !out.Begun() && result.Rows == 0:
		return scan.ProblemOf(err)
	default:
		gone = enc.Fail(err)
	}
	if gone != nil {
		s.log.Debug("a scan's client is gone", "index", spec.Index, "error", gone)
	}
	return nil
}

func (s *Server) count(w http.ResponseWriter, r *http.Request) error {
	began := s.now()
	req, spec, err := s.prepare(r)
	var result scan.Result
	if err == nil {
		result, err = s.counted(r.Context(), &req, spec)
	}
	s.doneHTTP(r, began, &spec, scan.Result{Waited: result.Waited}, err) // a number is no row
	if err != nil {
		return scan.ProblemOf(err)
	}
	w.Header().Set("Content-Type", rpc.MediaJSON)
	w.Header().Set(scanport.HeaderSession, result.Seen.Token())
	rpc.BeginAnswer(w)
	_, _ = w.Write(scan.AppendCount(nil, result)) // the client has gone: nobody is left to tell
	return nil
}

// seeing tells what a session has seen before the rows come: who reads no further has seen it too.
type seeing struct {
	*scan.Encoder
	out *scan.Answer
}

// At implements scan.Dated.
func (s seeing) At(ref wire.StabilityRef, seen scanport.Seen) {
	s.Encoder.At(ref, seen)
	s.out.Session(&seen)
}

// counted counts.
func (s *Server) counted(ctx context.Context, req *scan.Request, spec scan.Spec) (scan.Result, error) {
	ctx, active := s.running.begin(ctx, scanport.Count, req, &spec)
	result, err := s.coordinator.Count(ctx, spec)
	s.running.end(active, err)
	return result, err
}

// doneHTTP is done for a request whose path may name no index.
func (s *Server) doneHTTP(r *http.Request, began time.Time, spec *scan.Spec, result scan.Result, err error) {
	id, bad := index.ParseID(r.PathValue("id"))
	if bad != nil {
		id = 0
	}
	s.done(id, began, spec, result, err)
}

// codeOK stands for the code of what did not fail.
const codeOK = "OK"

// done counts a scan or a count that has ended, of index 0 as one of none. The spec of one that was refused before it
// was understood has no consistency.
func (s *Server) done(id index.ID, began time.Time, spec *scan.Spec, result scan.Result, err error) {
	code := codeOK
	if err != nil {
		code = string(scan.CodeOf(err))
	}
	s.metrics.scans.WithLabelValues(code).Inc()
	ended := s.now()
	took := ended.Sub(began)
	if spec.Resume != nil { // those before were another indexer's
		result.Rows = max(0, result.Rows-spec.Resume.Rows)
	}
	if spec.Consistency != "" {
		s.metrics.scan(string(spec.Consistency), took, result.Waited)
		s.past.Note(ended, id, string(spec.Consistency), took, result.Rows, failed(err))
	}
	if id != 0 {
		defs := s.definitions()
		s.book.count(&defs, id, took, ended, result.Rows, err)
	}
}

// scanNodes reads slices of all indexers.
type scanNodes struct {
	*peers.Nodes
	keeps *peers.Nodes
	here  scan.Pins
	keep  func(*scan.KeepRequest) error // here
	asked *prometheus.CounterVec        // to keep a timestamp, by outcome
}

// OpenSlices implements scan.Nodes. This node's own slices are read here and now, without a network between.
func (n scanNodes) OpenSlices(ctx context.Context, node index.NodeID, others []index.NodeID,
	req scan.NodeRequest) (scan.RowStream, error) {
	if n.IsHere(node) {
		return openHere(ctx, req, n.here)
	}
	instead := func() (addrs []string) {
		for _, o := range others {
			addrs = append(addrs, n.Addr(o))
		}
		return addrs
	}
	body, err := n.Watched(ctx, node, SlicesPath, req, instead)
	if err != nil {
		return nil, err
	}
	rows, err := scan.ReadFrames(body)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// openHere opens slices of this node, with the span that they would have on another one.
func openHere(ctx context.Context, req scan.NodeRequest, p scan.Pins) (scan.RowStream, error) {
	below, span := rpc.StartSpan(ctx, "read slices")
	rows, err := scan.Open(below, req, p)
	if err != nil {
		rpc.EndSpan(ctx, span, err)
		return nil, err
	}
	if !span.IsRecording() {
		return rows, nil
	}
	return &tracedRows{rows, func(err error) { rpc.EndSpan(ctx, span, err) }}, nil
}

// tracedRows ends a span when they are closed.
type tracedRows struct {
	scan.RowStream
	end func(error)
}

// Close implements scan.RowStream.
func (t *tracedRows) Close() error {
	err := t.RowStream.Close()
	t.end(err)
	return err
}
