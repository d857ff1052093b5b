package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

func newRebalance(s Streams) *cobra.Command {
	f := &serverFlags{}
	cmd := group("rebalance", "Spread the slices of indexes over the present indexers",
		"  tidemark rebalance plan\n  tidemark rebalance run --wait",
		rebalancePlan(s, f), rebalanceRun(s, f), rebalanceStatus(s, f), rebalanceCancel(s, f),
		rebalanceRate(s, f))
	f.add(cmd, s)
	return cmd
}

// planFlags are the options of a plan.
type planFlags struct{ req v1.RebalanceRequest }

func (p *planFlags) add(cmd *cobra.Command, f *serverFlags) {
	fl := cmd.Flags()
	fl.StringSliceVar(&p.req.Remove, "remove", nil, "indexers to empty; they get no new copies from now on")
	fl.StringSliceVar(&p.req.Keep, "keep", nil, "indexers that were marked to be emptied, to use them again")
	fl.IntVar(&p.req.Sends, "sends", 1, "copies that one indexer sends at a time")
	fl.IntVar(&p.req.Receives, "receives", 1, "copies that one indexer receives at a time")
	complete(cmd, "remove", f.nodes())
	complete(cmd, "keep", f.nodes())
}

func rebalancePlan(s Streams, f *serverFlags) *cobra.Command {
	p := &planFlags{}
	cmd := &cobra.Command{Use: "plan", Short: "Show what would move, and why", Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Shows the smallest set of moves after which each indexer has its share by its capacity, replicas of a slice
are on different indexers and as far as possible in different zones, and indexers of --remove, or that do not answer
now, hold nothing. Nothing is changed. --output json prints a plan for "rebalance run --plan FILE".`,
		Example: "  tidemark rebalance plan\n  tidemark rebalance plan --remove i2 --output json > plan.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				r, err := c.Rebalance(ctx, p.req, true)
				if err != nil {
					return err
				}
				return printPlan(s, f.output, r.Plan)
			})
		}}
	p.add(cmd, f)
	return cmd
}

func printPlan(s Streams, as format, p *rebalance.Plan) error {
	names := map[index.NodeID]string{}
	for _, n := range p.Nodes {
		names[n.Node] = n.Name
	}
	return show(s.Out, as, p, p.Steps, func(t *tabwriter.Writer) {
		fmt.Fprintln(t, "INDEXER\tZONE\tCAPACITY\tROLE\tSLICES\tTHEN\tMiB\tTHEN")
		for _, n := range p.Nodes {
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\n", n.Name, n.Zone, n.Capacity, n.Role, n.Before, n.After,
				n.Bytes[0]>>20, n.Bytes[1]>>20)
		}
		for _, x := range p.Short {
			fmt.Fprintf(t, "\n%s needs %d copies of each slice, but only %d indexers may hold them\n", x.Name, x.Want,
				x.Usable)
		}
		for _, n := range p.Excluded {
			if n.Copies > 0 {
				fmt.Fprintf(t, "\nwarning: %s gets %d copies that no other indexer can take: %s\n", n.Name, n.Copies, n.Why)
			} else {
				fmt.Fprintf(t, "\n%s gets no copies: %s\n", n.Name, n.Why)
			}
		}
		for _, name := range p.Left {
			fmt.Fprintf(t, "\n%s is being split: the new index is moved, the old one is not\n", name)
		}
		if len(p.Steps) == 0 {
			fmt.Fprintln(t, "\nno copy has to move")
			return
		}
		fmt.Fprintln(t, "\nROUND\tSTEP\tINDEX\tSLICE\tREPLICA\tFROM\tTO\tMiB\tWHY")
		for i := range p.Steps {
			y := &p.Steps[i]
			from := "-"
			if y.From != nil {
				from = names[*y.From]
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\t%s\t%s\t%d\t%s\n", y.Round, y.Kind, y.Name, y.Slice, y.Replica, from,
				names[y.To], y.Bytes>>20, y.Why)
		}
		if len(p.Steps) > rebalance.MaxBegun {
			fmt.Fprintf(t, "\nrebalance run begins the first %d of these steps: run it again when they are done\n",
				rebalance.MaxBegun)
		}
		fmt.Fprintf(t, "\n%d steps in %d rounds, %d MiB, about %v\n", len(p.Steps), p.Rounds, p.Bytes>>20,
			(time.Duration(p.Milliseconds) * time.Millisecond).Round(time.Second))
	})
}

func rebalanceRun(s Streams, f *serverFlags) *cobra.Command {
	p := &planFlags{}
	var file string
	var wait bool
	cmd := &cobra.Command{Use: "run", Short: "Run a rebalance", Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Plans and starts a rebalance, or starts the plan of --plan FILE, which is refused if the placement has changed
since. Scans, writes and DDL continue meanwhile: the old copy of a slice serves until the new copy is whole. Only one
rebalance can run at a time. --wait shows the progress until the end; the exit code is then 1 if a step failed.`,
		Example: "  tidemark rebalance run --wait --timeout 1h\n  tidemark rebalance run --remove i2 --wait\n  tidemark " +
			"rebalance run --plan plan.json"}
	fl := cmd.Flags()
	fl.StringVar(&file, "plan", "", "run this plan: a `FILE` with the output of rebalance plan --output json")
	fl.BoolVar(&wait, "wait", false, "wait until the rebalance has ended, at most for --timeout")
	p.add(cmd, f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file != "" {
			if err := readPlan(file, fl, &p.req); err != nil {
				return err
			}
		}
		return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			r, err := c.Rebalance(ctx, p.req, false)
			if err != nil {
				return err
			}
			if r.ID == 0 {
				return show(s.Out, f.output, r, []v1.RebalanceReply{r},
					func(t *tabwriter.Writer) { fmt.Fprintln(t, "no copy has to move") })
			}
			if wait {
				return waitMoves(ctx, s, f.output, c, r.ID)
			}
			return show(s.Out, f.output, r, []v1.RebalanceReply{r}, func(t *tabwriter.Writer) {
				if r.Plan == nil { // the first answer was lost
					fmt.Fprintf(t, "rebalance %d has started\n", r.ID)
					return
				}
				fmt.Fprintf(t, "rebalance %d begins: %d steps\n", r.ID, min(len(r.Plan.Steps), rebalance.MaxBegun))
			})
		})
	}
	return cmd
}

