package data

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

// TestSessionsNeverGoBack slows one of two indexers down to a tenth of the time, so that its index lags behind the
// other's. What a client has seen in one index it also sees in the other, at any consistency; so does another session
// that gets the token, by way of the manager; and a client sees its own write.
func TestSessionsNeverGoBack(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "2")
	m, kv, c := up.Manifest(), up.KV(ctx), up.Client()
	via := client.Open(client.Options{Servers: m.Servers(), ViaManagers: true, Sessionless: true})
	defer via.Close()
	harness.Create(ctx, t, c, fmt.Sprintf(`CREATE INDEX quick ON %s(k) WITH {"nodes": ["i1"]}`, m.Bucket))
	harness.Create(ctx, t, c, fmt.Sprintf(`CREATE INDEX slow ON %s(k) WITH {"nodes": ["i2"]}`, m.Bucket))
	load, enough := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { pulse(load, m.Indexers[1].PID) })
	defer func() { enough(); group.Wait() }()

	count := func(s *client.Session, by *client.Client, name, consistency string) v1.CountReply {
		t.Helper()
		one, end := context.WithTimeout(ctx, 3*time.Minute)
		defer end()
		var reply v1.CountReply
		var err error
		if s == nil {
			reply, err = by.Count(one, client.Ref(m.Bucket, name), v1.ScanRequest{Consistency: consistency})
		} else {
			reply, err = s.Count(one, by, client.Ref(m.Bucket, name), v1.ScanRequest{Consistency: consistency})
		}
		if err != nil {
			t.Fatal(err)
		}
		if reply.SessionLost != "" {
			t.Fatal(reply.SessionLost)
		}
		return reply
	}
	var writer client.Session
	behind := 0
	for n := uint64(1); n <= 60 || behind < 5; n++ {
		at, err := kv.Set(ctx, fmt.Sprint("doc", n), fmt.Appendf(nil, `{"k":%d}`, n), kvclient.StoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n%3 == 0 {
			written := v1.Token{VBucket: at.VBucket, VBUUID: at.VBUUID, Seqno: at.Seqno}
			if err := writer.Wrote(m.Bucket, written); err != nil {
				t.Fatal(err)
			}
			if got := count(&writer, via, "slow", "any"); got.Count < n {
				t.Fatalf("a client that has written %d documents sees %d", n, got.Count)
			}
			continue
		}
		seen := count(nil, c, "quick", "session")
		if seen.Count != n {
			t.Fatalf("%d documents of %d", seen.Count, n)
		}
		if past, err := via.Count(ctx, client.Ref(m.Bucket, "slow"), v1.ScanRequest{}); err != nil {
			t.Fatal(err)
		} else if past.Count < n {
			behind++
		}
		var other client.Session
		if err := other.Take(seen.Session); err != nil {
			t.Fatal(err)
		}
		if got := count(&other, via, "slow", "any"); got.Count != n {
			t.Fatalf("the token's session has seen %d documents, and sees %d then", n, got.Count)
		}
		if got := count(nil, c, "slow", "any"); got.Count != n {
			t.Fatalf("the client has seen %d documents, and sees %d then", n, got.Count)
		}
	}
	t.Logf("the slow index was behind %d times", behind)
}
