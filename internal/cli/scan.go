package cli

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
)

// scanFlags build a scan request.
type scanFlags struct {
	equal, low, high, inclusion, consistency string
	tokens, ranges                           []string
	vectors                                  string
	limit, offset                            int
	reverse, timestamp, distinct, explain    bool
	project                                  string
	where                                    []string
	stability, at, session, cursor           string
	pages, newer                             bool
	groups                                   groupFlags
}

func (sf *scanFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&sf.equal, "equal", "", `JSON array: entries that begin with these values, like '["FR"]'`)
	cmd.Flags().StringVar(&sf.low, "low", "", "JSON array: lower bound")
	cmd.Flags().StringVar(&sf.high, "high", "", "JSON array: upper bound")
	cmd.Flags().StringVar(&sf.inclusion, "inclusion", "both", "which bounds belong to the range: both, low, high or "+
		"neither")
	cmd.Flags().StringArrayVar(&sf.ranges, "range", nil,
		`a range as a JSON object, '{"low":["FR"],"high":["FR"],"inclusion":"both"}', with all members optional; `+
			"repeat for more: a row in several ranges is returned once")
	cmd.Flags().StringVar(&sf.consistency, "consistency", "any", "any (newest stability timestamp), session "+
		"(everything that KV has now) or at_plus (everything up to the tokens)")
	cmd.Flags().StringArrayVar(&sf.tokens, "token", nil, "a `TOKEN` that kv set or kv delete printed: the scan shows "+
		"that write (at_plus); repeat for more")
	cmd.Flags().StringVar(&sf.vectors, "scan-vector", "",
		`tokens as SDKs of Couchbase write them, '{"BUCKET":{"68":[73,"93034431042923"]}}': vbucket, seqno, vbuuid (at_plus)`)
	cmd.Flags().IntVar(&sf.limit, "limit", 0, "maximum number of rows; 0: all")
	cmd.Flags().IntVar(&sf.offset, "offset", 0, "number of rows to skip")
	cmd.Flags().BoolVar(&sf.distinct, "distinct", false, "return one of the rows with the same key, or the same --project")
	cmd.Flags().StringVar(&sf.project, "project", "", "JSON array: the components of the key to return, from 0, like "+
		"'[0]'; '[]': none")
	cmd.Flags().StringArrayVar(&sf.where, "where", nil, `a condition on one component of the key as a JSON object, `+
		`'{"component":1,"equal":"GB"}', '{"component":1,"in":["GB","FR"]}' or '{"component":1,"low":10,"high":20,`+
		`"inclusion":"low"}'; repeat for more: rows must meet all of them`)
	cmd.Flags().BoolVar(&sf.reverse, "reverse", false, "scan from the end of the index to its start")
	cmd.Flags().BoolVar(&sf.timestamp, "timestamp", false, "print the vector of the scan's timestamp to standard error")
	cmd.Flags().BoolVar(&sf.explain, "explain", false, "print to standard error how the scan ran: what it waited "+
		"for, and which indexer read which slices")
	cmd.Flags().StringVar(&sf.stability, "stability", "scan", "scan (all rows of one timestamp), none (each 10,000 rows "+
		"of the newest timestamp), or query (one timestamp, kept for --at)")
	cmd.Flags().StringVar(&sf.at, "at", "", "`ID` of the timestamp of an earlier scan with --stability query: show the "+
		"same state")
	cmd.Flags().StringVar(&sf.session, "session-token", "", "`TOKEN` that an earlier scan or count printed: show no "+
		"older state, and print the next token to standard error ('new': only print one)")
	if cmd.Name() == "scan" {
		sf.groups.add(cmd)
		cmd.Flags().BoolVar(&sf.pages, "pages", false, "after --limit rows, print a cursor for the next page of the same "+
			"state")
		cmd.Flags().StringVar(&sf.cursor, "cursor", "", "`CURSOR` of the previous page: scan the next page, of the same "+
			"state")
		cmd.Flags().BoolVar(&sf.newer, "newer", false, "continue after --cursor in the newest state")
	} else {
		sf.groups.add(cmd) // only for an error that names the command for groups
		for _, name := range []string{"group-by", "aggregate"} {
			cmd.Flags().Lookup(name).Hidden = true
		}
	}
	complete(cmd, "stability", fixed("scan", "none", "query"))
	complete(cmd, "inclusion", fixed("both", "low", "high", "neither"))
	complete(cmd, "consistency", fixed("any", "session", "at_plus"))
}

