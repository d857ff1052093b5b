package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/kv"
	"tidemark/kv/kvclient"
)

// singleKV runs a cluster of one KV node with the bucket b, for user u with the password secret.
func singleKV(t *testing.T) *kv.Node {
	t.Helper()
	node, err := kv.Open(kv.Config{NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", User: "u",
		Password: "secret",
		Nodes:    []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
		Buckets:  []kv.BucketConfig{{Name: "b", UUID: "u-1", VBuckets: 8}}, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	<-node.Ready()
	return node
}

// TestFlush checks that nothing is deleted without --yes, and everything with it.
func TestFlush(t *testing.T) {
	node := singleKV(t)
	limited, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	c, err := kvclient.Connect(limited, []string{node.MemcachedAddr()}, kvclient.Options{User: "u", Password: "secret",
		Bucket: "b"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Set(limited, "k", []byte("v"), kvclient.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	flush := []string{"kv", "flush", "b", "--admin", node.AdminAddr(), "--kv-user", "u", "--kv-password", "secret"}
	if code, _, stderr := run(t, "", flush...); code != errcode.ExitUsage || !strings.Contains(stderr, "--yes") {
		t.Errorf("without --yes: exit %d, %s", code, stderr)
	}
	if _, err := c.Get(limited, "k"); err != nil {
		t.Fatalf("without --yes: %v", err)
	}
	if code, _, stderr := run(t, "", append(flush, "--yes")...); code != errcode.ExitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if _, err := c.Get(limited, "k"); !errors.Is(err, kvclient.ErrKeyNotFound) {
		t.Errorf("after the flush: %v", err)
	}
}
