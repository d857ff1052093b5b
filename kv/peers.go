package kv

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

const (
	// peerTimeout bounds one request to another node, leavingTimeout one to a node that leaves the cluster, which may
	// hang.
	peerTimeout    = 3 * time.Second
	leavingTimeout = 500 * time.Millisecond
	// peerMaxBytes bounds an answer: the copies of all vbuckets of clustermap.MaxBuckets, with long failover logs.
	peerMaxBytes = 64 << 20
)

// Paths of the cluster's admin interface.
const (
	pathCluster   = "/v1/cluster"
	pathMap       = "/v1/cluster/map"
	pathSeal      = "/v1/cluster/seal"
	pathFailover  = "/v1/cluster/failover"
	pathRebalance = "/v1/cluster/rebalance"
	pathPause     = "/v1/cluster/replication"
	pathPromise   = "/v1/cluster/promise"
	pathFlush     = "/v1/cluster/flush"
	pathFlushAll  = "/v1/cluster/flush/all"
)

// ErrRefused means that a node refused a request; the message gives the reason.
var ErrRefused = errors.New("refused")

// pushRequest sends a map to another node. Sealed: bucket → vbucket → seqno.
type pushRequest struct {
	Map    clustermap.Map `json:"map"`
	Sealed sealed         `json:"sealed,omitempty"`
}

// sealRequest makes a node refuse writes to vbuckets for a while; with Milliseconds 0 it accepts them again.
type sealRequest struct {
	Bucket       string   `json:"bucket"`
	VBuckets     []uint16 `json:"vbuckets"`
	Milliseconds int64    `json:"milliseconds"`
}

// promiseRequest requests that a node promise an epoch to Maker (clustermap.Promise), and none to any other node for
// Milliseconds; with 0 Maker takes the promise back. The answer is the node's map.
type promiseRequest struct {
	Epoch        int64  `json:"epoch"`
	Maker        string `json:"maker"`
	Milliseconds int64  `json:"milliseconds"`
}

// sealAnswer holds the high seqnos in the order of the request.
type sealAnswer struct {
	Highs []uint64 `json:"highs"`
}

// problem is the body of a refusal.
type problem struct {
	Detail string `json:"detail"`
	Code   string `json:"code"`
	// Leader is the admin address of the node that has to be asked.
	Leader string `json:"leader,omitempty"`
}

const (
	codeSealBroken = "SEAL_BROKEN"
	codeOlder      = "OLDER_MAP"
	codeNotLeader  = "NOT_LEADER"
	codeRefused    = "REFUSED"
)

// NotLeaderError names the node that makes the revisions of the map.
type NotLeaderError struct {
	Leader string // admin address
}

func (e *NotLeaderError) Error() string { return "another node leads the cluster: ask " + e.Leader }

// Is makes errors.Is(err, ErrRefused) true.
func (e *NotLeaderError) Is(target error) bool { return target == ErrRefused }

// Errors for a wrong scheme of the admin interface; the message states what to do.
var (
	// ErrNeedsTLS means that a node's admin port requires TLS, and the request came without.
	ErrNeedsTLS = errors.New("the KV node's admin port requires TLS")
	// ErrNoTLS means that a node's admin port does not support TLS, and the request used it.
	ErrNoTLS = errors.New("the KV node's admin port has no TLS")
)

// Remote calls the admin interface of KV nodes, as their user.
type Remote struct {
	User, Password string
	HTTP           *http.Client
	// TLS reports whether the nodes' admin ports are HTTPS; HTTP must then trust their CA.
	TLS bool
}

// NewRemote returns a Remote that keeps no idle connections and waits for each answer up to timeout. With a TLS
// configuration it uses HTTPS.
func NewRemote(user, password string, timeout time.Duration, conf *tls.Config) Remote {
	return Remote{User: user, Password: password, TLS: conf != nil, HTTP: &http.Client{
		Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: conf},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // nodes send none
	}}
}

// peers calls the other nodes.
type peers struct {
	Remote
	// orders is for requests that another node carries out, which may take operationTimeout there.
	orders Remote
}

func newPeers(config Config) *peers {
	conf := config.TLS.Client(tlsconf.HTTP, tlsconf.KV)
	return &peers{NewRemote(config.User, config.Password, peerTimeout, conf),
		NewRemote(config.User, config.Password, adminCallTimeout, conf)}
}

type peerAnswer struct {
	id    string // node id
	value clustermap.Map
	err   error
}

// each calls all nodes concurrently; the answers are in the order of nodes.
func (p *peers) each(ctx context.Context, nodes []clustermap.Node,
	call func(context.Context, clustermap.Node) (clustermap.Map, error)) []peerAnswer {
	out := make([]peerAnswer, len(nodes))
	var all sync.WaitGroup
	for i, node := range nodes {
		all.Go(func() {
			value, err := call(ctx, node)
			out[i] = peerAnswer{node.ID, value, err}
		})
	}
	all.Wait()
	return out
}

// newerMap returns a node's map if it is newer than have, otherwise an empty one.
func (p *peers) newerMap(ctx context.Context, node clustermap.Node, have clustermap.Map) (m clustermap.Map, err error) {
	q := url.Values{"rev_epoch": {strconv.FormatInt(have.RevEpoch, 10)}, "rev": {strconv.FormatInt(have.Rev, 10)}}
	return m, p.Call(ctx, node.Admin, http.MethodGet, pathMap+"?"+q.Encode(), nil, &m)
}

func (p *peers) push(ctx context.Context, node clustermap.Node, m clustermap.Map, expect sealed) error {
	return p.Call(ctx, node.Admin, http.MethodPost, pathMap, pushRequest{Map: m, Sealed: expect}, nil)
}

