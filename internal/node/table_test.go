package node

import (
	"testing"

	"tidemark/internal/testing/rpctest"
)

// TestTable: what the port answers is bounded, and docs/protocol.md has it.
func TestTable(t *testing.T) { rpctest.Whole(t, "A node of several roles", (&Node{}).table()) }
