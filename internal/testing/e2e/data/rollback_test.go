package data

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv"
	"tidemark/kv/mcbp"
	"tidemark/manager/api/v1"
)

var (
	rollbackDocuments = flag.Int("rollback.documents", 20_000, "documents of TestRollbackOfOneVBucket")
	rollbackVBuckets  = flag.Int("rollback.vbuckets", 128, "vbuckets of TestRollbackOfOneVBucket")
)

const (
	// rollbackWrites are made in one vbucket both before and after replication stops: the first are kept, the others
	// are lost.
	rollbackWrites = 60
	// rollbackShare is the highest share of the bucket that KV may send for a rollback, in percent
	// (docs/performance.md has the measured share).
	rollbackShare = 20
)

// moved is how much has gone through the cluster so far.
type moved struct {
	items, bytes  float64 // that KV has sent to projectors
	events        float64 // that indexers have received
	began         float64 // streams that indexers have received
	restored      float64 // restored vbuckets of copies
	rolls, rolled float64 // rollbacks that indexers have carried out, and their seconds
}

func (a moved) since(b moved) moved {
	return moved{a.items - b.items, a.bytes - b.bytes, a.events - b.events, a.began - b.began, a.restored - b.restored,
		a.rolls - b.rolls, a.rolled - b.rolled}
}

// rollbackRun is one run of TestRollbackOfOneVBucket.
type rollbackRun struct {
	t      *testing.T
	up     *testcluster.Cluster
	c      *client.Client
	admin  *kv.Admin
	w      *harness.Workload
	bucket string
	oracle oracle.Index
	docs   map[string][]byte
	vb     uint16   // the vbucket that diverges
	keys   []string // its keys
}

func (r *rollbackRun) moved(ctx context.Context) (m moved) {
	manifest := r.up.Manifest()
	var nodes, projectors []string
	for _, e := range manifest.KV {
		nodes = append(nodes, e.Admin)
	}
	for _, e := range manifest.Projectors {
		projectors = append(projectors, e.Admin)
	}
	for _, f := range []struct {
		to    *float64
		urls  []string
		name  string
		holds string
	}{
		{&m.items, nodes, "tidemark_kv_dcp_items_total", ""},
		{&m.bytes, nodes, "tidemark_kv_dcp_bytes_total", ""},
		{&m.events, projectors, "tidemark_router_events_total", ""},
		{&m.began, projectors, "tidemark_projector_streams_begun_total", ""},
		{&m.restored, indexerURLs(manifest), "tidemark_indexer_restored_vbuckets_total", ""},
		{&m.rolls, indexerURLs(manifest), "tidemark_indexer_rollback_seconds_count", ""},
		{&m.rolled, indexerURLs(manifest), "tidemark_indexer_rollback_seconds_sum", ""},
	} {
		var ok bool
		if *f.to, ok = metricSum(ctx, r.t, f.urls, f.name, f.holds); !ok {
			r.t.Fatalf("no %s", f.name)
		}
	}
	return m
}

// vbucketOf returns the first vbucket that is active on a KV node.
func (r *rollbackRun) vbucketOf(node int) uint16 {
	config, address := r.w.KV.Config(), r.up.Manifest().KV[node].Memcached
	for vb := range uint16(*rollbackVBuckets) {
		if o := config.Owner(vb); o >= 0 {
			if at, err := config.KVAddr(o, "127.0.0.1", false); err == nil && at == address {
				return vb
			}
		}
	}
	r.t.Fatalf("%s has no vbucket of %+v", address, config)
	return 0
}

// copies returns how many copies the index has.
func (r *rollbackRun) copies(ctx context.Context) float64 {
	info, err := r.c.Index(ctx, client.Ref(r.bucket, "by_name"))
	if err != nil {
		r.t.Fatal(err)
	}
	return float64(len(info.Copies))
}

