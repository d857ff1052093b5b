// Package client is the Go client for users: DDL, listings, scans with tokens.
//
// It guarantees that a write is sent with an Idempotency-Key and retried, on any of the servers, until there is an
// answer or the context ends, so that it is done once; that a call is not retried if no server is trusted; that an
// error answer is a *wire.Problem with its code; and that a scan that was cut off is never mistaken for a complete
// one. Its parameters and results are types of package v1 (tidemark/manager/api/v1).
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"tidemark/indexer/scanport"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// DefaultServer is the address of the first manager of `tidemark up`.
const DefaultServer = "http://127.0.0.1:9520"

const (
	// A call waits for a server as long as the server may take (v1.TimeoutOf) and answerMargin longer before it tries
	// another one; the Idempotency-Key makes that safe for writes. Probes detect a server that hangs meanwhile.
	answerMargin     = 2 * time.Second
	firstRowsTimeout = v1.ScanTimeout + answerMargin // for the first rows of a scan: few entries may match its conditions
	verifyLimit      = 60 * time.Second              // for how long a verification that cannot begin is retried
	// defaultRetryFor is the default of Options.RetryFor: the query timeout of Couchbase's SDKs.
	defaultRetryFor = 75 * time.Second
	firstBackoff    = 20 * time.Millisecond
	maxBackoff      = 500 * time.Millisecond
	maxAnswer       = 64 << 20
)

var (
	// ErrUnavailable is wrapped if no server answered before the context ended, or soon enough.
	ErrUnavailable = errors.New("no answer in time")
	// ErrServer is wrapped if a server's address is invalid.
	ErrServer = errors.New("bad server address")
	// ErrAnswer is wrapped if an answer does not come from a tidemark manager.
	ErrAnswer = errors.New("unexpected answer")
)

// Client calls the managers of one cluster. It is safe for use by several goroutines.
type Client struct {
	// Waiting, if set before the first call, is called with the error of each attempt that is retried.
	Waiting func(err error)
	// Stalled, if set before the first call, is called by WaitReady with the reason if a build has been waiting for
	// some seconds, and again every minute while it waits.
	Stalled func(why string)

	servers []string
	rpc     *rpc.Client
	direct  *direct            // nil: scans go through the managers
	alive   *detector.Detector // of the servers
	probes  *rpc.Client

	session  *Session // that its scans belong to; nil if there is none
	buckets  bucketsOf
	retryFor time.Duration // Options.RetryFor
	// reachFor is Options.ReachFor; reached is set once a server has accepted a connection.
	reachFor time.Duration
	reached  atomic.Bool

	user, password, token string // must not appear in an error's text

	verifyRetryFor time.Duration // verifyLimit except in tests
	largest        int64         // maxAnswer except in tests

	bad  error         // from the servers' addresses
	next atomic.Uint32 // index of the server that answered last
}

// Options configure a client: the cluster's servers, and the client's credentials.
type Options struct {
	// Servers are base URLs or host:port; none means DefaultServer.
	Servers []string
	// TLS is the configuration for servers that use TLS: the CAs, and the client's certificate if it has one. With it, a
	// server without a scheme is https.
	TLS *tls.Config
	// User and Password, or Token, are the credentials; without them the client is anonymous, or identified by its
	// certificate.
	User, Password, Token string
	// ViaManagers sends scans and counts through the managers, as curl does. Otherwise they go directly to the indexers
	// while that works: the indexers' scan ports must be reachable.
	ViaManagers bool
	// Session is the session of scans and counts; clients may share one. If it is nil, the client creates its own.
	Session *Session
	// RetryFor bounds the retries of a scan or count whose context has no deadline, while it is refused for a temporary
	// reason (TIMEOUT, BUSY, UNAVAILABLE) or no server can be reached; 0 means 75 s, a negative value forever. It does
	// not bound the wait for an indexer that is working on the request, which may take 10 minutes.
	RetryFor time.Duration
	// ReachFor bounds the attempts to reach a server if none accepts a connection, nor ever has accepted one of this
	// client; 0 means until the context ends.
	ReachFor time.Duration
	// Sessionless makes each scan independent of what was seen before.
	Sessionless bool
}

