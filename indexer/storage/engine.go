package storage

import "context"

// engine is one ordered store in one folder: all that a second kind of store has to offer. A slice calls the writing
// methods one at a time; reading ones come from any goroutine.
type engine interface {
	// state returns the state of the newest batch that the folder held when the engine was opened.
	state() state
	// flush applies a batch whole or not at all; next is the state after it, with items still to be set. idle: when no
	// update changes anything, nothing is written, and next keeps the number of the batch before.
	// updates are coalesced: ordered by (vbucket, document id), each document once. A write waits for room in memory at
	// most as long as ctx; yields: see Batch.Yields. touched is how many entries were written, changed or removed.
	flush(ctx context.Context, updates []*Update, keep func(uint16) bool, next *state, idle, yields bool) (touched int,
		err error)
	// replace makes the rows of vbuckets those of from (none when it is nil), by difference, and sets their positions, in
	// one batch: of as many of the first as a batch of bounded size takes. It returns the state after it, and how many
	// they are.
	replace(ctx context.Context, to []VBPosition, from view, cur *state) (next *state, done int, err error)
	// discard removes forward rows and gives the state after it.
	discard(ctx context.Context, rows []Row, cur *state) (next *state, err error)
	// purge removes a vbucket's tombstones.
	purge(ctx context.Context, vb uint16) error
	// view pins the present rows.
	view() view
	// durable returns the newest state that survives SIGKILL and power loss now. It is the engine's and is not changed.
	durable() (state, error)
	// persist makes everything applied so far durable.
	persist(ctx context.Context) error
	// checkpoint makes a copy of everything in a new folder; everything has been persisted.
	checkpoint(ctx context.Context, dir string) error
	// verify reads and checks stored files, all of them when budget is negative, else as long as their sizes fit. It ends
	// with ctx, whose cause is not damage.
	verify(ctx context.Context, budget int64, pace Pace) (read int64, err error)
	// failing gives why the engine cannot write now, nil when it can.
	failing() error
	// broken gives why the slice is to be recovered, nil when it need not be, or cannot be now for want of room. Both
	// may be asked of a closed engine.
	broken() error
	stats() engineStats
	close() error
}

// view is a consistent state of an engine's rows.
type view interface {
	// rows iterates the forward rows with low <= key||docid < high (nil: open), in order or in reverse.
	rows(low, high []byte, reverse bool) (rowIter, error)
	// back iterates a vbucket's back entries by document id.
	back(vb uint16) (backIter, error)
	// entry returns one document's back entry; keys are the caller's.
	entry(vb uint16, docID []byte) (seqno uint64, keys [][]byte, found bool, err error)
	// has reports whether a forward row is there.
	has(key, docID []byte) (bool, error)
	close() error
}

// rowIter walks over forward rows. Slices are valid until the next call.
type rowIter interface {
	next() bool
	row() (key, docID []byte)
	close() error // the first error met
}

// backIter walks over back entries. Slices are valid until the next call. No keys: a tombstone.
type backIter interface {
	next() bool
	entry() (docID []byte, seqno uint64, keys [][]byte)
	// to begins anew with another vbucket.
	to(vb uint16)
	close() error
}

type engineStats struct {
	diskBytes   int64
	liveBytes   int64 // part of diskBytes that is no garbage, estimated
	memoryBytes int64
}
