package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/internal/config"
	"tidemark/internal/documents"
	"tidemark/internal/tlsconf"
	"tidemark/kv"
	"tidemark/kv/connstr"
	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/restmap"
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
)

func newKV(s Streams) *cobra.Command {
	var id, data, memcached, memcachedTLS, admin, nodes, user, passwordFile, nasty string
	var plain, join bool
	var secure tlsFlags
	var logs logFlags
	var buckets []string
	var quota int64
	cmd := &cobra.Command{Use: "kv", Short: "Run an embedded KV node; load, get, set and delete documents; manage " +
		"the KV cluster", Args: noArgs,
		Long: `Without a subcommand: run one node of the embedded KV store, for development, tests and demonstrations.`,
		Example: "  tidemark kv --id kv1 --data /var/lib/tidemark-kv --nodes kv1=127.0.0.1:11210=127.0.0.1:11211 \\\n    " +
			"--buckets world:5a3e:128 --kv-user index --kv-password-file /etc/tidemark/kv-password",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if data == "" || user == "" || passwordFile == "" {
				return usage("tidemark kv needs --data, --kv-user and --kv-password-file; or did you mean kv load, get, set, " +
					"delete, status, failover or rebalance?")
			}
			log, err := logs.logger(s, "kv")
			if err != nil {
				return err
			}
			cfg := kv.Config{NodeID: id, Dir: data, Listen: memcached, Admin: admin, User: user, AllowPlain: plain,
				QuotaBytes: quota, Join: join, Logger: log}
			if cfg.Nasty, err = server.ParseMoods(nasty); err != nil {
				return usage("--nasty: %v", err)
			}
			if cfg.TLS, err = secure.open(cmd.Context(), tlsconf.KV, id, log); err != nil {
				return err
			}
			if cfg.TLS != nil {
				cfg.ListenTLS = memcachedTLS
			}
			if err := cfg.TLS.MayListen(secure.insecure, tlsconf.Address{Flag: "memcached", HostPort: memcached},
				tlsconf.Address{Flag: "admin", HostPort: admin}); err != nil {
				return err
			}
			if cfg.Password, err = secretFile(passwordFile); err != nil {
				return err
			}
			if cfg.Nodes, err = parseNodes("nodes", nodes); err != nil {
				return err
			}
			if cfg.Buckets, err = parseBuckets(buckets); err != nil {
				return err
			}
			node, err := kv.Open(cfg)
			if err != nil {
				return err
			}
			return node.Run(cmd.Context())
		}}
	fl := cmd.Flags()
	fl.StringVar(&id, "id", "kv1", "name of the node")
	fl.StringVar(&data, "data", "", "data folder")
	fl.StringVar(&memcached, "memcached", "127.0.0.1:11210", "listen here for the memcached protocol")
	fl.StringVar(&memcachedTLS, "memcached-tls", "127.0.0.1:11207", "listen here for the memcached protocol inside TLS, "+
		"with --tls-cert")
	fl.BoolVar(&plain, "allow-plain", false, "accept the password in clear text without TLS, for plain memcached "+
		"clients; they need not select the only bucket")
	fl.StringVar(&admin, "admin", "127.0.0.1:11211", "listen here for status and metrics")
	fl.StringVar(&nodes, "nodes", "", "all nodes, the same list on each: id=memcached=admin[=memcached-tls],…")
	fl.BoolVar(&join, "join", false, "start without vbuckets; kv rebalance --add adds the node")
	fl.StringSliceVar(&buckets, "buckets", nil, "buckets: name:uuid:vbuckets[:replicas]")
	fl.StringVar(&user, "kv-user", "", "user that clients authenticate as")
	fl.StringVar(&passwordFile, "kv-password-file", "", "file with the password")
	fl.Int64Var(&quota, "quota-bytes", 2<<30, "memory for documents")
	fl.StringVar(&nasty, "nasty", "", "behaviours of real engines, for tests of clients; see tidemark help nasty")
	_ = fl.MarkHidden("nasty")
	secure.add(cmd)
	addCommon(cmd, &logs)
	boundStop(cmd)
	cmd.AddCommand(kvLoad(s), kvGet(s), kvSet(s), kvDelete(s), kvStatus(s), kvFailover(s), kvRebalance(s), kvFlush(s),
		kvLogging(s), kvCollection(s), kvBucket(s), kvUserCommand(s),
		kvGroupCommand(s))
	return cmd
}

