package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tidemark/kv"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
)

func kvGroupCommand(s Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "List, make, change and remove groups of users of the embedded KV"}
	cmd.AddCommand(kvGroupList(s), kvGroupSet(), kvGroupRemove(s))
	return cmd
}

func kvGroupList(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"},
		Short:   "List the groups of the embedded KV and their roles",
		Example: "  tidemark kv group list --data ./cluster", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			groups, err := a.Groups(cmd.Context())
			if err != nil {
				return err
			}
			return show(s.Out, f.output, groups, groups, func(t *tabwriter.Writer) { kvGroupTable(t, groups) })
		}}
	f.add(cmd)
	return cmd
}

func kvGroupTable(t *tabwriter.Writer, groups []kv.Group) {
	fmt.Fprintln(t, "GROUP\tROLES\tDESCRIPTION")
	for _, g := range groups {
		fmt.Fprintf(t, "%s\t%s\t%s\n", g.ID, orElse(strings.Join(g.Roles, ","), "-"), g.Description)
	}
}

// kvGroupSet creates a group, or changes the properties given by flags.
func kvGroupSet() *cobra.Command {
	f := &kvAdminFlags{}
	var roles, description string
	cmd := &cobra.Command{Use: "set GROUP", Short: "Make a group of users of the embedded KV, or change its roles",
		Long: `Makes a group, or changes an existing one: --roles replaces all its roles, --description its description; what
is not given stays. Its members (tidemark kv user set --groups) have its roles in addition to their own. A new group
needs --roles. All nodes must answer and apply the change immediately. tidemark kv user set lists the roles.`,
		Example: "  tidemark kv group set readers --roles 'data_reader[world],data_reader[travel:inventory]' " +
			"--data ./cluster",
		Args: exactArgs("GROUP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			change := clustermap.GroupChange{Group: args[0]}
			if cmd.Flags().Changed("roles") {
				all, err := access.ParseRoles(roles)
				if err != nil {
					return usageError{err}
				}
				change.Roles = &all
			}
			if cmd.Flags().Changed("description") {
				change.Description = &description
			}
			if change.Roles == nil && change.Description == nil {
				return usage("give --roles or --description to set")
			}
			a, err := f.open()
			if err != nil {
				return err
			}
			return a.ChangeGroup(cmd.Context(), change)
		}}
	f.add(cmd)
	cmd.Flags().StringVar(&roles, "roles", "", "roles, separated by commas, which replace all roles of the group; '': "+
		"none")
	cmd.Flags().StringVar(&description, "description", "", "description of the group")
	return cmd
}

func kvGroupRemove(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	var yes bool
	cmd := &cobra.Command{Use: "remove GROUP", Aliases: []string{"rm"},
		Short: "Remove a group of users of the embedded KV",
		Long: `Removes a group. Its users remain, with their own roles and those of their other groups. All nodes must
answer.`,
		Example: "  tidemark kv group remove readers --yes --data ./cluster", Args: exactArgs("GROUP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			if err := confirm(cmd.Context(), s, yes, "remove KV group "+args[0]); err != nil {
				return err
			}
			return a.ChangeGroup(cmd.Context(), clustermap.GroupChange{Group: args[0], Remove: true})
		}}
	f.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}
