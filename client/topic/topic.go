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
// known it for 10 s, while no other one has, Run ends with what it says. An index that is created again, under the same
// name too, is another one: that takes a new subscription, which may begin at the old one's Positions. Of a bucket that
// was deleted and created again Run ends, after as long, with ErrRecreated.
//
// It keeps nothing on disk: who wants to go on after a restart keeps Positions, and may see again what came after them.
// It never evaluates, filters or reorders.
package topic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
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
	// Indexes are ids, names of indexes on the default collection, or scope.collection/name; none: all on the default
	// collection that are active when it begins. Events do not say the collection of a document.
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

// Subscription is a running subscription.
type Subscription struct {
	cfg      Config
	listener net.Listener
	client   projectors
	log      hclog.Logger
	allow    func(connections int) // of the data port
	calls    errgroup.Group        // of projectors
	answers  chan answer
	places   chan places

	// of the asking loop
	first  uint64            // counters of its requests are above
	next   uint64            // counter of the newest request
	told   map[string]string // what the log was told last of each projector
	addrs  []string          // of projectors, as they were known last
	start  pace              // of asking before the first answer
	looks  time.Time         // since when Config.Projectors is asked for them; zero: it is not
	swept  map[string]bool   // those that were asked for topics of an earlier process
	sweeps time.Time         // before it nobody is asked for these again
	// since when each projector says, and nothing else, what is final, while no other one takes the subscription
	missing map[string]time.Time
	waits   map[string]uint64 // the request that a projector has not answered yet, by address

	handling chan struct{} // one token: Handle is called by who has it
	over     error         // of Handle or Rollback, after which neither is called; guarded by the token

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

// projectors is what is asked of projectors.
type projectors interface {
	Subscribe(ctx context.Context, addr string, req *wire.Subscribe) (*wire.Subscription, error)
	Stop(ctx context.Context, addr string, req *wire.StreamStop) error
	Topics(ctx context.Context, addr string) (*wire.TopicList, error)
	Close()
}

// answer is what a projector says to a request.
type answer struct {
	addr  string
	req   *wire.Subscribe
	reply *wire.Subscription
	err   error
}

// places is what Config.Projectors returns.
type places struct {
	addrs []string
	err   error
}

// vbucket is one vbucket's stream.
type vbucket struct {
	at      Position
	request uint64 // counter of the request whose streams alone count; 0: there is none
	// asked are the requests that may begin it while there is none: of each projector at most one, and the first that
	// begins counts.
	asked []uint64
	owner *sink     // connection that brings it; nil: none
	idle  time.Time // since when its request has brought no stream, but for times in which it could not be handled
	moved bool      // something has come since it was asked for
	pace            // of asking for it while it is not begun, or nothing comes
}

// pace says when something is tried again: after pauses that double. The zero value is at once.
type pace struct {
	pause time.Duration
	after time.Time
}

// due reports whether the pause is over.
func (p *pace) due(now time.Time) bool { return !now.Before(p.after) }

// later begins the next pause.
func (p *pace) later(now time.Time) {
	p.pause = min(max(2*p.pause, askInterval), maxPause)
	p.after = now.Add(p.pause)
}

// request is a topic at a projector.
type request struct {
	addr, topic string
	failed      bool // the projector has not said what it has begun: it may yet begin it
	stopping    bool // it is being told to stop
	// known is closed with the projector's answer, when that says which indexes its streams are of; nil: they are of those
	// of the subscription.
	known chan struct{}
	// streams are the vbuckets that it has begun and not said to have ended, whether they count or not.
	streams map[uint16]bool
	trims   bool      // it is being told which of them nobody needs
	after   time.Time // not before: it did not hear it
}

// Open checks the configuration and listens; nothing is asked for before Run. Run or Close must follow.
func Open(cfg Config) (*Subscription, error) {
	switch {
	case cfg.ID == "" || strings.ContainsFunc(cfg.ID, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' }) ||
		len(cfg.ID) > wire.MaxTopic/2:
		return nil, fmt.Errorf("%w: id %q; want visible ASCII without /, at most %d bytes", ErrConfig, cfg.ID,
			wire.MaxTopic/2)
	case cfg.Bucket == "" || cfg.Handle == nil || cfg.Projectors == nil:
		return nil, fmt.Errorf("%w: a bucket, Projectors and Handle are required", ErrConfig)
	}
	from := wire.RestartTimestamp{}
	for vb, at := range cfg.From {
		from.Add(at.start(vb))
	}
	if err := from.Check(); err != nil {
		return nil, fmt.Errorf("%w: From: %w", ErrConfig, err)
	}
	// projectors would be asked in vain, and speak to no other on the data port
	if err := cfg.TLS.Has(tlsconf.Indexer); err != nil {
		return nil, fmt.Errorf("%w: %w; make one with: tidemark cert node --role indexer --id NAME", ErrConfig, err)
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("subscription %s: %w", cfg.ID, err)
	}
	first := uint64(time.Now().UnixNano())
	return &Subscription{cfg: cfg, listener: l, client: projectorclient.New(4,
		cfg.TLS.Client(tlsconf.HTTP, tlsconf.Projector)), log: cfg.Logger, allow: func(int) {},
		first: first, next: first, swept: map[string]bool{}, handling: make(chan struct{}, 1),
		taking: map[*sink]struct{}{}, known: make(chan struct{}),
		failed: make(chan error, 1), requests: map[uint64]*request{}, givenUp: map[uint64]*request{},
		answers: make(chan answer), places: make(chan places),
		told: map[string]string{}, waits: map[string]uint64{}, missing: map[string]time.Time{}}, nil
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

// Indexes returns the indexes that are subscribed to; none before the first projector has answered.
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

// ask looks for vbuckets without a stream, and asks the projectors for them.
func (s *Subscription) ask(ctx context.Context) error {
	tick := time.NewTicker(askInterval)
	defer tick.Stop()
	for s.look(ctx); ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.failed:
			return err
		case a := <-s.answers:
			delete(s.waits, a.addr)
			if err := s.answered(ctx, a.addr, a.req, a.reply, a.err); err != nil {
				return err
			}
			s.forget(ctx)
		case <-tick.C:
			if s.unfed() {
				s.look(ctx)
			}
		case p := <-s.places:
			s.looks = time.Time{}
			s.found(p)
			s.askAll(ctx)
		}
		s.trim(ctx)
		s.sweep(ctx)
	}
}

// unfed reports whether there is something to ask for.
func (s *Subscription) unfed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.vbuckets == nil {
		return s.start.due(now)
	}
	for vb := range s.vbuckets {
		if s.isUnfed(uint16(vb), now) {
			return true
		}
	}
	return false
}

