package cli

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/manager/api/v1"
)

// groupFlags request groups instead of rows.
type groupFlags struct{ by, aggregates []string }

func (gf *groupFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&gf.by, "group-by", nil, "a component of the key, by its `EXPRESSION` or its number from "+
		"0: rows with the same value of it form a group; repeat for more")
	cmd.Flags().StringArrayVar(&gf.aggregates, "aggregate", nil, "an `AGGREGATE` of each group, or without --group-by of "+
		"all rows: 'count(*)', 'count(distinct name)', 'sum(price)', 'avg(price)', 'min(price)', 'max(price)' or "+
		"'documents()'; repeat for more")
}

func (gf *groupFlags) given() bool { return len(gf.by)+len(gf.aggregates) > 0 }

// reject returns the error of a command whose result is a single number: it names the command for groups.
func (gf *groupFlags) reject(ref string) error {
	words := []string{"tidemark index scan", ref}
	for _, by := range gf.by {
		words = append(words, "--group-by", shellWord(by))
	}
	for _, a := range gf.aggregates {
		words = append(words, "--aggregate", shellWord(a))
	}
	if len(gf.aggregates) == 0 {
		words = append(words, "--aggregate 'count(*)'")
	}
	return usage("index count gives one number; groups come from %s", strings.Join(words, " "))
}

// shellWord quotes a word for a shell if necessary.
func shellWord(w string) string {
	if strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == "" && w != "" {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// request adds the groups to a request. Components given by name are looked up in the index's definition.
func (gf *groupFlags) request(ctx context.Context, c *client.Client, ref string, req *v1.ScanRequest) error {
	names := &componentNames{lookup: func() (v1.IndexInfo, error) { return c.Index(ctx, ref) }}
	for _, text := range gf.by {
		n, err := names.number(text)
		if err != nil {
			return fmt.Errorf("--group-by %s: %w", text, err)
		}
		req.GroupBy = append(req.GroupBy, n)
	}
	for _, text := range gf.aggregates {
		a, err := names.aggregate(text)
		if err != nil {
			return fmt.Errorf("--aggregate %s: %w", text, err)
		}
		req.Aggregates = append(req.Aggregates, a)
	}
	return nil
}

// componentNames maps expressions to the components of an index's key.
type componentNames struct {
	lookup func() (v1.IndexInfo, error)
	loaded bool // exprs are the index's
	exprs  []string
}

// number returns the component that a text names.
func (n *componentNames) number(text string) (int, error) {
	if i, err := strconv.Atoi(text); err == nil {
		return i, nil
	}
	if !n.loaded {
		info, err := n.lookup()
		if err != nil {
			return 0, err
		}
		n.loaded = true
		for _, k := range info.Keys {
			n.exprs = append(n.exprs, k.Expr)
		}
		if info.IsPrimary {
			n.exprs = []string{"META().id"}
		}
	}
	x, err := expression.ParseKey(text)
	if err != nil {
		return 0, usage("want a component of the key, by its number from 0 or its expression: %v", err)
	}
	printed := fmt.Sprint(x)
	i := slices.IndexFunc(n.exprs, func(e string) bool { return strings.EqualFold(e, printed) })
	if i < 0 || slices.Contains(n.exprs, printed) {
		i = slices.Index(n.exprs, printed)
	}
	if i < 0 {
		return 0, usage("the key of this index has the components %s", strings.Join(n.exprs, ", "))
	}
	return i, nil
}

// aggregate parses an aggregate.
func (n *componentNames) aggregate(text string) (a v1.Aggregate, err error) {
	op, rest, ok := strings.Cut(strings.TrimSpace(text), "(")
	of, closed := strings.CutSuffix(rest, ")")
	if !ok || !closed {
		return a, usage("want an aggregate such as 'count(*)', 'sum(price)' or 'count(distinct name)'")
	}
	a.Op, of = strings.ToLower(strings.TrimSpace(op)), strings.TrimSpace(of)
	if word, name, two := strings.Cut(of, " "); two && strings.EqualFold(word, "distinct") {
		a.Distinct, of = true, strings.TrimSpace(name)
	}
	if of == "*" || of == "" {
		return a, nil
	}
	i, err := n.number(of)
	a.Component = &i
	return a, err
}

// printGroups prints the groups of a scan and returns its end.
func printGroups(ctx context.Context, s Streams, c *client.Client, r string, req v1.ScanRequest, gf *groupFlags,
	output format) (v1.ScanEnd, error) {
	groups, err := c.Aggregate(ctx, r, req)
	if err != nil {
		return v1.ScanEnd{}, err
	}
	defer groups.Close()
	group, flush := groupPrinter(s.Out, output, slices.Concat(gf.by, gf.aggregates))
	if err := printEach(groups.Next, groups.Group, group, flush); err != nil {
		return v1.ScanEnd{}, err
	}
	return groups.End()
}

// groupPrinter returns functions that print groups one by one, and flush those that are buffered.
func groupPrinter(w io.Writer, output format, names []string) (group func(v1.Group) error, flush func() error) {
	switch output {
	case formatTable:
		t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
		fmt.Fprintln(t, strings.ToUpper(strings.Join(names, "\t")))
		return func(g v1.Group) error {
			var fields []string
			for _, v := range slices.Concat(g.Key, g.Values) {
				fields = append(fields, plain(string(v)))
			}
			fmt.Fprintln(t, strings.Join(fields, "\t"))
			return nil
		}, t.Flush
	case formatCSV:
		out := csv.NewWriter(w)
		err := out.Write(names)
		return func(g v1.Group) error {
			var fields []string
			for _, v := range slices.Concat(g.Key, g.Values) {
				field, ferr := csvField(v)
				if ferr != nil {
					return ferr
				}
				fields = append(fields, field)
			}
			if err == nil {
				err = out.Write(fields)
			}
			return err
		}, func() error { out.Flush(); return out.Error() }
	}
	return func(g v1.Group) error {
		if g.Key == nil {
			g.Key = []json.RawMessage{}
		}
		return write(w, output.each(), g)
	}, func() error { return nil }
}