func (p *peers) promise(ctx context.Context, node clustermap.Node, r promiseRequest) (m clustermap.Map, err error) {
	return m, p.Call(ctx, node.Admin, http.MethodPost, pathPromise, r, &m)
}

func (p *peers) seal(ctx context.Context, node clustermap.Node, r sealRequest) (highs []uint64, err error) {
	var a sealAnswer
	if err := p.Call(ctx, node.Admin, http.MethodPost, pathSeal, r, &a); err != nil {
		return nil, err
	}
	if r.Milliseconds > 0 && len(a.Highs) != len(r.VBuckets) {
		return nil, fmt.Errorf("%s: %d seqnos for %d vbuckets", node.Admin, len(a.Highs), len(r.VBuckets))
	}
	return a.Highs, nil
}

// Call sends a request to a node's admin address (host:port) and reads its answer. Errors: ErrNeedsTLS, ErrNoTLS,
// ErrRefused, *NotLeaderError, store.ErrSealBroken, and those of the network.
func (r Remote) Call(ctx context.Context, admin, method, path string, body, answer any) error {
	var in io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url(admin, path), in)
	if err != nil {
		return err
	}
	if r.Password != "" { // otherwise the request is anonymous, or authenticated by a certificate
		req.SetBasicAuth(r.User, r.Password)
	}
	resp, err := r.HTTP.Do(req)
	if errors.Is(err, http.ErrSchemeMismatch) {
		return fmt.Errorf("%w, but the request used TLS: %s: either all nodes have --tls-ca, --tls-cert and --tls-key, or "+
			"none; "+
			"commands must omit --tls-ca, or put http:// before the address", ErrNoTLS, admin)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := rpc.ReadAnswer(resp, peerMaxBytes)
	switch {
	case errors.Is(err, rpc.ErrTooLarge):
		return err
	case err != nil: // the answer began but was not complete
		return &url.Error{Op: method, URL: req.URL.String(), Err: err}
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return refusal(admin, resp.StatusCode, raw)
	}
	if answer == nil || len(raw) == 0 {
		return nil
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fmt.Errorf("%s%s: %w", admin, path, err)
	}
	return nil
}

// url returns the URL of a path on a node.
func (r Remote) url(admin, path string) string {
	// The node listens on all interfaces and has no name of its own: use this machine.
	if port, is := strings.CutPrefix(admin, mcbp.HostPlaceholder); is {
		admin = "127.0.0.1" + port
	}
	if r.TLS {
		return tlsconf.BaseURL("https", admin) + path
	}
	return tlsconf.BaseURL("http", admin) + path
}

// refusal returns the error for an answer. A node without the path or method has not examined the request: it is an
// older node, or not one of ours. The same holds for a node that failed or was overloaded.
func refusal(admin string, status int, raw []byte) error {
	var p problem
	if bytes.Contains(raw, []byte("HTTP request to an HTTPS server")) { // net/http's own answer
		return fmt.Errorf("%w, but the request did not use it: %s: either all nodes have --tls-ca, --tls-cert and "+
			"--tls-key, or none; commands must give its CA (--tls-ca)", ErrNeedsTLS, admin)
	}
	if json.Unmarshal(raw, &p) != nil || p.Detail == "" {
		return fmt.Errorf("%s: %d %s: %.200s", admin, status, http.StatusText(status), bytes.TrimSpace(raw))
	}
	switch p.Code {
	case codeNotLeader:
		return &NotLeaderError{Leader: p.Leader}
	case codeSealBroken:
		return fmt.Errorf("%w: %s", store.ErrSealBroken, p.Detail)
	case codeOlder:
		return fmt.Errorf("%w: %s", errOlder, p.Detail)
	}
	if err := refusalOf(p.Code, p.Detail); err != nil {
		return err
	}
	switch {
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return fmt.Errorf("%s does not support the request, because it has another version: %s", admin, p.Detail)
	case status >= http.StatusInternalServerError:
		return fmt.Errorf("%s: %d %s: %s", admin, status, http.StatusText(status), p.Detail)
	}
	return fmt.Errorf("%w by %s: %s", ErrRefused, admin, p.Detail)
}

// refusalCodes maps errors to the codes by which other nodes distinguish them.
var refusalCodes = []struct {
	code string
	err  error
}{
	{"NO_SCOPE", clustermap.ErrNoScope}, {"NO_COLLECTION", clustermap.ErrNoCollection},
	{"COLLECTION_EXISTS", clustermap.ErrNameExists}, {"COLLECTIONS", clustermap.ErrCollections},
	{"NO_USER", clustermap.ErrNoUser}, {"NO_GROUP", clustermap.ErrNoGroup}, {"USER", access.ErrAccess},
	{"NO_BUCKET", clustermap.ErrNoBucket}, {"BUCKET_EXISTS", clustermap.ErrBucketExists},
	{"TOO_MANY_BUCKETS", clustermap.ErrTooManyBuckets}, {"REBALANCING", clustermap.ErrRebalancing},
	{"BUCKETS", clustermap.ErrBuckets}, {"NO_MEMBER", clustermap.ErrNoMember}, {"WARMING_UP", errWarming},
}

// codeOf returns the code of a refusal.
func codeOf(err error) string {
	for _, c := range refusalCodes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return codeRefused
}

// refusalOf is the inverse of codeOf.
func refusalOf(code, detail string) error {
	for _, c := range refusalCodes {
		if code == c.code {
			return &refusedError{kind: c.err, detail: detail}
		}
	}
	return nil
}

// refusedError is a refusal of another node with its text.
type refusedError struct {
	kind   error
	detail string
}

func (e *refusedError) Error() string { return e.detail }
func (e *refusedError) Is(target error) bool {
	return errors.Is(e.kind, target) || target == ErrRefused
}
