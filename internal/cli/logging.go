package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// resetLevel is the word that revokes changes of a level.
const resetLevel = "reset"

func clusterLogging(s Streams, f *serverFlags) *cobra.Command {
	var role string
	set := &levelFlags{}
	cmd := &cobra.Command{Use: "logging NODE [LEVEL]", Short: "Show or change how much a running node logs",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: f.loggers(),
		Long: `Shows the log level of each component of a manager, projector or indexer. A LEVEL (trace, debug, info, warn,
error or off) changes it until the process ends, or for the duration of --for. Without --component the level applies to
all components that have no level of their own. The LEVEL reset resets a component to the level of the component that it
is part of, and without --component the whole process to the levels with which it started.`,
		Example: "  tidemark cluster logging m1\n  tidemark cluster logging m1 debug --component manager.raft --for 10m\n" +
			"  tidemark cluster logging m1 reset",
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := set.change(args)
			if err != nil {
				return err
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				l, err := c.Logging(ctx, args[0], role, change)
				if err != nil {
					return sameName(ctx, c, args[0], role, err)
				}
				return show(s.Out, f.output, l, l.Components, func(t *tabwriter.Writer) { tableLogging(t, &l) })
			})
		}}
	set.add(cmd, "manager.raft")
	cmd.Flags().StringVar(&role, "role", "", "manager, projector or indexer, if nodes of several roles have this name")
	complete(cmd, "role", fixed("manager", "projector", "indexer"))
	return cmd
}

// sameName adds --role to an error if nodes of several roles have the name and none was given.
func sameName(ctx context.Context, c *client.Client, name, role string, refused error) error {
	p := (*rpc.Problem)(nil)
	if role != "" || !errors.As(refused, &p) || p.Code != errcode.BadRequest {
		return refused
	}
	st, err := c.Status(ctx)
	if err != nil {
		return refused
	}
	roles := rolesOf(&st, name)
	if len(roles) < 2 {
		return refused
	}
	return usage("several nodes have the name %s: choose one with --role %s", name, strings.Join(roles, ", or --role "))
}

// levelFlags are the options of a LEVEL.
type levelFlags struct {
	component string
	span      time.Duration
}

func (f *levelFlags) add(cmd *cobra.Command, example string) {
	cmd.Flags().StringVar(&f.component, "component", "", "the component whose level is changed, like "+example)
	cmd.Flags().DurationVar(&f.span, "for", 0, "time after which the level is reset automatically, at most 24h "+
		"(default: never)")
}

// change returns the change requested by NODE [LEVEL]; nil: none.
func (f *levelFlags) change(args []string) (*v1.LogChange, error) {
	switch {
	case len(args) == 2:
		change := &v1.LogChange{Component: f.component, Level: args[1], ForMS: f.span.Milliseconds()}
		if args[1] == resetLevel {
			change.Level = ""
		}
		return change, nil
	case f.component != "" || f.span != 0:
		return nil, usage("--component and --for need a LEVEL: give one, or omit them")
	}
	return nil, nil //nolint:nilnil // no change
}

func kvLogging(s Streams) *cobra.Command {
	f, set := &kvAdminFlags{}, &levelFlags{}
	cmd := &cobra.Command{Use: "logging NODE [LEVEL]", Short: "Show or change how much a running KV node logs",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: noFiles,
		Long: `Shows the log level of each component of a node of the embedded KV. A LEVEL (trace, debug, info, warn, error,
off or reset) changes it until the process ends, or for the duration of --for, as "tidemark cluster logging" does for
the other roles.`,
		Example: "  tidemark kv logging kv1 --data ./cluster\n" +
			"  tidemark kv logging kv1 debug --component kv.memcached --for 10m --data ./cluster\n" +
			"  tidemark kv logging kv1 reset --data ./cluster",
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := set.change(args)
			if err != nil {
				return err
			}
			a, err := f.open()
			if err != nil {
				return err
			}
			levels, err := a.Logging(cmd.Context(), args[0], (*wire.LogChange)(change))
			if err != nil {
				return err
			}
			l := v1.Logging{ID: args[0], Role: "kv", Level: levels.Level, UntilMS: levels.UntilMS}
			for _, c := range levels.Components {
				l.Components = append(l.Components, v1.LogComponent(c))
			}
			return show(s.Out, f.output, l, l.Components, func(t *tabwriter.Writer) { tableLogging(t, &l) })
		}}
	f.add(cmd)
	set.add(cmd, "kv.memcached")
	return cmd
}

func tableLogging(t *tabwriter.Writer, l *v1.Logging) {
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
