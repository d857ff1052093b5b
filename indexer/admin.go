package indexer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/indexer/copies"
	"tidemark/indexer/core"
	"tidemark/indexerclient"
	"tidemark/internal/logging"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/internal/version"
	"tidemark/wire"
)

// callTime exceeds every caller's timeout: a caller that disconnects ends its call sooner.
const (
	callTime     = 30 * time.Second
	rollbackTime = 2 * indexerclient.RollbackTimeout
)

// adminTable returns the routes of the admin port: each message of package wire that indexers accept, health and
// metrics. The admin port is separate from the data ports, so that no command ever waits behind data. Over TLS only
// managers may send commands.
func (x *Indexer) adminTable() *route.Table {
	const large, small = rpc.MaxControlBody, rpc.MaxUserBody
	manager, all := route.Only(tlsconf.Manager), route.Certified()
	take := func(method, path string, body int64, limit time.Duration, handle rpc.HandlerFunc) route.Route {
		return route.Route{Method: method, Path: path, Role: manager, Body: body, Limit: limit, Handle: handle}
	}
	show := func(path string, who route.Role, handle rpc.HandlerFunc) route.Route {
		return route.Route{Method: http.MethodGet, Path: path, Role: who, Limit: callTime, Handle: handle}
	}
	sample := take(http.MethodPost, "/v1/samples", small, sampleTime, rpc.Message(x.sample))
	sample.Places = rpc.NewPlaces(samplesMost, "samples")
	return &route.Table{Lacks: "the admin port of an indexer has no call %s", Routes: []route.Route{
		take(http.MethodPut, "/v1/hello", small, callTime, rpc.Message(x.hello)),
		take(http.MethodPut, "/v1/definitions", large, callTime, rpc.Message(x.definitions)),
		take(http.MethodPost, "/v1/definitions:change", large, callTime, rpc.Message(x.change)),
		take(http.MethodPost, "/v1/poll", large, callTime, rpc.Message(x.poll)),
		take(http.MethodPut, "/v1/stability", large, callTime, rpc.Message(x.stability)),
		take(http.MethodPut, "/v1/rollback", large, rollbackTime, rpc.Message(x.rollback)),
		take(http.MethodPost, "/v1/orphans:drop", large, callTime, rpc.Message(x.dropOrphans)),
		take(http.MethodPut, "/v1/logging", small, callTime, logging.Put(x.log)),
		take(http.MethodPost, "/v1/scans:cancel", small, callTime, rpc.Message(x.cancelScan)),
		take(http.MethodPost, "/v1/scans:slow", small, callTime, rpc.Message(x.slowFrom)),
		sample,
		show("/v1/logging", all, logging.Get(x.log)),
		show("/v1/status", all, rpc.Show(x.status)),
		show("/v1/stats", all, rpc.Show(func(ctx context.Context) (*wire.IndexerStats, error) {
			return x.stats(ctx), nil
		})),
		show("/v1/positions", all, x.positions),
		show("/v1/scans", manager, x.runningScans),
		show("/v1/history", manager, x.history),
		route.Metrics(route.Readers(x.managers.OrToken), promhttp.HandlerFor(x.metrics.registry, promhttp.HandlerOpts{})),
		route.Alive(), route.Ready(x.reasons),
	}}
}

// admit checks a command's fence and counts refused commands.
func (x *Indexer) admit(f wire.Fence) error {
	err := x.identity.admit(f)
	if errors.Is(err, wire.ErrFenced) {
		x.metrics.fenced.Inc()
	}
	return err
}

// storesIdentity runs f, which stores the fence of the leader that this indexer obeys. If f takes too long, the
// node's health reports it until f returns.
func (x *Indexer) storesIdentity(f func() error) error {
	err := x.watched(healthIdentity, "storing the term of the leader that this indexer obeys", f)
	if x.health.Set(healthIdentity, "") {
		wake(x.report)
	}
	return err
}

func (x *Indexer) hello(ctx context.Context, req *wire.HelloRequest) (*wire.IndexerHello, error) {
	if err := x.admit(req.Fence); err != nil {
		return nil, err
	}
	x.managers.SetManagers(req.Managers)
	x.managers.SetLeader(req.Leader)
	h := &wire.IndexerHello{Report: *x.numberedReport(ctx, func(string) bool { return false })}
	h.Report.Shorten()
	h.Minimum = askEach(x.allBuckets(), func(k *copies.Bucket) (m wire.MinimumIncarnations, err error) {
		m.Bucket = k.Name()
		err = k.Do(ctx, func(st *core.Bucket) { m.Incarnations = st.Minimum() })
		return m, err
	})
	return h, nil
}

