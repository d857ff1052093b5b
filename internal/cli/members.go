package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/wire"
)

func clusterJoin(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "join ADDRESS", Short: "Add a waiting manager to the cluster", Args: exactArgs("ADDRESS"),
		ValidArgsFunction: noFiles,
		Long: `Adds the manager whose REST address is ADDRESS to the cluster of --server. The manager must belong to no
cluster yet: start it with an empty folder and --bootstrap-expect 0. It becomes a voter when it has caught up and has
been healthy for some seconds. A manager that is started with --join does not need this command.`,
		Example: "  tidemark cluster join 10.0.0.4:9520 --server 10.0.0.1:9520",
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return memberDone(s, f.output, "joined")(c.Join(ctx, args[0]))
			})
		}}
}

// memberDone prints the answer to a change of members.
func memberDone(s Streams, as format, what string) func(v1.MemberReply, error) error {
	return func(r v1.MemberReply, err error) error {
		if err != nil {
			return err
		}
		return show(s.Out, as, r, []v1.MemberReply{r}, func(t *tabwriter.Writer) {
			fmt.Fprintf(t, "%s: %s", what, r.ID)
			if r.ServerID != "" && r.ServerID != r.ID {
				fmt.Fprintf(t, " (%s)", r.ServerID)
			}
			fmt.Fprintf(t, "; %s\n", r.Detail)
		})
	}
}

// yesFlag adds --yes-lose-data and returns a function for the value to send.
func yesFlag(cmd *cobra.Command, means string) func() string {
	yes := cmd.Flags().Bool("yes-lose-data", false, means)
	return func() string {
		if *yes {
			return v1.LoseData
		}
		return ""
	}
}

func clusterLeave(s Streams, f *serverFlags) *cobra.Command {
	cmd := &cobra.Command{Use: "leave", Short: "Remove a manager from its cluster cleanly", Args: noArgs,
		ValidArgsFunction: noFiles,
		Long: `Removes the manager of --server (one address) from its cluster permanently: a leader transfers leadership
first; then the manager is removed from the voters and its process ends. The cluster needs nothing of its folder.
--server must be given here; TIDEMARK_SERVER does not replace it.`,
		Annotations: map[string]string{typedServer: "yes"}, Example: "  tidemark cluster leave --server 10.0.0.4:9520"}
	yes := yesFlag(cmd, "if no majority of the remaining managers would answer, first remove as few unreachable ones as "+
		"necessary")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(f.server) != 1 {
			return usage("cluster leave needs --server with the manager that leaves; TIDEMARK_SERVER is not used here")
		}
		return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			st, err := c.Status(ctx)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(st.Managers, func(m v1.ManagerStatus) bool { return m.ID == st.Node.ID })
			if i < 0 {
				return fmt.Errorf("manager %s belongs to no cluster", st.Node.ID)
			}
			return memberDone(s, f.output, "left")(removeManager(ctx, c, st.Managers[i].ServerID, yes()))
		})
	}
	return cmd
}

// removeManager removes a manager, and adds advice if no manager can do so.
func removeManager(ctx context.Context, c *client.Client, id, yes string) (v1.MemberReply, error) {
	r, err := c.RemoveManager(ctx, id, yes)
	var p *wire.Problem
	if errors.As(err, &p) && p.Code == errcode.NoLeader {
		err = fmt.Errorf("%w; while a majority of managers is missing, no manager can be removed: restart them or, if their "+
			"folders are lost permanently, run tidemark cluster recover on a survivor", err)
	}
	return r, err
}

func clusterTransfer(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "transfer [MANAGER]", Short: "Transfer leadership",
		ValidArgsFunction: f.members(kindManager),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%s accepts at most one manager", cmd.CommandPath())
			}
			return nil
		},
		Long: "Transfers leadership to MANAGER (its name or server id), or to the most up-to-date voter. Streams and " +
			"builds continue.",
		Example: "  tidemark cluster transfer m2",
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return memberDone(s, f.output, "leader")(c.TransferLeadership(ctx, strings.Join(args, "")))
			})
		}}
}

// Kinds of nodes.
const (
	kindManager   = "manager"
	kindProjector = "projector"
	kindIndexer   = "indexer"
)

