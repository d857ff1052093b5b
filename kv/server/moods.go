package server

import (
	"errors"
	"fmt"
	"strings"

	"tidemark/kv/mcbp"
)

// Moods are behaviours of real KV engines that are hard on consumers. The protocol allows each of them. They are for
// tests: by default a node has none.
type Moods uint64

// The moods.
const (
	// SilentTakeover: a stream whose vbucket goes away ends without STREAM_END.
	SilentTakeover Moods = 1 << iota
	// Gaps: sequence numbers are left out.
	Gaps
	// DiskSnapshots: every snapshot is marked as one from disk, even that of a new mutation.
	DiskSnapshots
	// OddBoundaries: snapshots begin alternately at the seqno at which the last one ended and at that of their first
	// item, so that they overlap or are not contiguous.
	OddBoundaries
	// Warmup: the first requests for documents and streams after the start fail with TEMPORARY_FAILURE.
	Warmup
	// MapLag: a new cluster config is shown late, and then the old one once more.
	MapLag
	// OldControls: DCP_CONTROL supports only the keys of old engines.
	OldControls
	// ExpiryAsDeletion: expirations are sent as DELETION, whatever was negotiated.
	ExpiryAsDeletion
	// RawJSON: the datatype of JSON documents is 0.
	RawJSON
	// Frames: responses carry frame extras (magic 0x18) when flexible frames or tracing were negotiated.
	Frames
	// NoCloseEnd: DCP_CONTROL does not support the key for STREAM_END after CLOSE_STREAM, and none is sent.
	NoCloseEnd
	// Overshoot: one more message is sent when the flow-control window is just used up.
	Overshoot
	// Compressed: values are sent compressed to DCP consumers that negotiated snappy, as from a bucket whose compression
	// is active.
	Compressed
	// ExactEnd: for every second vbucket a finite stream ends at its end seqno, not with the snapshot that contains it.
	ExactEnd
	// Purges: tombstones are purged when they are a second old. For every fourth stream that begins at 0, those of its
	// vbucket are purged at once, between the acceptance of the stream and its first snapshot.
	Purges
	// PurgeByWindow: the purge seqno is compared with the beginning of the consumer's snapshot, not with its start
	// seqno, as in engines of version 5.
	PurgeByWindow
	// StreamExists: the first request for a stream of a vbucket is refused after one has ended on the connection, as if
	// the engine had not removed the old one yet.
	StreamExists
	// NoFlowControl: DCP_CONTROL does not support connection_buffer_size.
	NoFlowControl
	// NoopIntervals: DCP_CONTROL accepts only NOOP intervals that are multiples of 20 seconds.
	NoopIntervals
	// NoStats: STAT is not permitted.
	NoStats
	// OddMaps: a cluster config lists the node itself as $HOST, and another node that is gone.
	OddMaps
	// Temporary: every n-th request for documents, streams, seqnos and failover logs fails for lack of memory.
	Temporary
	// WarmupReads: after the start documents can be read and DCP opened; the first writes and streams fail temporarily.
	WarmupReads
	// Pauses: a connection has few concurrent backfills, and each pauses before it begins.
	Pauses
	// CursorDrop: every n-th snapshot from memory is cut short, and the stream continues from disk.
	CursorDrop
	// SlowEnd: every n-th snapshot from memory ends the stream as too slow.
	SlowEnd
	// Uneven: every fourth vbucket shows new versions some hundred milliseconds after the others.
	Uneven
	// InsideWindows: the first snapshot from memory begins inside the preceding one from disk.
	InsideWindows
	// IdleClose: a connection without DCP that has sent no request for some seconds is closed.
	IdleClose
	// Unpersisted: what is acknowledged stays in memory until the next sync: a kill of the node loses it.
	Unpersisted
	// Eviction: every n-th write to a vbucket deletes its oldest document, as in a full ephemeral bucket.
	Eviction
	// Xattrs: every third write of a document is followed by one of its extended attributes only; its deletion keeps
	// them.
	Xattrs

	// NoMoods is a node without any of them, AllMoods a node with all.
	NoMoods Moods = 0
	// Losing is the set of moods that lose acknowledged writes.
	Losing = Unpersisted | Eviction
	// Spared is the set of moods from which connections between the nodes of a cluster are exempt.
	Spared   = OldControls | ExpiryAsDeletion | RawJSON | Pauses | Uneven | NoStats | NoFlowControl | NoopIntervals
	AllMoods = Xattrs<<1 - 1
)

