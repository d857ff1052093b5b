package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tidemark/index"
	"tidemark/indexer"
	"tidemark/indexer/scanserver"
	"tidemark/indexer/storage"
	"tidemark/indexer/verify"
	"tidemark/internal/tlsconf"
	"tidemark/kv/connstr"
	"tidemark/kv/kvclient"
	"tidemark/manager"
	"tidemark/projector"
	"tidemark/projector/core"
	"tidemark/projector/fleet"
	"tidemark/projector/router"
	"tidemark/stability"
)

func newManager(s Streams) *cobra.Command {
	cfg := manager.Config{RaftMetrics: true}
	var adminFile, source string
	var above byteSize
	var logs logFlags
	var tlsF tlsFlags
	setFailpoints := func() error { return nil }
	cmd := &cobra.Command{Use: "manager", Short: "Run an IndexManager", Args: noArgs,
		Long: `Runs one IndexManager: a Raft node with the StateContext and the REST interface. For a new cluster, start it on
each node with its own --id, --data and addresses, and the same --bootstrap-expect and --join. To add a manager to an
existing cluster, start it with an empty --data and --join, without --bootstrap-expect.`,
		Example: "  tidemark manager --id m1 --data /var/lib/tidemark --rest 10.0.0.1:9520 --raft 10.0.0.1:9521 \\\n    " +
			"--bootstrap-expect 3 --join 10.0.0.1:9520,10.0.0.2:9520,10.0.0.3:9520",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Dir == "" {
				return usage("tidemark manager needs --data")
			}
			var err error
			if cfg.Logger, err = logs.logger(s, "manager"); err != nil {
				return err
			}
			spans, err := logs.tracing(cmd.Context(), "manager", cfg.Name, cfg.Logger)
			if err != nil {
				return err
			}
			defer spans.Close()
			cfg.Tracer = spans.Tracer()
			if cfg.StabilitySource, err = stability.ParseSource(source); err != nil {
				return usage("--stability-source %s: want sync or heartbeat", source)
			}
			cfg.SplitAbove = int64(above)
			if err := checkSplits(&cfg); err != nil {
				return err
			}
			if err := setFailpoints(); err != nil {
				return err
			}
			if !cmd.Flags().Changed("bootstrap-expect") && len(cfg.Join) == 0 {
				cfg.BootstrapExpect = 1
			}
			if cfg.TLS, err = tlsF.open(cmd.Context(), tlsconf.Manager, cfg.Name, cfg.Logger); err != nil {
				return err
			}
			for _, addr := range cfg.Join {
				if err := noPlain(addr, tlsF.files); err != nil {
					return err
				}
			}
			cfg.Insecure = tlsF.insecure
			if adminFile != "" {
				if cfg.InitialAdmin, err = readSecret(s, adminFile); err != nil {
					return err
				}
			}
			m, err := manager.Open(cfg)
			if err != nil {
				return err
			}
			return m.Run(cmd.Context())
		}}
	fl := cmd.Flags()
	fl.StringVar(&cfg.Name, "id", "m1", "name of this manager")
	fl.StringVar(&cfg.Dir, "data", "", "data folder")
	fl.StringVar(&cfg.REST, "rest", "127.0.0.1:9520", "listen here for REST")
	fl.StringVar(&cfg.Raft, "raft", "127.0.0.1:9521", "listen here for Raft")
	fl.StringVar(&cfg.RESTAdvertise, "rest-advertise", "", "host:port at which others reach --rest, if it differs")
	fl.StringVar(&cfg.RaftAdvertise, "raft-advertise", "", "host:port at which others reach --raft, if it differs")
	fl.StringVar(&adminFile, "initial-admin-password-file", "", "`FILE` with the password of the user admin, added when "+
		"the cluster has no users")
	fl.IntVar(&cfg.BootstrapExpect, "bootstrap-expect", 0, "number of managers of a new cluster; 0: join the cluster of "+
		"--join, or without --join wait for cluster join (default 1 without --join)")
	fl.StringSliceVar(&cfg.Join, "join", nil, "REST addresses of all managers")
	fl.DurationVar(&cfg.Heartbeat, "heartbeat", 300*time.Millisecond, "Raft heartbeat, election and lease time")
	fl.DurationVar(&cfg.RepairAfter, "repair-after", manager.DefaultRepairAfter,
		"how long an indexer may be offline before its copies are rebuilt on others; below 0: never rebuild")
	fl.Var(&above, "split-above", "bytes per slice above which its index is split automatically, like 64GiB; 0: never")
	fl.Int64Var(&cfg.SplitAboveRate, "split-above-rate", 0, "entries written to and read from a slice per "+
		"second above which its index is split automatically; 0: never")
	fl.DurationVar(&cfg.SplitAfter, "split-after", manager.DefaultSplitAfter, "how long a slice must be above "+
		"--split-above or --split-above-rate; an index is not split for six times as long after it was created or split")
	fl.StringVar(&source, "stability-source", stability.Sync.String(), "source of the stability timestamps of buckets "+
		"without a setting of their own: sync or heartbeat")
	complete(cmd, "stability-source", fixed("sync", "heartbeat"))
	fl.StringVar(&cfg.Audit.Name, "audit-log", "", "`FILE` to which a line of JSON is written for each write, and for "+
		"each request that the sender was not allowed to make; empty: none")
	fl.IntVar(&cfg.Audit.Size, "audit-log-size", manager.DefaultAuditSize, "size in MiB at which a new file of the "+
		"audit log begins; the full file gets the time as part of its name")
	fl.IntVar(&cfg.Audit.Files, "audit-log-files", manager.DefaultAuditFiles, "number of full files of the audit log "+
		"that are kept")
	fl.Uint64Var(&cfg.MinFree, "min-free-bytes", 32<<20, "with less free space than this in the file system of --data, "+
		"transfer leadership and report not ready; 0: never")
	tlsF.add(cmd)
	setFailpoints = managerFailpoints(fl, &cfg)
	addCommon(cmd, &logs)
	boundStop(cmd)
	return cmd
}

