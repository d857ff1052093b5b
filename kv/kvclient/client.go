package kvclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"tidemark/kv/mcbp"
)

// Back-off between attempts: it doubles from the first to the largest, and each is drawn at random from the upper
// half, so that many clients do not return at the same time.
const (
	firstBackoff = 5 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
)

// maxSecondOpinions bounds how many more nodes are asked for a collection after one has reported that it does not
// exist.
const maxSecondOpinions = 4

// Client routes document operations to the nodes of a cluster by the bucket map. It keeps one pipelined connection
// per node and follows changes of the map. Operations are retried after NOT_MY_VBUCKET, temporary failures and lost
// connections until they succeed, fail permanently, or their context ends.
type Client struct {
	opt    Options
	seeds  []string
	prefix []byte // of keys: the id of the collection

	life context.Context // ends with Close: a dial outlives the caller that started it
	end  context.CancelFunc

	mu      sync.Mutex // guards the fields below; only a Conn's own lock is taken while it is held
	config  *mcbp.ClusterConfig
	via     string // host from which config was received, for $HOST
	network string // network of the addresses to use; determined from the first map
	nodes   map[string]*node
	closed  bool
	refresh int // index of the known node that is asked next for the map
}

// node is the connection slot of one node. Callers that need a new connection share one attempt to dial, including
// its failure: if they dialled one after the other while the node hangs, the last of many would wait for as many
// timeouts.
type node struct {
	conn    *Conn    // guarded by Client.mu
	dialing *attempt // in progress; guarded by Client.mu
}

// attempt is one attempt to dial a node. conn and err are valid once done is closed.
type attempt struct {
	done chan struct{}
	conn *Conn
	err  error
}

// Connect finds the cluster through any of the seeds (host:port of memcached), or Options.Maps, and fetches the map.
// It retries all seeds until one answers, ctx ends, or every seed fails permanently (ErrAuth, ErrNoBucket).
func Connect(ctx context.Context, seeds []string, opt Options) (*Client, error) {
	if len(seeds) == 0 && opt.Maps == nil {
		return nil, fmt.Errorf("%w: no address given", ErrNoMap)
	}
	opt = opt.withDefaults()
	opt.Features = append([]mcbp.Feature{mcbp.FeatureMutationToken, mcbp.FeatureXattr}, opt.Features...)
	if opt.Collection != "" {
		opt.Features = append(opt.Features, mcbp.FeatureCollections)
	}
	c := &Client{opt: opt, seeds: seeds, nodes: map[string]*node{}}
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
	retry := backoff{}
	var reason error // of the last attempt that ended before ctx did
	for {
		err := c.Refresh(ctx)
		if err == nil {
			err = c.findCollection(ctx)
		}
		if err == nil {
			return c, nil
		}
		if final(err) {
			_ = c.Close()
			return nil, err
		}
		if ctx.Err() != nil {
			_ = c.Close()
			if reason == nil {
				reason = err
			}
			return nil, fmt.Errorf("%w (%w)", context.Cause(ctx), reason)
		}
		reason = err
		opt.Logger.Debug("no cluster map yet", "error", err)
		if werr := retry.wait(ctx); werr != nil {
			_ = c.Close()
			return nil, fmt.Errorf("%w (%w)", werr, err)
		}
	}
}

// findCollection finds the id of the configured collection. It asks the nodes one after the other until one has it,
// since a node without it may be behind the others. After the first such node it asks only a few more.
func (c *Client) findCollection(ctx context.Context) (err error) {
	if c.opt.Collection == "" {
		return nil
	}
	var none error
	more := maxSecondOpinions
	for _, addr := range c.known() {
		if none != nil {
			if more--; more < 0 {
				break
			}
		}
		var id uint32
		if id, err = c.collectionAt(ctx, addr); err == nil {
			c.prefix = mcbp.AppendCollectionKey(nil, id, nil)
			return nil
		}
		if none == nil && (errors.Is(err, ErrNoCollection) || errors.Is(err, ErrNotSupported)) {
			none = err
		}
	}
	return cmp.Or(none, err)
}

// collectionAt asks one node for the id of the collection.
func (c *Client) collectionAt(ctx context.Context, addr string) (uint32, error) {
	conn, err := c.conn(ctx, addr)
	if err != nil {
		return 0, err
	}
	if !conn.Granted(mcbp.FeatureCollections) {
		return 0, fmt.Errorf("%w: %s has no collections", ErrNotSupported, addr)
	}
	f, err := conn.Do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetCollectionID, 0, 0), Value: []byte(c.opt.Collection)})
	if err != nil {
		return 0, err
	}
	if err := NewStatusError(f); err != nil {
		return 0, fmt.Errorf("%s: collection %s: %w", addr, c.opt.Collection, err)
	}
	_, id, err := mcbp.DecodeCollectionID(f.Extras)
	return id, err
}

