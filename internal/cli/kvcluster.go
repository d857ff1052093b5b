package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/errcode"
	"tidemark/internal/tlsconf"
	"tidemark/kv"
	"tidemark/kv/clustermap"
)

// rebalancePoll is the interval between checks of a rebalance.
const rebalancePoll = 200 * time.Millisecond

// leaderAbsence is how long a command waits for a KV node that does not answer and may be restarting.
const leaderAbsence = 5 * time.Minute

// errLeaderSilent is wrapped if other nodes answer, but not the one that runs the operation.
var errLeaderSilent = errors.New("the node that leads the cluster does not answer")

// kvAdminFlags select the KV cluster whose admin interface a command uses.
type kvAdminFlags struct {
	admin, data, user, passwordFile, password string
	files                                     tlsconf.Files
	output                                    format
}

func (f *kvAdminFlags) add(cmd *cobra.Command) {
	addOutput(cmd.Flags(), &f.output)
	complete(cmd, "output", fixed(formats...))
	cmd.Flags().StringVar(&f.admin, "admin", "", "admin addresses of KV nodes, host:port,…; with TLS if --tls-ca is "+
		"given, or for addresses that begin with https://")
	cmd.Flags().StringVar(&f.data, "data", "", "data `FOLDER` of a running tidemark up, for its addresses and credentials")
	cmd.Flags().StringVar(&f.user, "kv-user", "", "user")
	cmd.Flags().StringVar(&f.passwordFile, "kv-password-file", "", "file with the password")
	cmd.Flags().StringVar(&f.password, "kv-password", "", "password (better: TIDEMARK_KV_PASSWORD or a file)")
	cmd.Flags().StringVar(&f.files.CA, "tls-ca", "", "PEM `FILE` with the CAs of the nodes' certificates: addresses "+
		"without a scheme are then https")
	cmd.Flags().StringVar(&f.files.Cert, "tls-cert", "", "PEM `FILE` with a certificate to present, instead of --kv-user "+
		"for commands that change nothing")
	cmd.Flags().StringVar(&f.files.Key, "tls-key", "", "PEM `FILE` with its key")
}

func (f *kvAdminFlags) open() (*kv.Admin, error) {
	var urls []string
	if f.admin != "" {
		urls = strings.Split(f.admin, ",")
	}
	if f.data != "" {
		local, err := f.ofData()
		if err != nil {
			return nil, err
		}
		if len(urls) == 0 {
			urls = local
		}
	}
	if f.passwordFile != "" {
		p, err := secretFile(f.passwordFile)
		if err != nil {
			return nil, err
		}
		f.password = p
	}
	if len(urls) == 0 {
		return nil, usage("give KV nodes (--admin HOST:PORT), or --data DIR of a `tidemark up`")
	}
	source, err := tlsconf.Open(f.files, nil)
	if err != nil {
		return nil, usageError{err}
	}
	return openKVAdmin(urls, f.user, f.password, source)
}

// ofData returns the nodes of the local cluster in the data folder, and takes missing settings from it.
func (f *kvAdminFlags) ofData() (urls []string, err error) {
	m, err := localManifest(f.data)
	if err != nil {
		return nil, err
	}
	for _, e := range m.KV {
		urls = append(urls, e.Admin)
	}
	if f.files.Empty() && m.TLS != nil {
		f.files = tlsconf.Files(*m.TLS)
	}
	f.user = orElse(f.user, m.KVUser)
	if f.passwordFile == "" {
		f.password = orElse(f.password, m.KVPassword)
	}
	return urls, nil
}

