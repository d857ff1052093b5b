// Package topic subscribes to a bucket's KeyVersions from outside (RT-9): it opens a topic at each projector, takes
// the data streams on a port of its own, and hands every event to one function.
//
// It promises that a vbucket's events come in order of their seqnos, each once while the process lives, from the
// position asked for on, without a gap: when a projector, a connection or a KV node goes, it asks again, of whoever
// hosts the vbucket now, after what was handled last. While the function does not return, projectors are held back
// (acknowledgements are the protocol's credit), and through them KV; nothing piles up here. When KV has forgotten
// events by a failover, the function is told to which seqno the vbucket went back.
//
// It is of the indexes that the first answer names, by their ids, at all projectors: one whose definitions say others,
// while an index is made or dropped, is asked again by these ids, and nothing that it has sent before counts. One that
// is dropped goes on in the streams that are open; when a vbucket has to be asked for again and a projector has not
// known it for 10 s, while no other one has, Run ends with what it says. An index that is split stays the same one,
// under the id that it had first (origin of GET /v1/indexes), before and after: nothing is cut, lost or repeated. One
// that is created again, under the same name too, is another one: that takes a new subscription, which may begin at the
// old one's Positions. Of a bucket that was deleted and created again Run ends, after as long, with ErrRecreated.
//
// It keeps nothing on disk: who wants to go on after a restart keeps Positions, and may see again what came after them.
// It never evaluates, filters or reorders.
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
	// routers' connections at a time: the least that are allowed, and those to a topic of a projector at most
	minConnections, topicConnections = 256, 16

	askInterval = 250 * time.Millisecond // between two looks at what is not fed
	// maxPause bounds the pause before a vbucket is asked for again that nobody begins, or whose streams bring nothing; it
	// doubles.
	maxPause = 5 * time.Second
	// maxTopics is how many topics are left open at a projector, each of which costs it a connection to KV. Beyond it all
	// their vbuckets are asked for again as one: they end one by one where KV moves them.
	maxTopics = 4
	// beginPatience is how long a vbucket may be without a stream before it is asked for again: routers connect again by
	// themselves.
	beginPatience = 3 * time.Second
	// missingPatience is how long projectors may not know the bucket or an index, know another one, not let the subscriber
	// in, or find fault with its request: they learn of a new one, or of a right that was granted, in moments.
	missingPatience = 10 * time.Second
	stopTimeout     = 2 * time.Second
	// lookTimeout is how long Config.Projectors may take; after lookPatience those that were known last are asked.
	lookTimeout  = 10 * time.Second
	lookPatience = time.Second
	// maxGivenUp is how many topics are remembered that nobody needs and that are perhaps open; the oldest give way.
	maxGivenUp = 256
)

var (
	// ErrConfig is wrapped when a configuration cannot be.
	ErrConfig = errors.New("bad subscription")
	// ErrRecreated is wrapped when the bucket is another one than at the beginning.
	ErrRecreated = errors.New("the bucket was deleted and created again")
)

// Position is where a vbucket's stream goes on: after Seqno of the branch VBUUID, inside Window. The zero value is the
// beginning.
type Position struct {
	VBUUID uint64           `json:"vbuuid"`
	Seqno  uint64           `json:"seqno"`
	Window timestamp.Window `json:"window"`
}

// start is what a projector is asked for a vbucket that goes on there.
func (p *Position) start(vb uint16) wire.StreamStart {
	return wire.StreamStart{VBucket: vb, VBUUID: p.VBUUID, Seqno: p.Seqno, Window: p.Window, End: wire.NoEnd}
}

// Config says what to subscribe to. ID, Bucket, Projectors and Handle are required.
type Config struct {
	ID     string // names the topics /backfill/<ID>/…; two subscribers need two
	Bucket string // name
	// Indexes are ids (the present or the first of each), names of indexes on the default collection, or
	// scope.collection/name; none: all on the default collection that are active when it begins. Events do not say the
	// collection of a document.
	Indexes []string
	// Projectors returns the base URLs of the projectors' admin servers; it is asked again and again, one call at a time.
	// It must return when its context ends, after 10 s at the latest. While it takes long, and when it fails, the
	// projectors that it returned last are asked.
	Projectors func(ctx context.Context) ([]string, error)
	Listen     string // host:port for the data streams; "": a free port of 127.0.0.1
	Advertise  string // host that projectors are told instead of the one listened on
	// From has the vbuckets that do not start at the beginning.
	From map[uint16]Position
	// Handle is called with one event at a time: Insert, Delete, UpsertDeletion or Sync (everything up to its Seqno has
	// come). Its memory is the sender's again when Handle returns. A document with more keys than fit into a frame comes
	// in parts, each about other indexes, More in all but the last: it counts as handled with the last, and after a cut
	// all parts come again. Its error ends Run and is wrapped by what Run returns, and it is not called again. The event
	// counts as handled, and is not repeated, when it returns nil. ctx ends with the event's connection: who then returns
	// its error is given the event again, on another connection.
	Handle func(ctx context.Context, ev *keyversion.Event) error
	// Rollback, unless nil, is called between two events when KV has gone back: what came of vbucket above seqno is void.
	Rollback func(ctx context.Context, vbucket uint16, seqno uint64) error
	// TLS, unless nil, is on all connections. It needs a certificate with the role indexer: another one, or none, is an
	// ErrConfig.
	TLS *tlsconf.Source
	// RetryForever lets projectors keep the streams, and try to reach this port, when it cannot be reached for a minute
	// (RT-5).
	RetryForever bool
	Logger       hclog.Logger // nil: none
}

