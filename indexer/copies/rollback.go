package copies

import (
	"context"

	"tidemark/errcode"
	"tidemark/indexer/core"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Prepare replies to the first step of a rollback with what the copies hold.
func (k *Bucket) Prepare(ctx context.Context, req *wire.RollbackRequest) (reply *wire.RollbackReply, err error) {
	err = k.do(ctx, func() {
		states, release := k.pastsOfCopies()
		defer k.aside(release) // release may close replaced files
		reply = k.st.Prepare(req, states)
	})
	return reply, err
}

// CarryOut does the second step of a rollback, and returns when everything has been restored.
func (k *Bucket) CarryOut(ctx context.Context, req *wire.RollbackRequest, reply *wire.RollbackReply) error {
	began, waited := k.node.Now(), false
	for {
		var back core.Back
		var changed <-chan struct{}
		if err := k.do(ctx, func() { back, changed = k.st.CarryOut(req), k.restoredSignal() }); err != nil {
			return err
		}
		switch back {
		case core.BackStale:
			reply.Stale = true
			return nil
		case core.BackOlder:
			return rpc.Refuse(errcode.Fenced, "rollback %d is older than one that was already executed", req.RollbackID)
		case core.BackDone, core.BackNow:
			if waited || back == core.BackNow { // not for a rollback that was carried out by an earlier call
				k.node.Metrics.rolls.Observe(k.node.Now().Sub(began).Seconds())
			}
			k.node.Touch(k.name)
			return nil
		case core.BackWaits:
		}
		waited = true
		select {
		case <-changed:
		case <-k.calls.over:
			return ErrBucketGone
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
