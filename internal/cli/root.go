// Package cli implements the command line, with one file per subcommand. Data goes to standard output, messages to
// standard error; exit codes are part of the interface.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/indexer"
	"tidemark/internal/config"
	"tidemark/internal/leash"
	"tidemark/internal/localcluster"
	"tidemark/internal/logging"
	"tidemark/internal/node"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/internal/tracing"
	"tidemark/internal/version"
	"tidemark/kv/kvclient"
	"tidemark/manager/consensus"
)

// Streams are the input and output of a command.
type Streams struct {
	In  io.Reader
	Out io.Writer // data
	Err io.Writer // messages
}

// standard stands for standard input or output where a file is expected.
const standard = "-"

// open opens a file, or standard input, which Close leaves open.
func (s Streams) open(path string) (io.ReadCloser, error) {
	if path == standard {
		return io.NopCloser(s.In), nil
	}
	return os.Open(path)
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usage returns an error with the exit code errcode.ExitUsage.
func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Main runs the command line and returns the exit code. The context of commands ends with SIGINT or SIGTERM, and, in
// a child of `tidemark up`, when that process has ended.
func Main(args []string, s Streams) int {
	sink := logging.NewSink(s.Err)
	s.Err = sink
	defer sink.Flush(logFlushWait)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, err := leash.Watch(ctx, func() {
		fmt.Fprintf(s.Err, "tidemark: the parent process has ended, and this process did not stop within %s\n",
			leash.Grace)
		os.Exit(errcode.ExitFailed)
	})
	if err != nil {
		fmt.Fprintln(s.Err, "tidemark:", err)
		return errcode.ExitFailed
	}
	root := newRoot(s)
	strict(root)
	root.SetArgs(args)
	id := rpc.NewRequestID()
	cmd, err := root.ExecuteContextC(context.WithValue(ctx, invocationKey{}, id))
	if cmd.Annotations[roleKey] == "" {
		err = interrupted(ctx, err)
	}
	if err != nil {
		printError(s.Err, err, id)
	}
	return exitCode(err)
}

// logFlushWait is how long a process that ends waits until its log has been read.
const logFlushWait = time.Second

// detach makes a process independent of the reader of its log: the process does not block while nothing is read, and
// it ignores SIGPIPE, which would otherwise kill it once the reader is gone.
func detach(s Streams, asJSON bool) {
	if sink, ok := s.Err.(*logging.Sink); ok {
		signal.Ignore(syscall.SIGPIPE)
		sink.Detach(asJSON)
	}
}

// printError prints why an invocation failed.
func printError(w io.Writer, err error, id string) {
	fmt.Fprintln(w, "tidemark:", err)
	// not for the user's mistakes
	p := new(rpc.Problem)
	if errors.As(err, &p) && p.Status >= 500 || errors.Is(err, client.ErrUnavailable) && arrived(err) {
		fmt.Fprintf(w, "tidemark: in the managers' logs this is request_id %s\n", id)
	}
}

// arrived reports whether a failed call may have reached a manager, which has then logged it.
func arrived(err error) bool {
	return !errors.Is(err, client.ErrUnreached) && !errors.Is(err, client.ErrUntrusted)
}

// invocationKey is the context key of an invocation's request id, which all requests of a client command share.
type invocationKey struct{}

// waitLimitKey is the context key that is set if the user has limited the wait (--timeout, --wait).
type waitLimitKey struct{}

// waitLimited reports whether the user has limited how long a command tries or waits.
func waitLimited(cmd *cobra.Command) bool {
	for _, name := range []string{"timeout", "wait"} {
		if f := cmd.Flag(name); f != nil && f.Changed && f.Value.String() != "false" {
			return true
		}
	}
	return false
}

// sessionKey is the context key of the session that scans of several invocations share.
type sessionKey struct{}

func exitCode(err error) int {
	var u usageError
	var p *rpc.Problem
	switch {
	case err == nil:
		return errcode.ExitOK
	case errors.Is(err, consensus.ErrRemoved), errors.Is(err, indexer.ErrRemoved), errors.Is(err, node.ErrRemoved):
		return errcode.ExitRemoved
	case errors.As(err, &u), strings.HasPrefix(err.Error(), "unknown command"): // the latter is cobra's own
		return errcode.ExitUsage
	case errors.Is(err, kvclient.ErrKeyNotFound), errors.Is(err, kvclient.ErrNoBucket),
		errors.Is(err, kvclient.ErrNoCollection):
		return errcode.ExitNotFound
	case errors.Is(err, kvclient.ErrKeyExists), errors.Is(err, localcluster.ErrInUse), errors.Is(err, consensus.ErrInUse):
		return errcode.ExitConflict
	case errors.Is(err, client.ErrServer), errors.Is(err, localcluster.ErrConfig), errors.Is(err, tlsconf.ErrExposed):
		return errcode.ExitUsage
	case kvAdminCode(err) != 0:
		return kvAdminCode(err)
	case errors.Is(err, kvclient.ErrNoMap), errors.Is(err, kvclient.ErrClosed), errors.Is(err, kvclient.ErrTemporary),
		errors.Is(err, errKVUnreached):
		return errcode.ExitUnavailable
	case errors.Is(err, kvclient.ErrAmbiguous):
		return errcode.ExitTimeout
	case errors.As(err, &p):
		return p.Exit()
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, errNoProjector):
		return errcode.ExitUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		return errcode.ExitTimeout
	}
	return errcode.ExitFailed
}

