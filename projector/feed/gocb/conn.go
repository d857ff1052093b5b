package gocb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
	"golang.org/x/sync/errgroup"

	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/restmap"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// Limits and intervals.
const (
	// maxAgentBuffer bounds gocbcore's part of the flow-control window: gocbcore acknowledges what it has delivered, and
	// its queue is a 24th of this size.
	maxAgentBuffer = 2 << 20
	// readBufferBytes is the size of gocbcore's read buffer; its default is 20 MiB for each connection.
	readBufferBytes = 64 << 10
	// maxWaiting bounds the events in the block that Next has not returned yet.
	maxWaiting = 16 << 10
	// mapAge is how long a cluster map is used to decide which node owns a vbucket.
	mapAge = time.Second
	// lookInterval is how often a waiting request is checked for answers that gocbcore does not pass on.
	lookInterval = 50 * time.Millisecond
	// dialPause is the time between two attempts to connect within Config.RequestTimeout.
	dialPause = 100 * time.Millisecond
	// settleTime is how long a new agent may take to adopt the node's map, agentsTried how many agents may fail to.
	settleTime  = 3 * time.Second
	agentsTried = 2
)

// Conn is a feed.Feed on a gocbcore agent: see the package comment.
type Conn struct {
	conf     feed.Config
	agent    *gocbcore.DCPAgent
	control  *kvclient.Conn // for what the agent does not offer; when it ends, Conn ends
	loops    errgroup.Group
	window   int64         // bound of the bytes delivered and not released
	ready    chan struct{} // capacity 1: open is not empty, or the connection has ended
	done     chan struct{} // closed when err is set
	lastID   atomic.Uint32
	released func(int) // book; stored to avoid an allocation per block

	nodeMap nodeMap

	mu      sync.Mutex // leaf: the fields below
	room    sync.Cond  // held or open have shrunk, or the connection has ended
	open    *feed.Block
	held    int64
	streams map[uint16]*stream // open or requested
	closed  bool
	err     error
}

var _ feed.Feed = (*Conn)(nil)

// Dial is a feed.Dialer. Errors as feed.Dial's. In addition, a node that has no flow control, or whose certificate
// names it by its common name alone, is refused (feed.ErrNotSupported): gocbcore has no replacement for either.
func Dial(ctx context.Context, conf feed.Config) (feed.Feed, error) {
	conf, err := conf.Checked()
	if err != nil {
		return nil, err
	}
	// First, because its errors are more precise.
	control, err := kvclient.Dial(ctx, conf.Addr, kvclient.Options{
		User: conf.User, Password: conf.Password, Bucket: conf.Bucket, Name: conf.Name,
		Features: []mcbp.Feature{mcbp.FeatureCollections}, // otherwise seqnos are those of the default collection
		TLS:      conf.TLS, AllowPlain: conf.AllowPlain, DialTimeout: conf.RequestTimeout, OpTimeout: conf.DeadAfter,
		Logger: conf.Logger,
	})
	if err != nil {
		return nil, err
	}
	if checked(conf.TLS) && control.CommonNameOnly() {
		_ = control.Close()
		return nil, fmt.Errorf("%w: the certificate of %s names it by its common name alone, which gocbcore never accepts: "+
			"use the native feed, or give the node a certificate with subject alternative names",
			feed.ErrNotSupported, conf.Addr)
	}
	c := &Conn{
		conf: conf, control: control, window: int64(conf.BufferBytes - agentBuffer(conf)),
		ready: make(chan struct{}, 1), done: make(chan struct{}), nodeMap: newNodeMap(),
		streams: map[uint16]*stream{},
	}
	c.room.L = &c.mu
	c.released = c.book
	c.loops.Go(c.watch)
	ctx, cancel := context.WithTimeout(ctx, conf.RequestTimeout)
	defer cancel()
	for unsettled := 0; ; {
		err := c.connect(ctx)
		if err == nil {
			if unsettled == agentsTried || c.settled(ctx) {
				return c, nil
			}
			unsettled++
			c.closeAgent(c.agent) // before the next: KV closes the older of two connections of one name
			c.agent = nil
			continue
		}
		if errors.Is(err, feed.ErrNotSupported) || ctx.Err() != nil {
			_ = c.Close()
			return nil, err
		}
		// The map may have contained an address that was just left: the next map has another.
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
		}
	}
}

