// Package restmap learns a bucket's map from the cluster managers of a Couchbase cluster, by their REST interface: for
// clusters that are named by them, and engines that show no map themselves.
//
// It promises that a manager which hangs holds nobody up: the next is asked beside it; that of the maps that come, in
// whatever order, the newest counts; that a document, a silence and a wait have limits; and that user and password go
// to nobody but the hosts that were named, or, inside TLS with certificates that are checked, that a map names:
// redirects are not followed.
//
// It decides nothing about documents, and never asks for more than the map.
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
	// DefaultSilence is how long a stream may bring nothing before it is begun anew, which shows the present map.
	DefaultSilence = 30 * time.Second
	// hedge is how long a manager is waited for before the next is asked beside it.
	hedge = 200 * time.Millisecond
	// maxManagers bounds those that are asked beside the ones that were named.
	maxManagers = 64
	// firstPause and maxPause are between attempts: doubling, each drawn from the upper half.
	firstPause = 20 * time.Millisecond
	maxPause   = 5 * time.Second
	maxHeaders = 64 << 10
	// maxRefusal is how much of a refusal is shown.
	maxRefusal = 200
	// freshPatience is how long Current waits for a newer map where it has one.
	freshPatience = 500 * time.Millisecond
)

// endOfDocument is between the documents of a stream.
var endOfDocument = []byte("\n\n\n\n")

// ErrAnswer means that a manager answers what is no map; the message says what.
var ErrAnswer = errors.New("the cluster manager's answer is no bucket map")

// Options of a Source.
type Options struct {
	// Managers are addresses, host:port; with TLS they speak HTTPS. Managers that a map names are asked, too: those of
	// other hosts only where certificates say who they are, as they are told the password.
	Managers []string
	// Pinned asks no other managers, though the map names some.
	Pinned bool
	Bucket string
	User   string
	// Password is asked for each request, so that a new one counts; nil: there is none.
	Password func() (string, error)
	TLS      *tls.Config
	// ReadTLS, unless nil, gives it instead of TLS, which says that there is some, and whether managers are verified: for
	// each connection.
	ReadTLS func() (*tls.Config, error)
	// Network says whose addresses of other managers count; empty finds out.
	Network string
	// Timeout and Silence are DefaultTimeout and DefaultSilence when 0.
	Timeout, Silence time.Duration
	// Dialed is told how each attempt to connect has ended, of several at the same time; nil: nobody is.
	Dialed func(addr string, err error)
	Logger hclog.Logger
}

// Answer is a map, and the manager that showed it, whose host stands for what does not know its own name.
type Answer struct {
	Config  *mcbp.ClusterConfig
	Manager string // host:port
}

// Host is the manager's.
func (a Answer) Host() string { return hostOf(a.Manager) }

// Network is whose addresses of the map count: the one wanted, or that in which the manager is.
func (a Answer) Network(wanted string) string { return cmp.Or(wanted, a.Config.NetworkOf(a.Manager)) }

