package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"tidemark/internal/config"
)

const (
	contextsEnv     = "TIDEMARK_CONTEXTS" // the path of the file, instead of the default
	maxContextsFile = 1 << 20
	noContext       = "-" // value of --context for none
)

// contextSettings are the settings of a context, named like the flags.
type contextSettings struct {
	Server       []string `yaml:"server" json:"server"`
	CertsDir     string   `yaml:"certs-dir,omitempty" json:"certs-dir,omitempty"`
	TLSCA        string   `yaml:"tls-ca,omitempty" json:"tls-ca,omitempty"`
	TLSCert      string   `yaml:"tls-cert,omitempty" json:"tls-cert,omitempty"`
	TLSKey       string   `yaml:"tls-key,omitempty" json:"tls-key,omitempty"`
	User         string   `yaml:"user,omitempty" json:"user,omitempty"`
	PasswordFile string   `yaml:"password-file,omitempty" json:"password-file,omitempty"`
	TokenFile    string   `yaml:"token-file,omitempty" json:"token-file,omitempty"`
}

// files returns the settings that are paths.
func (c *contextSettings) files() []*string {
	return []*string{&c.CertsDir, &c.TLSCA, &c.TLSCert, &c.TLSKey, &c.PasswordFile, &c.TokenFile}
}

// contexts is the file: clusters by name, and the current one.
type contexts struct {
	Current  string                      `yaml:"current"`
	Contexts map[string]*contextSettings `yaml:"contexts"`
}

// contextsPath returns the path of this user's file.
func contextsPath() (string, error) {
	if path := os.Getenv(contextsEnv); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("the file of contexts: %w; set its path in %s", err, contextsEnv)
	}
	return filepath.Join(dir, "tidemark", "contexts.yaml"), nil
}

