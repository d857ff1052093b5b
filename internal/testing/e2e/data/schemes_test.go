package data

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/internal/localcluster"
	_ "tidemark/internal/testing/draws"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

var (
	schemeRows = flag.Int("schemes.rows", 3000, "how many rows TestPartitionSchemes compares at least")
	schemeSeed = flag.Uint64("schemes.seed", 1, "of TestPartitionSchemes")
)

// schemeIndex is one random index.
type schemeIndex struct {
	name, statement string
	oracle          oracle.Index
	by              index.PartitionBy
}

// worldExpressions, worldPredicates and worldValues make up the indexes over the sample.
var (
	worldExpressions = []string{"kind", "name", "iso_country", "elevation_ft", "scheduled_service", "lat", "LOWER(name)",
		"META().id", "SUBSTR(name, 0, 1)", "ROUND(lat, 0)",
		"elevation_ft * 0.3048", "CONCAT(iso_country, \"/\", kind)", "[iso_country, type]", "DISTINCT SPLIT(name, \" \")"}
	worldPredicates = []string{"", "", `kind = "airport"`, "elevation_ft > 1000 OR elevation_ft IS MISSING", `name NOT LIKE "%Airport"`}
	worldValues     = []string{"false", "true", "-100", "0", "50.5", "1200", `"AU"`, `"FR"`, `"M"`, `"US"`, `"airport"`, `"country"`, `"ä"`, `["DE"]`, `["FR","small_airport"]`}
)

// schemeIndexes returns one random index under each scheme.
func schemeIndexes(t *testing.T, statements [oracle.Schemes]string) (all []schemeIndex) {
	t.Helper()
	for _, text := range statements {
		parsed, err := expression.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		d := parsed[0].(*expression.CreateIndex).Definition()
		all = append(all, schemeIndex{name: d.Name, statement: text, oracle: oracle.OfDefinition(&d), by: d.PartitionBy})
	}
	return all
}

// schemeRun is one run of TestPartitionSchemes.
type schemeRun struct {
	t      *testing.T
	c      *client.Client
	via    *client.Client // reads through the managers
	bucket string
	w      *harness.Workload
	// statements generates random indexes of a name, and document draws a random value of a key.
	statements func(name string) *rapid.Generator[[oracle.Schemes]string]
	document   func(r *rand.Rand, key string) []byte
	describe   bool // check the descriptions of the indexes, too
	rows       atomic.Int64
	scans      atomic.Int64
	grouped    atomic.Int64
}

// write makes random updates, deletions and re-creations: each writer, which owns its keys, makes each of them, and
// more at a lower rate until until is closed. half is closed in the middle of the first part.
func (s *schemeRun) write(ctx context.Context, seed uint64, each int, half chan struct{}, until <-chan struct{}) {
	const writers = 4
	var wg sync.WaitGroup
	var done atomic.Int64
	for n := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			for i := 0; ; i++ {
				if i >= each {
					select {
					case <-until:
						return
					case <-time.After(2 * time.Millisecond): // limits the rate
					}
				}
				key := s.w.Keys[n+writers*r.IntN(len(s.w.Keys)/writers)]
				if done.Add(1) == int64(writers*each/2) {
					close(half)
				}
				if r.IntN(6) > 0 {
					if err := s.w.Set(ctx, key, s.document(r, key)); err != nil {
						s.t.Errorf("%v", err)
						return
					}
					continue
				}
				m, err := s.w.KV.Delete(ctx, key, 0)
				if errors.Is(err, kvclient.ErrKeyNotFound) {
					continue
				}
				if err != nil {
					s.t.Errorf("delete %s: %v", key, err)
					return
				}
				s.w.History.Record(m.VBucket, oracle.Op{Seqno: m.Seqno, Key: key})
			}
		})
	}
	wg.Wait()
}

// read scans a whole index.
func (s *schemeRun) read(ctx context.Context, x schemeIndex) (got harness.Scanned, ok bool) {
	got, err := harness.ScanSoon(ctx, s.c, s.bucket, x.name, harness.Hang)
	if err != nil {
		s.t.Errorf("%s: %v", x.statement, err)
	}
	return got, err == nil
}

// compare compares a scan of a whole index with the oracle, at the scan's own timestamp. No writes may run: KV may
// have applied some that are not recorded yet.
func (s *schemeRun) compare(x schemeIndex, got harness.Scanned) ([]oracle.Row, bool) {
	want, err := x.oracle.Rows(s.w.History.At(got.Seqnos))
	if err != nil {
		s.t.Error(err)
		return nil, false
	}
	if d := oracle.Diff(want, got.Keys, got.IDs); d != "" {
		s.t.Errorf("%s: %s", x.statement, d)
		return nil, false
	}
	s.rows.Add(int64(len(want)))
	s.scans.Add(1)
	return want, true
}

