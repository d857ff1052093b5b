package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

const (
	minorityPatience = 4 * time.Second  // the caller's timeout
	minorityLimit    = 45 * time.Second // detects a hang: for a manager without a majority to answer
)

// request sends one request to one manager, without a retry.
func request(ctx context.Context, t *testing.T, method, url, body string) (status int, header http.Header,
	answer string, took time.Duration) {
	t.Helper()
	began := time.Now()
	limited, done := context.WithTimeout(ctx, 2*minorityLimit)
	defer done()
	req, err := http.NewRequestWithContext(limited, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Tidemark-Timeout-Ms", strconv.FormatInt(minorityPatience.Milliseconds(), 10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err.Error(), time.Since(began)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err.Error(), time.Since(began)
	}
	return resp.StatusCode, resp.Header, string(b), time.Since(began)
}

// TestIsolatedLeader cuts the leader off from the other managers, and holds its messages to projectors and indexers
// until another manager leads. It answers within bounded time: no write, no linearizable read, stale reads with their
// age; the others continue. After the links are healed its late commands change nothing.
func TestIsolatedLeader(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up, links := testcluster.StartLinked(t, t.TempDir(), "--kv", "1", "--indexers", "2", "--vbuckets", "32")
	c, m := up.Client(), up.Manifest()
	bucket := m.Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 16)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	l := up.Leader(ctx, 0)
	if l < 0 {
		t.Fatal("no leader")
	}
	leader := m.Managers[l]
	var others, majority []string
	for _, e := range m.Managers {
		if e.ID != leader.ID {
			others, majority = append(others, e.ID), append(majority, e.REST)
		}
	}
	for _, e := range m.Projectors { // its messages to them are held until the links are healed
		links.CutOneWay(leader.ID, e.ID)
	}
	for _, e := range m.Indexers {
		links.CutOneWay(leader.ID, e.ID)
	}
	obey := obedient(up)
	old, refused := fencesOf(ctx, t, obey)
	name := "told_late"
	if _, err := c.Create(ctx, v1.CreateRequest{Bucket: bucket, Name: name, IsPrimary: true,
		DeferBuild: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Build(ctx, bucket, name); err != nil { // definitions are sent, and do not arrive
		t.Fatal(err)
	}
	links.Partition([]string{leader.ID}, others)
	began := time.Now()

	elsewhere := client.New(majority...)
	defer elsewhere.Close()
	limited, done := context.WithTimeout(ctx, ddlLimit)
	if err := elsewhere.Drop(limited, client.Ref(bucket, name), 0); err != nil {
		t.Fatalf("DDL at the majority: %v", err)
	}
	done()
	t.Logf("the leader is cut off: the next DDL at the others after %s", time.Since(began).Round(time.Millisecond))
	if _, err := harness.ScanSoon(ctx, elsewhere, bucket, "world_ids", readyAfterFault); err != nil {
		t.Fatalf("a session scan at the majority: %v", err)
	}
	t.Logf("a session scan there after %s", time.Since(began).Round(time.Millisecond))

	for _, tc := range []struct{ what, method, path, body string }{
		{"a write", http.MethodPost, "/v1/indexes", fmt.Sprintf(`{"name":"minority","bucket":%q,"is_primary":true,"defer_build":true}`, bucket)},
		{"a linearizable listing", http.MethodGet, "/v1/indexes?bucket=" + bucket, ""},
		{"a session scan", http.MethodPost, "/v1/indexes/" + bucket + "/world_ids:scan", `{"consistency":"session","limit":1}`},
	} {
		status, _, answer, took := request(ctx, t, tc.method, leader.REST+tc.path, tc.body)
		t.Logf("%s at the one cut off: %d after %s: %.160q", tc.what, status, took.Round(time.Millisecond), answer)
		if status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout {
			// indexers are reachable, and may have KV's seqnos
			if tc.what != "a session scan" || status != http.StatusOK {
				t.Errorf("%s at the one cut off: %d %.200s; want 503 or 504", tc.what, status, answer)
			}
		}
		if took > minorityLimit {
			t.Errorf("%s at the one cut off took %s", tc.what, took)
		}
	}
	for _, e := range m.Managers {
		status, header, answer, _ := request(ctx, t, http.MethodGet, e.REST+"/v1/indexes?consistency=stale&bucket="+bucket,
			"")
		age, err := strconv.ParseInt(header.Get("Tidemark-Age-Ms"), 10, 64)
		if status != http.StatusOK || err != nil {
			t.Errorf("a stale listing at %s: %d, age %q (%v): %.200s", e.ID, status, header.Get("Tidemark-Age-Ms"), err, answer)
			continue
		}
		t.Logf("a stale listing at %s is %d ms old", e.ID, age)
		if e.ID == leader.ID && age < 100 {
			t.Errorf("a stale listing at the one cut off says that it is %d ms old", age)
		}
	}

	links.HealAll()
	harness.Eventually(t, readyAfterFault, "the one cut off knows what happened meanwhile", func() (bool, string) {
		one := client.New(leader.REST)
		defer one.Close()
		limited, done := context.WithTimeout(ctx, 3*time.Second)
		defer done()
		list, err := one.Indexes(limited, bucket)
		if err != nil {
			return false, err.Error()
		}
		for _, i := range list.Indexes {
			if i.Name == name || i.Name == "minority" {
				return false, fmt.Sprintf("%s is %s", i.Name, i.State)
			}
		}
		return true, ""
	})
	if now := up.Manifest(); fmt.Sprint(allPIDs(now)) != fmt.Sprint(allPIDs(m)) {
		t.Errorf("a process was replaced: pids %v, then %v", allPIDs(m), allPIDs(now))
	}
	harness.Eventually(t, readyAfterFault, "everybody is active",
		func() (bool, string) { return everybodyActive(ctx, c, up.Manifest()) })
	if _, err := harness.ScanSoon(ctx, c, bucket, "world_ids", readyAfterFault); err != nil {
		t.Fatal(err)
	}
	refuseOld(ctx, t, obey, old, refused)
	harness.CheckFinal(ctx, t, c, w, bucket)
}
