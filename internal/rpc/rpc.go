// Package rpc carries the messages of package wire over HTTP: bodies in CBOR between components or in JSON for users,
// errors as problem JSON (RFC 9457), limits on every body. Client and server are in one package so that they agree.
//
// It guarantees that JSON with unknown fields, trailing bytes or a wrong type is rejected with its position, that
// errors of a body limited by Bound have codes, and that an error keeps its code across the network. It never
// retries: only the caller knows what may be repeated. Handlers do not limit bodies; the tables that route calls to
// them do (package route, manager/api).
package rpc

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fxamacker/cbor/v2"
	"go.opentelemetry.io/otel/attribute"

	"tidemark/errcode"
	"tidemark/wire"
)

// Media types.
const (
	MediaCBOR    = "application/cbor"
	MediaJSON    = "application/json"
	MediaProblem = "application/problem+json"
	MediaMerge   = "application/merge-patch+json" // RFC 7396
)

// Header names.
const (
	HeaderFormat = "Tidemark-Format" // wire.FormatVersion
	HeaderLeader = "Tidemark-Leader" // base URL of the leader
	// HeaderCluster is the cluster id of a manager, projector or indexer that calls a manager; a manager of another
	// cluster rejects the call.
	HeaderCluster = "Tidemark-Cluster"
)

// Limits of bodies, in bytes.
const (
	MaxControlBody = 64 << 20 // definitions of 10,000 indexes, reports with full vectors
	MaxUserBody    = 1 << 20  // users' requests: statements, scans
	maxErrorBody   = 1 << 20  // an error with maxReasons of each code, which its detail repeats
	maxQuoted      = 1 << 10  // how much of an answer that is not a Problem an error quotes
	// maxHeader limits a request's header: a scan's has up to 64 KiB of session tokens, 43 KiB of the place to continue
	// at, and the usual headers (package scanport).
	maxHeader = 128 << 10
)

// Problem is an error as it crosses the network.
type Problem = wire.Problem

// Reason is one of several obstacles.
type Reason = wire.Reason

// Reason codes of several roles.
const (
	ReasonNoCluster = "no_cluster" // it belongs to no cluster yet
	ReasonNoLeader  = "no_leader"  // the leader is not known, or cannot be reached
)

const (
	// unreadyRetryMS is the time after which /readyz may be asked again.
	unreadyRetryMS = 200
	// maxReasons limits the reasons of one code in an answer, maxReason the length of each in bytes.
	maxReasons, maxReason = 20, 1 << 10
)

// Unready returns the answer of /readyz with the reasons, ordered by code, and for each code the number of those left
// out; nil if there are no reasons.
func Unready(reasons []Reason) *Problem {
	if len(reasons) == 0 {
		return nil
	}
	slices.SortFunc(reasons, func(a, b Reason) int {
		return cmp.Or(strings.Compare(a.Code, b.Code), strings.Compare(a.Detail, b.Detail))
	})
	var listed []Reason
	var details []string
	for i, of := 0, 0; i < len(reasons); i += of {
		code := reasons[i].Code
		if of = slices.IndexFunc(reasons[i:], func(r Reason) bool { return r.Code != code }); of < 0 {
			of = len(reasons) - i
		}
		one, more := 0, 0
		for _, r := range reasons[i : i+of] {
			switch {
			case r.More > 0: // left out by another process
				more += r.More
			case one == maxReasons:
				more++
			default:
				one++
				listed = append(listed, Reason{Code: code, Detail: wire.Cut(r.Detail, maxReason)})
			}
		}
		if more > 0 {
			listed = append(listed, Reason{Code: code, Detail: fmt.Sprintf("and %d more", more), More: more})
		}
	}
	for _, r := range listed {
		details = append(details, r.Detail)
	}
	p := NewProblem(http.StatusServiceUnavailable, errcode.NotReady, "%s", strings.Join(details, "; "))
	p.RetryAfterMS, p.Reasons = unreadyRetryMS, listed
	return p
}

// NewProblem returns a Problem with the given status; Refuse takes the status from the table.
func NewProblem(status int, code errcode.Code, format string, args ...any) *Problem {
	return &Problem{Type: problemTypes + string(code), Title: http.StatusText(status), Status: status, Code: code,
		Detail: fmt.Sprintf(format, args...)}
}

