package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/internal/config"
)

// roleSettings is the output of config show.
type roleSettings struct {
	Role     string           `json:"role"`
	Settings []config.Setting `json:"settings"`
}

func newConfig(s Streams) *cobra.Command {
	show := group("show", "Show every setting of a role and the origin of its value",
		"  tidemark config show manager --config /etc/tidemark.yaml")
	for _, r := range roles(s) {
		show.AddCommand(configShow(s, r))
	}
	return group("config", "Show settings: flags, environment, configuration file", "  tidemark config show manager",
		show)
}

// configShow returns a command with the flags of a role that shows their effective values instead of running the
// role.
func configShow(s Streams, role *cobra.Command) *cobra.Command {
	var as format
	var origins config.Origins
	cmd := &cobra.Command{Use: role.Name(), Short: "Show the settings of tidemark " + role.Name(), Args: noArgs,
		Long: fmt.Sprintf(`Reads the flags of tidemark %s, the environment and the configuration file as that command would,
and shows the result: each key with its value and its origin (flag, env NAME, file PATH, default). Nothing is started.
Secrets are not shown, only whether they are set.`, role.Name()),
		Example: fmt.Sprintf("  tidemark config show %s --log-level debug\n  tidemark config show %s --config "+
			"tidemark.yaml --output json", role.Name(), role.Name()),
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) (err error) { // replaces the root's
			origins, err = resolve(cmd)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := roleSettings{Role: role.Name(), Settings: config.Settings(cmd.Flags(), origins, "output")}
			return showSettings(s, as, all)
		}}
	role.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "output" { // up has a flag of this name, for its own output
			cmd.Flags().AddFlag(f)
		}
	})
	cmd.Annotations = map[string]string{roleKey: role.Name()}
	addOutput(cmd.Flags(), &as)
	complete(cmd, "output", fixed(formats...))
	return cmd
}

func showSettings(s Streams, as format, all roleSettings) error {
	return show(s.Out, as, all, all.Settings, func(t *tabwriter.Writer) {
		fmt.Fprintln(t, "KEY\tVALUE\tORIGIN")
		for _, set := range all.Settings {
			value := set.Value
			if value == "" {
				value = "-"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\n", set.Key, value, set.Origin)
		}
	})
}