// New returns a client without credentials. Servers are base URLs or host:port; none means DefaultServer.
func New(servers ...string) *Client { return Open(Options{Servers: servers}) }

// Open returns a client.
func Open(o Options) *Client {
	c := &Client{rpc: rpc.NewClient(64, o.TLS), probes: rpc.NewClient(probesAtOnce, o.TLS), user: o.User,
		password: o.Password, token: o.Token, verifyRetryFor: verifyLimit, largest: maxAnswer,
		retryFor: cmp.Or(o.RetryFor, defaultRetryFor), reachFor: o.ReachFor}
	if c.session = o.Session; c.session == nil && !o.Sessionless {
		c.session = &Session{}
	}
	c.alive = detector.New(detector.HTTP(c.probes.HTTP(), func(server string) string { return server + "/healthz" }))
	c.servers, c.bad = o.servers()
	if !o.ViaManagers {
		c.direct = newDirect(c, o.TLS)
	}
	return c
}

// servers returns the managers' base URLs without duplicates. bad is the error of an address that cannot be used.
func (o *Options) servers() (all []string, bad error) {
	scheme := "http"
	if o.TLS != nil {
		scheme = "https"
	}
	for _, s := range o.Servers {
		if strings.Trim(s, " /") == "" {
			continue
		}
		s = tlsconf.BaseURL(scheme, s)
		if err := checkServer(s); err != nil {
			bad = err
		}
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		all = []string{scheme + strings.TrimPrefix(DefaultServer, "http")}
	}
	return all, bad
}

func checkServer(server string) error {
	u, err := url.Parse(server)
	if err != nil && strings.Count(server, ":") > 2 && !strings.Contains(server, "[") {
		return fmt.Errorf("%w: %w; put an IPv6 address in brackets, like [::1]:9520", ErrServer, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrServer, err)
	}
	if u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%w: %q: want host:port or a URL that begins with http:// or https://", ErrServer, server)
	}
	return nil
}

// Wrap adds a transport around the client's own, to observe what is sent. It must be called before the first call.
func (c *Client) Wrap(around func(http.RoundTripper) http.RoundTripper) { c.rpc.Wrap(around) }

// Close closes idle connections.
func (c *Client) Close() {
	if c.direct != nil {
		c.direct.close()
	}
	c.alive.Close()
	c.probes.Close()
	c.rpc.Close()
}

// Statement executes DDL text: one or more statements separated by semicolons.
func (c *Client) Statement(ctx context.Context, text string) ([]v1.StatementResult, error) {
	var reply v1.StatementReply
	if err := c.call(ctx, http.MethodPost, statements, nil, v1.StatementRequest{Statement: text}, &reply); err != nil {
		return nil, err
	}
	return reply.Results, nil
}

// Paths of statements.
const (
	statements = "/v1/statements"
	rehearsals = statements + "?dry_run=true"
)

// Rehearse returns what DDL statements would do, without doing it: the checks are the same, and places are chosen by
// the present load. The error is that of the first statement that would be refused.
func (c *Client) Rehearse(ctx context.Context, text string) ([]v1.StatementResult, error) {
	var reply v1.StatementReply
	err := c.call(ctx, http.MethodPost, rehearsals, nil, v1.StatementRequest{Statement: text}, &reply)
	if err == nil && !reply.DryRun {
		err = fmt.Errorf("%w: the manager does not support dry runs: the statements WERE executed; does it have another "+
			"version?", ErrAnswer)
	}
	return reply.Results, err
}

// Create creates an index.
func (c *Client) Create(ctx context.Context, req v1.CreateRequest) (v1.IndexInfo, error) {
	var info v1.IndexInfo
	return info, c.call(ctx, http.MethodPost, "/v1/indexes", nil, req, &info)
}

// pageOf returns the query for the page after a token, "" for the first one, of a bucket, "" for all.
func pageOf(bucket, after string) string {
	q := url.Values{}
	if bucket != "" {
		q.Set("bucket", bucket)
	}
	if after != "" {
		q.Set("after", after)
	}
	return query(q)
}

