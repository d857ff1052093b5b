package projector

import (
	"context"
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/projector/core"
	"tidemark/timestamp"
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
	ids, unknown := indexesOf(defs, req.Bucket, req.Indexes)
	if unknown != nil && req.BucketUUID == "" {
		return nil, unknown
	}
	kv, done := p.kvOf(ctx, req.Bucket)
	defer done()
	at, err := kv.state(ctx)
	if err != nil {
		return nil, err
	}
	uuid, vbuckets := at.config.UUID, at.config.NumVBuckets()
	if vbuckets > timestamp.MaxVBuckets {
		return nil, tooManyVBuckets(req.Bucket, vbuckets)
	}
	if req.BucketUUID != "" && req.BucketUUID != uuid {
		return nil, recreated(req.Bucket, uuid, req.BucketUUID)
	}
	if unknown != nil { // only now: the indexes of a bucket that was created again went with it
		return nil, unknown
	}
	restart, err := startsOf(req, vbuckets)
	if err != nil {
		return nil, err
	}
	asked := &wire.StreamRequest{Fence: wire.Fence{ClusterID: p.clusterID()}, Topic: "/backfill/" + req.ID,
		Incarnation: index.Incarnation{Counter: req.Counter},
		Buckets:     []wire.StreamBucket{{Bucket: req.Bucket, BucketUUID: uuid, Restart: *restart}},
		Side:        &wire.SideTarget{Indexes: ids, Endpoint: req.Endpoint, RetryForever: req.RetryForever}}
	opened := &wire.Subscription{ClusterID: asked.Fence.ClusterID, Topic: asked.Topic, BucketUUID: uuid,
		VBuckets: vbuckets, Indexes: ids}
	if at.hostNone(restart) { // a subscriber asks everybody, again and again: that costs no connection of its own
		if opened.Results, err = p.hostsNone(ctx, asked, at); err != nil {
			return nil, err
		}
		return opened, nil
	}
	reply, err := p.streams(ctx, asked)
	if err != nil {
		return nil, err
	}
	opened.Results = reply.Buckets[0].Results
	return opened, nil
}

// startsOf is where the streams of a subscriber begin; they have no end unless the request says one.
func startsOf(req *wire.Subscribe, vbuckets int) (*wire.RestartTimestamp, error) {
	restart := wire.RestartTimestamp{}
	if req.Restart != nil {
		if err := req.Restart.Check(); err != nil {
			return nil, rpc.Refuse(errcode.BadRequest, "bucket %q: restart timestamp: %v", req.Bucket, err)
		}
		restart = *req.Restart
	} else {
		for v := range vbuckets {
			restart.Add(wire.StreamStart{VBucket: uint16(v), End: wire.NoEnd})
		}
	}
	if len(restart.Ends) == 0 {
		restart.Ends = slices.Repeat([]uint64{wire.NoEnd}, restart.Len())
	}
	return &restart, nil
}

// hostsNone answers a request of whose vbuckets none is hosted here; it takes the place of an earlier one, too.
func (p *Projector) hostsNone(ctx context.Context, req *wire.StreamRequest, at *kvState) ([]wire.StartResult, error) {
	if _, _, err := core.CheckRequest(req); err != nil {
		return nil, err
	}
	if err := p.sides.stop(ctx, req.Topic); err != nil {
		return nil, err
	}
	vbuckets := req.Buckets[0].Restart.VBuckets
	results := make([]wire.StartResult, len(vbuckets))
	for i, vb := range vbuckets {
		results[i] = core.NotMine(vb)
		results[i].Revision = at.revision
	}
	return results, nil
}

// meant reports whether a subscriber's word names an index; "" means all on the default collection. One that is to
// replace another has no name yet, nor that one's first id.
func meant(d *index.Definition, word string) bool {
	if word == d.ID.String() {
		return true
	}
	if d.Replaces != 0 {
		return false
	}
	if word == d.First().String() {
		return true
	}
	if d.Member.IsZero() {
		return word == "" || word == d.Name
	}
	return word == d.Member.Scope+"."+d.Member.Collection+"/"+d.Name
}

// indexesOf finds active indexes of a bucket: by id; those on its default collection by name, those on another one by
// scope.collection/name; of no words, all on the default collection. What is told of a document does not say its
// collection: who asks for none hears of none. The ids are those that the indexes had first, which no split changes.
func indexesOf(d *wire.Definitions, bucket string, words []string) (ids []index.ID, err error) {
	find := func(word string) bool {
		for i := range d.Indexes {
			def := &d.Indexes[i]
			if def.Bucket == bucket && def.State.Active() && meant(def, word) && !slices.Contains(ids, def.First()) {
				ids = append(ids, def.First())
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
