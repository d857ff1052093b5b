package data

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocbcore/v10"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// sdk writes documents with Couchbase's client, as applications do.
type sdk struct {
	t     *testing.T
	agent *gocbcore.Agent
}

func newSDK(t *testing.T, up *testcluster.Cluster) *sdk {
	t.Helper()
	m := up.Manifest()
	agent, err := gocbcore.CreateAgent(&gocbcore.AgentConfig{BucketName: m.Bucket,
		SeedConfig: gocbcore.SeedConfig{MemdAddrs: []string{m.KV[0].Memcached}},
		SecurityConfig: gocbcore.SecurityConfig{
			Auth:           gocbcore.PasswordAuthProvider{Username: m.KVUser, Password: m.KVPassword},
			AuthMechanisms: []gocbcore.AuthMechanism{gocbcore.ScramSha512AuthMechanism}},
		IoConfig: gocbcore.IoConfig{UseCollections: true, UseMutationTokens: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	return &sdk{t, agent}
}

// await starts an operation and waits for it.
func (s *sdk) await(start func(done func(gocbcore.MutationToken, error)) error) (v1.Token, error) {
	s.t.Helper()
	type outcome struct {
		token gocbcore.MutationToken
		err   error
	}
	out := make(chan outcome, 1)
	if err := start(func(token gocbcore.MutationToken, err error) { out <- outcome{token, err} }); err != nil {
		return v1.Token{}, err
	}
	select {
	case o := <-out:
		return v1.Token{VBucket: o.token.VbID, VBUUID: uint64(o.token.VbUUID), Seqno: uint64(o.token.SeqNo)}, o.err
	case <-time.After(harness.Hang):
		s.t.Fatal("the SDK does not answer")
		return v1.Token{}, nil
	}
}

func (s *sdk) set(scope, collection, key, value string) (v1.Token, error) {
	s.t.Helper()
	return s.await(func(done func(gocbcore.MutationToken, error)) error {
		_, err := s.agent.Set(gocbcore.SetOptions{Key: []byte(key), Value: []byte(value), ScopeName: scope,
			CollectionName: collection, Deadline: time.Now().Add(harness.Hang)},
			func(r *gocbcore.StoreResult, err error) {
				if err != nil {
					r = &gocbcore.StoreResult{}
				}
				done(r.MutationToken, err)
			})
		return err
	})
}

func (s *sdk) remove(scope, collection, key string) {
	s.t.Helper()
	_, err := s.await(func(done func(gocbcore.MutationToken, error)) error {
		_, err := s.agent.Delete(gocbcore.DeleteOptions{Key: []byte(key), ScopeName: scope, CollectionName: collection,
			Deadline: time.Now().Add(harness.Hang)}, func(r *gocbcore.DeleteResult, err error) {
			if err != nil {
				r = &gocbcore.DeleteResult{}
			}
			done(r.MutationToken, err)
		})
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestCollections has indexes of one name on three collections of a bucket, whose documents have equal ids, over one
// stream per vbucket. Couchbase's client writes the documents. When a collection is dropped its index reports that; a
// collection recreated under the name is a different one.
func TestCollections(t *testing.T) {
	t.Parallel()
	for _, feed := range []string{"native", "gocbcore"} {
		t.Run(feed, func(t *testing.T) {
			t.Parallel() // most of the time it waits for managers to confirm that a collection is gone
			testCollections(t, feed)
		})
	}
}

func testCollections(t *testing.T, feed string) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--indexers", "1", "--vbuckets", "16", "--feed",
		feed)
	c, bucket := up.Client(), up.Manifest().Bucket
	app := newSDK(t, up)
	run := func(args ...string) { harness.MustRun(ctx, t, up, args...) }
	kv := func(args ...string) { run(append([]string{"kv", "collection"}, args...)...) }
	kv("create", bucket, "shop")
	kv("create", bucket, "shop.orders")
	kv("create", bucket, "_default.people")

	type place struct{ scope, collection, keyspace string }
	places := []place{{"_default", "_default", bucket}, {"shop", "orders", bucket + ".shop.orders"},
		{"_default", "people", bucket + "._default.people"}}
	write := func(p place, from, to int) {
		for i := from; i < to; i++ {
			if _, err := app.set(p.scope, p.collection, fmt.Sprint("d", i), fmt.Sprintf(`{"n":"%s %03d"}`, p.collection,
				i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	rows := func(p place, want ...string) {
		t.Helper()
		s, err := harness.ScanSoon(ctx, c, p.keyspace, "by_n", harness.Hang)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.IDs, want) {
			t.Fatalf("%s has rows of %v, want %v (keys %v)", p.keyspace, s.IDs, want, s.Keys)
		}
		for _, key := range s.Keys {
			if !strings.Contains(string(key[0]), p.collection) {
				t.Fatalf("%s has a row %s", p.keyspace, key[0])
			}
		}
	}
	for _, p := range places {
		write(p, 0, 8) // before the index exists
	}
	for _, p := range places {
		harness.Create(ctx, t, c, "CREATE INDEX by_n ON "+p.keyspace+"(n)")
	}
	harness.WaitReady(ctx, t, c, bucket)
	sorted := func(n int) (all []string) { // by key, and thus by number
		for i := range n {
			all = append(all, fmt.Sprint("d", i))
		}
		return all
	}
	for _, p := range places {
		write(p, 8, 10)
		rows(p, sorted(10)...)
	}
	app.remove("shop", "orders", "d0")
	rows(places[1], sorted(10)[1:]...)
	rows(places[0], sorted(10)...)
	rows(places[2], sorted(10)...)
	token, err := app.set("shop", "orders", "d0", `{"n":"orders 999"}`)
	if err != nil {
		t.Fatal(err)
	}
	s, err := harness.CollectSoon(ctx, c, places[1].keyspace, "by_n", v1.ScanRequest{Consistency: "at_plus",
		Tokens: []v1.Token{token}}, harness.Hang)
	if err != nil || len(s.IDs) != 10 || s.IDs[9] != "d0" {
		t.Fatalf("at the SDK's token: %v %v", s.IDs, err)
	}
	for _, p := range places {
		run("index", "verify", p.keyspace+"/by_n")
	}
	for _, x := range up.Manifest().Indexers { // one name in several collections is not a duplicate
		resp, err := http.Get(x.Admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("metrics of %s: %s, %v\n%s", x.ID, resp.Status, err, text)
		}
		for _, p := range places {
			want := fmt.Sprintf("\ntidemark_index_items{bucket=%q,index=\"by_n\"} ", p.keyspace)
			if !strings.Contains(string(text), want) {
				t.Errorf("metrics of %s lack %s", x.ID, want)
			}
		}
	}

	// Collections that KV lacks, and a collection's index under another path.
	if _, err := c.Statement(ctx, "CREATE INDEX x ON "+bucket+".shop.none(n)"); !harness.RefusedAs(err,
		errcode.UnknownCollection) {
		t.Fatalf("an index on a collection that is not there: %v", err)
	}
	if _, err := c.Statement(ctx, "CREATE INDEX by_n ON default:"+bucket+"._default._default(n)"); !harness.RefusedAs(err,
		errcode.NameExists) {
		t.Fatalf("the default collection by its path: %v", err)
	}

	kv("drop", bucket, "shop.orders", "--yes")
	gone := func(keyspace string) {
		t.Helper()
		harness.Eventually(t, harness.Hang, "the index says that its collection is gone", func() (bool, string) {
			i, err := c.Index(ctx, client.Ref(keyspace, "by_n"))
			if err != nil {
				t.Fatal(err)
			}
			return i.State == index.Error && strings.HasPrefix(i.Reason, "COLLECTION_GONE: "), i.State.String() + " " + i.Reason
		})
	}
	gone(places[1].keyspace)
	rows(places[0], sorted(10)...)
	// indexers learn of it a moment later
	harness.Eventually(t, harness.Hang, "scans are refused", func() (bool, string) {
		_, err := harness.Scan(ctx, c, places[1].keyspace, "by_n", "any")
		return harness.RefusedAs(err, errcode.IndexNotReady) && strings.Contains(err.Error(), "COLLECTION_GONE"),
			fmt.Sprint(err)
	})
	kv("create", bucket, "shop.orders") // a different collection
	write(places[1], 0, 3)
	if _, err := c.Statement(ctx, "BUILD INDEX ON "+places[1].keyspace+"(by_n)"); !harness.RefusedAs(err,
		errcode.CollectionGone) {
		t.Fatalf("BUILD of an index whose collection is gone: %v", err)
	}
	if _, err := c.Statement(ctx, "DROP INDEX by_n ON "+places[1].keyspace); err != nil {
		t.Fatal(err)
	}
	harness.Create(ctx, t, c, "CREATE INDEX by_n ON "+places[1].keyspace+"(n)")
	harness.WaitReady(ctx, t, c, bucket)
	rows(places[1], sorted(3)...)
	kv("drop", bucket, "shop", "--yes")
	gone(places[1].keyspace)
	rows(places[2], sorted(10)...)
}
