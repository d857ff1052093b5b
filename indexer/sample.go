package indexer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/indexer/storage"
	"tidemark/internal/rpc"
	"tidemark/partition"
	"tidemark/wire"
)

const (
	// samplesAtOnce bounds the samples of stored entries that are taken concurrently, so that scans keep their share
	// of the disk. Other requests wait until their caller gives up.
	samplesAtOnce = 2
	// samplesMost bounds the sample requests in progress, waiting ones and load samples included: as many as a leader
	// has connections.
	samplesMost = 64
	// sampleTime bounds one request, which may sample the load for up to wire.MaxLoadMS.
	sampleTime = wire.MaxLoadMS*time.Millisecond + callTime
)

// sample returns the distribution of the leading keys of a copy.
func (x *Indexer) sample(ctx context.Context, req *wire.SampleRequest) (r *wire.SampleReply, err error) {
	if min(req.Wanted, req.Keys, req.Bytes) < 1 || req.Wanted > wire.MaxSampled || req.Keys > wire.MaxSampleKeys ||
		req.Bytes > wire.MaxSampleBytes {
		return nil, rpc.Refuse(errcode.BadRequest, "a sample of %d entries with %d keys of %d bytes; the limits are %d, "+
			"%d and %d, the minimum is one entry", req.Wanted, req.Keys, req.Bytes, wire.MaxSampled, wire.MaxSampleKeys,
			wire.MaxSampleBytes)
	}
	if req.LoadMS != 0 {
		return x.sampleLoad(ctx, req)
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
	r = &wire.SampleReply{Rows: held.Snap.Items()}
	var of int
	if req.Whole {
		var keys [][]byte
		if keys, of, err = held.Snap.SampleKeys(ctx, req.Wanted, req.Keys, req.Bytes); err == nil {
			r.Of = int64(of)
			r.Entries, err = sampled(keys, held.Snap.Slice().Meta().Desc)
		}
		return r, err
	}
	samples, err := held.Snap.Sample(ctx, req.Wanted)
	if err != nil {
		return nil, err
	}
	r.Keys, of = samples.Spread(req.Keys, req.Bytes)
	r.Of = int64(of)
	return r, nil
}

// sampled splits keys into their components.
func sampled(keys [][]byte, desc []bool) ([][]wire.SampledValue, error) {
	entries := make([][]wire.SampledValue, len(keys))
	for i, key := range keys {
		for len(key) > 0 {
			down := len(entries[i]) < len(desc) && desc[len(entries[i])]
			c, rest, err := collate.Next(key, down)
			if err != nil {
				return nil, fmt.Errorf("a stored key: %w", err)
			}
			c = bytes.Clone(c)
			if down {
				collate.Complement(c)
			}
			entries[i] = append(entries[i],
				wire.SampledValue{Value: c[:min(len(c), partition.MaxBound)], Hash: xxhash.Sum64(c)})
			key = rest
		}
	}
	return entries, nil
}

// sampleLoad returns the distribution of the leading keys of the entries that are written and read during the next
// req.LoadMS milliseconds. It reads no stored entries, so it does not count toward samplesAtOnce.
func (x *Indexer) sampleLoad(ctx context.Context, req *wire.SampleRequest) (*wire.SampleReply, error) {
	s, ok := x.store.Slice(req.Copy)
	switch {
	case req.LoadMS < 0 || req.LoadMS > wire.MaxLoadMS:
		return nil, rpc.Refuse(errcode.BadRequest, "a sample of the entries of %d ms; the limit is %d", req.LoadMS,
			wire.MaxLoadMS)
	case !ok:
		return nil, rpc.Refuse(errcode.IndexNotHosted, "indexer %s has no copy %s", req.Copy, x.cfg.Name)
	}
	samples, seen, err := s.Load(ctx, time.Duration(req.LoadMS)*time.Millisecond)
	if errors.Is(err, storage.ErrRecording) {
		return nil, rpc.Refuse(errcode.Busy, "%v", err)
	}
	if err != nil {
		return nil, err
	}
	r := &wire.SampleReply{Rows: seen}
	var of int
	r.Keys, of = samples.Spread(req.Keys, req.Bytes)
	r.Of = int64(of)
	return r, nil
}