// isUnfed reports whether a vbucket is to be asked for: not while its stream may only wait for the user's function; the
// lock is held.
func (s *Subscription) isUnfed(vb uint16, now time.Time) bool {
	v := &s.vbuckets[vb]
	if v.request == 0 {
		return v.due(now)
	}
	return v.owner == nil && now.Sub(v.idle) > beginPatience && !s.queues(vb)
}

// queues reports whether a connection on which the vbucket's stream has to begin has a batch that was not handled yet;
// the lock is held.
func (s *Subscription) queues(vb uint16) bool {
	for k := range s.taking {
		if k.brings(vb) {
			return true
		}
	}
	return false
}

func newRequest(addr string, req *wire.Subscribe) *request {
	return &request{addr: addr, topic: "/backfill/" + req.ID, streams: map[uint16]bool{}}
}

// none says that no request brings the vbucket, and that none that is under way counts.
func (v *vbucket) none() { v.request, v.asked, v.owner = 0, nil, nil }

// refuse takes over that a request does not bring the vbucket.
func (v *vbucket) refuse(request uint64) {
	v.asked = slices.DeleteFunc(v.asked, func(n uint64) bool { return n == request })
	if v.request == request {
		v.none()
	}
}

// begins takes over that a request brings the vbucket, and reports whether it counts: not when another one does, or it
// was given up.
func (v *vbucket) begins(request uint64) bool {
	if v.request == 0 && slices.Contains(v.asked, request) {
		v.request, v.asked, v.after = request, nil, time.Time{}
	}
	return v.request == request
}

// ended lets the vbucket be asked for again: at once, or, where nothing has come, after a pause that grows.
func (v *vbucket) ended(now time.Time) {
	v.none()
	if v.moved {
		v.pace = pace{}
		return
	}
	v.later(now)
}

// tell notes in the log what is wrong with a projector ("": with asking for them), once until something else is.
func (s *Subscription) tell(addr, what string, args ...any) {
	if now := what + fmt.Sprint(args...); s.told[addr] != now {
		s.told[addr] = now
		s.log.Info(what, args...)
	}
}

// look learns, beside the loop, where projectors are now: then they are asked. When that takes long those that were
// known last are.
func (s *Subscription) look(ctx context.Context) {
	if !s.looks.IsZero() {
		if time.Since(s.looks) >= lookPatience {
			s.tell("", "it takes long to learn where projectors are; those known last are asked", "projectors", len(s.addrs))
			s.askAll(ctx)
		}
		return
	}
	s.looks = time.Now()
	s.calls.Go(func() error {
		call, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		addrs, err := s.cfg.Projectors(call)
		select {
		case s.places <- places{addrs, err}:
		case <-ctx.Done():
		}
		return nil
	})
}

