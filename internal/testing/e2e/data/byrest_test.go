package data

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
)

// TestByREST checks that projectors, with either feed, the commands and the doctor work with the REST interface of
// the KV cluster's managers alone. After the failover and re-addition of a node, and a flush, by the calls that
// Couchbase documents, the index has what KV has.
func TestByREST(t *testing.T) {
	t.Parallel()
	for _, feed := range []string{"native", "gocbcore"} {
		t.Run(feed, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "2", "--kv-replicas", "1", "--indexers", "1",
				"--feed", feed, "--kv-rest", "--vbuckets", "32")
			c, m, admin, store := up.Client(), up.Manifest(), harness.KVAdmin(up), up.KV(ctx)
			harness.Create(ctx, t, c, "CREATE INDEX by_n ON "+m.Bucket+"(n)")
			harness.WaitReady(ctx, t, c, m.Bucket)
			post := func(path string, form url.Values) (status int, said string) {
				t.Helper()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.KV[0].Admin+path, strings.NewReader(form.Encode()))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				req.SetBasicAuth(m.KVUser, m.KVPassword)
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, string(body)
			}
			const docs = 200
			follows := func(round, rows int) {
				t.Helper()
				for i := range rows {
					doc := fmt.Appendf(nil, `{"n":%d}`, round)
					if _, err := store.Set(ctx, fmt.Sprint("doc", i), doc, kvclient.StoreOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				s, err := harness.ScanSoon(ctx, c, m.Bucket, "by_n", harness.Hang)
				if err != nil || len(s.Keys) != rows {
					t.Fatalf("round %d: %d rows, %v", round, len(s.Keys), err)
				}
				for i, key := range s.Keys {
					if number(key) != int64(round) {
						t.Fatalf("round %d: %s = %d", round, s.IDs[i], number(key))
					}
				}
			}
			harness.Settled(ctx, t, admin, m.VBuckets)
			follows(1, docs)

			harness.WaitFor(ctx, t, func() error { // refused while replicas lag
				node := url.Values{"otpNode": {"ns_1@" + m.KV[1].ID}}
				if status, said := post("/controller/startGracefulFailover", node); status != http.StatusOK {
					return fmt.Errorf("%d %s", status, said)
				}
				return nil
			})
			follows(2, docs)
			harness.MustRun(ctx, t, up, "kv", "rebalance", "--add", harness.Addition(m.KV[1]))
			harness.Settled(ctx, t, admin, m.VBuckets)
			follows(3, docs)

			managers := strings.TrimPrefix(m.KV[0].Admin, "http://") + "," + strings.TrimPrefix(m.KV[1].Admin, "http://")
			got := harness.MustRun(ctx, t, up, "kv", "get", "--kv", "http://"+managers, "doc0")
			if strings.TrimSpace(got) != `{"n":3}` {
				t.Errorf("kv get: %s", got)
			}
			got = harness.MustRun(ctx, t, up, "doctor", "--kv", "http://"+managers)
			if strings.Contains(got, "will not work:") || !strings.Contains(got, "it returns the map") {
				t.Errorf("doctor: %s", got)
			}
			if status, said := post("/pools/default/buckets/"+m.Bucket+"/controller/doFlush", nil); status != http.StatusOK {
				t.Fatal(status, said)
			}
			s, err := harness.ScanSoon(ctx, c, m.Bucket, "by_n", harness.Hang)
			if err != nil || len(s.Keys) > 0 {
				t.Fatalf("after the flush: %d rows, %v", len(s.Keys), err)
			}
			follows(4, docs)
		})
	}
}
