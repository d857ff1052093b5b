// Package contract checks requests and answers against the OpenAPI document that managers serve: for tests only. It
// wraps a transport, so that every exchange of a test is checked in addition to what the test itself checks.
//
// It reports an answer with a status, header, media type, field or code that the document lacks, and a request that
// was accepted although the document does not allow it. It never changes an exchange.
package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"tidemark/manager/api"
)

// maxChecked is the most bytes of an answer that are checked; a longer body is forwarded unread.
const maxChecked = 4 << 20

// Checker checks exchanges against the document.
type Checker struct {
	router routers.Router

	mu   sync.Mutex
	seen map[string]bool // "POST /v1/indexes 202"
}

// New returns a Checker that has seen nothing.
func New() (*Checker, error) {
	router, err := documented()
	if err != nil {
		return nil, err
	}
	return &Checker{router: router, seen: map[string]bool{}}, nil
}

// documented parses the document once per process, because that takes longer than many tests.
var documented = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI())
	if err != nil {
		return nil, fmt.Errorf("the OpenAPI document: %w", err)
	}
	doc.Servers = nil // any address
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("the OpenAPI document: %w", err)
	}
	return router, nil
})

// Seen returns the exchanges so far, as "POST /v1/indexes 202".
func (c *Checker) Seen() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]bool{}
	for k := range c.seen {
		all[k] = true
	}
	return all
}

// Transport returns a transport that checks the exchanges of next, and calls report for each violation of the
// document.
func (c *Checker) Transport(next http.RoundTripper, report func(error)) http.RoundTripper {
	return &transport{c: c, next: next, report: report}
}

type transport struct {
	c      *Checker
	next   http.RoundTripper
	report func(error)
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent []byte
	if r.Body != nil && r.GetBody != nil {
		if b, err := r.GetBody(); err == nil {
			sent, _ = io.ReadAll(b) // a request with an unreadable body fails below
			_ = b.Close()
		}
	}
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	if err := t.c.check(r, sent, resp); err != nil {
		t.report(fmt.Errorf("%s %s, answered %d: %w", r.Method, r.URL.Path, resp.StatusCode, err))
	}
	return resp, nil
}

// ErrUndocumented is wrapped by errors about something that the document lacks.
var ErrUndocumented = errors.New("not in openapi.json")

func (c *Checker) check(r *http.Request, sent []byte, resp *http.Response) error {
	media := resp.Header.Get("Content-Type")
	route, vars, err := c.router.FindRoute(r)
	if err != nil {
		if r.Method == http.MethodHead { // allowed wherever GET is
			return nil
		}
		if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed ||
			internalPath(r.URL.Path) {
			return nil
		}
		return fmt.Errorf("%w: the call itself (%w)", ErrUndocumented, err)
	}
	c.mu.Lock()
	c.seen[fmt.Sprintf("%s %s %d", route.Method, route.Path, resp.StatusCode)] = true
	c.mu.Unlock()
	in := &openapi3filter.RequestValidationInput{Request: copyRequest(r, sent), PathParams: vars, Route: route,
		Options: &openapi3filter.Options{IncludeResponseStatus: true,
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, SkipSettingDefaults: true}}
	if resp.StatusCode < 300 {
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			return fmt.Errorf("the request was accepted: %w", err)
		}
	}
	if strings.HasPrefix(media, "text/event-stream") {
		return nil // the stream does not end
	}
	body, whole, err := peek(resp)
	if err != nil || !whole {
		return nil // the test decides about a truncated answer
	}
	if strings.HasPrefix(media, "application/x-ndjson") {
		return lines(route, resp, media, body)
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: resp.StatusCode,
		Header: resp.Header, Options: in.Options}
	out.SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(r.Context(), out); err != nil {
		return fmt.Errorf("%w\n%s", err, body[:min(len(body), 2000)])
	}
	return nil
}

// internalPath reports whether a path is of the protocol between components, which docs/protocol.md describes.
func internalPath(path string) bool {
	for _, p := range []string{"/v1/components/", "/v1/buckets/", "/v1/readindex", "/v1/history/own",
		"/v1/bootstrap", "/v1/cluster/"} {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

func copyRequest(r *http.Request, sent []byte) *http.Request {
	c := r.Clone(r.Context())
	c.Body = io.NopCloser(bytes.NewReader(sent))
	if len(sent) == 0 {
		c.Body = http.NoBody
	}
	return c
}

// peek reads a body, restores it for the caller, and reports whether it was read to its end.
func peek(resp *http.Response) (body []byte, whole bool, err error) {
	was := resp.Body
	body, err = io.ReadAll(io.LimitReader(was, maxChecked))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), &rest{was, err}), was}
	return body, len(body) < maxChecked, err
}

// rest continues a body, or returns the error of an earlier read.
type rest struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (r *rest) Read(b []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	return r.Reader.Read(b)
}

// lines checks each line against the schema of its media type.
func lines(route *routers.Route, resp *http.Response, media string, body []byte) error {
	answer := route.Operation.Responses.Status(resp.StatusCode)
	if answer == nil || answer.Value.Content.Get(media) == nil {
		return fmt.Errorf("%w: %s", ErrUndocumented, media)
	}
	schema := answer.Value.Content.Get(media).Schema.Value
	for i, line := range bytes.Split(bytes.TrimRight(body, "\n"), []byte("\n")) {
		if i > 20 && i < bytes.Count(body, []byte("\n"))-1 { // the rows between are alike
			continue
		}
		var v any
		if err := json.Unmarshal(line, &v); err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
		if err := schema.VisitJSON(v, openapi3.VisitAsResponse(), openapi3.EnableJSONSchema2020()); err != nil {
			return fmt.Errorf("line %d %s: %w", i+1, line, err)
		}
	}
	return nil
}

// CloseIdleConnections forwards http.Client's call to the wrapped transport.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