// follows reports whether another page follows the page that was requested with after.
func follows(after, next string) (bool, error) {
	if next != "" && next == after {
		return false, fmt.Errorf("%w: the page after %s names itself as the next page", ErrAnswer, after)
	}
	return next != "", nil
}

// Indexes returns the indexes of a bucket, or all if bucket is "", ordered by id, from as many pages as there are.
// CAS is that of the first page: an index that existed then and still exists is in the list.
func (c *Client) Indexes(ctx context.Context, bucket string) (v1.IndexList, error) {
	var all v1.IndexList
	for after := ""; ; {
		var page v1.IndexList
		if err := c.call(ctx, http.MethodGet, "/v1/indexes"+pageOf(bucket, after), nil, nil, &page); err != nil {
			return v1.IndexList{}, err
		}
		if all.Indexes == nil {
			all = page
		} else {
			all.Indexes = append(all.Indexes, page.Indexes...)
		}
		all.Next = ""
		more, err := follows(after, page.Next)
		if err != nil {
			return v1.IndexList{}, err
		}
		if !more {
			return all, nil
		}
		after = page.Next
	}
}

// Ref names an index by bucket and name, for methods that take a ref; an id is given as decimal text.
func Ref(bucket, name string) string { return url.PathEscape(bucket) + "/" + url.PathEscape(name) }

// Index returns the description of an index; ref is an id or a Ref.
func (c *Client) Index(ctx context.Context, ref string) (v1.IndexInfo, error) {
	var info v1.IndexInfo
	return info, c.call(ctx, http.MethodGet, "/v1/indexes/"+ref, nil, nil, &info)
}

// Drop drops an index; ref is an id or a Ref. ifMatch is the required modified_cas of the index, 0 for any.
func (c *Client) Drop(ctx context.Context, ref string, ifMatch uint64) error {
	header := http.Header{}
	if ifMatch != 0 {
		header.Set("If-Match", `"`+formatUint(ifMatch)+`"`)
	}
	return c.call(ctx, http.MethodDelete, "/v1/indexes/"+ref, header, nil, nil)
}

// Change changes an index; ref is an id or a Ref. ifMatch is the required modified_cas of the index, 0 for any.
func (c *Client) Change(ctx context.Context, ref string, req v1.PatchRequest, ifMatch uint64) (v1.IndexInfo, error) {
	header := http.Header{}
	if ifMatch != 0 {
		header.Set("If-Match", `"`+formatUint(ifMatch)+`"`)
	}
	var info v1.IndexInfo
	return info, c.call(ctx, http.MethodPatch, "/v1/indexes/"+ref, header, req, &info)
}

// Build starts building deferred indexes on a bucket's default collection.
func (c *Client) Build(ctx context.Context, bucket string, names ...string) ([]v1.StatementResult, error) {
	return c.BuildIn(ctx, v1.BuildRequest{Bucket: bucket, Names: names})
}

// BuildIn starts building deferred indexes.
func (c *Client) BuildIn(ctx context.Context, req v1.BuildRequest) ([]v1.StatementResult, error) {
	var reply v1.StatementReply
	err := c.call(ctx, http.MethodPost, "/v1/indexes:build", nil, req, &reply)
	return reply.Results, err
}

// Status returns the state of the cluster.
func (c *Client) Status(ctx context.Context) (v1.Status, error) {
	var s v1.Status
	return s, c.call(ctx, http.MethodGet, "/v1/status", nil, nil, &s)
}

// call sends a request, with one Idempotency-Key, to one server after another until one answers.
func (c *Client) call(ctx context.Context, method, path string, header http.Header, req, resp any) error {
	var body []byte
	if req != nil {
		var err error
		if body, err = json.Marshal(req); err != nil {
			return fmt.Errorf("encoding %T: %w", req, err)
		}
	}
	if header == nil {
		header = http.Header{}
	}
	if method != http.MethodGet && header.Get("Idempotency-Key") == "" {
		header.Set("Idempotency-Key", newKey())
	}
	q := operation{op: method, of: path}
	return c.retry(ctx, q, limitOf(method, path), func(ctx context.Context, server string) error {
		answer, err := c.send(ctx, method, server+path, header, body)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return c.read(answer, resp)
	})
}

