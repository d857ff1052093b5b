// Package consensus is a Raft node of the index managers: transport, stores, proposals, linearizable reads, leadership
// and membership, on hashicorp/raft and raft-boltdb.
//
// It promises that a proposal has one of three answers (applied with its result, certainly not applied, outcome
// unknown), that a read at an index from ReadIndex sees every write acknowledged before it and all that earlier reads
// have seen, that one leader loop runs at a time and is torn down wholly before the next, and that a node whose log was
// wiped never votes under its old name: a connection names the server id that it is meant for, and any other server
// refuses it. It never interprets commands: their meaning stands in package statecontext.
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

	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// The settings, as measured: docs/performance.md and the design of the control plane give the reasons.
const (
	// DefaultHeartbeat is heartbeat, election and lease timeout: a killed leader is replaced within three of them.
	DefaultHeartbeat = 300 * time.Millisecond
	commitTimeout    = 5 * time.Millisecond // followers show a commit after this at the latest
	maxAppendEntries = 256
	logCacheEntries  = 512 // without it throughput falls by a quarter
	trailingLogs     = 10240
	snapshotEntries  = 8192
	snapshotInterval = 8 * time.Second
	snapshotsKept    = 2
	boltOpenTimeout  = 2 * time.Second // a second process gets an error, not a hang
	transportPool    = 4               // idle connections to each peer

	// queueLength bounds proposals that wait; a full queue is ErrBusy.
	queueLength = 4096
	// batchCommands and batchBytes bound one group commit.
	batchCommands = 256
	batchBytes    = 512 << 10
	// inflightEntries bounds entries handed to Raft and not yet answered.
	inflightEntries = 8
	// notifySlots is the room for changes of leadership that the drainer has not seen yet.
	notifySlots = 16
	// proposeTimeout bounds how long Raft may take to accept an entry (not to commit it).
	proposeTimeout = 2 * time.Second
	// readQueue bounds reads that wait for a leadership check; all of them share the next one.
	readQueue = 4096
)

// Config describes a node. Zero fields have the defaults named.
type Config struct {
	Name string // becomes the server id, with a random suffix that is stored with the log
	Dir  string // holds raft.db and snapshots
	// REST is the base URL that LeaderStarted announces.
	REST string
	// RaftAddr is host:port to listen on; ignored when Listener is set.
	RaftAddr string
	// Advertise is host:port that the other nodes dial; the listener's address when empty.
	Advertise string
	Listener  net.Listener
	// TLS, unless nil, is on every connection: both sides show a manager's certificate.
	TLS *tlsconf.Source
	// Dial opens a connection to another node, TLS included; TCP with TLS when nil.
	Dial func(addr string, timeout time.Duration) (net.Conn, error)

	Heartbeat time.Duration // DefaultHeartbeat
	// SnapshotThreshold is the number of entries after which a snapshot is taken, TrailingLogs how many are kept
	// behind one.
	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	TrailingLogs      uint64

	// MinFree is the number of free bytes under Dir below which this node is not well and hands leadership on; 0: it does
	// not matter.
	MinFree uint64
	// SlowWrite is the time from which a write to the store counts as slow: three in a row and this node is not well. Two
	// heartbeats when 0.
	SlowWrite time.Duration
	// Failpoint, for tests, is called before each write to the store, which takes as long and fails as it does.
	Failpoint func() error

	Logger hclog.Logger
	Now    func() time.Time // stamps commands; time.Now

	// Version names this program in entries, so that an older one can say what to install.
	Version string
	// FormatLevel is the newest format level that this node understands; the program's own when 0.
	FormatLevel uint64
}

// ErrConfig is wrapped when a Config cannot be used.
var ErrConfig = errors.New("consensus configuration")

func (c *Config) withDefaults() error {
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
		return fmt.Errorf("%w: neither Listener nor RaftAddr is set", ErrConfig)
	case c.Heartbeat < 20*time.Millisecond:
		return fmt.Errorf("%w: heartbeat %v, want at least 20ms", ErrConfig, c.Heartbeat)
	case c.FormatLevel > statecontext.NextLevel:
		return fmt.Errorf("%w: format level %d, there are levels up to %d", ErrConfig, c.FormatLevel,
			statecontext.NextLevel)
	}
	return nil
}

// raft returns the library's settings.
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
	rc.NoLegacyTelemetry = true // names with a peer's id in them; the same figures have it as a label
	return rc
}

func (c *Config) database() string { return filepath.Join(c.Dir, "raft.db") }

// StateMachine is what a node applies committed entries to; package fsm has it.
type StateMachine interface {
	raft.FSM
	// State returns the newest state.
	State() *statecontext.State
	// Wait returns when the entry with this index has been applied.
	Wait(ctx context.Context, index uint64) error
}
