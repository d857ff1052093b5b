package projector

import (
	"context"
	"net/http"
	"slices"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/keyversion"
	"tidemark/projector/core"
	"tidemark/wire"
)

// bucketsAtOnce bounds the buckets of one request that are processed concurrently.
const bucketsAtOnce = 4

// leaderKey is the context key of the error that explains why the caller is not a manager; nil if it is one.
type leaderKey struct{}

// withCaller adds to a request's context whether the caller is a manager: the routes of streams are open to indexers,
// but the maintenance topic is for managers only.
func withCaller(handle rpc.HandlerFunc) rpc.HandlerFunc {
	manager := tlsconf.Only(tlsconf.Manager)
	return func(w http.ResponseWriter, r *http.Request) error {
		return handle(w, r.WithContext(context.WithValue(r.Context(), leaderKey{}, manager(r))))
	}
}

// streams opens the streams of one of the three request forms (PR-11).
func (p *Projector) streams(ctx context.Context, req *wire.StreamRequest) (*wire.StreamReply, error) {
	class, id, err := core.CheckRequest(req)
	if err != nil {
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
	reply := &wire.StreamReply{TopicID: id, Buckets: make([]wire.StreamOutcome, len(req.Buckets))}
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

// command admits a command that only the leader may send.
func (p *Projector) command(ctx context.Context, f wire.Fence) error {
	if err, _ := ctx.Value(leaderKey{}).(error); err != nil {
		return rpc.Refuse(errcode.Forbidden, "%s may only be requested by the leader: %v", wire.MaintenanceTopic, err)
	}
	return p.admit(f, false)
}

// startMaintenance handles form 1 for one bucket.
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
	out.Activations = b.joins.activations()
	return nil
}

// stopStreams ends streams of a topic.
func (p *Projector) stopStreams(ctx context.Context, req *wire.StreamStop) (*wire.OK, error) {
	class, _, err := core.ParseTopic(req.Topic)
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
			p.sides.drop(req.Topic, req.Bucket, req.VBuckets)
			return &wire.OK{}, nil
		}
		return &wire.OK{}, p.sides.stop(ctx, req.Topic)
	}
	if err := p.command(ctx, req.Fence); err != nil {
		return nil, err
	}
	if b := p.bucket(req.Bucket); b != nil {
		b.stop(ctx, req.VBuckets, req.Incarnation)
	}
	return &wire.OK{}, nil
}