// Node is the address, host:port, of the memcached protocol at the manager's own node. Error: mcbp.ErrConfig.
func (a Answer) Node(network string, tls bool) (string, error) {
	n := a.Config.ThisNode()
	if n < 0 {
		return "", fmt.Errorf("%w: the manager %s does not say that its own node serves bucket %q: name the manager of a "+
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
	changed chan struct{} // closed and replaced when newest is another
	taken   uint64        // how many have been the newest one
	turn    int           // which manager is asked first
	live    int           // streams that say whenever there is a newer one
}

// New makes one, which asks nobody yet.
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
				ctx, cancel := context.WithTimeout(ctx, opt.Timeout) // the request's own end does not reach it
				defer cancel()
				conf, err := opt.TLS, error(nil)
				if opt.ReadTLS != nil {
					if conf, err = opt.ReadTLS(); err != nil {
						return nil, err
					}
				}
				conn, err := dial(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				secure, err := kvclient.HandshakeTLS(ctx, conn, addr, conf)
				if err != nil {
					_ = conn.Close()
					return nil, err
				}
				return secure, nil
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Newest is the newest map that has come; false when none has.
func (s *Source) Newest() (Answer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest, s.newest.Config != nil
}

// Changed is closed when there is a newer map than now.
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

// Current is the newest map: as the stream shows it (Run), else as a manager says, never an older one than was known.
// Where one is known, those that hang are not waited for long. Errors as those of Ask.
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
		return newest, nil //nolint:nilerr // nobody says that there is another one
	}
	if err == nil {
		a, _ = s.Newest()
	}
	return a, err
}

// turns is how many maps have been the newest one.
func (s *Source) turns() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// streams notes how many more show what is new: a bucket that is opened anew has two for a moment.
func (s *Source) streams(more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live += more
}

// outcome is what came of a question.
type outcome struct {
	Answer
	err error
}

// first asks the managers, the next when one has refused or has said nothing for a moment, until one has answered. The
// others are given up. ask may send two outcomes; it has returned when first does.
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

// refusals makes one error of several. While a manager says that it cannot answer now, what others refuse for good is
// told in words alone: one that is no member any more knows neither users nor buckets.
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

// managers are those that may be asked, and with which one to begin.
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

// Trusts reports whether a manager that a map names may be told the password: it proves who it is, or its host is one
// that was named.
func (o Options) Trusts(addr string) bool {
	return o.TLS != nil && !o.TLS.InsecureSkipVerify ||
		slices.ContainsFunc(o.Managers, func(named string) bool { return sameHost(hostOf(named), hostOf(addr)) })
}

// sameHost compares names, or addresses however they are written.
func sameHost(a, b string) bool {
	x, xerr := netip.ParseAddr(a)
	y, yerr := netip.ParseAddr(b)
	if xerr == nil && yerr == nil {
		return x.Unmap() == y.Unmap()
	}
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}

// hostOf is the host of host:port.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

// take reads a document and keeps it if it is newer. since is turns, from before the manager was asked.
func (s *Source) take(raw []byte, manager string, since uint64) outcome {
	config, err := mcbp.ParseClusterConfig(raw)
	if err != nil {
		return outcome{err: fmt.Errorf("cluster manager %s: %w", manager, err)}
	}
	if config.Name != "" && config.Name != s.opt.Bucket {
		return outcome{err: fmt.Errorf("%w: cluster manager %s shows bucket %q, asked for %q", ErrAnswer, manager,
			config.Name, s.opt.Bucket)}
	}
	a := Answer{config, manager}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Where one manager is asked, another bucket of the name is what there is now, though its revisions begin anew, as in
	// a cluster that was made again: unless the answer is to a question from before another one came.
	if config.Newer(s.newest.Config) || s.opt.Pinned && config.UUID != s.newest.Config.UUID && since == s.taken {
		s.newest = a
		s.taken++
		close(s.changed)
		s.changed = make(chan struct{})
	}
	return outcome{Answer: a}
}

// get asks a manager for a form of the map: b, or bs for the stream.
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

// Run keeps a stream of maps open to one of the managers, so that each new one is heard of at once, until ctx ends.
func (s *Source) Run(ctx context.Context) {
	pause := firstPause / 2
	for ctx.Err() == nil {
		lasted, err := s.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		pause = pauseAfter(pause, lasted)
		s.opt.Logger.Debug("the stream of maps has ended, and is begun anew", "bucket", s.opt.Bucket, "error", err,
			"pause", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}

// pauseAfter is the pause behind a stream that has shown maps for so long, after one that came before it: a manager
// that shows a map and ends, again and again, is asked ever less.
func pauseAfter(before, lasted time.Duration) time.Duration {
	if lasted >= maxPause {
		return firstPause
	}
	return min(2*before, maxPause)
}

// stream takes maps from the manager that shows one first, until it says nothing more. lasted is from the first one on.
func (s *Source) stream(ctx context.Context) (lasted time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	ended := make(chan error, 1) // of the one that has shown a map first
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
					givenUp() // it is not: it outlives the question
				})
				first <- o
			})
			if winner {
				ended <- err
				return
			}
			first <- outcome{err: err} // it may have shown a map after another one had
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

// follow reads one manager's stream. shown is told of the first document.
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
			continue // a sign of life
		}
		if ctx.Err() != nil { // what was read before may be older than what another one has brought since
			return ctx.Err()
		}
		o := s.take(in.Bytes(), manager, s.turns()) // in the order in which they were made
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
		err = fmt.Errorf("%w: it has more than %d bytes, the most that are read of a map", mcbp.ErrConfig,
			mcbp.MaxConfigBytes)
	}
	return fmt.Errorf("cluster manager %s: the stream of maps: %w", manager, err)
}

// documents splits a stream; it is a bufio.SplitFunc. What is behind the last end is whole only if the stream is.
func documents(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.Index(data, endOfDocument); i >= 0 {
		return i + len(endOfDocument), data[:i], nil
	}
	if atEOF {
		return len(data), nil, nil
	}
	return 0, nil, nil
}
