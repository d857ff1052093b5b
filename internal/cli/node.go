package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/indexer"
	"tidemark/internal/config"
	"tidemark/internal/localcluster"
	"tidemark/internal/node"
	"tidemark/internal/tlsconf"
)

// Ports of a node, relative to --port.
const (
	portREST = iota
	portRaft
	portNode // readiness
	portProjector
	portIndexer // followed by scan, maintenance, backfill, catchup
	nodePorts   = 10
)

// Limits of nodes.
const (
	maxNodeName = 64
	maxNodes    = 15 // with a manager
)

// nodeName reports whether a name is valid for a node: it is used as a folder, an id and in certificates.
func nodeName(name string) bool { return plainName(name) && name != operatorName && name != anyName }

func plainName(name string) bool {
	return name != "" && len(name) <= maxNodeName && name[0] != '.' &&
		!strings.ContainsFunc(name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
		})
}

// nodeFlags are the flags of tidemark node.
type nodeFlags struct {
	id, data, listen, advertise, certs string
	port                               int
	nodes                              []string
	kv, kvUser, kvPassword             string
	quota                              byteSize
	insecure                           bool
	unnamed                            bool // the name is a default
	logs                               logFlags
	origins                            config.Origins
}

// nodePeer is a node with a manager.
type nodePeer struct{ name, host, port string }

// nodePlan is the evaluation of the flags.
type nodePlan struct {
	f                 *nodeFlags
	file              string // of configuration
	listen            string // host
	advertise         string // host
	peers             []nodePeer
	manages, projects bool // the node has a manager; a projector
}

func newNode(s Streams) *cobra.Command {
	f := &nodeFlags{quota: byteSize(indexer.DefaultMemoryQuota)}
	cmd := &cobra.Command{Use: "node", Short: "Run the roles of one machine: a manager, an indexer, a projector",
		Args: noArgs,
		Long: `Runs the roles of one machine as child processes: an indexer, a manager if --nodes names this node, and a
projector if --kv names a KV node. A child that ends is restarted after a second, later with growing pauses. Stopping
this process stops all children, and no child survives if it is killed. All processes log to standard error.

--nodes has the same value on every machine, so that one configuration file serves all of them: NAME=HOST for each node
with a manager, like n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3 (HOST:PORT if its --port differs). If all these nodes answer
and are empty, they make a new cluster; otherwise this node joins the existing one. A node that is not in the list has
no manager and belongs to the cluster of the listed nodes.

Ports, from --port on: REST, Raft, readiness, projector, indexer, scan, maintenance, backfill, catchup, and one spare.
GET /readyz at the third port reports whether all roles can serve, and otherwise why not. Each role has a folder below
--data. --certs-dir is a folder that tidemark cert cluster has made. Further settings of a role come from its section of
the configuration file, or from the environment.`,
		Example: "  tidemark node\n  tidemark node --config /etc/tidemark/tidemark.yaml\n  tidemark node --id n1 --nodes " +
			"n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3 --certs-dir ./certs/n1 --data /var/lib/tidemark",
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) (err error) { // replaces the root's
			f.origins, err = resolve(cmd)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, s) }}
	fl := cmd.Flags()
	fl.StringVar(&f.id, "id", "", "name of this node, and of its roles (default: that of its certificates, else n1)")
	fl.StringVar(&f.data, "data", "/var/lib/tidemark", "data folder; each role has a folder below it")
	hostVar(fl, &f.listen, "listen", "`HOST` to listen on (default: its host in --nodes, else 127.0.0.1)")
	hostVar(fl, &f.advertise, "advertise", "`HOST` at which others reach this node (default: its host in --nodes, "+
		"else --listen)")
	fl.IntVar(&f.port, "port", localcluster.FirstREST, fmt.Sprintf("the first of %d ports", nodePorts))
	fl.StringSliceVar(&f.nodes, "nodes", nil, "the nodes with a manager, the same list on each: NAME=HOST[:PORT],… "+
		"(default: only this node)")
	fl.StringVar(&f.certs, "certs-dir", "", "`FOLDER` with this node's certificates; see tidemark cert cluster")
	fl.StringVar(&f.kv, "kv", "", "the KV node of this machine, whose vbuckets a projector streams; empty: no projector")
	fl.StringVar(&f.kvUser, "kv-user", "", "user of the KV store")
	fl.StringVar(&f.kvPassword, "kv-password-file", "", "file with the password; read again for each connection")
	fl.Var(&f.quota, "memory-quota", "memory of the indexer: a `SIZE` like 512MiB (the minimum), 4GiB, or bytes")
	fl.BoolVar(&f.insecure, "insecure", false, "listen beyond loopback without TLS")
	addCommon(cmd, &f.logs)
	return cmd
}

