//go:build !failpoints

package cli

import (
	"github.com/spf13/pflag"

	"tidemark/internal/localcluster"
	"tidemark/manager"
)

// The shipped program has no fault injection; tests of real processes are built with -tags failpoints.

func managerFailpoints(*pflag.FlagSet, *manager.Config) func() error {
	return func() error { return nil }
}

func upFailpoints(*pflag.FlagSet, *localcluster.Config) {}
