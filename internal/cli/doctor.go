package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/kv/doctor"
)

func newDoctor(s Streams) *cobra.Command {
	f := &kvFlags{}
	var each time.Duration
	cmd := &cobra.Command{Use: "doctor", Short: "Check whether a KV cluster can be indexed: what works, what " +
		"does not, and why", Args: noArgs,
		Long: `Checks every node of a KV cluster for what tidemark depends on: whether and how fast the node answers, login
and permissions (DCP, statistics), TLS, the type of the bucket, features and controls, the cluster map, vbuckets,
purges, clocks and collections. It changes nothing there. Each request has a deadline (--each): a node that does not
answer in time is named, and the others are checked all the same. docs/first-hour.md explains each line of the result
and what to do about it.

The exit code is 0 if everything works, with or without warnings; 3 if the bucket does not exist; 5 if no node answers;
1 if anything else does not work.`,
		Example: `  tidemark doctor --kv couchbase://10.0.0.4,10.0.0.5 --bucket world --kv-user index --kv-password-file pw
  tidemark doctor --kv couchbases://10.0.0.4/world --kv-tls-ca ca.pem --kv-user index --kv-password-file pw -o json
  tidemark doctor --data ./cluster`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if each <= 0 {
				return usage("--each %s: want a time above 0, such as 5s", each)
			}
			seeds, opt, err := f.target(cmd.Context())
			if err != nil {
				return err
			}
			r := doctor.Examine(cmd.Context(), doctor.Options{Seeds: seeds, Managers: f.managers, KV: opt,
				Timeout: each})
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if err := show(s.Out, f.output, r, r.Checks, func(t *tabwriter.Writer) { tableOfChecks(t, r) }); err != nil {
				return err
			}
			return r.Err()
		}}
	f.add(cmd)
	cmd.Flags().DurationVar(&each, "each", doctor.DefaultTimeout, "deadline of each request, like 5s")
	return cmd
}

// tableOfChecks prints a line for each finding, followed by advice for those that are not fine.
func tableOfChecks(t *tabwriter.Writer, r *doctor.Report) {
	fmt.Fprintf(t, "RESULT\tCHECK\tNODES\tSEEN\n")
	for _, c := range r.Checks {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.Result, c.Check, nodesOf(c, r.Nodes), oneLine(c.Seen))
	}
	for _, c := range r.Checks {
		if c.Result != doctor.OK {
			fmt.Fprintf(t, "\n%s: %s\n  why: %s\n  do:  %s\n", c.Result, c.Check, c.Why, oneLine(c.Do))
		}
	}
	counts := map[doctor.Result]int{}
	for _, c := range r.Checks {
		counts[c.Result]++
	}
	fmt.Fprintf(t, "\nbucket %s, %s examined in %s: %d ok, %s, %d will not work\n", r.Bucket,
		counted(r.Nodes, "node", "nodes"), (time.Duration(r.TookMS) * time.Millisecond).String(), counts[doctor.OK],
		counted(counts[doctor.Warning], "warning", "warnings"), counts[doctor.Fails])
}

// nodesOf returns the nodes of a finding.
func nodesOf(c doctor.Check, all int) string {
	switch {
	case c.NodesCount == 0:
		return "cluster"
	case c.NodesCount == all && all > 1:
		return fmt.Sprintf("all %d", all)
	}
	names := strings.Join(c.Nodes, " ")
	if more := c.NodesCount - len(c.Nodes); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names
}

// oneLine replaces line breaks in a node's text, which would break the table.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}