func (x *Indexer) poll(ctx context.Context, req *wire.PollRequest) (*wire.PollReply, error) {
	if err := x.admit(req.Fence); err != nil {
		return nil, err
	}
	k := x.bucketNamed(req.Bucket)
	if k == nil {
		return core.Poll(nil, req), nil
	}
	var reply *wire.PollReply
	err := k.Do(ctx, func(st *core.Bucket) { reply = core.Poll(st, req) })
	return reply, err
}

func (x *Indexer) stability(ctx context.Context, req *wire.StabilityRequest) (*wire.StabilityReply, error) {
	if err := x.admit(req.Fence); err != nil {
		return nil, err
	}
	all, missing := x.catalog.ApplyStability(req)
	if err := x.publish(ctx, all); err != nil {
		return nil, err
	}
	return &wire.StabilityReply{Missing: missing}, nil
}

// publish passes stability timestamps to scans and to the buckets. The buckets get theirs in parallel, so that a busy
// loop delays no other bucket. A bucket that is removed meanwhile is no error.
func (x *Indexer) publish(ctx context.Context, all []wire.BucketStability) error {
	var g errgroup.Group
	for i := range all {
		s := &all[i]
		x.catalog.Published(s)
		k := x.bucketNamed(s.Bucket)
		if k == nil {
			continue
		}
		g.Go(func() error {
			err := k.Do(ctx, func(st *core.Bucket) { st.Publish(s.Stability) })
			if errors.Is(err, copies.ErrBucketGone) {
				return nil
			}
			return err
		})
	}
	return g.Wait()
}

// rollback carries out one step of a rollback (IM-23). The reply to step "rollback" is sent when everything has been
// restored.
func (x *Indexer) rollback(ctx context.Context, req *wire.RollbackRequest) (*wire.RollbackReply, error) {
	if err := x.admit(req.Fence); err != nil {
		return nil, err
	}
	reply := &wire.RollbackReply{RollbackID: req.RollbackID}
	k := x.bucketNamed(req.Bucket)
	if k == nil {
		return reply, nil
	}
	switch req.Step {
	case "prepare":
		return k.Prepare(ctx, req)
	case "rollback":
		return reply, k.CarryOut(ctx, req, reply)
	}
	return nil, rpc.Refuse(errcode.BadRequest, "rollback step %q: want prepare or rollback", req.Step)
}

// Status is the body of GET /v1/status.
type Status struct {
	Endpoint  wire.Endpoint       `json:"endpoint"`
	ClusterID string              `json:"cluster_id"`
	Version   string              `json:"version"`
	Fence     wire.Fence          `json:"fence"`
	Health    string              `json:"health,omitempty"`
	Report    *wire.IndexerReport `json:"report"`
	Sides     []SideStatus        `json:"side_streams"`
}

// SideStatus is one open side stream.
type SideStatus struct {
	Bucket  string `json:"bucket"`
	VBucket int    `json:"vbucket"`
	Begun   bool   `json:"begun"`
	At      uint64 `json:"at"`
	To      uint64 `json:"to"`
}

func (x *Indexer) status(ctx context.Context) (*Status, error) {
	id := x.identity.get()
	s := &Status{Endpoint: x.Endpoint(), ClusterID: id.ClusterID, Version: version.Full(), Fence: id.Fence,
		Health: x.health.First(), Report: x.fullReport(ctx, func(string) bool { return true })}
	s.Sides = slices.Concat(askEach(x.allBuckets(), func(k *copies.Bucket) (all []SideStatus, err error) {
		err = k.Do(ctx, func(st *core.Bucket) {
			for _, p := range st.SideStreams() {
				all = append(all, SideStatus{Bucket: k.Name(), VBucket: p.VBucket, Begun: p.Begun, At: p.At, To: p.To})
			}
		})
		return all, err
	})...)
	return s, nil
}

// drawAtOnce is the number of vbuckets that one call of a bucket's loop draws. A line takes the loop some
// microseconds, and there may be hundreds of copies.
const drawAtOnce = 16

// positions draws, per bucket and vbucket, the stream that feeds it and the position of each copy. It shows why
// something waits.
func (x *Indexer) positions(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	for _, text := range askEach(x.allBuckets(), func(k *copies.Bucket) (string, error) {
		var text strings.Builder
		fmt.Fprintf(&text, "bucket %s: ", k.Name())
		for vb := 0; vb < k.VBuckets(); vb += drawAtOnce {
			if err := k.Do(r.Context(), func(st *core.Bucket) { st.Draw(&text, vb, drawAtOnce) }); err != nil {
				return "", err
			}
		}
		return text.String(), nil
	}) {
		if _, err := io.WriteString(w, text); err != nil {
			return nil //nolint:nilerr // the client has gone
		}
	}
	return nil
}