// maxPlanFile limits a plan, in bytes.
const maxPlanFile = 32 << 20

func readPlan(file string, fl *pflag.FlagSet, req *v1.RebalanceRequest) error {
	for _, flag := range []string{"remove", "keep", "sends", "receives"} {
		if fl.Changed(flag) {
			return usage("--%s is part of the plan; make a new plan with it", flag)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return usage("--plan: %v", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPlanFile+1))
	if err != nil {
		return usage("--plan: %v", err)
	}
	if len(b) > maxPlanFile {
		return usage("--plan %s: more than %d bytes", file, maxPlanFile)
	}
	req.Plan, req.Sends, req.Receives = &rebalance.Plan{}, 0, 0
	if err := rpc.ReadJSON(b, req.Plan); err != nil {
		return usage("--plan %s: %v", file, err)
	}
	return nil
}

// errRebalance is wrapped when a rebalance ended before it was complete.
var errRebalance = errors.New("the rebalance did not finish")

// waitMoves shows progress until the rebalance has ended.
func waitMoves(ctx context.Context, s Streams, as format, c *client.Client, id uint64) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	b := newBar(s.Err, fmt.Sprintf("rebalance %d", id))
	for {
		r, err := c.RebalanceStatus(ctx, id)
		if err != nil {
			b.done(false)
			return err
		}
		if r.Phase.Over() {
			b.done(r.Phase == statecontext.RebalanceFinished)
			if err := printRebalances(s, as, nodeNames(ctx, as, c),
				v1.RebalanceList{Rebalances: []v1.RebalanceInfo{r}}); err != nil {
				return err
			}
			if r.Phase != statecontext.RebalanceFinished {
				return fmt.Errorf("%w: %s, %d of %d steps are done: %s", errRebalance, r.Phase, r.Done, r.Steps, r.Reason)
			}
			return nil
		}
		b.set(r.Percent)
		select {
		case <-ctx.Done():
			b.done(false)
			return fmt.Errorf("rebalance %d continues: %d of %d steps are done: %w", id, r.Done, r.Steps, ctx.Err())
		case <-tick.C:
		}
	}
}

