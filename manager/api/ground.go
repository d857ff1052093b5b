package api

import (
	"sync/atomic"
	"time"

	"tidemark/indexerclient"
	"tidemark/internal/rpc"
	"tidemark/projectorclient"
)

// ground is the part that all handlers share: the replicated state, the leader, and clients to other components.
// Handlers form groups (users, members, scans …), each a type of its own with the ground, what it needs besides, and
// its rows of the route table. No group depends on API, which routes calls to them.
type ground struct {
	cfg Config
	now func() time.Time
	rpc *rpc.Client // to other managers, for forwarded requests
	// fresh is for requests that must not be sent twice to other managers.
	fresh *rpc.Client
	// readIndex and looks are for this manager's own requests to other managers, which must not wait behind slow
	// forwarded requests: readIndex for the leader's log index, without which no user is admitted, looks for their
	// health.
	readIndex, looks *rpc.Client
	// indexers and projectors are for figures and log levels.
	indexers   *indexerclient.Client
	projectors *projectorclient.Client
	// closed is set once a leader has reported that there are users, even if this manager does not have them yet. A
	// cluster that has had users is never open again.
	closed atomic.Bool
	// limiting has room for one change of limits at a time, as each is computed from those in force.
	limiting chan struct{}
}

// Groups of handlers that need only the ground.
type (
	backups    struct{ *ground } // the replicated state, its format and its limits
	statements struct{ *ground } // changes of indexes
	logs       struct{ *ground } // log levels
	members    struct{ *ground } // the members of the cluster
	indexes    struct{ *ground } // lists of indexes, and the state
	rebalances struct{ *ground }
	running    struct{ *ground } // running and slow scans
	stats      struct{ *ground }
	users      struct{ *ground } // and tokens
	views      struct{ *ground } // topology, streams, timestamps
)

// Groups that authenticate senders or check whether they are still admitted.
type (
	sessions struct{ *access }
	events   struct{ *access }
	// components handles the messages of managers, projectors and indexers.
	components struct {
		*access
		members members
	}
)

// health reports the state of this manager and the cluster.
type health struct {
	*ground
	*currency
}