// some compares random scans and counts with the oracle's; no writes may run.
func (s *schemeRun) some(ctx context.Context, seed uint64, x schemeIndex, all []oracle.Row) {
	scans := x.oracle.Scans(all)
	for n := range 12 {
		q := scans.Example(int(seed) + n)
		want, err := x.oracle.Select(all, q)
		if err != nil {
			s.t.Fatal(err)
		}
		wanted, err := x.oracle.Count(all, q)
		if err != nil {
			s.t.Fatal(err)
		}
		body, err := q.Body()
		if err != nil {
			s.t.Fatal(err)
		}
		var req v1.ScanRequest
		if err := json.Unmarshal(body, &req); err != nil {
			s.t.Fatal(err)
		}
		var d string
		if q.Grouped() {
			d, err = s.groups(ctx, x, q, all, req)
		} else {
			var got harness.Scanned
			got, err = harness.CollectSoon(ctx, s.c, s.bucket, x.name, req, harness.Hang)
			d = oracle.Diff(want, got.Keys, got.IDs)
		}
		if err != nil {
			s.t.Errorf("%s, %s: %v", x.statement, body, err)
			return
		}
		if d != "" {
			s.t.Errorf("%s, %s: %s", x.statement, body, d)
		}
		s.rows.Add(int64(len(want)))
		s.scans.Add(1)
		if count, err := s.c.Count(ctx, client.Ref(s.bucket, x.name), req); err != nil || count.Count != uint64(wanted) {
			s.t.Errorf("%s, count of %s: %+v, %v; want %d", x.statement, body, count.Count, err, wanted)
		}
	}
}

// groups compares the groups of a scan with the oracle's: read straight from an indexer, and through the managers.
func (s *schemeRun) groups(ctx context.Context, x schemeIndex, q oracle.Query, all []oracle.Row,
	req v1.ScanRequest) (string, error) {
	want, err := x.oracle.Groups(all, q)
	if err != nil {
		return "", err
	}
	req.Consistency = "session"
	for _, c := range []*client.Client{s.c, s.via} {
		groups, err := c.Aggregate(ctx, client.Ref(s.bucket, x.name), req)
		if err != nil {
			return "", err
		}
		var keys, values [][]json.RawMessage
		for groups.Next() {
			keys, values = append(keys, groups.Group().Key), append(values, groups.Group().Values)
		}
		end, err := groups.End()
		_ = groups.Close()
		if d := oracle.DiffGroups(want, keys, values); d != "" || err != nil || end.Rows != uint64(len(want)) {
			return fmt.Sprintf("%s (the end has %d groups)", d, end.Rows), err
		}
	}
	s.grouped.Add(int64(len(want)))
	return "", nil
}

// pool is the number of different random documents of a campaign.
const pool = 3000

// TestPartitionSchemes checks random indexes, each partitioned by document id, by a hash of components and by ranges,
// built before and during random updates that move entries between slices, while an indexer and a projector are
// killed: every scan, and every count, equals the oracle's answer at its own timestamp. The documents are of all
// shapes first, then the sample's.
func TestPartitionSchemes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(*schemeRows)*4*time.Millisecond)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "3",
		"--vbuckets", "32")
	kv := up.KV(ctx)
	bucket, all := up.Manifest().Bucket, *schemeRows > 100_000
	via := client.Open(client.Options{Servers: up.Manifest().Servers(), ViaManagers: true})
	defer via.Close()
	t.Run("random", func(t *testing.T) {
		s := &schemeRun{t: t, c: up.Client(), via: via, bucket: bucket, describe: true,
			w: &harness.Workload{KV: kv, History: oracle.NewHistory(kv.Config().NumVBuckets())}}
		docs, random, values := 300, oracle.Documents(), make([][]byte, 1000)
		if all {
			docs, values = 4000, make([][]byte, pool)
		}
		for i := range docs {
			s.w.Keys = append(s.w.Keys, fmt.Sprintf("doc::%d", i))
		}
		for i := range values {
			values[i] = random.Example(int(*schemeSeed)*pool + i)
		}
		s.document = func(r *rand.Rand, _ string) []byte { return values[r.IntN(len(values))] }
		s.statements = func(name string) *rapid.Generator[[oracle.Schemes]string] {
			return oracle.Statements(bucket, name, nil, nil, nil)
		}
		s.run(ctx, up)
		for _, key := range s.w.Keys { // the next run's oracle does not have them
			if _, err := kv.Delete(ctx, key, 0); err != nil && !errors.Is(err, kvclient.ErrKeyNotFound) {
				t.Fatal(err)
			}
		}
	})
	t.Run("world", func(t *testing.T) {
		every := 24
		if all {
			every = 1
		}
		s := &schemeRun{t: t, c: up.Client(), via: via, bucket: bucket, w: harness.NewWorkloadOf(ctx, t, kv, every)}
		s.document = s.w.Mutated
		s.statements = func(name string) *rapid.Generator[[oracle.Schemes]string] {
			return oracle.Statements(bucket, name, worldExpressions, worldPredicates, worldValues)
		}
		s.run(ctx, up)
	})
}

