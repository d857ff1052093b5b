package projector

import (
	"context"
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// subscribe opens a topic for an external subscriber (RT-9).
func (p *Projector) subscribe(ctx context.Context, req *wire.Subscribe) (*wire.Subscription, error) {
	p.mu.Lock()
	defs := p.defs.newest
	p.mu.Unlock()
	if defs == nil {
		return nil, rpc.Refuse(errcode.Unavailable, "projector %s has no definitions yet; try again", p.cfg.ID)
	}
	ids, err := indexesOf(defs, req.Bucket, req.Indexes)
	if err != nil {
		return nil, err
	}
	info, err := p.bucketInfo(ctx, &wire.BucketRequest{Bucket: req.Bucket})
	if err != nil {
		return nil, err
	}
	if req.BucketUUID != "" && req.BucketUUID != info.UUID {
		return nil, recreated(req.Bucket, info.UUID, req.BucketUUID)
	}
	restart := wire.RestartTimestamp{}
	if req.Restart != nil {
		if err := req.Restart.Check(); err != nil {
			return nil, rpc.Refuse(errcode.BadRequest, "bucket %q: restart timestamp: %v", req.Bucket, err)
		}
		restart = *req.Restart
	} else {
		for v := range info.VBuckets {
			restart.Add(wire.StreamStart{VBucket: uint16(v), End: wire.NoEnd})
		}
	}
	if len(restart.Ends) == 0 {
		restart.Ends = slices.Repeat([]uint64{wire.NoEnd}, restart.Len())
	}
	asked := &wire.StreamRequest{Fence: wire.Fence{ClusterID: p.clusterID()}, Topic: "/backfill/" + req.ID,
		Incarnation: index.Incarnation{Counter: req.Counter},
		Buckets:     []wire.StreamBucket{{Bucket: req.Bucket, BucketUUID: info.UUID, Restart: restart}},
		Side:        &wire.SideTarget{Indexes: ids, Endpoint: req.Endpoint, RetryForever: req.RetryForever}}
	reply, err := p.streams(ctx, asked)
	if err != nil {
		return nil, err
	}
	return &wire.Subscription{ClusterID: asked.Fence.ClusterID, Topic: asked.Topic, BucketUUID: info.UUID,
		VBuckets: info.VBuckets, Indexes: ids,
		Results: reply.Buckets[0].Results}, nil
}

// meant reports whether a subscriber's word names an index; "" means all on the default collection. One that is to
// replace another has no name yet.
func meant(d *index.Definition, word string) bool {
	if word == d.ID.String() {
		return true
	}
	if d.Replaces != 0 {
		return false
	}
	if d.Member.IsZero() {
		return word == "" || word == d.Name
	}
	return word == d.Member.Scope+"."+d.Member.Collection+"/"+d.Name
}

// indexesOf finds active indexes of a bucket: by id; those on its default collection by name, those on another one by
// scope.collection/name; of no words, all on the default collection. What is told of a document does not say its
// collection: who asks for none hears of none.
func indexesOf(d *wire.Definitions, bucket string, words []string) (ids []index.ID, err error) {
	find := func(word string) bool {
		for i := range d.Indexes {
			def := &d.Indexes[i]
			if def.Bucket == bucket && def.State.Active() && meant(def, word) && !slices.Contains(ids, def.ID) {
				ids = append(ids, def.ID)
			}
		}
		return len(ids) > 0
	}
	if len(words) == 0 && !find("") {
		return nil, rpc.Refuse(errcode.NotFound, "bucket %q has no active index at definitions revision %d", bucket,
			d.Revision)
	}
	for _, w := range words {
		before := len(ids)
		if w == "" || !find(w) || len(ids) == before {
			return nil, rpc.Refuse(errcode.NotFound, "bucket %q has no active index %q beside those named before it, at "+
				"definitions revision %d; want ids or names, each once", bucket, w, d.Revision)
		}
	}
	return ids, nil
}
