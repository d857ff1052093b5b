package node

import (
	"testing"

	"tidemark/internal/testing/rpctest"
)

// TestTable checks that the port's requests are bounded, and that docs/protocol.md lists them.
func TestTable(t *testing.T) { rpctest.Whole(t, "A node of several roles", (&Node{}).table()) }