// addCommon adds the flags of every role.
func addCommon(cmd *cobra.Command, logs *logFlags) {
	logs.add(cmd)
	cmd.Flags().String(config.FileFlag, "", "YAML `FILE` with values for these flags")
	cmd.Annotations = map[string]string{roleKey: cmd.Name()}
}

func parseNodes(flag, text string) (nodes []kv.Peer, err error) {
	for _, one := range strings.Split(text, ",") {
		p := strings.Split(one, "=")
		if len(p) != 3 && len(p) != 4 {
			return nil, usage("--%s %q: want id=memcached=admin[=memcached-tls],… with host:port addresses", flag, text)
		}
		peer := kv.Peer{ID: p[0], Memcached: p[1], Admin: p[2]}
		if len(p) == 4 {
			peer.MemcachedTLS = p[3]
		}
		nodes = append(nodes, peer)
	}
	return nodes, nil
}

func parseBuckets(texts []string) (buckets []kv.BucketConfig, err error) {
	for _, one := range texts {
		p := strings.Split(one, ":")
		if len(p) != 3 && len(p) != 4 {
			return nil, usage("--buckets %q: want name:uuid:vbuckets[:replicas]", one)
		}
		n, err := strconv.Atoi(p[2])
		if err != nil {
			return nil, usage("--buckets %q: %q is not a number of vbuckets", one, p[2])
		}
		b := kv.BucketConfig{Name: p[0], UUID: p[1], VBuckets: n}
		if len(p) == 4 {
			if b.Replicas, err = strconv.Atoi(p[3]); err != nil {
				return nil, usage("--buckets %q: %q is not a number of replicas", one, p[3])
			}
		}
		buckets = append(buckets, b)
	}
	return buckets, nil
}

// kvFlags select the KV cluster and bucket of a client command: flags, environment, or DIR/cluster.json.
type kvFlags struct {
	kv, data, bucket, collection, user, passwordFile, password, network string
	managers                                                            []string // from --kv
	timeout                                                             time.Duration
	tls                                                                 kvTLSFlags
	output                                                              format
	stderr                                                              func() io.Writer
	reach                                                               kvReach
}

func (f *kvFlags) add(cmd *cobra.Command) {
	addOutput(cmd.Flags(), &f.output)
	complete(cmd, "output", fixed(formats...))
	cmd.Flags().StringVar(&f.kv, "kv", "", "some KV nodes of the cluster: host:port, host,host2, or a connection string "+
		"couchbase[s]://host,host2[/bucket][?network=external]; or cluster managers, http[s]://host")
	cmd.Flags().StringVar(&f.data, "data", "", "data `FOLDER` of a running tidemark up, for its address and credentials")
	cmd.Flags().StringVar(&f.bucket, "bucket", "", "bucket (default: that of --kv or --data)")
	networkFlag(cmd.Flags(), &f.network)
	f.stderr = cmd.ErrOrStderr
	cmd.Flags().StringVar(&f.user, "kv-user", "", "user")
	cmd.Flags().StringVar(&f.passwordFile, "kv-password-file", "", "file with the password")
	cmd.Flags().StringVar(&f.password, "kv-password", "", "password (better: TIDEMARK_KV_PASSWORD or a file)")
	f.tls.add(cmd)
}

// addDocuments adds the flags of commands for documents.
func (f *kvFlags) addDocuments(cmd *cobra.Command) {
	f.add(cmd)
	collectionFlag(cmd.Flags(), &f.collection)
	cmd.Flags().DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to try, like 30s")
}

// target returns the nodes to contact first, and the client options.
func (f *kvFlags) target(ctx context.Context) (seeds []string, opt kvclient.Options, err error) {
	var spec connstr.Spec
	if f.kv != "" {
		if spec, err = parseKV(f.kv, &f.tls, &f.network); err != nil {
			return nil, opt, err
		}
		if spec.Bucket != "" && f.bucket != "" && spec.Bucket != f.bucket {
			return nil, opt, usage("--kv has the bucket %q and --bucket is %q: give one of them", spec.Bucket, f.bucket)
		}
		f.bucket = orElse(f.bucket, spec.Bucket)
	}
	if seeds, err = f.manifest(); err != nil {
		return nil, opt, err
	}
	switch {
	case f.kv != "" && spec.REST():
		seeds, f.managers = nil, spec.Managers()
	case f.kv != "":
		var note string
		if seeds, note = kvclient.Seeds(ctx, spec, spec.TLS(f.tls.files != (kvclient.TLSFiles{})), nil); note != "" {
			fmt.Fprintln(f.stderr(), "tidemark:", note)
		}
	}
	if err := f.check(seeds); err != nil {
		return nil, opt, err
	}
	conf, err := f.tls.files.Config()
	if err != nil {
		return nil, opt, usageError{err}
	}
	opt = kvclient.Options{User: f.user, Password: f.password, Bucket: f.bucket, Collection: f.collection,
		Name: "tidemark-cli", TLS: conf, Network: f.network, Dialed: f.reach.dialed}
	if len(f.managers) > 0 {
		source := restmap.New(restmap.Options{Managers: f.managers, Bucket: f.bucket, User: f.user, TLS: conf,
			Password: func() (string, error) { return f.password, nil }, Network: f.network, Dialed: f.reach.dialed})
		opt.Maps = func(ctx context.Context) (*mcbp.ClusterConfig, string, error) {
			a, err := source.Ask(ctx)
			return a.Config, a.Manager, err
		}
	}
	return seeds, opt, nil
}