// wire returns a document's key in the form in which it is sent.
func (c *Client) wire(key string) []byte {
	return append(append(make([]byte, 0, len(c.prefix)+len(key)), c.prefix...), key...)
}

// Close closes all connections; operations in progress fail with ErrClosed.
func (c *Client) Close() error {
	c.end()
	c.mu.Lock()
	c.closed = true
	var conns []*Conn
	for _, n := range c.nodes {
		if n.conn != nil {
			conns = append(conns, n.conn)
		}
	}
	c.nodes = map[string]*node{}
	c.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
	return nil
}

// Config returns the newest map. It is shared: the caller must not modify it.
func (c *Client) Config() *mcbp.ClusterConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.config
}

// hedge is how long Refresh waits for a node before it asks the next one in parallel.
const hedge = 200 * time.Millisecond

// Refresh asks the nodes of the map and the seeds until one returns a map, and adopts it if it is newer. It asks the
// next node if one has failed, or has not answered for 200 ms, so that a hanging node does not block it.
func (c *Client) Refresh(ctx context.Context) error {
	addrs := c.known()
	if c.opt.Maps != nil {
		addrs = append(addrs, "") // Maps
	}
	c.mu.Lock()
	first := c.refresh
	c.refresh++
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		config *mcbp.ClusterConfig
		addr   string
		maps   bool
		err    error
	}
	answers := make(chan answer, len(addrs))
	asked, answered := 0, 0
	timer := time.NewTimer(hedge)
	defer timer.Stop()
	ask := func() {
		if asked < len(addrs) {
			addr := addrs[(first+asked)%len(addrs)]
			asked++
			go func() {
				var config *mcbp.ClusterConfig
				var err error
				by := addr
				if addr == "" {
					config, by, err = c.opt.Maps(ctx)
				} else {
					config, err = c.fetchConfig(ctx, addr)
				}
				answers <- answer{config, by, addr == "", err}
			}()
			timer.Reset(hedge)
		}
	}
	ask()
	var last, maps error
	for answered < len(addrs) {
		select {
		case a := <-answers:
			if a.err == nil {
				c.adopt(a.config, a.addr)
				return nil
			}
			answered++
			last = a.err
			if a.maps {
				maps = a.err
			}
			ask()
		case <-timer.C:
			ask()
		case <-ctx.Done():
			return fmt.Errorf("%w from %d nodes: %w", ErrNoMap, len(addrs), cmp.Or(last, context.Cause(ctx)))
		}
	}
	// If there are Maps, nodes need not have a map: their errors are not final.
	return fmt.Errorf("%w from %d nodes: %w", ErrNoMap, len(addrs), cmp.Or(maps, last))
}

// known returns the addresses that may have the map.
func (c *Client) known() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]bool{}
	var out []string
	add := func(a string) {
		if !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
	}
	if c.config != nil {
		for i := range c.config.NumNodes() {
			if a, err := c.config.KVAddrIn(c.network, i, c.via, c.opt.TLS != nil); err == nil {
				add(a)
			}
		}
	}
	for _, s := range c.seeds {
		add(s)
	}
	return out
}

// fetchConfig asks one node for the map.
func (c *Client) fetchConfig(ctx context.Context, addr string) (*mcbp.ClusterConfig, error) {
	conn, err := c.conn(ctx, addr)
	if err != nil {
		return nil, err
	}
	f, err := conn.Do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetClusterConfig, 0, 0)})
	if err != nil {
		return nil, err
	}
	if err := NewStatusError(f); err != nil {
		return nil, err
	}
	return mcbp.ParseClusterConfig(f.Value)
}

// adopt adopts a map if it is newer than the current one.
func (c *Client) adopt(config *mcbp.ClusterConfig, addr string) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if config.Newer(c.config) {
		if c.network = cmp.Or(c.network, c.opt.Network); c.network == "" {
			c.network = config.NetworkOf(addr)
		}
		c.config, c.via = config, host
	}
}

