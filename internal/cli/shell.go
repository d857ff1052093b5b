package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/mattn/go-shellwords"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/internal/config"
	"tidemark/internal/rpc"
)

const (
	shellPrompt  = "tidemark> "
	shellMore    = "       -> " // of an incomplete statement
	maxShellText = 1 << 20      // bytes of a line, and of a statement
)

// statementWords begin a statement; no command has such a name.
var statementWords = []string{"CREATE", "BUILD", "ALTER", "DROP", "SELECT", "INSERT", "UPSERT", "UPDATE", "DELETE",
	"MERGE", "EXPLAIN", "PREPARE", "EXECUTE", "GRANT", "REVOKE", "INFER"}

var (
	errLeave     = errors.New("leave the shell")
	errAbandoned = errors.New("the line was discarded") // Ctrl-C
)

func newShell(s Streams) *cobra.Command {
	f := &serverFlags{}
	var history string
	cmd := &cobra.Command{Use: "shell", Short: "Run statements and commands interactively, or from standard input",
		Long: `Reads statements, each ending with a semicolon, and commands of tidemark without the word tidemark, and runs
each as the command line does:

  CREATE INDEX by_name ON world(name);
  index scan world/by_name --equal '["France"]' --explain

The flags for the cluster, the user and the output format are given once, to the shell; they apply to every line that
does not override them. A password is asked for once. All scans and counts form one session: none shows an older state
than the one before.

On a terminal Tab completes, the arrow keys and Ctrl-R find earlier lines, Ctrl-C cancels the running command or the
line, and exit or Ctrl-D leaves the shell. Lines that begin with a space are not added to the history. Without a
terminal, lines are read from standard input, and the first one that fails ends the shell with its exit code.`,
		Example: `  tidemark shell
  tidemark shell --context prod --output json
  echo 'index list' | tidemark shell --server other:9520`,
		ValidArgsFunction: noFiles, Args: noArgs}
	var given []string
	inContext := false
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		cmd.Flags().Visit(func(fl *pflag.Flag) { given = append(given, fl.Name) })
		origins, err := resolve(cmd)
		for name, origin := range origins { // the context at the start applies until the shell ends
			if strings.HasPrefix(origin, "context ") {
				given = append(given, name)
				inContext = true
			}
		}
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		sh := &shell{streams: s, set: map[string]string{}}
		for _, name := range given {
			sh.set[name] = config.Text(cmd.Flags().Lookup(name).Value)
		}
		delete(sh.set, "history")
		if err := sh.askOnce(cmd.Context(), f); err != nil {
			return err
		}
		if inContext || sh.secrets != nil { // the other flags have the context's settings, and no other context must apply
			sh.set["context"] = noContext
		}
		if !isTerminal(s.In) || !isTerminal(s.Out) {
			sh.streams.In = strings.NewReader("") // the lines are not answers to questions
			lines := bufio.NewScanner(s.In)
			lines.Buffer(nil, maxShellText)
			return sh.read(cmd.Context(), &plainLines{lines})
		}
		ctx, stop := signal.NotifyContext(context.WithoutCancel(cmd.Context()), syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		lines := newTypedLines(sh.words, history, s.Err)
		defer lines.close()
		sh.typed = true
		return sh.read(ctx, lines)
	}
	f.add(cmd, s)
	cmd.Flags().StringVar(&history, "history", "", "`FILE` with the history of typed lines, - for none (default "+
		"tidemark/history in XDG_STATE_HOME, or ~/.local/state)")
	return cmd
}

// shellLines returns lines; io.EOF after the last one.
type shellLines interface {
	next(prompt string) (string, error)
}

type plainLines struct{ from *bufio.Scanner }

func (p *plainLines) next(string) (string, error) {
	if p.from.Scan() {
		return p.from.Text(), nil
	}
	if errors.Is(p.from.Err(), bufio.ErrTooLong) {
		return "", usage("a line has more than %d bytes", maxShellText)
	}
	if err := p.from.Err(); err != nil {
		return "", err
	}
	return "", io.EOF
}

// shell runs lines.
type shell struct {
	streams   Streams
	set       map[string]string // flags of the shell itself
	secrets   map[string]string // environment variables for lines about the shell's cluster
	typed     bool              // interactively: errors do not end the shell
	statement strings.Builder   // as far as it was entered
	session   client.Session    // of scans of the shell's cluster
}

