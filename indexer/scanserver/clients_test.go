package scanserver

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanport"
	"tidemark/indexer/snapshots"
	"tidemark/internal/rpc"
	"tidemark/manager/auth"
	"tidemark/statecontext"
	"tidemark/wire"
)

// issuer does a manager's part for tickets: it issues and checks them.
type issuer struct {
	tickets *auth.Tickets

	mu      sync.Mutex
	revoked bool
	checks  int
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	tickets, err := auth.NewTickets("http://manager:1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{tickets: tickets}
}

func (i *issuer) issue(t *testing.T, name string) string {
	t.Helper()
	ticket, err := i.tickets.Issue(&auth.Identity{Name: name, Role: statecontext.UserReads}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

// CheckTicket implements Managers.
func (i *issuer) CheckTicket(_ context.Context, manager, ticket string) (*scanport.Checked, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.checks++
	if manager != "http://manager:1" {
		return nil, rpc.Refuse(errcode.Unavailable, "nothing listens at %s", manager)
	}
	who, err := i.tickets.Open(ticket)
	if err != nil || i.revoked {
		return nil, rpc.Refuse(errcode.Unauthenticated, "the ticket is no good")
	}
	return &scanport.Checked{Principal: who.Name}, nil
}

// nothing is a catalog that contains no indexes.
type nothing struct{}

func (nothing) View(id index.ID) (scan.View, error) {
	return scan.View{}, scan.Errorf(errcode.IndexNotHosted, "no index has id %s", id)
}

func (nothing) Newest(string) (wire.BucketStability, bool)  { return wire.BucketStability{}, false }
func (nothing) Arrived(wire.StabilityRef) (time.Time, bool) { return time.Time{}, false }

func (nothing) Changed(string) <-chan struct{} { return nil }

// TestConnectionsKeepNoLargeBuffers checks that a connection does not keep the memory of a long request.
func TestConnectionsKeepNoLargeBuffers(t *testing.T) {
	managers := newIssuer(t)
	p := peers.New(nil, func() (index.NodeID, string) { return 1, "" }, func() []wire.Endpoint { return nil })
	defer p.Close()
	s := New(Options{Catalog: nothing{}, Truth: &Truth{}, Pins: &snapshots.Pins{}, Nodes: p.Ask(1), Managers: managers,
		Definitions: func() wire.Definitions { return wire.Definitions{} }, Registry: prometheus.NewRegistry(),
		Log: hclog.NewNullLogger(), Now: time.Now})
	server := httptest.NewServer(rpc.HandlerFunc(s.clients.handle))
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	dialer := websocket.Dialer{Subprotocols: []string{scanport.Protocol}}
	ws, resp, err := dialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"),
		http.Header{scanport.HeaderTicket: {managers.issue(t, "alice")}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer ws.Close()
	message := scanport.AppendRequest(nil, scanport.Request{Op: scanport.Scan, Index: "1",
		Body: append(bytes.Repeat([]byte{' '}, 8*clientRoom), "{}"...)})
	if err := ws.WriteMessage(websocket.BinaryMessage, message); err != nil {
		t.Fatal(err)
	}
	if _, answer, err := ws.ReadMessage(); err != nil || !bytes.Contains(answer, []byte(errcode.IndexNotHosted)) {
		t.Fatalf("%q %v", answer, err)
	}
	var one *clientConn
	s.clients.mu.Lock()
	for o := range s.clients.open {
		one = o
	}
	s.clients.mu.Unlock()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if cap(one.in) > clientRoom || cap(one.room) > clientRoom {
		t.Errorf("an idle connection keeps %d and %d bytes", cap(one.in), cap(one.room))
	}
}
