package server

import (
	"errors"
	"fmt"
	"strings"

	"tidemark/kv/mcbp"
)

// Moods are habits of real KV engines that make a consumer's life hard. Each is allowed by the protocol. They are for
// tests: a mild node has none of them.
type Moods uint64

// The moods.
const (
	// SilentTakeover: a stream whose vbucket goes away ends without STREAM_END.
	SilentTakeover Moods = 1 << iota
	// Gaps: sequence numbers are left out.
	Gaps
	// DiskSnapshots: every snapshot is marked as one from disk, also that of a new mutation.
	DiskSnapshots
	// OddBoundaries: snapshots begin by turns at the seqno at which the last one ended and at that of their first item,
	// so that they overlap or are not contiguous.
	OddBoundaries
	// Warmup: the first requests for documents and streams after the start are answered TEMPORARY_FAILURE.
	Warmup
	// MapLag: a new cluster config is shown late, and then once more the old one.
	MapLag
	// OldControls: DCP_CONTROL knows the keys of old engines only.
	OldControls
	// ExpiryAsDeletion: expirations are sent as DELETION, whatever was negotiated.
	ExpiryAsDeletion
	// RawJSON: the datatype of JSON documents is 0.
	RawJSON
	// Frames: responses carry frame extras (magic 0x18) when flexible frames or tracing were negotiated.
	Frames
	// NoCloseEnd: DCP_CONTROL does not know how to ask for a STREAM_END after CLOSE_STREAM, and there is none.
	NoCloseEnd
	// Overshoot: one message is sent when the flow control window is just used up.
	Overshoot
	// Compressed: values are sent compressed to DCP consumers that negotiated snappy, as from a bucket whose compression
	// is active.
	Compressed
	// ExactEnd: of each second vbucket a finite stream ends at its end, not with the snapshot that its end lies in.
	ExactEnd
	// Purges: tombstones are forgotten when they are a second old; with each fourth stream that begins at 0 those of its
	// vbucket at once, between the consent to the stream and its first snapshot.
	Purges
	// PurgeByWindow: a stream request is refused for the purge seqno by the beginning of its snapshot, as by engines of
	// the 5 line, not by its start.
	PurgeByWindow
	// StreamExists: the first request for a stream of a vbucket after one of it has ended on the connection is refused:
	// the old one is still on the engine's list.
	StreamExists
	// NoFlowControl: DCP_CONTROL does not know connection_buffer_size.
	NoFlowControl
	// NoopIntervals: DCP_CONTROL refuses intervals of noops that are no multiple of 20 seconds.
	NoopIntervals
	// NoStats: STAT is not permitted.
	NoStats
	// OddMaps: a cluster config names its own node $HOST, and one more node, which is gone.
	OddMaps
	// Temporary: each so many requests for documents, streams, seqnos and failover logs fail for lack of memory.
	Temporary
	// WarmupReads: after the start documents can be read and DCP opened; the first writes and streams fail temporarily.
	WarmupReads
	// Pauses: a connection has few backfills at a time, and each makes a pause before it begins.
	Pauses
	// CursorDrop: each so many snapshots from memory are cut short, and the stream goes on from disk.
	CursorDrop
	// SlowEnd: each so many snapshots from memory end the stream as too slow.
	SlowEnd
	// Uneven: each fourth vbucket shows what is new some hundred milliseconds after the others.
	Uneven
	// InsideWindows: the first snapshot from memory begins in the middle of the one from disk before it.
	InsideWindows
	// IdleClose: a connection without DCP that has asked nothing for some seconds is closed.
	IdleClose
	// Unpersisted: what is acknowledged is in memory until the next sync: who kills the node loses it.
	Unpersisted
	// Eviction: each so many writes to a vbucket delete its oldest document, as a full ephemeral bucket does.
	Eviction
	// Xattrs: each third write of a document is followed by one of its extended attributes only; its deletion keeps them.
	Xattrs

	// NoMoods is a mild node, AllMoods the nastiest one.
	NoMoods Moods = 0
	// Losing are the moods that lose what was acknowledged.
	Losing = Unpersisted | Eviction
	// Spared are the moods that connections between the nodes of a cluster do not meet.
	Spared   = OldControls | ExpiryAsDeletion | RawJSON | Pauses | Uneven | NoStats | NoFlowControl | NoopIntervals
	AllMoods = Xattrs<<1 - 1
)

// ErrMood means that a mood is not known; the message lists those that are.
var ErrMood = errors.New("unknown mood")

// warmupRequests are refused after the start of a node in the mood Warmup.
const warmupRequests = 16

// Mood names a mood.
type Mood struct {
	Mood       Moods
	Name, Help string
}

