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

	"tidemark/client"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/internal/e2e/harness"
	"tidemark/internal/oracle"
	"tidemark/internal/testcluster"
	"tidemark/kvclient"
	"tidemark/localcluster"
)

var (
	schemeRows = flag.Int("schemes.rows", 10_000, "how many rows TestPartitionSchemes compares at least")
	schemeSeed = flag.Uint64("schemes.seed", 1, "of TestPartitionSchemes")
)

// schemeIndex is one of the random indexes.
type schemeIndex struct {
	name, statement string
	oracle          oracle.Index
	by              index.PartitionBy
}

// constants ascend in collation order: between them lie the slices of ranges, and among them the values of documents.
var constants = []string{"null", "false", "true", "-7", "0", "1", "2.5", "3", "9007199254740993", `""`, `"A"`, `"b"`, `"ü"`, `[]`, `[1]`, `{}`, `{"x":1}`}

// randomStatements gives one random index under each scheme.
func randomStatements(t *testing.T, r *rand.Rand, bucket, name string) (all []schemeIndex) {
	t.Helper()
	exprs := []string{"a", "b", "c", "a.x", "LOWER(b)", "META().id", "ALL ARRAY t FOR t IN tags END", "DISTINCT ARRAY t FOR t IN tags WHEN t != 1 END"}
	var keys, parts []string
	arrays := 0
	for _, i := range r.Perm(len(exprs))[:1+r.IntN(3)] {
		if strings.Contains(exprs[i], "ARRAY") {
			if arrays++; arrays > 1 {
				continue
			}
		}
		keys = append(keys, exprs[i])
		parts = append(parts, exprs[i]+[]string{"", " DESC"}[r.IntN(2)])
	}
	var hashed []string
	for _, i := range r.Perm(len(keys))[:1+r.IntN(len(keys))] {
		hashed = append(hashed, keys[i])
	}
	var values []string
	for sure, i := r.IntN(len(constants)), 0; i < len(constants); i++ {
		if i == sure || r.IntN(4) == 0 {
			values = append(values, constants[i])
		}
	}
	where := []string{"", "", " WHERE c IS NOT MISSING", " WHERE a != 2", " WHERE b > 0 OR a IS NULL"}[r.IntN(5)]
	for i, by := range []string{"", " PARTITION BY HASH(" + strings.Join(hashed, ", ") + ")",
		" PARTITION BY RANGE(" + keys[0] + ") VALUES (" + strings.Join(values, ", ") + ")"} {
		x := schemeIndex{name: fmt.Sprintf("%s_%d", name, i)}
		with := fmt.Sprintf(` WITH {"num_replica": %d`, r.IntN(2))
		if i < 2 {
			with += fmt.Sprintf(`, "num_partition": %d`, 1+r.IntN(7))
		}
		x.statement = fmt.Sprintf("CREATE INDEX %s ON %s(%s)%s%s%s}", x.name, bucket, strings.Join(parts, ", "), by, where, with)
		parsed, err := expression.Parse(x.statement)
		if err != nil {
			t.Fatal(err)
		}
		d := parsed[0].(*expression.CreateIndex).Definition()
		x.oracle, x.by = oracle.OfDefinition(&d), d.PartitionBy
		all = append(all, x)
	}
	return all
}

// randomDocument has members of every type, or not.
func randomDocument(r *rand.Rand) []byte {
	value := func() json.RawMessage { return json.RawMessage(constants[r.IntN(len(constants))]) }
	doc := map[string]any{}
	for _, name := range []string{"a", "b", "c"} {
		if r.IntN(6) > 0 {
			doc[name] = value()
		}
	}
	if r.IntN(5) > 0 {
		tags := []json.RawMessage{}
		for range r.IntN(6) {
			tags = append(tags, value())
		}
		doc["tags"] = tags
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return []byte("{}")
	}
	return b
}

// schemeRun is one run of TestPartitionSchemes.
type schemeRun struct {
	t      *testing.T
	c      *client.Client
	bucket string
	w      *harness.Workload
	rows   atomic.Int64
	scans  atomic.Int64
}

