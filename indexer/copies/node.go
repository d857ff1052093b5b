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

// Node is what the buckets of a node have in common.
type Node struct {
	Store      *storage.Store
	Snapshots  *snapshots.Set
	Marks      *Marks
	Health     *health.Health
	Metrics    *Metrics
	Log        hclog.Logger
	Now        func() time.Time
	Queue      func() int64 // how many bytes of events a bucket may hold in memory
	Piece      int          // bytes of one write of one copy
	Background *Background  // nil: buckets build each for itself
	Restores   *Restores    // nil: buckets put copies back each for itself
	// Processors are those that the process may use. 0: runtime.GOMAXPROCS.
	Processors int
	Catchup    *pace.Pace // of what catchup streams bring; nil: no bound
	// Refused is told of keys that the store does not take.
	Refused func(bucket string, e *keyversion.Event, s *keyversion.Statement, key []byte)
	Report  func()              // something is worth a report at once
	Sides   func()              // side streams may be wanted
	Touch   func(bucket string) // scans may see something else
}

// processors are those that the process may use.
func (n *Node) processors() int {
	if n.Processors > 0 {
		return n.Processors
	}
	return runtime.GOMAXPROCS(0)
}