// ErrMood means that a mood is unknown; the message lists the known ones.
var ErrMood = errors.New("unknown mood")

// warmupRequests is the number of requests refused after the start of a node with the mood Warmup.
const warmupRequests = 16

// Mood describes one mood.
type Mood struct {
	Mood       Moods
	Name, Help string
}

// MoodList returns all moods with their names.
func MoodList() []Mood {
	return []Mood{
		{SilentTakeover, "silent-takeover", "a stream whose vbucket goes away ends without STREAM_END"},
		{Gaps, "gaps", "sequence numbers are left out"},
		{DiskSnapshots, "disk-snapshots", "every snapshot is marked as one from disk"},
		{OddBoundaries, "odd-boundaries", "snapshots overlap by one seqno, or are not contiguous"},
		{Warmup, "warmup", fmt.Sprintf("the first %d requests for documents and streams fail temporarily", warmupRequests)},
		{MapLag, "map-lag", "a new cluster config comes late, and then the old one once more"},
		{OldControls, "old-controls", "DCP_CONTROL supports only the keys of old engines"},
		{ExpiryAsDeletion, "expiry-as-deletion", "expirations are sent as deletions"},
		{RawJSON, "raw-json", "the datatype of JSON documents is 0"},
		{Frames, "frames", "responses carry frame extras if they were negotiated"},
		{NoCloseEnd, "no-close-end", "CLOSE_STREAM is not followed by STREAM_END"},
		{Overshoot, "overshoot", "one message more than flow control allows is sent"},
		{Compressed, "compressed", "values are compressed if snappy was negotiated"},
		{ExactEnd, "exact-end", "for every second vbucket a finite stream ends at its end seqno, not with the snapshot " +
			"that contains it"},
		{Purges, "purges", "tombstones are purged when they are a second old, some just before the first snapshot of a " +
			"stream from 0"},
		{PurgeByWindow, "purge-by-window", "the purge seqno is compared with the snapshot start of a stream request, " +
			"not with its start seqno"},
		{StreamExists, "stream-exists", "the first request for a stream after one has ended is refused as if it still ran"},
		{NoFlowControl, "no-flow-control", "DCP_CONTROL does not support connection_buffer_size"},
		{NoopIntervals, "noop-intervals", "NOOP intervals must be multiples of 20 seconds"},
		{NoStats, "no-stats", "statistics are not permitted"},
		{OddMaps, "odd-maps", "a cluster config contains $HOST, and a node that no longer exists"},
		{Temporary, "temporary", fmt.Sprintf("one in %d requests for documents, streams or seqnos fails for lack of memory",
			temporaryEvery)},
		{WarmupReads, "warmup-reads", fmt.Sprintf("the first %d writes and stream requests fail temporarily, reads do not",
			warmupWrites)},
		{Pauses, "pauses", fmt.Sprintf("a connection runs %d backfills at a time, each delayed by %v", backfillsAtOnce,
			backfillPause)},
		{CursorDrop, "cursor-drop", fmt.Sprintf("one in %d snapshots from memory is cut short, and continues from disk",
			cursorDropEvery)},
		{SlowEnd, "slow-end", fmt.Sprintf("one in %d snapshots from memory ends its stream as too slow", slowEndEvery)},
		{Uneven, "uneven", fmt.Sprintf("every fourth vbucket shows new mutations %v late", unevenPause)},
		{InsideWindows, "inside-windows", "the first snapshot from memory begins inside the one from disk"},
		{IdleClose, "idle-close", fmt.Sprintf("connections without DCP that are idle for %v are closed", IdleCloseAfter)},
		{Unpersisted, "unpersisted", "files are synced once a second: a kill loses later acknowledged writes"},
		{Eviction, "eviction", fmt.Sprintf("one in %d writes to a vbucket deletes its oldest document", evictEvery)},
		{Xattrs, "xattrs", "every third write is followed by one of extended attributes; deletions keep them"},
	}
}

