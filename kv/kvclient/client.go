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

// Back-off between attempts: doubles from the first to the largest, each drawn
// from the upper half at random so that many clients do not come back together.
const (
	firstBackoff = 5 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
)

// maxSecondOpinions is how many more nodes are asked for a collection when one has said that there is none.
const maxSecondOpinions = 4

// Client routes document operations over the nodes of a cluster by the bucket
// map. It keeps one pipelined connection per node and follows the map as it
// changes. Operations repeat after NOT_MY_VBUCKET, temporary failures and lost
// connections until they succeed, are refused for good, or their context ends.
type Client struct {
	opt    Options
	seeds  []string
	prefix []byte // of keys: the collection's id

	life context.Context // ends with Close: dials are of the client, not of who asked first
	end  context.CancelFunc

	mu      sync.Mutex // the fields below; only a Conn's own lock is taken inside
	config  *mcbp.ClusterConfig
	via     string // host through which config came, for $HOST
	network string // whose addresses count; found with the first map
	nodes   map[string]*node
	closed  bool
	refresh int // which of the known nodes is asked next for the map
}

// node is the place of one node's connection. Callers that need a new one share
// one attempt to dial, its failure too: dialling one after the other, the last of
// many would wait for as many timeouts where the node hangs.
type node struct {
	conn    *Conn    // guarded by Client.mu
	dialing *attempt // under way; guarded by Client.mu
}

// attempt is one try to dial a node. conn and err are set when done is closed.
type attempt struct {
	done chan struct{}
	conn *Conn
	err  error
}

// Connect finds the cluster through any of the seeds (host:port of memcached), or
// Options.Maps, and fetches the map. It tries all seeds again and again until one answers, ctx
// ends, or every seed refuses for good (ErrAuth, ErrNoBucket).
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

// findCollection asks for the id of the collection that was named. The nodes are asked, one after the other, until one
// has it: one that says that there is none may be behind the others. After the first that says so only a few more are
// asked.
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

// collectionAt asks one node for the id.
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

// wire is a document's key as it travels.
func (c *Client) wire(key string) []byte {
	return append(append(make([]byte, 0, len(c.prefix)+len(key)), c.prefix...), key...)
}

// Close ends all connections; operations under way fail with ErrClosed.
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

// Config is the newest map seen. It is shared: do not change it.
func (c *Client) Config() *mcbp.ClusterConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.config
}

// hedge is how long Refresh waits for a node before it asks another one beside it.
const hedge = 200 * time.Millisecond

// Refresh asks the nodes of the map and the seeds until one gives a map, and adopts
// it if it is newer. The next node is asked when one has refused, or has not
// answered for 200 ms: one that hangs holds nobody up.
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
	timer := time.NewTimer(0)
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
	// Where there are Maps, nodes need not show any: what they say of that is not final.
	return fmt.Errorf("%w from %d nodes: %w", ErrNoMap, len(addrs), cmp.Or(maps, last))
}

// known lists the addresses that may know the map.
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

// adopt takes a map if it is newer than ours.
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

// conn returns the living connection to a node, dialling if there is none.
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

// dial makes one attempt for all who wait for it, bounded by Options.DialTimeout.
func (c *Client) dial(addr string, n *node, a *attempt) {
	conn, err := Dial(c.life, addr, c.opt)
	if err == nil && c.opt.Collection != "" && !conn.Granted(mcbp.FeatureCollections) {
		// to it the collection's id would be the beginning of a key
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

// errNoOwner says that the map names nobody for a vbucket: wait for a newer one.
var errNoOwner = fmt.Errorf("%w: nobody owns the vbucket at the moment", ErrNotMyVBucket)

// route finds the connection for a vbucket.
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

// do sends a request to the vbucket's owner until it is answered for good. lost
// says that an earlier attempt may have taken effect without our knowledge.
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

// recover prepares the next attempt: a newer map if the error asks for one, and
// a pause.
func (c *Client) recover(ctx context.Context, conn *Conn, err error, retry *backoff) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return ErrClosed // by us: no node is to be asked again
	}
	c.opt.Logger.Debug("trying again", "error", err)
	var se *StatusError
	if errors.As(err, &se) && se.Config != nil && conn != nil {
		before := c.Config()
		c.adopt(se.Config, conn.Addr())
		if c.Config() != before && retry.next == 0 {
			return nil // news: no need to wait
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

// final reports whether trying again cannot help.
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

// wait pauses, longer each time, until ctx ends.
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
