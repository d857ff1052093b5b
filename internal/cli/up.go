package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/index"
	"tidemark/indexer"
	"tidemark/internal/localcluster"
	"tidemark/internal/sample"
	"tidemark/kv/kvclient"
	"tidemark/kv/server"
	"tidemark/manager/api/v1"
	"tidemark/projector"
)

const (
	sampleTimeout = 5 * time.Minute // to load, build and scan
	shownRows     = 3               // of each sample index
)

type upFlags struct {
	cfg    localcluster.Config
	logs   logFlags
	quota  byteSize
	sample bool
	output format
}

func newUp(s Streams) *cobra.Command {
	f := &upFlags{quota: byteSize(indexer.DefaultMemoryQuota)}
	cmd := &cobra.Command{Use: "up", Short: "Run a local cluster: managers, KV nodes with projectors, indexers",
		Args: noArgs,
		Long: `Runs a whole cluster as child processes on loopback and stays in the foreground; Ctrl-C ends it cleanly.
The same command with the same --data folder resumes with all its data.`,
		Example: "  tidemark up --sample\n  tidemark up --data ./cluster --managers 3 --kv 2 --indexers 3",
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), s) }}
	fl := cmd.Flags()
	fl.IntVar(&f.cfg.Managers, "managers", 3, "number of managers")
	fl.IntVar(&f.cfg.KV, "kv", 2, "number of embedded KV nodes, each with a projector")
	fl.BoolVar(&f.cfg.KVAll, "kv-all", false, "run one projector process for all KV nodes, as they come and go, "+
		"instead of one beside each")
	fl.BoolVar(&f.cfg.KVREST, "kv-rest", false, "projectors find their KV nodes by the REST interface of these nodes' "+
		"cluster managers, as by --kv http://HOST")
	fl.StringVar(&f.cfg.Feed, "feed", string(projector.FeedNative), "how projectors consume DCP: native, or gocbcore "+
		"(Couchbase's client)")
	fl.StringVar(&f.cfg.Throttle, "throttle", string(projector.ThrottleAll),
		"all: a slow indexer delays all indexers; smart: it delays none while at most half of them are slow (its data is "+
			"dropped, and it catches up later)")
	complete(cmd, "throttle", fixed("all", "smart"))
	fl.IntVar(&f.cfg.KVReplicas, "kv-replicas", 0, "replicas of each vbucket on the KV nodes, 0 to 3")
	fl.IntVar(&f.cfg.VBuckets, "vbuckets", 0, fmt.Sprintf("vbuckets of the bucket, a power of two up to 1024; 0: %d, or "+
		"as many as in the data folder", localcluster.VBuckets))
	fl.IntVar(&f.cfg.Indexers, "indexers", 3, "number of indexers")
	fl.Var(&f.quota, "memory-quota", "memory of each indexer: a `SIZE` like 512MiB (the minimum), 4GiB, or bytes")
	fl.StringVar(&f.cfg.Dir, "data", "", "data folder (default: a new temporary one)")
	fl.StringVar(&f.cfg.Bucket, "bucket", "world", "the bucket that the KV nodes hold")
	fl.IntVar(&f.cfg.FirstREST, "rest-port", localcluster.FirstREST, "REST port of the first manager, or the next free "+
		"one; more ports follow it")
	hostVar(fl, &f.cfg.Advertise, "advertise-host", "host name that the processes use for each other, for tests "+
		"that cut links")
	fl.Lookup("advertise-host").Hidden = true
	fl.StringVar(&f.cfg.Nasty, "nasty", "", "behaviours of real engines for the KV nodes, for tests; "+
		"see tidemark help nasty")
	_ = fl.MarkHidden("nasty")
	upFailpoints(fl, &f.cfg)
	fl.BoolVar(&f.cfg.TLS, "tls", false, "TLS on every port; KV nodes also have a memcached port without TLS; the "+
		"certificates are made in the folder certs of --data")
	fl.BoolVar(&f.sample, "sample", false, "load the sample data, create the sample indexes and show a scan of each")
	addOutput(fl, &f.output)
	complete(cmd, "output", fixed(formats...))
	addCommon(cmd, &f.logs)
	return cmd
}