// manifest takes missing settings from a running up, and returns its nodes.
func (f *kvFlags) manifest() (seeds []string, err error) {
	if f.data == "" {
		return nil, nil
	}
	m, err := localManifest(f.data)
	if err != nil {
		return nil, err
	}
	for _, e := range m.KV {
		seeds = append(seeds, orElse(e.MemcachedTLS, e.Memcached))
	}
	if f.kv == "" && m.TLS != nil && f.tls.files == (kvclient.TLSFiles{}) {
		f.tls.files.CA = m.TLS.CA
	}
	f.bucket, f.user = orElse(f.bucket, m.Bucket), orElse(f.user, m.KVUser)
	if f.passwordFile == "" {
		f.password = orElse(f.password, m.KVPassword)
	}
	return seeds, nil
}

// parseKV parses --kv, and updates other flags from it: TLS if the scheme is couchbases, and the network.
func parseKV(text string, tls *kvTLSFlags, network *string) (connstr.Spec, error) {
	spec, err := connstr.Parse(text)
	switch {
	case err != nil:
		return spec, usage("--kv: %v", err)
	case spec.Scheme == connstr.Scheme && tls.files != (kvclient.TLSFiles{}):
		return spec, usage("--kv %s is without TLS, but --kv-tls… requires it: write %s://", text, connstr.SchemeTLS)
	case spec.Scheme == connstr.SchemeREST && tls.files != (kvclient.TLSFiles{}):
		return spec, usage("--kv %s is without TLS, but --kv-tls… requires it: write %s://", text, connstr.SchemeRESTTLS)
	case spec.Network != "" && *network != "" && spec.Network != *network:
		return spec, usage("--kv has the network %q and --kv-network is %q: give one of them", spec.Network, *network)
	}
	if spec.TLS(false) {
		tls.files.Enabled = true
	}
	*network = orElse(*network, spec.Network)
	return spec, nil
}

// networkFlag adds --kv-network.
func networkFlag(fl *pflag.FlagSet, network *string) {
	fl.StringVar(network, "kv-network", "", "which addresses of KV's cluster map to use: default, external, or empty to "+
		"choose automatically")
}