// openKVAdmin returns a client for addresses with or without a scheme. It uses TLS if there is a source, or if the
// addresses begin with https://.
func openKVAdmin(urls []string, user, password string, source *tlsconf.Source) (*kv.Admin, error) {
	conf := source.UserClient()
	var addresses []string
	secure := 0
	for _, url := range urls {
		scheme, address, found := strings.Cut(strings.TrimRight(strings.TrimSpace(url), "/"), "://")
		switch {
		case !found:
			scheme, address = source.Scheme(), scheme
		case scheme == "http" && source != nil:
			return nil, usage("%s is without TLS, but --tls-ca is given: write https://, or only the address", url)
		case scheme != "http" && scheme != "https":
			return nil, usage("--admin %s: want host:port, or a URL that begins with http:// or https://", url)
		}
		if scheme == "https" {
			secure++
		}
		addresses = append(addresses, address)
	}
	if secure > 0 && secure < len(urls) {
		return nil, usage("--admin %s: either all nodes of a cluster use TLS, or none", strings.Join(urls, ","))
	}
	if secure > 0 && conf == nil {
		conf = &tls.Config{MinVersion: tls.VersionTLS12} // with the system's CAs
	}
	return kv.NewAdmin(addresses, user, password, conf), nil
}

// kvAdminCodes maps errors of a KV cluster to exit codes; the first match is used.
var kvAdminCodes = []struct {
	err  error
	code int
}{
	{clustermap.ErrNoBucket, errcode.ExitNotFound}, {clustermap.ErrNoScope, errcode.ExitNotFound},
	{clustermap.ErrNoCollection, errcode.ExitNotFound}, {clustermap.ErrNoUser, errcode.ExitNotFound},
	{clustermap.ErrNoMember, errcode.ExitNotFound}, {clustermap.ErrNoGroup, errcode.ExitNotFound},
	{clustermap.ErrBucketExists, errcode.ExitConflict}, {clustermap.ErrNameExists, errcode.ExitConflict},
	{clustermap.ErrRebalancing, errcode.ExitConflict}, {clustermap.ErrTooManyBuckets, errcode.ExitFailed},
	{clustermap.ErrBuckets, errcode.ExitUsage}, // an invalid name or number
	{kv.ErrSilent, errcode.ExitUnavailable}, {errLeaderSilent, errcode.ExitUnavailable},
}

// kvAdminCode returns the exit code of a KV cluster's error; 0 if the table has none.
func kvAdminCode(err error) int {
	for _, c := range kvAdminCodes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return 0
}

func kvStatus(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	cmd := &cobra.Command{Use: "status", Short: "Show the embedded KV cluster: nodes, vbuckets, replica lag, running " +
		"operations", Args: noArgs,
		Example: "  tidemark kv status --data ./cluster\n  tidemark kv status --admin 127.0.0.1:11211 --output json\n  " +
			"tidemark kv status --admin kv1.example.org:11211 --tls-ca ca.pem --kv-user index --kv-password-file pw",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			status, err := a.Status(cmd.Context())
			if err != nil {
				return err
			}
			return show(s.Out, f.output, status, status.Nodes, func(t *tabwriter.Writer) { kvStatusTable(t, status) })
		}}
	f.add(cmd)
	return cmd
}