// found takes over where projectors are.
func (s *Subscription) found(p places) {
	if p.err != nil || len(p.addrs) > maxProjectors {
		s.tell("", "cannot learn where projectors are; trying again, and asking those known last", "projectors", len(p.addrs),
			"most", maxProjectors, "error", p.err)
		return
	}
	delete(s.told, "")
	s.addrs = p.addrs
	// the topics that are open and, beside them, those that are being stopped
	s.allow(max(minConnections, len(p.addrs)*topicConnections*2*maxTopics))
	maps.DeleteFunc(s.missing, func(addr string, _ time.Time) bool { return !slices.Contains(s.addrs, addr) })
}

// askAll asks the projectors, side by side, for what is not fed. Who has not answered yet is not asked again, and
// nobody waits for it: whoever begins a vbucket first brings it.
func (s *Subscription) askAll(ctx context.Context) {
	defer s.rest(time.Now())
	for _, addr := range s.addrs {
		if s.waits[addr] != 0 {
			continue
		}
		req, any := s.wanted(addr)
		if !any {
			continue
		}
		s.waits[addr] = req.Counter
		s.calls.Go(func() error {
			reply, err := s.client.Subscribe(ctx, addr, req)
			select {
			case s.answers <- answer{addr, req, reply, err}:
			case <-ctx.Done():
				if err == nil { // what it has begun may be later than the word that all is over
					_ = s.stopOf(ctx, reply.ClusterID, []*request{{addr: addr, topic: reply.Topic}})
				}
			}
			return nil
		})
	}
}

// rest lets what is asked for now wait before it is asked for again: nobody may host it, as while its KV node is away.
// A vbucket that is begun waits no more.
func (s *Subscription) rest(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vbuckets == nil && len(s.addrs) > 0 {
		s.start.later(now)
	}
	for vb := range s.vbuckets {
		if v := &s.vbuckets[vb]; v.request == 0 && v.due(now) {
			v.later(now)
		}
	}
}

// wanted makes the request for what is not fed; any is false when all is.
func (s *Subscription) wanted(addr string) (req *wire.Subscribe, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	req = &wire.Subscribe{ID: fmt.Sprintf("%s/%d", s.cfg.ID, s.next), Bucket: s.cfg.Bucket, BucketUUID: s.uuid,
		Indexes:  s.cfg.Indexes,
		Endpoint: rpc.Advertised(s.listener.Addr(), s.cfg.Advertise), Counter: s.next, RetryForever: s.cfg.RetryForever}
	restart := &wire.RestartTimestamp{}
	if s.vbuckets == nil { // the answer will say how many there are
		for vb, at := range s.cfg.From {
			restart.Add(at.start(vb))
		}
		if restart.Len() > 0 {
			req.Restart = restart
		}
		r := newRequest(addr, req)
		r.known = make(chan struct{})
		s.requests[req.Counter] = r
		return req, true
	}
	if len(s.indexes) > 0 {
		req.Indexes = nil
		for _, id := range s.indexes {
			req.Indexes = append(req.Indexes, id.String())
		}
	}
	now := time.Now()
	joined := s.joined(addr)
	for vb := range s.vbuckets {
		if v := &s.vbuckets[vb]; s.isUnfed(uint16(vb), now) || joined[v.request] {
			restart.Add(v.at.start(uint16(vb)))
			if v.moved { // it is no stream that brings nothing
				v.pace = pace{}
			}
			v.request, v.owner, v.idle, v.moved = 0, nil, now, false
			v.asked = append(v.asked, req.Counter)
		}
	}
	if restart.Len() == 0 {
		return nil, false
	}
	req.Restart = restart
	s.requests[req.Counter] = newRequest(addr, req)
	return req, true
}

// joined are the requests at a projector whose vbuckets are to be asked for as one, none while there are few; the lock
// is held.
func (s *Subscription) joined(addr string) map[uint64]bool {
	at := map[uint64]bool{}
	for vb := range s.vbuckets {
		n := s.vbuckets[vb].request
		if r := s.requests[n]; r != nil && r.addr == addr {
			at[n] = true
		}
	}
	if len(at) < maxTopics {
		return nil
	}
	return at
}

