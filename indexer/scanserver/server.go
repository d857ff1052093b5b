// Package scanserver serves scans on an indexer's scan port: those of managers, and of clients with a ticket, which
// it coordinates (package scan), and parts of scans that other indexers coordinate. It guarantees that the number of
// concurrent scans is bounded, that a scan ends when its client disconnects, and that only clients admitted by a
// manager scan. It does not decide what a scan may see.
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
	// MaxScans bounds the scans that this node coordinates concurrently; users share them (rpc.Places).
	MaxScans = 256
	// countTime bounds a complete count, including its waits.
	countTime = scan.DefaultMaxDuration + time.Minute
)

// Options configures a Server. If MaxClients or ClientStall is 0, the constant of that name is used; if MaxParts is
// 0, MaxScans.
type Options struct {
	Name        string        // name of the indexer
	Slow        time.Duration // duration from which on a scan is recorded as slow; 0: DefaultSlow, below 0: none is
	Catalog     scan.Catalog
	Truth       scan.Truth
	Definitions func() wire.Definitions // in force
	Pins        *snapshots.Pins
	Nodes       *peers.Nodes
	// the same, for requests to keep timestamps, so that reads never wait for these connections
	Keeps       *peers.Nodes
	Managers    Managers
	MaxClients  int
	MaxParts    int // concurrent parts of scans that other nodes coordinate
	ClientStall time.Duration
	Registry    prometheus.Registerer
	Tracer      trace.Tracer // nil: no spans
	Log         hclog.Logger
	Now         func() time.Time
	// Hurry is called when a scan starts to wait here; the returned function is called when the wait ends. nil: not
	// needed.
	Hurry func() (over func())
}

// Server serves scans of managers and clients, and parts that other indexers request.
type Server struct {
	coordinator  *scan.Coordinator
	definitions  func() wire.Definitions
	pins         scan.Pins
	snapshots    *snapshots.Set
	silent       func(index.NodeID) time.Time // since when a node has been silent, see peers.Peers
	nameOf       func(index.NodeID) string    // its name, see peers.Peers
	metrics      *metrics
	tracer       trace.Tracer
	log          hclog.Logger
	now          func() time.Time
	scans, parts *rpc.Places // limits of concurrent scans and parts
	book         scanBook
	past         *history.Scans
	running      *running
	clients      *clients
}

