package kv

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/kv/clustermap"
	"tidemark/kv/store"
)

// TestRefusalsAreRecognized: which answers of another node count as refusals. An answer that does not judge the
// request is none.
func TestRefusalsAreRecognized(t *testing.T) {
	encoded := func(p any) []byte {
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for _, c := range []struct {
		name    string
		status  int
		raw     []byte
		is      error // nil: no known error
		refused bool
		says    string
	}{
		{"refused", 409, encoded(problem{Code: codeRefused, Detail: "no bucket"}), ErrRefused, true,
			"refused by n:1: no bucket"},
		{"the seal", 412, encoded(problem{Code: codeSealBroken, Detail: "gone"}), store.ErrSealBroken, false, "gone"},
		{"an older map", 409, encoded(problem{Code: codeOlder, Detail: "2.1"}), errOlder, false, "2.1"},
		{"a scope", 409, encoded(problem{Code: "NO_SCOPE", Detail: "s"}), clustermap.ErrNoScope, true, "s"},
		{"the password", 401, encoded(rpc.Refuse(errcode.Unauthenticated, "who are you")), ErrRefused, true, "who are you"},
		{"a large body", 413, encoded(rpc.Refuse(errcode.BodyTooLarge, "large")), ErrRefused, true, "large"},
		{"an unknown path", 404, encoded(rpc.Refuse(errcode.NotFound, "a KV node has no /x")), nil, false,
			"n:1 does not support the request, because it has another version: a KV node has no /x"},
		{"an unknown method", 405, encoded(rpc.Refuse(errcode.MethodNotAllowed, "/x takes GET")), nil, false, "/x takes GET"},
		{"too much to do", 503, encoded(rpc.Refuse(errcode.Busy, "4 scrapes")), nil, false,
			"n:1: 503 Service Unavailable: 4 scrapes"},
		{"another program", 404, []byte("404 page not found\n"), nil, false, "n:1: 404 Not Found: 404 page not found"},
		{"TLS", 400, []byte("Client sent an HTTP request to an HTTPS server.\n"), ErrNeedsTLS, false, "give its CA"},
	} {
		err := refusal("n:1", c.status, c.raw)
		if c.is != nil && !errors.Is(err, c.is) || errors.Is(err, ErrRefused) != c.refused ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	var other *NotLeaderError
	if err := refusal("n:1", http.StatusMisdirectedRequest, encoded(problem{Code: codeNotLeader, Detail: "ask",
		Leader: "n:2"})); !errors.As(err, &other) || other.Leader != "n:2" {
		t.Errorf("not the leader: %v", err)
	}
}
