package feed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// Defaults and limits of Config.
const (
	// DefaultBufferBytes is how many unreleased bytes the node may send.
	DefaultBufferBytes = 10 << 20
	// MinBufferBytes keeps the share of acknowledgements in the traffic small.
	MinBufferBytes = 64 << 10
	// MaxBufferBytes is the largest window whose acknowledgement fits into the protocol's field, with room for an
	// overshooting message.
	MaxBufferBytes = 1 << 30
	// DefaultNoopInterval is how often the node sends a noop.
	DefaultNoopInterval = 5 * time.Second
	// DefaultRequestTimeout bounds each request, stream requests included.
	DefaultRequestTimeout = 10 * time.Second
	// ackFraction: an acknowledgement is sent after 1/ackFraction of the buffer has been released.
	ackFraction = 5
)

// Config configures a DCP connection to one node.
type Config struct {
	// Addr is the node's memcached address, host:port.
	Addr string
	// Bucket, User and Password are used for authentication.
	Bucket, User, Password string
	// Name is the connection's name, 1 to mcbp.MaxConnectionName bytes. It must be unique per process, node, topic and
	// incarnation: a second connection of the same name silently closes the first.
	Name string
	// BufferBytes is the flow-control window. 0 means DefaultBufferBytes.
	BufferBytes int
	// NoopInterval is how often the node sends a sign of life, in whole seconds.
	NoopInterval time.Duration
	// DeadAfter is the silence after which the connection is closed; 0 means twice NoopInterval.
	DeadAfter time.Duration
	// RequestTimeout bounds each request.
	RequestTimeout time.Duration
	// Xattrs requests extended attributes; without it the node leaves them out.
	Xattrs bool
	// Tombstones requests what a replica of the vbucket needs to know of deletions: when they were made, which of them
	// are expirations, and up to where they were purged.
	Tombstones bool
	// TLS encrypts the connection unless it is nil.
	TLS *tls.Config
	// AllowPlain permits PLAIN without TLS when the node offers nothing better.
	AllowPlain bool
	// Network selects the addresses in the cluster map; only implementations that connect by the map use it.
	Network string
	// Managers are the node's cluster manager, host:port; only implementations that connect by the map use it.
	Managers []string
	// Map returns the map of a node that provides none itself; nil if there is no such source.
	Map func(ctx context.Context) (*mcbp.ClusterConfig, error)
	// Calm, unless nil, lets reads rest while no caller is in a hurry. Implementations may ignore it.
	Calm *Calm
	// Logger may be nil.
	Logger hclog.Logger
}

