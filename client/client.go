// Package client is the Go client for users: DDL, listings, scans with tokens.
//
// It promises that a write is sent with an Idempotency-Key and tried again, on any of the servers, until it has an
// answer or the context ends, so that it is done once; that nobody is asked again where no server is trusted; that an
// error answer is a *wire.Problem with its code; and that a scan that was cut is never mistaken for one that came to
// its end. What it takes and returns is of package v1 (tidemark/manager/api/v1).
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

// DefaultServer is where the first manager of `tidemark up` listens.
const DefaultServer = "http://127.0.0.1:9520"

const (
	// A server is waited for as long as it may take (v1.TimeoutOf), and so much longer for its answer to come, before
	// another one is tried; the Idempotency-Key makes that safe for writes. Who falls silent meanwhile is noticed by
	// probes.
	onItsWay     = 2 * time.Second
	scanPatience = v1.ScanTimeout + onItsWay // for the first rows of a scan: few may meet its conditions
	verifyLimit  = 60 * time.Second          // for how long a verification is asked for again that cannot begin
	// defaultRetryFor is that of Options.RetryFor: as long as Couchbase's SDKs take for a query.
	defaultRetryFor = 75 * time.Second
	firstBackoff    = 20 * time.Millisecond
	mostBackoff     = 500 * time.Millisecond
	maxAnswer       = 64 << 20
)

var (
	// ErrUnavailable is wrapped when no server gave an answer before the context ended, or soon enough.
	ErrUnavailable = errors.New("no answer in time")
	// ErrServer is wrapped when a server's address cannot be one.
	ErrServer = errors.New("bad server address")
	// ErrAnswer is wrapped when what answers is no manager of this product.
	ErrAnswer = errors.New("unexpected answer")
)

// Client speaks to the managers of one cluster. It is safe for use by several goroutines.
type Client struct {
	// Waiting, when it is set before the first call, is told why an attempt failed that is made again.
	Waiting func(err error)

	servers []string
	rpc     *rpc.Client
	direct  *direct            // nil: scans go by way of the managers
	alive   *detector.Detector // of the servers
	probes  *rpc.Client

	session *Session // that its scans are in; nil: each for itself
	buckets bucketsOf
	refused time.Duration // Options.RetryFor
	// unreached is Options.ReachFor, reached whether a server has taken a connection.
	unreached time.Duration
	reached   atomic.Bool

	user, password, token string // never in an error's text

	enough time.Duration // verifyLimit, but for tests

	bad  error         // of the servers
	next atomic.Uint32 // server that answered last
}

// Options say which cluster a client speaks to, and who it is.
type Options struct {
	// Servers are base URLs or host:port; none means DefaultServer.
	Servers []string
	// TLS is for servers that speak it: the CAs, and a certificate of one's own if there is one. With it, a server
	// without a scheme is https.
	TLS *tls.Config
	// User and Password, or Token: with neither the client is nobody, or who its certificate says.
	User, Password, Token string
	// ViaManagers sends scans and counts by way of the managers, as curl does. Otherwise they go straight to the indexers
	// as long as that works: their scan ports have to be reachable from here.
	ViaManagers bool
	// Session is what scans and counts are in, together with other clients that have the same; nil: the client has one of
	// its own.
	Session *Session
	// RetryFor is for how long a scan or a count whose context has no deadline is asked for again while it is refused
	// for a reason that may pass (TIMEOUT, BUSY, UNAVAILABLE), or nobody can be reached; 0: 75 s, below 0: for ever.
	// One that an indexer is at work on is waited for, as long as indexers may be (10 minutes).
	RetryFor time.Duration
	// ReachFor is for how long the servers are tried when none of them takes a connection, nor ever has one of this
	// client; 0: until the context ends.
	ReachFor time.Duration
	// Sessionless has each scan take what is at hand, whatever was seen before.
	Sessionless bool
}

// New makes a client that presents no credentials. Servers are base URLs or host:port; none means DefaultServer.
func New(servers ...string) *Client { return Open(Options{Servers: servers}) }