func (sf *scanFlags) request() (v1.ScanRequest, error) {
	if sf.limit < 0 {
		return v1.ScanRequest{}, usage("--limit %d: want 0 (all) or more", sf.limit)
	}
	if sf.offset < 0 {
		return v1.ScanRequest{}, usage("--offset %d: want 0 or more", sf.offset)
	}
	req := v1.ScanRequest{Limit: sf.limit, Consistency: sf.consistency, Reverse: sf.reverse,
		WantTimestamp: sf.timestamp, Explain: sf.explain,
		Offset: sf.offset, Distinct: sf.distinct, Stability: sf.stability, Timestamp: sf.at, Session: sf.session,
		WantCursor: sf.pages, Cursor: sf.cursor, Newer: sf.newer}
	if sf.session == newSession {
		req.Session = ""
	}
	if sf.at != "" {
		req.Stability = "query"
	}
	if sf.project != "" {
		if err := json.Unmarshal([]byte(sf.project), &req.Project); err != nil {
			return req, usage(`--project %s: want a JSON array of numbers such as '[0, 2]': %s`, sf.project,
				rpc.ExplainJSON([]byte(sf.project), 0, err))
		}
	}
	if err := sf.readBounds(&req); err != nil {
		return req, err
	}
	if err := sf.readTokens(&req); err != nil {
		return req, err
	}
	if err := sf.readRanges(&req); err != nil {
		return req, err
	}
	if given := sf.given(); len(given) > 1 {
		return req, usage("%s exclude each other", strings.Join(given, " and "))
	}
	return req, nil
}

// readBounds parses --equal, --low and --high.
func (sf *scanFlags) readBounds(req *v1.ScanRequest) error {
	between := v1.Range{Inclusion: sf.inclusion}
	for _, a := range []struct {
		flag, text string
		values     *[]json.RawMessage
	}{{"equal", sf.equal, &req.Equal}, {"low", sf.low, &between.Low}, {"high", sf.high, &between.High}} {
		var err error
		if *a.values, err = jsonArray(a.flag, a.text); err != nil {
			return err
		}
	}
	if between.Low != nil || between.High != nil {
		req.Range = &between
	}
	return nil
}

// readRanges parses the ranges and conditions that are given as objects.
func (sf *scanFlags) readRanges(req *v1.ScanRequest) (err error) {
	const example = `{"low":["FR"],"high":["GB"],"inclusion":"low"}`
	if req.Ranges, err = objects[v1.Range]("range", example, sf.ranges); err != nil {
		return err
	}
	req.Where, err = objects[v1.Condition]("where", `{"component":1,"low":10}`, sf.where)
	return err
}

// objects parses the values of a repeatable flag.
func objects[T any](flag, example string, texts []string) (all []T, err error) {
	for _, text := range texts {
		var x T
		if err := strictJSON(text, &x); err != nil {
			return nil, usage(`--%s %s: want an object such as '%s': %v`, flag, text, example, err)
		}
		all = append(all, x)
	}
	return all, nil
}

// newSession is the value of --session-token that starts a session.
const newSession = "new"

// printSession prints the session's token, if requested, and which data read before was lost.
func (sf *scanFlags) printSession(w io.Writer, seen v1.ScanSeen) {
	if seen.SessionLost != "" {
		fmt.Fprintf(w, "some of the data read before no longer exists: %s. The rows show all that KV has\n", seen.SessionLost)
	}
	if sf.session != "" {
		fmt.Fprintf(w, "to read nothing older from now on: --session-token %s\n", seen.Session)
	}
}