func rebalanceStatus(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "status [ID]",
		Short:             "Show the newest rebalances and the running splits, or one with its moves",
		ValidArgsFunction: noFiles,
		Example:           "  tidemark rebalance status\n  tidemark rebalance status 3",
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if len(args) == 0 {
					list, err := c.Rebalances(ctx)
					if err != nil {
						return err
					}
					return printRebalances(s, f.output, nil, list)
				}
				id, err := rebalanceArg(cmd, args)
				if err != nil {
					return err
				}
				r, err := c.RebalanceStatus(ctx, id)
				if err != nil {
					return err
				}
				return printRebalances(s, f.output, nodeNames(ctx, f.output, c),
					v1.RebalanceList{Rebalances: []v1.RebalanceInfo{r}})
			})
		}}
}

func rebalanceArg(cmd *cobra.Command, args []string) (uint64, error) {
	if len(args) == 1 {
		if id, err := strconv.ParseUint(args[0], 10, 64); err == nil {
			return id, nil
		}
	}
	return 0, usage("%s takes the number of a rebalance; tidemark rebalance status lists them", cmd.CommandPath())
}

// nodeNames returns the names of indexers, for a table; indexers that are not registered are missing.
func nodeNames(ctx context.Context, as format, c *client.Client) map[index.NodeID]string {
	names := map[index.NodeID]string{}
	if as != formatTable {
		return names
	}
	if st, err := c.Status(ctx); err == nil {
		for _, i := range st.Indexers {
			names[i.Node] = i.ID
		}
	}
	return names
}

// indexerName returns the name of an indexer, or its number if the name is not known.
func indexerName(names map[index.NodeID]string, n index.NodeID) string {
	return valueOr(names[n], fmt.Sprintf("node %d", n))
}

func printRebalances(s Streams, as format, names map[index.NodeID]string, all v1.RebalanceList) error {
	list := all.Rebalances
	return show(s.Out, as, all, list, func(t *tabwriter.Writer) {
		fmt.Fprintln(t, "ID\tSTATE\tCAUSE\tSTEPS\tDONE\tGIVEN UP\tMiB\tARRIVED\tPROGRESS\tREMAINING")
		for i := range list {
			r := &list[i]
			remaining := "-"
			if r.RemainingMS != nil {
				remaining = (time.Duration(*r.RemainingMS) * time.Millisecond).Round(time.Second).String()
			}
			arrived := "-"
			if !r.Phase.Over() {
				arrived = strconv.FormatUint(r.BytesDone>>20, 10)
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%.0f %%\t%s\n", r.ID, r.Phase, r.Cause, r.Steps, r.Done, r.GivenUp,
				r.Bytes>>20, arrived, r.Percent, remaining)
		}
		for i := range list {
			if list[i].Reason != "" {
				fmt.Fprintf(t, "\nrebalance %d: %s\n", list[i].ID, list[i].Reason)
			}
			printMoves(t, names, list[i].Moves)
		}
		printSplits(t, all.Splits, all.MoreSplits)
	})
}

// printSplits prints the running splits.
func printSplits(t *tabwriter.Writer, splits []v1.RunningSplit, more int) {
	if len(splits) == 0 {
		return
	}
	fmt.Fprintln(t, "\nSPLIT OF\tID\tSUCCESSOR\tSTATE\tSLICES\tPROGRESS")
	for i := range splits {
		x := &splits[i]
		fmt.Fprintf(t, "%s/%s\t%s\t%s\t%s\t%d\t%.0f %%\n", index.KeyspaceOf(x.Bucket, x.Scope, x.Collection), x.Name, x.ID,
			x.Split.ID, x.Split.State, x.Split.Partitions, x.Split.Progress)
	}
	if more > 0 {
		fmt.Fprintf(t, "and %d more\n", more)
	}
}

