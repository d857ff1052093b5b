package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/manager/api/v1"
)

func newSQL(s Streams) *cobra.Command {
	f := &serverFlags{}
	var file string
	var wait waitFlags
	var instead insteadFlags
	cmd := &cobra.Command{Use: "sql [STATEMENT]", Short: "Run DDL statements, from the argument, a file or standard input",
		Long: `Runs CREATE INDEX, BUILD INDEX, ALTER INDEX and DROP INDEX statements, separated by semicolons, in order. The
first one that fails ends the command; earlier statements are not undone. All statements are parsed before the first one
runs, so that a syntax error changes nothing. The command waits until the indexes that it creates or builds are ready.
With --dry-run each statement is checked as if those before it had run.`,
		Example: `  tidemark sql 'CREATE INDEX by_name ON world(name)'
  tidemark sql --file indexes.sql --dry-run
  tidemark index list --ddl | tidemark sql --server other:9520`,
		ValidArgsFunction: noFiles,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && file != "" {
				return usage("%s needs one statement (in quotes), or --file, or standard input", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := statementText(s, args, file)
			if err != nil {
				return err
			}
			if instead.print {
				all, err := expression.Parse(text)
				if err != nil {
					return inFile(file, fmt.Errorf("SYNTAX_ERROR: %w", err))
				}
				return printStatements(s.Out, f.output, all)
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if instead.dryRun {
					return inFile(file, rehearseText(ctx, s, f.output, c, text))
				}
				results, err := c.Statement(ctx, text)
				if err != nil {
					return inFile(file, err)
				}
				if err := wait.results(ctx, s, c, results); err != nil {
					return err
				}
				printNotices(s.Err, results)
				return printResults(s.Out, f.output, results)
			})
		}}
	f.add(cmd, s)
	cmd.Flags().StringVarP(&file, "file", "f", "", "read the statements from this `FILE`, - for standard input")
	instead.add(cmd.Flags())
	wait.add(cmd.Flags())
	return cmd
}

// inFile adds the file's name to an error.
func inFile(file string, err error) error {
	if err == nil || file == "" || file == standard {
		return err
	}
	return fmt.Errorf("%s: %w", file, err)
}

func statementText(s Streams, args []string, file string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	if file == "" {
		file = standard
		if isTerminal(s.In) {
			fmt.Fprintln(s.Err, "statements, then Ctrl-D:")
		}
	}
	b, err := readText(s, file)
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(string(b)) == "" {
		return "", usage("no statement: give one as an argument, in a file (--file) or on standard input")
	}
	return string(b), nil
}

// statement is the output of --ddl and --print.
type statement struct {
	Statement string `json:"statement"`
}

// printStatements prints canonical statements, each with a semicolon.
func printStatements(w io.Writer, as format, all []expression.Statement) error {
	list := []statement{}
	for _, s := range all {
		list = append(list, statement{s.String()})
	}
	return show(w, as, map[string]any{"statements": list}, list, func(t *tabwriter.Writer) {
		for _, s := range list {
			fmt.Fprintf(t, "%s;\n", s.Statement)
		}
	})
}

// createOf parses an index's definition, a CREATE INDEX.
func createOf(i *v1.IndexInfo) (*expression.CreateIndex, error) {
	some, err := expression.Parse(i.Definition)
	if err != nil {
		return nil, fmt.Errorf("this version cannot read the definition of %s/%s (use a newer one): %s: %w",
			i.Bucket, i.Name, i.Definition, err)
	}
	if len(some) == 1 {
		if create, is := some[0].(*expression.CreateIndex); is {
			return create, nil
		}
	}
	return nil, fmt.Errorf("the definition of %s/%s is not one CREATE INDEX: %s", i.Bucket, i.Name, i.Definition)
}

// recreate returns the statements that create the same indexes again. Indexes that were created deferred and then
// built are built, all of a bucket at once.
func recreate(list []v1.IndexInfo) (all []expression.Statement, err error) {
	builds := map[index.Keyspace][]string{}
	var order []index.Keyspace
	for _, i := range list {
		if i.State == index.Dropping || i.Replaces != 0 {
			continue
		}
		create, err := createOf(&i)
		if err != nil {
			return nil, err
		}
		all = append(all, create)
		if create.Definition().Deferred && (i.State != index.Pending || !i.Deferred) {
			if !slices.Contains(order, create.Keyspace) {
				order = append(order, create.Keyspace)
			}
			builds[create.Keyspace] = append(builds[create.Keyspace], i.Name)
		}
	}
	for _, k := range order {
		for names := range slices.Chunk(builds[k], expression.MaxNodes) {
			all = append(all, &expression.BuildIndex{Keyspace: k, Names: names})
		}
	}
	return all, nil
}

