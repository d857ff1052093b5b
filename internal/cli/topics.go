package cli

import (
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/errcode"
	"tidemark/internal/config"
	"tidemark/kv/server"
)

// topics returns help texts without a command, such as tidemark help exit-codes.
func topics() []*cobra.Command {
	list := []*cobra.Command{
		{Use: "exit-codes", Short: "What the exit code of a command means", Long: exitCodeText()},
		{Use: "environment", Short: "Environment variables, and the order of the sources of settings", Long: environmentText},
		{Use: "ports", Short: "The default addresses of each role", Long: portsText(roles(Streams{}))},
		{Use: "output", Short: "Output formats, standard output and standard error", Long: outputText},
		{Use: "nasty", Short: "Moods of an embedded KV node, for tests", Long: nastyText()},
		{Use: "tab-completion", Short: "Completion for bash, zsh, fish and PowerShell", Long: shellText},
	}
	var b strings.Builder
	b.WriteString("tidemark help TOPIC explains:\n\n")
	for _, t := range list {
		fmt.Fprintf(&b, "  %-12s %s\n", t.Name(), t.Short)
	}
	return append(list, &cobra.Command{Use: "topics", Short: "List these topics",
		Long: strings.TrimRight(b.String(), "\n")})
}

// nastyText describes tidemark kv --nasty.
func nastyText() string {
	var b strings.Builder
	b.WriteString(`tidemark kv --nasty LIST makes a KV node behave in difficult ways that real engines have, for tests of
clients and of tidemark itself. LIST is "all", or names separated by commas:
`)
	for _, m := range server.MoodList() {
		fmt.Fprintf(&b, "  %-18s %s\n", m.Name, m.Help)
	}
	b.WriteString(`
These behaviours are always on: DCP requests before DCP_OPEN and a second DCP_OPEN close the connection; a second
DCP connection of a user with the same name closes the first; an unknown key of DCP_CONTROL is answered with
INVALID_ARGUMENTS; a replica serves streams to consumers that do not request active vbuckets only; the last message may
exceed the flow control window.`)
	return b.String()
}

// exitCodes lists the meanings of exit codes.
var exitCodes = []struct {
	code  int
	means string
}{
	{errcode.ExitOK, "done"},
	{errcode.ExitFailed, "failed: the statement is wrong, a scan was cut off, the command was interrupted (Ctrl-C), …"},
	{errcode.ExitUsage, "wrong usage: a flag, an argument, the environment, or a configuration file"},
	{errcode.ExitNotFound, "not found: index, bucket or document"},
	{errcode.ExitConflict, "conflict: the object exists, is not ready or has changed, or the folder is in use"},
	{errcode.ExitUnavailable, "no leader, or no answer: try again"},
	{errcode.ExitTimeout, "not finished in time, or the outcome is unknown"},
	{errcode.ExitRemoved, "manager, indexer, node: permanently removed from the cluster; do not start it again"},
}

func exitCodeText() string {
	var b strings.Builder
	b.WriteString("Every command ends with one of these codes:\n\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&b, "  %d  %s\n", c.code, c.means)
	}
	b.WriteString(`
After codes 5 and 6 the command can be run again. A command sends writes with an Idempotency-Key and retries them for
--timeout, on all managers of --server; running the command again is a new request. If no manager accepts connections, a
command ends after 5 s, unless --timeout or --wait is given.`)
	return b.String()
}

const environmentText = `Every flag has an environment variable: that of --log-level is TIDEMARK_LOG_LEVEL. A value is
taken from the command line, else from the environment, else from the configuration file (roles and up: --config FILE),
else it is the default; tidemark config show ROLE shows which. docs/configuration.md lists every setting.

  TIDEMARK_SERVER        addresses of managers, host:port, separated by commas
  TIDEMARK_CONTEXT       name of a cluster that tidemark context add has stored
  TIDEMARK_CONTEXTS      path of the file with the stored clusters
  TIDEMARK_OUTPUT        table, json, jsonl, yaml or csv
  TIDEMARK_TIMEOUT       how long a command tries, like 30s
  TIDEMARK_CONFIG        configuration file of a role or of up; up does not pass it to its children
  TIDEMARK_KV_PASSWORD   password for tidemark kv get, set, delete and load
  NO_COLOR               no colours, and no bars that are redrawn

The cluster is that of --server, else of --data FOLDER of a running tidemark up, else of TIDEMARK_SERVER, else of
--context, else of the current context, else 127.0.0.1:9520. A --context on the command line overrides the
environment.`

