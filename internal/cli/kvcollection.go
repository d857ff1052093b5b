package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tidemark/kv/clustermap"
)

func kvCollection(s Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "collection", Short: "List, make and drop scopes and collections of the embedded KV"}
	cmd.AddCommand(kvCollectionList(s), kvCollectionChange(s, false), kvCollectionChange(s, true))
	return cmd
}

// collectionLine is a scope or collection in the output of kv collection list.
type collectionLine struct {
	Scope      string `json:"scope"`
	Collection string `json:"collection,omitempty"`
	ID         uint32 `json:"id"`
}

func kvCollectionList(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	cmd := &cobra.Command{Use: "list BUCKET", Aliases: []string{"ls"},
		Short:   "List the scopes and collections of a bucket",
		Example: "  tidemark kv collection list world --data ./cluster", Args: exactArgs("BUCKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			m, err := a.Manifest(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var lines []collectionLine
			for _, x := range m.Scopes {
				lines = append(lines, collectionLine{Scope: x.Name, ID: x.ID})
				for _, c := range x.Collections {
					lines = append(lines, collectionLine{Scope: x.Name, Collection: c.Name, ID: c.ID})
				}
			}
			return show(s.Out, f.output, m, lines, func(t *tabwriter.Writer) {
				fmt.Fprintln(t, "SCOPE\tCOLLECTION\tID")
				for _, l := range lines {
					fmt.Fprintf(t, "%s\t%s\t%#x\n", l.Scope, l.Collection, l.ID)
				}
			})
		}}
	f.add(cmd)
	return cmd
}

func kvCollectionChange(s Streams, drop bool) *cobra.Command {
	f := &kvAdminFlags{}
	yes := !drop
	cmd := &cobra.Command{Use: "create BUCKET SCOPE[.COLLECTION]", Short: "Create a scope, or a collection in a scope",
		Long: `Makes a scope, or a collection in an existing scope. All nodes must answer. For a Couchbase cluster, use its
own tools.`,
		Example: "  tidemark kv collection create world inventory --data ./cluster\n  tidemark kv collection create world " +
			"inventory.airline --data ./cluster", Args: exactArgs("BUCKET", "SCOPE[.COLLECTION]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, collection, dotted := strings.Cut(args[1], ".")
			if scope == "" || dotted && collection == "" { // a name may be empty because a shell variable is not set
				return usage("want SCOPE or SCOPE.COLLECTION, got %q", args[1])
			}
			a, err := f.open()
			if err != nil {
				return err
			}
			if err := confirm(cmd.Context(), s, yes, "drop "+args[1]+" of bucket "+args[0]+
				" with all of its documents"); err != nil {
				return err
			}
			_, err = a.Collections(cmd.Context(), clustermap.CollectionChange{Bucket: args[0], Scope: scope,
				Collection: collection, Drop: drop})
			return err
		}}
	f.add(cmd)
	if drop {
		cmd.Use, cmd.Short = "drop BUCKET SCOPE[.COLLECTION]", "Drop a scope or a collection with all of its documents"
		cmd.Long = `Drops a collection, or a scope with all its collections, and immediately all documents in it. Indexes on
it enter the state error with the reason COLLECTION_GONE. This cannot be undone: a collection that is made again under
the same name is another collection.`
		cmd.Example = "  tidemark kv collection drop world inventory.airline --yes --data ./cluster"
		cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	}
	return cmd
}
