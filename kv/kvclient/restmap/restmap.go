// Package restmap fetches a bucket's map from the cluster managers of a Couchbase cluster, by their REST interface:
// for clusters that are addressed by them, and engines that do not return a map themselves.
//
// Guarantees: a hanging manager does not block callers, because the next one is asked in parallel; of the maps
// received, in any order, the newest counts; documents, silences and waits are bounded; user and password are sent
// only to the configured hosts or, inside TLS with verified certificates, to those in a map: redirects are not
// followed.
//
// The package makes no decisions about documents, and requests nothing but the map.
package restmap

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// Limits and times.
const (
	// DefaultTimeout bounds the wait for a manager's answer.
	DefaultTimeout = 5 * time.Second
	// DefaultSilence is how long a stream may be silent before it is restarted, which returns the current map.
	DefaultSilence = 30 * time.Second
	// hedge is how long to wait for a manager before the next one is asked in parallel.
	hedge = 200 * time.Millisecond
	// maxManagers bounds the managers that are asked, including those from maps.
	maxManagers = 64
	// firstPause and maxPause are pauses between attempts: they double, and each is drawn at random from the upper half.
	firstPause = 20 * time.Millisecond
	maxPause   = 5 * time.Second
	maxHeaders = 64 << 10
	// maxRefusal bounds the part of a refusal in an error message.
	maxRefusal = 200
	// freshPatience is how long Current waits for a newer map if it has one.
	freshPatience = 500 * time.Millisecond
)

// endOfDocument separates the documents of a stream.
var endOfDocument = []byte("\n\n\n\n")

// ErrAnswer is wrapped if a manager's answer is not a map; the message has the reason.
var ErrAnswer = errors.New("the cluster manager's answer is not a bucket map")

// Options of a Source.
type Options struct {
	// Managers are addresses, host:port; with TLS they use HTTPS. Managers in a map are asked, too: those on other hosts
	// only if certificates verify their identity, since they receive the password.
	Managers []string
	// Pinned disables asking other managers, even if the map has some.
	Pinned bool
	Bucket string
	User   string
	// Password is called for each request, so that a new password takes effect; nil: there is none.
	Password func() (string, error)
	TLS      *tls.Config
	// ReadTLS, if not nil, returns the TLS configuration for each connection instead of TLS, which still decides
	// whether TLS is used and whether managers are verified.
	ReadTLS func() (*tls.Config, error)
	// Network is the network of the addresses of other managers; if empty it is determined from the map.
	Network string
	// Timeout and Silence are DefaultTimeout and DefaultSilence if 0.
	Timeout, Silence time.Duration
	// Dialed is called with the result of each attempt to connect, possibly concurrently; it may be nil.
	Dialed func(addr string, err error)
	Logger hclog.Logger
}

// Answer is a map, and the manager that returned it. The manager's host replaces missing host names in the map.
type Answer struct {
	Config  *mcbp.ClusterConfig
	Manager string // host:port
}

// Host returns the manager's host.
func (a Answer) Host() string { return hostOf(a.Manager) }

// Network returns the network of the addresses to use: the wanted one, or that of the manager.
func (a Answer) Network(wanted string) string { return cmp.Or(wanted, a.Config.NetworkOf(a.Manager)) }

// Node returns the address, host:port, of the memcached protocol on the manager's own node. Error: mcbp.ErrConfig.
func (a Answer) Node(network string, tls bool) (string, error) {
	n := a.Config.ThisNode()
	if n < 0 {
		return "", fmt.Errorf("%w: according to the manager %s its own node does not serve bucket %q: name the manager of a "+
			"node of the Data Service", mcbp.ErrConfig, a.Manager, a.Config.Name)
	}
	addr, err := a.Config.KVAddrIn(a.Network(network), n, a.Host(), tls)
	if err != nil {
		return "", fmt.Errorf("by the manager %s: %w", a.Manager, err)
	}
	return addr, nil
}

