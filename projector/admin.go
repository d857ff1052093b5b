package projector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tidemark/errcode"
	"tidemark/internal/logging"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/projectorclient"
	"tidemark/timestamp"
	"tidemark/wire"
)

// callTime bounds a call, beyond what any caller waits: a caller that disconnects cancels its call sooner.
const callTime = 2 * projectorclient.StreamTimeout

// table returns the routes of the admin server (PR-2): the messages of package wire that a projector takes, health
// and metrics. Over TLS only managers may send commands; indexers may request side streams.
func (p *Projector) table() *route.Table {
	const large, small = rpc.MaxControlBody, rpc.MaxUserBody
	manager, side, all := route.Only(tlsconf.Manager), route.Only(tlsconf.Manager, tlsconf.Indexer), route.Certified()
	take := func(method, path string, who route.Role, body int64, handle rpc.HandlerFunc) route.Route {
		return route.Route{Method: method, Path: path, Role: who, Body: body, Limit: callTime, Handle: handle}
	}
	show := func(path string, who route.Role, handle rpc.HandlerFunc) route.Route {
		return route.Route{Method: http.MethodGet, Path: path, Role: who, Limit: callTime, Handle: handle}
	}
	return &route.Table{Lacks: "the admin port of a projector has no call %s", Routes: []route.Route{
		take(http.MethodPut, "/v1/hello", manager, small, rpc.Message(p.hello)),
		take(http.MethodPut, "/v1/definitions", manager, large, rpc.Message(p.definitions)),
		take(http.MethodPost, "/v1/definitions:change", manager, large, rpc.Message(p.change)),
		take(http.MethodPost, "/v1/bucket", manager, small, rpc.Message(p.bucketInfo)),
		take(http.MethodPost, "/v1/fields", manager, small, rpc.Message(p.fields)),
		take(http.MethodPost, "/v1/failoverlogs", manager, small, rpc.Message(p.failoverLogs)),
		take(http.MethodPost, "/v1/streams", side, large, withCaller(rpc.Message(p.streams))),
		take(http.MethodPost, "/v1/streams:stop", side, small, withCaller(rpc.Message(p.stopStreams))),
		take(http.MethodPost, "/v1/topics", side, small, rpc.Message(p.subscribe)),
		take(http.MethodPost, "/v1/seqnos", side, small, rpc.Message(p.seqnos)),
		take(http.MethodPost, "/v1/sync", manager, small, rpc.Message(p.sync)),
		take(http.MethodPut, "/v1/logging", manager, small, logging.Put(p.log)),
		show("/v1/logging", all, logging.Get(p.log)),
		show("/v1/state", all, rpc.Show(func(context.Context) (*wire.ProjectorState, error) { return p.state(), nil })),
		show("/v1/topics", all, rpc.Show(func(context.Context) (wire.TopicList, error) {
			return wire.TopicList{Topics: p.topics()}, nil
		})),
		route.Metrics(route.Readers(p.managers.OrToken), promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{})),
		route.Alive(), route.Ready(p.reasons),
	}}
}

func (p *Projector) hello(_ context.Context, req *wire.HelloRequest) (*wire.ProjectorHello, error) {
	if err := p.admit(req.Fence, false); err != nil {
		return nil, err
	}
	p.managers.SetManagers(req.Managers)
	p.managers.SetLeader(req.Leader)
	return &wire.ProjectorHello{Report: *p.currentReport("")}, nil
}

// definitions takes newer definitions. The reply confirms that they have arrived; a report states when every worker
// has switched to them.
func (p *Projector) definitions(_ context.Context, req *wire.Definitions) (*wire.DefinitionsReply, error) {
	if err := p.admit(req.Fence, false); err != nil {
		return nil, err
	}
	p.managers.SetManagers(req.Managers)
	evaluation := p.assessor.assess(req)
	p.mu.Lock()
	if err := p.defs.take(req, evaluation); err != nil {
		p.mu.Unlock()
		return nil, err
	}
	var stay, gone []*bucket
	known := map[string]string{}
	for _, b := range req.Buckets {
		known[b.Name] = b.UUID
	}
	for name, b := range p.buckets {
		if known[name] == b.uuid {
			stay = append(stay, b)
		} else {
			gone = append(gone, b)
			delete(p.buckets, name)
		}
	}
	p.mu.Unlock()
	for _, b := range gone {
		b.close()
	}
	var errs []error
	for _, b := range stay {
		errs = append(errs, b.replan(req))
	}
	p.faults.keep(req)
	p.notify()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &wire.DefinitionsReply{Revision: req.Revision}, nil
}

