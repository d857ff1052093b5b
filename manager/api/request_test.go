package api

import (
	"net/http/httptest"
	"strings"
	"testing"

	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
)

// TestRequestsAreIdentifiedByTheirBytes checks that the same bytes are the same request, however a version interprets
// them; other bytes, another path, method or If-Match make another request.
func TestRequestsAreIdentifiedByTheirBytes(t *testing.T) {
	hash := func(method, path, match, body string) [32]byte {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set(HeaderKey, "k")
		r.Header.Set(headerIfMatch, match)
		var into v1.StatementRequest
		if err := rpc.Read(r, &into); err != nil {
			t.Fatal(err)
		}
		var last [32]byte
		for part := range 2 { // for each statement of a body
			req, err := bodyRequest(r, part)
			if err != nil {
				t.Fatal(err)
			}
			if part > 0 && req.BodyHash != last {
				t.Fatal("the body can be hashed once only")
			}
			last = req.BodyHash
		}
		return last
	}
	first := hash("POST", "/v1/statements", "", `{"statement":"x"}`)
	if first != hash("POST", "/v1/statements", "", `{"statement":"x"}`) {
		t.Error("the same request has another hash")
	}
	for name, other := range map[string][32]byte{
		"method": hash("PUT", "/v1/statements", "", `{"statement":"x"}`),
		"path":   hash("POST", "/v1/indexes", "", `{"statement":"x"}`),
		"match":  hash("POST", "/v1/statements", "7", `{"statement":"x"}`),
		"body":   hash("POST", "/v1/statements", "", `{"statement":"y"}`),
		"bytes":  hash("POST", "/v1/statements", "", `{ "statement":"x"}`),
	} {
		if other == first {
			t.Errorf("another %s makes no difference", name)
		}
	}
	long := strings.Repeat(" ", 2*rpc.MaxUserBody) // like a plan of a rebalance
	if hash("POST", "/v1/rebalances", "", long+`{"statement":"x"}`) == hash("POST", "/v1/rebalances", "",
		long+`{"statement":"y"}`) {
		t.Error("another end of a long body makes no difference")
	}
}
