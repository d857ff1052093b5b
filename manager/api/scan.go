package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanport"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
	"tidemark/wire"
)

// scans forwards scans, counts and verifications to indexers.
type scans struct {
	*access
	ways *rpc.Client // to the indexers
	// alive detects silent indexers, by probes on connections of their own.
	alive  *detector.Detector
	places *rpc.Places // limits the scans in progress
}

func (g *scans) scanRoutes() []route {
	codes := []errcode.Code{errcode.UnknownIndex, errcode.IndexNotReady, errcode.NoLeader, errcode.Busy,
		errcode.IndexNotHosted, errcode.IndexInRollback, errcode.SnapshotTooOld, errcode.CursorExpired,
		errcode.SnapshotSkipped, errcode.TokenLost, errcode.LimitExceeded, errcode.Unavailable,
		errcode.VBucketsUnavailable, errcode.Damaged}
	session := []string{scanport.HeaderSession}
	return []route{
		{method: "POST", path: "/v1/indexes/{ref:.+}:scan", handle: g.scan, role: RoleRead,
			places: g.places, limit: v1.ScanTimeout,
			doc: operation{
				id: "scanIndex", tag: tagScans,
				summary: "Read the rows of an index, or aggregates of groups of them, in order, all of one timestamp",
				body:    v1.ScanRequest{}, optional: true, headers: session,
				answers: []answer{{status: 200,
					means: "rows, or groups if requested, a line each, and a last line that states whether they are complete",
					media: mediaLines, headers: session,
					lines: []any{v1.Row{}, v1.Group{}, v1.ScanEnd{}, v1.ScanFailure{}}}},
				codes: codes}},
		{method: "POST", path: "/v1/indexes/{ref:.+}:verify", handle: g.verify, role: RoleDDL,
			places: g.places, limit: v1.VerifyTimeout, lasts: true,
			doc: operation{
				id: "verifyIndex", tag: tagScans, summary: "Compare every copy of an index with the KV data, while both are in use",
				body: v1.VerifyRequest{}, optional: true,
				answers: []answer{{status: 200, means: "differences and progress, a line each, and a last line with the result",
					media: mediaLines,
					lines: []any{v1.VerifyLine{}}}},
				codes: codes}},
		{method: "POST", path: "/v1/indexes/{ref:.+}:count", handle: g.scan, role: RoleRead,
			places: g.places, limit: v1.ScanTimeout,
			doc: operation{
				id: "countIndex", tag: tagScans, summary: "Count the rows that a scan would return",
				body: v1.ScanRequest{}, optional: true, headers: session,
				answers: []answer{{status: 200, means: "the count", body: v1.CountReply{}, headers: session}},
				codes:   codes}},
		g.locateRoute(),
		g.statisticsRoute(),
	}
}

// getJSON sends a GET to another manager through c, and decodes its answer.
func getJSON[T any](ctx context.Context, g *ground, c *rpc.Client, url string) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(HeaderForwarded, g.cfg.Name)
	g.forwardIdentity(req, ctx, nil)
	rpc.Outgoing(req)
	resp, err := c.HTTP().Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, rpc.ReadProblem(resp)
	}
	b, err := rpc.ReadAnswer(resp, rpc.MaxControlBody)
	if err != nil {
		return nil, err
	}
	v := new(T)
	return v, json.Unmarshal(b, v)
}

// howFar asks the leader for its log index. If the leader does not answer, the error is that there is no leader.
func (g *ground) howFar(ctx context.Context, leader wire.Leader) (*readIndexReply, error) {
	reply, err := getJSON[readIndexReply](ctx, g, g.readIndex, leader.REST+"/v1/readindex")
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*rpc.Problem)) {
		return nil, noLeader("the leader %s did not report its log index: %v; try again", leader.ID, err)
	}
	return reply, err
}

// catchUp brings this node's own state to where a linearizable read may use it.
func (g *ground) catchUp(ctx context.Context) error {
	if _, serving := g.cfg.Raft.Serving(); serving {
		return g.cfg.Raft.ReadBarrier(ctx)
	}
	leader, ok := g.leaderOf(g.cfg.Raft.State())
	if !ok {
		return g.leaderless()
	}
	reply, err := g.howFar(ctx, leader)
	if err != nil {
		return err
	}
	if reply.Users {
		g.closed.Store(true) // even if this manager cannot receive them
	}
	return g.cfg.Raft.WaitApplied(ctx, reply.Index)
}