// change takes definitions as a change of an earlier list. If the projector has another list, it replies Missing and
// changes nothing.
func (p *Projector) change(ctx context.Context, c *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	if err := p.admit(c.Fence, false); err != nil {
		return nil, err
	}
	p.mu.Lock()
	base := p.defs.newest
	p.mu.Unlock()
	d, err := c.Apply(base)
	if err != nil {
		return &wire.DefinitionsReply{Missing: true}, nil //nolint:nilerr // the reply reports it
	}
	return p.definitions(ctx, d)
}

// bucket returns the open bucket of that name, nil if there is none.
func (p *Projector) bucket(name string) *bucket {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buckets[name]
}

func (p *Projector) bucketInfo(ctx context.Context, req *wire.BucketRequest) (*wire.BucketReply, error) {
	if req.Bucket == "" {
		return nil, rpc.Refuse(errcode.BadRequest, "no bucket is given")
	}
	if err := wire.MeantFor(req.Boot, p.bootID); err != nil {
		return nil, err
	}
	if b := p.bucket(req.Bucket); b != nil && b.control.silent.Load() {
		return nil, kvProblem(req.Bucket, errKVSilent)
	}
	c := p.newControl(ctx, req.Bucket)
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, kvTimeout)
	defer cancel()
	conn, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	config, err := conn.ClusterConfig(ctx)
	if err != nil {
		return nil, kvProblem(req.Bucket, err)
	}
	p.saw(config, conn.Addr())
	if n := config.NumVBuckets(); n > timestamp.MaxVBuckets {
		return nil, tooManyVBuckets(req.Bucket, n)
	}
	reply := &wire.BucketReply{Name: req.Bucket, UUID: config.UUID, VBuckets: config.NumVBuckets(),
		Revision: revisionOf(config)}
	if req.Collections {
		m, err := conn.Manifest(ctx)
		switch {
		case err == nil:
			reply.Collections = collectionsOf(m)
		case !errors.Is(err, feed.ErrNotSupported):
			return nil, kvProblem(req.Bucket, err)
		}
	}
	return reply, nil
}

func tooManyVBuckets(bucket string, n int) error {
	return rpc.Refuse(errcode.TooManyVBuckets, "bucket %q has %d vbuckets; a bucket with indexes may have at most "+
		"%d", bucket,
		n, timestamp.MaxVBuckets)
}

func collectionsOf(m *mcbp.Manifest) *wire.Collections {
	c := &wire.Collections{UID: m.UID}
	for _, s := range m.Scopes {
		for _, x := range s.Collections {
			c.All = append(c.All, wire.Collection{Scope: s.Name, Name: x.Name, ID: x.ID, Flushed: x.Flushed})
		}
	}
	return c
}

// kvOf returns a control connection for a bucket, whether or not it is open here. The caller must call done.
func (p *Projector) kvOf(ctx context.Context, name string) (c *control, done func()) {
	if b := p.bucket(name); b != nil {
		return b.control, func() {}
	}
	c = p.newControl(ctx, name)
	return c, c.close
}