// Open makes a client.
func Open(o Options) *Client {
	c := &Client{rpc: rpc.NewClient(64, o.TLS), probes: rpc.NewClient(probesAtOnce, o.TLS), user: o.User,
		password: o.Password, token: o.Token, enough: verifyLimit, refused: cmp.Or(o.RetryFor, defaultRetryFor),
		unreached: o.ReachFor}
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

// servers are the addresses of managers, whole and each once. The error is of one that cannot be used.
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
		return fmt.Errorf("%w: %w; an IPv6 address stands in brackets, as [::1]:9520", ErrServer, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrServer, err)
	}
	if u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%w: %q: want host:port or a URL that begins with http:// or https://", ErrServer, server)
	}
	return nil
}

// Wrap puts a transport around the client's own, before its first call: to watch or count what is sent.
func (c *Client) Wrap(around func(http.RoundTripper) http.RoundTripper) { c.rpc.Wrap(around) }

// Close drops idle connections.
func (c *Client) Close() {
	if c.direct != nil {
		c.direct.close()
	}
	c.alive.Close()
	c.probes.Close()
	c.rpc.Close()
}

// Statement runs DDL text: one or more statements separated by semicolons.
func (c *Client) Statement(ctx context.Context, text string) ([]v1.StatementResult, error) {
	var reply v1.StatementReply
	if err := c.call(ctx, http.MethodPost, statements, nil, v1.StatementRequest{Statement: text}, &reply); err != nil {
		return nil, err
	}
	return reply.Results, nil
}

// Where statements go.
const (
	statements = "/v1/statements"
	rehearsals = statements + "?dry_run=true"
)

// Rehearse returns what DDL statements would do, without doing it: the checks are the same, and places are chosen by
// the present load. An error is the refusal of the first that would be refused.
func (c *Client) Rehearse(ctx context.Context, text string) ([]v1.StatementResult, error) {
	var reply v1.StatementReply
	err := c.call(ctx, http.MethodPost, rehearsals, nil, v1.StatementRequest{Statement: text}, &reply)
	if err == nil && !reply.DryRun {
		err = fmt.Errorf("%w: the manager knows no dry run: the statements WERE done; is it of another version?", ErrAnswer)
	}
	return reply.Results, err
}

// Create creates an index.
func (c *Client) Create(ctx context.Context, req v1.CreateRequest) (v1.IndexInfo, error) {
	var info v1.IndexInfo
	return info, c.call(ctx, http.MethodPost, "/v1/indexes", nil, req, &info)
}

// pageOf is the query for the page behind a token, "" for the first one, of a bucket, "" for all.
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

// follows reports whether a page, the one behind after, is followed by another one.
func follows(after, next string) (bool, error) {
	if next != "" && next == after {
		return false, fmt.Errorf("%w: the page after %s says that it is followed by itself", ErrAnswer, after)
	}
	return next != "", nil
}

// Indexes lists the indexes of a bucket, or all when bucket is "", by id, page by page until there is no more. CAS is
// that of the first page: what was there then, and until now, is in the list.
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

// Ref addresses an index by bucket and name, for the methods that take one; an id is its decimal text.
func Ref(bucket, name string) string { return url.PathEscape(bucket) + "/" + url.PathEscape(name) }

// Index describes one index; ref is an id or a Ref.
func (c *Client) Index(ctx context.Context, ref string) (v1.IndexInfo, error) {
	var info v1.IndexInfo
	return info, c.call(ctx, http.MethodGet, "/v1/indexes/"+ref, nil, nil, &info)
}

// Drop drops an index; ref is an id or a Ref. ifMatch is the modified_cas that the index must have, 0 for any.
func (c *Client) Drop(ctx context.Context, ref string, ifMatch uint64) error {
	header := http.Header{}
	if ifMatch != 0 {
		header.Set("If-Match", `"`+formatUint(ifMatch)+`"`)
	}
	return c.call(ctx, http.MethodDelete, "/v1/indexes/"+ref, header, nil, nil)
}

