package core

import (
	"fmt"
	"time"

	"tidemark/stability"
	"tidemark/streams"
)

// Settings are the limits of the duties. Zero fields have the defaults named.
type Settings struct {
	Stability stability.Config
	Streams   streams.Config
	Pacer     stability.Pacer
	// HelloWait is how long a new leader waits for components that do not answer before it goes on without them.
	HelloWait time.Duration
	// SuspectAfter and OfflineAfter are ages of a component's last sign of life.
	SuspectAfter, OfflineAfter time.Duration
	// ProbeRest is how long a projector is left alone after it has registered, or was asked whether it lives.
	ProbeRest time.Duration
	// BuildPatience is how long a build may lack a host before it goes to error.
	BuildPatience time.Duration
	// BuildAway is for how long an indexer may be away before what it is building is built elsewhere: one that is only
	// started again goes on where it was.
	BuildAway time.Duration
	// RepairAfter is for how long an indexer may be away before what it holds is made anew elsewhere; below 0: for ever.
	RepairAfter time.Duration
	// SplitAbove is how many bytes a slice may have before its index is split by itself; 0: any number.
	SplitAbove int64
	// SplitAboveRate is how many entries may be written to and read from a slice in a second before that; 0: any number.
	SplitAboveRate int64
	// SplitAfter is for how long a slice has to have more of either.
	SplitAfter time.Duration
	// Republish is after how long a stability timestamp that was not acknowledged is told again.
	Republish time.Duration
	// BucketCheck is how often a projector is asked whether the known buckets still exist.
	BucketCheck time.Duration
	// ProjectorWait is how long a statement about a bucket that is not known yet waits for a projector that answers: right
	// after a start they come a moment later than the managers.
	ProjectorWait time.Duration
	// Audit is how often the streams of a bucket are compared with what KV says.
	Audit time.Duration
	// DefaultPartitions is used where a definition leaves the number open.
	DefaultPartitions uint16
	// EvictBytes bounds one command that takes copies off an indexer. Whoever watches gets what it did in one piece.
	EvictBytes int
}

// DefaultSettings is what the design asks for.
func DefaultSettings() Settings {
	return Settings{Stability: stability.DefaultConfig(), Streams: streams.DefaultConfig(),
		Pacer:     stability.DefaultPacer(),
		HelloWait: 3 * time.Second, SuspectAfter: 1500 * time.Millisecond, OfflineAfter: 5 * time.Second,
		ProbeRest: 200 * time.Millisecond, BuildPatience: 10 * time.Minute, BuildAway: 30 * time.Second,
		RepairAfter: 15 * time.Minute,
		SplitAfter:  10 * time.Minute, Republish: time.Second, BucketCheck: 5 * time.Second, ProjectorWait: 3 * time.Second,
		Audit: 10 * time.Second, DefaultPartitions: 6, EvictBytes: 64 << 10}
}

// FillIn sets what is zero.
func (s *Settings) FillIn(d Settings) {
	orDefault(&s.Stability, d.Stability)
	orDefault(&s.Streams, d.Streams)
	orDefault(&s.Pacer, d.Pacer)
	orDefault(&s.HelloWait, d.HelloWait)
	orDefault(&s.SuspectAfter, d.SuspectAfter)
	orDefault(&s.OfflineAfter, d.OfflineAfter)
	orDefault(&s.BuildPatience, d.BuildPatience)
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

// Check returns an error when values cannot be used, or not beside each other.
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
