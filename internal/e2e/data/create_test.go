package data

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/testcluster"
)

var (
	createRounds    = flag.Int("create.rounds", 10, "indexes that TestCreateAndDrop creates, each dropped before the next")
	createDocuments = flag.Int("create.documents", 4000, "documents of 2 KiB that they are built over: more than a side stream's buffer takes")
	createMost      = flag.Duration("create.most", time.Minute, "how long the slowest of them may take")
	createKV        = flag.Int("create.kv", 2, "KV nodes of TestCreateAndDrop, each with its projector")
)

// TestCreateAndDrop creates an index, waits until it is ready and drops it, again and again. Each is ready without having been
// asked for twice: a side stream that a projector refuses, or does not answer for, costs pauses that a user feels. The entries
// that the list of indexes shows are those of the moment in which it was ready.
func TestCreateAndDrop(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Duration(*createRounds)**createMost)
	defer cancel()
	dir := t.TempDir()
	up := testcluster.Start(t, dir, "--managers", "1", "--kv", fmt.Sprint(*createKV), "--indexers", "1")
	c, kv, bucket := up.Client(), up.KV(ctx), up.Manifest().Bucket
	i, fill := 0, strings.Repeat("x", 2048)
	if _, err := kv.Load(ctx, func() (string, []byte, bool, error) {
		i++
		return fmt.Sprintf("create::%07d", i), fmt.Appendf(nil, `{"name":"name %d","fill":%q}`, i, fill), i <= *createDocuments, nil
	}, nil); err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for n := range *createRounds {
		name := fmt.Sprintf("round%d", n)
		began := time.Now()
		made, err := c.Statement(ctx, "CREATE INDEX "+name+" ON "+bucket+"(name)")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.WaitReady(ctx, []index.ID{made[0].ID}, nil); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
		info, err := c.Index(ctx, client.Ref(bucket, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Items != uint64(*createDocuments) {
			t.Errorf("round %d: %d entries are shown of an index that is ready, %d documents have one", n, info.Items, *createDocuments)
		}
		if last := took[len(took)-1]; last > *createMost {
			t.Fatalf("round %d took %s, at most %s are allowed", n, last, *createMost)
		}
		if err := c.Drop(ctx, client.Ref(bucket, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(took)
	t.Logf("%d indexes over %d documents: ready after %s at the median, %s at most", len(took), *createDocuments,
		took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	urls := indexerURLs(up.Manifest())
	all, _ := metricSum(ctx, t, urls, "tidemark_indexer_side_streams_total", "")
	begun, _ := metricSum(ctx, t, urls, "tidemark_indexer_side_streams_total", `outcome="begun"`)
	t.Logf("side streams of %.0f vbuckets were asked for, %.0f of them began", all, begun)
	if again := all - begun; again > 0 {
		t.Errorf("side streams of %.0f vbuckets were asked for in vain", again)
	}
}