// Change changes an index; ref is an id or a Ref. ifMatch is the modified_cas that the index must have, 0 for any.
func (c *Client) Change(ctx context.Context, ref string, req v1.PatchRequest, ifMatch uint64) (v1.IndexInfo, error) {
	header := http.Header{}
	if ifMatch != 0 {
		header.Set("If-Match", `"`+formatUint(ifMatch)+`"`)
	}
	var info v1.IndexInfo
	return info, c.call(ctx, http.MethodPatch, "/v1/indexes/"+ref, header, req, &info)
}

// Build starts the builds of deferred indexes on a bucket's default collection.
func (c *Client) Build(ctx context.Context, bucket string, names ...string) ([]v1.StatementResult, error) {
	return c.BuildIn(ctx, v1.BuildRequest{Bucket: bucket, Names: names})
}

// BuildIn starts the builds of deferred indexes.
func (c *Client) BuildIn(ctx context.Context, req v1.BuildRequest) ([]v1.StatementResult, error) {
	var reply v1.StatementReply
	err := c.call(ctx, http.MethodPost, "/v1/indexes:build", nil, req, &reply)
	return reply.Results, err
}

// Status tells what there is.
func (c *Client) Status(ctx context.Context) (v1.Status, error) {
	var s v1.Status
	return s, c.call(ctx, http.MethodGet, "/v1/status", nil, nil, &s)
}

// call sends one request, the same one with the same Idempotency-Key, to one server after another until one answers.
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
	q := question{op: method, of: path}
	return c.retry(ctx, q, limitOf(method, path), func(ctx context.Context, server string) error {
		answer, err := c.send(ctx, method, server+path, header, body)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return read(answer, resp)
	})
}