// ParseMoods parses a comma-separated list of names; "all" means all moods. Error: ErrMood.
func ParseMoods(list string) (Moods, error) {
	var out Moods
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		m := moodOf(name)
		if m == NoMoods {
			var names []string
			for _, k := range MoodList() {
				names = append(names, k.Name)
			}
			return NoMoods, fmt.Errorf("%w %q: want all, or some of %s", ErrMood, name, strings.Join(names, ", "))
		}
		out |= m
	}
	return out, nil
}

func moodOf(name string) Moods {
	if name == "all" {
		return AllMoods
	}
	for _, k := range MoodList() {
		if k.Name == name {
			return k.Mood
		}
	}
	return NoMoods
}

// Has reports whether the set contains a mood.
func (m Moods) Has(mood Moods) bool { return m&mood != 0 }

// String returns the names, separated by commas.
func (m Moods) String() string {
	var names []string
	for _, k := range MoodList() {
		if m.Has(k.Mood) {
			names = append(names, k.Name)
		}
	}
	return strings.Join(names, ",")
}

// replication is the prefix of the names of DCP connections between the nodes of a cluster.
const replication = "replication:"

// betweenNodes reports whether the connection is one between the nodes of a cluster: it has their name prefix and
// their user.
func (p *producer) betweenNodes() bool {
	return strings.HasPrefix(p.id.name, replication) && p.c.srv.auth.configured(p.id.user)
}

// moods returns the moods that apply to the connection. The nodes of a cluster are of one version: between them
// documents keep their datatype and the reason of their deletion, and no pauses are made for tests.
func (c *conn) moods() Moods {
	if c.dcp != nil && c.dcp.betweenNodes() {
		return c.srv.opts.Moods &^ Spared
	}
	return c.srv.opts.Moods
}

// warming reports whether the node still simulates loading its documents.
func (s *Server) warming() bool {
	return s.opts.Moods.Has(Warmup) && s.warmup.Load() < warmupRequests
}

// warmingRefuses reports whether a request comes too early. Each refused request brings the end of the warmup nearer.
func (s *Server) warmingRefuses(op mcbp.Opcode) bool {
	if !s.warming() || op >= mcbp.OpHello && op <= mcbp.OpSASLStep {
		return false
	}
	switch op {
	case mcbp.OpGetClusterConfig, mcbp.OpStat, mcbp.OpVerbosity, mcbp.OpGetCollectionsManifest, mcbp.OpGetCollectionID,
		mcbp.OpGetScopeID, mcbp.OpDCPControl, mcbp.OpDCPBufferAck, mcbp.OpDCPNoop, mcbp.OpDCPCloseStream:
		return false
	}
	return s.warmup.Add(1) <= warmupRequests
}

// laggingConfigs shows cluster configs as in a cluster whose nodes learn of changes at different times.
type laggingConfigs struct {
	old, now ClusterConfig
	shown    int // number of times a config was shown since the last change
}

// After a change, the old config is shown lagFirst times, then the new one, and then the old one once more.
const (
	lagFirst = 2
	lagAgain = 4
)

// show returns the present config or the previous one.
func (l *laggingConfigs) show(now ClusterConfig) ClusterConfig {
	if l.now.RevEpoch != now.RevEpoch || l.now.Rev != now.Rev {
		l.old, l.now, l.shown = l.now, now, 0
	}
	l.shown++
	if l.old.JSON != nil && (l.shown <= lagFirst || l.shown == lagAgain) {
		return l.old
	}
	return now
}

// clusterConfigOf returns the config of a bucket to show to clients, and whether it may be omitted if they have it.
func (s *Server) clusterConfigOf(b *Bucket) (config ClusterConfig, mayOmit bool) {
	config = b.Config()
	if !s.opts.Moods.Has(MapLag) {
		return config, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lagging[b]
	if l == nil {
		l = &laggingConfigs{}
		s.lagging[b] = l
	}
	return l.show(config), false
}