// run runs one round, and more until there were enough rows.
func (s *schemeRun) run(ctx context.Context, up *testcluster.Cluster) {
	for round := uint64(0); (round == 0 || s.rows.Load() < int64(*schemeRows)) && !s.t.Failed(); round++ {
		s.round(ctx, up, round, 3*len(s.w.Keys))
	}
	s.t.Logf("%d writes; %d scans with %d rows and %d groups equal the oracle's", s.w.Writes.Load(), s.scans.Load(),
		s.rows.Load(), s.grouped.Load())
	if s.grouped.Load() == 0 {
		s.t.Error("no groups were compared")
	}
}

func (s *schemeRun) round(ctx context.Context, up *testcluster.Cluster, round uint64, writes int) {
	seed := *schemeSeed*1_000_000 + round*100
	r := rand.New(rand.NewPCG(*schemeSeed, round))
	half, built := make(chan struct{}), make(chan struct{})
	over := make(chan struct{})
	close(over)
	s.write(ctx, seed, writes/4, make(chan struct{}), over)
	early := schemeIndexes(s.t, s.statements(fmt.Sprintf("early_%d", round)).Example(int(seed)))
	late := schemeIndexes(s.t, s.statements(fmt.Sprintf("late_%d", round)).Example(int(seed)+1))
	s.build(ctx, early)
	var wg sync.WaitGroup
	meanwhile := map[int]harness.Scanned{}
	wg.Go(func() { s.write(ctx, seed+1, writes, half, built) })
	wg.Go(func() {
		for i, x := range early {
			if got, ok := s.read(ctx, x); ok {
				meanwhile[i] = got
			}
		}
		<-half
		defer close(built)
		m := up.Manifest()
		indexer, projector := r.IntN(len(m.Indexers)), r.IntN(len(m.Projectors))
		up.Kill(func(m *localcluster.Manifest) int { return m.Indexers[indexer].PID })
		up.Kill(func(m *localcluster.Manifest) int { return m.Projectors[projector].PID })
		before := s.w.Writes.Load()
		s.build(ctx, late)
		if s.w.Writes.Load() == before {
			s.t.Error("nothing was written while the late indexes were built")
		}
	})
	wg.Wait()
	for i, got := range meanwhile {
		s.compare(early[i], got)
	}
	all := append(early, late...)
	if round == 0 && s.describe {
		s.described(ctx, up, all)
	}
	for i, x := range all {
		got, ok := s.read(ctx, x)
		if !ok {
			continue
		}
		if rows, ok := s.compare(x, got); ok && len(rows) > 0 {
			s.some(ctx, seed+12*uint64(i), x, rows)
		}
	}
	show := func(l v1.VerifyLine) error {
		if l.Difference != nil {
			s.t.Logf("%+v", *l.Difference)
		}
		return nil
	}
	for _, x := range late {
		if end, err := s.c.Verify(ctx, client.Ref(s.bucket, x.name), v1.VerifyRequest{}, show); err != nil ||
			end.Differences != 0 {
			s.t.Errorf("%s: verified: %+v, %v", x.statement, end, err)
		}
	}
	for _, x := range all {
		if _, err := s.c.Statement(ctx, "DROP INDEX "+x.name+" ON "+s.bucket); err != nil {
			s.t.Error(err)
		}
	}
}

// described checks that an index's partitioning is reported as in its statement, and that the reported statement
// creates the same index again.
func (s *schemeRun) described(ctx context.Context, up *testcluster.Cluster, all []schemeIndex) {
	for _, x := range all {
		info, err := s.c.Index(ctx, client.Ref(s.bucket, x.name))
		if err != nil || !info.PartitionBy.Equal(&x.by) {
			s.t.Errorf("%s is said to be partitioned by %+v (%v)", x.statement, info.PartitionBy, err)
			continue
		}
		again, err := s.c.Create(ctx, v1.CreateRequest{Name: x.name + "_again", Bucket: s.bucket, Keys: info.Keys,
			Where:       info.Where,
			PartitionBy: info.PartitionBy, Partitions: info.Partitions, DeferBuild: true})
		if err != nil || !again.PartitionBy.Equal(&x.by) || again.Partitions != info.Partitions {
			s.t.Errorf("%s, made again of its parts: %+v, %v", x.statement, again, err)
		}
	}
	harness.MustRun(ctx, s.t, up, "index", "create", s.bucket, "by_command", "--key", "a", "--key", "b DESC",
		"--partition-by", "hash(b)", "--defer-build", "--no-wait")
	if ddl := harness.MustRun(ctx, s.t, up, "index", "list", "--ddl"); !strings.Contains(ddl,
		"ON world(a, b DESC) PARTITION BY HASH(b)") {
		s.t.Errorf("index list --ddl prints\n%s", ddl)
	}
}

// build creates indexes and waits until they are ready.
func (s *schemeRun) build(ctx context.Context, all []schemeIndex) {
	var ids []index.ID
	for _, x := range all {
		made, err := s.c.Statement(ctx, x.statement)
		if err != nil {
			s.t.Errorf("%s: %v", x.statement, err)
			return
		}
		ids = append(ids, made[0].ID)
	}
	if err := s.c.WaitReady(ctx, ids, nil); err != nil {
		s.t.Errorf("%v", err)
	}
}