func (f *kvFlags) connect(ctx context.Context) (*kvclient.Client, context.Context, context.CancelFunc, error) {
	seeds, opt, err := f.target(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	unreached := reachFor
	if ctx.Value(waitLimitKey{}) != nil {
		unreached = 0
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	connecting, end := context.WithCancelCause(ctx)
	var following sync.WaitGroup
	following.Go(func() { f.reach.follow(connecting, f.stderr(), unreached, f.timeout, end) })
	c, err := kvclient.Connect(connecting, seeds, opt)
	cause := context.Cause(connecting)
	end(nil)
	following.Wait() // after this it prints nothing
	if err != nil {
		cancel()
		if errors.Is(cause, errKVUnreached) {
			return nil, nil, nil, cause
		}
		return nil, nil, nil, fmt.Errorf("connecting to KV at %s: %w", strings.Join(append(seeds, f.managers...), ", "), err)
	}
	return c, ctx, cancel, nil
}

// check reads the password, and rejects incomplete settings and invalid collections.
func (f *kvFlags) check(seeds []string) error {
	if f.passwordFile != "" {
		p, err := secretFile(f.passwordFile)
		if err != nil {
			return err
		}
		f.password = p
	}
	if len(seeds)+len(f.managers) == 0 || f.bucket == "" || f.user == "" && f.tls.files.Cert == "" {
		return usage("give the KV cluster (--kv HOST), --bucket, --kv-user and the password, or --data DIR of a " +
			"`tidemark up`")
	}
	_, _, err := splitCollection(f.collection)
	return err
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func kvLoad(s Streams) *cobra.Command {
	f := &kvFlags{}
	var o documents.Options
	var format string
	var unchecked bool
	cmd := &cobra.Command{Use: "load FILE",
		Short: "Store the documents of a file: lines of JSON, a JSON array, CSV or TSV (- for standard input; also gzipped)",
		Long: `Each object of the file is {"key", "value"}, or, with --key-field, a document whose key is one of its fields.
The whole file is read and checked before any document is stored; an error names the line. Standard input is copied to a
temporary file for this check. With --unchecked each document is stored as soon as it is read.`,
		Example: `  tidemark kv load --data ./cluster documents.jsonl.gz
  tidemark kv load --data ./cluster airports.json --key-field iata --key-prefix airport::
  tidemark kv load --data ./cluster people.csv --key-field id --infer-types
  tidemark kv load --kv 127.0.0.1:11210 --bucket world --kv-user tidemark --kv-password-file pw - < documents.jsonl`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(documents.Formats, format) {
				return usage("--format %q: want one of %s", format, strings.Join(documents.Formats, ", "))
			}
			o.Format = documents.Format(format)
			in, size, closeInput, err := openDocuments(args[0], s.In, o, unchecked)
			if err != nil {
				return err
			}
			defer closeInput()
			read := &counter{Reader: in}
			r, err := documents.New(read, o)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			c, ctx, cancel, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			started := time.Now()
			var progress func(kvclient.LoadStats)
			bar := newBar(s.Err, "loading")
			if size > 0 { // the length of a stream is unknown
				progress = func(kvclient.LoadStats) { bar.set(float64(read.n.Load()) * 100 / float64(size)) }
			}
			stats, err := loadDocuments(ctx, c, r, progress)
			bar.done(err == nil && size > 0)
			took := time.Since(started)
			fmt.Fprintf(s.Err, "%d documents, %d bytes stored in %s\n", stats.Documents, stats.Bytes,
				took.Round(time.Millisecond))
			if err != nil {
				return err
			}
			l := loaded{Documents: stats.Documents, Bytes: stats.Bytes, Retried: stats.Retried,
				Milliseconds: took.Milliseconds()}
			return show(s.Out, f.output, l, []loaded{l}, func(*tabwriter.Writer) {})
		}}
	f.addDocuments(cmd)
	fl := cmd.Flags()
	fl.StringVar(&format, "format", string(documents.Auto), "lines (of JSON objects), list (a JSON array), csv or tsv; "+
		"auto checks the first character")
	fl.StringVar(&o.KeyField, "key-field", "", "`FIELD` with the key of each document, like id or meta.id; without it, "+
		`objects are {"key", "value"}`)
	fl.StringVar(&o.KeyPrefix, "key-prefix", "", "`TEXT` before each key, like airport::")
	fl.BoolVar(&o.InferTypes, "infer-types", false, "convert the cells of a table that are numbers, true or false, and "+
		"omit empty cells; otherwise all cells are strings")
	fl.BoolVar(&unchecked, "unchecked", false, "store documents as they are read, instead of checking the whole file "+
		"first")
	complete(cmd, "format", fixed(documents.Formats...))
	return cmd
}

// openDocuments opens a file and, unless unchecked is set, checks all of it. It returns the file at its beginning,
// with its size, which is 0 for a stream.
func openDocuments(name string, stdin io.Reader, o documents.Options, unchecked bool) (in io.Reader, size int64,
	closeInput func(), err error) {
	closeInput = func() {}
	defer func() {
		if err != nil {
			closeInput()
		}
	}()
	var file *os.File
	switch {
	case name != standard:
		if file, err = os.Open(name); err != nil {
			return nil, 0, closeInput, usage("%v", err)
		}
		closeInput = func() { _ = file.Close() }
	case unchecked:
		return stdin, 0, closeInput, nil
	default:
		if file, err = os.CreateTemp("", "tidemark-load-"); err != nil {
			return nil, 0, closeInput, err
		}
		closeInput = func() { _, _ = file.Close(), os.Remove(file.Name()) }
		if _, err = io.Copy(file, stdin); err != nil {
			return nil, 0, closeInput, fmt.Errorf("standard input: %w", err)
		}
	}
	if st, err := file.Stat(); err == nil {
		if size = st.Size(); !st.Mode().IsRegular() { // a pipe can be read only once
			return file, 0, closeInput, nil
		}
	}
	if !unchecked {
		if _, err = file.Seek(0, io.SeekStart); err == nil {
			err = checkDocuments(file, o)
		}
		if err != nil {
			return nil, 0, closeInput, fmt.Errorf("%s: %w; nothing was stored", name, err)
		}
	}
	if _, err = file.Seek(0, io.SeekStart); err != nil {
		return nil, 0, closeInput, err
	}
	return file, size, closeInput, nil
}

// checkDocuments reads all documents of a file. It returns the error of the first one that cannot be stored.
func checkDocuments(in io.Reader, o documents.Options) error {
	r, err := documents.New(in, o)
	for err == nil {
		_, err = r.Next()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// loaded is the JSON output of kv load.
type loaded struct {
	Documents    uint64 `json:"documents"` // stored
	Bytes        uint64 `json:"bytes"`     // of keys and values
	Retried      uint64 `json:"retried"`   // documents that took more than one attempt
	Milliseconds int64  `json:"milliseconds"`
}

// counter counts the bytes read through it.
type counter struct {
	io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// loadDocuments stores all documents of r.
func loadDocuments(ctx context.Context, c *kvclient.Client, r *documents.Reader,
	progress func(kvclient.LoadStats)) (kvclient.LoadStats, error) {
	return c.Load(ctx, func() (string, []byte, bool, error) {
		d, err := r.Next()
		if errors.Is(err, io.EOF) {
			return "", nil, false, nil
		}
		return d.Key, d.Value, err == nil, err
	}, progress)
}

func kvGet(s Streams) *cobra.Command {
	f := &kvFlags{}
	cmd := &cobra.Command{Use: "get KEY", Short: "Print a document", Example: "  tidemark kv get --data ./cluster " +
		"airport::LFPG\n  tidemark kv get --data ./cluster airport::LFPG --output json", Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			d, err := c.Get(ctx, args[0])
			if err != nil {
				return err
			}
			doc := document{Key: args[0], CAS: strconv.FormatUint(d.CAS, 10), Value: d.Value}
			if !json.Valid(d.Value) {
				doc.Value, doc.Raw = nil, d.Value
			}
			return show(s.Out, f.output, doc, []document{doc}, func(t *tabwriter.Writer) { fmt.Fprintf(t, "%s\n", d.Value) })
		}}
	f.addDocuments(cmd)
	return cmd
}

// document is the JSON output of kv get: the value as it is, or raw (base64) if it is not JSON.
type document struct {
	Key   string          `json:"key"`
	CAS   string          `json:"cas"` // of the KV store; it may exceed 2^53
	Value json.RawMessage `json:"value,omitempty"`
	Raw   []byte          `json:"raw,omitempty"`
}

// token is the output of a write: the token for at_plus scans.
type token struct {
	VBucket uint16 `json:"vbucket"`
	VBUUID  string `json:"vbuuid"`
	Seqno   uint64 `json:"seqno"`
}

// printToken prints the token on one line, in the form of scan --token, unless --output is json or yaml.
func printToken(s Streams, as format, m kvclient.Mutation) error {
	if as == formatTable {
		as = formatJSONL
	}
	return write(s.Out, as, token{VBucket: m.VBucket, VBUUID: strconv.FormatUint(m.VBUUID, 10), Seqno: m.Seqno})
}

func kvSet(s Streams) *cobra.Command {
	f := &kvFlags{}
	var raw bool
	cmd := &cobra.Command{Use: "set KEY VALUE", Short: "Store a document and print its token",
		Args:    exactArgs("KEY", "VALUE"),
		Example: `  tidemark kv set --data ./cluster airport::XYZ '{"kind":"airport","name":"New"}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !raw && !json.Valid([]byte(args[1])) {
				return usage("VALUE is not JSON; quote it for the shell, or use --raw to store it nevertheless")
			}
			c, ctx, cancel, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			m, err := c.Set(ctx, args[0], []byte(args[1]), kvclient.StoreOptions{})
			if err != nil {
				return err
			}
			return printToken(s, f.output, m)
		}}
	f.addDocuments(cmd)
	cmd.Flags().BoolVar(&raw, "raw", false, "store a value that is not JSON")
	return cmd
}

func kvDelete(s Streams) *cobra.Command {
	f := &kvFlags{}
	cmd := &cobra.Command{Use: "delete KEY", Short: "Delete a document and print the token",
		Example: "  tidemark kv delete --data ./cluster airport::XYZ", Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			m, err := c.Delete(ctx, args[0], 0)
			if err != nil {
				return err
			}
			return printToken(s, f.output, m)
		}}
	f.addDocuments(cmd)
	return cmd
}