// Subscription is a running subscription. What its asking loop alone keeps, and the right to call the user's functions,
// are types; under mu is what the loop and the connections share, which an answer and an event both change.
type Subscription struct {
	cfg      Config
	listener net.Listener
	client   projectors
	log      hclog.Logger
	allow    func(connections int) // of the data port
	calls    errgroup.Group        // of projectors
	answers  chan answer
	places   chan places

	loop
	user user

	mu       sync.Mutex
	taking   map[*sink]struct{} // who has a batch that waits for the token, or has it
	cluster  string
	uuid     string
	indexes  []index.ID
	vbuckets []vbucket     // nil before the first answer
	known    chan struct{} // closed with that
	failed   chan error
	requests map[uint64]*request
	// givenUp are requests that nobody needs, and whose topics are perhaps there: a projector that hung may have opened
	// one after its answer was no longer awaited, or has not heard that it is to stop. What comes of one stops it.
	givenUp map[uint64]*request
	earlier bool // something came of an earlier process of this subscription
}

// Open checks the configuration and listens; nothing is asked for before Run. Run or Close must follow.
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
		loop: loop{first: first, next: first, swept: map[string]bool{}, told: map[string]string{},
			waits: map[string]uint64{}, missing: map[string]time.Time{}},
		user: newUser(), taking: map[*sink]struct{}{}, known: make(chan struct{}),
		failed: make(chan error, 1), requests: map[uint64]*request{}, givenUp: map[uint64]*request{},
		answers: make(chan answer), places: make(chan places)}, nil
}

// check says what cannot be used.
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
	// projectors would be asked in vain, and speak to no other on the data port
	if err := cfg.TLS.Has(tlsconf.Indexer); err != nil {
		return fmt.Errorf("%w; make one with: tidemark cert node --role indexer --id NAME", err)
	}
	return nil
}

// Close gives back what Open has taken, of a subscription that is not to be run; after Run there is nothing to do.
func (s *Subscription) Close() error {
	s.client.Close()
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("subscription %s: %w", s.cfg.ID, err)
	}
	return nil
}

// Addr is where it listens, host:port.
func (s *Subscription) Addr() string { return s.listener.Addr().String() }

// Endpoint returns the host:port at which projectors are told to reach it: Addr, or with Config.Advertise as the host.
func (s *Subscription) Endpoint() string { return rpc.Advertised(s.listener.Addr(), s.cfg.Advertise) }

// Indexes returns the indexes that are subscribed to, by the ids that events have; none before the first projector has
// answered.
func (s *Subscription) Indexes() []index.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes
}

// Positions returns where each vbucket goes on: all events up to there have been handled. It may be called from Handle,
// and then does not count that event yet.
func (s *Subscription) Positions() map[uint16]Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[uint16]Position, len(s.vbuckets))
	for vb := range s.vbuckets {
		all[uint16(vb)] = s.vbuckets[vb].at
	}
	return all
}

// Run subscribes until ctx ends, then returns nil, or until Handle or Rollback fail, or projectors refuse for 10 s what
// is asked for: the bucket is gone or was re-created (ErrRecreated), one of the indexes is gone when a stream has to be
// asked for again, the request or a right is wrong. Nothing of it runs when it has returned; it may be called once.
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
	g.Go(func() error { return s.ask(run) })
	err := g.Wait()
	_ = s.calls.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		return nil
	}
	return err
}

// user is who is called with events and rollbacks, in one goroutine at a time.
type user struct {
	token chan struct{} // room for one: who has put it there may call
	over  error         // of a call, after which there is none; guarded by the token
}

func newUser() user { return user{token: make(chan struct{}, 1)} }

// lock and unlock bracket a call of the user's functions. lock returns the error of one that has failed.
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
