// Package verify compares index copies with the KV data: when somebody asks (Route), and slowly by itself
// (Audit). It promises that what it calls a difference is one, while documents change (docs/scans.md has the argument),
// that it keeps to its rate, and that what it holds in memory is bounded, whatever a vbucket holds. It writes nothing:
// what is found wrong it lets the bucket take anew.
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

// Role is the indexer that copies are verified on.
type Role interface {
	// Endpoint is how projectors reach it, and ClusterID whose indexer it is.
	Endpoint() wire.Endpoint
	ClusterID() string
	// Definitions are those that are in force.
	Definitions() wire.Definitions
	// View is what is known of an index, as scans see it.
	View(id index.ID) (scan.View, error)
	// Bucket gives one that is held here.
	Bucket(name string) (Bucket, bool)
	// Stabilize has the leader make a stability timestamp that covers need.
	Stabilize(ctx context.Context, bucket string, need timestamp.Vector, wait time.Duration) (wire.BucketStability, error)
	// Unwell notes what is wrong here, by source; "" is well. It reports whether that is new.
	Unwell(source, why string) bool
	// Tell lets the leader be told at once.
	Tell()
}

// Bucket is a bucket that is held here.
type Bucket interface {
	snapshots.Bucket
	Name() string
	UUID() string
	VBuckets() int
	// Owners are the projectors that own the maintenance streams of vbuckets, as far as that is known.
	Owners(ctx context.Context) ([]index.ProjectorID, error)
	// Retake lets a vbucket of a copy be taken anew from KV, without rows that should not be there. elsewhere: scans have
	// another copy, and shall see nothing of this one until it is right.
	Retake(ctx context.Context, id index.CopyID, vb int, stray []storage.Row, elsewhere bool) error
}

// Projectors stream what KV holds.
type Projectors interface {
	Streams(ctx context.Context, base string, req *wire.StreamRequest) (*wire.StreamReply, error)
	Stop(ctx context.Context, base string, req *wire.StreamStop) error
}

// Options of a Verifier. Room, AuditRate and AuditEvery that are 0 take defaults.
type Options struct {
	Name       string // of this indexer
	Role       Role
	Pins       *snapshots.Pins
	Projectors Projectors
	Nodes      *peers.Nodes
	Room       int64         // bytes that a verification holds of KV's side
	AuditRate  int64         // rows and documents a second that Audit compares; below 0: none
	AuditEvery time.Duration // pause between two rounds of it
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
	coordinated *rpc.Places   // of verifications that are coordinated here
	checking    *rpc.Places   // one: held while copies here are being verified
	last        atomic.Uint64 // id of a side stream
	differing   differing

	mu    sync.Mutex
	reads map[string]*sideRead // by topic
}

// New returns what verifies for a role.
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
	v.last.Store(uint64(v.now().UnixNano())) // of another process they are lower
	return v
}

// Differing returns the copies that differed from KV when they were compared last, the first of them by number, how
// many these leave out, and all that were compared; what is not defined any more is forgotten.
func (v *Verifier) Differing(defs *wire.Definitions) (first []wire.CopyDifference, omitted int,
	compared map[index.CopyID]index.ID) {
	return v.differing.list(defs)
}
