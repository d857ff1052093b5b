package projector

import (
	"context"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/kv"
	"tidemark/kv/server"
	"tidemark/wire"
)

// TestChaosWithANastyKV is TestChaos with an engine in all of its moods, for each feed: the result for indexers is
// the same. With old controls gocbcore has a data race on a map (see package gocb). Nothing is purged, and no stream
// ends by itself, because this test continues streams whenever it likes. Memory does not run short, because it
// requests all streams at once until all have begun together.
func TestChaosWithANastyKV(t *testing.T) {
	t.Parallel()
	const borne = server.AllMoods &^ (server.Purges | server.PurgeByWindow | server.Eviction | server.SlowEnd |
		server.Temporary)
	for kind, moods := range map[FeedKind]server.Moods{FeedNative: borne,
		FeedGocbcore: borne &^ (server.OldControls | server.NoCloseEnd | server.NoFlowControl)} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			node, err := kv.Open(kv.Config{NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
				User: "u", Password: "secret",
				Nodes:   []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
				Buckets: []kv.BucketConfig{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets}}, Logger: hclog.NewNullLogger(),
				Nasty: moods})
			if err != nil {
				t.Fatal(err)
			}
			running(t, func(ctx context.Context) { _ = node.Run(ctx) })
			chaos(t, node.MemcachedAddr(), kind)
		})
	}
}

// A closed stream stays on KV's list for a moment: the next one is requested repeatedly, and begins within the same
// request.
func TestStreamExistsForAMoment(t *testing.T) {
	t.Parallel()
	for _, kind := range []FeedKind{FeedNative, FeedGocbcore} {
		t.Run(string(kind), func(t *testing.T) {
			node, err := kv.Open(kv.Config{NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
				User: "u", Password: "secret",
				Nodes:   []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
				Buckets: []kv.BucketConfig{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets}}, Nasty: server.StreamExists})
			if err != nil {
				t.Fatal(err)
			}
			running(t, func(ctx context.Context) { _ = node.Run(ctx) })
			<-node.Ready()
			w := newWorldWith(t, node.MemcachedAddr(), kind)
			w.define(1, 1)
			for inc := range uint64(4) {
				for _, r := range w.start(inc + 1).Results {
					if r.Outcome != wire.StartBegun {
						t.Errorf("incarnation %d, vbucket %d: %s: %s", inc+1, r.VBucket, r.Outcome, r.Detail)
					}
				}
			}
		})
	}
}