// read decodes a JSON answer into resp, unless that is nil. An answer that is not JSON is an ErrAnswer.
func (c *Client) read(answer *http.Response, resp any) error {
	b, err := rpc.ReadAnswer(answer, c.largest)
	switch {
	case errors.Is(err, rpc.ErrTooLarge):
		return fmt.Errorf("%w: %w", ErrAnswer, err)
	case err != nil || resp == nil:
		return err
	}
	if err := json.Unmarshal(b, resp); err != nil {
		return fmt.Errorf("%w of %s to %s %s: %w", ErrAnswer, answer.Request.URL.Host, answer.Request.Method,
			answer.Request.URL.Path, err)
	}
	return nil
}

// limitOf returns how long a call waits for one server.
func limitOf(method, target string) time.Duration {
	path, _, _ := strings.Cut(target, "?")
	return v1.TimeoutOf(method, path) + answerMargin
}

// operation describes a call for the text of its errors.
type operation struct{ op, of, consistency string }

// contextError returns the error of a call whose context has ended: what it waited for, the last server and its error.
// If that server had not answered yet, or was not reachable, before is the last error received until then (nil for
// none).
func (q operation) contextError(ctx context.Context, server string, last, before error) error {
	what := q.op + " " + q.of
	if q.consistency != "" {
		what += " with consistency " + q.consistency
	}
	var err error = &ended{fmt.Sprintf("%v: %v while waiting for %s", ErrUnavailable, ctx.Err(), what), ctx.Err()}
	if isAnswer(last) || isAnswer(before) { // more informative than the end of the context
		err = &ended{fmt.Sprintf("%v while waiting for %s", ErrUnavailable, what), ctx.Err()}
	}
	switch {
	case !ownEnd(ctx, last):
		err = fmt.Errorf("%w; the last attempt was at %s: %w", err, server, last)
		if isAnswer(last) || !isAnswer(before) {
			return err
		}
	case before == nil && errors.Is(last, ErrUnreached):
		return fmt.Errorf("%w; the last attempt was at %s: %w", err, server, ErrUnreached)
	case before == nil:
		return fmt.Errorf("%w; the last attempt was at %s, which had not answered yet", err, server)
	default:
		err = fmt.Errorf("%w; the last attempt was at %s, which had not answered yet", err, server)
	}
	return fmt.Errorf("%w; before that: %w", err, before)
}

// ended is the error of a call whose context has ended.
type ended struct {
	text string
	by   error
}

func (e *ended) Error() string   { return e.text }
func (e *ended) Unwrap() []error { return []error{ErrUnavailable, e.by} }

// isAnswer reports whether an error is a server's answer, in contrast to an unreachable server.
func isAnswer(err error) bool { return errors.As(err, new(*wire.Problem)) }

// ownEnd reports whether an error is the end of the caller's own context, which means nothing about the server.
func ownEnd(ctx context.Context, err error) bool {
	return err == nil || errors.Is(err, net.ErrClosed) || ctx.Err() != nil && errors.Is(err, ctx.Err())
}

// retry calls do with one server after another until it succeeds or fails permanently. Each attempt has the limit, 0
// for none, and is abandoned early if the server is silent while others answer.
func (c *Client) retry(ctx context.Context, q operation, limit time.Duration,
	do func(ctx context.Context, server string) error) error {
	if c.bad != nil {
		return c.bad
	}
	backoff := firstBackoff
	var before error
	ends, reach := c.retryLimitOf(ctx, q), c.reach()
	for attempt := 0; ; attempt++ {
		at := c.next.Load()
		server := c.servers[int(at)%len(c.servers)]
		err := c.try(reach.attempt(ctx), server, limit, do)
		if err == nil {
			c.reached.Store(true)
			return nil
		}
		err, hopeless := reach.failed(server, err)
		switch {
		case hopeless, isLasting(err), errors.Is(err, ErrAnswer), errors.Is(err, errRetryLimit):
			return err
		case ctx.Err() != nil:
			return q.contextError(ctx, server, err, before)
		case ends.over():
			return fmt.Errorf("%w: %s %s was repeated for %v, and its context has no deadline; the last attempt was at "+
				"%s: %w", ErrUnavailable, q.op, q.of, c.retryFor, server, err)
		}
		before = moreInformative(before, err)
		c.waits(err)
		c.next.CompareAndSwap(at, at+1)
		if attempt%len(c.servers) == len(c.servers)-1 && !pause(ctx, &backoff) { // every server was tried
			return q.contextError(ctx, server, err, before)
		}
	}
}