func decMode() (cbor.DecMode, error) {
	return cbor.DecOptions{MaxArrayElements: 1 << 20, MaxMapPairs: 1 << 16, MaxNestedLevels: 16,
		DupMapKey: cbor.DupMapKeyEnforcedAPF}.DecMode()
}

// Unmarshal decodes a CBOR body.
func Unmarshal(body []byte, v any) error {
	m, err := decMode()
	if err != nil {
		return err
	}
	return m.Unmarshal(body, v)
}

// Read decodes the body of a request, which Bound has limited, into v. An empty body leaves v as it is. The error is
// a *Problem.
func Read(r *http.Request, v any) error {
	if f := r.Header.Get(HeaderFormat); f != "" && f != strconv.Itoa(wire.FormatVersion) {
		return Refuse(errcode.UnsupportedFormat, "wire format %s, this version supports %d: upgrade the older side", f,
			wire.FormatVersion)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body)) // for Sent
	if len(body) == 0 {
		return nil
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.Header.Get("Content-Type") != "" {
		return Refuse(errcode.UnsupportedMediaType, "content type %q: %v", r.Header.Get("Content-Type"), err)
	}
	switch media {
	case MediaCBOR:
		if err := Unmarshal(body, v); err != nil {
			return Refuse(errcode.BadRequest, "CBOR body: %v", err)
		}
		return nil
	case MediaJSON, MediaMerge, "", "application/x-www-form-urlencoded": // curl -d sends the last by default
		return ReadJSON(body, v)
	}
	return Refuse(errcode.UnsupportedMediaType, "content type %q: send application/json", media)
}

// Sent returns the bytes of a user's body, which Bound has limited, also after Read.
func Sent(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, err
}

// ReadJSON decodes JSON strictly: an unknown field, a field that occurs twice, and data after the value are errors. The
// error is a *Problem with the line and column or the field.
func ReadJSON(body []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return Refuse(errcode.BadRequest, "JSON body: %s", ExplainJSON(body, dec.InputOffset(), err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		line, column := place(body, dec.InputOffset())
		return Refuse(errcode.BadRequest, "JSON body: data follows the value at line %d column %d; send one value", line,
			column)
	}
	if twice := Repeated(body, v); twice != "" {
		return Refuse(errcode.BadRequest, "JSON body: %s", twice)
	}
	return nil
}

// ExplainJSON describes what is wrong with a body that encoding/json has rejected, and where; at is the position if
// the error has none.
func ExplainJSON(body []byte, at int64, err error) string {
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		line, column := place(body, syntax.Offset-1) // Offset is behind the offending byte
		return fmt.Sprintf("%v at line %d column %d", err, line, column)
	case errors.As(err, &wrong):
		line, column := place(body, wrong.Offset)
		return fmt.Sprintf("%s, at line %d column %d", WrongType(wrong), line, column)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends in the middle of a value"
	case errors.Is(err, io.EOF):
		return "it is empty"
	}
	line, column := place(body, at)
	text := strings.TrimPrefix(err.Error(), "json: ")
	if strings.Contains(text, ",string struct tag") {
		text = "an id or hash is not a string of decimal digits, up to 18446744073709551615: they are strings, because " +
			"they can exceed 2^53"
	}
	return fmt.Sprintf("%s, near line %d column %d", text, line, column)
}

func place(body []byte, offset int64) (line, column int) {
	before := body[:min(max(offset, 0), int64(len(body)))]
	line = bytes.Count(before, []byte{'\n'}) + 1
	return line, len(before) - bytes.LastIndexByte(before, '\n')
}

// Appender is an answer that encodes itself as JSON, because it is large.
type Appender interface {
	AppendJSON(dst []byte) ([]byte, error)
}

