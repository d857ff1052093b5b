package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// TestLoggingOfAmbiguousName checks that, if nodes of several roles have a name, as those of `tidemark node` do, the
// error lists the roles and the flag. Other errors are unchanged.
func TestLoggingOfAmbiguousName(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/status":
			fmt.Fprint(w, `{"managers":[{"id":"n1"},{"id":"m2"}],"projectors":[{"id":"n1"}],"indexers":[{"id":"n1"}]}`)
		case r.URL.Query().Get("role") == "indexer":
			fmt.Fprint(w, `{"components":[{"component":"indexer","level":"info"}]}`)
		default:
			rpc.WriteProblem(w, rpc.NewProblem(400, errcode.BadRequest, "because"))
		}
	}))
	defer s.Close()
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"n1": {errcode.ExitUsage, "several nodes have the name n1: choose one with --role manager, or --role projector, " +
			"or --role indexer"},
		"n1 debug":            {errcode.ExitUsage, "--role manager"},
		"n1 --role indexer":   {errcode.ExitOK, ""},
		"n1 --role projector": {errcode.ExitFailed, "BAD_REQUEST: because"},
		"m2":                  {errcode.ExitFailed, "BAD_REQUEST: because"},
	} {
		code, _, stderr := run(t, "", append([]string{"cluster", "logging", "--server", s.URL}, strings.Fields(args)...)...)
		if code != want.code || !strings.Contains(stderr, want.text) {
			t.Errorf("%s: exit code %d, %s", args, code, stderr)
		}
	}
}