// ready finds an index that can be scanned. If this node's state has it as ready that is sufficient: it stays ready,
// or its hosts refuse the scan. Otherwise the leader's state decides.
func (g *scans) ready(ctx context.Context, ref string) (*statecontext.Index, error) {
	x, err := g.find(g.cfg.Raft.State(), ref)
	if err == nil && x.Definition.State == index.Maintenance {
		return x, nil
	}
	if err := g.catchUp(ctx); err != nil {
		return nil, err
	}
	if x, err = g.find(g.cfg.Raft.State(), ref); err != nil {
		return nil, err
	}
	d := &x.Definition
	if d.State == index.Maintenance {
		return x, nil
	}
	what := "is being built"
	switch {
	case d.Deferred:
		build := expression.BuildIndex{Keyspace: d.Keyspace(), Names: []string{d.Name}}
		what = "is deferred: run " + build.String()
	case d.State == index.Dropping:
		what = "is being dropped"
	case d.State == index.Error:
		what = "is in state error: " + d.Reason
	}
	return nil, rpc.Refuse(errcode.IndexNotReady, "index %s on %s %s (state %s)", d.Name, d.Keyspace(), what, d.State)
}

// scan forwards a scan or count to an indexer; verify does so with a verification.
func (g *scans) scan(w http.ResponseWriter, r *http.Request) error {
	return g.passOn(w, r, &v1.ScanRequest{})
}

// verify ends with the right of who asked for it, as it may take a day.
func (g *scans) verify(w http.ResponseWriter, r *http.Request) error {
	return g.whileMay(r, func(r *http.Request) error { return g.passOn(w, r, &v1.VerifyRequest{}) })
}

// passOn forwards a request, whose body must decode into v, to an indexer, which coordinates its execution, and
// streams the answer. If the indexer cannot be reached, refuses to serve now, or is silent while another one is not
// (package detector), the next one is asked.
func (g *scans) passOn(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := scanBody(r, v)
	if err != nil {
		return err
	}
	x, err := g.ready(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	action := r.URL.Path[strings.LastIndexByte(r.URL.Path, ':'):]
	ask := &question{index: x, action: action, body: body, places: action == scanAction,
		session: strings.Join(r.Header.Values(scanport.HeaderSession), ",")}
	if ask.places { // the client may continue an answer that it got through another manager, or this one
		ask.resume, ask.wantsPlaces = r.Header.Get(scanport.HeaderResume), r.Header.Get(scanport.HeaderPlaces) == "true"
	}
	ask.again = func() (*statecontext.Index, error) {
		// After a split the name may belong to another index, and this manager may be behind. Without a leader, its own
		// state is used.
		_ = g.catchUp(r.Context())
		return g.ready(r.Context(), r.PathValue("ref"))
	}
	ask.exists = func(ctx context.Context) bool {
		_ = g.catchUp(ctx) // without a leader, this manager's state is used
		x := g.cfg.Raft.State().Index(ask.index.Definition.ID)
		return x != nil && x.Definition.State != index.Dropping
	}
	resp, err := g.askReady(r.Context(), ask, g.scanners)
	if err != nil {
		return err
	}
	if ask.resume != "" {
		w.Header().Set(scanport.HeaderResume, "true")
	}
	return g.pass(r.Context(), w, resp, ask)
}

// isBehind reports whether an answer may come from an indexer that does not know yet which copies of an index it has.
func isBehind(resp *http.Response) bool {
	return resp.StatusCode == http.StatusConflict || resp.StatusCode == http.StatusNotFound
}

// askReady asks indexers like askOne. If they do not know yet that the index is ready, or that they hold it, it asks
// again for behindPatience, each time after q.again has resolved the index anew.
func (g *scans) askReady(ctx context.Context, q *question, addrs func(*statecontext.Index) []string) (*http.Response,
	error) {
	for deadline := g.now().Add(behindPatience); ; {
		resp, err := g.askOne(ctx, q, addrs(q.index))
		if err != nil {
			return nil, err
		}
		if !isBehind(resp) {
			return resp, nil
		}
		p := rpc.ReadProblem(resp)
		_ = resp.Body.Close()
		if !g.now().Before(deadline) || p.Code != errcode.IndexNotReady && p.Code != errcode.IndexNotHosted {
			return nil, p
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(behindPause):
		}
		if q.index, err = q.again(); err != nil {
			return nil, err
		}
	}
}

// pass sends an answer to the client.
func (g *scans) pass(ctx context.Context, w http.ResponseWriter, resp *http.Response, q *question) error {
	if resp.StatusCode == http.StatusOK && q.action != verifyAction {
		return g.passRows(ctx, w, resp, q, g.placedNow)
	}
	defer resp.Body.Close()
	return stream(ctx, w, resp)
}

// An indexer learns a moment after the managers that an index is ready; if the leader dies in that moment, only from
// the next one. Until then it is asked again, for as long as a scan may wait for its timestamp.
const (
	behindPatience = scan.DefaultWait
	behindPause    = 20 * time.Millisecond
)

// question is a request to an indexer.
type question struct {
	index       *statecontext.Index
	action      string
	body        []byte
	places      bool   // of an answer of rows: request places at which it can be continued
	wantsPlaces bool   // the client wants the places, too
	resume      string // the place to continue at; "": begin
	again       func() (*statecontext.Index, error)
	exists      func(context.Context) bool // reports whether the index still exists, under any name
	// the client's session tokens, besides those in the body
	session string
}

// Actions of indexers.
const (
	scanAction   = ":scan"
	verifyAction = ":verify"
)

// askOne returns the answer of the first indexer that can be reached and is not too busy. If an indexer has waited in
// vain for as long as a scan may wait, the others have been asked by it: none of them is asked again.
func (g *scans) askOne(ctx context.Context, q *question, addrs []string) (*http.Response, error) {
	d := &q.index.Definition
	name := d.Name + " on " + d.Keyspace().String()
	var last error = rpc.Refuse(errcode.Unavailable, "no indexer holds index %s", name)
	began, refused := g.now(), false
	for _, addr := range g.alive.Order(addrs) {
		if g.now().Sub(began) >= scan.DefaultWait {
			break
		}
		resp, err := g.ask(ctx, addr, addrs, q)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = resp.Body.Close()
			}
			return nil, ctx.Err()
		case err != nil && !refused:
			last = rpc.Refuse(errcode.Unavailable, "no indexer that holds index %s can be reached, the last attempt was at "+
				"%s: %v: see cluster status", name, addr, err)
		case err != nil: // the answer of one that was reached is more useful
		case resp.StatusCode == http.StatusServiceUnavailable,
			q.resume != "" && isBehind(resp):
			last, refused = rpc.ReadProblem(resp), true
			_ = resp.Body.Close()
		default:
			return resp, nil
		}
	}
	return nil, q.replaced(ctx, last)
}