// Source asks the managers of a cluster for the map of one bucket.
type Source struct {
	opt    Options
	client *http.Client

	mu      sync.Mutex
	newest  Answer
	changed chan struct{} // closed and replaced when newest changes
	taken   uint64        // how often newest has changed
	turn    int           // index of the manager that is asked first
	live    int           // open streams that report every newer map
}

// New returns a Source, which makes no requests yet.
func New(opt Options) *Source {
	opt.Timeout, opt.Silence = cmp.Or(opt.Timeout, DefaultTimeout), cmp.Or(opt.Silence, DefaultSilence)
	if opt.Logger == nil {
		opt.Logger = hclog.NewNullLogger()
	}
	dialer := &net.Dialer{Timeout: opt.Timeout}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, addr)
		if opt.Dialed != nil {
			opt.Dialed(addr, err)
		}
		return conn, err
	}
	return &Source{opt: opt, changed: make(chan struct{}), client: &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeaders, DialContext: dial,
			DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, opt.Timeout) // the cancellation of the request does not reach it
				defer cancel()
				conf, err := opt.TLS, error(nil)
				if opt.ReadTLS != nil {
					if conf, err = opt.ReadTLS(); err != nil {
						return nil, err
					}
				}
				return kvclient.DialTLS(ctx, dial, network, addr, conf)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Newest returns the newest map received; ok is false if there is none.
func (s *Source) Newest() (Answer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest, s.newest.Config != nil
}

// Changed returns a channel that is closed when a newer map has been received.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Ask fetches the map. Errors: kvclient.ErrAuth, kvclient.ErrNoBucket, ErrAnswer, mcbp.ErrConfig, and those of the
// network.
func (s *Source) Ask(ctx context.Context) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.Timeout)
	defer cancel()
	return s.first(ctx, func(ctx context.Context, manager string, first chan<- outcome) {
		since := s.turns()
		body, err := s.get(ctx, manager, "b")
		if err != nil {
			first <- outcome{err: err}
			return
		}
		defer body.Close()
		raw, err := io.ReadAll(io.LimitReader(body, mcbp.MaxConfigBytes+1))
		if err != nil {
			first <- outcome{err: fmt.Errorf("cluster manager %s: %w", manager, err)}
			return
		}
		first <- s.take(raw, manager, since)
	})
}

// Current returns the newest map: from the stream (Run), else from a manager, but never an older one than known. If
// one is known, it waits only briefly for hanging managers. Errors are those of Ask.
func (s *Source) Current(ctx context.Context) (Answer, error) {
	s.mu.Lock()
	newest, live := s.newest, s.live
	s.mu.Unlock()
	if live > 0 {
		return newest, nil
	}
	if newest.Config == nil {
		return s.Ask(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, freshPatience)
	defer cancel()
	a, err := s.Ask(ctx)
	if err != nil && !errors.Is(err, kvclient.ErrNoBucket) && !errors.Is(err, kvclient.ErrAuth) {
		return newest, nil //nolint:nilerr // no manager reports a newer one
	}
	if err == nil {
		a, _ = s.Newest()
	}
	return a, err
}

// turns returns how often the newest map has changed.
func (s *Source) turns() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// streams adds to the number of open streams: a bucket that is being reopened has two for a moment.
func (s *Source) streams(more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live += more
}

// outcome is the result of a request.
type outcome struct {
	Answer
	err error
}

// first asks the managers until one has answered: the next one when one has failed or has not answered for a moment.
// The other requests are cancelled. ask may send two outcomes; all calls of it have returned when first does.
func (s *Source) first(ctx context.Context, ask func(ctx context.Context, manager string,
	first chan<- outcome)) (Answer, error) {
	managers, turn := s.managers()
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan outcome, 2*len(managers)) // room for all
	timer := time.NewTimer(0)
	defer timer.Stop()
	var errs []error
	for asked := 0; len(errs) < len(managers); {
		select {
		case o := <-outcomes:
			if o.err == nil {
				return o.Answer, nil
			}
			errs = append(errs, o.err)
			timer.Reset(0)
		case <-timer.C:
			if asked < len(managers) {
				manager := managers[(turn+asked)%len(managers)]
				asked++
				asking.Go(func() { ask(ctx, manager, outcomes) })
				timer.Reset(hedge)
			}
		case <-ctx.Done():
			return Answer{}, fmt.Errorf("cluster managers %s: %w", strings.Join(managers, ", "),
				refusals(append(errs, context.Cause(ctx))))
		}
	}
	return Answer{}, refusals(errs)
}

