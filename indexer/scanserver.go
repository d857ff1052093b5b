package indexer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/gorilla/mux"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanport"
	"tidemark/indexer/transfer"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
)

const (
	// maxScans bounds the scans that this node coordinates at a time, and, apart from that, the parts of scans it serves.
	maxScans = 256
	// probesAtOnce bounds the connections to another node that are only used to see whether it lives.
	probesAtOnce = 2
	// writeStall is how long a manager or another node, or the network to it, may take nothing before its scan is ended.
	// Longer than a manager waits for its own client: that one ends the scan, and says why.
	writeStall = 60 * time.Second
)

// scanHandler serves clients' scans and other nodes' requests for rows, on a port of its own.
func (x *Indexer) scanHandler() (h http.Handler, direct *clients) {
	client := rpc.NewClient(maxScans, x.cfg.TLS.Client(tlsconf.HTTP, tlsconf.Indexer))
	n := nodes{x, client.HTTP()}
	c := scan.NewCoordinator(catalog{x}, truth{x}, n, scan.Options{Logger: x.log.Named("scan")})
	s := &scanServer{x: x, c: c, nodes: n, clients: make(chan struct{}, maxScans), parts: make(chan struct{}, maxScans),
		verifies: make(chan struct{}, maxVerifies)}
	direct = newClients(s)
	r := mux.NewRouter()
	// Users come by way of a manager, which knows what they may do.
	asked, node := tlsconf.Only(tlsconf.Manager, tlsconf.Admin), tlsconf.Only(tlsconf.Indexer)
	r.Handle("/v1/indexes/{id:[0-9]+}:scan", rpc.Guard(asked, http.HandlerFunc(s.scan))).Methods(http.MethodPost)
	r.Handle("/v1/indexes/{id:[0-9]+}:count", rpc.Guard(asked, http.HandlerFunc(s.count))).Methods(http.MethodPost)
	r.Handle("/v1/indexes/{id:[0-9]+}:verify", rpc.Guard(asked, http.HandlerFunc(s.verify))).Methods(http.MethodPost)
	r.Handle(verifyPath, rpc.Guard(node, http.HandlerFunc(s.verifyCopies))).Methods(http.MethodPost)
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
	nodes          nodes
	clients, parts chan struct{} // what is under way
	verifies       chan struct{} // coordinated here
}

// enter takes a place; false, and an answer, when there is none.
func enter(w http.ResponseWriter, places chan struct{}, what string) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
		rpc.WriteProblem(w, tooMany(places, what))
		return false
	}
}

func tooMany(places chan struct{}, what string) *rpc.Problem {
	p := rpc.Refuse(errcode.Unavailable, "%d %s are under way on this node, the most it takes: try again", cap(places),
		what)
	p.RetryAfterMS = 1000
	return p
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
	rpc.WriteProblem(w, problemOf(err))
}

// problemOf makes of any error what REST tells.
func problemOf(err error) *rpc.Problem {
	var p *rpc.Problem
	if errors.As(err, &p) {
		return p
	}
	e := scan.AsError(err)
	return rpc.Refuse(e.Code, "%s", e.Detail)
}

func (s *scanServer) scan(w http.ResponseWriter, r *http.Request) {
	if !enter(w, s.clients, "scans") {
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
	out := &answer{w: w, c: http.NewResponseController(w)}
	enc := scan.NewEncoder(out, out.flush, out.whole, spec)
	result, err := s.c.Scan(r.Context(), spec, enc)
	s.doneHTTP(r, began, &spec, result, err)
	switch {
	case err == nil:
		err = enc.End(result)
	case !out.begun && result.Rows == 0:
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
	if !enter(w, s.clients, "scans") {
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
	if !enter(w, s.parts, "parts of scans") {
		return
	}
	defer func() { <-s.parts }()
	var req scan.NodeRequest
	if err := rpc.Read(w, r, rpc.MaxControlBody, &req); err != nil {
		rpc.WriteProblem(w, err)
		return
	}
	out := &answer{w: w, c: http.NewResponseController(w)}
	if err := scan.Serve(r.Context(), out, out.flush, req, pins{s.x}); err != nil {
		s.x.log.Debug("a part of a scan ended early", "index", req.Index, "timestamp", req.Ref.Number, "error", err)
	}
}

// answer is a body that is written for as long as the other side takes something now and then.
type answer struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	begun bool
}

// Write implements io.Writer.
func (a *answer) Write(p []byte) (int, error) {
	if !a.begun {
		a.begun = true
		a.w.Header().Set("Content-Type", scan.MediaType)
	}
	if err := a.c.SetWriteDeadline(time.Now().Add(writeStall)); err != nil {
		return 0, err
	}
	n, err := a.w.Write(p)
	if err != nil {
		err = scan.Errorf(errcode.Cancelled, "writing to who asked: %w", err)
	}
	return n, err
}

// whole says how long the answer is: who passes it on need not look for its end.
func (a *answer) whole(size int) { a.w.Header().Set("Content-Length", strconv.Itoa(size)) }

func (a *answer) flush() { _ = a.c.Flush() } // the next write meets the error again

// post sends a request to another node's scan port and gives the body of its answer.
func (n nodes) post(ctx context.Context, node index.NodeID, path string, req any) (io.ReadCloser, error) {
	addr := n.addr(node)
	if node == n.x.identity.get().Node {
		addr = n.x.ports.scan.Addr().String()
	}
	if addr == "" {
		return nil, fmt.Errorf("node %d has no address here", node)
	}
	body, err := cbor.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encoding a request for %s: %w", path, err)
	}
	url := n.x.cfg.TLS.BaseURL(addr) + path
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", rpc.MediaCBOR)
	rpc.Outgoing(r)
	resp, err := n.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		p := rpc.ReadProblem(resp)
		return nil, errors.Join(fmt.Errorf("%s: %w", url, p), resp.Body.Close())
	}
	return resp.Body, nil
}
