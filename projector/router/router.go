// Package router delivers KeyVersions to indexers: for every mutation it determines the endpoints that hold the
// document's slices, queues one event per mutation and endpoint, and sends the queues over connections that it keeps
// alive (RT-1 to RT-6, docs/architecture.md "The data way").
//
// It guarantees, per vbucket and endpoint, that events travel in order on one connection; that after every
// reconnection and every loss a StreamBegin states after which seqno the stream continues, so that a gap is never
// silent; that an endpoint that is connected and slow holds the stream back (nothing is lost), or with smart
// throttling does so only while more than half of the endpoints are slow (RT-8); that an unreachable endpoint holds
// up no one else on a maintenance stream; that lost data is announced by DropData, once for each vbucket and all
// indexes there (RT-7), with the seqno at which the stream continues; and that each endpoint's queue stays within its
// bound under any load.
//
// It does not interpret keys, does not decide which index lives where, and does not judge what an indexer holds.
package router

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// Defaults and limits.
const (
	DefaultConnections   = 2       // per topic and endpoint
	DefaultQueueBytes    = 8 << 20 // per topic and endpoint: unacknowledged data batches
	DefaultReservedBytes = 1 << 20 // on top, for StreamBegin, StreamEnd, Activate, Deactivate and Sync only
	MaxConnections       = 16

	// A batch is sealed at batchEvents or batchBytes, or after lingerTime; an event for an idle connection is sent at
	// once.
	batchEvents = 256
	batchBytes  = 64 << 10
	lingerTime  = 3 * time.Millisecond
	// syncTick is how long Syncs are gathered: only the newest of each vbucket is sent.
	syncTick = 5 * time.Millisecond
	// DefaultCalmLinger is how long data and Syncs of a maintenance stream are gathered unless Topic.Urge is called.
	// Indexers do not use them before a stability timestamp covers them, and no timestamp covers what was not reported
	// to the leader.
	DefaultCalmLinger = 100 * time.Millisecond

	// leaveTimeout is how long an endpoint that the view no longer contains may take to acknowledge what is queued.
	leaveTimeout = 2 * time.Second
	dialTimeout  = 2 * time.Second
	backoffMin   = 20 * time.Millisecond
	backoffMax   = time.Second
)

var (
	// ErrClosed is wrapped if the topic or the router is closed.
	ErrClosed = errors.New("topic closed")
	// ErrNotBegun is wrapped if an event is for a vbucket whose stream has not begun.
	ErrNotBegun = errors.New("vbucket's stream has not begun")
	// ErrView is wrapped if a view cannot be built, or a document does not fit its vbucket's view.
	ErrView = errors.New("bad routing view")
	// ErrTopic is wrapped if a topic cannot be opened.
	ErrTopic = errors.New("bad topic")
)

// Conn is a connection to an endpoint; *transport.Conn is one.
type Conn interface {
	Send(frame []byte) error
	Done() <-chan struct{}
	Err() error
	Close() error
}

// Dial opens a connection to addr. onAck is called with acknowledged batch numbers, like transport.Options.OnAck.
type Dial func(ctx context.Context, addr string, hello keyversion.Hello, onAck func(number uint64)) (Conn, error)

// Config configures a Router. ClusterID, Projector, BootID and Logger are required.
type Config struct {
	ClusterID     func() string // called for each connection
	Projector     index.ProjectorID
	BootID        string // of this process
	Connections   int    // 0: DefaultConnections
	QueueBytes    int    // 0: DefaultQueueBytes
	ReservedBytes int    // 0: DefaultReservedBytes
	// Sharers returns how many routers of the process share QueueBytes at present; nil means only this one. It does not
	// block.
	Sharers func() int
	// Smart throttling of maintenance streams (RT-8); if false, any slow endpoint throttles.
	Smart      bool
	SlowWindow time.Duration // 0: DefaultSlowWindow
	SlowAfter  time.Duration // 0: DefaultSlowAfter
	CalmLinger time.Duration // 0: DefaultCalmLinger
	Dial       Dial          // nil: transport.Dial with TLS
	TLS        *tls.Config   // of the connections; nil without TLS
	// Refused is called for a document whose keys in an index are too large to be sent; may be nil.
	Refused    func(id index.ID, ev *keyversion.Event)
	Logger     hclog.Logger
	Registerer prometheus.Registerer // nil: no metrics registered
}

