package indexer

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"tidemark/index"
	"tidemark/indexer/catalog"
	"tidemark/indexer/snapshots"
	"tidemark/internal/testing/atonce"
	_ "tidemark/internal/testing/draws"
)

func TestMain(m *testing.M) {
	atonce.Tests(6) // most of their time is waiting
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// noCatalog is what a node knows that nobody has told anything.
func noCatalog() *catalog.Catalog {
	return catalog.New(func() index.NodeID { return 0 }, snapshots.New(1, hclog.NewNullLogger(), time.Now))
}