// checkSplits checks the flags of automatic splits.
func checkSplits(cfg *manager.Config) error {
	switch {
	case cfg.SplitAfter < 0:
		return usage("--split-after %v: want a time above 0; --split-above 0 and --split-above-rate 0 turn splits off",
			cfg.SplitAfter)
	case cfg.SplitAboveRate < 0:
		return usage("--split-above-rate %d: want a number of entries a second; 0: never split", cfg.SplitAboveRate)
	}
	return nil
}

// noPlain rejects an address without TLS if TLS is configured: there is no silent fallback.
func noPlain(addr string, files tlsconf.Files) error {
	if !files.Empty() && strings.HasPrefix(strings.ToLower(strings.TrimSpace(addr)), "http://") {
		return usage("%s is without TLS, but --tls-ca is given: write https://, or only the address", strings.TrimSpace(addr))
	}
	return nil
}

// managerURLs returns the base URLs for host:port addresses.
func managerURLs(addrs []string, files tlsconf.Files) ([]string, error) {
	scheme := "http"
	if !files.Empty() {
		scheme = "https"
	}
	var urls []string
	for _, a := range addrs {
		if a = strings.TrimRight(strings.TrimSpace(a), "/"); a == "" {
			continue
		}
		a = tlsconf.BaseURL(scheme, a)
		if err := noPlain(a, files); err != nil {
			return nil, err
		}
		urls = append(urls, a)
	}
	if len(urls) == 0 {
		return nil, usage("--managers is required: the REST addresses of the managers, separated by commas")
	}
	return urls, nil
}

// kvUser sets the projector's KV credentials: a user and password, or a certificate alone.
func kvUser(cfg *projector.Config, passwordFile string, certificate bool) error {
	if cfg.User != "" || passwordFile != "" {
		cfg.ReadPassword = func() (string, error) { return secretFile(passwordFile) }
		if _, err := cfg.ReadPassword(); err != nil {
			return err
		}
	}
	if cfg.User == "" && (!certificate || passwordFile != "") {
		return usage("tidemark projector needs --kv-user and --kv-password-file, or --kv-tls-cert and --kv-tls-key alone " +
			"if KV identifies users by their certificates")
	}
	return nil
}