// printMore prints how to get the next page.
func printMore(w io.Writer, m v1.ScanMore) {
	switch {
	case m.Cursor != "":
		fmt.Fprintf(w, "the next page: --cursor %s\n", m.Cursor)
	case m.More:
		fmt.Fprintln(w, "more rows follow, but the last one is too long for a cursor: continue with --low or --high")
	}
}

// printEmpty names the bounds of a request between which no key can lie. The API accepts them, because programs
// compute bounds; who types them has most often exchanged them.
func (sf *scanFlags) printEmpty(w io.Writer, req *v1.ScanRequest) {
	name := func(flag string, low, high []json.RawMessage, inclusion string) {
		b := scan.Bounds{Low: low, High: high, Inclusion: scan.Inclusion(inclusion)}
		if b.Empty() {
			fmt.Fprintf(w, "%s selects nothing: no key lies between these bounds; low is the lesser value, also if the key "+
				"is DESC\n", flag)
		}
	}
	if r := req.Range; r != nil {
		name(fmt.Sprintf("--low %s --high %s --inclusion %s", sf.low, sf.high, sf.inclusion), r.Low, r.High, r.Inclusion)
	}
	for i, r := range req.Ranges {
		name("--range "+sf.ranges[i], r.Low, r.High, r.Inclusion)
	}
	for i, c := range req.Where {
		if c.Low != nil && c.High != nil {
			name("--where "+sf.where[i], []json.RawMessage{c.Low}, []json.RawMessage{c.High}, c.Inclusion)
		}
	}
}

// readTokens parses the tokens of writes that the scan must show.
func (sf *scanFlags) readTokens(req *v1.ScanRequest) error {
	for _, text := range sf.tokens {
		var t v1.Token
		if err := json.Unmarshal([]byte(text), &t); err != nil {
			return usage(`--token %s: want what kv set printed, such as '{"vbucket":68,"vbuuid":"93034431042923","seqno":73}': `+
				`%s`, text, rpc.ExplainJSON([]byte(text), 0, err))
		}
		req.Tokens, req.Consistency = append(req.Tokens, t), "at_plus"
	}
	if sf.vectors == "" {
		return nil
	}
	if len(sf.tokens) > 0 {
		return usage("--token and --scan-vector exclude each other: give one of them")
	}
	if err := strictJSON(sf.vectors, &req.ScanVectors); err != nil {
		return usage(`--scan-vector %s: want {"BUCKET":{"VBUCKET":[SEQNO,"VBUUID"]}}: %v`, sf.vectors, err)
	}
	req.Consistency = "at_plus"
	return nil
}

// given returns the flags in use that select rows, of which only one is allowed.
func (sf *scanFlags) given() (names []string) {
	if sf.equal != "" {
		names = append(names, "--equal")
	}
	if sf.low != "" || sf.high != "" {
		names = append(names, "--low, --high")
	}
	if len(sf.ranges) > 0 {
		names = append(names, "--range")
	}
	return names
}

// strictJSON parses one JSON value; an unknown field is an error, and so is one that occurs twice.
func strictJSON(text string, to any) error {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return errors.New(rpc.ExplainJSON([]byte(text), dec.InputOffset(), err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more data follows it")
	}
	if twice := rpc.Repeated([]byte(text), to); twice != "" {
		return errors.New(twice)
	}
	return nil
}

func jsonArray(flag, text string) ([]json.RawMessage, error) {
	if text == "" {
		return nil, nil
	}
	var a []json.RawMessage
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		if json.Valid([]byte(text)) {
			return nil, usage(`--%s %s: want a JSON array such as '["FR", 10]', for one value too: put it in brackets`,
				flag, text)
		}
		return nil, usage(`--%s %s: want a JSON array such as '["FR", 10]': %v`, flag, text, err)
	}
	return a, nil
}

