package api

import (
	"sync/atomic"
	"time"

	"tidemark/indexerclient"
	"tidemark/internal/rpc"
	"tidemark/projectorclient"
)

// ground is what all handlers stand on: the replicated state, who leads, and the ways to others. Handlers stand in
// groups (users, members, scans …), each a type of its own with the ground, what it needs besides, and the rows of the
// table of calls that it serves. No group knows API, which leads calls to them.
type ground struct {
	cfg Config
	now func() time.Time
	rpc *rpc.Client // to other managers, for what is passed on
	// fresh is for what must not be sent twice to other managers.
	fresh *rpc.Client
	// readIndex and looks are for what this manager asks others by itself, which must not wait behind what is passed on
	// and takes long: readIndex for how far the leader's log goes, without which it lets no user in, looks for how they
	// are.
	readIndex, looks *rpc.Client
	// indexers and projectors are asked for their figures, and for how much they log.
	indexers   *indexerclient.Client
	projectors *projectorclient.Client
	// closed: a leader has said that there are users, of whom this manager may not have heard. What has had users is never
	// open again.
	closed atomic.Bool
	// limiting has room for the one change of limits that is under way: it is made of those in force.
	limiting chan struct{}
}

// Groups of handlers that need no more than the ground.
type (
	backups    struct{ *ground } // of the replicated state, its format and its limits
	statements struct{ *ground } // changes of indexes
	logs       struct{ *ground } // how much nodes log
	members    struct{ *ground } // who belongs to the cluster
	indexes    struct{ *ground } // lists of them, and the state
	rebalances struct{ *ground }
	running    struct{ *ground } // scans that are under way, or were slow
	stats      struct{ *ground }
	users      struct{ *ground } // and tokens
	views      struct{ *ground } // of topology, streams, timestamps
)

// Groups that ask who somebody is, or whether he still may.
type (
	sessions struct{ *access }
	events   struct{ *access }
	// components takes what managers, projectors and indexers say.
	components struct {
		*access
		members members
	}
)

// health says how this manager and the cluster are.
type health struct {
	*ground
	*currency
}
