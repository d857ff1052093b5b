package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/index"
)

func newIndex(s Streams) *cobra.Command {
	f := &serverFlags{}
	cmd := &cobra.Command{Use: "index", Short: "Create, list, describe, build, drop and scan indexes", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	f.add(cmd, s)
	cmd.AddCommand(indexCreate(s, f), indexList(s, f), indexDescribe(s, f), indexBuild(s, f), indexDrop(s, f), indexScan(s, f), indexCount(s, f))
	return cmd
}

// ref turns what people write, an id or bucket/name, into a client reference.
func ref(arg string) (string, error) {
	bucket, name, ok := strings.Cut(arg, "/")
	if !ok {
		if _, err := index.ParseID(arg); err != nil {
			return "", usage("index %q: want bucket/name or an id", arg)
		}
		return arg, nil
	}
	if bucket == "" || name == "" {
		return "", usage("index %q: want bucket/name or an id", arg)
	}
	return client.Ref(bucket, name), nil
}

func indexCreate(s Streams, f *serverFlags) *cobra.Command {
	var req client.CreateRequest
	var keys []string
	var noWait bool
	var partitions, replicas int
	cmd := &cobra.Command{
		Use: "create BUCKET NAME", Short: "Create an index and wait until it is ready",
		Example: `  tidemark index create world by_country --key iso_country --key 'name DESC' --where 'kind = "airport"'
  tidemark index create world ids --primary`,
		Args: exactArgs("BUCKET", "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			if partitions < 0 || partitions > 1024 || replicas < 0 || replicas > 16 {
				return usage("--partitions takes 0 (the default) to 1024, --replicas 0 to 16")
			}
			req.Bucket, req.Name, req.Partitions, req.Replicas = args[0], args[1], uint16(partitions), uint8(replicas)
			for _, k := range keys {
				req.Keys = append(req.Keys, keyExpr(k))
			}
			info, err := c.Create(ctx, req)
			if err != nil {
				return err
			}
			if !noWait && !req.DeferBuild {
				if err := waitReady(ctx, s, c, []index.ID{info.ID}); err != nil {
					return err
				}
				if info, err = c.Index(ctx, info.ID.String()); err != nil {
					return err
				}
			}
			return printIndexes(s.Out, f.output, client.IndexList{Indexes: []client.IndexInfo{info}})
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "a key expression, with DESC behind it for descending order; repeat for composite keys")
	cmd.Flags().StringVar(&req.Where, "where", "", "only documents for which this is true")
	cmd.Flags().BoolVar(&req.IsPrimary, "primary", false, "index the document ids")
	cmd.Flags().BoolVar(&req.IfNotExists, "if-not-exists", false, "succeed when it exists")
	cmd.Flags().BoolVar(&req.DeferBuild, "defer-build", false, "build later, with index build")
	cmd.Flags().IntVar(&partitions, "partitions", 0, "number of partitions (0: the default)")
	cmd.Flags().IntVar(&replicas, "replicas", 0, "copies beside the first")
	cmd.Flags().StringSliceVar(&req.Nodes, "nodes", nil, "indexers that may hold it")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until it is ready")
	return cmd
}

// keyExpr reads an expression with ASC or DESC, in any case, behind it.
func keyExpr(text string) index.KeyExpr {
	k := index.KeyExpr{Expr: strings.TrimSpace(text)}
	at := strings.LastIndexAny(k.Expr, " \t")
	if at < 0 {
		return k
	}
	switch strings.ToUpper(k.Expr[at+1:]) {
	case "DESC":
		return index.KeyExpr{Expr: strings.TrimSpace(k.Expr[:at]), Desc: true}
	case "ASC":
		return index.KeyExpr{Expr: strings.TrimSpace(k.Expr[:at])}
	}
	return k
}

func indexList(s Streams, f *serverFlags) *cobra.Command {
	var bucket string
	cmd := &cobra.Command{Use: "list", Short: "List indexes", Args: noArgs, Example: "  tidemark index list --bucket world --output json", RunE: func(cmd *cobra.Command, _ []string) error {
		c, ctx, cancel, err := f.client(cmd.Context())
		if err != nil {
			return err
		}
		defer cancel()
		defer c.Close()
		list, err := c.Indexes(ctx, bucket)
		if err != nil {
			return err
		}
		return printIndexes(s.Out, f.output, list)
	}}
	cmd.Flags().StringVar(&bucket, "bucket", "", "only this bucket's")
	return cmd
}

func printIndexes(w io.Writer, output string, list client.IndexList) error {
	switch output {
	case "json":
		return printJSON(w, list, false)
	case "jsonl":
		for _, i := range list.Indexes {
			if err := printJSON(w, i, true); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tBUCKET\tNAME\tSTATE\tPROGRESS\tENTRIES\tDEFINITION")
	for _, i := range list.Indexes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.0f%%\t%d\t%s\n", i.ID, i.Bucket, i.Name, stateWord(i), i.Progress, i.Items, i.Definition)
	}
	return t.Flush()
}

// stateWord is what people see of a state.
func stateWord(i client.IndexInfo) string {
	switch {
	case i.State == index.Maintenance:
		return "ready"
	case i.Deferred && i.State == index.Pending:
		return "deferred"
	case i.State == index.Error:
		return "error: " + i.Reason
	}
	return i.State.String()
}

func indexDescribe(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "describe BUCKET/NAME|ID", Short: "Show all about one index", Example: "  tidemark index describe world/by_name", Args: exactArgs("BUCKET/NAME or ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := ref(args[0])
			if err != nil {
				return err
			}
			c, ctx, cancel, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			info, err := c.Index(ctx, r)
			if err != nil {
				return err
			}
			if f.output != "table" {
				return printJSON(s.Out, info, f.output == "jsonl")
			}
			t := tabwriter.NewWriter(s.Out, 2, 0, 2, ' ', 0)
			fmt.Fprintf(t, "id\t%s\nname\t%s\nbucket\t%s\nstate\t%s\nprogress\t%.0f%%\nentries\t%d\nbytes on disk\t%d\npartitions\t%d\nreplicas\t%d\ndefinition\t%s\n",
				info.ID, info.Name, info.Bucket, stateWord(info), info.Progress, info.Items, info.DiskBytes, info.Partitions, info.Replicas, info.Definition)
			for _, p := range info.Copies {
				fmt.Fprintf(t, "copy %s\tslice %d, replica %d, node %d, %s\n", p.ID, p.Slice, p.Replica, p.Node, p.State)
			}
			return t.Flush()
		}}
}

func indexBuild(s Streams, f *serverFlags) *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{Use: "build BUCKET NAME...", Short: "Build deferred indexes and wait until they are ready",
		Example: "  tidemark index build world by_country by_name",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("%s takes BUCKET and one or more names", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			results, err := c.Build(ctx, args[0], args[1:]...)
			if err != nil {
				return err
			}
			var ids []index.ID
			for _, r := range results {
				ids = append(ids, r.ID)
			}
			if !noWait {
				if err := waitReady(ctx, s, c, ids); err != nil {
					return err
				}
			}
			return printResults(s.Out, f.output, results)
		}}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until they are ready")
	return cmd
}