// New returns a server. The caller must call Run.
func New(o Options) *Server {
	s := &Server{definitions: o.Definitions, pins: o.Pins, snapshots: o.Pins.Snapshots, silent: o.Nodes.SilentSince,
		nameOf:  o.Nodes.Name,
		metrics: newMetrics(o.Registry), tracer: o.Tracer, log: o.Log,
		now: o.Now, past: history.NewScans(o.Now()),
		scans: rpc.NewPlaces(MaxScans, "scans"), parts: rpc.NewPlaces(cmp.Or(o.MaxParts, MaxScans), "parts of scans"),
		running: newRunning(o.Name, o.Slow, o.Now, o.Hurry),
	}
	s.coordinator = scan.NewCoordinator(o.Catalog, o.Truth, scanNodes{o.Nodes, o.Keeps, o.Pins, s.keep, s.metrics},
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

// Routes returns the server's routes. Users come through a manager, which checks their permissions, or with a ticket
// of a manager; clients bounds the number of the latter.
func (s *Server) Routes() []route.Route {
	forUser, ticket := route.Only(tlsconf.Manager, tlsconf.Admin), route.Anybody()
	forUser.For, ticket.Name = scan.PrincipalOf, "any client with a ticket"
	const path = "/v1/indexes/{id:[0-9]+}"
	return []route.Route{
		{Method: http.MethodPost, Path: path + ":scan", Role: forUser, Body: rpc.MaxUserBody, Stream: true, Places: s.scans,
			Handle: s.scan},
		{Method: http.MethodPost, Path: path + ":count", Role: forUser, Body: rpc.MaxUserBody, Limit: countTime,
			Places: s.scans, Handle: s.count},
		s.slicesRoute(), s.keepRoute(),
		{Method: http.MethodGet, Path: scanport.Path, Role: ticket, Stream: true, Handle: s.clients.handle},
	}
}

// Run watches the clients of long scans. When ctx ends, it closes all connections of clients and returns once no
// client is served any more.
func (s *Server) Run(ctx context.Context) error { return s.clients.run(ctx) }

// Load returns how many scans this node coordinates now, and how many clients are connected.
func (s *Server) Load() (scans, clients int) {
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	return s.scans.Taken(), s.clients.there
}

// Stats returns the statistics of the defined indexes that were scanned here.
func (s *Server) Stats(defs *wire.Definitions) []wire.ScanStats { return s.book.list(defs) }

// Past returns the history of scans that have ended here.
func (s *Server) Past(q wire.HistoryQuery) *wire.History {
	if q.Bucket == "" {
		return s.past.Report(q, nil)
	}
	on, defs := map[index.ID]bool{}, s.definitions()
	for i := range defs.Indexes {
		on[defs.Indexes[i].ID] = defs.Indexes[i].Bucket == q.Bucket
	}
	return s.past.Report(q, func(id index.ID) bool { return on[id] })
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

// parse parses a request's body and checks it against the index. session has session tokens in addition to those of
// the body.
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
		s.log.Debug("client of a scan has disconnected", "index", spec.Index, "error", gone)
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
	s.doneHTTP(r, began, &spec, scan.Result{Waited: result.Waited}, err) // the number is not a row count
	if err != nil {
		return scan.ProblemOf(err)
	}
	w.Header().Set("Content-Type", rpc.MediaJSON)
	w.Header().Set(scanport.HeaderSession, result.Seen.Token())
	rpc.BeginAnswer(w)
	_, _ = w.Write(scan.AppendCount(nil, result)) // on an error the client has gone
	return nil
}

// seeing sends what a session has seen before the rows, so that a client that reads no further has it, too.
type seeing struct {
	*scan.Encoder
	out *scan.Answer
}

// At implements scan.Dated.
func (s seeing) At(ref wire.StabilityRef, seen scanport.Seen) {
	s.Encoder.At(ref, seen)
	s.out.Session(&seen)
}

// counted carries out a count.
func (s *Server) counted(ctx context.Context, req *scan.Request, spec scan.Spec) (scan.Result, error) {
	ctx, active := s.running.begin(ctx, scanport.Count, req, &spec)
	result, err := s.coordinator.Count(ctx, spec)
	s.running.end(active, err)
	return result, err
}

// doneHTTP is done for a request whose path may not name an index.
func (s *Server) doneHTTP(r *http.Request, began time.Time, spec *scan.Spec, result scan.Result, err error) {
	id, bad := index.ParseID(r.PathValue("id"))
	if bad != nil {
		id = 0
	}
	s.done(id, began, spec, result, err)
}

// codeOK is the code of success in metrics.
const codeOK = "OK"

// done counts a scan or count that has ended; id is 0 if the index is unknown. The spec of a request that was refused
// before it was parsed has no consistency.
func (s *Server) done(id index.ID, began time.Time, spec *scan.Spec, result scan.Result, err error) {
	code := codeOK
	if err != nil {
		code = string(scan.CodeOf(err))
	}
	s.metrics.scans.WithLabelValues(code).Inc()
	ended := s.now()
	took := ended.Sub(began)
	if spec.Resume != nil { // the earlier rows were counted by another indexer
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

// scanNodes implements scan.Nodes for all indexers, including this one.
type scanNodes struct {
	*peers.Nodes
	keeps *peers.Nodes
	here  scan.Pins
	keep  func(*scan.KeepRequest) error // keeps a timestamp on this node
	count *metrics
}

// OpenSlices implements scan.Nodes. It reads this node's own slices directly, without the network.
func (n scanNodes) OpenSlices(ctx context.Context, node index.NodeID, others []index.NodeID,
	req scan.NodeRequest) (scan.RowStream, error) {
	if n.IsHere(node) {
		n.count.parts.WithLabelValues(partHere).Inc()
		return openHere(ctx, req, n.here)
	}
	n.count.parts.WithLabelValues(partOther).Inc()
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

// openHere opens slices of this node, with the same trace span as on another node.
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

// tracedRows ends a span when the stream is closed.
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