// write makes random updates, deletions and re-creations; each writer owns its keys. half is closed in the middle.
func (s *schemeRun) write(ctx context.Context, seed uint64, each int, half chan struct{}) {
	const writers = 4
	var wg sync.WaitGroup
	var done atomic.Int64
	for n := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			for range each {
				key := s.w.Keys[n+writers*r.IntN(len(s.w.Keys)/writers)]
				if done.Add(1) == int64(writers*each/2) {
					close(half)
				}
				if r.IntN(6) > 0 {
					if err := s.w.Set(ctx, key, randomDocument(r)); err != nil {
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

// whole compares all of an index with the oracle, at the scan's own timestamp.
func (s *schemeRun) whole(ctx context.Context, x schemeIndex, consistency string) ([]oracle.Row, bool) {
	got, err := harness.Scan(ctx, s.c, s.bucket, x.name, consistency)
	if err != nil {
		s.t.Errorf("%s: %v", x.statement, err)
		return nil, false
	}
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

// some compares random scans and counts with what the oracle selects, when nothing is written.
func (s *schemeRun) some(ctx context.Context, r *rand.Rand, x schemeIndex, all []oracle.Row) {
	for range 12 {
		req, ranges := randomScan(r, all)
		want, err := x.oracle.Select(all, ranges, req.Reverse, req.Limit)
		if err != nil {
			s.t.Fatal(err)
		}
		got, err := harness.Collect(ctx, s.c, s.bucket, x.name, req)
		if err != nil {
			s.t.Errorf("%s, %+v: %v", x.statement, ranges, err)
			return
		}
		if d := oracle.Diff(want, got.Keys, got.IDs); d != "" {
			s.t.Errorf("%s, ranges %+v, reverse %v, limit %d: %s", x.statement, ranges, req.Reverse, req.Limit, d)
		}
		s.rows.Add(int64(len(want)))
		s.scans.Add(1)
		if req.Limit > 0 {
			continue
		}
		if count, err := s.c.Count(ctx, client.Ref(s.bucket, x.name), req); err != nil || count.Count != uint64(len(want)) {
			s.t.Errorf("%s, count of %+v: %+v, %v; want %d", x.statement, ranges, count.Count, err, len(want))
		}
	}
}

// TestPartitionSchemes: random indexes, each partitioned by the document's id, by a hash of components and by ranges, over
// random documents that move between slices with every update, built before and during the writes, while an indexer is
// killed: every scan equals the oracle's answer at its own timestamp.
func TestPartitionSchemes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(*schemeRows)*2*time.Millisecond)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "3")
	kv := up.KV(ctx)
	s := &schemeRun{t: t, c: up.Client(), bucket: up.Manifest().Bucket,
		w: &harness.Workload{KV: kv, History: oracle.NewHistory(kv.Config().NumVBuckets())}}
	docs := 600
	if *schemeRows > 100_000 {
		docs = 4000
	}
	for i := range docs {
		s.w.Keys = append(s.w.Keys, fmt.Sprintf("doc::%d", i))
	}
	for round := uint64(0); (round == 0 || s.rows.Load() < int64(*schemeRows)) && !t.Failed(); round++ {
		s.round(ctx, up, round, 3*docs)
	}
	t.Logf("%d writes; %d scans with %d rows equal the oracle's", s.w.Writes.Load(), s.scans.Load(), s.rows.Load())
}

func (s *schemeRun) round(ctx context.Context, up *testcluster.Cluster, round uint64, writes int) {
	r := rand.New(rand.NewPCG(*schemeSeed, round))
	half := make(chan struct{})
	s.write(ctx, 100**schemeSeed+2*round, writes/4, make(chan struct{}))
	early, late := randomStatements(s.t, r, s.bucket, fmt.Sprintf("early_%d", round)), randomStatements(s.t, r, s.bucket, fmt.Sprintf("late_%d", round))
	s.build(ctx, early)
	var wg sync.WaitGroup
	wg.Go(func() { s.write(ctx, 100**schemeSeed+2*round+1, writes, half) })
	wg.Go(func() {
		for _, x := range early {
			s.whole(ctx, x, "session")
		}
		<-half
		victim := r.IntN(len(up.Manifest().Indexers))
		up.Kill(func(m *localcluster.Manifest) int { return m.Indexers[victim].PID })
		s.build(ctx, late)
	})
	wg.Wait()
	all := append(early, late...)
	if round == 0 {
		s.described(ctx, up, all)
	}
	for _, x := range all {
		if rows, ok := s.whole(ctx, x, "session"); ok && len(rows) > 0 {
			s.some(ctx, r, x, rows)
		}
	}
	show := func(l client.VerifyLine) error {
		if l.Difference != nil {
			s.t.Logf("%+v", *l.Difference)
		}
		return nil
	}
	for _, x := range late {
		if end, err := s.c.Verify(ctx, client.Ref(s.bucket, x.name), client.VerifyRequest{}, show); err != nil || end.Differences != 0 {
			s.t.Errorf("%s: verified: %+v, %v", x.statement, end, err)
		}
	}
	for _, x := range all {
		if _, err := s.c.Statement(ctx, "DROP INDEX "+x.name+" ON "+s.bucket); err != nil {
			s.t.Error(err)
		}
	}
}

// described: how an index is partitioned is told as it was said, and makes the same index when it is sent again.
func (s *schemeRun) described(ctx context.Context, up *testcluster.Cluster, all []schemeIndex) {
	for _, x := range all {
		info, err := s.c.Index(ctx, client.Ref(s.bucket, x.name))
		if err != nil || !info.PartitionBy.Equal(&x.by) {
			s.t.Errorf("%s is said to be partitioned by %+v (%v)", x.statement, info.PartitionBy, err)
			continue
		}
		again, err := s.c.Create(ctx, client.CreateRequest{Name: x.name + "_again", Bucket: s.bucket, Keys: info.Keys, Where: info.Where,
			PartitionBy: info.PartitionBy, Partitions: info.Partitions, DeferBuild: true})
		if err != nil || !again.PartitionBy.Equal(&x.by) || again.Partitions != info.Partitions {
			s.t.Errorf("%s, made again of its parts: %+v, %v", x.statement, again, err)
		}
	}
	harness.MustRun(ctx, s.t, up, "index", "create", s.bucket, "by_command", "--key", "a", "--key", "b DESC", "--partition-by", "hash(b)", "--defer-build", "--no-wait")
	if ddl := harness.MustRun(ctx, s.t, up, "index", "list", "--ddl"); !strings.Contains(ddl, "ON world(a, b DESC) PARTITION BY HASH(b)") {
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
