package core

import "errors"

var (
	// ErrBusy is wrapped when too many requests wait for the coordinator already.
	ErrBusy = errors.New("the coordinator is busy")
	// ErrBootConflict is wrapped when a component registers while its former process is still alive.
	ErrBootConflict = errors.New("another process with this identity is running")
	// ErrNoIndexer is wrapped when indexers are registered and none of them answers.
	ErrNoIndexer = errors.New("no indexer answers")
	// ErrInRollback is wrapped when the bucket is being rolled back.
	ErrInRollback = errors.New("the bucket is being rolled back")
	// ErrTermOver is the outcome of a proposal whose term has ended.
	ErrTermOver = errors.New("the term is over")
	// ErrUnknownBucket is wrapped when the bucket is not known.
	ErrUnknownBucket = errors.New("unknown bucket")
	// ErrBucketGone is wrapped when the bucket was deleted or re-created meanwhile.
	ErrBucketGone = errors.New("the bucket is gone")
	// ErrNoStreams is wrapped when the bucket has no index that is kept current.
	ErrNoStreams = errors.New("the bucket has no index that is kept up to date")
	// ErrTokenLost is wrapped when the requested writes were lost in a failover of KV.
	ErrTokenLost = errors.New("the write was lost in a failover")
)
