package wire

import (
	"fmt"
	"strings"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/timestamp"
)

// StreamStart requests one vbucket of a stream: everything after Seqno. RestartTimestamp carries many of them.
type StreamStart struct {
	VBucket uint16
	VBUUID  uint64           // branch of Seqno
	Seqno   uint64           // restart timestamp: the stream starts after it
	Window  timestamp.Window // snapshot in which Seqno lies; the zero value: Seqno ends one
	// End is the last seqno requested; 0: the stream has no end. Side streams end at the activation timestamp A.
	End uint64
	// Branch is the newest vbuuid of the failover log that the requester has seen, 0 if it has seen none. A KV node on
	// another branch has failed over since, and the stream is not started (outcome "failover", PR-12).
	Branch uint64
	// Previous is the branch before VBUUID if VBUUID began exactly at Seqno, else 0. If KV answers ROLLBACK to VBUUID
	// the projector retries with Previous, because a producer may have lost its newest branch (PR-9).
	Previous uint64
}

// RestartTimestamp is a restart timestamp in parallel columns (PR-11). SnapStarts to Previous are as long as
// VBuckets, or nil if all entries have the zero value: most streams need only vbucket, branch and seqno.
type RestartTimestamp struct {
	VBuckets   []uint16 `json:"vbuckets"`
	VBUUIDs    []uint64 `json:"vbuuids"`
	Seqnos     []uint64 `json:"seqnos"`
	SnapStarts []uint64 `json:"snap_starts,omitempty"`
	SnapEnds   []uint64 `json:"snap_ends,omitempty"`
	Ends       []uint64 `json:"ends,omitempty"`
	Branches   []uint64 `json:"branches,omitempty"`
	Previous   []uint64 `json:"previous,omitempty"`
}

// Len returns the number of entries.
func (t *RestartTimestamp) Len() int { return len(t.VBuckets) }

// Add appends an entry.
func (t *RestartTimestamp) Add(s StreamStart) {
	n := len(t.VBuckets)
	t.VBuckets, t.VBUUIDs, t.Seqnos = append(t.VBuckets, s.VBucket), append(t.VBUUIDs, s.VBUUID), append(t.Seqnos, s.Seqno)
	w := s.Window
	if w.Start == s.Seqno && w.End == s.Seqno {
		w = timestamp.Window{}
	}
	t.SnapStarts, t.SnapEnds = sparse(t.SnapStarts, n, w.Start), sparse(t.SnapEnds, n, w.End)
	t.Ends, t.Branches, t.Previous = sparse(t.Ends, n, s.End), sparse(t.Branches, n, s.Branch),
		sparse(t.Previous, n, s.Previous)
}

// sparse appends v to a column of n entries. The column is nil as long as all entries are 0.
func sparse(column []uint64, n int, v uint64) []uint64 {
	if column == nil && v == 0 {
		return nil
	}
	if column == nil {
		column = make([]uint64, n, n+1)
	}
	return append(column, v)
}

// At returns an entry. Check must have accepted the timestamp.
func (t *RestartTimestamp) At(i int) StreamStart {
	at := func(column []uint64) uint64 {
		if len(column) == 0 {
			return 0
		}
		return column[i]
	}
	s := StreamStart{VBucket: t.VBuckets[i], VBUUID: t.VBUUIDs[i], Seqno: t.Seqnos[i], End: at(t.Ends),
		Branch: at(t.Branches), Previous: at(t.Previous),
		Window: timestamp.Window{Start: at(t.SnapStarts), End: at(t.SnapEnds)}}
	if s.Window == (timestamp.Window{}) {
		s.Window = timestamp.Window{Start: s.Seqno, End: s.Seqno}
	}
	return s
}

