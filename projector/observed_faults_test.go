package projector

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/testing/draws"
	"tidemark/kv"
	"tidemark/kv/clustermap"
	"tidemark/kv/server"
)

// The admin calls of a KV cluster, as docs/protocol.md has them.
const (
	kvCluster     = "/v1/cluster"
	kvFailover    = "/v1/cluster/failover"
	kvRebalance   = "/v1/cluster/rebalance"
	kvReplication = "/v1/cluster/replication"
)

// kvRemote is a client of the admin interface of KV nodes.
func kvRemote() kv.Remote {
	return kv.Remote{User: "u", Password: "secret", HTTP: &http.Client{Timeout: patience,
		Transport: &http.Transport{DisableKeepAlives: true}}}
}

// send sends a request to the KV node that accepts it: the leader of the cluster.
func (w *observedWorld) send(ctx context.Context, path string, body any) (err error) {
	for _, k := range w.nodes {
		if k.cmd == nil {
			continue
		}
		if err = kvRemote().Call(ctx, k.conf.Admin, http.MethodPost, path, body, nil); err == nil {
			return nil
		}
	}
	return err
}

// view returns the newest map of any node, and whether the cluster is at rest: no move in progress, and every member
// with its replicas.
func (w *observedWorld) view(ctx context.Context) (m clustermap.Map, rest bool) {
	for _, k := range w.nodes {
		var v kv.ClusterView
		if k.cmd != nil && kvRemote().Call(ctx, k.conf.Admin, http.MethodGet, kvCluster, nil, &v) == nil && v.Member &&
			(m.Rev == 0 || v.Map.Newer(m)) {
			m = v.Map
		}
	}
	return m, m.Rev > 0 && m.Operation == nil
}

func member(m clustermap.Map, id string) bool {
	return slices.ContainsFunc(m.Nodes, func(n clustermap.Node) bool { return n.ID == id })
}

// havoc counts the faults injected into the cluster.
type havoc struct {
	kills, stops, cuts, moves, failovers, lossy int
}

func (f havoc) String() string {
	return fmt.Sprintf("%d kills, %d orderly stops, %d cut connections, %d moves, %d failovers, %d of them lossy", f.kills,
		f.stops, f.cuts, f.moves, f.failovers+f.lossy, f.lossy)
}

// wait runs the coordinator for a while.
func (w *observedWorld) wait(ctx context.Context, turns int) {
	for range turns {
		w.coordinate(ctx)
		pause(ctx, 20*time.Millisecond)
	}
}

// outage takes a node down and brings it back.
func (w *observedWorld) outage(ctx context.Context, k *kvProcess, s os.Signal, turns int) {
	k.end(s)
	w.wait(ctx, turns)
	k.start()
}

// move takes a node out of the cluster, or brings one back in: vbuckets are taken over while documents change.
func (w *observedWorld) move(ctx context.Context, r *rand.Rand) bool {
	m, rest := w.view(ctx)
	if !rest {
		return false
	}
	for _, k := range w.nodes {
		if !member(m, k.conf.NodeID) {
			return w.send(ctx, kvRebalance, kv.RebalanceRequest{Add: []clustermap.Node{{ID: k.conf.NodeID,
				Memcached: k.conf.Listen, Admin: k.conf.Admin}}}) == nil
		}
	}
	return w.send(ctx, kvRebalance,
		kv.RebalanceRequest{Remove: []string{w.nodes[r.IntN(len(w.nodes))].conf.NodeID}}) == nil
}

// failover promotes the replicas of a node: of one that is up and transfers everything, or of one that was killed
// while its replicas lagged, so that acknowledged writes are lost and its branch is no longer KV's.
func (w *observedWorld) failover(ctx context.Context, k *kvProcess, lose bool) bool {
	m, rest := w.view(ctx)
	if !rest || len(m.Nodes) < 3 || !member(m, k.conf.NodeID) {
		return false
	}
	if !lose {
		return w.send(ctx, kvFailover, kv.FailoverRequest{Nodes: []string{k.conf.NodeID}}) == nil
	}
	for _, n := range w.nodes {
		_ = kvRemote().Call(ctx, n.conf.Admin, http.MethodPost, kvReplication, kv.PauseRequest{Paused: true}, nil)
	}
	w.wait(ctx, 10)
	k.end(os.Kill)
	err := w.send(ctx, kvFailover, kv.FailoverRequest{Nodes: []string{k.conf.NodeID}, Lose: true})
	for _, n := range w.nodes {
		if n.cmd != nil {
			_ = kvRemote().Call(ctx, n.conf.Admin, http.MethodPost, kvReplication, kv.PauseRequest{}, nil)
		}
	}
	w.wait(ctx, 10)
	k.start()
	return err == nil
}

// hurt injects one fault.
func (w *observedWorld) hurt(ctx context.Context, r *rand.Rand, f *havoc) {
	k := w.nodes[r.IntN(len(w.nodes))]
	switch r.IntN(8) {
	case 0:
		f.kills++
		w.outage(ctx, k, os.Kill, r.IntN(10))
	case 1:
		f.stops++
		w.outage(ctx, k, syscall.SIGTERM, r.IntN(10))
	case 2, 3:
		f.cuts++
		w.cuts[r.IntN(len(w.cuts))].cut()
	case 4, 5:
		if w.move(ctx, r) {
			f.moves++
		}
	case 6:
		if w.failover(ctx, k, false) {
			f.failovers++
		}
	case 7:
		if w.failover(ctx, k, true) {
			f.lossy++
		}
	}
}

// TestObserver kills, moves and fails over KV nodes and cuts connections while documents change, and compares what an
// endpoint receives with KV's history: per vbucket ordered, complete between BEGIN and END, nothing of an older
// incarnation, and in the end the same documents. The nodes are mild first, then as nasty as possible. -observe 10m
// extends the run.
func TestObserver(t *testing.T) {
	t.Parallel()
	// A stream behind a purge seqno requires a side stream, which this test does not have.
	const borne = server.AllMoods &^ (server.Purges | server.PurgeByWindow)
	for _, part := range []struct {
		name  string
		moods server.Moods
	}{
		{"mild", server.NoMoods},
		{"every mood", borne &^ server.NoFlowControl}, // without flow control nothing is slowed down
		{"drawn", borne.Some(*moodSeed)},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			t.Logf("-moods.seed %d: %v", *moodSeed, part.moods)
			observe(t, part.moods)
		})
	}
}

func observe(t *testing.T, moods server.Moods) {
	seed := draws.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	w := newObservedWorld(t, 3, moods)
	ctx, cancel := context.WithTimeout(context.Background(), *observeFor+2*time.Minute)
	defer cancel()
	w.define(ctx)
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	histories := make([][]written, 2)
	for i := range histories {
		writers.Go(func() { histories[i] = w.writer(writing, fmt.Sprint("w", i), seed+uint64(i)) })
	}
	var f havoc
	for end := time.Now().Add(*observeFor); time.Now().Before(end) && ctx.Err() == nil; {
		w.wait(ctx, 5+r.IntN(20))
		w.hurt(ctx, r, &f)
	}
	stop()
	writers.Wait()
	w.history = slices.Concat(histories...)
	err := w.settled(ctx)
	t.Logf("%v; %d requests for streams, %d rollbacks, %d writes", f, w.requests, w.rollbacks, len(w.history))
	if err != nil {
		s := w.ledger.Summary(w.nowMS())
		t.Errorf("the replica is not the bucket: %v; streams: %+v\n%s", err, s, w.dump())
	}
	w.o.check(t, w.history)
}
