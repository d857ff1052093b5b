package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
)

// verifyTimeout is the timeout of a verification without --timeout: the managers' limit.
const verifyTimeout = 24 * time.Hour

// errDiffers is wrapped by the error of a verification that has found differences.
var errDiffers = errors.New("the index differs from the KV data")

func indexVerify(s Streams, f *serverFlags) *cobra.Command {
	var req v1.VerifyRequest
	cmd := &cobra.Command{Use: "verify BUCKET/NAME|ID", Short: "Compare an index with the KV data",
		Long: `Evaluates the index anew for every document in KV, compares the result with every copy of every slice at one
stability timestamp, and prints each difference: missing_row, extra_row, wrong_key, back_entry (the rows are right, but
the document's list of them is wrong), refused_key (a key that no index can store), or lost_on_way (for a vbucket: the
keys that a projector evaluated are not those that arrived). The exit code is 1 if there are differences, and 2 if the
request is invalid.

The index can be used and documents can change meanwhile: documents that change are compared at a later timestamp. All
documents of the bucket are read from KV, once for each indexer that holds the index; --rate limits that. Without
--timeout the command may take up to a day.`,
		Example: `  tidemark index verify world/airports_by_country
  tidemark index verify world/airports_by_country --rate 5000 --output jsonl`,
		Args: anIndex, ValidArgsFunction: f.indexes(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := noCSV(f.output); err != nil {
				return err
			}
			r, err := refOf(args)
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("timeout") {
				f.timeout = verifyTimeout
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return runVerify(ctx, s, c, r, req, f.output)
			})
		}}
	cmd.Flags().Int64Var(&req.Rate, "rate", 0, "rows and documents that each indexer compares per second, at least 100 "+
		"(0: 20000)")
	cmd.Flags().IntVar(&req.Limit, "limit", 0, "maximum number of differences to print (0: 1000); all are counted")
	return cmd
}

// differences prints the results of a verification, as they arrive or in a table.
type differences struct {
	out    io.Writer
	output format
	table  *tabwriter.Writer
	headed bool // the table's header was printed
}

// difference prints one difference; nil prints nothing.
func (p *differences) difference(d *v1.Difference) error {
	switch {
	case d == nil:
		return nil
	case p.output != formatTable:
		return write(p.out, p.output.each(), d)
	case !p.headed:
		p.headed = true
		fmt.Fprintln(p.table, "KIND\tDOCUMENT\tSLICE\tREPLICA\tCOPY\tINDEXER\tEXPECTED\tFOUND\tDETAIL")
	}
	fmt.Fprintf(p.table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", d.Kind, plain(d.ID), d.Slice, d.Replica, d.Copy,
		d.Indexer, plain(keyList(d.Expected)), plain(keyList(d.Found)), d.Detail)
	return nil
}

func runVerify(ctx context.Context, s Streams, c *client.Client, r string, req v1.VerifyRequest,
	output format) error {
	show := differences{out: s.Out, output: output, table: tabwriter.NewWriter(s.Out, 2, 0, 2, ' ', 0)}
	b, percent := newBar(s.Err, "verifying"), map[string]float64{}
	end, err := c.Verify(ctx, r, req, func(l v1.VerifyLine) error {
		if l.Progress != nil {
			percent[l.Progress.Indexer] = l.Progress.Percent
			b.set(slices.Min(slices.Collect(maps.Values(percent)))) // the slowest of the indexers that have reported
			return nil
		}
		return show.difference(l.Difference)
	})
	b.done(err == nil)
	if ferr := show.table.Flush(); err == nil {
		err = ferr
	}
	var p *rpc.Problem
	switch {
	case errors.As(err, &p) && p.Code == errcode.BadRequest:
		return usageError{err} // exit code 1 is for differences
	case err != nil:
		return err
	}
	fmt.Fprintf(s.Err, "%d documents and %d rows of %d copies compared at stability timestamps %d to %d: %d differences\n",
		end.Documents, end.Rows, len(end.Copies),
		end.FirstStability, end.LastStability, end.Differences)
	if end.Unsettled > 0 {
		fmt.Fprintf(s.Err, "%d documents changed during each comparison, and could not be verified\n",
			end.Unsettled)
	}
	if output != formatTable {
		if err := write(s.Out, output.each(), map[string]any{"end": end}); err != nil {
			return err
		}
	}
	if end.Differences > 0 {
		return fmt.Errorf("%w: %d documents, %d of them listed; to rebuild the index: DROP INDEX and CREATE "+
			"INDEX", errDiffers,
			end.Differences, end.Listed)
	}
	return nil
}

// keyList formats a list of keys.
func keyList(keys []json.RawMessage) string {
	var b strings.Builder
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.Write(k)
	}
	return b.String()
}