// Write answers with v, in CBOR if the request accepts it, else in indented JSON (an Appender in its own form).
func Write(w http.ResponseWriter, r *http.Request, status int, v any) {
	var body []byte
	var err error
	if strings.Contains(r.Header.Get("Accept"), MediaCBOR) {
		w.Header().Set("Content-Type", MediaCBOR)
		body, err = cbor.Marshal(v)
	} else {
		w.Header().Set("Content-Type", MediaJSON)
		if a, ok := v.(Appender); ok {
			body, err = a.AppendJSON(nil)
		} else if body, err = json.MarshalIndent(v, "", "  "); err == nil {
			body = append(body, '\n')
		}
	}
	if err != nil {
		WriteProblem(w, Refuse(errcode.Internal, "encoding the answer: %v", err))
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	BeginAnswer(w)
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the client has gone
}

// WriteProblem answers with an error. AsProblem converts errors that are not Problems.
func WriteProblem(w http.ResponseWriter, err error) {
	p := AsProblem(err)
	if p.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
	if p.Leader != nil && p.Leader.REST != "" {
		w.Header().Set(HeaderLeader, p.Leader.REST)
	}
	if id := w.Header().Get(HeaderRequestID); id != "" && p.RequestID != id {
		mine := *p // it may be shared
		mine.RequestID, p = id, &mine
	}
	body, _ := json.MarshalIndent(p, "", "  ") // a Problem always marshals
	w.Header().Set("Content-Type", MediaProblem)
	BeginAnswer(w)
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

// AsProblem returns the Problem in err's chain, or the one for a refusal or a known sentinel, or else an internal
// error.
func AsProblem(err error) *Problem {
	var p *Problem
	var r *errcode.Refusal
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &r):
		return Refuse(r.Code, "%s", r.Detail)
	case errors.Is(err, wire.ErrFenced):
		return Refuse(errcode.Fenced, "%v", err)
	case errors.Is(err, wire.ErrForeignCluster):
		return Refuse(errcode.ForeignCluster, "%v", err)
	case errors.Is(err, context.DeadlineExceeded):
		return Refuse(errcode.Timeout, "%v", err)
	case errors.Is(err, context.Canceled):
		return Refuse(errcode.Cancelled, "the client closed the request: %v", err)
	}
	return Refuse(errcode.Internal, "%v", err)
}

// HandlerFunc is a handler whose error becomes its answer. It must not return an error after it has begun one.
type HandlerFunc func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP implements http.Handler.
func (f HandlerFunc) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := f(w, r); err != nil {
		WriteProblem(w, err)
	}
}

// Message returns a handler for a function from request to answer message, for component interfaces.
func Message[Req, Resp any](f func(ctx context.Context, req *Req) (*Resp, error)) HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		req := new(Req)
		if err := Read(r, req); err != nil {
			return err
		}
		return Show(func(ctx context.Context) (*Resp, error) { return f(ctx, req) })(w, r)
	}
}

// Show returns a handler for a function without a request message.
func Show[Resp any](f func(ctx context.Context) (Resp, error)) HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		resp, err := f(r.Context())
		if err != nil {
			return err
		}
		Write(w, r, http.StatusOK, resp)
		return nil
	}
}

// Client sends messages of package wire. The zero value is not usable; see NewClient, NewFreshClient.
type Client struct {
	cluster atomic.Pointer[string]
	http    *http.Client
}

// NewClient returns a client with its own connection pool: keep-alive, at most perHost connections to one address.
// conf is for https addresses, nil for the defaults.
func NewClient(perHost int, conf *tls.Config) *Client {
	return &Client{http: &http.Client{Transport: transport(perHost, conf)}}
}

// NewFreshClient returns a client that opens a connection for each request, at most perHost to one address at a time.
// If the server has died the connection is refused, so that the caller knows that nothing was sent; on a kept-alive
// connection it would not know whether a request was read.
func NewFreshClient(perHost int, conf *tls.Config) *Client {
	fresh := transport(perHost, conf)
	fresh.DisableKeepAlives = true
	return &Client{http: &http.Client{Transport: fresh}}
}

func transport(perHost int, conf *tls.Config) *http.Transport {
	if conf == nil {
		conf = &tls.Config{} // the CAs of the system
	}
	t := &http.Transport{
		DialContext: Dial, MaxIdleConns: 256, MaxIdleConnsPerHost: perHost, MaxConnsPerHost: perHost,
		IdleConnTimeout: 60 * time.Second, ResponseHeaderTimeout: longestCall, DisableCompression: true,
		TLSClientConfig: conf, TLSHandshakeTimeout: handshakeTimeout,
	}
	if !conf.InsecureSkipVerify && conf.ServerName == "" {
		t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dialTLS(ctx, t.DialContext, network, addr, conf)
		}
	}
	return t
}

// longestCall limits calls whose context has no deadline: it exceeds the longest call of the product, a scan.
const longestCall = 11 * time.Minute