// conn returns the open connection to a node, dialling if there is none.
func (c *Client) conn(ctx context.Context, addr string) (*Conn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	n := c.nodes[addr]
	if n == nil {
		n = &node{}
		c.nodes[addr] = n
	}
	if n.conn != nil && n.conn.Err() == nil {
		defer c.mu.Unlock()
		return n.conn, nil
	}
	a := n.dialing
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		n.dialing = a
		go c.dial(addr, n, a)
	}
	c.mu.Unlock()
	select {
	case <-a.done:
		return a.conn, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// dial makes one attempt for all waiting callers, bounded by Options.DialTimeout.
func (c *Client) dial(addr string, n *node, a *attempt) {
	conn, err := Dial(c.life, addr, c.opt)
	if err == nil && c.opt.Collection != "" && !conn.Granted(mcbp.FeatureCollections) {
		// such a node would take the collection's id for the beginning of the key
		_ = conn.Close()
		conn, err = nil, fmt.Errorf("%w: %s has no collections", ErrNotSupported, addr)
	}
	c.mu.Lock()
	old := n.conn
	n.dialing = nil
	switch {
	case err == nil && c.closed:
		old, conn, err = conn, nil, ErrClosed
	case err == nil:
		n.conn = conn
	default:
		n.conn = nil
	}
	a.conn, a.err = conn, err
	c.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
	close(a.done)
}

// errNoOwner is returned if the map has no owner for a vbucket: wait for a newer map.
var errNoOwner = fmt.Errorf("%w: no node owns the vbucket at the moment", ErrNotMyVBucket)

// route returns the connection for a vbucket.
func (c *Client) route(ctx context.Context, vbucket uint16) (*Conn, error) {
	c.mu.Lock()
	config, via, network := c.config, c.via, c.network
	c.mu.Unlock()
	owner := config.Owner(vbucket)
	if owner < 0 {
		return nil, errNoOwner
	}
	addr, err := config.KVAddrIn(network, owner, via, c.opt.TLS != nil)
	if err != nil {
		return nil, err
	}
	return c.conn(ctx, addr)
}

// do sends a request to the vbucket's owner until there is a final answer. lost reports whether an earlier attempt
// may have taken effect although its answer was lost.
func (c *Client) do(ctx context.Context, req mcbp.Frame) (f mcbp.Frame, lost bool, err error) {
	retry := backoff{}
	var reason error // of the last attempt that ended before ctx did
	for {
		conn, err := c.route(ctx, req.VBucket())
		if err == nil {
			f, err = conn.Do(ctx, req)
			lost = lost || errors.Is(err, ErrClosed)
			if err == nil {
				err = NewStatusError(f)
			}
		}
		if err == nil || final(err) {
			return f, lost, err
		}
		if ctx.Err() != nil {
			if reason == nil {
				reason = err
			}
			return f, lost, fmt.Errorf("%w (%w)", context.Cause(ctx), reason)
		}
		reason = err
		if werr := c.recover(ctx, conn, err, &retry); werr != nil {
			return f, lost, fmt.Errorf("%w (%w)", werr, err)
		}
	}
}

// recover prepares the next attempt: it fetches a newer map if the error requires one, and pauses.
func (c *Client) recover(ctx context.Context, conn *Conn, err error, retry *backoff) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return ErrClosed // closed by the caller: no retry
	}
	c.opt.Logger.Debug("trying again", "error", err)
	var se *StatusError
	if errors.As(err, &se) && se.Config != nil && conn != nil {
		before := c.Config()
		c.adopt(se.Config, conn.Addr())
		if c.Config() != before && retry.next == 0 {
			return nil // the map is newer: no need to wait
		}
	}
	if werr := retry.wait(ctx); werr != nil {
		return werr
	}
	if !errors.Is(err, ErrTemporary) {
		if rerr := c.Refresh(ctx); rerr != nil && final(rerr) {
			return rerr
		}
	}
	return nil
}

// final reports whether a retry cannot succeed.
func final(err error) bool {
	var se *StatusError
	if errors.As(err, &se) {
		return !errors.Is(err, ErrNotMyVBucket) && !errors.Is(err, ErrTemporary)
	}
	return errors.Is(err, ErrAuth) || errors.Is(err, ErrNoBucket) || errors.Is(err, ErrNotSupported) ||
		errors.Is(err, mcbp.ErrTooLarge) || errors.Is(err, mcbp.ErrNoVBuckets)
}

// backoff is the pause between attempts.
type backoff struct{ next time.Duration }

// wait pauses, longer with each call. It returns an error if ctx ends.
func (b *backoff) wait(ctx context.Context) error {
	b.next = min(max(2*b.next, firstBackoff), maxBackoff)
	d := b.next/2 + rand.N(b.next/2)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