// Check validates a received timestamp. It refuses columns of different lengths, a vbucket that is listed twice or
// out of range, a window that does not contain its seqno, and an end below the seqno.
func (t *RestartTimestamp) Check() error {
	n := len(t.VBuckets)
	if n > timestamp.MaxVBuckets {
		return fmt.Errorf("%w: %d vbuckets; the limit is %d", timestamp.ErrLength, n, timestamp.MaxVBuckets)
	}
	for _, c := range [...]struct {
		name   string
		length int
		must   bool
	}{{"vbuuids", len(t.VBUUIDs), true}, {"seqnos", len(t.Seqnos), true}, {"snap_starts", len(t.SnapStarts), false},
		{"snap_ends", len(t.SnapEnds), false},
		{"ends", len(t.Ends), false}, {"branches", len(t.Branches), false}, {"previous", len(t.Previous), false}} {
		if c.length != n && (c.must || c.length > 0) {
			return fmt.Errorf("%w: %d %s for %d vbuckets; each column needs one value per vbucket, or may be omitted if it is "+
				"optional",
				timestamp.ErrLength, c.length, c.name, n)
		}
	}
	var seen [timestamp.MaxVBuckets]bool
	for i := range n {
		s := t.At(i)
		switch {
		case int(s.VBucket) >= timestamp.MaxVBuckets:
			return fmt.Errorf("%w: vbucket %d, the highest is %d", timestamp.ErrLength, s.VBucket,
				timestamp.MaxVBuckets-1)
		case seen[s.VBucket]:
			return fmt.Errorf("%w: vbucket %d is given twice", timestamp.ErrLength, s.VBucket)
		case s.Seqno < s.Window.Start || s.Seqno > s.Window.End:
			return fmt.Errorf("%w: vbucket %d: seqno %d lies outside its snapshot %d to %d", timestamp.ErrCorrupt, s.VBucket,
				s.Seqno, s.Window.Start, s.Window.End)
		case s.End != 0 && s.End < s.Seqno:
			return fmt.Errorf("%w: vbucket %d: its end %d is before its start %d", timestamp.ErrCorrupt, s.VBucket, s.End,
				s.Seqno)
		}
		seen[s.VBucket] = true
	}
	return nil
}

// NoEnd is the end of a side stream without an end.
const NoEnd = ^uint64(0)

