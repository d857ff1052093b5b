package cli

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// TestListCommandsHaveAliasLs checks that every list command has the alias ls.
func TestListCommandsHaveAliasLs(t *testing.T) {
	lists := 0
	everyCommand(func(c *cobra.Command) {
		if c.Name() != "list" {
			return
		}
		if lists++; !slices.Contains(c.Aliases, "ls") {
			t.Errorf("%s has no alias ls", c.CommandPath())
		}
	})
	if lists == 0 {
		t.Error("there is no list command")
	}
}