func kvStatusTable(t *tabwriter.Writer, s kv.ClusterStatus) {
	fmt.Fprintln(t, "NODE\tSTATE\tMEMCACHED\tADMIN\tMAP\tBUCKET\tACTIVE\tREPLICA\tITEMS\tLAG")
	for _, n := range s.Nodes {
		head := fmt.Sprintf("%s\t%s\t%s\t%s\t%d.%d", n.ID, n.State, n.Memcached, n.Admin, n.RevEpoch, n.Rev)
		if len(n.Buckets) == 0 {
			fmt.Fprintf(t, "%s\t\t\t\t\t\n", head)
		}
		for _, b := range n.Buckets {
			lag := fmt.Sprint(b.Lag)
			if b.Unjoined > 0 {
				lag += fmt.Sprintf(" (%d not connected)", b.Unjoined)
			}
			if b.Paused {
				lag += " (paused)"
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\n", head, b.Bucket, b.Active, b.Replica, b.Items, lag)
			head = "\t\t\t\t"
		}
	}
	fmt.Fprintf(t, "map %d.%d, led by %s\n", s.RevEpoch, s.Rev, s.Leader)
	if p := s.Progress; p != nil {
		fmt.Fprintf(t, "rebalance %s: %d of %d vbuckets left", p.Operation, p.Left, p.Total)
		if p.Waiting != "" {
			fmt.Fprintf(t, "; waits for %s", p.Waiting)
		}
		fmt.Fprintln(t)
	}
}

func kvFailover(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	var lose bool
	cmd := &cobra.Command{Use: "failover NODE…", Short: "Take KV nodes out of the cluster and promote the replicas of " +
		"their vbuckets",
		Long: `Takes nodes out of the cluster and promotes the replicas of their vbuckets. A node that still answers transfers
its vbuckets first. Without --lose the failover is refused if writes that are known to have been made would be lost.
With --lose the best replicas are promoted as they are: their vbuckets begin new branches, and consumers that have read
beyond them must roll back.

All other members must answer. A node that was failed over detects that before it serves again.`,
		Example: "  tidemark kv failover kv2 --data ./cluster\n  tidemark kv failover kv2 --lose --data ./cluster",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("%s needs one or more NODEs", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			answer, err := a.Failover(cmd.Context(), kv.FailoverRequest{Nodes: args, Lose: lose})
			if err != nil {
				return err
			}
			return show(s.Out, f.output, answer, answer.Promotions, func(t *tabwriter.Writer) {
				empty := 0
				for _, p := range answer.Promotions {
					if p.Empty {
						empty++
					}
				}
				fmt.Fprintf(t, "map %d.%d without %s: %d vbuckets promoted\n", answer.RevEpoch, answer.Rev,
					strings.Join(args, ", "), len(answer.Promotions))
				if empty > 0 {
					fmt.Fprintf(t, "%d of them had no copy left and begin empty\n", empty)
				}
			})
		}}
	f.add(cmd)
	cmd.Flags().BoolVar(&lose, "lose", false, "promote replicas that may lack acknowledged writes")
	return cmd
}

func kvFlush(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	var yes bool
	cmd := &cobra.Command{Use: "flush BUCKET", Short: "Delete all documents of a bucket at once",
		Long: `Deletes all documents of the bucket by making each of its vbuckets anew, as a Couchbase cluster does: sequence
numbers begin at 0, on a new branch. The indexes of the bucket are rolled back to empty automatically. This cannot be
undone. The command waits up to a minute for a node that is still reading its documents after a start.`,
		Example: "  tidemark kv flush world --yes --data ./cluster", Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s needs one BUCKET", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			if err := confirm(cmd.Context(), s, yes, "delete all documents of bucket "+args[0]); err != nil {
				return err
			}
			return a.Flush(cmd.Context(), args[0])
		}}
	f.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

// addedNodes parses the nodes of --add.
func addedNodes(add []string) (all []clustermap.Node, err error) {
	if len(add) == 0 {
		return nil, nil
	}
	nodes, err := parseNodes("add", strings.Join(add, ","))
	for _, n := range nodes {
		all = append(all, clustermap.Node{ID: n.ID, Memcached: n.Memcached, MemcachedTLS: n.MemcachedTLS, Admin: n.Admin})
	}
	return all, err
}

func kvRebalance(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	var add, remove []string
	var stop, noWait bool
	cmd := &cobra.Command{Use: "rebalance", Short: "Add or remove KV nodes and spread the vbuckets evenly, while " +
		"traffic runs", Args: noArgs,
		Long: `Adds and removes members and moves vbuckets so that they are spread evenly. Without --add and --remove it only
spreads them, and makes the replicas that a failover left missing. Start a new node with tidemark kv --join. The
rebalance continues without this command, and after the restart of a killed node; until it has ended, the same command
shows its progress. The command waits up to five minutes for a node that does not answer.`,
		Example: "  tidemark kv rebalance --data ./cluster --add kv4=127.0.0.1:11310=127.0.0.1:11311\n  tidemark kv " +
			"rebalance --data ./cluster --remove kv1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			r := kv.RebalanceRequest{Remove: remove, Stop: stop}
			if r.Add, err = addedNodes(add); err != nil {
				return err
			}
			if stop && (len(add) > 0 || len(remove) > 0) {
				return usage("--stop ends the running rebalance: omit --add and --remove")
			}
			if err := a.Rebalance(cmd.Context(), r); err != nil {
				return err
			}
			if !noWait {
				if err := waitRebalance(cmd.Context(), s, a.Status, ""); err != nil {
					return err
				}
			}
			status, err := a.Status(cmd.Context())
			if err != nil {
				return err
			}
			return show(s.Out, f.output, status, status.Nodes, func(t *tabwriter.Writer) { kvStatusTable(t, status) })
		}}
	f.add(cmd)
	cmd.Flags().StringSliceVar(&add, "add", nil, "a node to add: id=memcached=admin[=memcached-tls]")
	cmd.Flags().StringSliceVar(&remove, "remove", nil, "id of a node to remove")
	cmd.Flags().BoolVar(&stop, "stop", false, "end the running rebalance; moved vbuckets stay where they are")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the rebalance has ended")
	return cmd
}