func clusterRemove(s Streams, f *serverFlags) *cobra.Command {
	var role string
	var force, dry, sure bool
	cmd := &cobra.Command{Use: "remove NODE", Short: "Remove a manager, projector or indexer permanently",
		Args: exactArgs("NODE"), ValidArgsFunction: f.members(),
		Long: `Removes a node permanently, by its name (or by a manager's server id, or an indexer's uuid).

Manager: a leader transfers leadership first; then the manager is removed from the voters. The removal is refused if
fewer voters than a majority would be left alive: restart the voters that do not answer, or remove them first
(--yes-lose-data does so). If a majority is already lost, nothing can be removed; cluster recover continues with one
survivor.

Projector: it is unregistered. Another projector of its KV node takes over the vbuckets; without one they are not
streamed.

Indexer: its copies are placed on other living indexers step by step, and filled from KV. The removal is refused while
the indexer is alive, and if it has the only copies of a slice (with --force those indexes cannot be scanned until the
new copies are filled). A removal that has begun cannot be cancelled; the command waits for its end. Its folder is never
accepted again; delete it.`,
		Example: "  tidemark cluster remove m2\n  tidemark cluster remove i3 --dry-run\n  tidemark cluster remove i3 --force"}
	fl := cmd.Flags()
	fl.StringVar(&role, "role", "", "manager, projector or indexer, if nodes of several roles have this name")
	fl.BoolVar(&force, "force", false, "also a running projector or indexer, or an indexer that has the only copies "+
		"of a slice")
	fl.BoolVar(&dry, "dry-run", false, "only report the consequences of removing an indexer")
	fl.BoolVar(&sure, "yes", false, "do not ask on a terminal")
	yes := yesFlag(cmd, "if no majority of the remaining managers would answer, first remove as few unreachable ones as "+
		"necessary")
	complete(cmd, "role", fixed(kindManager, kindProjector, kindIndexer))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := ask(cmd.Context(), s, dry || sure, "remove "+args[0]+" from the cluster permanently"); err != nil {
			return err
		}
		return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			kind, err := kindOf(ctx, c, args[0], role)
			if err != nil {
				return err
			}
			if dry && kind != kindIndexer {
				return usage("--dry-run is for indexers; %s is a %s", args[0], kind)
			}
			switch kind {
			case kindManager:
				return memberDone(s, f.output, "removed")(removeManager(ctx, c, args[0], yes()))
			case kindProjector:
				return memberDone(s, f.output, "removed")(c.RemoveProjector(ctx, args[0], force))
			}
			r, err := removeIndexer(ctx, c, args[0], force, dry)
			if err != nil {
				return err
			}
			return printRemoval(s, f.output, r)
		})
	}
	return cmd
}

// removeIndexer removes an indexer and waits for the end of the removal.
func removeIndexer(ctx context.Context, c *client.Client, id string, force, dry bool) (v1.IndexerRemoval, error) {
	r, err := c.RemoveIndexer(ctx, id, force, dry)
	for err == nil && r.Evicting && r.Waits == "" {
		var more v1.IndexerRemoval
		if more, err = c.RemoveIndexer(ctx, r.UUID, force, false); err == nil {
			r.Removed, r.Evicting, r.Waits = more.Removed, more.Evicting, more.Waits
		}
	}
	return r, err
}

// rolesOf returns the roles of the nodes with a name (or a manager's server id, an indexer's uuid).
func rolesOf(st *v1.Status, id string) (kinds []string) {
	if slices.ContainsFunc(st.Managers, func(m v1.ManagerStatus) bool { return m.ID == id || m.ServerID == id }) {
		kinds = append(kinds, kindManager)
	}
	if slices.ContainsFunc(st.Projectors, func(p v1.ProjectorStatus) bool { return string(p.ID) == id }) {
		kinds = append(kinds, kindProjector)
	}
	if slices.ContainsFunc(st.Indexers, func(i v1.IndexerStatus) bool { return i.ID == id || i.UUID == id }) {
		kinds = append(kinds, kindIndexer)
	}
	return kinds
}

// unknownNode returns the error for a name that no node has. It names the projectors of a process with --kv-all that
// has the name: there is one for each KV node.
func unknownNode(st *v1.Status, id string) error {
	why := fmt.Sprintf("there is no manager, projector or indexer %q; tidemark cluster status lists them", id)
	var of []string
	for _, p := range st.Projectors {
		if strings.HasPrefix(string(p.ID), id+"@") {
			of = append(of, string(p.ID))
		}
	}
	if len(of) > 0 {
		why += fmt.Sprintf("; projector process %s has one projector for each KV node: remove %s", id, strings.Join(of, ", "))
	}
	return rpc.Refuse(errcode.UnknownNode, "%s", why)
}

// kindOf returns the kind of a node.
func kindOf(ctx context.Context, c *client.Client, id, role string) (string, error) {
	switch role {
	case kindManager, kindProjector, kindIndexer:
		return role, nil
	case "":
	default:
		return "", usage("--role %s: want manager, projector or indexer", role)
	}
	st, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	kinds := rolesOf(&st, id)
	switch len(kinds) {
	case 1:
		return kinds[0], nil
	case 0:
		return "", unknownNode(&st, id)
	}
	return "", usage("%s is the name of a %s; choose one with --role", id, strings.Join(kinds, " and of a "))
}

