package kvclient_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemark/kv"
	"tidemark/kv/kvclient"
)

// embedded runs one KV node with the bucket "b" of 128 vbuckets.
func embedded(t testing.TB) *kvclient.Client {
	t.Helper()
	n, err := kv.Open(kv.Config{
		NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
		Buckets: []kv.BucketConfig{{Name: "b", UUID: "0123456789abcdef0123456789abcdef", VBuckets: 128}},
		User:    "u", Password: "p",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return connect(t, options(), n.MemcachedAddr())
}

// The embedded node answers every operation according to the protocol, with its token.
func TestEmbeddedNode(t *testing.T) {
	c := embedded(t)
	ctx := within(t, time.Minute)
	m, err := c.Set(ctx, "k", []byte(`{"a":1}`), kvclient.StoreOptions{Flags: 3})
	if err != nil || m.VBUUID == 0 || m.Seqno != 1 || m.CAS == 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	d, err := c.Get(ctx, "k")
	if err != nil || string(d.Value) != `{"a":1}` || d.Flags != 3 || d.CAS != m.CAS {
		t.Fatalf("%+v, %v", d, err)
	}
	if r, err := c.Replace(ctx, "k", []byte("2"), kvclient.StoreOptions{CAS: m.CAS}); err != nil || r.VBUUID != m.VBUUID ||
		r.Seqno != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if r, err := c.Delete(ctx, "k", 0); err != nil || r.Seqno != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	seqnos, err := c.VBucketSeqnos(ctx)
	if err != nil || len(seqnos) != 128 || seqnos[m.VBucket] != 3 {
		t.Fatalf("%v, %v", seqnos, err)
	}
}

// BenchmarkLoadEmbedded measures `kv load`, including the work of the node.
func BenchmarkLoadEmbedded(b *testing.B) {
	c := embedded(b)
	value := []byte(`{"v":"` + strings.Repeat("x", 1000) + `"}`)
	i := 0
	b.ResetTimer()
	stats, err := c.Load(context.Background(), func() (string, []byte, bool, error) {
		i++
		return fmt.Sprintf("key-%08d", i%200_000), value, i <= b.N, nil
	}, nil)
	b.StopTimer()
	if err != nil || stats.Documents != uint64(b.N) {
		b.Fatal(stats, err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "docs/s")
}
