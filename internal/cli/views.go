package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/manager/api/v1"
	"tidemark/stability"
)

// maxVectorPage is the largest number of vbuckets in one answer.
const maxVectorPage = 4096

func clusterTimestamps(s Streams, f *serverFlags) *cobra.Command {
	var vectors bool
	cmd := &cobra.Command{Use: "timestamps BUCKET", Short: "Show a bucket's timestamps, and what delays the stability " +
		"timestamp", Args: exactArgs("BUCKET"),
		Example: "  tidemark cluster timestamps world\n  tidemark cluster timestamps world --vectors --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				limit := 1
				if vectors {
					limit = maxVectorPage
				}
				t, err := c.Timestamps(ctx, args[0], 0, limit)
				if err != nil {
					return err
				}
				if !vectors {
					t.Next = ""
					for _, v := range []*v1.VectorInfo{&t.Stability, &t.Mutation, t.Current, t.Backfill, t.Restart} {
						if v != nil {
							v.Vector = nil
						}
					}
				}
				return show(s.Out, f.output, t, []v1.Timestamps{t}, func(w *tabwriter.Writer) {
					tableTimestamps(w, &t,
						vectors)
				})
			})
		}}
	cmd.Flags().BoolVar(&vectors, "vectors", false, "also print the position of every vbucket")
	return cmd
}

func newBucket(s Streams) *cobra.Command {
	f := &serverFlags{}
	cmd := group("bucket", "Show and change the settings of a bucket", "  tidemark bucket settings world",
		bucketSettings(s, f))
	f.add(cmd, s)
	return cmd
}

func bucketSettings(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "settings BUCKET [NAME=VALUE ...]", Short: "Show or change the settings of a bucket",
		ValidArgsFunction: noFiles,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("want a BUCKET, and NAME=VALUE for what is to be changed")
			}
			return nil
		},
		Long: `Shows the settings of a bucket, and the values in force. There is one setting:

stability.source  sync: stability timestamps take the newest complete seqno of each vbucket that projectors report.
                  heartbeat: they take the mean of what the indexers have received; as the queue of the fastest
                  indexer fills, they approach what that indexer has. Empty: as --stability-source of the leading
                  manager.

A change takes effect immediately and survives restarts, changes of the leader, and a bucket that is made again.`,
		Example: "  tidemark bucket settings world\n  tidemark bucket settings world stability.source=heartbeat\n  " +
			"tidemark bucket settings world stability.source=   # as configured",
		RunE: func(cmd *cobra.Command, args []string) error {
			change := map[string]string{}
			for _, a := range args[1:] {
				name, value, ok := strings.Cut(a, "=")
				if !ok || name != "stability.source" || !slices.Contains([]string{"", stability.Sync.String(),
					stability.Heartbeat.String()}, value) {
					return usage("%q: want stability.source=sync, stability.source=heartbeat or stability.source=", a)
				}
				change[name] = value
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				r, err := c.BucketSettings(ctx, args[0])
				if source, ok := change["stability.source"]; ok && err == nil {
					r, err = c.SetBucketSettings(ctx, args[0], v1.BucketSettings{StabilitySource: source})
				}
				if err != nil {
					return err
				}
				return show(s.Out, f.output, r, []v1.BucketSettingsReply{r}, func(w *tabwriter.Writer) {
					fmt.Fprintln(w, "SETTING\tSET\tIN FORCE")
					fmt.Fprintf(w, "stability.source\t%s\t%s\n", cmp.Or(r.StabilitySource, "-"), r.InForce.StabilitySource)
				})
			})
		}}
}

// partOf describes an indexer's part in the next stability timestamp.
func partOf(holds bool, ignored string) string {
	switch {
	case holds:
		return "holds the next one back"
	case ignored != "":
		return "not waited for: " + ignored
	}
	return "counts"
}

