package scanserver

import (
	"context"
	"net/http"
	"sync"
	"time"

	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
)

// SlicesPath is the path for scan requests of other nodes.
const SlicesPath = "/v1/slices:scan"

// PartMemory is the memory of a node per part of a scan that it serves. A part takes about 100 KiB, most of it rows
// that wait to be sent; the rest is for everything else that a node does.
const PartMemory = 1 << 20

// PartConnections bounds the connections to each other node for parts of scans. A scan may open several parts on one
// node. The other node itself limits how many it serves and refuses others at once, whereas waiting for a connection
// here would mean waiting for scans to end.
const PartConnections = 4 * MaxScans

const (
	// partLook is the interval at which a long part checks whether its coordinator is alive.
	partLook = 10 * time.Second
	// partSilence is how long the coordinator may be silent before it counts as gone. Its client has given up long
	// before that.
	partSilence = 30 * time.Second
)

// slicesRoute returns the route for parts. The places for parts are shared by the coordinating nodes. It is up to
// these to limit their own scans, and to divide them among their users.
func (s *Server) slicesRoute() route.Route {
	role := route.Only(tlsconf.Indexer)
	role.For = func(r *http.Request) string {
		node, ok := peers.Asking(r)
		if !ok {
			return ""
		}
		return s.nameOf(node)
	}
	return route.Route{Method: http.MethodPost, Path: SlicesPath, Role: role, Body: rpc.MaxControlBody, Stream: true,
		Places: s.parts, Handle: s.serveSlices}
}

// serveSlices serves a part to another node for as long as its scan may take, because the merge may need these rows
// only after all rows of another node, but no longer than that node lives.
func (s *Server) serveSlices(w http.ResponseWriter, r *http.Request) error {
	var req scan.NodeRequest
	if err := rpc.Read(r, &req); err != nil {
		return err
	}
	out, err := scan.NewPart(w, req.Lasts())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), req.Lasts())
	defer cancel()
	if node, ok := peers.Asking(r); ok {
		end := watchPart(func() time.Time { return s.silent(node) }, func() {
			s.log.Debug("part of a scan ends: the indexer that coordinates the scan does not answer", "node", node)
			cancel()
			out.Cut()
		})
		defer end()
	}
	if err := scan.Serve(ctx, out, out.Flush, req, s.pins); err != nil {
		s.log.Debug("part of a scan ended early", "index", req.Index, "timestamp", req.Ref.Number, "error", err)
	}
	return nil
}

// partWatch periodically checks whether a part's coordinator is alive. A closed connection is noticed without it; but
// a coordinator that hangs, or whose machine is gone, just accepts no data, like one that needs rows of other nodes
// first.
type partWatch struct {
	silent func() time.Time // since when the coordinator has been silent; zero: it is not. Calling it sends a probe
	gone   func()

	mu    sync.Mutex
	timer *time.Timer
	first time.Time // first look
	over  bool
}

// watchPart starts watching. It calls gone once when the coordinator has been silent for partSilence, unless end was
// called before.
func watchPart(silent func() time.Time, gone func()) (end func()) {
	p := &partWatch{silent: silent, gone: gone}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(partLook, p.look)
	return p.end
}

func (p *partWatch) look() {
	since := p.silent()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	now := time.Now()
	if p.first.IsZero() {
		p.first = now
	}
	if since.Before(p.first) && !since.IsZero() { // silence before the first look does not count
		since = p.first
	}
	if !since.IsZero() && now.Sub(since) >= partSilence {
		p.over = true
		p.gone()
		return
	}
	p.timer.Reset(partLook)
}

func (p *partWatch) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
}