func (f *nodeFlags) run(cmd *cobra.Command, s Streams) error {
	log, err := f.logs.logger(s, "node")
	if err != nil {
		return err
	}
	p, err := f.plan(cmd.Flags().Lookup(config.FileFlag).Value.String())
	if err != nil {
		return err
	}
	cfg, err := p.config(s)
	if err != nil {
		return err
	}
	if cfg.Exe, err = os.Executable(); err != nil {
		return fmt.Errorf("finding the path of this program: %w", err)
	}
	cfg.Logger, cfg.Out = log, s.Err
	// Every node has an indexer, and so its certificate.
	tlsF := tlsFlags{files: certsOf(f.certs, tlsconf.Indexer)}
	if cfg.TLS, err = tlsF.open(cmd.Context(), tlsconf.Indexer, f.id, log); err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	n, err := node.Open(cfg)
	if err != nil {
		return err
	}
	p.logStart(log, cfg.TLS)
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	go reloads(ctx, hangup, n)
	return n.Run(ctx)
}

// reloads forwards SIGHUP to the roles, which reload their certificates.
func reloads(ctx context.Context, hangup <-chan os.Signal, n *node.Node) {
	for {
		select {
		case <-hangup:
			n.Reload()
		case <-ctx.Done():
			return
		}
	}
}

// logStart logs in one line what is started and where.
func (p *nodePlan) logStart(log hclog.Logger, source *tlsconf.Source) {
	args := []any{"id", p.f.id, "data", p.f.data}
	if p.manages {
		args = append(args, "manager", source.Scheme()+"://"+p.advertised(portREST))
	}
	args = append(args, "indexer", source.Scheme()+"://"+p.advertised(portIndexer))
	if p.projects {
		args = append(args, "projector", source.Scheme()+"://"+p.advertised(portProjector), "kv", p.f.kv)
	}
	log.Info("node runs", append(args, "ports", fmt.Sprintf("%d-%d", p.f.port, p.f.port+nodePorts-1), "ready",
		source.Scheme()+"://"+p.advertised(portNode)+"/readyz")...)
}

// plan evaluates the flags.
func (f *nodeFlags) plan(file string) (*nodePlan, error) {
	if err := errors.Join(f.identify(), indexer.CheckMemoryQuota(int64(f.quota))); err != nil {
		return nil, usageError{err}
	}
	if f.data == "" {
		return nil, usage("tidemark node needs --data")
	}
	if f.port < 1 || f.port > 1<<16-nodePorts {
		return nil, usage("--port %d: want the first of %d ports, 1 to %d", f.port, nodePorts, 1<<16-nodePorts)
	}
	p := &nodePlan{f: f, file: file, listen: f.listen, advertise: f.advertise, projects: f.kv != ""}
	if !p.projects && (f.kvUser != "" || f.kvPassword != "") {
		return nil, usage("--kv-user and --kv-password-file belong to the KV node of --kv: give --kv, too")
	}
	return p, p.place()
}

// identify sets the name from the node's certificate if none is given.
func (f *nodeFlags) identify() error {
	if f.id == "" && f.certs != "" {
		path := certsOf(f.certs, tlsconf.Indexer).Cert
		cert, err := readCertificate(path)
		if err != nil {
			return fmt.Errorf("--certs-dir: %w; `tidemark cert cluster` makes it", err)
		}
		peer, err := tlsconf.PeerOf(cert)
		if err != nil {
			return fmt.Errorf("--certs-dir: %s: %w", path, err)
		}
		if f.id = peer.ID; f.id == tlsconf.AnyID {
			return fmt.Errorf("--certs-dir: %s is for every node: give --id", path)
		}
	}
	if f.unnamed = f.id == ""; f.unnamed {
		f.id = "n1"
	}
	if !nodeName(f.id) {
		return fmt.Errorf("--id %q: want 1 to %d letters, digits or any of . _ -, without a dot at the beginning, and "+
			"neither %s nor %s", f.id, maxNodeName, operatorName, anyName)
	}
	return nil
}

// noAddress returns the error for a node whose address is not configured.
func (p *nodePlan) noAddress() error {
	if p.f.unnamed {
		return usage("--nodes does not list %s, the default name of a node without --id and --certs-dir: give one of them",
			p.f.id)
	}
	return usage("--nodes does not list %s, so it has no manager and no address: give --listen", p.f.id)
}