// askOnce reads a secret from the terminal or standard input before the first line.
func (sh *shell) askOnce(ctx context.Context, f *serverFlags) error {
	who := &f.credentials
	prompts := who.user != "" && who.passwordFile == "" && os.Getenv(passwordEnv) == ""
	if !prompts && who.passwordFile != standard && who.tokenFile != standard {
		return nil
	}
	if !prompts && !isTerminal(sh.streams.In) {
		return usage("a secret and the shell's lines cannot both come from standard input: put the secret into a file")
	}
	copied := *who
	o, err := copied.options(ctx, sh.streams, nil)
	if err != nil {
		return err
	}
	sh.secrets = map[string]string{passwordEnv: o.Password, tokenEnv: o.Token}
	for _, name := range []string{"password-file", "token-file"} {
		if sh.set[name] == "-" {
			delete(sh.set, name)
		}
	}
	return nil
}

// setSecrets sets the environment variables of the secrets for a line about the shell's cluster, until restore is
// called. The credentials of one cluster must not be sent to another.
func (sh *shell) setSecrets(args []string) (restore func()) {
	var set []string
	for name, value := range sh.secrets {
		if _, other := os.LookupEnv(name); !other && value != "" && !selectsOther(args) {
			set = append(set, name)
			_ = os.Setenv(name, value) // the names and values are valid for Setenv
		}
	}
	return func() {
		for _, name := range set {
			_ = os.Unsetenv(name)
		}
	}
}

// selectsOther reports whether a line selects another cluster or user.
func selectsOther(args []string) bool {
	return slices.ContainsFunc([]string{"server", "data", "context", "user", "token-file"}, func(name string) bool {
		return hasFlag(args, name, "")
	})
}

// read runs lines until there are no more.
func (sh *shell) read(ctx context.Context, lines shellLines) error {
	for {
		id := rpc.NewRequestID()
		prompt := shellPrompt
		if sh.statement.Len() > 0 {
			prompt = shellMore
		}
		line, err := nextLine(ctx, lines, prompt)
		if err == nil {
			err = sh.line(context.WithValue(ctx, invocationKey{}, id), line)
		}
		switch {
		case errors.Is(err, io.EOF) && sh.statement.Len() > 0 && !sh.typed:
			return usage("the last statement has no semicolon at its end: %.60q", sh.statement.String())
		case errors.Is(err, io.EOF), errors.Is(err, errLeave):
			return nil
		case errors.Is(err, errAbandoned):
			sh.statement.Reset()
		case sh.typed && ctx.Err() != nil:
			return nil
		case err != nil && !sh.typed:
			return err
		case err != nil:
			printError(sh.streams.Err, err, id)
		}
	}
}

