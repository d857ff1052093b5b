package route

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"

	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
)

// Server serves a role's port.
type Server struct {
	Handler http.Handler    // of a Table, or what stands around one
	TLS     *tlsconf.Source // nil: without
	Log     hclog.Logger    // of what net/http finds
	Tracer  trace.Tracer    // of a span for each request; nil: none
	Grace   time.Duration   // for requests to end, once the server is to
	// Cut ends the contexts of requests as soon as the server is to end, so that they do not use up Grace.
	Cut bool
}

// Serve answers on l until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := rpc.NewServer(rpc.Traced(s.Tracer, s.Handler))
	server.ErrorLog = s.Log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Info})
	base := context.WithoutCancel(ctx)
	if s.Cut {
		base = ctx
	}
	base = rpc.WithPeerCheck(base, s.TLS.Recheck)
	server.BaseContext = func(net.Listener) context.Context { return base }
	return rpc.Serve(ctx, server, s.TLS.Listen(l, tlsconf.HTTP), s.Grace)
}