func indexScan(s Streams, f *serverFlags) *cobra.Command {
	sf := &scanFlags{}
	cmd := &cobra.Command{Use: "scan BUCKET/NAME|ID", Short: "Scan an index",
		Example: `  tidemark index scan world/airports_by_country --equal '["FR"]' --limit 5
  tidemark index scan world/airports_by_country --range '{"low":["FR"]}' --range '{"low":["FM"],"high":["FO"]}'
  tidemark index scan world/airports_by_elevation --low '[3000]' --consistency session
  tidemark index scan world/airports_by_country --group-by iso_country --aggregate 'count(*)' --aggregate 'max(name)'`,
		Args: anIndex, ValidArgsFunction: f.indexes(false),
		RunE: func(cmd *cobra.Command, args []string) error { return sf.scan(cmd.Context(), s, f, args) }}
	sf.add(cmd)
	return cmd
}

// scan scans the index of the arguments.
func (sf *scanFlags) scan(ctx context.Context, s Streams, f *serverFlags, args []string) error {
	req, err := sf.request()
	if err != nil {
		return err
	}
	r, err := refOf(args)
	if err != nil {
		return err
	}
	return f.do(ctx, func(ctx context.Context, c *client.Client) error {
		end, err := sf.print(ctx, s, c, r, &req, f.output)
		if err != nil {
			return err
		}
		if req.Stability == "query" && !req.WantCursor && req.Cursor == "" {
			fmt.Fprintf(s.Err, "the same state again: --at %s\n", end.Timestamp.ID)
		}
		sf.printEmpty(s.Err, &req)
		printMore(s.Err, end.ScanMore)
		sf.printSession(s.Err, end.ScanSeen)
		printExplain(s.Err, end.Explain)
		if sf.timestamp {
			return write(s.Err, formatJSONL, end.Timestamp.Vector)
		}
		return nil
	})
}

// print prints the rows of a scan, or its groups, and returns its end.
func (sf *scanFlags) print(ctx context.Context, s Streams, c *client.Client, r string, req *v1.ScanRequest,
	output format) (end v1.ScanEnd, err error) {
	one, several := "row", "rows"
	if sf.groups.given() {
		if err := sf.groups.request(ctx, c, r, req); err != nil {
			return end, err
		}
		one, several = "group", "groups"
		end, err = printGroups(ctx, s, c, r, *req, &sf.groups, output)
	} else {
		end, err = printScan(ctx, s, c, r, *req, output)
	}
	if err == nil {
		fmt.Fprintf(s.Err, "%s at timestamp %s\n", counted(int(end.Rows), one, several), end.Timestamp.Hash)
	}
	return end, err
}

// printScan prints the rows of a scan and returns its end. It never holds all rows in memory.
func printScan(ctx context.Context, s Streams, c *client.Client, r string, req v1.ScanRequest,
	output format) (v1.ScanEnd, error) {
	rows, err := c.Scan(ctx, r, req)
	if err != nil {
		return v1.ScanEnd{}, err
	}
	defer rows.Close()
	row, flush := scanPrinter(s.Out, output)
	if err := printEach(rows.Next, rows.Row, row, flush); err != nil {
		return v1.ScanEnd{}, err
	}
	return rows.End()
}