// Checked returns the configuration with defaults filled in, or an error for values that cannot work.
func (c Config) Checked() (Config, error) {
	if c.BufferBytes == 0 {
		c.BufferBytes = DefaultBufferBytes
	}
	if c.NoopInterval == 0 {
		c.NoopInterval = DefaultNoopInterval
	}
	if c.DeadAfter == 0 {
		c.DeadAfter = 2 * c.NoopInterval
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = DefaultRequestTimeout
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	switch {
	case len(c.Name) == 0 || len(c.Name) > mcbp.MaxConnectionName:
		return c, fmt.Errorf("feed: the connection's name has %d bytes, want 1 to %d", len(c.Name), mcbp.MaxConnectionName)
	case c.Bucket == "":
		return c, errors.New("feed: no bucket is given")
	case c.BufferBytes < MinBufferBytes || c.BufferBytes > MaxBufferBytes:
		return c, fmt.Errorf("feed: BufferBytes is %d, want %d to %d", c.BufferBytes, MinBufferBytes, MaxBufferBytes)
	case c.NoopInterval < time.Second:
		return c, fmt.Errorf("feed: NoopInterval is %v, want at least a second", c.NoopInterval)
	case c.DeadAfter < 0 || c.RequestTimeout < 0:
		return c, errors.New("feed: negative DeadAfter or RequestTimeout")
	}
	return c, nil
}

// Errors of this package. Those that kvclient has, too, are the same values.
var (
	ErrAuth         = kvclient.ErrAuth
	ErrNoBucket     = kvclient.ErrNoBucket
	ErrNotMyVBucket = kvclient.ErrNotMyVBucket
	ErrTemporary    = kvclient.ErrTemporary
	ErrClosed       = kvclient.ErrClosed
	ErrProtocol     = kvclient.ErrProtocol
	// ErrStreamExists: this connection already has a stream of the vbucket.
	ErrStreamExists = errors.New("feed: the vbucket already has a stream on this connection")
	// ErrNoStream: this connection has no stream of the vbucket.
	ErrNoStream = errors.New("feed: the vbucket has no stream on this connection")
	// ErrRange: start, end and window of a stream request contradict each other or are beyond what the node has.
	ErrRange = errors.New("feed: the node refuses the range of the stream request")
	// ErrRollback matches a *RollbackError in errors.Is.
	ErrRollback = errors.New("feed: the node demands a rollback")
	// ErrTimeout: no answer within Config.RequestTimeout.
	ErrTimeout = errors.New("feed: the node did not answer in time")
	// ErrDead: the node was silent for Config.DeadAfter.
	ErrDead = errors.New("feed: the node has fallen silent")
	// ErrOrder: the events of a stream contradict each other (Tracker).
	ErrOrder = errors.New("feed: events of a stream out of order")
	// ErrNotSupported: the node refuses something that this consumer requires.
	ErrNotSupported = kvclient.ErrNotSupported
)

// RollbackError is the refusal of a stream request: the consumer must roll back to its own snapshot at or below Seqno
// and request the stream from there. It is an ErrRollback.
type RollbackError struct {
	VBucket uint16
	Seqno   uint64
}

// Error states the seqno.
func (e *RollbackError) Error() string {
	return fmt.Sprintf("feed: vbucket %d must roll back to seqno %d or below", e.VBucket, e.Seqno)
}

// Is reports whether target is ErrRollback.
func (e *RollbackError) Is(target error) bool { return target == ErrRollback }

// broken returns the error for an answer whose content violates the protocol.
func broken(vbucket uint16, err error) error {
	return fmt.Errorf("%w: vbucket %d: %w", ErrProtocol, vbucket, err)
}

// MapOf parses a node's answer to GET_CLUSTER_CONFIG. If the node does not support the request, Config.Map is used.
func (c Config) MapOf(ctx context.Context, answer mcbp.Frame, err error) (*mcbp.ClusterConfig, error) {
	if err == nil {
		err = AnswerError(answer, 0)
	}
	switch {
	case err == nil:
		return mcbp.ParseClusterConfig(answer.Value)
	case c.Map != nil && errors.Is(err, ErrNotSupported):
		return c.Map(ctx)
	}
	return nil, err
}

// AnswerError returns the error in a node's answer to a request about a vbucket: nil for success, otherwise one that
// wraps a *kvclient.StatusError and the matching sentinel of this package, or a *RollbackError.
func AnswerError(f mcbp.Frame, vbucket uint16) error {
	err := kvclient.NewStatusError(f)
	if err == nil {
		return nil
	}
	stream := f.Op == mcbp.OpDCPStreamReq
	switch f.Status() {
	case mcbp.StatusRollback:
		seqno, derr := mcbp.DecodeRollback(f.Value)
		if derr != nil {
			return broken(vbucket, derr)
		}
		return &RollbackError{VBucket: vbucket, Seqno: seqno}
	case mcbp.StatusKeyExists:
		if stream {
			err = fmt.Errorf("%w: %w", ErrStreamExists, err)
		}
	case mcbp.StatusKeyNotFound:
		if f.Op == mcbp.OpDCPCloseStream {
			err = fmt.Errorf("%w: %w", ErrNoStream, err)
		}
	case mcbp.StatusRange:
		err = fmt.Errorf("%w: %w", ErrRange, err)
	case mcbp.StatusNotSupported:
		err = fmt.Errorf("%w: %w", ErrNotSupported, err)
	}
	return fmt.Errorf("vbucket %d: %w", vbucket, err)
}