func printMoves(t *tabwriter.Writer, names map[index.NodeID]string, moves []v1.RebalanceMove) {
	if len(moves) == 0 {
		return
	}
	fmt.Fprintln(t, "\nSTEP\tSTATE\tINDEX\tSLICE\tREPLICA\tFROM\tTO\tMiB\tARRIVED\t")
	for i := range moves {
		y := &moves[i]
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\t%s\t%s\t%d\t%d\t%s\n", y.Step, y.State, y.Index, y.Slice, y.Replica,
			indexerName(names, y.Src.Node), indexerName(names, y.Dst.Node), y.Bytes>>20, y.BytesDone>>20, y.Reason)
	}
}

func rebalanceCancel(s Streams, f *serverFlags) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{Use: "cancel ID", Short: "End a rebalance as soon as it can", ValidArgsFunction: noFiles,
		Long: `Ends a running rebalance. Slices that have moved stay at their new place; slices that are moving stay at the
old one. Indexers of --remove stay marked to be emptied; "rebalance run --keep" undoes that.`,
		Example: "  tidemark rebalance cancel 3",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := rebalanceArg(cmd, args)
			if err != nil {
				return err
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				r, err := c.CancelRebalance(ctx, id)
				for err == nil && wait && !r.Phase.Over() {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(100 * time.Millisecond):
					}
					r, err = c.RebalanceStatus(ctx, id)
				}
				if err != nil {
					return err
				}
				return printRebalances(s, f.output, nodeNames(ctx, f.output, c),
					v1.RebalanceList{Rebalances: []v1.RebalanceInfo{r}})
			})
		}}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the rebalance has ended, at most for --timeout")
	return cmd
}

// rateDefault resets each indexer to its configured rate.
const rateDefault = "default"

func rebalanceRate(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "rate [BYTES|" + rateDefault + "]", ValidArgsFunction: noFiles,
		Short: "Show or change the transfer rate of files of slices",
		Long: `Shows or sets how many bytes of files each indexer sends to others per second, at least 1MiB. A change takes
effect within a second, also for files that are being sent, and survives restarts. It overrides "tidemark indexer
--transfer-rate", except 0: such an indexer still sends no files. ` + rateDefault + ` restores the rates of that flag.
The rate is the limit transfer_rate of "cluster limits".`,
		Example: "  tidemark rebalance rate\n  tidemark rebalance rate 16MiB\n  tidemark rebalance rate " + rateDefault,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%d arguments: want a number of bytes, like 16MiB, or %s", len(args), rateDefault)
			}
			var rate byteSize
			if len(args) == 1 && args[0] != rateDefault {
				if err := rate.Set(args[0]); err != nil {
					return usage("%q: %v, or %s", args[0], err, rateDefault)
				}
				if rate < statecontext.LeastTransferRate {
					return usage("%q: want at least 1MiB, or %s", args[0], rateDefault)
				}
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				l, err := c.Limits(ctx)
				if len(args) == 1 && err == nil {
					l, err = c.SetLimits(ctx, map[string]int64{"transfer_rate": int64(rate)})
				}
				if err != nil {
					return err
				}
				shown := struct {
					TransferRate int64 `json:"transfer_rate"`
				}{l.TransferRate}
				return show(s.Out, f.output, shown, []any{shown}, func(t *tabwriter.Writer) {
					if rate = byteSize(l.TransferRate); rate == 0 {
						fmt.Fprintln(t, "the rate with which each indexer was started (--transfer-rate)")
						return
					}
					fmt.Fprintf(t, "%s per second for each indexer\n", &rate)
				})
			})
		}}
}
