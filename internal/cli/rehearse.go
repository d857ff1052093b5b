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

// insteadFlags are what a command with statements may do instead of running them.
type insteadFlags struct{ print, dryRun bool }

func (i *insteadFlags) add(fl *pflag.FlagSet) {
	fl.BoolVar(&i.dryRun, "dry-run", false, "ask the cluster what it would do and where copies would lie, and do nothing")
	fl.BoolVar(&i.print, "print", false, "check the text only, without a cluster, and print the statements that it would "+
		"run")
}

// rehearse prints what the cluster would do.
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
	fmt.Fprintln(s.Err, "a dry run: nothing was done")
	return printRehearsal(s.Out, as, results)
}

func printRehearsal(w io.Writer, as format, results []v1.StatementResult) error {
	return show(w, as, v1.StatementReply{DryRun: true, Results: results}, results, func(t *tabwriter.Writer) {
		fmt.Fprintln(t, "BUCKET\tNAME\tWOULD BE\tMOVES\tCOPIES")
		for i := range results {
			r := &results[i]
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", r.Keyspace(), r.Name, rehearsedWord(r), r.Moves, placesWord(r.Places))
		}
	})
}

// rehearsedWord is what a statement would come to.
func rehearsedWord(r *v1.StatementResult) string {
	switch {
	case r.State != index.Dropping && r.Existed:
		return "as it is"
	case r.State == index.Pending && !r.Deferred:
		return "built"
	}
	return resultWord(*r)
}

// placesWord counts copies by indexer.
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
