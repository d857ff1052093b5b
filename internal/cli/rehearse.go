package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/manager/api/v1"
)

// insteadFlags select an alternative to running the statements.
type insteadFlags struct{ print, dryRun bool }

func (i *insteadFlags) add(fl *pflag.FlagSet) {
	fl.BoolVar(&i.dryRun, "dry-run", false, "only report what the cluster would do, where copies would be placed and the "+
		"cost")
	fl.BoolVar(&i.print, "print", false, "only check the text, without a cluster, and print the statements that would be "+
		"run")
}

// rehearse prints the outcome of a dry run.
func rehearse(ctx context.Context, s Streams, as format, c *client.Client, all []expression.Statement) error {
	if len(all) == 0 {
		fmt.Fprintln(s.Err, "there is nothing to do")
		return printRehearsal(s.Out, as, []v1.StatementResult{})
	}
	texts := make([]string, len(all))
	for i, st := range all {
		texts[i] = st.String()
	}
	return rehearseText(ctx, s, as, c, strings.Join(texts, ";\n"))
}

func rehearseText(ctx context.Context, s Streams, as format, c *client.Client, text string) error {
	results, err := c.Rehearse(ctx, text)
	if err != nil {
		return err
	}
	printNotices(s.Err, results)
	fmt.Fprintln(s.Err, "a dry run: nothing was changed")
	printSources(s.Err, results)
	return printRehearsal(s.Out, as, results)
}

func printRehearsal(w io.Writer, as format, results []v1.StatementResult) error {
	return show(w, as, v1.StatementReply{DryRun: true, Results: results}, results, func(t *tabwriter.Writer) {
		fmt.Fprintln(t, "BUCKET\tNAME\tWOULD BE\tMOVES\tCOPIES\tREADS DOCUMENTS\tENTRIES\tBYTES\tFREES BYTES")
		for i := range results {
			r := &results[i]
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", r.Keyspace(), r.Name, rehearsedWord(r), r.Moves, placesWord(r.Places),
				costWord(r.Cost))
		}
	})
}

// costWord returns the columns of a statement's cost.
func costWord(c *v1.StatementCost) string {
	if c == nil {
		c = &v1.StatementCost{}
	}
	words := make([]string, 0, 4)
	for _, e := range []*v1.Estimate{c.Documents, c.Entries, c.Bytes, c.Frees} {
		words = append(words, estimateWord(e))
	}
	return strings.Join(words, "\t")
}

func estimateWord(e *v1.Estimate) string {
	if e == nil {
		return "-"
	}
	return fmt.Sprintf("%s %d", strings.ReplaceAll(e.Bound, "_", " "), e.Value)
}

// printSources prints the sources of the cost estimates, and what cannot be estimated.
func printSources(w io.Writer, results []v1.StatementResult) {
	for i := range results {
		c := results[i].Cost
		if c == nil {
			continue
		}
		for _, e := range []struct {
			what string
			of   *v1.Estimate
		}{{"documents", c.Documents}, {"entries", c.Entries}, {"bytes", c.Bytes}, {"freed bytes", c.Frees}} {
			if e.of != nil {
				fmt.Fprintf(w, "%s: %s: %s (%s)\n", results[i].Name, e.what, estimateWord(e.of), e.of.Source)
			}
		}
		for _, why := range c.Unknown {
			fmt.Fprintf(w, "%s: unknown: %s\n", results[i].Name, why)
		}
	}
}

// rehearsedWord returns the outcome of a statement in a dry run.
func rehearsedWord(r *v1.StatementResult) string {
	switch {
	case r.State != index.Dropping && r.Existed:
		return "as it is"
	case r.State == index.Pending && !r.Deferred:
		return "built"
	}
	return resultWord(*r)
}

// placesWord returns the numbers of copies by indexer.
func placesWord(places []v1.Place) string {
	if len(places) == 0 {
		return "-"
	}
	words := make([]string, len(places))
	for i, p := range places {
		words[i] = fmt.Sprintf("%s %d", p.Indexer, len(p.Copies))
	}
	return strings.Join(words, ", ")
}
