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

// SlicesPath is where a node takes requests of other nodes.
const SlicesPath = "/v1/slices:scan"

// PartMemory is the memory of a node for each part of a scan that it serves. A part takes some 100 KiB, most of it rows
// that nobody takes yet; the rest is for all else that a node does.
const PartMemory = 1 << 20

// MaxAsked bounds the connections to each other node for parts of scans. A scan may read several of one node; how many
// are served the other node says, at once, and who waited for a connection would wait for scans to end.
const MaxAsked = 4 * MaxScans

const (
	// partLook is how often it is looked whether the coordinator of a part that takes long lives.
	partLook = 10 * time.Second
	// partPatience is how long it may answer nothing until it counts as gone. Who waits for it has left it long before.
	partPatience = 30 * time.Second
)

// slicesRoute is the call for parts. They are shared by those who coordinate: that these let in no more scans than they
// may have, and who of their users has how many, is their affair.
func (s *Server) slicesRoute() route.Route {
	asked := route.Only(tlsconf.Indexer)
	asked.For = func(r *http.Request) string {
		node, ok := peers.Asking(r)
		if !ok {
			return ""
		}
		return s.nameOf(node)
	}
	return route.Route{Method: http.MethodPost, Path: SlicesPath, Role: asked, Body: rpc.MaxControlBody, Stream: true,
		Places: s.parts, Handle: s.serveSlices}
}

// serveSlices answers another node: for as long as its scan may take, since the turn of these rows may come when all of
// another node's have been given, and no longer than the node lives.
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
			s.log.Debug("a part of a scan ends: the indexer that coordinates it answers nothing", "node", node)
			cancel()
			out.Cut()
		})
		defer end()
	}
	if err := scan.Serve(ctx, out, out.Flush, req, s.pins); err != nil {
		s.log.Debug("a part of a scan ended early", "index", req.Index, "timestamp", req.Ref.Number, "error", err)
	}
	return nil
}

// partWatch looks now and then whether a part's coordinator lives. One whose connection ends is noticed without it; one
// that hangs, or whose machine is gone, takes nothing, as one does that has other rows to give first.
type partWatch struct {
	silent func() time.Time // since when the coordinator is, zero for not; has it asked
	gone   func()

	mu    sync.Mutex
	timer *time.Timer
	first time.Time // look
	over  bool
}

// watchPart begins to look. gone is called, once, when the coordinator has been silent for partPatience, and not any
// more when end has been called.
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
	if since.Before(p.first) && !since.IsZero() { // what was before says nothing
		since = p.first
	}
	if !since.IsZero() && now.Sub(since) >= partPatience {
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
