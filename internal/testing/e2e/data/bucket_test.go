package data

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
)

// TestBucketDroppedAndRecreated drops a bucket and creates another one of its name with the calls that Couchbase
// documents, while the KV cluster runs, before or after the indexers have learned of the drop. Scans of the old
// bucket's indexes fail with BUCKET_GONE; CREATE INDEX on the new bucket works, and BUILD INDEX rebuilds the old
// indexes: all have what the new bucket has, and nothing of the old one.
func TestBucketDroppedAndRecreated(t *testing.T) {
	t.Parallel()
	for _, feed := range []string{"native", "gocbcore"} {
		t.Run(feed, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
			defer cancel()
			up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "2", "--kv-replicas", "1", "--indexers", "1",
				"--feed", feed, "--vbuckets", "16")
			b := &bucketLife{t: t, up: up, c: up.Client(), name: "shop"}
			// a second bucket in parallel, because its indexes learn of the drop no sooner
			other := &bucketLife{t: t, up: up, c: b.c, name: "kiosk"}
			for _, b := range []*bucketLife{b, other} {
				b.create(ctx)
				b.write(ctx, 1)
				harness.Create(ctx, t, b.c, "CREATE INDEX by_n ON "+b.name+"(n)")
				b.shows(ctx, "by_n", 1)
			}

			b.drop(ctx) // and the indexes learn of it
			other.drop(ctx)
			b.gone(ctx, "by_n", "the bucket was deleted")
			other.gone(ctx, "by_n", "the bucket was deleted")
			harness.Eventually(t, 0, "scans are refused", func() (bool, string) { // indexers learn of it a moment later
				_, err := harness.Scan(ctx, b.c, "shop", "by_n", "any")
				return harness.RefusedAs(err, errcode.IndexNotReady) && strings.Contains(err.Error(), "BUCKET_GONE"),
					fmt.Sprint(err)
			})
			b.create(ctx)
			b.write(ctx, 2)
			harness.Create(ctx, t, b.c, "CREATE INDEX by_m ON shop(n)")
			b.shows(ctx, "by_m", 2)
			b.gone(ctx, "by_n", "the bucket was re-created")
			b.build(ctx, "by_n")
			b.shows(ctx, "by_n", 2)

			other.create(ctx) // BUILD INDEX is the first request that uses the new bucket
			other.write(ctx, 2)
			other.build(ctx, "by_n")
			harness.Create(ctx, t, other.c, "CREATE INDEX by_m ON "+other.name+"(n)")
			other.shows(ctx, "by_n", 2)
			other.shows(ctx, "by_m", 2)
			other.drop(ctx)

			b.drop(ctx) // and recreated before any component has noticed
			b.create(ctx)
			b.write(ctx, 3)
			b.gone(ctx, "by_n", "the bucket was re-created")
			b.gone(ctx, "by_m", "the bucket was re-created")
			b.build(ctx, "by_n", "by_m")
			b.shows(ctx, "by_n", 3)
			b.shows(ctx, "by_m", 3)

			other.gone(ctx, "by_n", "the bucket was deleted") // indexes that were rebuilt learn of it, too
			other.gone(ctx, "by_m", "the bucket was deleted")
			other.create(ctx)
			other.write(ctx, 4)
			other.build(ctx, "by_n", "by_m")
			other.shows(ctx, "by_n", 4)
			other.shows(ctx, "by_m", 4)
		})
	}
}

const bucketDocs = 100

// bucketLife is a bucket that is dropped and recreated.
type bucketLife struct {
	t  *testing.T
	up *testcluster.Cluster
	c  *client.Client

	name string
}

// ask sends a request to the KV node that is not the leader.
func (b *bucketLife) ask(ctx context.Context, method, path string, form url.Values, want int) {
	b.t.Helper()
	m := b.up.Manifest()
	req, err := http.NewRequestWithContext(ctx, method, m.KV[1].Admin+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(m.KVUser, m.KVPassword)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		b.t.Fatalf("%s %s: %s", method, path, resp.Status)
	}
}

func (b *bucketLife) create(ctx context.Context) {
	b.t.Helper()
	b.ask(ctx, http.MethodPost, "/pools/default/buckets", url.Values{"name": {b.name}, "ramQuota": {"100"},
		"replicaNumber": {"1"}, "numVBuckets": {"16"}}, http.StatusAccepted)
}

func (b *bucketLife) drop(ctx context.Context) {
	b.t.Helper()
	b.ask(ctx, http.MethodDelete, "/pools/default/buckets/"+b.name, nil, http.StatusOK)
}

// write stores documents whose n is the round: fewer in each round, so that some of the earlier ones are missing.
func (b *bucketLife) write(ctx context.Context, round int) {
	b.t.Helper()
	m := b.up.Manifest()
	c, err := kvclient.Connect(ctx, []string{m.KV[0].Memcached, m.KV[1].Memcached}, kvclient.Options{User: m.KVUser,
		Password: m.KVPassword, Bucket: b.name, Name: "test"})
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	for i := range bucketDocs / round {
		if _, err := c.Set(ctx, fmt.Sprint("doc", i), fmt.Appendf(nil, `{"n":%d}`, round), kvclient.StoreOptions{}); err !=
			nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bucketLife) shows(ctx context.Context, name string, round int) {
	b.t.Helper()
	s, err := harness.ScanSoon(ctx, b.c, b.name, name, harness.Hang)
	if err != nil || len(s.Keys) != bucketDocs/round {
		b.t.Fatalf("%s, round %d: %d rows, %v", name, round, len(s.Keys), err)
	}
	for i, key := range s.Keys {
		if number(key) != int64(round) {
			b.t.Fatalf("%s, round %d: %s = %d", name, round, s.IDs[i], number(key))
		}
	}
}

// gone waits until an index reports what has happened to its bucket.
func (b *bucketLife) gone(ctx context.Context, name, why string) {
	b.t.Helper()
	harness.Eventually(b.t, 0, name+" says BUCKET_GONE", func() (bool, string) {
		x, err := b.c.Index(ctx, client.Ref(b.name, name))
		if err != nil {
			return false, err.Error()
		}
		return x.State == index.Error && strings.HasPrefix(x.Reason, "BUCKET_GONE: "+why), x.State.String() + " " + x.Reason
	})
}

func (b *bucketLife) build(ctx context.Context, names ...string) {
	b.t.Helper()
	if _, err := b.c.Statement(ctx, "BUILD INDEX ON "+b.name+"("+strings.Join(names, ",")+")"); err != nil {
		b.t.Fatal(err)
	}
	harness.WaitReady(ctx, b.t, b.c, b.name)
}