func indexDrop(s Streams, f *serverFlags) *cobra.Command {
	var ifMatch uint64
	var ifExists bool
	cmd := &cobra.Command{Use: "drop BUCKET/NAME|ID", Short: "Drop an index", Args: exactArgs("BUCKET/NAME or ID"),
		Example: "  tidemark index drop world/by_name\n  tidemark index drop world/by_name --if-exists",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := ref(args[0])
			if err != nil {
				return err
			}
			c, ctx, cancel, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			var p *client.Error
			if err := c.Drop(ctx, r, ifMatch); ifExists && errors.As(err, &p) && p.Status == http.StatusNotFound {
				_, err = fmt.Fprintln(s.Err, "there is no", args[0])
				return err
			} else if err != nil {
				return err
			}
			_, err = fmt.Fprintln(s.Err, "dropped", args[0])
			return err
		}}
	cmd.Flags().BoolVar(&ifExists, "if-exists", false, "succeed when it does not exist")
	cmd.Flags().Uint64Var(&ifMatch, "if-match", 0, "only if its modified_cas is this")
	return cmd
}

// scanFlags make a scan request.
type scanFlags struct {
	equal, low, high, inclusion, consistency string
	tokens                                   []string
	limit                                    int
	reverse, timestamp                       bool
}