// MoodList lists the moods with their names.
func MoodList() []Mood {
	return []Mood{
		{SilentTakeover, "silent-takeover", "a stream whose vbucket goes away ends without STREAM_END"},
		{Gaps, "gaps", "sequence numbers are left out"},
		{DiskSnapshots, "disk-snapshots", "every snapshot is marked as one from disk"},
		{OddBoundaries, "odd-boundaries", "snapshots overlap by one seqno, or are not contiguous"},
		{Warmup, "warmup", fmt.Sprintf("the first %d requests for documents and streams fail temporarily", warmupRequests)},
		{MapLag, "map-lag", "a new cluster config comes late, and then once more the old one"},
		{OldControls, "old-controls", "DCP_CONTROL knows the keys of old engines only"},
		{ExpiryAsDeletion, "expiry-as-deletion", "expirations are sent as deletions"},
		{RawJSON, "raw-json", "the datatype of JSON documents is 0"},
		{Frames, "frames", "responses carry frame extras once they were negotiated"},
		{NoCloseEnd, "no-close-end", "CLOSE_STREAM is not followed by STREAM_END"},
		{Overshoot, "overshoot", "flow control is overshot by one message"},
		{Compressed, "compressed", "values are compressed once snappy was negotiated"},
		{ExactEnd, "exact-end", "of each second vbucket a finite stream ends at its end, not with the snapshot that it " +
			"lies in"},
		{Purges, "purges", "tombstones are forgotten when they are a second old, and some just before the first " +
			"snapshot of a stream from 0"},
		{PurgeByWindow, "purge-by-window", "streams are refused for purged tombstones by where their snapshot begins"},
		{StreamExists, "stream-exists", "the first request for a stream after one has ended says that there is one"},
		{NoFlowControl, "no-flow-control", "DCP_CONTROL does not know connection_buffer_size"},
		{NoopIntervals, "noop-intervals", "intervals of noops must be multiples of 20 seconds"},
		{NoStats, "no-stats", "statistics are not permitted"},
		{OddMaps, "odd-maps", "a cluster config says $HOST, and names a node that is gone"},
		{Temporary, "temporary", fmt.Sprintf("one in %d requests for documents, streams or seqnos fails for lack of memory",
			temporaryEvery)},
		{WarmupReads, "warmup-reads", fmt.Sprintf("the first %d writes and stream requests fail temporarily, reads do not",
			warmupWrites)},
		{Pauses, "pauses", fmt.Sprintf("a connection has %d backfills at a time, each %v late", backfillsAtOnce,
			backfillPause)},
		{CursorDrop, "cursor-drop", fmt.Sprintf("one in %d snapshots from memory is cut short, and goes on from disk",
			cursorDropEvery)},
		{SlowEnd, "slow-end", fmt.Sprintf("one in %d snapshots from memory ends its stream as too slow", slowEndEvery)},
		{Uneven, "uneven", fmt.Sprintf("each fourth vbucket shows what is new %v late", unevenPause)},
		{InsideWindows, "inside-windows", "the first snapshot from memory begins inside the one from disk"},
		{IdleClose, "idle-close", fmt.Sprintf("connections without DCP that are idle for %v are closed", IdleCloseAfter)},
		{Unpersisted, "unpersisted", "what is acknowledged is lost with a kill until the next sync, every second"},
		{Eviction, "eviction", fmt.Sprintf("one in %d writes to a vbucket deletes its oldest document", evictEvery)},
		{Xattrs, "xattrs", "each third write is followed by one of extended attributes; deletions keep them"},
	}
}

// ParseMoods reads a list of names with commas between them; "all" is all of them. Error: ErrMood.
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

// Has says whether a mood is among them.
func (m Moods) Has(mood Moods) bool { return m&mood != 0 }

// String lists the names.
func (m Moods) String() string {
	var names []string
	for _, k := range MoodList() {
		if m.Has(k.Mood) {
			names = append(names, k.Name)
		}
	}
	return strings.Join(names, ",")
}

// replication is how the names of DCP connections between the nodes of a cluster begin.
const replication = "replication:"

// betweenNodes reports whether the connection is one between the nodes of a cluster: it has their name and their user.
func (p *producer) betweenNodes() bool {
	return strings.HasPrefix(p.id.name, replication) && p.c.srv.auth.configured(p.id.user)
}

// moods are those that the connection has to live with. The nodes of a cluster are of one kind: between them documents
// keep their datatype and the reason of their end, and nobody waits for effect.
func (c *conn) moods() Moods {
	if c.dcp != nil && c.dcp.betweenNodes() {
		return c.srv.opts.Moods &^ Spared
	}
	return c.srv.opts.Moods
}

// warming says whether the node still pretends to read its documents.
func (s *Server) warming() bool {
	return s.opts.Moods.Has(Warmup) && s.warmup.Load() < warmupRequests
}

// warmingRefuses says whether a request comes too early. Each one brings the node nearer to the end of its warmup.
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

// laggard shows cluster configs as a cluster does whose nodes hear of changes at different times.
type laggard struct {
	old, now ClusterConfig
	shown    int // how often a config was shown since the last change
}

// Counted from a change: the old config is shown lagFirst times, then the new one, then the old one once more.
const (
	lagFirst = 2
	lagAgain = 4
)

// show chooses between the present config and the one before.
func (l *laggard) show(now ClusterConfig) ClusterConfig {
	if l.now.RevEpoch != now.RevEpoch || l.now.Rev != now.Rev {
		l.old, l.now, l.shown = l.now, now, 0
	}
	l.shown++
	if l.old.JSON != nil && (l.shown <= lagFirst || l.shown == lagAgain) {
		return l.old
	}
	return now
}

// clusterConfigOf is the config of a bucket as clients are shown it, and whether it may be left out when they have it.
func (s *Server) clusterConfigOf(b *Bucket) (config ClusterConfig, mayOmit bool) {
	config = b.Config()
	if !s.opts.Moods.Has(MapLag) {
		return config, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lagging[b]
	if l == nil {
		l = &laggard{}
		s.lagging[b] = l
	}
	return l.show(config), false
}
