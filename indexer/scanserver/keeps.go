package scanserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/wire"
)

// KeepPath is the path for requests to keep a timestamp for a long scan.
const KeepPath = "/v1/slices:keep"

const (
	// KeepConnections bounds the connections to each other node for these requests.
	KeepConnections = 4
	// keepTime bounds receiving the request; the reply is immediate.
	keepTime = route.BodyTime + 5*time.Second
)

// keepRoute returns the route of these requests.
func (s *Server) keepRoute() route.Route {
	return route.Route{Method: http.MethodPost, Path: KeepPath, Role: route.Only(tlsconf.Indexer), Body: rpc.MaxUserBody,
		Limit: keepTime, Handle: rpc.Message(func(_ context.Context, req *scan.KeepRequest) (*wire.OK, error) {
			if err := s.keep(req); err != nil {
				return nil, scan.ProblemOf(err)
			}
			return &wire.OK{}, nil
		})}
}

// keep keeps the timestamp on this node.
func (s *Server) keep(req *scan.KeepRequest) error {
	if err := req.Check(); err != nil {
		return err
	}
	return s.snapshots.KeepScan(req.Scan, req.Copies, req.Ref)
}

// KeepSlices implements scan.Nodes.
func (n scanNodes) KeepSlices(ctx context.Context, node index.NodeID, req scan.KeepRequest) (err error) {
	if n.IsHere(node) {
		err = n.keep(&req)
	} else {
		err = n.send(ctx, node, &req)
	}
	code := codeOK
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return err // the scan has ended during the request: there is no outcome
		}
		code = string(scan.CodeOf(err))
	}
	n.count.keeps.WithLabelValues(code).Inc()
	return err
}

// send sends the request to another node.
func (n scanNodes) send(ctx context.Context, node index.NodeID, req *scan.KeepRequest) error {
	body, err := n.keeps.Post(ctx, node, KeepPath, req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, body)
	return errors.Join(err, body.Close())
}
