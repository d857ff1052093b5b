package projector

import (
	"context"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/kv"
	"tidemark/kv/server"
)

// TestChaosWithANastyKV is TestChaos with an engine in all of its moods, for each feed: what comes out for the indexers
// is the same. With old controls gocbcore itself reads a map that it writes elsewhere (see package gocb).
// Nothing is purged: the consumer here asks for what follows what it has, and would have to begin anew.
func TestChaosWithANastyKV(t *testing.T) {
	for kind, moods := range map[FeedKind]server.Moods{FeedNative: server.AllMoods &^ server.Purges,
		FeedGocbcore: server.AllMoods &^ (server.OldControls | server.Purges)} {
		t.Run(string(kind), func(t *testing.T) {
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
