// Package coordinator holds the duties of the leading index manager (IM-4 to IM-22): it makes components known, hands
// definitions to them, places and builds indexes, keeps the ledger of the maintenance streams, promotes stability
// timestamps, and notices who is silent.
//
// What it promises: every duty works from the replicated state and from what components report (level-triggered), so
// that a lost message, a lost event or a new leader loses nothing; streams that run are taken over, not restarted; a
// slow or absent component delays only what depends on it; a stability timestamp is committed before it is published;
// what cannot be undone is told only after its commit and a fresh check of leadership.
//
// What it never does: change the replicated state other than by proposing, or decide anything that packages stability,
// streams and rebalance decide.
//
// Package core decides: its Leader's step takes an input and returns effects as data. A driver per term owns one
// (type term): inputs come through one bounded queue, effects go out through lanes, a few per receiver.
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

// Consensus is what the coordinator needs of a Raft node; *consensus.Node is one.
type Consensus interface {
	ID() string
	State() *statecontext.State
	// StateTimeMS is the state's time of now, for ages: it goes on though nothing is proposed.
	StateTimeMS() int64
	Propose(ctx context.Context, command statecontext.Command) (statecontext.Result, error)
	// ReadBarrier returns when this node's leadership has been checked.
	ReadBarrier(ctx context.Context) error
}

// Machine signals changes of the state; *fsm.FSM is one.
type Machine interface {
	Subscribe() *fsm.Subscription
}

// Projectors speaks to projectors; *projectorclient.Client does.
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

// Indexers speaks to indexers; *indexerclient.Client does.
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
	// ErrConfig is wrapped when a Config cannot be used.
	ErrConfig = errors.New("coordinator configuration")
)

// Config holds what a Coordinator works with.
type Config struct {
	Consensus  Consensus
	Machine    Machine
	Projectors Projectors
	Indexers   Indexers
	// REST is this manager's base URL, told to components.
	REST     string
	Logger   hclog.Logger
	Now      func() time.Time // time.Now
	began    time.Time
	Settings core.Settings
	// Quantiles finds, within so long, the values of the leading key that cut an index into n parts of about as many
	// entries, fewer where it cannot be cut into so many; nil: nobody can.
	Quantiles func(ctx context.Context, x *statecontext.Index, n int, within time.Duration) (partition.Cuts, error)
	// Loads finds, within so long, the values that cut slices of a range each where what is written to and read from it
	// has its quantiles, in the order of the slices asked for; nil: nobody can.
	Loads func(ctx context.Context, x *statecontext.Index, hot []rebalance.Hot, within time.Duration) ([]partition.Cuts,
		error)
	// Hold, for tests, is asked before each transition of a slice that moves is proposed (the state that follows, or
	// HoldForget): true holds it back, and the duty comes again. nil: nothing is.
	Hold func(what string) bool
}

// HoldForget is what Hold is asked before copies are forgotten that have left.
const HoldForget = "forget"

// firstTry is how long what a component is told may take before it leaves its place to others, see tellsAtOnce.
const firstTry = time.Second

// Bounds. They are constants because they bound memory, not behaviour.
const (
	// inboxLength bounds inputs that wait for the loop: more than all components send in a tick.
	inboxLength = 4096
	// tick is how often time alone moves something.
	tick = 20 * time.Millisecond
	// tellsAtOnce is of how many buckets a component carries out commands, and how many questions about a projector's
	// KV node are under way, beside hangAtOnce that have taken longer than firstTry: a bucket about which KV is silent, or
	// that is restored, takes no place of the others for longer.
	tellsAtOnce = 4
	hangAtOnce  = 60
	// CallsAtOnce is how many calls to one component a leader may have under way: commands, questions, and one by each of
	// the other lanes.
	CallsAtOnce = 2*(tellsAtOnce+hangAtOnce) + 4
	// commandRetries is how often a command is sent again at once that another lane's command overtook.
	commandRetries = 3
	// mostRehearsals go on at once: each has a copy of the state.
	mostRehearsals = 2
)

// Coordinator does the duties while its manager leads. Its methods are safe for concurrent use.
type Coordinator struct {
	cfg        Config
	rehearsing chan struct{} // has one for each rehearsal that goes on
	rehearses  bool          // it is one

	mu      sync.Mutex
	current *term
}

// DefaultSource moves the stability timestamps of buckets for which none is set, while this manager leads.
func (c *Coordinator) DefaultSource() stability.Source { return c.cfg.Settings.Stability.Source }

// New makes a Coordinator. Errors wrap ErrConfig.
func New(cfg Config) (*Coordinator, error) {
	switch {
	case cfg.Consensus == nil || cfg.Machine == nil || cfg.Projectors == nil || cfg.Indexers == nil:
		return nil, fmt.Errorf("%w: consensus, machine, projectors and indexers are needed", ErrConfig)
	case cfg.REST == "":
		return nil, fmt.Errorf("%w: components must be told this manager's REST address", ErrConfig)
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

// Run does the duties of one term until ctx ends: it is the leader loop that package consensus runs. An error is a
// set-up that failed; leadership should be handed on.
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
		c.cfg.Logger.Info("the state was restored: duties begin anew", "term", term)
	}
}

// leading returns the present term.
func (c *Coordinator) leading() (*term, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return nil, ErrNotLeading
	}
	return c.current, nil
}

// leadingNow is leading, with a state that has all that was committed before the call.
func (c *Coordinator) leadingNow(ctx context.Context) (*term, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	return t, c.cfg.Consensus.ReadBarrier(ctx)
}

// nowMS is a clock in milliseconds that no step of the wall clock moves: ages of reports would jump with it, and every
// component would be away at once.
func (c *Config) nowMS() int64 { return c.began.UnixMilli() + c.Now().Sub(c.began).Milliseconds() }