// read reads an answer in JSON; resp is nil where nobody wants it. One that is none is ErrAnswer.
func read(answer *http.Response, resp any) error {
	b, err := rpc.ReadAnswer(answer, maxAnswer)
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

// limitOf is for how long one server is waited for.
func limitOf(method, target string) time.Duration {
	path, _, _ := strings.Cut(target, "?")
	return v1.TimeoutOf(method, path) + onItsWay
}

// question is what an answer is waited for, for the error of who gives up.
type question struct{ op, of, consistency string }

// gaveUp returns the error of a wait that the context has ended: what was waited for, which server was asked last and
// what came from it. When it had not answered yet, or was not there, before is what had been answered until then (nil
// for nothing).
func (q question) gaveUp(ctx context.Context, server string, last, before error) error {
	what := q.op + " " + q.of
	if q.consistency != "" {
		what += " with consistency " + q.consistency
	}
	var err error = &ended{fmt.Sprintf("%v: %v while waiting for %s", ErrUnavailable, ctx.Err(), what), ctx.Err()}
	if isAnswer(last) || isAnswer(before) { // it says more than the end of the context does
		err = &ended{fmt.Sprintf("%v while waiting for %s", ErrUnavailable, what), ctx.Err()}
	}
	switch {
	case !ownEnd(ctx, last):
		err = fmt.Errorf("%w; %s was asked last: %w", err, server, last)
		if isAnswer(last) || !isAnswer(before) {
			return err
		}
	case before == nil && errors.Is(last, ErrUnreached):
		return fmt.Errorf("%w; %s was asked: %w", err, server, ErrUnreached)
	case before == nil:
		return fmt.Errorf("%w; %s was asked and had not answered yet", err, server)
	default:
		err = fmt.Errorf("%w; %s was asked and had not answered yet", err, server)
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

// isAnswer reports whether an error is what a server said, and not that one could not be reached.
func isAnswer(err error) bool { return errors.As(err, new(*wire.Problem)) }

// ownEnd reports whether an error is the end of the caller's own context, which says nothing of the server.
func ownEnd(ctx context.Context, err error) bool {
	return err == nil || errors.Is(err, net.ErrClosed) || ctx.Err() != nil && errors.Is(err, ctx.Err())
}

// retry calls ask with one server after another until it succeeds or fails for good. Each has limit, 0 for no limit,
// and the next one is asked at once when it is silent while others answer.
func (c *Client) retry(ctx context.Context, q question, limit time.Duration,
	ask func(ctx context.Context, server string) error) error {
	if c.bad != nil {
		return c.bad
	}
	backoff := firstBackoff
	var before error
	ends, reach := c.endOf(ctx, q), c.reach()
	for attempt := 0; ; attempt++ {
		at := c.next.Load()
		server := c.servers[int(at)%len(c.servers)]
		err := c.try(reach.attempt(ctx), server, limit, ask)
		if err == nil {
			c.reached.Store(true)
			return nil
		}
		err, hopeless := reach.failed(server, err)
		switch {
		case hopeless, isLasting(err), errors.Is(err, ErrAnswer), errors.Is(err, errEnough):
			return err
		case ctx.Err() != nil:
			return q.gaveUp(ctx, server, err, before)
		case ends.over():
			return fmt.Errorf("%w: %s %s was asked for again for %v, and its context has no deadline; %s was asked "+
				"last: %w", ErrUnavailable, q.op, q.of, c.refused, server, err)
		}
		before = telling(before, err)
		c.waits(err)
		c.next.CompareAndSwap(at, at+1)
		if attempt%len(c.servers) == len(c.servers)-1 && !pause(ctx, &backoff) { // all have been asked
			return q.gaveUp(ctx, server, err, before)
		}
	}
}

// telling returns what says more: the newest error, unless only the one before is a server's word.
func telling(before, err error) error {
	if isAnswer(before) && !isAnswer(err) {
		return before
	}
	return err
}

// isLasting reports whether an error is what a server said, and it would say the same later.
func isLasting(err error) bool {
	var p *wire.Problem
	return errors.As(err, &p) && !p.Temporary()
}

// waits tells whoever wants to know why the next server is asked.
func (c *Client) waits(why error) {
	if c.Waiting != nil {
		c.Waiting(why)
	}
}

// pause waits, and makes the next pause longer. It is false when the context ends before.
func pause(ctx context.Context, backoff *time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(*backoff):
	}
	*backoff = min(2**backoff, mostBackoff)
	return true
}

// try calls ask with one server until the limit, or until it is silent while others answer.
func (c *Client) try(ctx context.Context, server string, limit time.Duration,
	ask func(ctx context.Context, server string) error) error {
	one, cancel := context.WithCancel(ctx) // without a limit an answer may be read later
	if limit > 0 {
		one, cancel = context.WithTimeout(ctx, limit)
	}
	var wait detector.Wait
	c.alive.Begin(&wait, server, func() []string { return c.servers }, cancel)
	err := ask(one, server)
	if wait.End() && (err != nil || limit == 0) { // what is left of an answer will not come
		err = errors.Join(fmt.Errorf("%s: %w", server, detector.ErrSilent), err)
	}
	if limit > 0 || err != nil {
		cancel()
	}
	return err
}

// refusals says until when a question is asked again that has no deadline of its own.
type refusals struct {
	patience time.Duration // 0: for ever
	until    time.Time     // zero: it was not refused yet
}

// endOf is the zero one for what has a deadline, and for what is no scan or count.
func (c *Client) endOf(ctx context.Context, q question) (r refusals) {
	_, has := ctx.Deadline()
	if !has && c.refused > 0 && (q.op == scanport.Scan || strings.HasSuffix(q.of, ":"+scanport.Count)) {
		r.patience = c.refused
	}
	return r
}

// over notes a refusal, the first one or another, and reports whether it is the last.
func (r *refusals) over() bool {
	if r.patience == 0 {
		return false
	}
	now := time.Now()
	if r.until.IsZero() {
		r.until = now.Add(r.patience)
	}
	return !now.Before(r.until)
}

// send is the one place that makes a request: each has the credentials, and JSON for a body unless its header says
// otherwise.
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
	r.Header.Set("Prefer", "wait=0") // a server without a leader need not wait for one: others are asked, and it again
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

// query is the text behind a path.
func query(q url.Values) string {
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

func newKey() string { return rand.Text() }

func formatUint(u uint64) string { return strconv.FormatUint(u, 10) }
