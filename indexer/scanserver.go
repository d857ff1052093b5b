package indexer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanport"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/transfer"
	"tidemark/indexer/verify"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
)

const (
	// maxScans bounds the scans that this node coordinates at a time, and, apart from that, the parts of scans it serves.
	maxScans = 256
)

// scanHandler serves clients' scans and other nodes' requests for rows, on a port of its own.
func (x *Indexer) scanHandler() (h http.Handler, direct *clients) {
	n, pins := x.peers.Ask(maxScans), x.pins()
	c := scan.NewCoordinator(catalog{x}, truth{x}, scanNodes{n, pins}, scan.Options{Logger: x.log.Named("scan")})
	s := &scanServer{x: x, c: c, nodes: n, pins: pins, clients: make(chan struct{}, maxScans),
		parts: make(chan struct{}, maxScans)}
	direct = newClients(s)
	r := mux.NewRouter()
	// Users come by way of a manager, which knows what they may do.
	asked, node := tlsconf.Only(tlsconf.Manager, tlsconf.Admin), tlsconf.Only(tlsconf.Indexer)
	r.Handle("/v1/indexes/{id:[0-9]+}:scan", rpc.Guard(asked, http.HandlerFunc(s.scan))).Methods(http.MethodPost)
	r.Handle("/v1/indexes/{id:[0-9]+}:count", rpc.Guard(asked, http.HandlerFunc(s.count))).Methods(http.MethodPost)
	r.Handle("/v1/indexes/{id:[0-9]+}:verify",
		rpc.Guard(asked, http.HandlerFunc(x.verify.Coordinate))).Methods(http.MethodPost)
	r.Handle(verify.Path, rpc.Guard(node, http.HandlerFunc(x.verify.Check))).Methods(http.MethodPost)
	r.Handle(slicesPath, rpc.Guard(node, http.HandlerFunc(s.serveSlices))).Methods(http.MethodPost)
	r.Handle(transfer.Path, rpc.Guard(node, x.sender)).Methods(http.MethodPost)
	r.Handle(scanport.Path, direct).Methods(http.MethodGet)
	r.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		rpc.Write(w, r, http.StatusOK,
			struct{}{})
	}).Methods(http.MethodGet)
	otherwise(r, "an indexer's scan port")
	return r, direct
}

type scanServer struct {
	x              *Indexer
	c              *scan.Coordinator
	nodes          *peers.Nodes
	pins           *snapshots.Pins
	clients, parts chan struct{} // what is under way
}

// prepare reads the request and checks it against the index.
func (s *scanServer) prepare(w http.ResponseWriter, r *http.Request) (scan.Spec, error) {
	id, err := index.ParseID(mux.Vars(r)["id"])
	if err != nil {
		return scan.Spec{}, scan.Errorf(errcode.BadRequest, "%w", err)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rpc.MaxUserBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return scan.Spec{}, rpc.Refuse(errcode.BodyTooLarge, "the body has more than %d bytes, the most a scan takes",
				large.Limit)
		}
		return scan.Spec{}, scan.Errorf(errcode.BadRequest, "reading the body: %w", err)
	}
	return s.parse(id, body, nil)
}

// parse reads a request's body and checks it against the index.
func (s *scanServer) parse(id index.ID, body, resume []byte) (scan.Spec, error) {
	req, err := scan.ParseRequest(body)
	if err != nil {
		return scan.Spec{}, err
	}
	req.Resume = resume
	return s.c.Prepare(id, req)
}

// problem answers with a scan's error.
func (s *scanServer) problem(w http.ResponseWriter, err error) {
	rpc.WriteProblem(w, scan.ProblemOf(err))
}

func (s *scanServer) scan(w http.ResponseWriter, r *http.Request) {
	if !scan.Enter(w, s.clients, "scans") {
		return
	}
	defer func() { <-s.clients }()
	began := s.x.now()
	spec, err := s.prepare(w, r)
	if err != nil {
		s.doneHTTP(r, began, &spec, scan.Result{}, err)
		s.problem(w, err)
		return
	}
	out := scan.NewAnswer(w)
	enc := scan.NewEncoder(out, out.Flush, out.Whole, spec)
	result, err := s.c.Scan(r.Context(), spec, enc)
	s.doneHTTP(r, began, &spec, result, err)
	switch {
	case err == nil:
		err = enc.End(result)
	case !out.Begun() && result.Rows == 0:
		s.problem(w, err)
		return
	default:
		err = enc.Fail(err)
	}
	if err != nil {
		s.x.log.Debug("a scan's client is gone", "index", spec.Index, "error", err)
	}
}

func (s *scanServer) count(w http.ResponseWriter, r *http.Request) {
	if !scan.Enter(w, s.clients, "scans") {
		return
	}
	defer func() { <-s.clients }()
	began := s.x.now()
	spec, err := s.prepare(w, r)
	var result scan.Result
	if err == nil {
		result, err = s.c.Count(r.Context(), spec)
	}
	s.doneHTTP(r, began, &spec, scan.Result{Waited: result.Waited}, err) // a number is no row
	if err != nil {
		s.problem(w, err)
		return
	}
	w.Header().Set("Content-Type", rpc.MediaJSON)
	rpc.BeginAnswer(w)
	_, _ = w.Write(scan.AppendCount(nil, result)) // the client has gone: nobody is left to tell
}

// doneHTTP is done for a request whose path may name no index.
func (s *scanServer) doneHTTP(r *http.Request, began time.Time, spec *scan.Spec, result scan.Result, err error) {
	id, bad := index.ParseID(mux.Vars(r)["id"])
	if bad != nil {
		id = 0
	}
	s.done(id, began, spec, result, err)
}

// done counts a scan or a count that has ended, of index 0 as one of none. The spec of one that was refused before it
// was understood has no consistency.
func (s *scanServer) done(id index.ID, began time.Time, spec *scan.Spec, result scan.Result, err error) {
	code := "OK"
	if err != nil {
		code = string(scan.CodeOf(err))
	}
	s.x.metrics.scans.WithLabelValues(code).Inc()
	if spec.Consistency != "" {
		s.x.metrics.scan(string(spec.Consistency), s.x.now().Sub(began), result.Waited)
	}
	if spec.Resume != nil { // those before were another indexer's
		result.Rows = max(0, result.Rows-spec.Resume.Rows)
	}
	if id != 0 {
		s.x.countScan(id, began, result.Rows, err)
	}
}

// serveSlices answers another node.
func (s *scanServer) serveSlices(w http.ResponseWriter, r *http.Request) {
	if !scan.Enter(w, s.parts, "parts of scans") {
		return
	}
	defer func() { <-s.parts }()
	var req scan.NodeRequest
	if err := rpc.Read(w, r, rpc.MaxControlBody, &req); err != nil {
		rpc.WriteProblem(w, err)
		return
	}
	out := scan.NewAnswer(w)
	if err := scan.Serve(r.Context(), out, out.Flush, req, s.pins); err != nil {
		s.x.log.Debug("a part of a scan ended early", "index", req.Index, "timestamp", req.Ref.Number, "error", err)
	}
}

// slicesPath is where a node takes requests of other nodes.
const slicesPath = "/v1/slices:scan"

// scanNodes reads slices of all indexers.
type scanNodes struct {
	*peers.Nodes
	here scan.Pins
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
	body, err := n.Watched(ctx, node, slicesPath, req, instead)
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