// prepare checks the flags, and finds the program and the data folder.
func (f *upFlags) prepare(s Streams) (err error) {
	if _, err := server.ParseMoods(f.cfg.Nasty); err != nil {
		return usage("--nasty: %v", err)
	}
	if _, err := f.logs.logger(s, "up"); err != nil { // only checked: it is for the children
		return err
	}
	f.cfg.MemoryQuota = int64(f.quota)
	if err := indexer.CheckMemoryQuota(f.cfg.MemoryQuota); err != nil {
		return usageError{err}
	}
	if f.cfg.Exe, err = os.Executable(); err != nil {
		return fmt.Errorf("finding the path of this program: %w", err)
	}
	if f.cfg.Dir == "" {
		if f.cfg.Dir, err = os.MkdirTemp("", "tidemark-"); err != nil {
			return fmt.Errorf("data folder: %w", err)
		}
	}
	if f.cfg.Dir, err = filepath.Abs(f.cfg.Dir); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	f.cfg.LogLevel, f.cfg.LogFormat = f.logs.level, f.logs.format
	return nil
}

func (f *upFlags) run(ctx context.Context, s Streams) error {
	if err := f.prepare(s); err != nil {
		return err
	}
	var degraded atomic.Bool
	f.cfg.Missing = func(id string, why error) {
		degraded.Store(true)
		fmt.Fprintf(s.Err, "warning: %v; the others serve without %s, and up keeps trying to start it\n", why, id)
	}
	f.cfg.Died = func(id string, err error, delay time.Duration) {
		why := "ended"
		if err != nil {
			why = err.Error()
		}
		fmt.Fprintf(s.Err, "%s: %s; starting it again in %s (log: %s)\n", id, why, delay,
			filepath.Join(f.cfg.Dir, "logs", id+".log"))
	}
	f.cfg.Removed = func(id string, why error) {
		degraded.Store(true)
		fmt.Fprintf(s.Err, "%s: %v; it is not started again (to add it as a new one, stop up, delete %s and run "+
			"`tidemark up` again)\n", id, why, filepath.Join(f.cfg.Dir, id))
	}
	cluster, err := localcluster.Open(f.cfg)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Err, "data folder: %s\n", f.cfg.Dir)
	started := time.Now()
	err = cluster.Run(ctx, func(ctx context.Context, m localcluster.Manifest) error {
		if err := printCluster(s, f.output, &m); err != nil {
			return err
		}
		verdict := "all answer"
		if degraded.Load() {
			verdict = "enough of them answer"
		}
		fmt.Fprintf(s.Err, "%s after %s\n", verdict, time.Since(started).Round(10*time.Millisecond))
		if f.sample {
			limited, cancel := context.WithTimeout(ctx, sampleTimeout)
			defer cancel()
			if err := f.runSample(limited, s, cluster, &m); err != nil {
				return fmt.Errorf("sample: %w", err)
			}
		}
		fmt.Fprintf(s.Err, "\nready; Ctrl-C ends it, the same command with --data %s resumes\n", f.cfg.Dir)
		return nil
	})
	if err == nil {
		fmt.Fprintln(s.Err, "stopped; all processes have ended")
	}
	return err
}

// process is one line of the output of up.
type process struct {
	Role      string            `json:"role"`
	ID        string            `json:"id"`
	PID       int               `json:"pid"`
	Addresses map[string]string `json:"addresses"` // by name of the interface
	order     []string
}

func (p *process) add(name, address string) {
	if p.Addresses == nil {
		p.Addresses = map[string]string{}
	}
	p.Addresses[name], p.order = address, append(p.order, name)
}

// processes returns the running processes, without the credentials of the manifest.
func processes(m *localcluster.Manifest) (all []process) {
	add := func(role, id string, pid int, pairs ...string) {
		p := process{Role: role, ID: id, PID: pid}
		for i := 0; i < len(pairs); i += 2 {
			p.add(pairs[i], pairs[i+1])
		}
		all = append(all, p)
	}
	for _, e := range m.Managers {
		add("manager", e.ID, e.PID, "rest", e.REST, "raft", e.Raft)
	}
	for _, e := range m.KV {
		add("kv", e.ID, e.PID, "memcached", e.Memcached, "admin", e.Admin)
	}
	for _, e := range m.Projectors {
		add("projector", e.ID, e.PID, "admin", e.Admin)
	}
	for _, e := range m.Indexers {
		add("indexer", e.ID, e.PID, "admin", e.Admin, "scan", e.Scan, "maintenance", e.Data.Maintenance, "backfill",
			e.Data.Backfill, "catchup", e.Data.Catchup)
	}
	return all
}

