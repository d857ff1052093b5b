package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
)

// resetLevel is the word that takes changes of a level back.
const resetLevel = "reset"

func clusterLogging(s Streams, f *serverFlags) *cobra.Command {
	var component, role string
	var span time.Duration
	cmd := &cobra.Command{Use: "logging NODE [LEVEL]", Short: "Show or change how much a node logs, while it runs",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: noFiles,
		Long: `Shows how much a manager, projector or indexer logs, by component; with a LEVEL (trace, debug, info, warn,
error or off) that changes, until the process ends or for the time that --for says. Without --component it is the level
of all components that have none of their own. "reset" as LEVEL: a component logs as what it is part of again, and
without --component everything as the process began.`,
		Example: "  tidemark cluster logging m1\n  tidemark cluster logging m1 debug --component manager.raft --for 10m\n" +
			"  tidemark cluster logging m1 reset",
		RunE: func(cmd *cobra.Command, args []string) error {
			var change *client.LogChange
			switch {
			case len(args) == 2:
				change = &client.LogChange{Component: component, Level: args[1], ForMS: span.Milliseconds()}
				if args[1] == resetLevel {
					change.Level = ""
				}
			case component != "" || span != 0:
				return usage("--component and --for say what LEVEL is for: give one, or leave them out")
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				l, err := c.Logging(ctx, args[0], role, change)
				if err != nil {
					return err
				}
				return show(s.Out, f.output, l, l.Components, func(t *tabwriter.Writer) { tableLogging(t, &l) })
			})
		}}
	cmd.Flags().StringVar(&component, "component", "", "the component whose level is changed, as manager.raft")
	cmd.Flags().StringVar(&role, "role", "", "manager, projector or indexer, where nodes of several roles have the name")
	cmd.Flags().DurationVar(&span, "for", 0, "after this time the level goes back by itself, at most 24h (default: it "+
		"stays)")
	complete(cmd, "role", fixed("manager", "projector", "indexer"))
	return cmd
}

func tableLogging(t *tabwriter.Writer, l *client.Logging) {
	fmt.Fprintln(t, "COMPONENT\tLEVEL\tSET\tUNTIL")
	row := func(name, level string, own bool, until int64) {
		set, back := "", ""
		if own {
			set = "here"
		}
		if until != 0 {
			back = time.UnixMilli(until).Format(time.TimeOnly)
		}
		fmt.Fprintln(t, strings.Join([]string{name, level, set, back}, "\t"))
	}
	row("(all)", l.Level, false, l.UntilMS)
	for _, c := range l.Components {
		row(c.Name, c.Level, c.Own, c.UntilMS)
	}
}
