package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/manager/api/v1"
)

// newScan returns the commands for running and slow scans. With an index it scans, like "index scan".
func newScan(s Streams) *cobra.Command {
	f, sf := &serverFlags{}, &scanFlags{}
	cmd := group("scan", "Scan an index; list running and slow scans, and end scans",
		"  tidemark scan world/places_by_name --limit 5\n  tidemark scan list\n  tidemark scan slow --limit 10",
		scanList(s, f), scanSlow(s, f), scanSlowFrom(s, f), scanCancel(s, f))
	cmd.Use = "scan [BUCKET/NAME|ID]"
	cmd.Long = "Scans the given index, with the same flags as tidemark index scan. The subcommands list and cancel\n" +
		"running scans, and list slow ones."
	cmd.ValidArgsFunction = f.indexes(false)
	withoutIndex := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := ref(strings.Join(args, "/")); err != nil { // not an index: an unknown command, or none
			return withoutIndex(cmd, args)
		}
		if err := anIndex(cmd, args); err != nil {
			return err
		}
		return sf.scan(cmd.Context(), s, f, args)
	}
	f.add(cmd, s)
	sf.add(cmd)
	return cmd
}

func scansLimit(cmd *cobra.Command, limit *int) {
	cmd.Flags().IntVar(limit, "limit", 200, "maximum number of scans, 1 to 1000")
}