// Wrap wraps the client's transport. It must be called before the client's first use.
func (c *Client) Wrap(around func(http.RoundTripper) http.RoundTripper) {
	c.http.Transport = around(c.http.Transport)
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// HTTP returns the underlying client, for streams.
func (c *Client) HTTP() *http.Client { return c.http }

// SetCluster sets the cluster id that every later Do sends.
func (c *Client) SetCluster(id string) { c.cluster.Store(&id) }

// Do sends req (nil for none) as CBOR and decodes the answer into resp (nil to ignore it). The context limits the
// whole exchange. An error answer is a *Problem; any other error means that the outcome is unknown.
func (c *Client) Do(ctx context.Context, method, url string, req, resp any) error {
	below, span := StartSpan(ctx, "send")
	if span.IsRecording() {
		span.SetAttributes(attribute.String("http.request.method", method), attribute.String("url.full", url))
	}
	err := c.do(below, method, url, req, resp)
	EndSpan(ctx, span, err)
	return err
}

// Call is Do with a timeout; it returns the answer as a new Resp.
func Call[Resp any](ctx context.Context, c *Client, timeout time.Duration, method, url string, req any) (*Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp := new(Resp)
	if err := c.Do(ctx, method, url, req, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

func (c *Client) do(ctx context.Context, method, url string, req, resp any) error {
	var body io.Reader
	if req != nil {
		b, err := cbor.Marshal(req)
		if err != nil {
			return fmt.Errorf("encoding %T: %w", req, err)
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	r.Header.Set("Content-Type", MediaCBOR)
	r.Header.Set("Accept", MediaCBOR)
	r.Header.Set(HeaderFormat, strconv.Itoa(wire.FormatVersion))
	Outgoing(r)
	if id := c.cluster.Load(); id != nil && *id != "" {
		r.Header.Set(HeaderCluster, *id)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		return ReadProblem(answer)
	}
	b, err := ReadAnswer(answer, MaxControlBody)
	if err != nil {
		return err
	}
	if resp == nil {
		return nil
	}
	if err := Unmarshal(b, resp); err != nil {
		return fmt.Errorf("%s %s: CBOR answer: %w", method, url, err)
	}
	return nil
}

// ReadProblem converts an answer with an error status to a *Problem. If the answer is not a Problem, or is cut off, the
// detail is the beginning of its body.
func ReadProblem(answer *http.Response) *Problem {
	b, _ := io.ReadAll(io.LimitReader(answer.Body, maxErrorBody)) // use what has arrived
	p := &Problem{}
	if bytes.Contains(b, []byte("HTTP request to an HTTPS server")) { // net/http's own answer
		p = NewProblem(answer.StatusCode, errcode.BadRequest, "the server speaks TLS: begin its address with "+
			"https:// and name its CA (--tls-ca)")
	} else if json.Unmarshal(b, p) != nil || p.Code == "" {
		text := wire.Cut(strings.TrimSpace(string(b)), maxQuoted)
		if text == "" {
			text = fmt.Sprintf("an empty answer with HTTP status %d: is this an address of tidemark?",
				answer.StatusCode)
		}
		p = NewProblem(answer.StatusCode, errcode.Internal, "%s", text)
	}
	p.Status = answer.StatusCode
	return p
}

// Advertised returns the host:port to announce for a listener: its own, or another host with the same port.
func Advertised(listener net.Addr, host string) string {
	_, port, err := net.SplitHostPort(listener.String())
	if host == "" || err != nil {
		return listener.String()
	}
	return net.JoinHostPort(host, port)
}

// NewServer returns an http.Server with the timeouts and limits common to all listeners of this product, and request
// ids. The timeouts apply to the network only: a call may take as long as its handler needs. Handlers that stream set
// a deadline for each write with http.ResponseController; others call BeginAnswer if they do not answer with Write.
// The caller sets ErrorLog.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: aged(Identify(h), time.Now), ConnContext: stampConn,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: AnswerTimeout,
		IdleTimeout: 120 * time.Second, MaxHeaderBytes: maxHeader,
	}
}

// Serve runs the server on l until ctx ends, then drains it for at most grace.
func Serve(ctx context.Context, s *http.Server, l net.Listener, grace time.Duration) error {
	stopped := make(chan error, 1)
	go func() { stopped <- s.Serve(l) }()
	select {
	case err := <-stopped:
		return fmt.Errorf("HTTP server on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if s.Shutdown(drain) != nil {
		_ = s.Close() // requests that did not finish in time are cut
	}
	if err := <-stopped; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("HTTP server on %s: %w", l.Addr(), err)
	}
	return nil
}