// refusals joins errors. While a manager reports a temporary failure, permanent failures of others are included only
// as text, since a manager that was removed from the cluster has neither users nor buckets.
func refusals(errs []error) error {
	if slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, kvclient.ErrTemporary) }) {
		errs = slices.Clone(errs)
		for i, err := range errs {
			if !errors.Is(err, kvclient.ErrTemporary) {
				errs[i] = errors.New(err.Error())
			}
		}
	}
	return errors.Join(errs...)
}

// managers returns the managers that may be asked, and the index of the first one.
func (s *Source) managers() (all []string, turn int) {
	s.mu.Lock()
	newest := s.newest
	turn = s.turn
	s.turn++
	s.mu.Unlock()
	all = slices.Clone(s.opt.Managers)
	if s.opt.Pinned || newest.Config == nil {
		return all, turn
	}
	network := newest.Network(s.opt.Network)
	for n := range newest.Config.NumNodes() {
		addr, err := newest.Config.ManagerAddrIn(network, n, newest.Host(), s.opt.TLS != nil)
		if err == nil && !slices.Contains(all, addr) && len(all) < maxManagers && s.opt.Trusts(addr) {
			all = append(all, addr)
		}
	}
	return all, turn
}

// Trusts reports whether a manager in a map may receive the password: a certificate verifies its identity, or its
// host is a configured one.
func (o Options) Trusts(addr string) bool {
	return o.TLS != nil && !o.TLS.InsecureSkipVerify ||
		slices.ContainsFunc(o.Managers, func(named string) bool { return sameHost(hostOf(named), hostOf(addr)) })
}

// sameHost compares host names, or addresses in any notation.
func sameHost(a, b string) bool {
	x, xerr := netip.ParseAddr(a)
	y, yerr := netip.ParseAddr(b)
	if xerr == nil && yerr == nil {
		return x.Unmap() == y.Unmap()
	}
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}

// hostOf returns the host of host:port.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

// take decodes a document and keeps it if it is newer. since is the result of turns before the manager was asked.
func (s *Source) take(raw []byte, manager string, since uint64) outcome {
	config, err := mcbp.ParseClusterConfig(raw)
	if err != nil {
		return outcome{err: fmt.Errorf("cluster manager %s: %w", manager, err)}
	}
	if config.Name != "" && config.Name != s.opt.Bucket {
		return outcome{err: fmt.Errorf("%w: cluster manager %s returned bucket %q instead of %q", ErrAnswer, manager,
			config.Name, s.opt.Bucket)}
	}
	a := Answer{config, manager}
	s.mu.Lock()
	defer s.mu.Unlock()
	// If a single manager is asked, another bucket with the name is the current one, although its revisions start again,
	// as in a re-created cluster: unless the request is older than the newest map.
	if config.Newer(s.newest.Config) || s.opt.Pinned && config.UUID != s.newest.Config.UUID && since == s.taken {
		s.newest = a
		s.taken++
		close(s.changed)
		s.changed = make(chan struct{})
	}
	return outcome{Answer: a}
}