func printCluster(s Streams, as format, m *localcluster.Manifest) error {
	all := processes(m)
	return show(s.Out, as, map[string]any{"processes": all}, all, func(t *tabwriter.Writer) {
		fmt.Fprintln(t, "ROLE\tID\tPID\tADDRESSES")
		for _, p := range all {
			fmt.Fprintf(t, "%s\t%s\t%d\t", p.Role, p.ID, p.PID)
			for i, name := range p.order {
				if i > 0 {
					fmt.Fprint(t, "  ")
				}
				fmt.Fprint(t, name, " ", p.Addresses[name])
			}
			fmt.Fprintln(t)
		}
	})
}

// runSample loads the documents once, creates the missing indexes, waits for all and shows a scan of each.
func (f *upFlags) runSample(ctx context.Context, s Streams, cluster *localcluster.Cluster,
	m *localcluster.Manifest) error {
	if !m.SampleLoaded {
		if err := loadSample(ctx, s, m); err != nil {
			return err
		}
		if err := cluster.SampleLoaded(); err != nil {
			return err
		}
	}
	conf, err := m.UserTLS()
	if err != nil {
		return err
	}
	c := client.Open(client.Options{Servers: m.Servers(), TLS: conf})
	defer c.Close()
	var ids []index.ID
	for _, statement := range sample.Statements(m.Bucket) {
		id, err := createOnce(ctx, s, c, m.Bucket, statement)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := waitReady(ctx, s, c, ids); err != nil {
		return err
	}
	return showScans(ctx, s, f.output, c, ids)
}

// createOnce executes a CREATE INDEX unless an index of that name exists.
func createOnce(ctx context.Context, s Streams, c *client.Client, bucket, statement string) (index.ID, error) {
	name := sample.IndexName(statement)
	if info, err := c.Index(ctx, client.Ref(bucket, name)); err == nil && info.State != index.Dropping {
		return info.ID, nil
	}
	results, err := c.Statement(ctx, statement)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", statement, err)
	}
	fmt.Fprintln(s.Err, statement)
	return results[0].ID, nil
}

func loadSample(ctx context.Context, s Streams, m *localcluster.Manifest) error {
	r, err := sample.Open()
	if err != nil {
		return err
	}
	var seeds []string
	for _, e := range m.KV {
		seeds = append(seeds, e.Memcached)
	}
	c, err := kvclient.Connect(ctx, seeds, kvclient.Options{User: m.KVUser, Password: m.KVPassword, Bucket: m.Bucket,
		Name: "tidemark-up"})
	if err != nil {
		return err
	}
	defer c.Close()
	started, bar := time.Now(), newBar(s.Err, "loading")
	stats, err := loadDocuments(ctx, c, r,
		func(l kvclient.LoadStats) { bar.set(float64(l.Documents) * 100 / sample.Documents) })
	bar.done(err == nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Err, "%d documents stored in %s\n", stats.Documents, time.Since(started).Round(time.Millisecond))
	return nil
}

func showScans(ctx context.Context, s Streams, as format, c *client.Client, ids []index.ID) error {
	for _, id := range ids {
		info, err := c.Index(ctx, id.String())
		if err != nil {
			return err
		}
		count, err := c.Count(ctx, id.String(), v1.ScanRequest{Consistency: "session"})
		if err != nil {
			return err
		}
		title := s.Err
		if as == formatTable {
			title = s.Out
		}
		fmt.Fprintf(title, "\n%s\n%d entries, the first %d:\n", info.Definition, count.Count, shownRows)
		if _, err := printScan(ctx, s, c, id.String(), v1.ScanRequest{Limit: shownRows, Consistency: "session"},
			as); err != nil {
			return err
		}
	}
	return nil
}
