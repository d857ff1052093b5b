// Package coordinator implements the duties of the leading index manager (IM-4 to IM-22): it registers components,
// pushes definitions to them, places and builds indexes, keeps the ledger of the maintenance streams, promotes
// stability timestamps, and detects silent components.
//
// It guarantees: every duty works from the replicated state and from the components' reports (level-triggered), so
// that a lost message, a lost event or a new leader loses nothing; running streams are adopted, not restarted; a slow
// or absent component delays only what depends on it; a stability timestamp is committed before it is published; a
// command that cannot be undone is sent only after its commit and a fresh check of leadership.
//
// It never changes the replicated state other than by proposals, and decides nothing that packages stability, streams
// and rebalance decide.
//
// Package core decides: a step of its Leader takes an input and returns effects as data. One driver per term owns a
// Leader (type term): inputs come through one bounded queue, effects go out through lanes, a few per receiver.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/fsm"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Consensus is the part of a Raft node that the coordinator uses; *consensus.Node implements it.
type Consensus interface {
	ID() string
	State() *statecontext.State
	// StateTimeMS returns the present state time, for ages: it advances even if nothing is proposed.
	StateTimeMS() int64
	Propose(ctx context.Context, command statecontext.Command) (statecontext.Result, error)
	// ReadBarrier returns when this node's leadership has been verified.
	ReadBarrier(ctx context.Context) error
}

// Machine signals changes of the state; *fsm.FSM implements it.
type Machine interface {
	Subscribe() *fsm.Subscription
}

// Projectors sends requests to projectors; *projectorclient.Client implements it.
type Projectors interface {
	Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.ProjectorHello, error)
	Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error)
	Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply, error)
	Bucket(ctx context.Context, addr string, req *wire.BucketRequest) (*wire.BucketReply, error)
	FailoverLogs(ctx context.Context, addr string, req *wire.FailoverLogsRequest) (*wire.FailoverLogsReply, error)
	Streams(ctx context.Context, addr string, req *wire.StreamRequest) (*wire.StreamReply, error)
	Stop(ctx context.Context, addr string, req *wire.StreamStop) error
	Sync(ctx context.Context, addr string, req *wire.SyncRequest) (*wire.ProjectorReport, error)
}

// Indexers sends requests to indexers; *indexerclient.Client implements it.
type Indexers interface {
	Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.IndexerHello, error)
	Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error)
	Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply, error)
	Poll(ctx context.Context, addr string, req *wire.PollRequest) (*wire.PollReply, error)
	Stability(ctx context.Context, addr string, req *wire.StabilityRequest) error
	Rollback(ctx context.Context, addr string, req *wire.RollbackRequest) (*wire.RollbackReply, error)
	DropOrphans(ctx context.Context, addr string, req *wire.DropOrphans) (*wire.DropOrphansReply, error)
}

var (
	// ErrNotLeading is wrapped when this manager does not lead, or stopped leading before the answer came.
	ErrNotLeading = errors.New("this manager does not lead")
	// ErrConfig is wrapped when a Config is invalid.
	ErrConfig = errors.New("coordinator configuration")
)

// Config configures a Coordinator.
type Config struct {
	Consensus  Consensus
	Machine    Machine
	Projectors Projectors
	Indexers   Indexers
	// this manager's base URL, as sent to components
	REST     string
	Logger   hclog.Logger
	Now      func() time.Time // time.Now
	began    time.Time
	Settings core.Settings
	// Quantiles returns, within the given time, values of the leading key that cut an index into n parts of about equal
	// numbers of entries, or into fewer if n is impossible; nil: not supported.
	Quantiles func(ctx context.Context, x *statecontext.Index, n int, within time.Duration) (partition.Cuts, error)
	// Loads returns, within the given time, values that cut the range of each hot slice at the quantiles of what is
	// written to and read from it, in the order of the slices requested; nil: not supported.
	Loads func(ctx context.Context, x *statecontext.Index, hot []rebalance.Hot, within time.Duration) ([]partition.Cuts,
		error)
	// Hold, for tests, is called with the next state of a moving slice (or HoldForget) before the transition is
	// proposed; if it returns true the proposal fails and the duty retries. May be nil.
	Hold func(what string) bool
}

