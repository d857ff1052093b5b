package indexer

import (
	"context"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/pace"
	"tidemark/internal/rpc"
)

const (
	// makeFirst and makeMost bound the growing pause before copies are made again that could not be.
	makeFirst = 100 * time.Millisecond
	makeMost  = 10 * time.Second
)

// lacking are the copies that a list of definitions places here and that could not be made, of a disk that fails, say.
// They hold back nothing else of the list: the leader is not told of them as long as they are not there, and the node's
// health says why. It is used under the lock of lists.
type lacking struct {
	list   uint64 // counts those that were taken over
	copies map[index.CopyID]bool
}

// ensureCopies makes what is missing, side by side, and notes what cannot be made. An error says that it was given up.
func (x *Indexer) ensureCopies(ctx context.Context, want map[index.CopyID]core.Wanted) (err error) {
	_, span := rpc.StartSpan(ctx, "make copies")
	defer func() { rpc.EndSpan(ctx, span, err) }()
	var mu sync.Mutex
	failed := map[index.CopyID]error{}
	g := newMakers()
	for id, w := range want {
		g.do(func() error {
			if err := x.ensureCopy(ctx, id, w); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[id] = err
			}
			return nil
		})
	}
	_ = g.wait() // none gives an error
	if len(failed) > 0 && ctx.Err() != nil {
		return rpc.Refuse(errcode.Unavailable, "%d copies are not made: %v", len(failed), context.Cause(ctx))
	}
	x.noteLacking(failed)
	return nil
}

// makingSource begins the name under which the node's health has a copy that cannot be made: all others are written and
// served meanwhile.
const makingSource = "making copy "

// noteLacking tells of the copies that could not be made, and of the others that they are there or not wanted any more.
func (x *Indexer) noteLacking(failed map[index.CopyID]error) {
	was := x.lacking.copies
	x.lacking.copies = map[index.CopyID]bool{}
	for id, err := range failed {
		x.lacking.copies[id] = true
		if x.health.Set(makingSource+id.String(), "cannot be made: "+err.Error()) {
			x.log.Error("a copy cannot be made; trying again", "copy", id, "error", err)
		}
	}
	for id := range was {
		if failed[id] == nil {
			x.health.Set(makingSource+id.String(), "")
		}
	}
}

// laterMake lets what the newest list lacks be made as soon as that can be done.
func (x *Indexer) laterMake(want map[index.CopyID]core.Wanted) {
	if len(x.lacking.copies) == 0 {
		return
	}
	list := x.lacking.list
	x.spawn(func(ctx context.Context) error {
		pause := makeFirst
		for pace.Sleep(ctx, pause) == nil && x.makeAgain(ctx, list, want) {
			pause = min(2*pause, makeMost)
		}
		return nil
	})
}

// makeAgain tries to make what a list lacks. It reports whether some are still to be made, and no other list has come.
func (x *Indexer) makeAgain(ctx context.Context, list uint64, want map[index.CopyID]core.Wanted) bool {
	x.applying.Lock()
	defer x.applying.Unlock()
	if x.lacking.list != list {
		return false
	}
	missing := map[index.CopyID]core.Wanted{}
	for id := range x.lacking.copies {
		missing[id] = want[id]
	}
	err := x.ensureCopies(ctx, missing)
	x.health.Set(copiesSource, "")
	wake(x.report)
	x.sides.Wake()
	return err == nil && len(x.lacking.copies) > 0
}