// Router holds the topics of one projector. All methods are safe for concurrent use.
type Router struct {
	cfg   Config
	judge *judge
	tries tries
	mu    sync.Mutex
	open  map[topicKey]*Topic
	done  bool
	total map[endpointKey]Stats // of lanes that have ended
}

type topicKey struct{ path, bucket string }

// New returns a router without topics. Errors report a missing field, a bad value, or a failed registration of
// metrics.
func New(cfg Config) (*Router, error) {
	if cfg.ClusterID == nil || cfg.Logger == nil || cfg.Projector == "" {
		return nil, fmt.Errorf("%w: ClusterID, Projector and Logger are required", ErrTopic)
	}
	setDefault(&cfg.Connections, DefaultConnections)
	setDefault(&cfg.QueueBytes, DefaultQueueBytes)
	setDefault(&cfg.ReservedBytes, DefaultReservedBytes)
	setDefault(&cfg.SlowWindow, DefaultSlowWindow)
	setDefault(&cfg.SlowAfter, DefaultSlowAfter)
	setDefault(&cfg.CalmLinger, DefaultCalmLinger)
	if cfg.SlowWindow < slowSlots || cfg.SlowAfter <= 0 || cfg.SlowAfter > cfg.SlowWindow/2 {
		return nil, fmt.Errorf("%w: slow after %s of %s; want more than 0 and at most half", ErrTopic, cfg.SlowAfter,
			cfg.SlowWindow)
	}
	if cfg.Connections < 1 || cfg.Connections > MaxConnections {
		return nil, fmt.Errorf("%w: %d connections per endpoint, want 1 to %d", ErrTopic, cfg.Connections, MaxConnections)
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, addr string, hello keyversion.Hello, onAck func(uint64)) (Conn, error) {
			return transport.Dial(ctx, addr, hello, transport.Options{TLS: cfg.TLS, OnAck: onAck, Dial: rpc.Dial})
		}
	}
	r := &Router{cfg: cfg, judge: newJudge(cfg.Smart, cfg.SlowWindow, cfg.SlowAfter), open: make(map[topicKey]*Topic),
		total: make(map[endpointKey]Stats)}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(collector{r}); err != nil {
			return nil, fmt.Errorf("router metrics: %w", err)
		}
	}
	return r, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// TopicConfig describes a topic (RT-9).
type TopicConfig struct {
	Path       string // "/maintenance", "/backfill/<node>/<id>", "/catchup/<node>/<id>"
	Class      keyversion.Class
	Bucket     string
	BucketUUID string
	VBuckets   int
}

// Open opens a topic of one bucket; it makes no connection before a vbucket begins. Errors wrap ErrTopic (a topic of
// this path and bucket is open, or the number of vbuckets is out of range) or ErrClosed.
func (r *Router) Open(cfg TopicConfig) (*Topic, error) {
	if cfg.VBuckets < 1 || cfg.VBuckets > timestamp.MaxVBuckets {
		return nil, fmt.Errorf("%w: %s of bucket %s: %d vbuckets, want 1 to %d", ErrTopic, cfg.Path, cfg.Bucket, cfg.VBuckets,
			timestamp.MaxVBuckets)
	}
	key := topicKey{cfg.Path, cfg.Bucket}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return nil, fmt.Errorf("%w: the router is shut down", ErrClosed)
	}
	if r.open[key] != nil {
		return nil, fmt.Errorf("%w: %s of bucket %s is already open; close it first", ErrTopic, cfg.Path, cfg.Bucket)
	}
	t := newTopic(r, cfg)
	r.open[key] = t
	return t, nil
}

// Close closes all topics and waits until they have ended.
func (r *Router) Close() {
	r.mu.Lock()
	r.done = true
	topics := make([]*Topic, 0, len(r.open))
	for _, t := range r.open {
		topics = append(topics, t)
	}
	r.mu.Unlock()
	for _, t := range topics {
		t.Close()
	}
}

// closed removes a topic from the router.
func (r *Router) closed(t *Topic) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := topicKey{t.cfg.Path, t.cfg.Bucket}
	if r.open[key] == t {
		delete(r.open, key)
	}
}