func newRoot(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "tidemark",
		Short: "Global secondary indexes for vbucket KV stores that speak DCP",
		Long: `tidemark keeps partitioned, replicated secondary indexes of a KV store that speaks DCP.

  tidemark up --sample        a local cluster with sample data, in one command
  tidemark sql "CREATE INDEX by_name ON world(name)"
  tidemark index scan world/by_name --equal '["France"]'`,
		SilenceUsage: true, SilenceErrors: true, DisableSuggestions: true, Args: cobra.ArbitraryArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			_, err := resolve(cmd)
			if waitLimited(cmd) {
				cmd.SetContext(context.WithValue(cmd.Context(), waitLimitKey{}, true))
			}
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q%s; see tidemark --help", args[0], suggestion(cmd, args[0]))
			}
			return cmd.Help()
		},
	}
	root.Version = version.Full()
	root.SetVersionTemplate("tidemark {{.Version}}\n")
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%v; see %s --help", config.Explain(err), cmd.CommandPath())
	})
	root.AddCommand(roles(s)...)
	root.AddCommand(newIndex(s), newScan(s), newSQL(s), newCluster(s), newRebalance(s), newBucket(s), newCert(s),
		newUser(s), newToken(s), newContext(s), newConfig(s), newVersion(s), newDocs(s))
	root.AddCommand(newWatch(s), newTop(s), newTopic(s), newDoctor(s), newShell(s))
	root.AddCommand(topics()...)
	return root
}

// strict makes cobra's own commands reject unknown words; by default they print help and succeed.
func strict(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion")
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			help := c.Run
			c.Run, c.RunE = nil, func(cmd *cobra.Command, args []string) error {
				if of, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return usage("%s has no command or topic %q%s; see tidemark help topics", of.CommandPath(), rest[0],
						suggestion(of, rest[0]))
				}
				help(cmd, args)
				return nil
			}
		case "completion":
			c.Args, c.RunE = noArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// roles returns the commands that run a role; they also read settings from a file.
func roles(s Streams) []*cobra.Command {
	return []*cobra.Command{newUp(s), newNode(s), newManager(s), newProjector(s), newIndexer(s), newKV(s)}
}

// suggestion returns ", did you mean …?" with the command whose name is most similar to word; "" if none is.
func suggestion(cmd *cobra.Command, word string) string {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	if n := config.Nearest(word, names); n != "" {
		return fmt.Sprintf(", did you mean %s?", n)
	}
	return ""
}

// group returns a command that only has subcommands.
func group(use, short, example string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: example, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("%s has no command %q%s; see %s --help", cmd.CommandPath(), args[0], suggestion(cmd, args[0]),
					cmd.CommandPath())
			}
			return cmd.Help()
		}}
	cmd.AddCommand(subs...)
	return cmd
}

