package projector

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// bucketsAtOnce bounds the buckets of one request that are worked at side by side.
const bucketsAtOnce = 4

// leaderKey leads to what is wrong with the caller as a manager; nil when it is one.
type leaderKey struct{}

// whoAsks lets a request's handler see whether a manager asks: of the routes of streams some topics are managers'
// alone.
func whoAsks(h http.Handler) http.Handler {
	manager := tlsconf.Only(tlsconf.Manager)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), leaderKey{}, manager(r))))
	})
}

// parseTopic returns a topic's class, and of a catchup its indexer.
func parseTopic(topic string) (keyversion.Class, index.NodeID, error) {
	bad := func(why string) (keyversion.Class, index.NodeID, error) {
		return 0, 0, rpc.Refuse(errcode.BadRequest, "topic %q: %s; want /maintenance, /backfill/<id> or "+
			"/catchup/<indexer>/<id>", topic, why)
	}
	if len(topic) > wire.MaxTopic {
		return bad(fmt.Sprintf("%d bytes, the most is %d", len(topic), wire.MaxTopic))
	}
	if topic == wire.MaintenanceTopic {
		return keyversion.ClassMaintenance, 0, nil
	}
	parts := strings.Split(topic, "/")
	for _, part := range parts[1:] {
		if part == "" || strings.ContainsFunc(part, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return bad("a part of it is empty or has what is no visible ASCII")
		}
	}
	switch {
	case len(parts) > 2 && parts[0] == "" && parts[1] == "backfill":
		return keyversion.ClassBackfill, 0, nil
	case len(parts) > 2 && parts[0] == "" && parts[1] == "catchup":
		n, err := strconv.ParseUint(parts[2], 10, 8)
		if err != nil || index.NodeID(n) > index.MaxNodeID {
			return bad(fmt.Sprintf("an indexer is a number up to %d", index.MaxNodeID))
		}
		return keyversion.ClassCatchup, index.NodeID(n), nil
	}
	return bad("no such class")
}

// topicID is the topic id byte of PR-14.
func topicID(class keyversion.Class, node index.NodeID) uint8 {
	if class == keyversion.ClassCatchup {
		return uint8(node)
	}
	return uint8(class)
}

// streams opens what one of the three request forms asks for (PR-11).
func (p *Projector) streams(ctx context.Context, req *wire.StreamRequest) (*wire.StreamReply, error) {
	class, node, err := parseTopic(req.Topic)
	if err != nil {
		return nil, err
	}
	if err := checkRequest(req, class, node); err != nil {
		return nil, err
	}
	open := p.startMaintenance
	if class == keyversion.ClassMaintenance {
		err = p.command(ctx, req.Fence)
	} else {
		err, open = p.checkCluster(req.Fence.ClusterID), p.openSide
	}
	if err != nil {
		return nil, err
	}
	reply := &wire.StreamReply{TopicID: topicID(class, node), Buckets: make([]wire.StreamOutcome, len(req.Buckets))}
	errs := make([]error, len(req.Buckets))
	var g errgroup.Group
	g.SetLimit(bucketsAtOnce)
	for i := range req.Buckets {
		g.Go(func() error {
			out := &reply.Buckets[i]
			out.Bucket = req.Buckets[i].Bucket
			if errs[i] = open(ctx, req, &req.Buckets[i], out); errs[i] != nil {
				problem := rpc.AsProblem(errs[i])
				out.Results, out.Code, out.Detail = nil, problem.Code, problem.Detail
			}
			return nil
		})
	}
	_ = g.Wait() // outcomes carry the errors
	if !slices.Contains(errs, nil) {
		return nil, errs[0]
	}
	return reply, nil
}

// checkRequest tells what is wrong with a request before anything is begun.
func checkRequest(req *wire.StreamRequest, class keyversion.Class, node index.NodeID) error {
	bad := func(format string, args ...any) error {
		return rpc.Refuse(errcode.BadRequest, "topic %q: %s", req.Topic, fmt.Sprintf(format, args...))
	}
	if len(req.Buckets) == 0 || len(req.Buckets) > maxBuckets {
		return bad("%d buckets, want 1 to %d", len(req.Buckets), maxBuckets)
	}
	names := map[string]bool{}
	for i := range req.Buckets {
		b := &req.Buckets[i]
		if b.Bucket == "" || names[b.Bucket] {
			return bad("bucket %q is named twice, or a bucket has no name", b.Bucket)
		}
		names[b.Bucket] = true
		if err := b.Restart.Check(); err != nil {
			return bad("bucket %q: restart timestamp: %v", b.Bucket, err)
		}
		if b.Restart.Len() == 0 {
			return bad("bucket %q: the restart timestamp names no vbucket", b.Bucket)
		}
	}
	if class == keyversion.ClassMaintenance {
		if req.Side != nil {
			return bad("side is for /backfill/ and /catchup/ only")
		}
		return nil
	}
	return checkSide(req, class, node, bad)
}

