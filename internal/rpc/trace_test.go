package rpc

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// TestSpansHaveNoSecrets checks that a token's secret given for an id appears in no span of the request, neither in
// its path nor in the error of a server that could not forward it.
func TestSpansHaveNoSecrets(t *testing.T) {
	const secret = "Zm9yZXN0-YmVhcnM_"
	seen := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen)).Tracer("test")
	h := Traced(tracer, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, span := StartSpan(r.Context(), "forward")
		EndSpan(r.Context(), span, &url.Error{Op: "Delete", URL: "http://m1" + r.URL.Path, Err: errors.New("refused")})
	}))
	h.ServeHTTP(httptest.NewRecorder(),
		httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "http://x/v1/tokens/tmt_"+secret, nil))
	spans := seen.Ended()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want 2", len(spans))
	}
	for _, s := range spans {
		text := fmt.Sprint(s.Name(), s.Attributes(), s.Status())
		if strings.Contains(text, secret) || !strings.Contains(text, "/v1/tokens/tmt_…") {
			t.Errorf("span %s", text)
		}
	}
	if got := spans[0].Status().Description; got != `Delete "http://m1/v1/tokens/tmt_…": refused` {
		t.Errorf("the error is %s", got)
	}
}
