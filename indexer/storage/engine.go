package storage

import "context"

// engine is one ordered store in one folder, and the complete interface that another kind of store would have to
// provide. A slice calls the writing methods one at a time; the reading ones may be called from any goroutine.
type engine interface {
	// state returns the state of the newest batch that the folder held when the engine was opened.
	state() state
	// flush applies a batch whole or not at all. next is the state after it; flush sets its items. updates must be
	// coalesced: sorted by (vbucket, document id), each document once. If idle is set and no update changes anything,
	// nothing is written, and next keeps the number of the previous batch. A write waits for memory at most until ctx
	// ends; for yields see Batch.Yields. touched is the number of entries written, changed or removed.
	flush(ctx context.Context, updates []*Update, keep func(uint16) bool, next *state, idle, yields bool) (touched int,
		err error)
	// replace makes the rows of vbuckets equal to those of from (none if nil), by difference, and sets their
	// positions. It does so in one batch of bounded size for as many of the first vbuckets as fit. It returns the
	// state after the batch, and the number of these vbuckets.
	replace(ctx context.Context, to []VBPosition, from view, cur *state) (next *state, done int, err error)
	// discard removes forward rows and returns the state after that.
	discard(ctx context.Context, rows []Row, cur *state) (next *state, err error)
	// purge removes the tombstones of as many of the first vbuckets as it reads at a time, and returns their number.
	// removed reports whether there were any, also after an error.
	purge(ctx context.Context, vbs []uint16) (done int, removed bool, err error)
	// view pins the current rows.
	view() view
	// durable returns the newest state that would survive SIGKILL and power loss now. The caller must not modify it.
	durable() (state, error)
	// persist makes everything applied so far durable.
	persist(ctx context.Context) error
	// checkpoint copies everything into a new folder. Everything must be persisted.
	checkpoint(ctx context.Context, dir string) error
	// verify reads and checks stored files: all of them if budget is negative, otherwise those whose sizes fit into
	// budget. It stops when ctx ends, which is not reported as damage.
	verify(ctx context.Context, budget int64, pace Pace) (read int64, err error)
	// failing returns why the engine cannot write now, or nil.
	failing() error
	// broken returns why the slice must be recovered, or nil if it need not be, or cannot be now for lack of space.
	broken() error
	// stuck returns why opening the folder again would lead to the same engine: it is open for reading alone, and
	// there is still no space to open it for writing. Otherwise it returns nil. failing, broken and stuck may also be
	// called on a closed engine.
	stuck() error
	stats() engineStats
	close() error
}

// view is a consistent state of an engine's rows.
type view interface {
	// rows iterates over the forward rows with low <= key||docid < high (nil: open), in order or in reverse.
	rows(low, high []byte, reverse bool) (rowIter, error)
	// back iterates over a vbucket's back entries by document id.
	back(vb uint16) (backIter, error)
	// entry returns one document's back entry. The caller owns keys.
	entry(vb uint16, docID []byte) (seqno uint64, keys [][]byte, found bool, err error)
	// has reports whether a forward row exists.
	has(key, docID []byte) (bool, error)
	close() error
}

// rowIter iterates over forward rows. Slices are valid until the next call.
type rowIter interface {
	next() bool
	row() (key, docID []byte)
	close() error // returns the first error
}

// backIter iterates over back entries. Slices are valid until the next call. An entry without keys is a tombstone.
type backIter interface {
	next() bool
	entry() (docID []byte, seqno uint64, keys [][]byte)
	// to restarts the iteration in another vbucket.
	to(vb uint16)
	close() error
}

type engineStats struct {
	diskBytes   int64
	liveBytes   int64 // part of diskBytes that is not garbage, estimated
	memoryBytes int64
}
