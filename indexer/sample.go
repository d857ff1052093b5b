package indexer

import (
	"context"
	"errors"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// samplesAtOnce is how many samples are taken at a time, so that scans keep the disk; others wait for as long as who
// asks for them.
const samplesAtOnce = 2

// sample tells how the leading keys of a copy are spread.
func (x *Indexer) sample(ctx context.Context, req *wire.SampleRequest) (r *wire.SampleReply, err error) {
	if min(req.Wanted, req.Keys, req.Bytes) < 1 || req.Wanted > wire.MaxSampled || req.Keys > wire.MaxSampleKeys ||
		req.Bytes > wire.MaxSampleBytes {
		return nil, rpc.Refuse(errcode.BadRequest, "a sample of %d entries with %d keys of %d bytes: want at most %d, "+
			"%d and %d, and at least one", req.Wanted, req.Keys, req.Bytes, wire.MaxSampled, wire.MaxSampleKeys,
			wire.MaxSampleBytes)
	}
	select {
	case x.samples <- struct{}{}:
		defer func() { <-x.samples }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	held, ok := x.snapshots.Acquire(req.Copy, nil)
	if !ok {
		return nil, rpc.Refuse(errcode.IndexNotHosted, "copy %s does not serve on indexer %s", req.Copy, x.cfg.Name)
	}
	defer func() { err = errors.Join(err, held.Snap.Close()) }()
	samples, err := held.Snap.Sample(ctx, req.Wanted)
	if err != nil {
		return nil, err
	}
	r = &wire.SampleReply{Rows: held.Snap.Items()}
	var of int
	r.Keys, of = samples.Spread(req.Keys, req.Bytes)
	r.Of = int64(of)
	return r, nil
}