// readContexts reads the file; a missing file has no contexts.
func readContexts() (*contexts, string, error) {
	all := &contexts{Contexts: map[string]*contextSettings{}}
	path, err := contextsPath()
	if err != nil {
		return all, "", err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, path, nil
	} else if err != nil {
		return nil, path, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxContextsFile+1))
	if err != nil || len(b) > maxContextsFile {
		return nil, path, usage("contexts %s: want at most %d bytes (%v)", path, maxContextsFile, err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(all); err != nil && !errors.Is(err, io.EOF) {
		return nil, path, usage("contexts %s: %v", path, err)
	}
	for name, c := range all.Contexts {
		if c == nil || len(c.Server) == 0 {
			return nil, path, usage("contexts %s: %s has no server", path, name)
		}
	}
	if all.Contexts == nil {
		all.Contexts = map[string]*contextSettings{}
	}
	return all, path, nil
}

// write replaces the file.
func (all *contexts) write(path string) error {
	if err := replaceable(path); err != nil {
		return usage("contexts: %v: set TIDEMARK_CONTEXTS to the path of a file", err)
	}
	b, err := yaml.Marshal(all)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".contexts.*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// get returns a context by its name.
func (all *contexts) get(name, path string) (*contextSettings, error) {
	if c := all.Contexts[name]; c != nil {
		return c, nil
	}
	known := strings.Join(slices.Sorted(maps.Keys(all.Contexts)), ", ")
	return nil, usage("there is no context %q in %s, which has: %s; tidemark context add creates one", name, path,
		valueOr(known, "none"))
}

func valueOr(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// useContext sets the flags of the cluster and of the user from --context or the current context, unless a flag or
// variable of higher precedence names a cluster: settings of one cluster are never sent to another. The TLS files are
// taken together, and so are the credentials.
func useContext(cmd *cobra.Command, origins config.Origins) error {
	fl := cmd.Flags()
	flag := fl.Lookup("context")
	if flag == nil || cmd.Annotations[typedServer] != "" {
		return nil
	}
	name, typed := flag.Value.String(), origins["context"] == "flag"
	if name == noContext {
		return nil
	}
	for _, other := range []string{"server", "data"} {
		switch f := fl.Lookup(other); {
		case origins[other] == "default", config.Text(f.Value) == "":
		case typed && origins[other] == "flag":
			return usage("--context %s and --%s both name a cluster: give one of them", name, other)
		case !typed:
			return nil
		}
	}
	all, path, err := readContexts()
	if err != nil {
		return err
	}
	if name == "" {
		if name = all.Current; name == "" {
			return nil
		}
	}
	c, err := all.get(name, path)
	if err != nil {
		return err
	}
	return c.apply(fl, origins, "context "+name)
}

// apply sets flags from the context.
func (c *contextSettings) apply(fl *pflag.FlagSet, origins config.Origins, origin string) error {
	if list, ok := fl.Lookup("server").Value.(pflag.SliceValue); ok {
		if err := list.Replace(c.Server); err != nil {
			return err
		}
		origins["server"] = origin
	}
	if data := fl.Lookup("data"); data != nil && origins["data"] != "default" { // from the environment
		if err := data.Value.Set(""); err != nil {
			return err
		}
	}
	token := os.Getenv(tokenEnv) != ""
	for _, group := range []map[string]string{
		{"certs-dir": c.CertsDir, "tls-ca": c.TLSCA, "tls-cert": c.TLSCert, "tls-key": c.TLSKey},
		{"user": c.User, "password-file": c.PasswordFile, "token-file": c.TokenFile},
	} {
		if _, isUser := group["user"]; isUser && token || anySet(group, origins) {
			continue // set with higher precedence
		}
		if err := setAll(fl, group, origins, origin); err != nil {
			return err
		}
	}
	return nil
}

// anySet reports whether a flag of a group was set.
func anySet(group map[string]string, origins config.Origins) bool {
	for name := range group {
		if origins[name] != "default" {
			return true
		}
	}
	return false
}

// setAll sets the flags of a group that have a value, and records its origin.
func setAll(fl *pflag.FlagSet, group map[string]string, origins config.Origins, origin string) error {
	for name, value := range group {
		if value == "" {
			continue
		}
		if err := fl.Set(name, value); err != nil {
			return err
		}
		origins[name] = origin
	}
	return nil
}

func newContext(s Streams) *cobra.Command {
	return group("context", "Store clusters by name, and choose the one for commands",
		"  tidemark context add prod --server 10.0.0.1:9520,10.0.0.2:9520 --certs-dir ./certs/operator\n  tidemark context "+
			"use prod", contextAdd(s), contextUse(s), contextList(s), contextRemove(s))
}

func contextNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	all, _, err := readContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(all.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

func contextAdd(s Streams) *cobra.Command {
	var c contextSettings
	cmd := &cobra.Command{Use: "add NAME", Short: "Store a cluster under a name, or change it", Args: exactArgs("NAME"),
		ValidArgsFunction: noFiles,
		Long: `Stores the addresses of a cluster's managers and the names of the files with your credentials under a name, in
contexts.yaml in the folder tidemark of your configuration folder, or in the file that TIDEMARK_CONTEXTS names. Secrets
are not copied; they stay in their files. The first context becomes the current one; tidemark context use changes that.
With --server, --data or TIDEMARK_SERVER, which name another cluster, the context is ignored.`,
		Example: "  tidemark context add prod --server 10.0.0.1:9520,10.0.0.2:9520 --certs-dir ./certs/operator\n" +
			"  tidemark context add prod --server n1.example.org --tls-ca ca.pem --user alice",
		RunE: func(_ *cobra.Command, args []string) error {
			name := args[0]
			if !plainName(name) || name == noContext {
				return usage("context %q: want 1 to %d letters, digits or any of . _ -, without a dot at the beginning; %s "+
					"means no context", name, maxNodeName, noContext)
			}
			if len(c.Server) == 0 {
				return usage("tidemark context add needs --server: managers of the cluster")
			}
			for _, p := range c.files() {
				if err := absolute(p); err != nil {
					return err
				}
			}
			all, path, err := readContexts()
			if err != nil {
				return err
			}
			all.Contexts[name] = &c
			all.Current = valueOr(all.Current, name)
			if err := all.write(path); err != nil {
				return err
			}
			_, err = fmt.Fprintln(s.Out, path)
			return err
		}}
	fl := cmd.Flags()
	fl.StringSliceVar(&c.Server, "server", nil, "some managers of the cluster, as host:port or URL")
	fl.StringVar(&c.CertsDir, "certs-dir", "", "`FOLDER` operator that tidemark cert cluster has made")
	fl.StringVar(&c.TLSCA, "tls-ca", "", "PEM `FILE` with the CAs of the servers")
	fl.StringVar(&c.TLSCert, "tls-cert", "", "PEM `FILE` with a certificate to present; see tidemark cert user")
	fl.StringVar(&c.TLSKey, "tls-key", "", "PEM `FILE` with its key")
	fl.StringVar(&c.User, "user", "", "`NAME` of the user")
	fl.StringVar(&c.PasswordFile, "password-file", "", "`FILE` with the user's password")
	fl.StringVar(&c.TokenFile, "token-file", "", "`FILE` with a token instead of user and password")
	return cmd
}

// absolute makes a path absolute, so that it is valid in any working directory. "-" (standard input) is not a path.
func absolute(path *string) (err error) {
	switch *path {
	case "":
		return nil
	case standard:
		return usage("a context stores file names, so standard input is not possible")
	}
	*path, err = filepath.Abs(*path)
	return err
}

func contextUse(s Streams) *cobra.Command {
	return &cobra.Command{Use: "use NAME", Short: "Choose the cluster for commands", Args: exactArgs("NAME"),
		ValidArgsFunction: contextNames, Example: "  tidemark context use prod",
		RunE: func(_ *cobra.Command, args []string) error {
			all, path, err := readContexts()
			if err != nil {
				return err
			}
			c, err := all.get(args[0], path)
			if err != nil {
				return err
			}
			all.Current = args[0]
			if err := all.write(path); err != nil {
				return err
			}
			_, err = fmt.Fprintln(s.Out, args[0], strings.Join(c.Server, ","))
			return err
		}}
}

func contextRemove(s Streams) *cobra.Command {
	return &cobra.Command{Use: "remove NAME", Short: "Remove a stored cluster", Args: exactArgs("NAME"),
		ValidArgsFunction: contextNames, Example: "  tidemark context remove prod",
		RunE: func(_ *cobra.Command, args []string) error {
			all, path, err := readContexts()
			if err != nil {
				return err
			}
			if _, err := all.get(args[0], path); err != nil {
				return err
			}
			delete(all.Contexts, args[0])
			if all.Current == args[0] {
				all.Current = ""
				fmt.Fprintln(s.Err, "no context is selected now: commands use 127.0.0.1:9520")
			}
			return all.write(path)
		}}
}

// contextRow is one line of context list.
type contextRow struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	contextSettings
}

func contextList(s Streams) *cobra.Command {
	var as format
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the stored clusters", Args: noArgs,
		Example: "  tidemark context list",
		RunE: func(*cobra.Command, []string) error {
			all, _, err := readContexts()
			if err != nil {
				return err
			}
			rows := []contextRow{}
			for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
				rows = append(rows, contextRow{name, name == all.Current, *all.Contexts[name]})
			}
			return show(s.Out, as, map[string]any{"contexts": rows}, rows, func(t *tabwriter.Writer) {
				fmt.Fprintln(t, "NAME\tCURRENT\tSERVERS\tUSER\tFILES")
				for _, r := range rows {
					current := ""
					if r.Current {
						current = "yes"
					}
					var files []string
					for _, p := range r.files() {
						if *p != "" {
							files = append(files, *p)
						}
					}
					fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", r.Name, current, strings.Join(r.Server, ","), valueOr(r.User, "-"),
						valueOr(strings.Join(files, " "), "-"))
				}
			})
		}}
	addOutput(cmd.Flags(), &as)
	complete(cmd, "output", fixed(formats...))
	return cmd
}
