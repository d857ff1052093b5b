package projector

import (
	"net/http"
	"testing"

	"tidemark/internal/testing/rpctest"
	"tidemark/internal/tlsconf"
)

// TestTable: the port's calls are bounded, and docs/protocol.md lists them.
func TestTable(t *testing.T) { rpctest.Whole(t, "A projector, --admin", newWorld(t).p.table()) }

// TestEveryPathByEveryRole: over TLS each path admits the roles in docs/security.md, and no others; indexers may open
// and end side streams, but send none of the leader's commands.
func TestEveryPathByEveryRole(t *testing.T) {
	w := newWorld(t)
	w.define(1, 1)
	manager, side, all := []tlsconf.Role{tlsconf.Manager}, []tlsconf.Role{tlsconf.Manager, tlsconf.Indexer},
		tlsconf.Roles()
	h := rpctest.Roles(t, w.p.table(), map[string][]tlsconf.Role{
		"PUT /v1/hello": manager, "PUT /v1/definitions": manager, "POST /v1/definitions:change": manager,
		"POST /v1/bucket": manager, "POST /v1/failoverlogs": manager, "POST /v1/fields": manager,
		"POST /v1/sync": manager, "POST /v1/streams": side, "POST /v1/streams:stop": side, "POST /v1/topics": side,
		"POST /v1/seqnos": side,
		"GET /v1/state":   all, "GET /v1/topics": all, "GET /metrics": all, "GET /healthz": nil, "GET /readyz": nil,
		"GET /v1/logging": all, "PUT /v1/logging": manager,
	})
	const fence = `"fence":{"cluster_id":"c1","epoch":1,"term":1,"counter":1000}`
	for path, body := range map[string]string{
		"/v1/streams":      `{` + fence + `,"topic":"/maintenance","incarnation":{"counter":1},"buckets":[{"bucket":"world","bucket_uuid":"` + testUUID + `","restart":{"vbuckets":[0],"vbuuids":[0],"seqnos":[0]}}]}`,
		"/v1/streams:stop": `{` + fence + `,"topic":"/maintenance","bucket":"world","vbuckets":[0],"incarnation":{"counter":9}}`,
	} {
		for role, want := range map[tlsconf.Role]int{tlsconf.Indexer: http.StatusForbidden, tlsconf.Manager: http.StatusOK} {
			if code := rpctest.As(h, rpctest.Certificate(role), http.MethodPost, path, body); code != want {
				t.Errorf("%s of %s by a %s: %d, want %d", path, "/maintenance", role, code, want)
			}
		}
	}
}