// createStatement converts a create request to a statement; requests that a statement cannot express are rejected.
func createStatement(r *v1.CreateRequest) (expression.Statement, error) {
	s := &expression.CreateIndex{Name: r.Name, Keyspace: index.KeyspaceOf(r.Bucket, r.Scope, r.Collection),
		IsPrimary: r.IsPrimary, IfNotExists: r.IfNotExists, Keys: r.Keys, Where: r.Where, PartitionBy: r.PartitionBy}
	s.With.Nodes, s.With.AutoSplit = r.Nodes, r.AutoSplit
	if r.DeferBuild {
		s.With.DeferBuild = &r.DeferBuild
	}
	if n := int(r.Partitions); n != 0 {
		s.With.NumPartition = &n
	}
	if n := int(r.Replicas); n != 0 {
		s.With.NumReplica = &n
	}
	parsed, err := expression.Parse(s.String())
	if err != nil {
		return nil, fmt.Errorf("BAD_DEFINITION: %s/%s: %w", r.Bucket, r.Name, err)
	}
	if len(parsed) != 1 {
		return nil, fmt.Errorf("BAD_DEFINITION: %s/%s: a key or predicate holds a semicolon", r.Bucket, r.Name)
	}
	return parsed[0], nil
}

// waitFlags set whether to wait until indexes are ready, which is the default.
type waitFlags struct{ wait, noWait bool }

func (w *waitFlags) add(fl *pflag.FlagSet) {
	fl.BoolVar(&w.wait, "wait", true, "wait until the indexes are ready, at most for --timeout")
	fl.BoolVar(&w.noWait, "no-wait", false, "do not wait until the indexes are ready")
}

func (w *waitFlags) wanted() bool { return w.wait && !w.noWait }

// building returns the indexes of the results that will become ready by themselves, without those that a later
// statement of the same text has dropped.
func building(results []v1.StatementResult) (ids []index.ID) {
	last := map[index.ID]int{}
	for n, r := range results {
		last[r.ID] = n
	}
	for n, r := range results {
		if last[r.ID] != n {
			continue
		}
		if r.State.ToBeReady() && !(r.State == index.Pending && r.Deferred) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// results waits like waitResults, if requested.
func (w *waitFlags) results(ctx context.Context, s Streams, c *client.Client, results []v1.StatementResult) error {
	if !w.wanted() {
		return nil
	}
	return waitResults(ctx, s, c, results)
}

// waitResults waits until the indexes built by the statements are ready, and updates the results.
func waitResults(ctx context.Context, s Streams, c *client.Client, results []v1.StatementResult) error {
	ids := building(results)
	if err := waitReady(ctx, s, c, ids); err != nil {
		return err
	}
	for i := range results {
		if slices.Contains(ids, results[i].ID) {
			results[i].State = index.Maintenance
		}
	}
	return nil
}

// printNotices prints the notices of statements.
func printNotices(w io.Writer, results []v1.StatementResult) {
	for _, r := range results {
		for _, notice := range r.Notices {
			fmt.Fprintf(w, "notice: %s: %s\n", r.Name, notice)
		}
	}
}

func printResults(w io.Writer, output format, results []v1.StatementResult) error {
	return show(w, output, v1.StatementReply{Results: results}, results, func(t *tabwriter.Writer) {
		fmt.Fprintln(t, "ID\tBUCKET\tNAME\tSTATE\tCAS")
		for _, r := range results {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\n", r.ID, r.Keyspace(), r.Name, resultWord(r), r.CAS)
		}
	})
}

// resultWord returns the outcome of a statement.
func resultWord(r v1.StatementResult) string {
	switch {
	case r.State == index.Dropping && r.Existed:
		return "did not exist"
	case r.State == index.Dropping:
		return "dropped"
	case r.Deferred && r.State == index.Pending:
		return "deferred"
	}
	return r.State.String()
}

// waitReady waits with a progress bar until the indexes are ready.
func waitReady(ctx context.Context, s Streams, c *client.Client, ids []index.ID) error {
	if len(ids) == 0 {
		return nil
	}
	bar := newBar(s.Err, "building")
	c.Stalled = bar.note
	err := c.WaitReady(ctx, ids, bar.set)
	bar.done(err == nil)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w; the build continues, see `tidemark index list`", err)
	}
	return err
}