// replaced converts a refusal to continue with an index into an error with advice: the index no longer exists, as
// after a split, when its name belongs to another index, or its copies have moved.
func (q *question) replaced(ctx context.Context, err error) error {
	var p *rpc.Problem
	if q.resume == "" || !errors.As(err, &p) || p.Code != errcode.IndexNotHosted {
		return err
	}
	d := &q.index.Definition
	what := "was meanwhile dropped or replaced by a split"
	if q.exists != nil && q.exists(ctx) {
		what = "has meanwhile moved to other indexers, which do not hold the timestamp of those rows"
	}
	return rpc.Refuse(errcode.SnapshotTooOld, "index %s (%s on %s), which the previous rows came from, %s: start the "+
		"scan again: %v", d.ID, d.Name, d.Keyspace(), what, err)
}

// scanBody reads a body and checks it against v; an empty one means the whole index.
func scanBody(r *http.Request, v any) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return []byte("{}"), nil
	}
	return body, rpc.ReadJSON(body, v)
}

// scanners returns the scan addresses of the indexers that hold the index, in random order.
func (g *scans) scanners(x *statecontext.Index) (addrs []string) {
	s := g.cfg.Raft.State()
	for _, n := range x.Topology.Servers() {
		if i := s.Indexer(n); i != nil && i.Scan != "" {
			addrs = append(addrs, i.Scan)
		}
	}
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	return slices.Compact(addrs)
}

// probesAtOnce limits the connections to one indexer that are only used for probes.
const probesAtOnce = 2