func scanList(s Streams, f *serverFlags) *cobra.Command {
	var every time.Duration
	var limit int
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"},
		Short: "List running scans and counts, longest first", Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Lists the running scans and counts of all indexers. STATE is opening while the scan waits for copies of the
slices to have its timestamp and their first rows; waiting while it waits for a stability timestamp that is new enough;
reading; or sending while the client or the network accepts no data. An indexer that does not answer within 2 s is
named.`,
		Example: "  tidemark scan list\n  tidemark scan list --watch=1s",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return repeat(cmd.Context(), s, every, func(ctx context.Context, w io.Writer) error {
				return f.do(ctx, func(ctx context.Context, c *client.Client) error {
					l, err := c.RunningScans(ctx, limit)
					if err != nil {
						return err
					}
					err = show(w, f.output, l, l.Scans, func(t *tabwriter.Writer) { tableRunning(t, l.Scans) })
					printMissing(s.Err, l.Omitted, l.Unreachable)
					return err
				})
			})
		}}
	watchFlag(cmd.Flags(), &every)
	scansLimit(cmd, &limit)
	return cmd
}

func scanSlow(s Streams, f *serverFlags) *cobra.Command {
	var limit int
	cmd := &cobra.Command{Use: "slow", Short: "List slow scans and counts, newest first", Args: noArgs,
		ValidArgsFunction: noFiles,
		Long: `Lists the slow scans of all indexers. Each indexer records the newest 256 scans that it has coordinated since
its start and that took longer than its --slow-scan. The times show how long a scan was in each state of "scan list".`,
		Example: "  tidemark scan slow --limit 10\n  tidemark scan slow --output jsonl",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				l, err := c.SlowScans(ctx, limit)
				if err != nil {
					return err
				}
				err = show(s.Out, f.output, l, l.Scans, func(t *tabwriter.Writer) { tableSlow(t, l.Scans) })
				printMissing(s.Err, l.Omitted, l.Unreachable)
				if l.Forgotten > 0 {
					fmt.Fprintf(s.Err, "%d more slow scans are no longer recorded\n", l.Forgotten)
				}
				return err
			})
		}}
	scansLimit(cmd, &limit)
	return cmd
}

const (
	noneSlow    = "none" // the DURATION that turns recording off
	maxSlowFrom = time.Hour
)

func scanSlowFrom(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "slow-from [DURATION]",
		Short: "Show or change the duration from which scans are recorded as slow, on all " +
			"indexers", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: noFiles,
		Long: `Without an argument, shows the duration from which each indexer records a scan as slow. A DURATION, at most 1h,
changes it on all indexers until their processes end; "none" records no scans; "reset" restores each indexer's
--slow-scan. A change needs the role admin.`,
		Example: "  tidemark scan slow-from\n  tidemark scan slow-from 100ms\n  tidemark scan slow-from reset",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
					l, err := c.SlowScans(ctx, 1)
					if err != nil {
						return err
					}
					err = show(s.Out, f.output, l.From, l.From, func(t *tabwriter.Writer) { tableSlowFrom(t, l.From) })
					printMissing(s.Err, 0, l.Unreachable)
					return err
				})
			}
			from, err := slowFrom(args[0])
			if err != nil {
				return err
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				r, err := c.SlowFrom(ctx, v1.SlowFromRequest{FromMS: from})
				if err != nil {
					return err
				}
				fmt.Fprintf(s.Err, "changed on %s\n", strings.Join(r.Indexers, ", "))
				for _, u := range r.Unreachable {
					fmt.Fprintf(s.Err, "indexer %s keeps its present value: %s\n", u.Indexer, u.Error)
				}
				return nil
			})
		}}
}

// slowFrom parses a DURATION, and returns it in milliseconds.
func slowFrom(text string) (int64, error) {
	switch text {
	case noneSlow:
		return -1, nil
	case resetLevel:
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Millisecond || d > maxSlowFrom {
		return 0, usage("DURATION %q: want a time like 250ms, 1ms to 1h, %s or %s", text, noneSlow, resetLevel)
	}
	return d.Milliseconds(), nil
}

func tableSlowFrom(t io.Writer, all []v1.SlowFrom) {
	fmt.Fprintln(t, "INDEXER\tSLOW FROM")
	for _, x := range all {
		from := noneSlow
		if x.FromMS >= 0 {
			from = time.Duration(x.FromMS * float64(time.Millisecond)).String()
		}
		fmt.Fprintf(t, "%s\t%s\n", x.Indexer, from)
	}
}

func scanCancel(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "cancel ID", Short: "Cancel a running scan; its client gets an error",
		Args: exactArgs("ID"), ValidArgsFunction: noFiles,
		Long: `Ends a scan that "scan list" shows. Its client gets the error SCAN_CANCELLED with the name of the user who
ended it. The scan of a client that accepts no data ends when the client accepts data again, or after at most 30 s. The
role ddl is needed.`,
		Example: "  tidemark scan cancel i1.h9k3x2a0b7",
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := c.CancelScan(ctx, args[0]); err != nil {
					return err
				}
				fmt.Fprintf(s.Err, "scan %s is cancelled\n", args[0])
				return nil
			})
		}}
}

// printMissing reports what a list does not contain.
func printMissing(w io.Writer, omitted int, unreachable []v1.UnreachableIndexer) {
	if omitted > 0 {
		fmt.Fprintf(w, "%s more: see --limit\n", counted(omitted, "scan", "scans"))
	}
	for _, u := range unreachable {
		fmt.Fprintf(w, "indexer %s does not answer, its scans are missing: %s\n", u.Indexer, u.Error)
	}
}

// indexOf returns the name of the scanned index, or its id if the name is unknown.
func indexOf(a *v1.ScanInfo) string {
	if a.Name == "" {
		return "index " + a.Index.String()
	}
	return a.Keyspace() + "/" + a.Name
}

func tableRunning(t io.Writer, all []v1.RunningScan) {
	fmt.Fprintln(t, "ID\tINDEX\tOP\tUSER\tFOR\tSTATE\tROWS\tCONSISTENCY\tBOUNDS")
	for i := range all {
		r := &all[i]
		state := r.State
		if r.Cancelled {
			state += " (cancelled)"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", r.ID, indexOf(&r.ScanInfo), r.Op, r.User, formatMS(r.ForMS),
			state, r.Rows, r.Consistency, r.Bounds)
	}
}

func tableSlow(t io.Writer, all []v1.SlowScan) {
	fmt.Fprintln(t, "BEGAN\tINDEX\tOP\tUSER\tTOOK\tOPENING\tWAITING\tREADING\tSENDING\tROWS\tCODE\tBOUNDS")
	for i := range all {
		r := &all[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", time.UnixMilli(r.SinceMS).Format(time.TimeOnly),
			indexOf(&r.ScanInfo), r.Op, r.User, formatMS(r.TookMS), formatMS(r.OpeningMS), formatMS(r.WaitingMS),
			formatMS(r.ReadingMS), formatMS(r.SendingMS), r.Rows, r.Code, r.Bounds)
	}
}

// formatMS formats a duration in milliseconds for display.
func formatMS(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	if d >= time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
