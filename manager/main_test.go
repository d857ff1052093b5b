package manager

import (
	"testing"

	"tidemark/internal/testing/atonce"
	"tidemark/internal/testing/garbage"
)

func TestMain(m *testing.M) {
	garbage.Rarely()
	atonce.Tests(12) // most of their time is spent waiting for elections
	m.Run()
}
