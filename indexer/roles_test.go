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

// TestTable checks that requests on both ports are limited, and that docs/protocol.md lists them.
func TestTable(t *testing.T) {
	w := newWorld(t)
	w.start()
	rpctest.Whole(t, "An indexer, --admin", w.x.adminTable())
	rpctest.Whole(t, "An indexer, --scan", w.x.scanTable(w.x.scans))
}

// TestEveryPathByEveryRole checks that over TLS each path of both ports admits exactly the roles that
// docs/security.md names. Without a certificate there are health and, for clients with a ticket, the WebSocket.
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