func (p *Projector) failoverLogs(ctx context.Context, req *wire.FailoverLogsRequest) (*wire.FailoverLogsReply, error) {
	if err := p.admit(req.Fence, true); err != nil {
		return nil, err
	}
	c, done := p.kvOf(ctx, req.Bucket)
	defer done()
	ctx, cancel := context.WithTimeout(ctx, kvTimeout)
	defer cancel()
	at, err := c.state(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	wanted := req.VBuckets
	if len(wanted) == 0 {
		for v := range at.config.NumVBuckets() {
			wanted = append(wanted, uint16(v))
		}
	}
	wanted = slices.DeleteFunc(slices.Clone(wanted), func(vb uint16) bool { _, hosted := at.highs[vb]; return !hosted })
	reply := &wire.FailoverLogsReply{}
	logs := queryEach(ctx, wanted, func(vbs []uint16) []feed.StreamAnswer { return conn.FailoverLogs(ctx, vbs) },
		func(a feed.StreamAnswer) error { return a.Err })
	for i, a := range logs {
		if errors.Is(a.Err, feed.ErrNotMyVBucket) { // it has moved to another node since
			continue
		}
		if a.Err != nil {
			return nil, kvProblem(req.Bucket, a.Err)
		}
		vb := wanted[i]
		reply.Logs = append(reply.Logs, wire.VBucketHistory{VBucket: vb, Log: a.Log, High: at.highs[vb],
			Purge: at.purges[vb], Revision: at.revision})
	}
	return reply, nil
}

// checkCluster refuses requests from another cluster's indexer.
func (p *Projector) checkCluster(id string) error {
	if own := p.clusterID(); own == "" || own != id {
		return fmt.Errorf("%w: the request is from cluster %q, this projector belongs to %q", wire.ErrForeignCluster, id, own)
	}
	return nil
}

func (p *Projector) seqnos(ctx context.Context, req *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
	if b := p.bucket(req.Bucket); b != nil {
		defer b.calm.Hurry()() // the caller is usually a scan, which waits until the indexers have what KV has now
	}
	c, done := p.kvOf(ctx, req.Bucket)
	defer done()
	ctx, cancel := context.WithTimeout(ctx, seqnosTimeout)
	defer cancel()
	conn, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	reply := &wire.SeqnosReply{}
	if req.Map {
		config, err := conn.ClusterConfig(ctx)
		if err != nil {
			return nil, kvProblem(req.Bucket, err)
		}
		reply.Revision = revisionOf(config)
	}
	if err := p.positions(ctx, req.Bucket, conn, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// seqnosTimeout bounds how long KV may take to report its positions: less than callers wait.
const seqnosTimeout = 1500 * time.Millisecond

// positionRounds is how often KV is queried for its positions while branches change.
const positionRounds = 4

// positions adds to reply the high seqno of each active vbucket, with the branch it is on. KV sends a high seqno
// without its branch, and the branch of our stream may be one that KV has left: the stream's end arrives on another
// connection, later. So the branch is read after the seqno. If it is the branch already known before the seqno was
// read, the seqno belongs to it, since KV never returns to an earlier branch. Otherwise the seqno is read again.
func (p *Projector) positions(ctx context.Context, bucket string, conn feed.Feed, reply *wire.SeqnosReply) error {
	known := map[uint16]uint64{}
	if b := p.bucket(bucket); b != nil {
		b.branches(known)
	}
	for range positionRounds {
		highs, err := conn.HighSeqnos(ctx)
		if err != nil {
			return kvProblem(bucket, err)
		}
		highs = slices.DeleteFunc(highs, func(h mcbp.VBucketSeqno) bool { return !p.cfg.Share.Has(h.VBucket) })
		vbs := make([]uint16, len(highs))
		for i, h := range highs {
			vbs[i] = h.VBucket
		}
		changed := false
		reply.VBuckets, reply.VBUUIDs, reply.Seqnos = nil, nil, nil
		branches := queryEach(ctx, vbs, func(vbs []uint16) []feed.Branch {
			return conn.Branches(ctx, vbs, func(vb uint16) uint64 { return known[vb] })
		}, func(a feed.Branch) error { return a.Err })
		for i, a := range branches {
			switch {
			case errors.Is(a.Err, feed.ErrNotMyVBucket): // it has moved to another node
				continue
			case a.Err != nil:
				return kvProblem(bucket, a.Err)
			}
			changed = changed || known[vbs[i]] != a.VBUUID
			known[vbs[i]] = a.VBUUID
			reply.VBuckets, reply.VBUUIDs = append(reply.VBuckets, vbs[i]), append(reply.VBUUIDs, a.VBUUID)
			reply.Seqnos = append(reply.Seqnos, highs[i].Seqno)
		}
		if !changed {
			return nil
		}
	}
	return rpc.Refuse(errcode.KVUnavailable, "KV of bucket %q changes the branches of its vbuckets too fast: try again",
		bucket)
}

// branches sets in known the branch of each stream that is not known to have ended.
func (b *bucket) branches(known map[uint16]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams.Branches(known)
}

// sync reports one bucket as soon as its streams have reached the wanted seqnos, or the wait is over.
func (p *Projector) sync(ctx context.Context, req *wire.SyncRequest) (*wire.ProjectorReport, error) {
	if err := p.admit(req.Fence, true); err != nil {
		return nil, err
	}
	b := p.bucket(req.Bucket)
	if b != nil && len(req.Want) > 0 && req.WaitMS > 0 {
		defer b.calm.Hurry()()
		b.topic.Urge() // send what is queued already during the wait
		limit := time.NewTimer(min(time.Duration(req.WaitMS)*time.Millisecond, maxSyncWait))
		defer limit.Stop()
	wait:
		for {
			ok, changed := b.reached(req.Want)
			if ok {
				break
			}
			select {
			case <-changed:
			case <-limit.C:
				break wait
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return p.currentReport(req.Bucket), nil
}
