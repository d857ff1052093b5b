package feed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"tidemark/kv"
	"tidemark/projector/feed"
)

// Branches returns each vbucket's branch, whatever the caller expected; vbuckets that the node does not have get its
// error. After the bucket was emptied all branches are different.
func TestBranches(t *testing.T) {
	w := startCluster(t)
	either(t, func(t *testing.T, dial feed.Dialer) {
		for _, n := range w.nodes {
			<-n.Ready()
		}
		c := dialWith(t, dial, feed.Config{Addr: w.nodes[0].MemcachedAddr(), Bucket: kvBucket, User: kvUser,
			Password: kvPassword, Name: "branches", BufferBytes: 1 << 20})
		ctx := within(t, time.Minute)
		highs, err := c.HighSeqnos(ctx)
		if err != nil || len(highs) != kvVBuckets/2 {
			t.Fatal(highs, err)
		}
		vbs := make([]uint16, kvVBuckets) // including those of the other node
		for vb := range vbs {
			vbs[vb] = uint16(vb)
		}
		ask := func(known func(vb uint16) uint64) map[uint16]uint64 {
			t.Helper()
			answers, logs := c.Branches(ctx, vbs, known), c.FailoverLogs(ctx, vbs)
			is := map[uint16]uint64{}
			for i, a := range answers {
				switch {
				case errors.Is(a.Err, feed.ErrNotMyVBucket) && errors.Is(logs[i].Err, feed.ErrNotMyVBucket):
				case a.Err != nil || logs[i].Err != nil || a.VBUUID == 0 || logs[i].Log[0].VBUUID != a.VBUUID:
					t.Fatalf("vbucket %d: %+v, %+v", vbs[i], a, logs[i])
				default:
					is[vbs[i]] = a.VBUUID
				}
			}
			for _, h := range highs {
				if is[h.VBucket] == 0 {
					t.Fatalf("vbucket %d is active there and missing in %v", h.VBucket, is)
				}
			}
			return is
		}
		before := ask(func(uint16) uint64 { return 0 })
		for _, known := range []func(uint16) uint64{func(vb uint16) uint64 { return before[vb] },
			func(vb uint16) uint64 { return uint64(vb) << 40 },
			func(vb uint16) uint64 { return before[vb] * uint64(vb%2) }} {
			for vb, branch := range ask(known) {
				if branch != before[vb] {
					t.Errorf("vbucket %d: branch %d, then %d", vb, before[vb], branch)
				}
			}
		}
		admin := kv.NewAdmin([]string{w.nodes[0].AdminAddr()}, kvUser, kvPassword, nil)
		if err := admin.Flush(ctx, kvBucket); err != nil {
			t.Fatal(err)
		}
		for vb, branch := range ask(func(vb uint16) uint64 { return before[vb] }) {
			if branch == before[vb] {
				t.Errorf("vbucket %d is still on branch %d", vb, branch)
			}
		}
		if got := c.Branches(ctx, nil, nil); len(got) != 0 {
			t.Error(got)
		}
		gone, cancel := context.WithCancel(ctx)
		cancel()
		for _, a := range c.Branches(gone, vbs, func(vb uint16) uint64 { return before[vb] }) {
			if a.Err == nil && a.VBUUID == 0 { // the answer may have been there first
				t.Fatalf("%+v for a caller that is gone", a)
			}
		}
	})
}
