package manager

import (
	"testing"

	"tidemark/internal/testing/atonce"
)

func TestMain(m *testing.M) {
	atonce.Tests(4) // most of their time is waiting for elections
	m.Run()
}
