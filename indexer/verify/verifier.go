// Package verify compares index copies with the data in KV: on request (Routes), and slowly in the background
// (Audit). It guarantees that each reported difference is real, although documents change meanwhile (docs/scans.md
// has the argument), that it keeps to its rate, and that its memory is bounded, whatever a vbucket holds. It does not
// write: it makes the bucket retake what is wrong.
package verify

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/internal/rpc"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Role is the indexer whose copies are verified.
type Role interface {
	// Endpoint returns the indexer's endpoint for projectors, and ClusterID the id of its cluster.
	Endpoint() wire.Endpoint
	ClusterID() string
	// Definitions returns the definitions in force.
	Definitions() wire.Definitions
	// View returns an index as scans see it.
	View(id index.ID) (scan.View, error)
	// Bucket returns a bucket of this indexer.
	Bucket(name string) (Bucket, bool)
	// Stabilize makes the leader make a stability timestamp that covers need.
	Stabilize(ctx context.Context, bucket string, need timestamp.Vector, wait time.Duration) (wire.BucketStability, error)
	// Unwell sets the health problem of a source, "" for none, and reports whether that changed anything.
	Unwell(source, why string) bool
	// Report triggers a report to the leader.
	Report()
}

// Bucket is a bucket of this indexer.
type Bucket interface {
	snapshots.Bucket
	Name() string
	UUID() string
	VBuckets() int
	// Owners returns the projectors that own the maintenance streams of the vbuckets, "" where unknown.
	Owners(ctx context.Context) ([]index.ProjectorID, error)
	// Retake makes a vbucket of a copy be taken from KV again, and its stray rows be deleted. elsewhere means that
	// scans have another copy, so that they must not use this one until it is correct.
	Retake(ctx context.Context, id index.CopyID, vb int, stray []storage.Row, elsewhere bool) error
}

// Projectors starts and stops streams of KV's data.
type Projectors interface {
	Streams(ctx context.Context, base string, req *wire.StreamRequest) (*wire.StreamReply, error)
	Stop(ctx context.Context, base string, req *wire.StreamStop) error
}

// Options configures a Verifier. For Room, AuditRate and AuditEvery, 0 selects the default.
type Options struct {
	Name       string // name of this indexer
	Role       Role
	Pins       *snapshots.Pins
	Projectors Projectors
	Nodes      *peers.Nodes
	Room       int64         // bytes of KV's data that a verification holds in memory
	AuditRate  int64         // rows and documents per second that Audit compares; below 0: no audit
	AuditEvery time.Duration // pause between two rounds of Audit
	Registry   prometheus.Registerer
	Log        hclog.Logger
	Now        func() time.Time
}

// Verifier verifies the copies of one indexer, and coordinates verifications of whole indexes.
type Verifier struct {
	name        string
	role        Role
	pins        *snapshots.Pins
	projectors  Projectors
	nodes       *peers.Nodes
	room        int64
	auditRate   int64
	auditEvery  time.Duration
	metrics     *metrics
	log         hclog.Logger
	now         func() time.Time
	coordinated *rpc.Places   // limits verifications that this node coordinates
	checking    *rpc.Places   // one place, held while copies on this node are being verified
	last        atomic.Uint64 // id of the last side stream
	differing   differing

	mu    sync.Mutex
	reads map[string]*sideRead // by topic
}

// New returns a Verifier.
func New(o Options) *Verifier {
	v := &Verifier{name: o.Name, role: o.Role, pins: o.Pins, projectors: o.Projectors, nodes: o.Nodes, room: o.Room,
		auditRate: o.AuditRate, auditEvery: o.AuditEvery, metrics: newMetrics(o.Registry), log: o.Log, now: o.Now,
		coordinated: rpc.NewPlaces(maxVerifies, "verifications"), checking: rpc.NewPlaces(1, "verifications"),
		reads: map[string]*sideRead{}}
	if v.room == 0 {
		v.room = MaxBytes
	}
	if v.auditRate == 0 {
		v.auditRate = DefaultAuditRate
	}
	if v.auditEvery <= 0 {
		v.auditEvery = DefaultAuditEvery
	}
	v.last.Store(uint64(v.now().UnixNano())) // above the ids of earlier processes
	return v
}

// Differing returns the copies that differed from KV at their last comparison, those with the lowest ids, how many it
// omits, and all copies that were compared. It forgets indexes that are no longer defined.
func (v *Verifier) Differing(defs *wire.Definitions) (first []wire.CopyDifference, omitted int,
	compared map[index.CopyID]index.ID) {
	return v.differing.list(defs)
}