// checkSide looks at what only side streams have: where they go, for which copies, and an end.
func checkSide(req *wire.StreamRequest, class keyversion.Class, node index.NodeID,
	bad func(format string, args ...any) error) error {
	switch t := req.Side; {
	case t == nil || t.Endpoint == "" || (len(t.Copies) == 0) == (len(t.Indexes) == 0):
		return bad("want side, with an endpoint and either indexes or copies")
	case class == keyversion.ClassCatchup && t.Node != node:
		return bad("it is of indexer %d, the request of %d", node, t.Node)
	}
	for i := range req.Buckets {
		for n := range req.Buckets[i].Restart.Len() {
			if s := req.Buckets[i].Restart.At(n); s.End == 0 {
				return bad("bucket %q, vbucket %d: a side stream needs an end", req.Buckets[i].Bucket, s.VBucket)
			}
		}
	}
	return nil
}

// command admits what only the leader may say.
func (p *Projector) command(ctx context.Context, f wire.Fence) error {
	if err, _ := ctx.Value(leaderKey{}).(error); err != nil {
		return rpc.Refuse(errcode.Forbidden, "%s is the leader's: %v", wire.MaintenanceTopic, err)
	}
	return p.admit(f, false)
}

// startMaintenance is form 1 for one bucket.
func (p *Projector) startMaintenance(ctx context.Context, req *wire.StreamRequest, want *wire.StreamBucket,
	out *wire.StreamOutcome) error {
	b := p.bucket(want.Bucket)
	if b == nil || b.uuid != want.BucketUUID {
		info, err := p.bucketInfo(ctx, &wire.BucketRequest{Bucket: want.Bucket})
		if err != nil {
			return err
		}
		if info.UUID != want.BucketUUID {
			return recreated(want.Bucket, info.UUID, want.BucketUUID)
		}
		if b, err = p.openBucket(want.Bucket, want.BucketUUID, info.VBuckets); err != nil {
			return err
		}
	}
	var err error
	if out.Results, err = b.startAll(ctx, req.Incarnation, &want.Restart); err != nil {
		return err
	}
	out.Activations = b.activations()
	return nil
}

// stopStreams ends streams of a topic.
func (p *Projector) stopStreams(ctx context.Context, req *wire.StreamStop) (*wire.OK, error) {
	class, _, err := parseTopic(req.Topic)
	if err != nil {
		return nil, err
	}
	if class != keyversion.ClassMaintenance {
		if err := p.checkCluster(req.Fence.ClusterID); err != nil {
			return nil, err
		}
		if len(req.VBuckets) > 0 {
			if req.Bucket == "" {
				return nil, rpc.Refuse(errcode.BadRequest, "topic %q: vbuckets without a bucket", req.Topic)
			}
			p.dropSides(req.Topic, req.Bucket, req.VBuckets)
			return &wire.OK{}, nil
		}
		return &wire.OK{}, p.stopSides(ctx, req.Topic)
	}
	if err := p.command(ctx, req.Fence); err != nil {
		return nil, err
	}
	if b := p.bucket(req.Bucket); b != nil {
		b.stop(ctx, req.VBuckets, req.Incarnation)
	}
	return &wire.OK{}, nil
}

// subscriber gives definitions that place each of these indexes whole, as one slice, at a node: for a subscriber that
// is no indexer (RT-9). The copies are named after the indexes.
func subscriber(d *wire.Definitions, ids []index.ID, node index.NodeID) (*wire.Definitions, []index.CopyID) {
	own := *d
	own.Topologies = make([]partition.Topology, len(ids))
	copies := make([]index.CopyID, len(ids))
	for i, id := range ids {
		copies[i] = index.CopyID(id)
		own.Topologies[i] = partition.Topology{Index: id, Layout: partition.Layout{Scheme: partition.HashDocID,
			Partitions: 1},
			Copies: []partition.Copy{{ID: copies[i], Node: node, State: partition.Allocated}}}
	}
	return &own, copies
}

// settle fills in what ends a vbucket's handshake: the log as it is, and where the stream stands on it (PR-12).
func settle(r *wire.StartResult, log timestamp.FailoverLog) {
	if r.Log = log; len(log) > 0 {
		r.Failover = timestamp.Position{VBUUID: log[0].VBUUID, Seqno: log[0].Seqno}
	}
}
