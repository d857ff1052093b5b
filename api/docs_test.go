package api

import (
	"os"
	"strings"
	"testing"

	"tidemark/client"
	"tidemark/internal/rpc"
)

// TestEveryCodeAndCallIsDocumented: docs/api.md names them all.
func TestEveryCodeAndCallIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	codes := []string{CodeSyntax, CodeUnsupported, CodeDefinition, CodeNotReady, CodeBadKey, CodeNoProjector, CodeTokenLost, CodePlacement,
		client.CodeUnknownOutcome, client.CodeBusy, rpc.CodeBadRequest, rpc.CodeTooLarge, rpc.CodeMedia, rpc.CodeFormat, rpc.CodeNotFound, rpc.CodeMethod,
		rpc.CodeInternal, rpc.CodeFenced, rpc.CodeForeign, rpc.CodeUnavailable, rpc.CodeTimeout, rpc.CodeNoLeader, rpc.CodeBucket, rpc.CodeKV, rpc.CodeBootConflict}
	for code := range rejections() {
		codes = append(codes, string(code))
	}
	for _, code := range codes {
		if !strings.Contains(text, "`"+code+"`") {
			t.Errorf("docs/api.md does not name code %s", code)
		}
	}
	for _, rt := range (&API{}).routes() {
		path := strings.ReplaceAll(rt.path, "{ref:.+}", "{…}")
		for _, internal := range []string{"/v1/cluster/", "/v1/components/", "/v1/buckets/"} {
			if strings.HasPrefix(path, internal) {
				path = internal
			}
		}
		if !strings.Contains(text, path) && !strings.Contains(text, strings.ReplaceAll(path, "{…}", "{id}")) {
			t.Errorf("docs/api.md does not name %s", rt.path)
		}
	}
}