// get requests a form of the map from a manager: b, or bs for the stream.
func (s *Source) get(ctx context.Context, manager, form string) (io.ReadCloser, error) {
	at := url.URL{Scheme: "http", Host: manager, Path: "/pools/default/" + form + "/" + s.opt.Bucket,
		RawPath: "/pools/default/" + form + "/" + url.PathEscape(s.opt.Bucket)}
	if s.opt.TLS != nil {
		at.Scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	if s.opt.User != "" {
		password := ""
		if s.opt.Password != nil {
			if password, err = s.opt.Password(); err != nil {
				return nil, fmt.Errorf("%w: %w", kvclient.ErrAuth, err)
			}
		}
		req.SetBasicAuth(s.opt.User, password)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cluster manager %s: %w", manager, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	kind := ErrAnswer
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		kind = kvclient.ErrAuth
	case http.StatusNotFound:
		kind = kvclient.ErrNoBucket
	case http.StatusServiceUnavailable, http.StatusInternalServerError, http.StatusTooManyRequests:
		kind = kvclient.ErrTemporary
	}
	return nil, fmt.Errorf("%w: cluster manager %s answers %d %s: %q (user %q, bucket %q)", kind, manager,
		resp.StatusCode, http.StatusText(resp.StatusCode), bytes.TrimSpace(said), s.opt.User, s.opt.Bucket)
}

// Run keeps a stream of maps open to one of the managers, so that new maps are received at once, until ctx ends.
func (s *Source) Run(ctx context.Context) {
	pause := firstPause / 2
	for ctx.Err() == nil {
		lasted, err := s.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		pause = pauseAfter(pause, lasted)
		s.opt.Logger.Debug("stream of maps has ended; starting it again", "bucket", s.opt.Bucket, "error", err,
			"pause", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}

// pauseAfter returns the pause after a stream that has lasted for the given time, with the previous pause as input: a
// manager whose streams keep ending is asked less and less often.
func pauseAfter(before, lasted time.Duration) time.Duration {
	if lasted >= maxPause {
		return firstPause
	}
	return min(2*before, maxPause)
}

// stream reads maps from the first manager that returns one, until its stream ends. lasted is the time since the
// first map.
func (s *Source) stream(ctx context.Context) (lasted time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	ended := make(chan error, 1) // result of the first stream that returned a map
	var won sync.Once
	wait, enough := context.WithTimeout(ctx, s.opt.Timeout)
	defer enough()
	_, err = s.first(wait, func(stop context.Context, manager string, first chan<- outcome) {
		mine, end := context.WithCancel(ctx)
		givenUp := context.AfterFunc(stop, end)
		readers.Go(func() {
			defer end()
			winner := false
			err := s.follow(mine, end, manager, func(o outcome) {
				won.Do(func() {
					winner = true
					givenUp() // cancel no more: this stream outlives the request
				})
				first <- o
			})
			if winner {
				ended <- err
				return
			}
			first <- outcome{err: err} // it may have returned a map after another stream
		})
	})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	s.streams(1)
	defer s.streams(-1)
	err = <-ended
	return time.Since(began), err
}

// follow reads one manager's stream. It calls shown for the first document.
func (s *Source) follow(ctx context.Context, end context.CancelFunc, manager string, shown func(outcome)) error {
	silence := time.AfterFunc(s.opt.Timeout, end)
	defer silence.Stop()
	body, err := s.get(ctx, manager, "bs")
	if err != nil {
		return err
	}
	defer body.Close()
	in := bufio.NewScanner(body)
	in.Buffer(nil, mcbp.MaxConfigBytes+len(endOfDocument))
	in.Split(documents)
	for first := true; in.Scan(); {
		silence.Reset(s.opt.Silence)
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue // a keep-alive
		}
		if ctx.Err() != nil { // what was read before may be older than what another stream has delivered since
			return ctx.Err()
		}
		o := s.take(in.Bytes(), manager, s.turns()) // in the order in which they were sent
		if o.err != nil {
			return o.err
		}
		if first {
			first = false
			shown(o)
		}
	}
	err = cmp.Or(in.Err(), io.EOF)
	if errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("%w: it has more than %d bytes, the limit of a map", mcbp.ErrConfig,
			mcbp.MaxConfigBytes)
	}
	return fmt.Errorf("cluster manager %s: the stream of maps: %w", manager, err)
}

// documents is a bufio.SplitFunc for a stream. It drops an incomplete last document.
func documents(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.Index(data, endOfDocument); i >= 0 {
		return i + len(endOfDocument), data[:i], nil
	}
	if atEOF {
		return len(data), nil, nil
	}
	return 0, nil, nil
}
