package indexer

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"tidemark/index"
	"tidemark/indexer/catalog"
	"tidemark/indexer/copies"
	"tidemark/indexer/health"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/internal/testing/atonce"
	_ "tidemark/internal/testing/draws"
)

func TestMain(m *testing.M) {
	atonce.Tests(6) // most of their time is waiting
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// noCatalog returns the catalog of a node that has not got any definitions.
func noCatalog() *catalog.Catalog {
	return catalog.New(func() index.NodeID { return 0 }, snapshots.New(1, hclog.NewNullLogger(), time.Now))
}

// aloneNode returns a store with one copy, and a function that makes the node of buckets over it, of which no other
// node knows. A test under synctest calls the function in its bubble.
func aloneNode(t *testing.T) (node func() *copies.Node, s *storage.Slice) {
	t.Helper()
	log := hclog.NewNullLogger()
	store, s := storagetest.Open(t)
	marks, err := copies.LoadMarks(t.TempDir(), log)
	if err != nil {
		t.Fatal(err)
	}
	return func() *copies.Node {
		return &copies.Node{Store: store, Snapshots: snapshots.New(2, log, time.Now), Marks: marks,
			Health: &health.Health{}, Metrics: copies.NewMetrics(prometheus.NewRegistry()), Log: log, Now: time.Now,
			Queue: func() int64 { return 1 << 20 }, Piece: 1 << 20, Report: func() {}, Sides: func() {}, Touch: func(string) {}}
	}, s
}