// projectorKV parses --kv and the related flags. A projector has one node: the text must not name more, nor a bucket.
// With all it may name any nodes of a cluster.
func projectorKV(cfg *projector.Config, kvTLS *kvTLSFlags, all bool) (spec connstr.Spec, err error) {
	spec, err = parseKV(cfg.KV, kvTLS, &cfg.KVNetwork)
	switch {
	case err != nil:
		return spec, err
	case len(spec.Hosts) > 1 && !all:
		return spec, usage("--kv %s has %d hosts: a projector streams the vbuckets of one node; run one for each of them, "+
			"or one with --kv-all for all nodes of their cluster", cfg.KV, len(spec.Hosts))
	case spec.Bucket != "":
		return spec, usage("--kv %s has a bucket: omit it, a projector streams all buckets with indexes", cfg.KV)
	}
	if cfg.KVTLS, err = kvTLS.files.Config(); err != nil {
		return spec, usageError{err}
	}
	if cfg.KVTLS != nil {
		cfg.ReadKVTLS = kvTLS.files.Config
	}
	if cfg.KV = spec.Hosts[0].Addr(cfg.KVTLS != nil); spec.REST() {
		cfg.KVManager = spec.Managers()[0]
		cfg.KV = cfg.KVManager
	}
	return spec, nil
}

// runProjector runs a projector for one KV node, or, with all, one for each node of the cluster of spec.
func runProjector(ctx context.Context, cfg projector.Config, spec connstr.Spec, all bool) error {
	if !all {
		p, err := projector.Open(cfg)
		if err != nil {
			return err
		}
		return p.Run(ctx)
	}
	several := fleet.Config{Projector: cfg, Managers: spec.Managers()}
	if !spec.REST() {
		var note string
		if several.Seeds, note = kvclient.Seeds(ctx, spec, cfg.KVTLS != nil, nil); note != "" {
			cfg.Logger.Warn(note)
		}
	}
	p, err := fleet.Open(several)
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// checkProjectorID rejects the characters that distinguish the projectors of one process.
func checkProjectorID(id string) error {
	if strings.Contains(id, "@") {
		return usage("--id %s: the part after an @ is reserved for the KV nodes of a process with --kv-all; omit it", id)
	}
	return nil
}

func newProjector(s Streams) *cobra.Command {
	var cfg projector.Config
	var kvTLS kvTLSFlags
	var id, passwordFile, share string
	var all bool
	var logs logFlags
	var managers []string
	var tlsF tlsFlags
	cmd := &cobra.Command{Use: "projector", Short: "Run a projector next to a KV node; show what projectors do",
		Args: noArgs,
		Example: "  tidemark projector --id p1 --admin 10.0.0.4:9530 --kv 10.0.0.4:11210 --kv-user index " +
			"--kv-password-file /etc/tidemark/kv-password \\\n    --managers 10.0.0.1:9520,10.0.0.2:9520,10.0.0.3:9520",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cfg.ID = index.ProjectorID(id)
			if err := errors.Join(checkProjectorID(id), cfg.Feed.Check(), cfg.Throttle.Check()); err != nil {
				return usageError{err}
			}
			spec, err := projectorKV(&cfg, &kvTLS, all)
			if err != nil {
				return err
			}
			if cfg.Managers, err = managerURLs(managers, tlsF.files); err != nil {
				return err
			}
			if cfg.Connections < 1 || cfg.Connections > router.MaxConnections {
				return usage("--indexer-connections accepts 1 to %d", router.MaxConnections)
			}
			if cfg.Share, err = core.ParseShare(share); err != nil {
				return usageError{err}
			}
			if all && share != "" {
				return usage("--vbuckets is a share of one node's vbuckets: omit it with --kv-all")
			}
			if err := kvUser(&cfg, passwordFile, kvTLS.files.Cert != ""); err != nil {
				return err
			}
			if cfg.Logger, err = logs.logger(s, "projector"); err != nil {
				return err
			}
			spans, err := logs.tracing(cmd.Context(), "projector", id, cfg.Logger)
			if err != nil {
				return err
			}
			defer spans.Close()
			cfg.Tracer = spans.Tracer()
			if cfg.TLS, err = tlsF.open(cmd.Context(), tlsconf.Projector, id, cfg.Logger); err != nil {
				return err
			}
			cfg.Insecure = tlsF.insecure
			return runProjector(cmd.Context(), cfg, spec, all)
		}}
	fl := cmd.Flags()
	fl.StringVar(&id, "id", "p1", "name of this projector; with --kv-all the prefix of the names of its KV nodes' "+
		"projectors")
	fl.StringSliceVar(&managers, "managers", nil, "REST addresses of the managers")
	fl.StringVar(&cfg.Admin, "admin", "127.0.0.1:9530", "listen here for commands")
	hostVar(fl, &cfg.Advertise, "advertise", "`HOST` at which others reach --admin, if it differs; the port is the same")
	fl.StringVar(&cfg.KV, "kv", "127.0.0.1:11210", "the one KV node whose vbuckets it streams: host:port or "+
		"couchbase[s]://host (no list, and no DNS name of a whole cluster), or http[s]://host, the cluster manager of that "+
		"node, which reports the node's address. With --kv-all: any nodes of a cluster, as for SDKs")
	fl.BoolVar(&all, "kv-all", false, "serve every node in the map of the cluster of --kv, each by a projector of its "+
		"own in this process: nodes that join are added, nodes that leave are removed")
	fl.StringVar(&share, "vbuckets", "", "stream only these vbuckets of the node, like 0-511,700, if several "+
		"projectors serve one node")
	fl.IntVar(&cfg.Connections, "indexer-connections", router.DefaultConnections,
		fmt.Sprintf("data connections to each indexer for each bucket and kind of stream, 1 to %d; the data of a "+
			"vbucket use one of them", router.MaxConnections))
	fl.StringVar(&cfg.User, "kv-user", "", "user of the KV store; none if --kv-tls-cert identifies it")
	fl.StringVar(&passwordFile, "kv-password-file", "", "file with the password; read again for each connection")
	fl.StringVar((*string)(&cfg.Feed), "feed", string(projector.FeedNative),
		"how DCP is consumed: native, or gocbcore (Couchbase's client)")
	fl.StringVar((*string)(&cfg.Throttle), "throttle", string(projector.ThrottleAll),
		"all: a slow indexer delays all indexers; smart: it delays none while at most half of them are slow (its data is "+
			"dropped, and it catches up later)")
	complete(cmd, "throttle", fixed("all", "smart"))
	kvTLS.add(cmd)
	networkFlag(fl, &cfg.KVNetwork)
	tlsF.add(cmd)
	addCommon(cmd, &logs)
	boundStop(cmd)
	cmd.AddCommand(projectorState(s))
	return cmd
}

