package copies

import (
	"runtime"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/indexer/health"
	"tidemark/indexer/pace"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/keyversion"
)

// Node holds what the buckets of a node share.
type Node struct {
	Store      *storage.Store
	Snapshots  *snapshots.Set
	Marks      *Marks
	Health     *health.Health
	Metrics    *Metrics
	Log        hclog.Logger
	Now        func() time.Time
	Queue      func() int64 // bytes of events that a bucket may hold in memory
	Piece      int          // bytes that one write of one copy may have
	Background *Background  // nil: buckets are not throttled together
	Restores   *Restores    // nil: each bucket has its own limit of restores
	// Processors is the number of processors that the process may use. 0: runtime.GOMAXPROCS.
	Processors int
	Catchup    *pace.Pace // limit of catchup streams; nil: no limit
	// Refused is called with each key that the store refuses.
	Refused func(bucket string, e *keyversion.Event, s *keyversion.Statement, key []byte)
	Report  func()              // a report is due at once
	Sides   func()              // side streams may be wanted
	Touch   func(bucket string) // the bucket's contents as scans see them may have changed
}

// processors returns the number of processors that the process may use.
func (n *Node) processors() int {
	if n.Processors > 0 {
		return n.Processors
	}
	return runtime.GOMAXPROCS(0)
}