// roleKey is the annotation of commands that run a role: its name, which is also its section in a configuration file.
const roleKey = "role"

// typedServer is the annotation of commands that act on --server: TIDEMARK_SERVER does not apply to them.
const typedServer = "typed-server"

// resolve sets a command's flags from environment and file.
func resolve(cmd *cobra.Command) (config.Origins, error) {
	dataOnly := (cmd.Flags().Changed("data") || cmd.Annotations[typedServer] != "") && !cmd.Flags().Changed("server")
	from := config.Source{Lookup: os.LookupEnv, Role: cmd.Annotations[roleKey]}
	if from.Role != "" {
		from.Sections = sections()
	}
	origins, err := config.Resolve(cmd.Flags(), from)
	if err != nil {
		return nil, usageError{err}
	}
	if server := cmd.Flags().Lookup("server"); server != nil && dataOnly { // a flag takes precedence over TIDEMARK_SERVER
		if list, ok := server.Value.(pflag.SliceValue); ok {
			return origins, list.Replace(nil)
		}
	}
	return origins, useContext(cmd, origins)
}

// sections returns the keys of each role.
func sections() map[string][]string {
	all := map[string][]string{}
	for _, r := range roles(Streams{}) {
		var keys []string
		r.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if config.Key(f) {
				keys = append(keys, f.Name)
			}
		})
		all[r.Name()] = keys
	}
	return all
}

func newVersion(s Streams) *cobra.Command {
	var as format
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: noArgs,
		Example: "  tidemark version --output json",
		RunE: func(*cobra.Command, []string) error {
			i := version.Get()
			return show(s.Out, as, i, []version.Info{i}, func(t *tabwriter.Writer) {
				fmt.Fprintln(t, "tidemark",
					version.Full())
			})
		}}
	addOutput(cmd.Flags(), &as)
	return cmd
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s accepts no argument, got %q%s", cmd.CommandPath(), args[0], suggestion(cmd, args[0]))
	}
	return nil
}

func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return usage("%s needs %s, got %d arguments", cmd.CommandPath(), strings.Join(names, " "), len(args))
		}
		return nil
	}
}

// serverFlags select the cluster of a client command, and its timeout.
type serverFlags struct {
	server      []string
	data        string
	timeout     time.Duration
	output      format
	streams     Streams
	credentials credentialFlags
}

func (f *serverFlags) add(cmd *cobra.Command, s Streams) {
	f.streams = s
	f.credentials.add(cmd.PersistentFlags())
	cmd.PersistentFlags().StringSliceVar(&f.server, "server", nil, "some managers of the cluster, as host:port or URL "+
		"(default 127.0.0.1:9520)")
	cmd.PersistentFlags().StringVar(&f.data, "data", "", "data `FOLDER` of a running tidemark up, to find its managers "+
		"and credentials")
	cmd.PersistentFlags().String("context", "", "`NAME` of a stored cluster; see tidemark context add (default: the "+
		"current context; -: none)")
	cmd.PersistentFlags().DurationVar(&f.timeout, "timeout", 60*time.Second, "how long to try, including the time of a "+
		"build")
	addOutput(cmd.PersistentFlags(), &f.output)
	complete(cmd, "server", f.servers)
	complete(cmd, "context", contextNames)
	complete(cmd, "output", fixed(formats...))
}

// do calls call with a client of the cluster, within --timeout.
func (f *serverFlags) do(ctx context.Context, call func(ctx context.Context, c *client.Client) error) error {
	c, ctx, cancel, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	defer c.Close()
	return call(ctx, c)
}

// localManifest reads the manifest of a running up from the data folder, also while its processes start.
func localManifest(data string) (*localcluster.Manifest, error) {
	m, err := localcluster.ReadRunning(data)
	if err != nil {
		return nil, usage("--data %s: no running `tidemark up` there: %v", data, err)
	}
	return m, nil
}

