// Package topic subscribes to a bucket's KeyVersions from outside (RT-9): it opens a topic at each projector,
// receives the data streams on a port of its own, and passes every event to one function.
//
// It guarantees that a vbucket's events come in order of their seqnos, each once while the process runs, from the
// requested position on, without a gap: when a projector, a connection or a KV node fails, it requests the stream
// again, from the projector that hosts the vbucket now, after the last event handled. While the function does not
// return, projectors are held back (acknowledgements are the protocol's credit), and through them KV; nothing
// accumulates here. When KV has lost events in a failover, the Rollback function is called with the seqno to which
// the vbucket went back.
//
// It covers the indexes in the first answer, by their ids, at all projectors. A projector whose definitions name
// others, while an index is created or dropped, gets another request with these ids, and nothing that it sent before
// counts. An index that is dropped stays in the streams that are open; when a vbucket has to be requested again and a
// projector has refused the index for 10 s, while no other one accepts the subscription, Run returns that error. An
// index that is split stays the same one, under its first id (origin of GET /v1/indexes): nothing is lost or
// repeated. An index that is created again, even under the same name, is another one and needs a new subscription,
// which may begin at the old one's Positions. If the bucket was deleted and created again, Run returns ErrRecreated
// after the same time.
//
// It stores nothing on disk: to continue after a restart, keep Positions; events after them may be repeated. It never
// evaluates, filters or reorders.
package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/keyversion"
	"tidemark/projectorclient"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Limits and times.
const (
	maxProjectors = 1000
	// Connections of routers at a time: the least that are allowed, and the most to a topic of a projector.
	minConnections, topicConnections = 256, 16

	requestInterval = 250 * time.Millisecond // at which vbuckets without a stream are requested
	// maxPause bounds the pause before a vbucket is requested again that no projector begins, or whose streams deliver
	// nothing. The pause doubles up to it.
	maxPause = 5 * time.Second
	// maxTopics is how many topics are left open at a projector, each of which costs it a connection to KV. Beyond it,
	// all their vbuckets are requested again as one topic: vbuckets end one by one when KV moves them.
	maxTopics = 4
	// beginTimeout is how long a vbucket may be without a stream before it is requested again: routers reconnect by
	// themselves.
	beginTimeout = 3 * time.Second
	// missingTimeout is how long projectors may lack the bucket or an index, have another bucket of that name, deny
	// access, or reject the request: they receive a new index, or a permission, within moments.
	missingTimeout = 10 * time.Second
	stopTimeout    = 2 * time.Second
	// lookupTimeout bounds a call of Config.Projectors; after lookupDelay requests go to the projectors known last.
	lookupTimeout = 10 * time.Second
	lookupDelay   = time.Second
	// maxGivenUp bounds the remembered topics that are not needed and possibly open; the oldest are dropped first.
	maxGivenUp = 256
	// clockSkew bounds how far the counter of a request, which begins at the wall clock's time, may be ahead of this
	// process's clock: one further ahead is of a process that ran before the clock was set back.
	clockSkew = time.Minute
)

var (
	// ErrConfig is wrapped if a configuration is invalid.
	ErrConfig = errors.New("bad subscription")
	// ErrRecreated is wrapped if the bucket is not the one that the subscription began with.
	ErrRecreated = errors.New("the bucket was deleted and created again")
)

// Position is where a vbucket's stream continues: after Seqno of the branch VBUUID, inside Window. The zero value is
// the beginning.
type Position struct {
	VBUUID uint64           `json:"vbuuid"`
	Seqno  uint64           `json:"seqno"`
	Window timestamp.Window `json:"window"`
}

// start returns the request for a vbucket that continues there.
func (p *Position) start(vb uint16) wire.StreamStart {
	return wire.StreamStart{VBucket: vb, VBUUID: p.VBUUID, Seqno: p.Seqno, Window: p.Window, End: wire.NoEnd}
}

