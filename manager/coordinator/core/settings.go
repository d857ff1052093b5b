package core

import (
	"fmt"
	"time"

	"tidemark/stability"
	"tidemark/streams"
)

// Settings configures the duties. FillIn replaces zero fields by defaults.
type Settings struct {
	Stability stability.Config
	Streams   streams.Config
	Pacer     stability.Pacer
	// HelloWait is how long a new leader waits for components that do not answer before it proceeds without them.
	HelloWait time.Duration
	// SuspectAfter and OfflineAfter are the ages of a component's last sign of life at which it becomes suspect and
	// offline.
	SuspectAfter, OfflineAfter time.Duration
	// ProbeRest is the least time between a projector's registration, or its last probe, and the next probe.
	ProbeRest time.Duration
	// BuildTimeout is how long a build may lack a host before its index goes to error.
	BuildTimeout time.Duration
	// BuildAway is how long an indexer may be away before the copies that it was building, and those that a repair was to
	// make there and has not begun, are built elsewhere. An indexer that restarts sooner resumes them.
	BuildAway time.Duration
	// RepairAfter is how long an indexer may be away before its copies are made anew elsewhere; below 0: forever.
	RepairAfter time.Duration
	// SplitAbove is the size of a slice in bytes above which its index is split automatically; 0: no limit.
	SplitAbove int64
	// SplitAboveRate is the number of entries written to and read from a slice per second above which its index is split
	// automatically; 0: no limit.
	SplitAboveRate int64
	// SplitAfter is how long a slice must exceed either limit before its index is split.
	SplitAfter time.Duration
	// Republish is the time after which an unacknowledged stability timestamp is sent again.
	Republish time.Duration
	// BucketCheck is the interval at which projectors are queried whether the known buckets still exist.
	BucketCheck time.Duration
	// ProjectorWait is how long a statement about an unknown bucket waits for a projector to answer: after a cluster
	// start projectors register a moment later than the managers.
	ProjectorWait time.Duration
	// Audit is the interval at which a bucket's streams are compared with KV's failover logs.
	Audit time.Duration
	// DefaultPartitions is used if a definition does not set the number.
	DefaultPartitions uint16
	// EvictBytes limits the size of one command that takes copies off an indexer; watchers receive its changes in one
	// piece.
	EvictBytes int
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{Stability: stability.DefaultConfig(), Streams: streams.DefaultConfig(),
		Pacer:     stability.DefaultPacer(),
		HelloWait: 3 * time.Second, SuspectAfter: 1500 * time.Millisecond, OfflineAfter: 5 * time.Second,
		ProbeRest: 200 * time.Millisecond, BuildTimeout: 10 * time.Minute, BuildAway: 30 * time.Second,
		RepairAfter: 15 * time.Minute,
		SplitAfter:  10 * time.Minute, Republish: time.Second, BucketCheck: 5 * time.Second, ProjectorWait: 3 * time.Second,
		Audit: 10 * time.Second, DefaultPartitions: 6, EvictBytes: 64 << 10}
}

// FillIn replaces zero fields by those of d.
func (s *Settings) FillIn(d Settings) {
	orDefault(&s.Stability, d.Stability)
	orDefault(&s.Streams, d.Streams)
	orDefault(&s.Pacer, d.Pacer)
	orDefault(&s.HelloWait, d.HelloWait)
	orDefault(&s.SuspectAfter, d.SuspectAfter)
	orDefault(&s.OfflineAfter, d.OfflineAfter)
	orDefault(&s.BuildTimeout, d.BuildTimeout)
	orDefault(&s.BuildAway, d.BuildAway)
	orDefault(&s.RepairAfter, d.RepairAfter)
	orDefault(&s.SplitAfter, d.SplitAfter)
	orDefault(&s.Republish, d.Republish)
	orDefault(&s.BucketCheck, d.BucketCheck)
	orDefault(&s.ProjectorWait, d.ProjectorWait)
	orDefault(&s.Audit, d.Audit)
	orDefault(&s.EvictBytes, d.EvictBytes)
	orDefault(&s.DefaultPartitions, d.DefaultPartitions)
}

// Check returns an error if a value is invalid, or contradicts another one.
func (s *Settings) Check() error {
	if s.SuspectAfter >= s.OfflineAfter {
		return fmt.Errorf("suspect after %v must be below offline after %v", s.SuspectAfter, s.OfflineAfter)
	}
	if err := s.Stability.Check(); err != nil {
		return err
	}
	return s.Streams.Check()
}

func orDefault[T comparable](have *T, otherwise T) {
	var zero T
	if *have == zero {
		*have = otherwise
	}
}