// IsVisible reports whether s is not empty and consists of visible ASCII characters only.
func IsVisible(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// MaxTopic bounds the path of a topic, in bytes.
const MaxTopic = 200

// MaintenanceTopic is the topic of form 1.
const MaintenanceTopic = "/maintenance"

// StreamRequest opens streams, in one of the three forms of PR-11. POST /v1/streams.
//
//  1. Topic /maintenance: {bucket → restart timestamp}, from the leader to all projectors: each starts what it hosts.
//     An active stream of a listed vbucket with a lower incarnation is shut down and restarted, the others are
//     untouched (PR-13).
//  2. Topic /backfill/<id>: {bucket → start and end timestamp, index ids}, to one endpoint.
//  3. Topic /catchup/<indexer>/<id>: the same, and the indexer's id.
//
// A request for a side topic (forms 2 and 3) that is open replaces it. A side stream ends when it reaches the end
// timestamp.
type StreamRequest struct {
	// Fence is the leader's. A request for a side stream sets ClusterID only.
	Fence Fence  `json:"fence"`
	Topic string `json:"topic"`
	// Incarnation is that of the streams; for a side topic only Counter is set. Every event carries it.
	Incarnation index.Incarnation `json:"incarnation"`
	Buckets     []StreamBucket    `json:"buckets"`
	Side        *SideTarget       `json:"side,omitempty"` // forms 2 and 3
}

// StreamBucket is the part of a StreamRequest for one bucket.
type StreamBucket struct {
	Bucket     string           `json:"bucket"`
	BucketUUID string           `json:"bucket_uuid"`
	Restart    RestartTimestamp `json:"restart"`
}

// SideTarget is the content and the destination of a side stream.
type SideTarget struct {
	// Indexes are sent with all their keys, as slice 0 (for a subscriber that is not an indexer); Copies are sent as the
	// slices of these copies, which the definitions place on Node. Exactly one of them is set.
	Indexes  []index.ID     `json:"indexes,omitempty"`
	Copies   []index.CopyID `json:"copies,omitempty"`
	Revision uint64         `json:"revision,omitempty"` // lowest definitions revision that has them
	Node     index.NodeID   `json:"node"`               // 0 for a subscriber that is not an indexer
	// of the requesting process: streams of an earlier process of the same node end
	BootID   string `json:"boot_id,omitempty"`
	Endpoint string `json:"endpoint"` // host:port of the data port
	// RetryForever keeps the stream, and the attempts to reach Endpoint, until it is stopped or replaced (RT-5).
	// Otherwise it is given up if nothing has moved for a minute, unless everything was taken and the stream has no end.
	RetryForever bool `json:"retry_forever,omitempty"`
	// Sums, with Copies, adds to the end of each stream how many keys were evaluated for them, and the sum of their
	// hashes.
	Sums bool `json:"sums,omitempty"`
}

// StartOutcome is the outcome of one StreamStart.
type StartOutcome string

// The outcomes.
const (
	StartBegun    StartOutcome = "begun"    // the stream runs; BEGIN was sent downstream
	StartNotMine  StartOutcome = "not_mine" // no KV node of this projector hosts the vbucket as active
	StartRollback StartOutcome = "rollback" // KV answered ROLLBACK
	StartFailover StartOutcome = "failover" // KV has failed over since its log was read: the stream was closed again
	StartStale    StartOutcome = "stale"    // a higher incarnation was seen
	StartFailed   StartOutcome = "failed"   // see Detail; retry
)

// StartResult is the outcome for one vbucket, the end of its handshake (PR-12). Of VBucketHistory only VBucket is
// always set. The rest is set if the stream has begun, KV answered ROLLBACK, or KV has failed over.
type StartResult struct {
	VBucketHistory
	Outcome StartOutcome `json:"outcome"`
	// Failover is the failover timestamp: KV's current branch, and the seqno at which it began.
	Failover timestamp.Position `json:"failover"`
	// Stream is the stream timestamp (UPR-timestamp): the branch that KV has accepted, and the seqno after which the
	// stream began. It is set with outcome "begun" only.
	Stream   timestamp.Position `json:"stream"`
	Rollback uint64             `json:"rollback,omitempty"` // seqno of ROLLBACK
	Detail   string             `json:"detail,omitempty"`
}

// StreamReply has one entry per requested bucket, in the order of the request.
type StreamReply struct {
	TopicID uint8           `json:"topic_id"` // PR-14: maintenance 255, backfill 254, catchup the indexer's id
	Buckets []StreamOutcome `json:"buckets"`
}

// StreamOutcome is the outcome for one bucket. If the bucket could not be requested at all, Code and Detail have the
// problem and there are no results. If that is so for every bucket, the answer is the problem.
type StreamOutcome struct {
	Bucket      string        `json:"bucket"`
	Results     []StartResult `json:"results"` // one per entry of the restart timestamp
	Activations []Activation  `json:"activations,omitempty"`
	Code        errcode.Code  `json:"code,omitempty"`
	Detail      string        `json:"detail,omitempty"`
}

// Activation is the activation timestamp of indexes that joined a bucket's maintenance streams together: in each
// listed vbucket, everything above its seqno is evaluated for them (docs/architecture.md, "Joining a running
// stream"). It is for observers only; slices rely on the activations in the stream itself.
type Activation struct {
	Revision uint64     `json:"revision"` // of the definitions that added them
	Indexes  []index.ID `json:"indexes"`
	VBuckets []uint16   `json:"vbuckets"`
	Seqnos   []uint64   `json:"seqnos"`
}

// StreamStop ends streams of a topic. POST /v1/streams:stop. For /maintenance: the streams of Bucket and VBuckets
// (empty: all) whose incarnation is at or below the given one; such incarnations are refused from now on. For a side
// topic: the whole topic or, if Bucket and VBuckets are set, those streams of it, without a message downstream; the
// end of the last one ends the topic.
type StreamStop struct {
	Fence       Fence             `json:"fence"`
	Topic       string            `json:"topic"`
	Bucket      string            `json:"bucket,omitempty"`
	VBuckets    []uint16          `json:"vbuckets,omitempty"`
	Incarnation index.Incarnation `json:"incarnation"`
}

// Subscribe asks a projector for a bucket's KeyVersions, for an external subscriber (RT-9). POST /v1/topics. It is
// form 2 of StreamRequest, completed by the projector: all keys of the indexes go to Endpoint as slice 0.
type Subscribe struct {
	// ID names the topic, /backfill/<ID>. A request for an open topic replaces it.
	ID         string `json:"id"`
	Bucket     string `json:"bucket"`
	BucketUUID string `json:"bucket_uuid,omitempty"` // refused if the bucket has another uuid; "": any
	// Indexes are ids (the current or the first id of each), or names in the bucket; empty: all active indexes.
	Indexes  []string `json:"indexes,omitempty"`
	Endpoint string   `json:"endpoint"` // host:port of the subscriber
	Counter  uint64   `json:"counter"`  // every event carries it as Incarnation.Counter
	// Restart lists the vbuckets and their starts; nil: all, from the beginning. Without Ends the streams have no end.
	Restart *RestartTimestamp `json:"restart,omitempty"`
	// RetryForever is as in SideTarget.
	RetryForever bool `json:"retry_forever,omitempty"`
}

// Subscription answers Subscribe.
type Subscription struct {
	ClusterID  string `json:"cluster_id"`
	Topic      string `json:"topic"`
	BucketUUID string `json:"bucket_uuid"`
	VBuckets   int    `json:"vbuckets"` // number of vbuckets of the bucket
	// Indexes are the ids that events carry: for an index that was split, the first.
	Indexes []index.ID    `json:"indexes"`
	Results []StartResult `json:"results"` // one for each requested vbucket
}