const outputText = `Data goes to standard output; questions, progress, warnings and errors go to standard error.

  --output table   for people (default); its columns may change
  --output json    one value; field names are stable: those of the REST interface (docs/api.md)
  --output jsonl   one line per object: index, statement, setting, process
  --output yaml    the value of json as YAML; one document per object where there may be many (scans, watch, top)

Ids and vbuuids are strings because they can exceed 2^53; cas, seqnos and counts are numbers. With json, too, scans
write one row per line, {"key":[…],"id":"…"}, so that a scan of any length needs little memory.

Progress is a bar on a terminal, otherwise a line for every 10 %. --watch prints a table again whenever it has changed;
if standard output is not a terminal, each version is written after the last one.`

const shellText = `Completion offers commands, flags and, from the cluster that the command would use, the names of
indexes, buckets, indexers and managers. If the cluster does not answer within 0.8 s, no names are offered.

  bash        source <(tidemark completion bash)
  zsh         source <(tidemark completion zsh)
  fish        tidemark completion fish | source
  PowerShell  tidemark completion powershell | Out-String | Invoke-Expression

Put the line into the shell's start file; tidemark completion SHELL --help has the details.`

// portsText lists the addresses of roles from their flags.
func portsText(roles []*cobra.Command) string {
	var b strings.Builder
	b.WriteString("The addresses on which roles listen by default:\n\n")
	for _, r := range roles {
		r.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if _, port, err := net.SplitHostPort(f.DefValue); err == nil && port != "" && strings.HasPrefix(f.Usage, "listen") {
				fmt.Fprintf(&b, "  %-10s --%-12s %-16s %s\n", r.Name(), f.Name, f.DefValue, f.Usage)
			}
		})
	}
	b.WriteString(`
tidemark node uses ten ports from --port (9520) on: REST, Raft, readiness, projector, indexer, scan, maintenance,
backfill, catchup, and one spare.
Users and programs connect to a manager's REST port (--server). tidemark up uses --rest-port for the first manager and
the next free ports for everything else, and stores them in its data folder.`)
	return b.String()
}

// configurationDoc generates docs/configuration.md.
func configurationDoc(roles []*cobra.Command) string {
	var b strings.Builder
	b.WriteString(`# Configuration

Every setting of every role with its default, for unit files, containers and configuration files. Generated by
` + "`tidemark docs configuration`" + ` from the flags; a test keeps it current.

A setting has the same name in three places: the flag ` + "`--log-level`" + `, the environment variable
` + "`TIDEMARK_LOG_LEVEL`" + `, and the key ` + "`log-level`" + ` in the YAML file of ` + "`--config`" + `. The first
of these sources that has a value is used: flag, environment, file, default. ` + "`tidemark config show ROLE`" + `
with the same flags shows each value and its origin.

A file can serve one role or all roles of a machine. Keys at the top level apply to the role that reads the file. A
section, which is a role's name with keys below it, applies only to that role and overrides the top level. Lists are
YAML lists, or words separated by commas. An unknown key or section is an error that names the nearest known one, also
in the sections of other roles; an invalid value is an error, too. The maximum size of a file is 1 MiB.

` + "```yaml" + `
log-level: info
manager:
  id: m1
  data: /var/lib/tidemark/m1
  bootstrap-expect: 3
  join: [10.0.0.1:9520, 10.0.0.2:9520, 10.0.0.3:9520]
indexer:
  data: /var/lib/tidemark/i1
  managers: [10.0.0.1:9520, 10.0.0.2:9520, 10.0.0.3:9520]
` + "```" + `

Passwords are read from files (` + "`…-password-file`" + `) or the environment; no role accepts a password on its
command line, where other users of the machine could see it. ` + "`config show`" + ` prints
` + "`" + config.Redacted + "`" + ` for a secret that is set.
`)
	for _, r := range roles {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n| key and flag | environment | default | meaning |\n|---|---|---|---|\n", r.Name(),
			r.Short)
		r.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Hidden {
				return
			}
			def := "`" + strings.Trim(f.DefValue, "[]") + "`"
			if def == "``" {
				def = ""
			}
			_, usage := pflag.UnquoteUsage(f)
			key := "`" + f.Name + "`"
			if !config.Key(f) {
				key = "`--" + f.Name + "` (no key)"
			}
			fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", key, config.EnvName(f.Name), def, strings.ReplaceAll(usage, "|", `\|`))
		})
	}
	return b.String()
}

