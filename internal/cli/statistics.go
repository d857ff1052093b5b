package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/manager/api/v1"
)

func indexStatistics(s Streams, f *serverFlags) *cobra.Command {
	var req v1.StatisticsRequest
	var histogram bool
	cmd := &cobra.Command{Use: "statistics BUCKET/NAME|ID", Short: "Show the distribution of the values of an index's " +
		"components: distinct values, common values, histograms",
		Long: `Samples the entries of an index and shows for each component of the key how many entries have no value
(MISSING) or NULL, the estimated number of distinct values, the smallest and largest value of the sample, and the values
with the most entries. --histogram adds a histogram with bins of about equal numbers of entries. If the sample is the
whole index, all numbers are exact and marked as exact.

At most 4096 entries of each slice are sampled. Nothing is stored: each call takes a new sample.`,
		Example: `  tidemark index statistics world/airports_by_country
  tidemark index statistics world/airports_by_country --histogram --bins 8
  tidemark index statistics world/airports_by_country --output json`,
		Args: anIndex, ValidArgsFunction: f.indexes(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := refOf(args)
			if err != nil {
				return err
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				st, err := c.Statistics(ctx, r, req)
				if err != nil {
					return err
				}
				return show(s.Out, f.output, st, st.Components, func(t *tabwriter.Writer) { tableStatistics(t, &st, histogram) })
			})
		}}
	cmd.Flags().BoolVar(&histogram, "histogram", false, "also show histograms")
	cmd.Flags().IntVar(&req.Bins, "bins", 0, "`NUMBER` of bins of a histogram, at most 256 (default 32)")
	cmd.Flags().IntVar(&req.Sample, "sample", 0, "`NUMBER` of entries to sample, at most 262144 (default 32768)")
	return cmd
}

// shortValue formats a value of a component for a table.
func shortValue(v json.RawMessage) string {
	if len(v) == 0 {
		return "(long)"
	}
	const most = 40
	var line bytes.Buffer
	if json.Compact(&line, v) != nil { // it may be indented
		return plain(string(v))
	}
	if text := []rune(line.String()); len(text) > most {
		return plain(string(text[:most-1])) + "…"
	}
	return plain(line.String())
}

func tableStatistics(t *tabwriter.Writer, st *v1.IndexStatistics, histogram bool) {
	fmt.Fprintln(t, "COMPONENT\tMISSING\tNULL\tDISTINCT\tLEAST\tGREATEST\tCOMMON")
	for i := range st.Components {
		c := &st.Components[i]
		least, greatest := "", ""
		if c.Distinct > 0 {
			least, greatest = shortValue(c.Least), shortValue(c.Greatest)
		}
		common := make([]string, 0, len(c.Common))
		for _, v := range c.Common[:min(len(c.Common), 3)] {
			common = append(common, fmt.Sprintf("%s: %d", shortValue(v.Value), v.Items))
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", c.Expression, c.Missing, c.Null, c.Distinct, least, greatest,
			strings.Join(common, ", "))
	}
	for i := range st.Components {
		if c := &st.Components[i]; histogram && len(c.Histogram) > 0 {
			fmt.Fprintf(t, "\n%s UP TO\tITEMS\n", c.Expression)
			for _, b := range c.Histogram {
				fmt.Fprintf(t, "%s\t%d\n", shortValue(b.To), b.Items)
			}
		}
	}
	if st.Exact {
		fmt.Fprintf(t, "\n%d entries, all of them sampled: exact\n", st.Items)
		return
	}
	fmt.Fprintf(t, "\n%d of %d entries sampled: numbers are estimates, and bins may be off by up to %.1f %% of the "+
		"entries\n", st.Sampled, st.Items, 100*st.Error)
}