// answered takes over what a projector says.
func (s *Subscription) answered(ctx context.Context, addr string, req *wire.Subscribe, reply *wire.Subscription,
	err error) error {
	if err == nil && (reply.VBuckets < 1 || reply.VBuckets > timestamp.MaxVBuckets) {
		err = fmt.Errorf("an answer that says of bucket %s that it has %d vbuckets", s.cfg.Bucket, reply.VBuckets)
	}
	back, err := s.note(addr, req, reply, err)
	if err != nil {
		return s.refused(addr, err)
	}
	for _, r := range back {
		if err := s.rollBack(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// note writes down which vbuckets an answer has begun, none when err, or what it returns, says that there is no answer
// that counts. back are those that have to go back first.
func (s *Subscription) note(addr string, req *wire.Subscribe, reply *wire.Subscription, err error) (
	back []*wire.StartResult, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	outcomes := map[uint16]*wire.StartResult{}
	if err == nil {
		err = s.agrees(reply)
	}
	if err == nil {
		clear(s.missing)
		delete(s.told, addr)
		for i := range reply.Results {
			outcomes[reply.Results[i].VBucket] = &reply.Results[i]
		}
	}
	asked := s.requests[req.Counter]
	if asked != nil {
		asked.failed = err != nil
		if asked.known != nil {
			close(asked.known)
		}
	}
	now := time.Now()
	for vb := range s.vbuckets {
		v, r := &s.vbuckets[vb], outcomes[uint16(vb)]
		if asked != nil && r != nil && r.Outcome == wire.StartBegun {
			asked.streams[uint16(vb)] = true
		}
		switch {
		case r == nil:
			v.refuse(req.Counter)
		case r.Outcome != wire.StartBegun:
			if r.Outcome == wire.StartRollback && v.begins(req.Counter) {
				back = append(back, r)
			} else {
				s.log.Debug("a vbucket is not begun", "projector", addr, "vbucket", vb, "outcome", r.Outcome, "detail", r.Detail)
			}
			v.refuse(req.Counter)
		case v.begins(req.Counter):
			v.idle = now
		default: // another request brings it: what comes of this one is dropped, and it is told to stop: trim, forget
		}
	}
	return back, err
}

// agrees returns why an answer is not of the subscription's bucket and indexes: the first says which these are. The
// lock is held.
func (s *Subscription) agrees(reply *wire.Subscription) error {
	if s.vbuckets == nil {
		s.begin(reply)
	}
	s.cluster = reply.ClusterID
	if s.uuid != reply.BucketUUID {
		return rpc.Refuse(errcode.BucketGone, "bucket %s has uuid %s there, %s elsewhere", s.cfg.Bucket, reply.BucketUUID,
			s.uuid)
	}
	if !slices.Equal(slices.Sorted(slices.Values(reply.Indexes)), slices.Sorted(slices.Values(s.indexes))) {
		return fmt.Errorf("its streams are of indexes %v, the subscription is of %v: they do not count, and these are "+
			"asked for", reply.Indexes, s.indexes)
	}
	return nil
}

// begin makes the vbuckets; the lock is held.
func (s *Subscription) begin(reply *wire.Subscription) {
	s.vbuckets, s.uuid, s.indexes = make([]vbucket, reply.VBuckets), reply.BucketUUID, reply.Indexes
	close(s.known)
	for vb := range s.vbuckets { // what comes from now on counts, of whoever was asked
		s.vbuckets[vb].asked = slices.Sorted(maps.Keys(s.requests))
	}
	for vb, at := range s.cfg.From {
		if int(vb) < len(s.vbuckets) {
			s.vbuckets[vb].at = at
		}
	}
}

// final are what projectors do not refuse for a moment alone.
var final = []errcode.Code{errcode.NotFound, errcode.Forbidden, errcode.Unauthenticated, errcode.BucketGone,
	errcode.BucketNotInKV, errcode.BadRequest, errcode.TooManyVBuckets}

// refused judges why a projector did not answer: what it does not have, or refuses, for long is final, unless nothing
// is missing or another projector takes the subscription meanwhile.
func (s *Subscription) refused(addr string, err error) error {
	s.tell(addr, "a projector does not take the subscription; trying again", "projector", addr, "error", err)
	var problem *rpc.Problem
	if s.fed() || !errors.As(err, &problem) || !slices.Contains(final, problem.Code) {
		delete(s.missing, addr)
		return nil
	}
	if s.missing[addr].IsZero() {
		s.missing[addr] = time.Now()
	}
	if time.Since(s.missing[addr]) < missingPatience {
		return nil
	}
	if problem.Code == errcode.BucketGone {
		err = fmt.Errorf("%w: %w", ErrRecreated, err)
	}
	return fmt.Errorf("subscription %s: %w", s.cfg.ID, err)
}

// fed reports whether each vbucket has been begun somewhere.
func (s *Subscription) fed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vbuckets != nil && !slices.ContainsFunc(s.vbuckets, func(v vbucket) bool { return v.request == 0 })
}

// rollBack takes a vbucket back to where KV still has it.
func (s *Subscription) rollBack(ctx context.Context, r *wire.StartResult) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	to := Position{Seqno: r.Rollback, Window: timestamp.Window{Start: r.Rollback, End: r.Rollback}}
	for _, e := range r.Log { // newest first
		if e.Seqno <= to.Seqno {
			to.VBUUID = e.VBUUID
			break
		}
	}
	if to.Seqno == 0 {
		to = Position{}
	}
	if s.cfg.Rollback != nil {
		if err := s.cfg.Rollback(ctx, r.VBucket, to.Seqno); err != nil {
			s.over = fmt.Errorf("subscription %s: rollback of vbucket %d: %w", s.cfg.ID, r.VBucket, err)
			return s.over
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(r.VBucket) < len(s.vbuckets) {
		s.vbuckets[r.VBucket].at = to
		s.vbuckets[r.VBucket].none()
	}
	return nil
}

// lock and unlock bracket a call of the user's functions. lock returns the error of one that has failed.
func (s *Subscription) lock(ctx context.Context) error {
	select {
	case s.handling <- struct{}{}:
		err := s.over
		if err != nil {
			s.unlock()
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Subscription) unlock() { <-s.handling }

// forget stops topics that no vbucket is of any more, of those that were answered. One without streams has ended.
func (s *Subscription) forget(ctx context.Context) {
	waits := map[uint64]bool{}
	for _, n := range s.waits {
		waits[n] = true
	}
	s.mu.Lock()
	for vb := range s.vbuckets {
		waits[s.vbuckets[vb].request] = true
	}
	var old []uint64
	for n, r := range s.requests {
		if waits[n] {
			continue
		}
		delete(s.requests, n)
		if r.failed || len(r.streams) > 0 {
			old = append(old, n)
			s.givenUp[n], r.stopping = r, true
		}
	}
	for len(s.givenUp) > maxGivenUp {
		delete(s.givenUp, slices.Min(slices.Collect(maps.Keys(s.givenUp))))
	}
	s.mu.Unlock()
	if len(old) > 0 {
		s.calls.Go(func() error { s.giveUp(ctx, old); return nil })
	}
}

// giveUp stops topics that were given up, as far as that is possible in a short time.
func (s *Subscription) giveUp(ctx context.Context, old []uint64) {
	var g errgroup.Group
	for _, n := range old {
		s.mu.Lock()
		r := s.givenUp[n]
		s.mu.Unlock()
		if r == nil {
			continue
		}
		g.Go(func() error {
			err := s.stop(ctx, []*request{r})
			s.mu.Lock()
			defer s.mu.Unlock()
			if r.stopping = false; err == nil && !r.failed { // else it may be opened only now
				delete(s.givenUp, n)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// stray is called when something comes of a request that brings nothing: it is told to stop. The lock is held.
func (s *Subscription) stray(ctx context.Context, request uint64) {
	r := s.givenUp[request]
	if r == nil || r.stopping {
		return
	}
	r.stopping = true
	s.log.Info("a topic that nobody needs was opened late; it is stopped", "projector", r.addr, "topic", r.topic)
	s.calls.Go(func() error { s.giveUp(ctx, []uint64{request}); return nil })
}

// stopAll ends all topics, as far as that is possible in a short time.
func (s *Subscription) stopAll(ctx context.Context) {
	s.mu.Lock()
	var all []*request
	for _, r := range s.requests {
		all = append(all, r)
	}
	for _, r := range s.givenUp {
		all = append(all, r)
	}
	s.mu.Unlock()
	_ = s.stop(ctx, all)
}

// stop tells projectors to stop topics, and returns why one has not heard it.
func (s *Subscription) stop(ctx context.Context, all []*request) error {
	return s.stopOf(ctx, s.fence().ClusterID, all)
}

func (s *Subscription) stopOf(ctx context.Context, cluster string, all []*request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	var g errgroup.Group
	for _, r := range all {
		g.Go(func() error {
			err := s.client.Stop(ctx, r.addr, &wire.StreamStop{Fence: wire.Fence{ClusterID: cluster},
				Topic: r.topic})
			s.log.Debug("a topic was stopped", "topic", r.topic, "error", err) // it ends by itself, too
			return err
		})
	}
	return g.Wait()
}

// fence is what a projector is told with a stop.
func (s *Subscription) fence() wire.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wire.Fence{ClusterID: s.cluster}
}
