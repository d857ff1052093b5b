package route

import (
	"cmp"
	"context"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"

	"tidemark/internal/loglimit"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
)

// Server serves the port of a role.
type Server struct {
	Handler http.Handler    // of a Table, or a wrapper of one
	TLS     *tlsconf.Source // nil: no TLS
	Log     hclog.Logger    // for messages of net/http
	Tracer  trace.Tracer    // makes a span for each request; nil: none
	Grace   time.Duration   // how long requests may take to end at shutdown
	// Cut cancels the contexts of requests at the beginning of the shutdown, so that they do not use up Grace.
	Cut bool
	// Connections is how many may be open at a time; 0: a third of the files that the process may have open.
	Connections int
}

// Serve serves on l until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	limit := newConnLimit(l, cmp.Or(s.Connections, MostConnections()), s.Log)
	server := rpc.NewServer(limit.serving(rpc.Traced(s.Tracer, s.Handler)))
	stamp := server.ConnContext
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return limit.noted(stamp(ctx, conn), conn)
	}
	server.ConnState = limit.changed
	server.ErrorLog = log.New(&handshakes{to: s.Log, now: time.Now}, "", 0)
	base := context.WithoutCancel(ctx)
	if s.Cut {
		base = ctx
	}
	base = rpc.WithPeerCheck(base, s.TLS.Recheck)
	server.BaseContext = func(net.Listener) context.Context { return base }
	return rpc.Serve(ctx, server, s.TLS.Listen(limit, tlsconf.HTTP), s.Grace)
}

// handshakes logs the messages of net/http. Anyone can make a TLS handshake fail: see package loglimit.
type handshakes struct {
	to  hclog.Logger
	now func() time.Time

	mu    sync.Mutex
	lines loglimit.Limiter
}

// Write implements io.Writer.
func (h *handshakes) Write(b []byte) (int, error) {
	const failed = "http: TLS handshake error from "
	line := strings.TrimSpace(string(b))
	rest, is := strings.CutPrefix(line, failed)
	if !is {
		h.to.Info(line)
		return len(b), nil
	}
	addr, _, _ := strings.Cut(rest, ": ")
	h.mu.Lock()
	leftOut, due := h.lines.Due(failed, addr, h.now())
	h.mu.Unlock()
	if due {
		h.to.Info(line, "left_out", leftOut)
	}
	return len(b), nil
}