// settled waits until the agent has the node's map, and reports whether the agent is usable. gocbcore applies maps
// from several goroutines at once, above all while it connects: if an older map reaches its request router last, it
// stays there until the cluster makes another, and only a new agent helps.
func (c *Conn) settled(ctx context.Context) bool {
	for deadline := time.Now().Add(settleTime); time.Now().Before(deadline); {
		config, err := c.ClusterConfig(ctx)
		if err != nil || c.agentRev() == config.Rev { // if the node does not answer, owned checks again before each stream
			return true
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return true
		}
	}
	c.conf.Logger.Warn("gocbcore does not take the node's map: connecting once more", "kv", c.conf.Addr, "name",
		c.conf.Name, "gocbcore", c.agentRev())
	return false
}

// agentBuffer returns the agent's part of the window.
func agentBuffer(conf feed.Config) int { return min(conf.BufferBytes/2, maxAgentBuffer) }

// connect creates an agent and waits until it has a map and one connection. One is enough: other nodes of the cluster
// may be down, and are not needed.
func (c *Conn) connect(ctx context.Context) error {
	flags := memd.DcpOpenFlagProducer
	if c.conf.Xattrs {
		flags |= memd.DcpOpenFlagIncludeXattrs
	}
	agent, err := gocbcore.CreateDcpAgent(agentConfig(c.conf, c.control.Mechanism()), c.conf.Name, flags)
	if err != nil {
		return fmt.Errorf("%w: gocbcore refuses its configuration: %w", feed.ErrNotSupported, err)
	}
	err = c.await(ctx, "connecting", func(done func(error)) (gocbcore.PendingOp, error) {
		return agent.WaitUntilReady(time.Now().Add(c.conf.RequestTimeout), gocbcore.WaitUntilReadyOptions{
			DesiredState: gocbcore.ClusterStateDegraded, ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService},
		}, func(_ *gocbcore.WaitUntilReadyResult, err error) { done(err) })
	})
	if err == nil {
		c.agent = agent
		return nil
	}
	c.closeAgent(agent)
	if code, ok := statusOf(err); ok && code != mcbp.StatusTemporary {
		err = fmt.Errorf("%w: %w", feed.ErrNotSupported, err)
	}
	return fmt.Errorf("feed: gocbcore's DCP connection %q to %s: %w", c.conf.Name, c.conf.Addr, err)
}

// agentConfig overrides gocbcore's defaults that do not suit: PLAIN first, undecodable values dropped, large buffers.
// mechanism is the one that worked on the control connection.
func agentConfig(conf feed.Config, mechanism string) *gocbcore.DCPAgentConfig {
	who := credentials{user: conf.User, password: conf.Password, tls: conf.TLS, managers: conf.Managers}
	if mechanism == "" {
		who.user, who.password = "", "" // the certificate was enough
	}
	security := gocbcore.SecurityConfig{
		Auth: who,
		AuthMechanisms: []gocbcore.AuthMechanism{gocbcore.ScramSha512AuthMechanism, gocbcore.ScramSha256AuthMechanism,
			gocbcore.ScramSha1AuthMechanism},
	}
	switch {
	case checked(conf.TLS) && mechanism == string(gocbcore.PlainAuthMechanism):
		security.AuthMechanisms = []gocbcore.AuthMechanism{gocbcore.PlainAuthMechanism} // it tries no other after a refusal
	case conf.TLS != nil || conf.AllowPlain:
		security.AuthMechanisms = append(security.AuthMechanisms, gocbcore.PlainAuthMechanism)
	}
	if conf.TLS != nil {
		security.UseTLS = true
		security.TLSRootCAProvider = func() *x509.CertPool { return roots(conf.TLS) }
	}
	return &gocbcore.DCPAgentConfig{
		UserAgent: conf.Name, BucketName: conf.Bucket,
		SeedConfig:         gocbcore.SeedConfig{MemdAddrs: []string{conf.Addr}, HTTPAddrs: conf.Managers},
		SecurityConfig:     security,
		CompressionConfig:  gocbcore.CompressionConfig{Enabled: true, DisableDecompression: true},
		IoConfig:           gocbcore.IoConfig{UseCollections: true, NetworkType: conf.Network},
		KVConfig:           gocbcore.KVConfig{ConnectTimeout: conf.RequestTimeout, ConnectionBufferSize: readBufferBytes},
		DCPConfig:          gocbcore.DCPConfig{BufferSize: agentBuffer(conf)},
		EnableCCCPPoller:   true, // it also polls the managers, if there are any
		ConfigPollerConfig: gocbcore.ConfigPollerConfig{CccpPollPeriod: mapAge, CccpMaxWait: mapAge},
	}
}