// checkTimeout checks --timeout.
func (f *serverFlags) checkTimeout() error {
	if f.timeout <= 0 {
		return usage("--timeout %s: want a time above 0, such as 30s", f.timeout)
	}
	return nil
}

// client returns a client of the cluster selected by the flags.
func (f *serverFlags) client(ctx context.Context) (*client.Client, context.Context, context.CancelFunc, error) {
	servers := f.server
	var m *localcluster.Manifest
	if len(servers) == 0 && f.data != "" {
		var err error
		if m, err = localManifest(f.data); err != nil {
			return nil, nil, nil, err
		}
		servers = m.Servers()
	}
	if err := f.checkTimeout(); err != nil {
		return nil, nil, nil, err
	}
	if id, ok := ctx.Value(invocationKey{}).(string); ok {
		ctx = rpc.WithRequestID(ctx, id)
	}
	o, err := f.credentials.options(ctx, f.streams, m)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, server := range servers {
		if err := noPlain(server, f.credentials.files); err != nil {
			return nil, nil, nil, err
		}
	}
	o.Servers = servers
	if ctx.Value(waitLimitKey{}) == nil {
		o.ReachFor = reachFor
	}
	o.Session, _ = ctx.Value(sessionKey{}).(*client.Session) // else the client has one of its own
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	c := client.Open(o)
	c.Waiting = f.waiting(o.ReachFor)
	return c, ctx, cancel, nil
}

const (
	// reportAfter is how long a command tries before it reports what it waits for.
	reportAfter = 2 * time.Second
	// reachFor is how long a command tries if no server accepts its connections and the user has set no limit: long enough
	// for managers to restart, and short for a user with a wrong address.
	reachFor = 5 * time.Second
)

// waiting returns a function that reports once, on standard error, what the command waits for.
func (f *serverFlags) waiting(unreached time.Duration) func(error) {
	started, reported := time.Now(), atomic.Bool{}
	return func(err error) {
		limit := fmt.Sprintf("for %s (--timeout)", f.timeout)
		if f.timeout == watchForever {
			limit = "until it is stopped"
		}
		if unreached > 0 && errors.Is(err, client.ErrUnreached) {
			limit = fmt.Sprintf("for %s (longer with --timeout)", unreached)
		}
		if time.Since(started) > reportAfter && reported.CompareAndSwap(false, true) {
			fmt.Fprintf(f.streams.Err, "tidemark: no answer yet (%v); trying %s\n", err, limit)
		}
	}
}

var logLevels = []string{"trace", "debug", "info", "warn", "error", "off"}

// logFlags configure the log and traces of a role.
type logFlags struct{ level, format, otlp string }

// tracing exports the spans of a role, if the flag or the environment sets a destination. The caller must close it.
func (f *logFlags) tracing(ctx context.Context, role, name string, log hclog.Logger) (*tracing.Provider, error) {
	p, err := tracing.Open(ctx, role, name, f.otlp, log.Named("tracing"))
	if err != nil {
		return nil, usage("--otlp-endpoint: %v", err)
	}
	return p, nil
}

func (f *logFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.level, "log-level", "info", "trace, debug, info, warn, error or off")
	cmd.Flags().StringVar(&f.otlp, "otlp-endpoint", "", "collector of OpenTelemetry spans, like http://127.0.0.1:4318 "+
		"(default: OTEL_EXPORTER_OTLP_ENDPOINT, else none)")
	cmd.Flags().StringVar(&f.format, "log-format", "text", "text, or json: one object per line")
	complete(cmd, "log-level", fixed(logLevels...))
	complete(cmd, "log-format", fixed("text", "json"))
}

// logger returns a role's logger, to standard error, configured by the flags.
func (f *logFlags) logger(s Streams, name string) (hclog.Logger, error) {
	l := hclog.LevelFromString(f.level)
	if l == hclog.NoLevel {
		return nil, usage("--log-level %q: want trace, debug, info, warn, error or off", f.level)
	}
	if f.format != "text" && f.format != "json" {
		return nil, usage("--log-format %q: want text or json", f.format)
	}
	detach(s, f.format == "json")
	return logging.New(s.Err, name, l, f.format == "json"), nil
}