// printEach prints the items of an answer one by one, and flushes the printer's buffer from time to time.
func printEach[T any](next func() bool, one func() T, write func(T) error, flush func() error) error {
	for n := 1; next(); n++ {
		if err := write(one()); err != nil {
			return err
		}
		if n%1000 == 0 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// scanPrinter returns functions that print rows one by one, and flush those that are buffered.
func scanPrinter(w io.Writer, output format) (row func(v1.Row) error, flush func() error) {
	switch output {
	case formatTable:
		t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
		fmt.Fprintln(t, "KEY\tID")
		return func(r v1.Row) error {
			var key strings.Builder
			for i, k := range r.Key {
				if i > 0 {
					key.WriteString(", ")
				}
				key.Write(k)
			}
			fmt.Fprintf(t, "%s\t%s\n", plain(key.String()), plain(r.ID))
			return nil
		}, t.Flush
	case formatCSV:
		out, headed := csv.NewWriter(w), false
		return func(r v1.Row) error {
			names, fields := []string{"id"}, []string{r.ID}
			for i, k := range r.Key {
				field, err := csvField(k)
				if err != nil {
					return err
				}
				names, fields = append(names, fmt.Sprint("key", i+1)), append(fields, field)
			}
			if !headed {
				headed = true
				if err := out.Write(names); err != nil {
					return err
				}
			}
			return out.Write(fields)
		}, func() error { out.Flush(); return out.Error() }
	}
	return func(r v1.Row) error { return write(w, output.each(), r) }, func() error { return nil }
}

// printExplain prints how a scan was executed; nothing if e is nil.
func printExplain(w io.Writer, e *v1.ScanExplain) {
	if e == nil {
		return
	}
	fmt.Fprintf(w, "took %.1f ms: opening %.1f, waiting for a timestamp %.1f, reading %.1f, sending %.1f; copies were "+
		"chosen %s\n", e.TookMS, e.OpeningMS, e.WaitingMS, e.ReadingMS, e.SendingMS, counted(e.Attempts, "time", "times"))
	fmt.Fprintf(w, "timestamp: %s\nits age: %s\n", e.Chosen, ageWord(e.AgeMS))
	fmt.Fprintf(w, "%d of %d slices may hold rows", e.Slices, e.Of)
	if e.LeftOutWhy != "" {
		fmt.Fprintf(w, ": %s", e.LeftOutWhy)
	}
	fmt.Fprintf(w, "\n%s examined, of which %d did not meet the conditions\n", counted(int(e.Read), "entry", "entries"),
		e.Filtered)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "INDEXER\tSLICES\tREAD\tFILTERED\tROWS\tOPENED MS\tPROBLEM")
	for _, p := range e.Parts {
		problem := p.Error
		if problem == "" {
			problem = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%.1f\t%s\n", p.Indexer, strings.Trim(fmt.Sprint(p.Slices), "[]"), p.Read,
			p.Filtered, p.Rows, p.OpenedMS, problem)
	}
	_ = t.Flush() // an error means that nothing reads standard error
	if e.Omitted > 0 {
		fmt.Fprintf(w, "and %s more\n", counted(e.Omitted, "request", "requests"))
	}
}

// ageWord returns the age of a scan's timestamp.
func ageWord(ms *float64) string {
	switch {
	case ms == nil:
		return "unknown, as the indexer has had it since its start, or for a long time"
	case *ms < 0:
		return fmt.Sprintf("none, it was made %.1f ms after the request arrived", -*ms)
	}
	return fmt.Sprintf("%.1f s", *ms/1000)
}

func indexCount(s Streams, f *serverFlags) *cobra.Command {
	sf := &scanFlags{}
	cmd := &cobra.Command{Use: "count BUCKET/NAME|ID", Short: "Count the entries of an index",
		Example: `  tidemark index count world/by_country --equal '["FR"]' --consistency session`, Args: anIndex,
		ValidArgsFunction: f.indexes(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := sf.request()
			if err != nil {
				return err
			}
			if sf.groups.given() {
				return sf.groups.reject(strings.Join(args, "/"))
			}
			r, err := refOf(args)
			if err != nil {
				return err
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				n, err := c.Count(ctx, r, req)
				if err != nil {
					return err
				}
				sf.printEmpty(s.Err, &req)
				sf.printSession(s.Err, n.ScanSeen)
				printExplain(s.Err, n.Explain)
				return show(s.Out, f.output, n, []v1.CountReply{n}, func(t *tabwriter.Writer) { fmt.Fprintln(t, n.Count) })
			})
		}}
	sf.add(cmd)
	return cmd
}