// moreInformative returns the more informative error: the newest one, unless only the one before is a server's answer.
func moreInformative(before, err error) error {
	if isAnswer(before) && !isAnswer(err) {
		return before
	}
	return err
}

// isLasting reports whether an error is a server's answer that would be the same later.
func isLasting(err error) bool {
	var p *wire.Problem
	return errors.As(err, &p) && !p.Temporary()
}

// waits reports to Client.Waiting why another attempt follows.
func (c *Client) waits(why error) {
	if c.Waiting != nil {
		c.Waiting(why)
	}
}

// pause waits, and doubles the next pause. It returns false if the context ended first.
func pause(ctx context.Context, backoff *time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(*backoff):
	}
	*backoff = min(2**backoff, maxBackoff)
	return true
}

// try calls do with one server until the limit, or until the server is silent while others answer.
func (c *Client) try(ctx context.Context, server string, limit time.Duration,
	do func(ctx context.Context, server string) error) error {
	one, cancel := context.WithCancel(ctx) // without a limit the answer may be read after do has returned
	if limit > 0 {
		one, cancel = context.WithTimeout(ctx, limit)
	}
	var wait detector.Wait
	c.alive.Begin(&wait, server, func() []string { return c.servers }, cancel)
	err := do(one, server)
	if wait.End() && (err != nil || limit == 0) { // the rest of an answer will not come
		err = errors.Join(fmt.Errorf("%s: %w", server, detector.ErrSilent), err)
	}
	if limit > 0 || err != nil {
		cancel()
	}
	return err
}

// retryLimit bounds the retries of a call without a deadline.
type retryLimit struct {
	limit time.Duration // 0: forever
	until time.Time     // zero: not refused yet
}

// retryLimitOf returns the limit of a scan or count without a deadline, and the zero value for any other call.
func (c *Client) retryLimitOf(ctx context.Context, q operation) (r retryLimit) {
	_, has := ctx.Deadline()
	if !has && c.retryFor > 0 && (q.op == scanport.Scan || strings.HasSuffix(q.of, ":"+scanport.Count)) {
		r.limit = c.retryFor
	}
	return r
}

// over records a refusal, and reports whether it is the last one.
func (r *retryLimit) over() bool {
	if r.limit == 0 {
		return false
	}
	now := time.Now()
	if r.until.IsZero() {
		r.until = now.Add(r.limit)
	}
	return !now.Before(r.until)
}

// send sends every request of the client, with credentials; a body is JSON unless the header has another content type.
func (c *Client) send(ctx context.Context, method, url string, header http.Header, body []byte) (*http.Response,
	error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	for k, v := range header {
		r.Header[k] = v
	}
	if len(body) > 0 && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", rpc.MediaJSON)
	}
	switch {
	case c.token != "":
		r.Header.Set("Authorization", "Bearer "+c.token)
	case c.user != "":
		r.SetBasicAuth(c.user, c.password)
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.Header.Set("Tidemark-Timeout-Ms", strconv.FormatInt(time.Until(deadline).Milliseconds(), 10))
	}
	r.Header.Set("Prefer", "wait=0") // a server without a leader must not wait: the others are tried, and then it again
	rpc.Outgoing(r)
	answer, err := c.rpc.HTTP().Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 300 {
		defer answer.Body.Close()
		return nil, rpc.ReadProblem(answer)
	}
	return answer, nil
}

// query returns the query part of a URL.
func query(q url.Values) string {
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

func newKey() string { return rand.Text() }

func formatUint(u uint64) string { return strconv.FormatUint(u, 10) }