func printRemoval(s Streams, as format, r v1.IndexerRemoval) error {
	return show(s.Out, as, r, []v1.IndexerRemoval{r}, func(t *tabwriter.Writer) {
		verb := "removed"
		switch {
		case r.Evicting:
			verb = "being removed"
		case !r.Removed:
			verb = "would be removed"
		}
		fmt.Fprintf(t, "%s: indexer %s (node %d, uuid %s); its folder is no longer accepted\n", verb, r.ID, r.Node, r.UUID)
		if r.Waits != "" {
			fmt.Fprintf(t, "the removal waits: %s; it continues automatically afterwards\n", r.Waits)
		}
		if len(r.Indexes) == 0 {
			fmt.Fprintln(t, "it had no copies")
			return
		}
		fmt.Fprintln(t, "\nBUCKET\tINDEX\tCOPIES PLACED ANEW\tONLY COPIES\tMEANING")
		for _, i := range r.Indexes {
			meaning := "other replicas serve until they are filled"
			switch {
			case i.Rebuilt:
				meaning = "cannot be scanned until its slices are rebuilt from KV"
			case i.LastCopies == 0 && i.Copies > 0 && !r.Alive:
				meaning = "nothing is lost"
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\n", i.Bucket, i.Name, i.Copies, i.LastCopies, meaning)
		}
	})
}

func clusterRecover(s Streams) *cobra.Command {
	var dir string
	as := formatTable
	cmd := &cobra.Command{Use: "recover", Short: "Continue with one manager after the permanent loss of a majority " +
		"(offline)",
		Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Makes one surviving manager the only voter of its cluster, when a majority of the managers and their folders
are lost permanently. It works offline: stop the manager first.

All entries of this manager's log become committed, including entries at its end that no majority had and that were
never acknowledged. Entries that only the lost managers had are lost, among them acknowledged writes if this manager was
behind. The lost managers must never rejoin the cluster: delete their folders. The epoch of the cluster rises, so that
projectors and indexers refuse commands of a lost manager that starts again.

Without --yes-lose-data the command only shows what it would do. Of several survivors choose the one with the highest
"log up to". Afterwards start this manager as before, and further managers with empty folders and --join.

--reset-limits also sets every limit (cluster limits) to its default.`,
		Example: "  tidemark cluster recover --data /var/lib/tidemark/m1\n  tidemark cluster recover --data " +
			"/var/lib/tidemark/m1 --yes-lose-data"}
	cmd.Flags().StringVar(&dir, "data", "", "data `FOLDER` of the manager that survived")
	reset := cmd.Flags().Bool("reset-limits", false, "set all limits to their defaults")
	yes := yesFlag(cmd, "recover; without it, only show what would be done")
	addOutput(cmd.Flags(), &as)
	cmd.RunE = func(*cobra.Command, []string) error {
		if dir == "" {
			return usage("cluster recover needs --data, the folder of the manager that survived")
		}
		act := yes() != ""
		r, err := manager.Recover(dir, consensus.RecoverOptions{Act: act, ResetLimits: *reset},
			hclog.New(&hclog.LoggerOptions{Name: "recover", Level: hclog.Warn, Output: s.Err}))
		if err != nil {
			return err
		}
		if err := printRecovery(s, as, r, act); err != nil || act {
			return err
		}
		return errors.New("nothing was changed; --yes-lose-data executes it")
	}
	return cmd
}

func printRecovery(s Streams, as format, r consensus.RecoveryReport, act bool) error {
	return show(s.Out, as, r, []consensus.RecoveryReport{r}, func(t *tabwriter.Writer) {
		will := "would be"
		if act {
			will = "is"
		}
		fmt.Fprintf(t, "cluster %s, manager %s\n", r.ClusterID, r.ServerID)
		fmt.Fprintf(t, "it has: log up to %d (snapshot at %d, %s after it), state at cas %d with %s\n", r.LastIndex,
			r.Snapshot, counted(int(r.Tail), "entry", "entries"),
			r.CAS, counted(r.Indexes, "index", "indexes"))
		fmt.Fprintf(t, "members in its log: %d\n", len(r.Members))
		fmt.Fprintf(t, "kept: all %d entries after the snapshot, including those that no majority had\n", r.Tail)
		fmt.Fprintf(t, "lost: data that only these members had, which %s removed permanently: "+
			"%s\n", will, strings.Join(r.Forgotten, ", "))
		if act {
			fmt.Fprintf(t, "epoch %d → %d: projectors and indexers refuse managers of the former epoch\n", r.OldEpoch, r.Epoch)
			if r.LimitsReset {
				fmt.Fprintln(t, "all limits are reset to their defaults")
			}
			fmt.Fprintln(t, "start this manager as before, then others with empty folders and --join; delete the folders of "+
				"those removed")
		}
	})
}