// ask sends the request to one of several indexers. The answer's body ends when the indexer is silent.
func (g *scans) ask(ctx context.Context, addr string, all []string, q *question) (*http.Response, error) {
	ctx, cancel := context.WithCancel(ctx)
	path := "/v1/indexes/" + q.index.Definition.ID.String() + q.action
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.cfg.TLS.BaseURL(addr)+path, bytes.NewReader(q.body))
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Content-Type", rpc.MediaJSON)
	req.Header.Set(scan.HeaderUser, rpc.Principal(ctx))
	if q.places {
		req.Header.Set(scanport.HeaderPlaces, "true")
	}
	if q.resume != "" {
		req.Header.Set(scanport.HeaderResume, q.resume)
	}
	if q.session != "" {
		req.Header.Set(scanport.HeaderSession, q.session)
	}
	rpc.Outgoing(req)
	var wait detector.Wait
	g.alive.Begin(&wait, addr, func() []string { return all }, cancel)
	resp, err := g.ways.HTTP().Do(req)
	switch silent := wait.End(); {
	case silent:
		if err == nil {
			_ = resp.Body.Close()
		}
		cancel()
		return nil, fmt.Errorf("%s: %w", addr, detector.ErrSilent)
	case err != nil:
		if ctx.Err() == nil {
			g.alive.Failed(addr)
		}
		cancel()
		return nil, err
	}
	resp.Body = &watched{detector.Body{ReadCloser: resp.Body, Detector: g.alive, Peer: addr, Silent: cancel}, cancel}
	return resp, nil
}

// watched cancels its request when it is closed.
type watched struct {
	detector.Body
	end func()
}

// Close implements io.Closer.
func (w *watched) Close() error {
	w.end()
	return w.Body.Close()
}

// stream forwards an answer of lines as it arrives; a short one of known length in one piece. If it breaks off, its
// last line is the reason, and a preceding partial line is left out; if a part of a long line was sent already, the
// connection is cut, so that the client does not mistake that for the end.
func stream(ctx context.Context, w http.ResponseWriter, resp *http.Response) error {
	for _, h := range []string{"Content-Type", "Retry-After"} {
		if v := resp.Header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	control := http.NewResponseController(w)
	if n := resp.ContentLength; n > 0 && n <= pieceOfAnswer {
		body := make([]byte, n)
		if _, err := io.ReadFull(resp.Body, body); err != nil {
			return cutShort(ctx, err) // nothing was sent yet
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		_ = control.SetWriteDeadline(time.Now().Add(rowsPatience)) // a client that accepts nothing is disconnected
		w.WriteHeader(resp.StatusCode)
		_, _ = w.Write(body) // an error means that the client has gone
		return nil
	}
	w.WriteHeader(resp.StatusCode)
	return relay(ctx, w, control, resp.Body)
}

// relay forwards the rest of an answer as it arrives, by whole lines unless they are too long. If it breaks off
// between two lines, it sends a line with the reason.
func relay(ctx context.Context, w io.Writer, control *http.ResponseController, from io.Reader) error {
	send := func(b []byte) bool {
		_ = control.SetWriteDeadline(time.Now().Add(rowsPatience))
		_, err := w.Write(b)
		return err == nil // else the client has gone
	}
	held, midway := make([]byte, 0, pieceOfAnswer), false // a partial line; midway: a part of it was sent
	for {
		n, err := from.Read(held[len(held):cap(held)])
		held = held[:len(held)+n]
		whole := bytes.LastIndexByte(held, '\n') + 1
		switch {
		case err == io.EOF:
			whole = len(held)
		case whole > 0:
			midway = false
		case len(held) == cap(held):
			whole, midway = len(held), true
		}
		if whole > 0 {
			if !send(held[:whole]) {
				return nil
			}
			held = held[:copy(held, held[whole:])]
		}
		switch {
		case err == io.EOF:
			_ = control.SetWriteDeadline(time.Now().Add(rowsPatience)) // the server writes the end
			return nil
		case err != nil && midway:
			panic(http.ErrAbortHandler) // cuts the connection in net/http
		case err != nil:
			p := cutShort(ctx, err)
			line, _ := json.Marshal(v1.VerifyLine{Error: &v1.VerifyFailure{Code: p.Code, Detail: p.Detail}}) // of strings
			send(append(line, '\n'))
			return nil
		case whole > 0:
			_ = control.Flush()
		}
	}
}

// cutShort returns the reason why an answer is incomplete.
func cutShort(ctx context.Context, err error) *rpc.Problem {
	if p := (*rpc.Problem)(nil); errors.As(context.Cause(ctx), &p) {
		return p
	}
	if ctx.Err() != nil {
		return rpc.Refuse(errcode.Timeout, "the answer was cut off before its end: %v", context.Cause(ctx))
	}
	return rpc.Refuse(errcode.Unavailable,
		"the indexer's answer was cut off before its end, ask again: %v", err)
}

// pieceOfAnswer is the number of bytes forwarded at a time.
const pieceOfAnswer = 64 << 10

// rowsPatience is how long a client may accept no rows.
const rowsPatience = 30 * time.Second