// Config configures a subscription. ID, Bucket, Projectors and Handle are required.
type Config struct {
	// ID is in the topics' names, /backfill/<ID>/…. Each subscriber needs its own: a process stops the topics that earlier
	// processes with its ID have left, and those of one that still runs. Earlier is a topic that was begun before this
	// process by the clock, or more than a minute ahead of the clock, or that sends to this process's address.
	ID     string
	Bucket string // name
	// Indexes are ids (the present or the first one), names of indexes on the default collection, or
	// scope.collection/name; if empty, all on the default collection that are active when the subscription begins.
	// Events do not contain the collection of a document.
	Indexes []string
	// Projectors returns the base URLs of the projectors' admin servers. It is called repeatedly, never concurrently,
	// and must return when its context ends, which is after at most 10 s. While it takes long, and when it fails, requests
	// go to the projectors that it returned last.
	Projectors func(ctx context.Context) ([]string, error)
	Listen     string // host:port for the data streams; "": a free port of 127.0.0.1
	Advertise  string // host to publish to projectors instead of the one listened on
	// From holds the positions of vbuckets that do not start at the beginning.
	From map[uint16]Position
	// Handle is called with one event at a time: Insert, Delete, UpsertDeletion or Sync (everything up to its Seqno has
	// come). It must not keep the event's memory after it returns. A document with more keys than fit into a frame comes
	// in parts, each about other indexes, with More set in all but the last: it counts as handled with the last part,
	// and after a reconnection all parts are sent again. If Handle returns nil, the event counts as handled and is not
	// repeated. If it returns an error, it is not called again, and Run returns an error that wraps it. ctx ends with
	// the event's connection: if Handle then returns ctx's error, it gets the event again, on another connection.
	Handle func(ctx context.Context, ev *keyversion.Event) error
	// Rollback, unless nil, is called between two events when KV has gone back: all events of vbucket above seqno are
	// void.
	Rollback func(ctx context.Context, vbucket uint16, seqno uint64) error
	// TLS, unless nil, is used on all connections. It needs a certificate with the role indexer; otherwise Open returns
	// an ErrConfig.
	TLS *tlsconf.Source
	// RetryForever makes projectors keep the streams, and keep trying to reach this port, beyond the minute after which
	// they would give up (RT-5).
	RetryForever bool
	Logger       hclog.Logger // nil: none
}

// Subscription is a running subscription. The state of the request loop, and the right to call the user's functions,
// are types of their own; mu guards what the loop and the connections share, which both answers and events change.
type Subscription struct {
	cfg      Config
	listener net.Listener
	client   projectors
	log      hclog.Logger
	allow    func(connections int) // sets the connection limit of the data port
	calls    errgroup.Group        // to projectors
	answers  chan answer
	lists    chan projectorList

	loop
	user user

	mu       sync.Mutex
	taking   map[*sink]struct{} // connections with a batch that waits for the token, or has it
	cluster  string
	uuid     string
	indexes  []index.ID
	vbuckets []vbucket     // nil before the first answer
	known    chan struct{} // closed at the first answer
	failed   chan error
	requests map[uint64]*request
	// givenUp are requests that are not needed and whose topics possibly exist: a projector that hung may have opened
	// one after its answer was no longer awaited, or has not received the stop. If an event of such a topic arrives, it
	// is stopped.
	givenUp map[uint64]*request
	earlier bool // data of an earlier process's topic arrived
}

// Open checks the configuration and listens; it sends no request before Run. Run or Close must follow.
func Open(cfg Config) (*Subscription, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	cfg.Listen = cmp.Or(cfg.Listen, "127.0.0.1:0")
	cfg.Logger = cmp.Or(cfg.Logger, hclog.NewNullLogger())
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("subscription %s: %w", cfg.ID, err)
	}
	first := uint64(time.Now().UnixNano())
	return &Subscription{cfg: cfg, listener: l, client: projectorclient.New(4,
		cfg.TLS.Client(tlsconf.HTTP, tlsconf.Projector)), log: cfg.Logger, allow: func(int) {},
		loop: loop{first: first, next: first, swept: map[string]bool{}, logged: map[string]string{},
			pending: map[string]uint64{}, missing: map[string]time.Time{}},
		user: newUser(), taking: map[*sink]struct{}{}, known: make(chan struct{}),
		failed: make(chan error, 1), requests: map[uint64]*request{}, givenUp: map[uint64]*request{},
		answers: make(chan answer), lists: make(chan projectorList)}, nil
}