// checked reports whether connections use TLS with verified certificates.
func checked(conf *tls.Config) bool { return conf != nil && !conf.InsecureSkipVerify }

// roots returns the certificates that gocbcore verifies against; nil disables verification.
func roots(conf *tls.Config) *x509.CertPool {
	if conf.InsecureSkipVerify {
		return nil
	}
	if conf.RootCAs != nil {
		return conf.RootCAs
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // accepts no certificate
	}
	return pool
}

// credentials provides gocbcore with user, password and certificate.
type credentials struct {
	user, password string
	tls            *tls.Config
	managers       []string // as configured
}

func (c credentials) SupportsTLS() bool    { return c.tls != nil }
func (c credentials) SupportsNonTLS() bool { return c.tls == nil }

func (c credentials) Certificate(gocbcore.AuthCertRequest) (*tls.Certificate, error) {
	switch {
	case c.tls == nil:
		return nil, nil //nolint:nilnil // none, as gocbcore wants it
	case c.tls.GetClientCertificate != nil:
		return c.tls.GetClientCertificate(&tls.CertificateRequestInfo{Version: tls.VersionTLS12})
	case len(c.tls.Certificates) > 0:
		return &c.tls.Certificates[0], nil
	}
	return nil, nil //nolint:nilnil // as above
}

func (c credentials) Credentials(r gocbcore.AuthCredsRequest) ([]gocbcore.UserPassPair, error) {
	if r.Service != gocbcore.MemdService && !c.trusts(r.Endpoint) {
		// gocbcore queries all managers in a map; this one refuses, and it queries the next
		return []gocbcore.UserPassPair{{}}, nil
	}
	return []gocbcore.UserPassPair{{Username: c.user, Password: c.password}}, nil
}

// trusts reports whether a cluster manager, http[s]://host:port, may get the password: managers are configured, and it
// is one of them or proves its identity.
func (c credentials) trusts(endpoint string) bool {
	at, err := url.Parse(endpoint)
	return err == nil && len(c.managers) > 0 && restmap.Options{Managers: c.managers, TLS: c.tls}.Trusts(at.Host)
}

// await runs one of gocbcore's asynchronous calls with RequestTimeout. A call that gocbcore would retry forever at
// the wrong node ends with feed.ErrNotMyVBucket.
func (c *Conn) await(ctx context.Context, what string, start func(done func(error)) (gocbcore.PendingOp, error)) error {
	answer := make(chan error, 1)
	var once sync.Once
	op, err := start(func(err error) { once.Do(func() { answer <- err }) })
	if err != nil {
		return err
	}
	timeout := time.NewTimer(c.conf.RequestTimeout)
	defer timeout.Stop()
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for err == nil {
		select {
		case err := <-answer:
			return err
		case <-ctx.Done():
			err = fmt.Errorf("feed: %s: %w", what, context.Cause(ctx))
		case <-c.done:
			err = c.Err()
		case <-timeout.C:
			err = fmt.Errorf("%w: %s at %s, %v", feed.ErrTimeout, what, c.conf.Addr, c.conf.RequestTimeout)
		case <-look.C:
			if rejected(op) {
				err = fmt.Errorf("%w: %s: %s has refused it", feed.ErrNotMyVBucket, what, c.conf.Addr)
			}
		}
	}
	op.Cancel()
	select {
	case late := <-answer:
		if late == nil || !errors.Is(late, gocbcore.ErrRequestCanceled) {
			return late // it completed after all
		}
	default:
	}
	return err
}