// isOver reports whether an operation has ended, or, with "", whether none is running, according to the leader.
func isOver(status kv.ClusterStatus, operation string) bool {
	if p := status.Progress; p != nil {
		return operation != "" && p.Operation != operation
	}
	return status.Answered(status.Leader)
}

// waitRebalance shows the progress of an operation, whose state read returns, until it has ended; with "" until none is
// running. It returns an error earlier if repeating does not help, or if the leader does not answer for leaderAbsence.
func waitRebalance(ctx context.Context, s Streams, read func(context.Context) (kv.ClusterStatus, error),
	operation string) error {
	w := &rebalanceWait{bar: newBar(s.Err, "rebalancing"), answered: time.Now()}
	for {
		status, err := read(ctx)
		over, err := w.take(status, err, operation)
		switch {
		case over:
			w.bar.done(true)
			return nil
		case err == nil && pause(ctx, rebalancePoll):
			continue
		case ctx.Err() != nil:
			err = ctx.Err()
		}
		w.bar.done(false)
		return err
	}
}

// rebalanceWait is the state of waitRebalance.
type rebalanceWait struct {
	bar      *bar
	answered time.Time // when the leader last answered
	reason   string    // the last reported reason
}

// take shows a state, and reports whether the operation has ended. An error ends the wait.
func (w *rebalanceWait) take(status kv.ClusterStatus, err error, operation string) (over bool, _ error) {
	untrusted := errors.As(err, new(*tls.CertificateVerificationError))
	switch {
	case err != nil && (untrusted || !errors.Is(err, kv.ErrSilent)):
		return false, fmt.Errorf("reading the progress of the rebalance, which continues without this command: %w", err)
	case err != nil: // the nodes may be restarting
		return false, w.absent("nodes", err)
	case isOver(status, operation):
		return true, nil
	case status.Progress == nil:
		err = fmt.Errorf("%w: %s", errLeaderSilent, status.Leader)
		for _, n := range status.Nodes {
			if n.ID == status.Leader {
				err = fmt.Errorf("%w: %s", err, n.Detail)
			}
		}
		return false, w.absent(status.Leader, err)
	}
	w.answered = time.Now()
	p := status.Progress
	if p.Total > 0 {
		w.bar.set(float64(p.Total-p.Left) * 100 / float64(p.Total))
	}
	if p.Waiting != "" {
		w.report(p.Waiting, p.Waiting)
	}
	return false, nil
}

// absent reports that nodes do not answer, and returns an error if that has lasted for leaderAbsence.
func (w *rebalanceWait) absent(nodes string, err error) error {
	if time.Since(w.answered) >= leaderAbsence {
		return fmt.Errorf("%w; waited for %s; the rebalance continues when the nodes run again: tidemark kv status shows "+
			"its progress", err, leaderAbsence)
	}
	w.report("absent: "+nodes, "KV: "+err.Error())
	return nil
}

// report prints what the command waits for, unless the last report had the same reason: texts of errors may contain
// numbers that differ at each attempt.
func (w *rebalanceWait) report(reason, text string) {
	if reason != w.reason {
		w.reason = reason
		w.bar.note("waits for " + text)
	}
}