// load stores the documents, pipelined.
func (r *rollbackRun) load(ctx context.Context) {
	began, vbuckets, i := time.Now(), r.w.KV.Config().NumVBuckets(), 0
	_, err := r.w.KV.Load(ctx, func() (string, []byte, bool, error) {
		if i == *rollbackDocuments {
			return "", nil, false, nil
		}
		key, value := buildKey(i), buildDocument(i, 0)
		if r.docs[key] = value; mcbp.VBucket([]byte(key), vbuckets) == r.vb {
			r.keys = append(r.keys, key)
		}
		i++
		return key, value, true, nil
	}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Logf("%d documents in %d vbuckets stored in %s, %d of them in vbucket %d", i, vbuckets,
		time.Since(began).Round(time.Millisecond), len(r.keys), r.vb)
}

// write changes documents of the vbucket that diverges.
func (r *rollbackRun) write(ctx context.Context, version uint64) {
	for i := range rollbackWrites {
		key := r.keys[i%len(r.keys)]
		value := buildDocument(i, version)
		if err := r.w.Set(ctx, key, value); err != nil {
			r.t.Fatal(err)
		}
		r.docs[key] = value
	}
}

// build creates the index and returns the time until the first scan.
func (r *rollbackRun) build(ctx context.Context) time.Duration {
	began := time.Now()
	harness.Create(ctx, r.t, r.c, "CREATE INDEX by_name ON "+r.bucket+`(name) WITH {"num_partition": 4}`)
	if _, err := r.c.Count(ctx, client.Ref(r.bucket, "by_name"), v1.ScanRequest{Consistency: "session", Equal: []json.RawMessage{[]byte(`"x"`)}}); err != nil {
		r.t.Fatal(err)
	}
	return time.Since(began)
}

// settled waits until replicas and the index have all writes.
func (r *rollbackRun) settled(ctx context.Context) {
	harness.Settled(ctx, r.t, r.admin, r.up.Manifest().VBuckets)
	if _, err := r.c.Count(ctx, client.Ref(r.bucket, "by_name"), v1.ScanRequest{Consistency: "session", Equal: []json.RawMessage{[]byte(`"x"`)}}); err != nil {
		r.t.Fatal(err)
	}
}

// lose fails the node over. It returns how long the rollback of the bucket took, and how long until it was scanned
// again, both from the request for the failover on.
func (r *rollbackRun) lose(ctx context.Context) (rollback, scanned time.Duration) {
	began := time.Now()
	done := make(chan time.Duration, 1)
	go func() { done <- r.watch(ctx, began) }()
	r.t.Log(strings.TrimSpace(harness.MustRun(ctx, r.t, r.up, "kv", "failover", "kv2", "--lose")))
	r.t.Logf("the failover took %s", time.Since(began).Round(time.Millisecond))
	rollback = <-done
	req := v1.ScanRequest{Consistency: "session", Equal: []json.RawMessage{[]byte(`"x"`)}}
	harness.WaitFor(ctx, r.t, func() error {
		_, err := r.c.Count(ctx, client.Ref(r.bucket, "by_name"), req)
		return err
	})
	return rollback, time.Since(began)
}

// watch polls the rollback until it is over, and returns for how long it was seen.
func (r *rollbackRun) watch(ctx context.Context, began time.Time) time.Duration {
	var first, step time.Time
	last := ""
	for ctx.Err() == nil {
		list, err := r.c.Rollbacks(ctx)
		now := time.Now()
		word := ""
		if err == nil && len(list.Rollbacks) > 0 {
			if word = list.Rollbacks[0].Step.String(); first.IsZero() {
				first = now
			}
		}
		if word != last && last != "" {
			r.t.Logf("  %s for %s", last, now.Sub(step).Round(time.Millisecond))
		}
		if word != last {
			last, step = word, now
		}
		ts, tsErr := r.c.Timestamps(ctx, r.bucket, 0, 1)
		if err == nil && tsErr == nil && word == "" && ts.RollbackID > 0 {
			if first.IsZero() {
				first = began
			}
			return now.Sub(first)
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
	return 0
}

// check compares the whole index with KV's documents; those of the vbucket that diverged are read from KV.
func (r *rollbackRun) check(ctx context.Context) {
	now, err := testcluster.Documents(ctx, r.w.KV, r.keys)
	if err != nil {
		r.t.Fatal(err)
	}
	lost := 0
	for _, key := range r.keys {
		if string(now[key]) != string(r.docs[key]) {
			lost++
		}
		if r.docs[key] = now[key]; now[key] == nil {
			delete(r.docs, key)
		}
	}
	want, err := r.oracle.Rows(r.docs)
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := harness.ScanSoon(ctx, r.c, r.bucket, "by_name",
		harness.Hang+time.Duration(*rollbackDocuments)*time.Millisecond)
	if err != nil {
		r.t.Fatal(err)
	}
	if d := oracle.Diff(want, s.Keys, s.IDs); d != "" {
		r.t.Fatal(d)
	}
	r.t.Logf("%d rows equal the oracle's; %d documents are older than what was acknowledged", len(s.IDs), lost)
}

// TestRollbackOfOneVBucket loses writes of one vbucket in a failover when the index already has them. Its copies
// restore that vbucket and nothing else, KV sends a small part of the bucket again, and the index equals the oracle.
// The cost is logged next to that of DROP and CREATE of the same index; -rollback.documents 1000000
// -rollback.vbuckets 1024 is the run of docs/performance.md.
func TestRollbackOfOneVBucket(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Duration(*rollbackDocuments)*time.Millisecond)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "3", "--kv-replicas", "1", "--indexers", "2",
		"--vbuckets", fmt.Sprint(*rollbackVBuckets))
	w := &harness.Workload{KV: up.KV(ctx), History: oracle.NewHistory(*rollbackVBuckets)}
	r := &rollbackRun{t: t, up: up, c: up.Client(), admin: harness.KVAdmin(up), w: w, bucket: up.Manifest().Bucket,
		docs: map[string][]byte{}}
	parsed, err := expression.Parse("CREATE INDEX by_name ON b(name)")
	if err != nil {
		t.Fatal(err)
	}
	def := parsed[0].(*expression.CreateIndex).Definition()
	r.oracle = oracle.OfDefinition(&def)
	r.vb = r.vbucketOf(1)
	r.load(ctx)
	before := r.moved(ctx)
	took := r.build(ctx)
	t.Logf("built in %s: %+v", took.Round(time.Millisecond), r.moved(ctx).since(before))

	r.write(ctx, 1)
	r.settled(ctx)
	if err := r.admin.Pause(ctx, kv.PauseRequest{Paused: true}); err != nil {
		t.Fatal(err)
	}
	r.write(ctx, 2)
	// the index has these writes
	if _, err := harness.ScanSoon(ctx, r.c, r.bucket, "by_name", harness.Hang); err != nil {
		t.Fatal(err)
	}
	before = r.moved(ctx)
	rollback, scanned := r.lose(ctx)
	after := r.moved(ctx).since(before)
	t.Logf("rolled back for %s, scanned again %s after the failover was asked for; the indexers took %.1f ms in the "+
		"mean: %+v", rollback.Round(time.Millisecond),
		scanned.Round(time.Millisecond), 1000*after.rolled/max(after.rolls, 1), after)
	r.check(ctx)
	copies := r.copies(ctx)
	if after.restored == 0 || after.restored > copies {
		t.Errorf("%.0f vbuckets of copies were put back; one vbucket diverged, and there are %.0f copies", after.restored,
			copies)
	}
	if most := float64(*rollbackDocuments) * rollbackShare / 100; after.items > most {
		t.Errorf("KV sent %.0f items again, want at most %.0f, %d %% of the bucket", after.items, most, rollbackShare)
	}

	if err := r.c.Drop(ctx, client.Ref(r.bucket, "by_name"), 0); err != nil {
		t.Fatal(err)
	}
	before = r.moved(ctx)
	took = r.build(ctx)
	t.Logf("dropped and built anew in %s: %+v", took.Round(time.Millisecond), r.moved(ctx).since(before))
}
