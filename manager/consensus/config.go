// Package consensus is a Raft node of the index managers: transport, stores, proposals, linearizable reads,
// leadership and membership, on hashicorp/raft and raft-boltdb.
//
// It guarantees that a proposal has one of three outcomes (applied with its result, certainly not applied, unknown);
// that a read at an index from ReadIndex sees every write acknowledged before it and everything that earlier reads
// have seen; that one leader loop runs at a time and has returned before the next begins; and that a node whose log
// was wiped never votes under its old id: a connection names the server id that it is meant for, and any other server
// refuses it. The package never interprets commands; package statecontext defines their meaning.
package consensus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"tidemark/internal/diskspace"
	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// Measured settings; docs/performance.md and the design of the control plane give the reasons.
const (
	// DefaultHeartbeat is heartbeat, election and lease timeout: a killed leader is replaced within three of them.
	DefaultHeartbeat = 300 * time.Millisecond
	commitTimeout    = 5 * time.Millisecond // a follower applies a commit after this at the latest
	maxAppendEntries = 256
	logCacheEntries  = 512 // without it throughput falls by a quarter
	trailingLogs     = 10240
	snapshotEntries  = 8192
	snapshotInterval = 8 * time.Second
	snapshotsKept    = 2
	boltOpenTimeout  = 2 * time.Second // a second process gets an error instead of hanging
	transportPool    = 4               // idle connections to each peer

	// queueLength bounds the waiting proposals; if the queue is full, Propose returns ErrBusy.
	queueLength = 4096
	// batchCommands and batchBytes bound one entry of a group commit.
	batchCommands = 256
	batchBytes    = 512 << 10
	// inflightEntries bounds the entries passed to Raft and not yet resolved.
	inflightEntries = 8
	// notifySlots is the buffer for leadership changes that drain has not received yet.
	notifySlots = 16
	// proposeTimeout bounds how long Raft may take to accept an entry, not to commit it.
	proposeTimeout = 2 * time.Second
	// readQueue bounds the reads that wait for a leadership check; all of them share the next check.
	readQueue = 4096
)

// Config describes a node. Zero fields have the defaults named below.
type Config struct {
	Name string // first part of the server id; a random suffix stored with the log follows
	Dir  string // holds raft.db, committed and snapshots
	// REST is the base URL that LeaderStarted announces.
	REST string
	// RaftAddr is host:port to listen on; ignored when Listener is set.
	RaftAddr string
	// Advertise is host:port that the other nodes dial; the listener's address when empty.
	Advertise string
	Listener  net.Listener
	// TLS, unless nil, is used for every connection: both sides present a manager's certificate.
	TLS *tlsconf.Source
	// Dial opens a connection to another node, including TLS if used; nil: TCP with TLS.
	Dial func(addr string, timeout time.Duration) (net.Conn, error)

	Heartbeat time.Duration // DefaultHeartbeat
	// SnapshotThreshold is the number of entries after which a snapshot is taken, TrailingLogs the number of entries
	// kept before a snapshot.
	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	TrailingLogs      uint64

	// MinFree is the number of free bytes under Dir below which this node counts as unhealthy and transfers leadership;
	// 0: no minimum.
	MinFree uint64
	// space measures the file system of a folder; nil: diskspace.Of. Tests replace it.
	space func(dir string) (diskspace.Space, error)
	// SlowWrite is the duration from which a write to the store counts as slow; after three slow writes in a row this
	// node counts as unhealthy. 0: two heartbeats.
	SlowWrite time.Duration
	// Failpoint, for tests, runs before each write to the store and adds its duration and its error to the write.
	Failpoint func() error

	Logger hclog.Logger
	Now    func() time.Time // clock that stamps commands; default time.Now

	// Version is recorded in entries, so that an older program can name the version to install.
	Version string
	// FormatLevel is the newest format level that this node supports; 0: that of the program.
	FormatLevel uint64
}

// ErrConfig is wrapped if a Config cannot be used.
var ErrConfig = errors.New("consensus configuration")

func (c *Config) withDefaults() error {
	if c.space == nil {
		c.space = diskspace.Of
	}
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.SlowWrite = cmp.Or(c.SlowWrite, slowHeartbeats*c.Heartbeat)
	c.SnapshotThreshold = cmp.Or(c.SnapshotThreshold, snapshotEntries)
	c.SnapshotInterval = cmp.Or(c.SnapshotInterval, snapshotInterval)
	c.TrailingLogs = cmp.Or(c.TrailingLogs, trailingLogs)
	c.FormatLevel = cmp.Or(c.FormatLevel, statecontext.FormatLevel)
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	switch {
	case c.Name == "" || c.Dir == "":
		return fmt.Errorf("%w: Name %q and Dir %q must not be empty", ErrConfig, c.Name, c.Dir)
	case c.Listener == nil && c.RaftAddr == "":
		return fmt.Errorf("%w: Listener or RaftAddr must be set", ErrConfig)
	case c.Heartbeat < 20*time.Millisecond:
		return fmt.Errorf("%w: heartbeat %v, want at least 20ms", ErrConfig, c.Heartbeat)
	case c.FormatLevel > statecontext.NextLevel:
		return fmt.Errorf("%w: format level %d, the highest is %d", ErrConfig, c.FormatLevel,
			statecontext.NextLevel)
	}
	return nil
}

// raft returns the settings of the Raft library.
func (c *Config) raft(id raft.ServerID, notify chan<- bool) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = id
	rc.HeartbeatTimeout, rc.ElectionTimeout, rc.LeaderLeaseTimeout = c.Heartbeat, c.Heartbeat, c.Heartbeat
	rc.CommitTimeout = commitTimeout
	rc.MaxAppendEntries = maxAppendEntries
	rc.TrailingLogs = c.TrailingLogs
	rc.SnapshotThreshold = c.SnapshotThreshold
	rc.SnapshotInterval = c.SnapshotInterval
	rc.Logger = c.Logger
	rc.NotifyCh = notify
	rc.NoLegacyTelemetry = true // its names contain peer ids; the current ones carry them as labels
	return rc
}

func (c *Config) database() string { return filepath.Join(c.Dir, "raft.db") }

func (c *Config) committed() string { return filepath.Join(c.Dir, "committed") }

// StateMachine is the state machine to which a node applies committed entries; package fsm implements it.
type StateMachine interface {
	raft.FSM
	// State returns the newest state.
	State() *statecontext.State
	// Wait waits until the entry with this index has been applied.
	Wait(ctx context.Context, index uint64) error
}