func newIndexer(s Streams) *cobra.Command {
	var cfg indexer.Config
	quota := byteSize(indexer.DefaultMemoryQuota)
	var logs logFlags
	var managers []string
	var tlsF tlsFlags
	var listen listenFlags
	cmd := &cobra.Command{Use: "indexer", Short: "Run an indexer", Args: noArgs,
		Example: "  tidemark indexer --id i1 --data /var/lib/tidemark --listen 10.0.0.5 --managers " +
			"10.0.0.1:9520,10.0.0.2:9520,10.0.0.3:9520",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if cfg.Dir == "" {
				return usage("tidemark indexer needs --data")
			}
			cfg.MemoryQuota = int64(quota)
			if err := indexer.CheckMemoryQuota(cfg.MemoryQuota); err != nil {
				return usageError{err}
			}
			if cfg.Managers, err = managerURLs(managers, tlsF.files); err != nil {
				return err
			}
			if err := listen.place(cmd, &cfg); err != nil {
				return err
			}
			if cfg.Logger, err = logs.logger(s, "indexer"); err != nil {
				return err
			}
			spans, err := logs.tracing(cmd.Context(), "indexer", cfg.Name, cfg.Logger)
			if err != nil {
				return err
			}
			defer spans.Close()
			cfg.Tracer = spans.Tracer()
			if cfg.TLS, err = tlsF.open(cmd.Context(), tlsconf.Indexer, cfg.Name, cfg.Logger); err != nil {
				return err
			}
			cfg.Insecure = tlsF.insecure
			cfg.OwnProcess = true
			return runIndexer(cmd.Context(), cfg, &listen)
		}}
	fl := cmd.Flags()
	fl.StringVar(&cfg.Name, "id", "i1", "name of this indexer; with --listen the default is its first advertised address")
	fl.StringVar(&cfg.Dir, "data", "", "data folder")
	fl.StringSliceVar(&managers, "managers", nil, "REST addresses of the managers")
	fl.StringVar(&cfg.Admin, "admin", "127.0.0.1:9540", "listen here for commands")
	hostVar(fl, &cfg.Advertise, "advertise", "`HOST` at which others reach these ports, if it differs; the ports "+
		"are the same")
	fl.StringVar(&cfg.Zone, "zone", "", "failure domain, like a rack: replicas of a slice are placed in different "+
		"zones as far as possible")
	fl.Uint32Var(&cfg.Capacity, "capacity", 1, "relative share of the slices: an indexer of capacity 2 "+
		"gets twice as many as one of capacity 1")
	fl.StringVar(&cfg.Scan, "scan", "127.0.0.1:9541", "listen here for scans")
	fl.StringVar(&cfg.Maintenance, "maintenance", "127.0.0.1:9542", "listen here for maintenance streams")
	fl.StringVar(&cfg.Backfill, "backfill", "127.0.0.1:9543", "listen here for backfill streams")
	fl.DurationVar(&cfg.OrphanGrace, "orphan-grace", indexer.DefaultOrphanGrace,
		"how long a slice that is not in the cluster's definitions is kept before it is dropped; below 0: forever")
	fl.IntVar(&cfg.KeepSnapshots, "snapshots", indexer.DefaultKeepSnapshots,
		"number of snapshots in memory that each slice keeps for scans")
	fl.DurationVar(&cfg.Checkpoint, "checkpoint-every", indexer.DefaultCheckpoint,
		"time between the checkpoints of a slice, to which a rollback can return")
	fl.IntVar(&cfg.KeepCheckpoints, "checkpoints", storage.DefaultKeepCheckpoints,
		"minimum number of checkpoints that each slice keeps; see --replica-lag")
	fl.DurationVar(&cfg.ReplicaLag, "replica-lag", indexer.DefaultReplicaLag,
		"how long KV's replicas may lag: enough checkpoints are kept to have one older than this; 0: only --checkpoints "+
			"counts")
	fl.Int64Var(&cfg.CatchupRate, "catchup-rate", 0, "events a second that are accepted from catchup streams, so that "+
		"recovery leaves capacity for other work (at least 1000); 0: 10,000 per processor; below 0: no limit")
	cfg.TransferRate = indexer.DefaultTransferRate
	fl.Var((*byteRate)(&cfg.TransferRate), "transfer-rate", "bytes a second at which this indexer sends files of its "+
		"slices to indexers that get a copy: a `SIZE` like 16MiB (at least 1MiB; below 0: no limit); 0: it sends no files, "+
		"and fills its own new slices only from KV")
	fl.Int64Var(&cfg.AuditRate, "audit-rate", verify.DefaultAuditRate, "rows and documents a second at which this "+
		"indexer's slices are continuously compared with the KV data, so that wrong ones are found and streamed again (at "+
		"least 100); below 0: never")
	fl.DurationVar(&cfg.AuditEvery, "audit-every", verify.DefaultAuditEvery,
		"pause between two rounds of --audit-rate over all slices")
	fl.DurationVar(&cfg.SlowScan, "slow-scan", scanserver.DefaultSlow, "scans that take longer are recorded with what "+
		"they waited for, the newest 256 (tidemark scan slow); below 0: none")
	fl.StringVar(&cfg.Catchup, "catchup", "127.0.0.1:9544", "listen here for catchup streams")
	fl.Var(&quota, "memory-quota", "memory for queues, cache, unwritten data and scans: a `SIZE` like 512MiB "+
		"(the minimum), 4GiB, or bytes")
	listen.add(cmd)
	tlsF.add(cmd)
	addCommon(cmd, &logs)
	boundStop(cmd)
	return cmd
}

func runIndexer(ctx context.Context, cfg indexer.Config, listen *listenFlags) error {
	i, err := indexer.Open(cfg)
	if err != nil {
		return listen.taken(err)
	}
	if err := listen.keep(cfg.Dir); err != nil {
		cfg.Logger.Warn("the next start may use other ports", "error", err)
	}
	return i.Run(ctx)
}

// kvTLSFlags are the TLS flags of a process that connects to KV.
type kvTLSFlags struct{ files kvclient.TLSFiles }

func (f *kvTLSFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.files.Enabled, "kv-tls", false, "TLS to KV, also without --kv-tls-ca: then the system's CAs are trusted")
	fl.StringVar(&f.files.CA, "kv-tls-ca", "", "PEM `FILE` with the CAs that KV's certificates are checked against")
	fl.StringVar(&f.files.Cert, "kv-tls-cert", "", "PEM `FILE` with a certificate to present to KV")
	fl.StringVar(&f.files.Key, "kv-tls-key", "", "PEM `FILE` with its key")
	fl.BoolVar(&f.files.SkipVerify, "kv-tls-skip-verify", false, "TLS to KV without checking its certificate: anyone on "+
		"the path can read and change all data")
}
