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
	if unknown != nil { // only now: if the bucket was created again, its indexes are gone, and that is the better error
		return nil, unknown
	}
	restart, err := startsOf(req, vbuckets)
	if err != nil {
		return nil, err
	}
	sent := &wire.StreamRequest{Fence: wire.Fence{ClusterID: p.clusterID()}, Topic: "/backfill/" + req.ID,
		Incarnation: index.Incarnation{Counter: req.Counter},
		Buckets:     []wire.StreamBucket{{Bucket: req.Bucket, BucketUUID: uuid, Restart: *restart}},
		Side:        &wire.SideTarget{Indexes: ids, Endpoint: req.Endpoint, RetryForever: req.RetryForever}}
	opened := &wire.Subscription{ClusterID: sent.Fence.ClusterID, Topic: sent.Topic, BucketUUID: uuid,
		VBuckets: vbuckets, Indexes: ids}
	if at.hostNone(restart) { // subscribers send requests to every projector, repeatedly: no connection is opened for that
		if opened.Results, err = p.hostsNone(ctx, sent, at); err != nil {
			return nil, err
		}
		return opened, nil
	}
	reply, err := p.streams(ctx, sent)
	if err != nil {
		return nil, err
	}
	opened.Results = reply.Buckets[0].Results
	return opened, nil
}

// startsOf returns where the streams of a subscriber begin; they have no end unless the request states one.
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

// hostsNone answers a request none of whose vbuckets is hosted here. Like any other, it replaces an earlier one of
// its topic.
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

// meant reports whether a subscriber's word names an index; "" means every index on the default collection. A
// successor is not found by the name or the first id of the index that it is to replace.
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

// indexesOf finds active indexes of a bucket by words: an id, the name of an index on the default collection, or
// scope.collection/name; without words, all on the default collection. Those on other collections must be named,
// because events do not contain a document's collection. It returns the indexes' first ids, which no split changes.
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
			return nil, rpc.Refuse(errcode.NotFound, "bucket %q has no active index %q apart from those named before it, at "+
				"definitions revision %d; want ids or names, each once", bucket, w, d.Revision)
		}
	}
	return ids, nil
}