// check returns what is wrong with the configuration.
func (cfg *Config) check() error {
	switch {
	case !wire.IsVisible(cfg.ID) || strings.Contains(cfg.ID, "/") || len(cfg.ID) > wire.MaxTopic/2:
		return fmt.Errorf("id %q; want visible ASCII without /, at most %d bytes", cfg.ID, wire.MaxTopic/2)
	case cfg.Bucket == "" || cfg.Handle == nil || cfg.Projectors == nil:
		return errors.New("a bucket, Projectors and Handle are required")
	}
	from := wire.RestartTimestamp{}
	for vb, at := range cfg.From {
		from.Add(at.start(vb))
	}
	if err := from.Check(); err != nil {
		return fmt.Errorf("in From: %w", err)
	}
	// Otherwise projectors would refuse all requests, and the data port rejects any other certificate.
	if err := cfg.TLS.Has(tlsconf.Indexer); err != nil {
		return fmt.Errorf("%w; make one with: tidemark cert node --role indexer --id NAME", err)
	}
	return nil
}

// Close releases what Open acquired, for a subscription that is not run; after Run it is not needed.
func (s *Subscription) Close() error {
	s.client.Close()
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("subscription %s: %w", s.cfg.ID, err)
	}
	return nil
}

// Addr returns the address it listens on, host:port.
func (s *Subscription) Addr() string { return s.listener.Addr().String() }

// Endpoint returns the host:port at which projectors reach it: Addr, with Config.Advertise as the host if set.
func (s *Subscription) Endpoint() string { return rpc.Advertised(s.listener.Addr(), s.cfg.Advertise) }

// Indexes returns the subscribed indexes, by the ids that events contain; none before the first projector has
// answered. The caller must not modify the result.
func (s *Subscription) Indexes() []index.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes
}

// Positions returns the position of each vbucket: all events up to it have been handled. It may be called from
// Handle, and does not include that call's event yet.
func (s *Subscription) Positions() map[uint16]Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[uint16]Position, len(s.vbuckets))
	for vb := range s.vbuckets {
		all[uint16(vb)] = s.vbuckets[vb].at
	}
	return all
}

// Run subscribes until ctx ends, then returns nil, or until Handle or Rollback fails, or until projectors have
// refused the requests for 10 s: the bucket is gone or was created again (ErrRecreated), an index is gone when a
// stream has to be requested again, or the request is invalid or not permitted. When it returns, none of its
// goroutines is left. It may be called once.
func (s *Subscription) Run(ctx context.Context) error {
	defer s.client.Close()
	server := transport.NewServer(transport.ServerConfig{Logger: s.log,
		TLS: s.cfg.TLS.Server(tlsconf.GRPC, tlsconf.Projector), MaxConnections: minConnections}, s.accept)
	s.allow = server.Allow
	g, run := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Serve(s.listener) })
	g.Go(func() error {
		<-run.Done()
		s.stopAll(ctx)
		server.Stop()
		return nil
	})
	g.Go(func() error { return s.requestLoop(run) })
	err := g.Wait()
	_ = s.calls.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		return nil
	}
	return err
}

// user serializes the calls of the user's functions, for events and rollbacks.
type user struct {
	token chan struct{} // capacity 1: a call may run while its token is in the channel
	over  error         // of a failed call, after which there is no other; guarded by the token
}

func newUser() user { return user{token: make(chan struct{}, 1)} }

// lock and unlock bracket a call of the user's functions. lock returns the error of an earlier call that has failed.
func (u *user) lock(ctx context.Context) error {
	select {
	case u.token <- struct{}{}:
		err := u.over
		if err != nil {
			u.unlock()
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (u *user) unlock() { <-u.token }
