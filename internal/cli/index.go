package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

const refWords = "BUCKET/NAME or ID"

func newIndex(s Streams) *cobra.Command {
	f := &serverFlags{}
	cmd := group("index", "Create, list, describe, build, alter, drop, scan and verify indexes, and show their figures",
		"  tidemark index list\n  tidemark index describe world/places_by_name",
		indexCreate(s, f), indexList(s, f), indexDescribe(s, f), indexBuild(s, f), indexAlter(s, f), indexDrop(s, f),
		indexScan(s, f), indexCount(s, f), indexStats(s, f), indexStatistics(s, f), indexVerify(s, f))
	f.add(cmd, s)
	return cmd
}

// ref converts an argument, an id or bucket/name, to a client reference.
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

// anIndex checks the arguments of commands that take one index: refWords, or bucket and name as two arguments.
func anIndex(cmd *cobra.Command, args []string) error {
	if len(args) == 1 || len(args) == 2 && !strings.Contains(args[0], "/") {
		return nil
	}
	return usage("%s takes one index, %s, got %d arguments", cmd.CommandPath(), refWords, len(args))
}

// refOf returns ref of arguments that anIndex has accepted.
func refOf(args []string) (string, error) { return ref(strings.Join(args, "/")) }

// createFlags build a create request, or read some from a file.
type createFlags struct {
	req                  v1.CreateRequest
	keys                 []string
	file, partitionBy    string
	collection           string
	partitions, replicas int
	autoSplit            bool
	wait                 waitFlags
	instead              insteadFlags
}

