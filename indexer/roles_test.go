package indexer

import (
	"net/http"
	"testing"

	"tidemark/indexer/scanport"
	"tidemark/indexer/scanserver"
	"tidemark/indexer/transfer"
	"tidemark/indexer/verify"
	"tidemark/internal/testing/rpctest"
	"tidemark/internal/tlsconf"
)

// TestTable: what both ports answer is bounded, and docs/protocol.md has it.
func TestTable(t *testing.T) {
	w := newWorld(t)
	w.start()
	rpctest.Whole(t, "An indexer, --admin", w.x.adminTable())
	rpctest.Whole(t, "An indexer, --scan", w.x.scanTable(w.x.scans))
}

// TestEveryPathByEveryRole: over TLS each path of both ports lets in whom docs/security.md names, and nobody else;
// without a certificate there are health and, to clients with a ticket, the WebSocket.
func TestEveryPathByEveryRole(t *testing.T) {
	w := newWorld(t)
	w.start()
	manager, all := []tlsconf.Role{tlsconf.Manager}, tlsconf.Roles()
	admin, scans := w.x.adminTable(), w.x.scanTable(w.x.scans)
	rpctest.Roles(t, admin, map[string][]tlsconf.Role{
		"PUT /v1/hello": manager, "PUT /v1/definitions": manager, "POST /v1/definitions:change": manager,
		"POST /v1/poll": manager, "PUT /v1/stability": manager,
		"PUT /v1/rollback": manager, "POST /v1/orphans:drop": manager,
		"GET /v1/history": manager, "GET /v1/scans": manager, "POST /v1/scans:cancel": manager,
		"POST /v1/scans:slow": manager, "POST /v1/samples": manager,
		"GET /v1/status": all, "GET /v1/stats": all, "GET /v1/positions": all, "GET /metrics": all, "GET /healthz": nil,
		"GET /readyz": nil, "GET /v1/logging": all, "PUT /v1/logging": manager,
	})
	asks, node := []tlsconf.Role{tlsconf.Manager, tlsconf.Admin}, []tlsconf.Role{tlsconf.Indexer}
	h := rpctest.Roles(t, scans, map[string][]tlsconf.Role{
		"POST /v1/indexes/{id:[0-9]+}:scan": asks, "POST /v1/indexes/{id:[0-9]+}:count": asks,
		"POST /v1/indexes/{id:[0-9]+}:verify": asks,
		"POST " + verify.Path:                 node, "POST " + scanserver.SlicesPath: node,
		"POST " + scanserver.KeepPath: node, "POST " + transfer.Path: node, "GET " + scanport.Path: nil,
		"GET /healthz": nil,
	})
	if code := rpctest.As(h, nil, http.MethodGet, scanport.Path, ""); code != http.StatusUnauthorized {
		t.Errorf("the WebSocket without a ticket: %d", code)
	}
}