// nextLine waits for a line until ctx ends.
func nextLine(ctx context.Context, lines shellLines, prompt string) (line string, err error) {
	done := make(chan struct{})
	go func() { // it keeps reading when ctx ends, but then the process ends
		defer close(done)
		line, err = lines.next(prompt)
	}()
	select {
	case <-done:
		return line, err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// line runs a line, or stores it while its statement is incomplete.
func (sh *shell) line(ctx context.Context, line string) error {
	words := strings.Fields(line)
	if sh.statement.Len() == 0 {
		switch {
		case len(words) == 0:
			return nil
		case len(words) == 1 && slices.Contains([]string{"exit", "quit", `\q`}, strings.TrimSuffix(words[0], ";")):
			return errLeave
		case !slices.Contains(statementWords, strings.ToUpper(words[0])):
			args, err := splitWords(line)
			if err != nil {
				return err
			}
			return sh.run(ctx, args)
		}
	}
	if sh.statement.Len()+len(line) > maxShellText {
		sh.statement.Reset()
		return usage("a statement has more than %d bytes", maxShellText)
	}
	sh.statement.WriteString(line + "\n")
	text := sh.statement.String()
	if !expression.Ended(text) {
		return nil
	}
	sh.statement.Reset()
	return sh.run(ctx, []string{"sql", text})
}

// splitWords splits a line as a POSIX shell does, with quotes but no other features.
func splitWords(line string) ([]string, error) {
	p := shellwords.NewParser()
	args, err := p.Parse(line)
	switch {
	case err != nil:
		return nil, usage("%v in %.60q", err, line)
	case p.Position >= 0:
		return nil, usage("an end of a command at byte %d of %.60q: put what has ; & | < > ( or ) in single quotes",
			p.Position+1, line)
	}
	if len(args) > 0 && args[0] == "tidemark" {
		args = args[1:]
	}
	return args, nil
}

// run runs a command line until it ends or is interrupted.
func (sh *shell) run(ctx context.Context, args []string) error {
	if sh.typed {
		var done context.CancelFunc
		ctx, done = signal.NotifyContext(ctx, syscall.SIGINT)
		defer done()
	}
	root := newRoot(sh.streams)
	if cmd, _, err := root.Find(args); err == nil && (cmd.Annotations[roleKey] != "" || cmd.Name() == "shell") {
		return usage("%s cannot run in a shell", cmd.CommandPath())
	}
	root.SetArgs(sh.withSettings(root, args))
	defer sh.setSecrets(args)()
	if !selectsOther(args) {
		ctx = context.WithValue(ctx, sessionKey{}, &sh.session)
	}
	return interrupted(ctx, root.ExecuteContext(ctx))
}

// withSettings adds to a command line those of the shell's flags that its command has and that it does not set.
func (sh *shell) withSettings(root *cobra.Command, args []string) []string {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd == root {
		return args
	}
	all := strings.Fields(cmd.CommandPath())[1:]
	has := map[string]string{}
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { has[f.Name] = f.Shorthand })
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { has[f.Name] = f.Shorthand })
	for _, name := range sh.settings(rest) {
		if short, ok := has[name]; ok && !hasFlag(rest, name, short) {
			all = append(all, "--"+name+"="+sh.set[name])
		}
	}
	return append(all, rest...)
}

// settings returns the names of the shell's flags that apply to a line. They do not include credentials if the line
// selects a cluster.
func (sh *shell) settings(args []string) (names []string) {
	for _, place := range []string{"server", "data", "context"} {
		if hasFlag(args, place, "") {
			for _, name := range []string{"output", "timeout"} {
				if _, ok := sh.set[name]; ok {
					names = append(names, name)
				}
			}
			return names
		}
	}
	for name := range sh.set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// hasFlag reports whether a command line sets a flag.
func hasFlag(args []string, name, short string) bool {
	for _, a := range args {
		switch {
		case a == "--":
			return false
		case a == "--"+name, strings.HasPrefix(a, "--"+name+"="):
			return true
		case short != "" && strings.HasPrefix(a, "-"+short):
			return true
		}
	}
	return false
}

// completions returns the words of cobra's answer that continue what was typed.
func completions(answer, typed string) (words []string) {
	for line := range strings.Lines(answer) {
		word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if word != "" && word[0] != ':' && strings.HasPrefix(word, typed) {
			words = append(words, word)
		}
	}
	return words
}

// firstWords returns the beginnings of statements, and exit, that continue what was typed.
func firstWords(typed string) (words []string) {
	for _, word := range []string{"CREATE INDEX ", "BUILD INDEX ON ", "ALTER INDEX ", "DROP INDEX ", "exit"} {
		if len(typed) <= len(word) && strings.EqualFold(typed, word[:len(typed)]) {
			words = append(words, word)
		}
	}
	return words
}

// words completes the word before a position in a line; it is a liner.WordCompleter.
func (sh *shell) words(line string, at int) (head string, found []string, tail string) {
	runes := []rune(line)
	before := string(runes[:at])
	head, tail = before[:strings.LastIndexByte(before, ' ')+1], string(runes[at:])
	typed := before[len(head):]
	args, err := splitWords(head)
	if err != nil || sh.statement.Len() > 0 {
		return head, nil, tail
	}
	var out bytes.Buffer
	root := newRoot(Streams{In: strings.NewReader(""), Out: &out, Err: io.Discard})
	defer sh.setSecrets(args)()
	root.SetArgs(append(append([]string{cobra.ShellCompRequestCmd}, sh.withSettings(root, args)...), typed))
	if root.ExecuteContext(context.Background()) != nil {
		return head, nil, tail
	}
	found = completions(out.String(), typed)
	if len(args) == 0 {
		found = append(found, firstWords(typed)...)
	}
	if len(found) == 1 && !strings.HasSuffix(found[0], " ") && !strings.HasSuffix(found[0], "=") {
		found[0] += " "
	}
	return head, found, tail
}