// placeAs sets the addresses of this node from its entry in --nodes. Nodes with an entry have a manager.
func (p *nodePlan) placeAs(own nodePeer) error {
	p.manages = true
	p.advertise = cmp.Or(p.advertise, own.host)
	if own.port != strconv.Itoa(p.f.port) {
		return usage("--nodes has %s at port %s, but --port is %d", p.f.id, own.port, p.f.port)
	}
	p.listen = cmp.Or(p.listen, own.host)
	return nil
}

// place finds this node in --nodes, and determines its addresses.
func (p *nodePlan) place() error {
	if err := p.parsePeers(); err != nil {
		return err
	}
	if own := slices.IndexFunc(p.peers, func(n nodePeer) bool { return n.name == p.f.id }); own >= 0 {
		if err := p.placeAs(p.peers[own]); err != nil {
			return err
		}
	}
	if p.listen == "" && p.advertise == "" && len(p.peers) > 0 {
		return p.noAddress()
	}
	p.listen = cmp.Or(p.listen, "127.0.0.1")
	p.advertise = cmp.Or(p.advertise, p.listen)
	if ip := net.ParseIP(p.advertise); ip != nil && ip.IsUnspecified() {
		return usage("others cannot reach this node at %s: give --advertise, or add it to --nodes", p.advertise)
	}
	if len(p.peers) == 0 { // a single node
		p.manages, p.peers = true, []nodePeer{{p.f.id, p.advertise, strconv.Itoa(p.f.port)}}
	}
	return nil
}

// parsePeers parses --nodes.
func (p *nodePlan) parsePeers() error {
	for _, entry := range p.f.nodes {
		n, ok := parsePeer(entry)
		if !ok {
			return usage("--nodes %q: want NAME=HOST or NAME=HOST:PORT of each node with a manager", entry)
		}
		for _, o := range p.peers {
			if o.name == n.name || o.host == n.host && o.port == n.port {
				return usage("--nodes has %s=%s:%s and %s=%s:%s: each node needs a name and an address of its own",
					o.name, o.host, o.port, n.name, n.host, n.port)
			}
		}
		p.peers = append(p.peers, n)
	}
	if len(p.peers) > maxNodes {
		return usage("--nodes has %d nodes with a manager: want at most %d, better 3 or 5; others need not be named",
			len(p.peers), maxNodes)
	}
	return nil
}

