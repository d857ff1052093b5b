package kv

import (
	"fmt"
	"net/http"
	"testing"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// TestFlush: a bucket that was emptied is at seqno 0 everywhere, on branches that share nothing with those before; its
// streams have ended, also where it was written again at once up to where they stood; replicas follow; and a restart
// changes nothing of it.
func TestFlush(t *testing.T) {
	config := testConfig(t.TempDir())
	n, stop := runNode(t, config)
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureMutationToken)
	for vb := range uint16(4) {
		kv.want(setFrame(vb, "a", "1"), mcbp.StatusOK)
	}
	before, _ := failoverLogs(t, n.MemcachedAddr())
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(9), mcbp.StatusOK) // it is empty
	c.want(fromZero(1), mcbp.StatusOK)
	for c.read().Op != mcbp.OpDCPMutation {
	}
	ended := map[uint16]bool{}
	flush := func(bucket string) error {
		r := Remote{User: testUser, Password: testPassword, HTTP: http.DefaultClient}
		return r.Call(within(t), n.AdminAddr(), http.MethodPost, pathFlush, FlushRequest{Bucket: bucket}, nil)
	}
	if err := flush("nobody's"); err == nil {
		t.Error("a bucket that is not there was emptied")
	}
	if err := flush("world"); err != nil {
		t.Fatal(err)
	}
	kv.want(setFrame(1, "b", "2"), mcbp.StatusOK)
	for len(ended) < 2 {
		f := c.read()
		if f.Op != mcbp.OpDCPStreamEnd {
			t.Fatalf("the stream goes on: %s", line(f))
		}
		ended[f.VBucket()] = true
	}
	kv.want(request(mcbp.OpGet, 1, nil, []byte("a"), nil), mcbp.StatusKeyNotFound)
	check := func() {
		t.Helper()
		logs, highs := failoverLogs(t, n.MemcachedAddr())
		for vb := range logs {
			want := uint64(0)
			if vb == 1 {
				want = 1
			}
			if logs[vb] == before[vb] || highs[vb] != want {
				t.Errorf("vbucket %d is at %d on %s, was on %s", vb, highs[vb], logs[vb], before[vb])
			}
		}
	}
	check()
	stop()
	n, _ = runNode(t, config)
	check()
}

// TestFlushReachesReplicas: replicas of an emptied vbucket are emptied.
func TestFlushReachesReplicas(t *testing.T) {
	g := newGroup(t, 2, 1)
	c := g.client()
	for i := range 200 {
		if _, err := c.Set(within(t), fmt.Sprint("k", i), []byte("1"), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	g.same()
	for id := range g.nodes {
		if err := g.post(id, pathFlush, FlushRequest{Bucket: g.nodes[id].buckets[0].name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		for id, n := range g.nodes {
			for _, v := range n.View().Copies[n.buckets[0].name] {
				if v.High != 0 || v.Items != 0 {
					return fmt.Errorf("%s has %+v", id, v)
				}
			}
		}
		return nil
	})
	g.same()
}