// rejected reports whether an operation waits because a node does not own its vbucket.
func rejected(op gocbcore.PendingOp) bool {
	r, ok := op.(interface {
		RetryReasons() []gocbcore.RetryReason
	})
	if !ok {
		return false
	}
	for _, reason := range r.RetryReasons() {
		if reason == gocbcore.RetryReason(gocbcore.KVNotMyVBucketRetryReason) {
			return true
		}
	}
	return false
}

// watch ends the connection when the node does not answer for Config.DeadAfter, or closes the control connection.
// gocbcore uses a noop interval of three minutes and silently reopens connections, so the control connection is
// probed instead.
func (c *Conn) watch() error {
	tick := time.NewTicker(c.conf.NoopInterval)
	defer tick.Stop()
	for {
		select {
		case <-c.done:
			return nil
		case <-c.control.Done():
			c.fail(fmt.Errorf("%w: %s: %w", feed.ErrClosed, c.conf.Addr, c.control.Err()))
			return nil
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), c.conf.DeadAfter)
		_, err := c.control.Do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpNoop, 0, 0)})
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			c.fail(fmt.Errorf("%w: %s answers no noop within %v", feed.ErrDead, c.conf.Addr, c.conf.DeadAfter))
		}
	}
}

// Addr returns the node's address, as dialled.
func (c *Conn) Addr() string { return c.conf.Addr }

// Held returns how many bytes gocbcore has delivered and no one has released yet. What waits within gocbcore, at most
// its part of the window, is not included.
func (c *Conn) Held() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// Done is closed when the connection has ended. Blocks may still be queued.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended; nil while it is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail ends the connection once. It does not block: gocbcore's own goroutines call it.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	c.room.Broadcast()
}

// Close ends the connection and waits for its goroutines. Blocks not yet taken are dropped.
func (c *Conn) Close() error {
	c.fail(feed.ErrClosed) // releases gocbcore's callbacks, which the agent's Close waits for
	c.mu.Lock()
	first := !c.closed
	c.closed, c.open = true, nil
	c.mu.Unlock()
	if first {
		if c.agent != nil {
			c.closeAgent(c.agent)
		}
		_ = c.control.Close()
	}
	_ = c.loops.Wait() // its errors are what fail recorded
	return nil
}

// closeAgent closes an agent, and abandons it if that takes longer than Config.DeadAfter: an agent is known to
// deadlock after a node that it was connected to has left the cluster.
func (c *Conn) closeAgent(agent io.Closer) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = agent.Close()
	}()
	timer := time.NewTimer(c.conf.DeadAfter)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		c.conf.Logger.Error("gocbcore does not close its connections; they are left behind", "kv", c.conf.Addr, "name",
			c.conf.Name)
	}
}

// Next returns the next block: see feed.Feed.
func (c *Conn) Next(ctx context.Context) (*feed.Block, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, feed.ErrClosed
		}
		if b := c.open; b != nil {
			c.open = nil
			c.room.Broadcast()
			c.mu.Unlock()
			return b, nil
		}
		err := c.err
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-c.ready:
		case <-c.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// book subtracts released bytes and wakes gocbcore's callbacks.
func (c *Conn) book(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held -= int64(bytes)
	c.room.Broadcast()
}

// add queues an event; bytes is what the node counts for it. Events with documents wait for room, which keeps
// gocbcore from acknowledging more. Blocking gocbcore's goroutine is safe: the node sends at most the agent's window
// ahead, and gocbcore's queue holds that much, so noops and answers still pass.
func (c *Conn) add(s *stream, e feed.Event, bytes int, wait bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for wait && c.err == nil && !s.abandoned && (c.held >= c.window || c.open != nil && len(c.open.Events) >= maxWaiting) {
		c.room.Wait()
	}
	if c.err != nil || s.abandoned {
		return
	}
	if c.open == nil {
		c.open = feed.NewBlock(c.released)
	}
	e.VBucket, e.Stream = s.vbucket, s.id
	c.open.Add(e, bytes)
	c.held += int64(bytes)
	select {
	case c.ready <- struct{}{}:
	default:
	}
}