func (sf *scanFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&sf.equal, "equal", "", `JSON array: entries that begin with these values, as '["FR"]'`)
	cmd.Flags().StringVar(&sf.low, "low", "", "JSON array: lower bound")
	cmd.Flags().StringVar(&sf.high, "high", "", "JSON array: upper bound")
	cmd.Flags().StringVar(&sf.inclusion, "inclusion", "both", "which bounds belong to the range: both, low, high or neither")
	cmd.Flags().StringVar(&sf.consistency, "consistency", "any", "any (newest stability timestamp), session (all that KV has now) or at_plus (all up to the tokens)")
	cmd.Flags().StringArrayVar(&sf.tokens, "token", nil, "a `TOKEN` as kv set and kv delete print it: the scan shows that write (at_plus); repeat for more")
	cmd.Flags().IntVar(&sf.limit, "limit", 0, "most rows, 0 for all")
	cmd.Flags().BoolVar(&sf.reverse, "reverse", false, "from the end of the index to its start")
	cmd.Flags().BoolVar(&sf.timestamp, "timestamp", false, "print the vector of the scan's timestamp to standard error")
}

func (sf *scanFlags) request() (client.ScanRequest, error) {
	req := client.ScanRequest{Limit: sf.limit, Consistency: sf.consistency, Reverse: sf.reverse, WantTimestamp: sf.timestamp}
	equal, err := jsonArray("equal", sf.equal)
	if err != nil {
		return req, err
	}
	low, err := jsonArray("low", sf.low)
	if err != nil {
		return req, err
	}
	high, err := jsonArray("high", sf.high)
	if err != nil {
		return req, err
	}
	req.Equal = equal
	for _, text := range sf.tokens {
		var t client.Token
		if err := json.Unmarshal([]byte(text), &t); err != nil {
			return req, usage(`--token %s: want what kv set printed, such as '{"vbucket":68,"vbuuid":"93034431042923","seqno":73}': %v`, text, err)
		}
		req.Tokens, req.Consistency = append(req.Tokens, t), "at_plus"
	}
	if low != nil || high != nil {
		req.Range = &client.Range{Low: low, High: high, Inclusion: sf.inclusion}
	}
	return req, nil
}

func jsonArray(flag, text string) ([]json.RawMessage, error) {
	if text == "" {
		return nil, nil
	}
	var a []json.RawMessage
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil, usage(`--%s %s: want a JSON array such as '["FR", 10]': %v`, flag, text, err)
	}
	return a, nil
}

func indexScan(s Streams, f *serverFlags) *cobra.Command {
	sf := &scanFlags{}
	cmd := &cobra.Command{Use: "scan BUCKET/NAME|ID", Short: "Scan an index",
		Example: `  tidemark index scan world/airports_by_country --equal '["FR"]' --limit 5
  tidemark index scan world/airports_by_elevation --low '[3000]' --consistency session`,
		Args: exactArgs("BUCKET/NAME or ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := sf.request()
			if err != nil {
				return err
			}
			r, err := ref(args[0])
			if err != nil {
				return err
			}
			c, ctx, cancel, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			end, err := printScan(ctx, s, c, r, req, f.output)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.Err, "%d rows at timestamp %s\n", end.Rows, end.Timestamp.Hash)
			if sf.timestamp {
				return printJSON(s.Err, end.Timestamp.Vector, true)
			}
			return nil
		}}
	sf.add(cmd)
	return cmd
}

