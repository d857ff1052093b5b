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

func kvUserCommand(s Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "user", Short: "List, make, change and remove users of the embedded KV"}
	cmd.AddCommand(kvUserList(s), kvUserSet(), kvUserRemove(s))
	return cmd
}

func kvUserList(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the users of the embedded KV and their roles",
		Example: "  tidemark kv user list --data ./cluster", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			users, err := a.Users(cmd.Context())
			if err != nil {
				return err
			}
			return show(s.Out, f.output, users, users, func(t *tabwriter.Writer) { kvUserTable(t, users) })
		}}
	f.add(cmd)
	return cmd
}

func kvUserTable(t *tabwriter.Writer, users []kv.User) {
	fmt.Fprintln(t, "USER\tROLES\tGROUPS\tNAME")
	for _, u := range users {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", u.ID, orElse(strings.Join(u.Roles, ","), "-"),
			orElse(strings.Join(u.Groups, ","), "-"), u.Name)
	}
}

// kvUserSet creates a user, or changes the properties given by flags.
func kvUserSet() *cobra.Command {
	f := &kvAdminFlags{}
	var roles, groups, name, passwordFile string
	cmd := &cobra.Command{Use: "set USER", Short: "Make a user of the embedded KV, or change its roles or password",
		Long: `Makes a user, or changes an existing one: --roles and --groups replace all its roles and groups,
--new-password-file and --name its password and full name; what is not given stays. A new user needs --roles or
--groups, and --new-password-file. All nodes must answer and apply the change immediately: permissions are checked with
each request, and streams that the user may no longer read end. A new password closes no connection. Nodes do not store
passwords, only data to check them with.

Roles have the names of Couchbase, with a bucket or * for all buckets. Roles to read, write and stream documents also
take a scope, [BUCKET:SCOPE], or a collection, [BUCKET:SCOPE:COLLECTION]:
` + rolesHelp(),
		Example: "  tidemark kv user set index --roles 'data_dcp_reader[world],data_monitoring[world]' --new-password-file " +
			"./index --data ./cluster\n  tidemark kv user set index --roles 'data_dcp_reader[*]' --data ./cluster\n" +
			"  tidemark kv user set app --roles 'data_reader[world:shop],data_writer[world:shop:carts]' --data ./cluster",
		Args: exactArgs("USER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			change := clustermap.UserChange{User: args[0]}
			if err := access.CheckID(change.User); err != nil {
				return usageError{err}
			}
			if cmd.Flags().Changed("roles") {
				all, err := access.ParseRoles(roles)
				if err != nil {
					return usageError{err}
				}
				change.Roles = &all
			}
			if cmd.Flags().Changed("name") {
				change.Name = &name
			}
			if cmd.Flags().Changed("groups") {
				change.Groups = new(access.ParseGroups(groups))
			}
			password, err := newKVPassword(passwordFile)
			switch {
			case err != nil:
				return err
			case change.Roles == nil && change.Groups == nil && change.Name == nil && password == "":
				return usage("give --roles, --groups, --new-password-file or --name to set")
			}
			a, err := f.open()
			if err != nil {
				return err
			}
			return a.ChangeUser(cmd.Context(), change, password)
		}}
	f.add(cmd)
	cmd.Flags().StringVar(&roles, "roles", "", "roles, separated by commas, which replace all roles of the user; '': "+
		"none")
	cmd.Flags().StringVar(&groups, "groups", "", "existing groups, separated by commas, which replace all groups of "+
		"the user; '': none")
	cmd.Flags().StringVar(&passwordFile, "new-password-file", "", "`FILE` with the user's new password")
	cmd.Flags().StringVar(&name, "name", "", "full name of the user")
	return cmd
}

// newKVPassword reads a user's new password; "" without a file.
func newKVPassword(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	password, err := secretFile(file)
	if err == nil {
		if err := access.CheckPassword(password); err != nil {
			return "", usage("--new-password-file %s: %v", file, err)
		}
	}
	return password, err
}

// rolesHelp returns the list of roles.
func rolesHelp() string {
	var out []string
	for _, k := range access.Kinds() {
		out = append(out, fmt.Sprintf("  %-28s%s", k.Form(), k.What))
	}
	return strings.Join(out, "\n")
}

func kvUserRemove(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	var yes bool
	cmd := &cobra.Command{Use: "remove USER", Aliases: []string{"rm"}, Short: "Remove a user of the embedded KV",
		Long:    `Removes a user. Its connections stay open without any permission; its streams end. All nodes must answer.`,
		Example: "  tidemark kv user remove index --yes --data ./cluster", Args: exactArgs("USER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			if err := confirm(cmd.Context(), s, yes, "remove KV user "+args[0]); err != nil {
				return err
			}
			return a.ChangeUser(cmd.Context(), clustermap.UserChange{User: args[0], Remove: true}, "")
		}}
	f.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}