// documented returns the commands at and below c, and the help topics.
func documented(c *cobra.Command) (commands, notes []*cobra.Command) {
	switch {
	case c.Hidden || c.Name() == "help" || c.Name() == "completion":
		return nil, nil
	case c.IsAdditionalHelpTopicCommand():
		return nil, []*cobra.Command{c}
	case c.HasParent():
		commands = append(commands, c)
	}
	for _, sub := range c.Commands() {
		below, topics := documented(sub)
		commands, notes = append(commands, below...), append(notes, topics...)
	}
	return commands, notes
}

// cliDoc generates docs/cli.md: every command with its flags and examples, then the topics.
func cliDoc(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`# Command line

Every command with its flags and examples. Generated by ` + "`tidemark docs cli`" + ` from the commands; a test
keeps it current. ` + "`tidemark COMMAND --help`" + ` prints the same.
`)
	commands, notes := documented(root)
	b.WriteString("\n| command | does |\n|---|---|\n")
	for _, c := range commands {
		if !c.HasSubCommands() || c.Annotations[roleKey] != "" {
			fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), c.Short)
		}
	}
	for _, c := range commands {
		cliCommand(&b, c)
	}
	for _, n := range notes {
		if n.Name() != "topics" {
			fmt.Fprintf(&b, "\n## help %s\n\n```\n%s\n```\n", n.Name(), strings.TrimSpace(n.Long))
		}
	}
	return b.String()
}

func cliCommand(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
	if text := strings.TrimSpace(c.Long); text != "" {
		fmt.Fprintf(b, "%s\n", text)
	} else {
		fmt.Fprintf(b, "%s.\n", c.Short)
	}
	if c.Runnable() && (!c.HasSubCommands() || c.Annotations[roleKey] != "") {
		fmt.Fprintf(b, "\n```\n%s\n```\n", c.UseLine())
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n```\n%s\n```\n", strings.TrimSpace(strings.ReplaceAll("\n"+c.Example, "\n  ", "\n")))
	}
	if role := c.Annotations[roleKey]; role != "" && c.Parent().Name() == "show" {
		fmt.Fprintf(b, "\nFlags: those of `tidemark %s`, and `--output`.\n", role)
		return
	}
	local := c.LocalFlags()
	local.SortFlags = true
	if text := strings.TrimRight(local.FlagUsages(), "\n"); text != "" {
		fmt.Fprintf(b, "\nFlags:\n```\n%s\n```\n", text)
	}
	if c.HasAvailableInheritedFlags() {
		fmt.Fprintf(b, "\nand those of `%s`.\n", c.Parent().CommandPath())
	}
}

// newDocs returns the command that prints the generated pages of docs/.
func newDocs(s Streams) *cobra.Command {
	cli := &cobra.Command{Use: "cli", Short: "Print docs/cli.md", Args: noArgs,
		Example: "  tidemark docs cli > docs/cli.md",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(s.Out, cliDoc(cmd.Root()))
			return err
		}}
	conf := &cobra.Command{Use: "configuration", Short: "Print docs/configuration.md", Args: noArgs,
		Example: "  tidemark docs configuration > docs/configuration.md",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(s.Out, configurationDoc(roles(s)))
			return err
		}}
	docs := group("docs", "Print the pages of the documentation that are generated from the commands", "  tidemark "+
		"docs cli",
		cli, conf)
	docs.Hidden = true
	return docs
}