// printScan writes the rows of a scan and gives its end.
func printScan(ctx context.Context, s Streams, c *client.Client, r string, req client.ScanRequest, output string) (client.ScanEnd, error) {
	rows, err := c.Scan(ctx, r, req)
	if err != nil {
		return client.ScanEnd{}, err
	}
	defer rows.Close()
	table := output == "table"
	t := tabwriter.NewWriter(s.Out, 2, 0, 2, ' ', 0)
	if table {
		fmt.Fprintln(t, "KEY\tID")
	}
	for n := 1; rows.Next(); n++ {
		row := rows.Row()
		if !table {
			if err := printJSON(s.Out, row, true); err != nil {
				return client.ScanEnd{}, err
			}
			continue
		}
		var key strings.Builder
		for i, k := range row.Key {
			if i > 0 {
				key.WriteString(", ")
			}
			key.Write(k)
		}
		fmt.Fprintf(t, "%s\t%s\n", key.String(), row.ID)
		if n%1000 == 0 { // a table of a million rows is not kept in memory
			if err := t.Flush(); err != nil {
				return client.ScanEnd{}, err
			}
		}
	}
	if err := t.Flush(); err != nil {
		return client.ScanEnd{}, err
	}
	return rows.End()
}

func indexCount(s Streams, f *serverFlags) *cobra.Command {
	sf := &scanFlags{}
	cmd := &cobra.Command{Use: "count BUCKET/NAME|ID", Short: "Count the entries of an index",
		Example: `  tidemark index count world/by_country --equal '["FR"]' --consistency session`, Args: exactArgs("BUCKET/NAME or ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := sf.request()
			if err != nil {
				return err
			}
			r, err := ref(args[0])
			if err != nil {
				return err
			}
			c, ctx, cancel, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			n, err := c.Count(ctx, r, req)
			if err != nil {
				return err
			}
			if f.output != "table" {
				return printJSON(s.Out, n, f.output == "jsonl")
			}
			_, err = fmt.Fprintln(s.Out, n.Count)
			return err
		}}
	sf.add(cmd)
	return cmd
}

func newSQL(s Streams) *cobra.Command {
	f := &serverFlags{}
	var file string
	var noWait bool
	cmd := &cobra.Command{Use: "sql [STATEMENT]", Short: "Run DDL statements, from the argument, a file or standard input",
		Example: `  tidemark sql 'CREATE INDEX by_name ON world(name)'
  tidemark sql < indexes.sql`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && file != "" {
				return usage("%s takes one statement (in quotes), or --file, or standard input", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := statementText(s, args, file)
			if err != nil {
				return err
			}
			c, ctx, cancel, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			results, err := c.Statement(ctx, text)
			if err != nil {
				return err
			}
			if !noWait {
				if err := waitReady(ctx, s, c, building(results)); err != nil {
					return err
				}
			}
			return printResults(s.Out, f.output, results)
		}}
	f.add(cmd, s)
	cmd.Flags().StringVar(&file, "file", "", "read the statements from this file")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until created indexes are ready")
	return cmd
}

// maxStatements is the most text that is read from a file or standard input, in bytes.
const maxStatements = 1 << 20

func statementText(s Streams, args []string, file string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	in := s.In
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return "", usage("--file: %v", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxStatements+1))
	switch {
	case err != nil:
		return "", err
	case len(b) > maxStatements:
		return "", usage("more than %d bytes of statements", maxStatements)
	case strings.TrimSpace(string(b)) == "":
		return "", usage("no statement: give one as an argument, in a file (--file) or on standard input")
	}
	return string(b), nil
}

// building lists the indexes among the results that will become ready by themselves: not those that a later statement
// of the same text has dropped.
func building(results []client.StatementResult) (ids []index.ID) {
	last := map[index.ID]int{}
	for n, r := range results {
		last[r.ID] = n
	}
	for n, r := range results {
		if last[r.ID] != n {
			continue
		}
		if r.State == index.Pending && !r.Deferred || r.State == index.Backfill {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func printResults(w io.Writer, output string, results []client.StatementResult) error {
	if output != "table" {
		return printJSON(w, client.StatementReply{Results: results}, output == "jsonl")
	}
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tBUCKET\tNAME\tSTATE\tCAS")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\n", r.ID, r.Bucket, r.Name, r.State, r.CAS)
	}
	return t.Flush()
}

// waitReady waits with a bar until the indexes are ready.
func waitReady(ctx context.Context, s Streams, c *client.Client, ids []index.ID) error {
	if len(ids) == 0 {
		return nil
	}
	bar := newBar(s.Err, "building")
	err := c.WaitReady(ctx, ids, bar.set)
	bar.done(err == nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w; the build goes on, see `tidemark index list`", err)
	}
	return err
}