// HoldForget is passed to Hold before released copies are removed from the state.
const HoldForget = "forget"

// firstTry is how long a message may take before it yields its worker to others, see sendsAtOnce.
const firstTry = time.Second

// Limits. They are constants because they bound memory, not behaviour.
const (
	// inboxLength limits the inputs that wait for the loop: more than all components send in a tick.
	inboxLength = 4096
	// tick is the interval of timed duties.
	tick = 20 * time.Millisecond
	// sendsAtOnce is the number of buckets for which a component carries out commands at once, and of queries about a
	// projector's KV node, in addition to hangAtOnce that have taken longer than firstTry: a bucket for which KV does
	// not answer, or that is being restored, delays the others no longer than that.
	sendsAtOnce = 4
	hangAtOnce  = 60
	// CallsAtOnce is the number of calls to one component that a leader may have in flight: commands, queries, and one
	// per other lane.
	CallsAtOnce = 2*(sendsAtOnce+hangAtOnce) + 4
	// commandRetries is how often a command is resent at once after a command of another lane overtook it.
	commandRetries = 3
	// mostRehearsals limits concurrent rehearsals: each has a copy of the state.
	mostRehearsals = 2
)

// Coordinator runs the duties while its manager leads. Its methods are safe for concurrent use.
type Coordinator struct {
	cfg        Config
	rehearsing chan struct{} // holds one element per rehearsal in progress
	rehearses  bool          // this Coordinator is a rehearsal

	mu      sync.Mutex
	current *term
}

// DefaultSource returns what drives the stability timestamps of buckets without a setting of their own, while this
// manager leads.
func (c *Coordinator) DefaultSource() stability.Source { return c.cfg.Settings.Stability.Source }

// New returns a Coordinator. Errors wrap ErrConfig.
func New(cfg Config) (*Coordinator, error) {
	switch {
	case cfg.Consensus == nil || cfg.Machine == nil || cfg.Projectors == nil || cfg.Indexers == nil:
		return nil, fmt.Errorf("%w: consensus, machine, projectors and indexers are required", ErrConfig)
	case cfg.REST == "":
		return nil, fmt.Errorf("%w: this manager's REST address, which components need, is empty", ErrConfig)
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.began = cfg.Now()
	cfg.Settings.FillIn(core.DefaultSettings())
	if err := cfg.Settings.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Coordinator{cfg: cfg, rehearsing: make(chan struct{}, mostRehearsals)}, nil
}

// Run runs the duties of one term until ctx ends: it is the leader loop that package consensus calls. An error means
// that the set-up failed, and leadership should be handed on.
func (c *Coordinator) Run(ctx context.Context, term uint64) error {
	for {
		l := c.newTerm(term)
		c.mu.Lock()
		c.current = l
		c.mu.Unlock()
		err := l.run(ctx)
		c.mu.Lock()
		c.current = nil
		c.mu.Unlock()
		if !errors.Is(err, errRestored) || ctx.Err() != nil {
			return err
		}
		c.cfg.Logger.Info("state was restored from a backup: coordination restarts", "term", term)
	}
}

// leading returns the present term. Errors wrap ErrNotLeading.
func (c *Coordinator) leading() (*term, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return nil, ErrNotLeading
	}
	return c.current, nil
}

// leadingNow returns the present term once the state has everything that was committed before the call.
func (c *Coordinator) leadingNow(ctx context.Context) (*term, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	return t, c.cfg.Consensus.ReadBarrier(ctx)
}

// nowMS returns a monotonic time in unix milliseconds as of the process's start. If the wall clock were used, setting
// it would change the ages of all reports, and could make every component offline at once.
func (c *Config) nowMS() int64 { return c.began.UnixMilli() + c.Now().Sub(c.began).Milliseconds() }