// parsePeer parses NAME=HOST:PORT, of which only HOST is required.
func parsePeer(entry string) (nodePeer, bool) {
	name, addr, found := strings.Cut(strings.TrimSpace(entry), "=")
	if !found {
		name, addr = addr, name
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil { // without a port
		host, port = strings.Trim(addr, "[]"), strconv.Itoa(localcluster.FirstREST)
	}
	number, err := strconv.Atoi(port)
	n := nodePeer{cmp.Or(name, host), host, port}
	return n, err == nil && number >= 1 && number <= 1<<16-nodePorts && host != "" &&
		!strings.ContainsAny(host, "/@= \t") && nodeName(n.name)
}

// at returns the address on which this node listens; advertised returns the one announced to others.
func (p *nodePlan) at(port int) string         { return joinPort(p.listen, p.f.port+port) }
func (p *nodePlan) advertised(port int) string { return joinPort(p.advertise, p.f.port+port) }

// here returns the address for connections from this machine.
func (p *nodePlan) here(port int) string {
	host := p.listen
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return joinPort(host, p.f.port+port)
}

func joinPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// setting is a flag of a role, and this node's value for it.
type setting struct {
	name, value string
	// yields gives precedence to the role's own section of the file, unless the flag was given on the command line.
	yields bool
}

// config builds the roles' command lines.
func (p *nodePlan) config(s Streams) (node.Config, error) {
	cfg := node.Config{ID: p.f.id, Dir: p.f.data, Listen: p.at(portNode), Insecure: p.f.insecure}
	var managers []string
	for _, n := range p.peers {
		managers = append(managers, net.JoinHostPort(n.host, n.port))
	}
	rest := strings.Join(managers, ",")
	var all error
	add := func(cmd *cobra.Command, role tlsconf.Role, admin int, own ...setting) {
		args, err := p.role(cmd, role, own)
		cfg.Roles = append(cfg.Roles, node.Role{Name: role, Args: args, Admin: p.here(admin)})
		all = errors.Join(all, err)
	}
	if p.manages {
		add(newManager(s), tlsconf.Manager, portREST, setting{name: "data", value: filepath.Join(p.f.data, "manager")},
			setting{name: "rest", value: p.at(portREST)}, setting{name: "raft", value: p.at(portRaft)},
			setting{name: "rest-advertise", value: p.advertised(portREST)},
			setting{name: "raft-advertise", value: p.advertised(portRaft)},
			setting{name: "bootstrap-expect", value: strconv.Itoa(len(managers))}, setting{name: "join", value: rest})
	}
	add(newIndexer(s), tlsconf.Indexer, portIndexer, setting{name: "data", value: filepath.Join(p.f.data, "indexer")},
		setting{name: "managers", value: rest}, setting{name: "advertise", value: p.advertise},
		setting{name: "admin", value: p.at(portIndexer)}, setting{name: "scan", value: p.at(portIndexer + 1)},
		setting{name: "maintenance", value: p.at(portIndexer + 2)},
		setting{name: "backfill", value: p.at(portIndexer + 3)}, setting{name: "catchup", value: p.at(portIndexer + 4)},
		setting{name: "listen"}, setting{name: "port"}, // each address is given
		setting{name: "memory-quota", value: p.f.quota.String(), yields: true})
	if p.projects {
		add(newProjector(s), tlsconf.Projector, portProjector, setting{name: "managers", value: rest},
			setting{name: "advertise", value: p.advertise}, setting{name: "admin", value: p.at(portProjector)},
			setting{name: "kv", value: p.f.kv}, setting{name: "kv-user", value: p.f.kvUser, yields: true},
			setting{name: "kv-password-file", value: p.f.kvPassword, yields: true})
	}
	return cfg, all
}

// role returns the arguments of a role: own settings, and those of its section of the configuration file. Invalid
// values are found here, rather than by a process that is restarted again and again.
func (p *nodePlan) role(cmd *cobra.Command, role tlsconf.Role, own []setting) ([]string, error) {
	fl, files := cmd.Flags(), certsOf(p.f.certs, role)
	own = append(own, setting{name: "id", value: p.f.id},
		setting{name: "insecure", value: strconv.FormatBool(p.f.insecure)},
		setting{name: "tls-ca", value: files.CA}, setting{name: "tls-cert", value: files.Cert},
		setting{name: "tls-key", value: files.Key}, setting{name: "log-level", value: p.f.logs.level, yields: true},
		setting{name: "log-format", value: p.f.logs.format, yields: true},
		setting{name: "otlp-endpoint", value: p.f.logs.otlp, yields: true})
	origins, err := p.section(fl, role, own)
	if err != nil {
		return nil, err
	}
	for _, set := range own {
		inFile := strings.HasPrefix(origins[set.name], "file ")
		switch {
		case inFile && !set.yields:
			return nil, usage("configuration %s, section %s: %q is set by tidemark node itself: omit it",
				origins[set.name], role, set.name)
		case set.value == "", inFile && (p.f.origins[set.name] == "default" ||
			strings.HasPrefix(p.f.origins[set.name], "file ")):
			continue
		}
		if err := fl.Set(set.name, set.value); err != nil {
			return nil, usage("%s: %v", role, config.Explain(err))
		}
		origins[set.name] = "flag"
	}
	if err := readable(fl, role); err != nil {
		return nil, err
	}
	args := []string{cmd.Name()}
	fl.VisitAll(func(f *pflag.Flag) {
		if from := origins[f.Name]; config.Key(f) && (from == "flag" || strings.HasPrefix(from, "file ")) {
			args = append(args, "--"+f.Name+"="+config.Text(f.Value))
		}
	})
	return args, nil
}

// readAtStart are the flags of roles with a file that the role has to read before it serves.
var readAtStart = []string{"kv-password-file", "initial-admin-password-file", "tls-ca", "tls-cert", "tls-key",
	"kv-tls-ca", "kv-tls-cert", "kv-tls-key"}

// readable checks that a role can read its files.
func readable(fl *pflag.FlagSet, role tlsconf.Role) error {
	for _, name := range readAtStart {
		given := fl.Lookup(name)
		if given == nil || given.Value.String() == "" {
			continue
		}
		file, err := os.Open(given.Value.String())
		if err != nil {
			return usage("%s: --%s: %v", role, name, err)
		}
		_ = file.Close() // nothing was written
	}
	return nil
}

// section sets a role's flags from its section of the file, and checks the environment variables that it will read.
func (p *nodePlan) section(fl *pflag.FlagSet, role tlsconf.Role, own []setting) (config.Origins, error) {
	if err := fl.Set(config.FileFlag, p.file); err != nil {
		return nil, usageError{err}
	}
	origins, err := config.Resolve(fl, config.Source{Role: string(role), Sections: sections(), OnlySection: true,
		Lookup: func(name string) (string, bool) {
			if name == config.EnvName(config.FileFlag) || slices.ContainsFunc(own, func(s setting) bool {
				return config.EnvName(s.name) == name
			}) {
				return "", false // this process has applied it
			}
			return os.LookupEnv(name)
		}})
	if err != nil {
		return nil, usageError{err}
	}
	return origins, nil
}