func tableTimestamps(w *tabwriter.Writer, t *v1.Timestamps, vectors bool) {
	age := "an unknown time ago"
	if t.AgeMS != nil {
		age = (time.Duration(*t.AgeMS) * time.Millisecond).String() + " ago"
	}
	if t.Source != "" {
		age += ", by " + t.Source
	}
	fmt.Fprintf(w, "bucket %s  generation %d  %d vbuckets  stability #%d of %s  lag %d  rollback %d  cas %d\n\n", t.Bucket,
		t.Generation, t.VBuckets, t.Number, age, t.Lag, t.RollbackID, t.CAS)
	fmt.Fprintln(w, "TIMESTAMP\tTOTAL\tHASH")
	all := namedVectors(t)
	for _, v := range all {
		fmt.Fprintf(w, "%s\t%d\t%s\n", v.name, v.Total, v.Hash)
	}
	if t.Waiting > 0 {
		fmt.Fprintf(w, "\n%d scans wait for the next one\n", t.Waiting)
	}
	if t.Diverged != "" {
		fmt.Fprintf(w, "\nthe bucket has to be rolled back: %s\n", t.Diverged)
	}
	fmt.Fprintln(w, "\nINDEXER\tACKED\tBEHIND\tSINCE\tSTATE")
	for _, p := range t.Indexers {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", p.Name, p.Acked, p.Behind, clockOf(p.SinceMS), partOf(p.Holds, p.Ignored))
	}
	if t.HoldingCount > 0 {
		fmt.Fprintf(w, "\n%d vbuckets have no stream, %d of them:\n", t.HoldingCount, len(t.Holding))
		for _, h := range t.Holding {
			fmt.Fprintf(w, "%d\t%s\tsince %s\t%s\n", h.VBucket, h.State, clockOf(h.SinceMS), h.Reason)
		}
	}
	if vectors {
		tableVectors(w, t, all)
	}
}

type namedVector struct {
	name string
	*v1.VectorInfo
}

// namedVectors returns the vectors that are present.
func namedVectors(t *v1.Timestamps) []namedVector {
	all := []namedVector{{"stability", &t.Stability}, {"mutation", &t.Mutation}, {"current", t.Current},
		{"backfill", t.Backfill}, {"restart", t.Restart}}
	return slices.DeleteFunc(all, func(v namedVector) bool { return v.VectorInfo == nil })
}

// tableVectors prints each vbucket's position in each vector.
func tableVectors(w *tabwriter.Writer, t *v1.Timestamps, all []namedVector) {
	fmt.Fprint(w, "\nVBUCKET")
	for _, v := range all {
		fmt.Fprint(w, "\t", strings.ToUpper(v.name))
	}
	for at := range t.Stability.Vector {
		fmt.Fprintf(w, "\n%d", t.From+at)
		for _, v := range all {
			fmt.Fprintf(w, "\t%d", v.Vector[at].Seqno)
		}
	}
	fmt.Fprintln(w)
}

func clusterStreams(s Streams, f *serverFlags) *cobra.Command {
	var bucket string
	var all bool
	cmd := &cobra.Command{Use: "streams", Short: "Show which projector streams which vbucket, and which vbuckets " +
		"wait", Args: noArgs,
		ValidArgsFunction: noFiles,
		Example:           "  tidemark cluster streams\n  tidemark cluster streams --bucket world --all",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.Streams(ctx, bucket)
				if err != nil {
					return err
				}
				return show(s.Out, f.output, list, list.Streams, func(w *tabwriter.Writer) {
					fmt.Fprintln(w, "BUCKET\tVBUCKETS\tBEGUN\tREQUESTED\tENDED\tLOST\tUNKNOWN\tIDLE\tREPAIRS")
					for _, b := range list.Buckets {
						fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", b.Bucket, b.VBuckets, b.Begun, b.Requested, b.Ended,
							b.Lost, b.Unknown, b.Idle, b.Repairs)
					}
					tableStreams(w, list.Streams, all)
				})
			})
		}}
	cmd.Flags().StringVar(&bucket, "bucket", "", "show only this bucket's streams")
	cmd.Flags().BoolVar(&all, "all", false, "also show running streams in the table")
	return cmd
}

// tableStreams prints the streams that are not running, or all.
func tableStreams(w *tabwriter.Writer, list []v1.StreamInfo, all bool) {
	head := false
	for _, e := range list {
		if !all && (e.State == "begun" || e.State == "idle") {
			continue
		}
		if !head {
			fmt.Fprintln(w, "\nBUCKET\tVBUCKET\tSTATE\tPROJECTOR\tINCARNATION\tSINCE\tREASON")
			head = true
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", e.Bucket, e.VBucket, e.State, e.Owner, e.Incarnation,
			clockOf(e.SinceMS), e.Reason)
	}
}
