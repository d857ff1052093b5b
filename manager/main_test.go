package manager

import (
	"testing"

	"tidemark/internal/testing/atonce"
)

func TestMain(m *testing.M) {
	atonce.Tests(6) // most of their time is waiting for elections
	m.Run()
}