func indexCreate(s Streams, f *serverFlags) *cobra.Command {
	cf := &createFlags{}
	cmd := &cobra.Command{
		Use: "create {BUCKET NAME | --file FILE}", Short: "Create an index and wait until it is ready",
		Long: `Creates an index and waits until it is built, with progress on standard error.

--file takes the JSON of POST /v1/indexes: one object, several in a row, or an array of them. The indexes are created
in order; the first one that fails ends the command.`,
		Example: `  tidemark index create world by_country --key iso_country --key 'name DESC' --where 'kind = "airport"'
  tidemark index create world ids --primary
  tidemark index create world by_kind --key kind --key name --partition-by 'HASH(kind)'
  tidemark index create --file indexes.json --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error {
			requests, err := cf.requests(s, cmd, args)
			if err != nil {
				return err
			}
			var all []expression.Statement
			if cf.instead.print || cf.instead.dryRun {
				if all, err = createStatements(requests); err != nil {
					return err
				}
			}
			if cf.instead.print {
				return printStatements(s.Out, f.output, all)
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if cf.instead.dryRun {
					return rehearse(ctx, s, f.output, c, all)
				}
				return cf.run(ctx, s, f, c, requests)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&cf.keys, "key", nil, "a key expression, followed by DESC for descending order; repeat for "+
		"composite keys")
	fl.StringVar(&cf.req.Where, "where", "", "index only documents for which this expression is true")
	fl.BoolVar(&cf.req.IsPrimary, "primary", false, "index the document ids")
	fl.BoolVar(&cf.req.IfNotExists, "if-not-exists", false, "succeed if the index exists")
	fl.BoolVar(&cf.req.DeferBuild, "defer-build", false, "do not build it now, but with tidemark index build")
	fl.StringVar(&cf.partitionBy, "partition-by", "", "spread entries by key: \"HASH(expression, …)\" or "+
		"\"RANGE(leading key) VALUES (…)\" (default: by the document's id)")
	fl.IntVar(&cf.partitions, "partitions", 0, "number of partitions (0: the default)")
	fl.IntVar(&cf.replicas, "replicas", 0, "copies in addition to the first")
	fl.StringSliceVar(&cf.req.Nodes, "nodes", nil, "indexers that may hold the index")
	fl.BoolVar(&cf.autoSplit, "auto-split", true,
		"change the number of partitions automatically, by --split-above and --split-above-rate of the managers")
	collectionFlag(fl, &cf.collection)
	fl.StringVar(&cf.file, "file", "", "read the indexes to create from this JSON `FILE`, - for standard input")
	cf.instead.add(fl)
	cf.wait.add(fl)
	complete(cmd, "nodes", f.nodes())
	buckets := f.buckets()
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return noFiles(cmd, args, typed)
		}
		return buckets(cmd, args, typed)
	}
	return cmd
}

func createStatements(requests []v1.CreateRequest) (all []expression.Statement, err error) {
	for i := range requests {
		st, err := createStatement(&requests[i])
		if err != nil {
			return nil, err
		}
		all = append(all, st)
	}
	return all, nil
}

// check checks the values of flags for one index.
func (cf *createFlags) check() error {
	if cf.partitions < 0 || cf.partitions > 1024 || cf.replicas < 0 || cf.replicas > 16 {
		return usage("--partitions takes 0 (the default) to 1024, --replicas 0 to 16")
	}
	if len(cf.keys) == 0 && !cf.req.IsPrimary {
		return usage("specify what to index: --key EXPRESSION, repeated for more keys, or --primary for the document ids")
	}
	return nil
}

// requests returns the requests in the file, or the one that flags and arguments describe.
func (cf *createFlags) requests(s Streams, cmd *cobra.Command, args []string) ([]v1.CreateRequest, error) {
	if cf.file != "" {
		return cf.fromFile(s, cmd, args)
	}
	if len(args) != 2 {
		return nil, usage("%s takes BUCKET NAME, or --file, got %d arguments", cmd.CommandPath(), len(args))
	}
	if err := cf.check(); err != nil {
		return nil, err
	}
	req := cf.req
	req.Bucket, req.Name, req.Partitions, req.Replicas = args[0], args[1], uint16(cf.partitions), uint8(cf.replicas)
	if !cf.autoSplit {
		req.AutoSplit = &cf.autoSplit
	}
	var err error
	if req.Scope, req.Collection, err = splitCollection(cf.collection); err != nil {
		return nil, err
	}
	for _, k := range cf.keys {
		req.Keys = append(req.Keys, keyExpr(k))
	}
	if cf.partitionBy != "" {
		err = partitioned(&req, cf.partitionBy)
	}
	return []v1.CreateRequest{req}, err
}

// partitioned sets the partitioning from --partition-by.
func partitioned(req *v1.CreateRequest, by string) error {
	statement := expression.CreateIndex{Name: req.Name, Keyspace: index.InBucket(req.Bucket),
		IsPrimary: req.IsPrimary, Keys: req.Keys}
	all, err := expression.Parse(statement.String() + " PARTITION BY " + by)
	if err != nil {
		return usage("--partition-by: %v", err)
	}
	made, ok := all[0].(*expression.CreateIndex)
	if !ok || len(all) != 1 || made.Where != "" {
		return usage("--partition-by accepts only HASH(…) or RANGE(…) VALUES (…)")
	}
	req.PartitionBy = made.PartitionBy
	return nil
}

// fromFile reads complete definitions from the file; flags for parts of a definition are rejected.
func (cf *createFlags) fromFile(s Streams, cmd *cobra.Command, args []string) ([]v1.CreateRequest, error) {
	for _, other := range []string{"key", "where", "primary", "if-not-exists", "defer-build", "partition-by",
		"partitions", "replicas", "nodes", "collection", "auto-split"} {
		if cmd.Flags().Changed(other) {
			return nil, usage("--file has the whole definition: omit --%s", other)
		}
	}
	if len(args) > 0 {
		return nil, usage("--file has the whole definition: omit %s", strings.Join(args, " "))
	}
	return readJSON[v1.CreateRequest](s, cf.file)
}

// collectionFlag adds the flag for a collection of the bucket.
func collectionFlag(fl *pflag.FlagSet, to *string) {
	fl.StringVar(to, "collection", "", "the collection, as `SCOPE.COLLECTION` (default: the bucket's default collection)")
}

// splitCollection parses the value of collectionFlag; the default collection has empty names.
func splitCollection(text string) (scope, collection string, err error) {
	if text == "" {
		return "", "", nil
	}
	scope, collection, ok := strings.Cut(text, ".")
	if !ok || scope == "" || collection == "" || strings.Contains(collection, ".") {
		return "", "", usage("--collection takes SCOPE.COLLECTION, got %q", text)
	}
	k := index.KeyspaceOf("", scope, collection)
	return k.Scope, k.Collection, nil
}

func (cf *createFlags) run(ctx context.Context, s Streams, f *serverFlags, c *client.Client,
	requests []v1.CreateRequest) error {
	var made []v1.IndexInfo
	var building []index.ID
	for _, req := range requests {
		info, err := c.Create(ctx, req)
		if err != nil {
			if len(requests) > 1 {
				return fmt.Errorf("%s/%s (%d of %d are created): %w", req.Bucket, req.Name, len(made), len(requests), err)
			}
			return err
		}
		printNotices(s.Err, []v1.StatementResult{{Name: info.Name, Notices: info.Notices}})
		made = append(made, info)
		if !info.Deferred || info.State != index.Pending {
			building = append(building, info.ID)
		}
	}
	if cf.wait.wanted() {
		if err := waitReady(ctx, s, c, building); err != nil {
			return err
		}
		for i := range made {
			var err error
			if made[i], err = c.Index(ctx, made[i].ID.String()); err != nil {
				return err
			}
		}
	}
	return printIndexes(s.Out, f.output, v1.IndexList{Indexes: made})
}

// maxFile limits files of statements or requests, and standard input, in bytes.
const maxFile = 1 << 20

// readText reads a file, or standard input (-), of at most maxFile bytes, without the byte order mark that some
// editors put first.
func readText(s Streams, path string) ([]byte, error) {
	in, err := s.open(path)
	if err != nil {
		return nil, usage("--file: %v", err)
	}
	defer in.Close()
	b, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if len(b) > maxFile {
		return nil, usage("%s has more than %d bytes: split it", path, maxFile)
	}
	return bytes.TrimPrefix(b, []byte("\ufeff")), nil
}

// readJSON reads objects one after the other or in an array, as strictly as the managers do.
func readJSON[T any](s Streams, path string) (all []T, err error) {
	b, err := readText(s, path)
	if err != nil {
		return nil, err
	}
	if trimmed := bytes.TrimSpace(b); len(trimmed) > 0 && trimmed[0] == '[' {
		if err := rpc.ReadJSON(b, &all); err != nil {
			return nil, usage("%s: %v", path, err)
		}
		return all, nil
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, usage("%s: object %d: %v", path, len(all)+1, err)
		}
		var one T
		if err := rpc.ReadJSON(raw, &one); err != nil {
			return nil, usage("%s: object %d: %v", path, len(all)+1, err)
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil, usage("%s: the file is empty; want a JSON object", path)
	}
	return all, nil
}

// keyExpr parses an expression followed by ASC or DESC in any case.
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
	var ddl bool
	var every time.Duration
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List indexes", Args: noArgs,
		ValidArgsFunction: noFiles,
		Long: `Lists the indexes of all buckets or of one bucket.

--ddl prints statements for tidemark sql that create the same indexes again: CREATE INDEX for each, and BUILD INDEX for
indexes that were created with defer_build and have been built since.`,
		Example: `  tidemark index list --bucket world --output json
  tidemark index list --watch=5s
  tidemark index list --ddl > indexes.sql`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return repeat(cmd.Context(), s, every, func(ctx context.Context, w io.Writer) error {
				return f.do(ctx, func(ctx context.Context, c *client.Client) error {
					list, err := c.Indexes(ctx, bucket)
					if err != nil {
						return err
					}
					if ddl {
						all, err := recreate(list.Indexes)
						if err != nil {
							return err
						}
						return printStatements(w, f.output, all)
					}
					return printIndexes(w, f.output, list)
				})
			})
		}}
	cmd.Flags().StringVar(&bucket, "bucket", "", "list only the indexes of this bucket")
	cmd.Flags().BoolVar(&ddl, "ddl", false, "print the statements that create the indexes again")
	watchFlag(cmd.Flags(), &every)
	complete(cmd, "bucket", f.buckets())
	return cmd
}

func printIndexes(w io.Writer, output format, list v1.IndexList) error {
	return show(w, output, list, list.Indexes, func(t *tabwriter.Writer) {
		fmt.Fprintln(t, "ID\tBUCKET\tNAME\tSTATE\tPROGRESS\tENTRIES\tDEFINITION")
		shown := map[index.ID]bool{} // in the row of the index that they replace
		for _, i := range list.Indexes {
			if i.Split != nil {
				shown[i.Split.ID] = true
			}
		}
		for _, i := range list.Indexes {
			if shown[i.ID] {
				continue
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.0f%%\t%s\t%s\n", i.ID, i.Keyspace(), i.Name, stateWord(i), i.Progress,
				entriesOf(&i), i.Definition)
		}
		for _, i := range list.Indexes {
			remark(t, i.Reason, "%s/%s", i.Keyspace(), i.Name)
			for _, w := range i.WaitingFor {
				fmt.Fprintf(t, "\n%s/%s waits: %s\n", i.Keyspace(), i.Name, w)
			}
			if a := i.Availability; a != nil {
				remark(t, a.Why, "%s/%s is %s since %s", i.Keyspace(), i.Name, a.State, clockOf(a.SinceMS))
			}
			remark(t, i.Outdated, "%s/%s is outdated", i.Keyspace(), i.Name)
		}
	})
}

// stateWord returns a state for display; its reason is displayed elsewhere.
func stateWord(i v1.IndexInfo) string {
	switch {
	case i.State == index.Maintenance:
		word := i.State.String()
		if a := i.Availability; a != nil && a.State != "available" {
			word += ", " + a.State
		}
		if i.Outdated != "" {
			word += ", outdated"
		}
		if i.Split != nil {
			word += fmt.Sprintf(", being split %.0f%%", i.Split.Progress)
		}
		return word
	case i.Deferred && i.State == index.Pending:
		return "deferred"
	}
	if i.Replaces != 0 {
		return fmt.Sprintf("%s, to replace %s", i.State, i.Replaces)
	}
	return i.State.String()
}

func indexDescribe(s Streams, f *serverFlags) *cobra.Command {
	var every time.Duration
	var wait bool
	cmd := &cobra.Command{Use: "describe BUCKET/NAME|ID", Short: "Show one index in detail", Args: anIndex,
		ValidArgsFunction: f.indexes(false),
		Example: "  tidemark index describe world/by_name\n  tidemark index describe 7 --output json\n  tidemark index " +
			"describe world/by_name --wait",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := refOf(args)
			if err != nil {
				return err
			}
			return repeat(cmd.Context(), s, every, func(ctx context.Context, w io.Writer) error {
				return f.do(ctx, func(ctx context.Context, c *client.Client) error {
					info, err := c.Index(ctx, r)
					if err == nil && wait {
						if err = waitReady(ctx, s, c, []index.ID{info.ID}); err == nil {
							info, err = c.Index(ctx, r)
						}
					}
					if err != nil {
						return err
					}
					return printIndex(w, f.output, info, nodeNames(ctx, f.output, c))
				})
			})
		}}
	watchFlag(cmd.Flags(), &every)
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the index is ready")
	return cmd
}

func printIndex(w io.Writer, as format, info v1.IndexInfo, names map[index.NodeID]string) error {
	return show(w, as, info, []v1.IndexInfo{info}, func(t *tabwriter.Writer) {
		fmt.Fprintf(t, "id\t%s\nname\t%s\nbucket\t%s\nstate\t%s\nprogress\t%.0f%%\nentries\t%s\nbytes on "+
			"disk\t%d\npartitions\t%d\nreplicas\t%d\n",
			info.ID, info.Name, info.Keyspace(), stateWord(info), info.Progress, entriesOf(&info), info.DiskBytes,
			info.Partitions, info.Replicas)
		fmt.Fprintf(t, "created\t%s\nmodified_cas\t%d\ndefinition\t%s\n",
			time.UnixMilli(info.CreatedMS).UTC().Format(time.RFC3339), info.ModifiedCAS, info.Definition)
		printProblems(t, &info)
		if x := info.Split; x != nil {
			fmt.Fprintf(t, "split\tindex %s of %d slices is %s, %.0f%%: %s\n", x.ID, x.Partitions, x.State, x.Progress,
				x.Definition)
			rowIf(t, "split cause", x.Cause)
		}
		rowIf(t, "no split yet", info.SplitWaits)
		rowIf(t, "no merge yet", info.MergeWaits)
		if info.RequestedPartitions != 0 {
			fmt.Fprintf(t, "requested\t%d partitions; automatic splits have added more\n", info.RequestedPartitions)
		}
		if !info.AutoSplit {
			fmt.Fprintf(t, "auto_split\tfalse\n")
		}
		if info.Replaces != 0 {
			fmt.Fprintf(t, "replaces\tindex %s, when it is ready\n", info.Replaces)
		}
		rowIf(t, "split failed", info.SplitFailed)
		if info.ExpressionRules != 0 {
			fmt.Fprintf(t, "expression rules\t%d\n", info.ExpressionRules)
		}
		rowIf(t, "outdated", info.Outdated)
		if info.Faults != nil {
			fmt.Fprintf(t, "without entry\t%s\n", faultText(info.Faults))
		}
		if len(info.Copies) == 0 {
			return
		}
		printCopies(t, &info, names)
	})
}

// entriesOf formats the number of entries, with >= if it may be too low.
func entriesOf(i *v1.IndexInfo) string {
	if i.ItemsIncomplete {
		return fmt.Sprintf(">=%d", i.Items)
	}
	return fmt.Sprint(i.Items)
}

// printProblems prints what an index lacks or waits for.
func printProblems(t io.Writer, info *v1.IndexInfo) {
	rowIf(t, "reason", info.Reason)
	for _, w := range info.WaitingFor {
		fmt.Fprintf(t, "waits\t%s\n", w)
	}
	if a := info.Availability; a != nil {
		fmt.Fprintf(t, "availability\t%s since %s\n", a.State, clockOf(a.SinceMS))
		rowIf(t, "lacking", a.Why)
	}
}

// printCopies prints the place, size and load of an index's copies.
func printCopies(t io.Writer, info *v1.IndexInfo, names map[index.NodeID]string) {
	load := map[index.CopyID]v1.CopyLoad{}
	for _, l := range info.Load {
		load[l.Copy] = l
	}
	fmt.Fprintln(t, "\nCOPY\tSLICE\tREPLICA\tINDEXER\tSTATE\tENTRIES\tBYTES\tWRITTEN/S\tREAD/S")
	for _, p := range info.Copies {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s", p.ID, p.Slice, p.Replica, indexerName(names, p.Node), p.State)
		if l, ok := load[p.ID]; ok {
			fmt.Fprintf(t, "\t%d\t%d\t%d\t%d\n", l.Items, l.Bytes, l.WriteRate, l.ReadRate)
		} else {
			fmt.Fprintln(t, "\t-\t-\t-\t-")
		}
	}
}

func indexBuild(s Streams, f *serverFlags) *cobra.Command {
	var wait waitFlags
	var all bool
	var instead insteadFlags
	var file, collection string
	cmd := &cobra.Command{Use: "build {BUCKET NAME... | BUCKET --all | --file FILE}",
		Short: "Build deferred indexes and wait until they are ready",
		Long: `Builds deferred indexes of a bucket together, so that the bucket is read once for all of them, and waits until
they are ready. --file takes the JSON of POST /v1/indexes:build: {"bucket":"world","names":["a","b"]}.`,
		Example: `  tidemark index build world by_country by_name
  tidemark index build world --all --no-wait`,
		ValidArgsFunction: f.deferred(),
		RunE: func(cmd *cobra.Command, args []string) error {
			requests, err := buildRequests(s, cmd, args, all, file, collection)
			if err != nil {
				return err
			}
			if instead.print && !all {
				return printStatements(s.Out, f.output, buildStatements(requests))
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if all {
					if requests[0].Names, err = deferredNames(ctx, c, &requests[0]); err != nil {
						return err
					}
				}
				switch {
				case instead.print:
					return printStatements(s.Out, f.output, buildStatements(requests))
				case instead.dryRun:
					return rehearse(ctx, s, f.output, c, buildStatements(requests))
				}
				return runBuild(ctx, s, f, c, requests, wait.wanted())
			})
		}}
	cmd.Flags().BoolVar(&all, "all", false, "all deferred indexes of the bucket's collection")
	collectionFlag(cmd.Flags(), &collection)
	cmd.Flags().StringVar(&file, "file", "", "read the indexes to build from this JSON `FILE`, - for standard input")
	instead.add(cmd.Flags())
	wait.add(cmd.Flags())
	return cmd
}

func buildRequests(s Streams, cmd *cobra.Command, args []string, all bool,
	file, collection string) ([]v1.BuildRequest, error) {
	scope, collection, err := splitCollection(collection)
	switch {
	case err != nil:
		return nil, err
	case file != "" && (all || len(args) > 0 || collection != ""):
		return nil, usage("--file has the indexes to build: omit the arguments, --all and --collection")
	case file != "":
		return readJSON[v1.BuildRequest](s, file)
	case all && len(args) == 1, !all && len(args) > 1:
		return []v1.BuildRequest{{Bucket: args[0], Scope: scope, Collection: collection, Names: args[1:]}}, nil
	}
	return nil, usage("%s needs BUCKET and one or more names, or BUCKET --all, or --file", cmd.CommandPath())
}

func buildStatements(requests []v1.BuildRequest) (all []expression.Statement) {
	for _, r := range requests {
		if len(r.Names) > 0 {
			all = append(all, &expression.BuildIndex{Keyspace: index.KeyspaceOf(r.Bucket, r.Scope, r.Collection),
				Names: r.Names})
		}
	}
	return all
}

func deferredNames(ctx context.Context, c *client.Client, r *v1.BuildRequest) (names []string, err error) {
	list, err := c.Indexes(ctx, r.Bucket)
	for _, i := range list.Indexes {
		if i.Scope == r.Scope && i.Collection == r.Collection && i.Deferred && i.State == index.Pending {
			names = append(names, i.Name)
		}
	}
	return names, err
}

func runBuild(ctx context.Context, s Streams, f *serverFlags, c *client.Client, requests []v1.BuildRequest,
	wait bool) error {
	results := []v1.StatementResult{}
	for _, r := range requests {
		if len(r.Names) == 0 {
			fmt.Fprintf(s.Err, "bucket %s has no deferred index\n", r.Bucket)
			continue
		}
		some, err := c.BuildIn(ctx, r)
		if err != nil {
			return err
		}
		results = append(results, some...)
	}
	if wait {
		if err := waitResults(ctx, s, c, results); err != nil {
			return err
		}
	}
	return printResults(s.Out, f.output, results)
}

// dropped is the output of index drop for each index.
type dropped struct {
	Index   string `json:"index"`   // as in the argument
	Dropped bool   `json:"dropped"` // false: it did not exist (--if-exists)
}

func indexDrop(s Streams, f *serverFlags) *cobra.Command {
	d := &dropFlags{}
	cmd := &cobra.Command{Use: "drop BUCKET/NAME|ID...", Short: "Drop indexes", ValidArgsFunction: f.indexes(true),
		Long: `Drops one index, or with --yes several. On a terminal it asks for confirmation unless --yes is given. The name
can be used again immediately; the indexers remove the data when they receive the command. --wait waits for that.`,
		Example: "  tidemark index drop world/by_name\n  tidemark index drop world/a world/b --yes\n  tidemark index drop " +
			"world/by_name --if-exists --wait",
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := d.refs(s, cmd, args)
			if err != nil {
				return err
			}
			if d.dryRun {
				return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
					return d.rehearse(ctx, s, f.output, c, args, refs)
				})
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return d.run(ctx, s, f, c, args,
					refs)
			})
		}}
	cmd.Flags().BoolVar(&d.ifExists, "if-exists", false, "succeed if the index does not exist")
	cmd.Flags().Uint64Var(&d.ifMatch, "if-match", 0, "drop the index only if its modified_cas has this value")
	cmd.Flags().BoolVar(&d.yes, "yes", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&d.wait, "wait", false, "wait until the indexers have removed its data")
	cmd.Flags().BoolVar(&d.dryRun, "dry-run", false, "only report what would be dropped, and the freed space")
	return cmd
}

type dropFlags struct {
	ifMatch                     uint64
	ifExists, yes, wait, dryRun bool
}

func (d *dropFlags) refs(s Streams, cmd *cobra.Command, args []string) (refs []string, err error) {
	if len(args) == 0 {
		return nil, usage("%s takes %s, once or more", cmd.CommandPath(), refWords)
	}
	if len(args) > 1 && d.ifMatch != 0 {
		return nil, usage("--if-match is for one index")
	}
	for _, a := range args {
		r, err := ref(a)
		if err != nil {
			return nil, err
		}
		refs = append(refs, r)
	}
	switch {
	case d.dryRun:
		return refs, nil
	case len(args) == 1:
		return refs, ask(cmd.Context(), s, d.yes, "drop index "+args[0])
	}
	return refs, confirm(cmd.Context(), s, d.yes, fmt.Sprintf("drop %d indexes: %s", len(args),
		strings.Join(args, ", ")))
}

// rehearse prints what would be dropped, from a dry run of DROP INDEX.
func (d *dropFlags) rehearse(ctx context.Context, s Streams, as format, c *client.Client, args, refs []string) error {
	var all []expression.Statement
	for n, r := range refs {
		x, err := c.Index(ctx, r)
		switch {
		case err != nil && d.ifExists && notFound(err):
			fmt.Fprintln(s.Err, "there is no", args[n])
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", args[n], err)
		}
		all = append(all, &expression.DropIndex{Name: x.Name, Keyspace: index.KeyspaceOf(x.Bucket, x.Scope, x.Collection)})
	}
	return rehearse(ctx, s, as, c, all)
}

func (d *dropFlags) run(ctx context.Context, s Streams, f *serverFlags, c *client.Client, args, refs []string) error {
	results := []dropped{}
	var ids []index.ID
	for n, r := range refs {
		if d.wait {
			if info, err := c.Index(ctx, r); err == nil {
				ids = append(ids, info.ID)
			}
		}
		err := c.Drop(ctx, r, d.ifMatch)
		missing := d.ifExists && notFound(err)
		switch {
		case missing:
			fmt.Fprintln(s.Err, "there is no", args[n])
		case err != nil && n > 0:
			return fmt.Errorf("%s (dropped before it: %s): %w", args[n], strings.Join(args[:n], ", "), err)
		case err != nil:
			return err
		default:
			fmt.Fprintln(s.Err, "dropped", args[n])
		}
		results = append(results, dropped{Index: args[n], Dropped: !missing})
	}
	if err := waitGone(ctx, c, ids); err != nil {
		return err
	}
	return show(s.Out, f.output, map[string]any{"results": results}, results, func(*tabwriter.Writer) {})
}

func notFound(err error) bool {
	var p *wire.Problem
	return errors.As(err, &p) && p.Status == http.StatusNotFound
}

// waitGone waits until nothing of the indexes is left.
func waitGone(ctx context.Context, c *client.Client, ids []index.ID) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for _, id := range ids {
		for {
			_, err := c.Index(ctx, id.String())
			if notFound(err) {
				break
			}
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("the data of index %s is not removed yet: %w; the removal continues, see `tidemark index "+
					"describe %s`", id,
					ctx.Err(), id)
			case <-tick.C:
			}
		}
	}
	return nil
}
