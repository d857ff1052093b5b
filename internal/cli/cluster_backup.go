package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
)

func newBackup(s Streams, f *serverFlags) *cobra.Command {
	cmd := &cobra.Command{Use: "backup FILE", Short: "Write definitions, placements and limits to a file",
		Args: exactArgs("a file, or - for standard output"),
		Long: `Takes a backup of the current StateContext: index definitions, placements and limits. It does not contain the
rows of indexes, which are built from KV. The file is written under a temporary name and renamed when it is complete and
checked. FILE - is standard output, where then nothing else is printed.`,
		Example: "  tidemark cluster backup /var/backups/tidemark-$(date +%F).backup\n" +
			"  tidemark cluster backup - | ssh vault 'cat > tidemark.backup'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := replaceable(args[0]); args[0] != standard && err != nil {
				return usage("%v: give the path of the file to write, or - for standard output", err)
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				data, err := c.Backup(ctx)
				if err != nil {
					return err
				}
				b, err := statecontext.ReadBackup(data)
				if err != nil {
					return err
				}
				if args[0] == standard {
					_, err := s.Out.Write(data)
					return err
				}
				if err := writeWhole(args[0], data); err != nil {
					return err
				}
				fmt.Fprintf(s.Err, "written to %s: %d bytes\n", args[0], len(data))
				return printBackup(s, f.output, b)
			})
		}}
	cmd.AddCommand(&cobra.Command{Use: "verify FILE", Short: "Check a backup file and print its contents",
		Args:    exactArgs("a file, or - for standard input"),
		Example: "  tidemark cluster backup verify /var/backups/tidemark-2026-01-31.backup",
		RunE: func(_ *cobra.Command, args []string) error {
			_, b, err := readBackup(s, args[0])
			if err != nil {
				return err
			}
			return printBackup(s, f.output, b)
		}})
	return cmd
}

// readBackup reads and checks a backup from a file, or standard input.
func readBackup(s Streams, path string) ([]byte, *statecontext.Backup, error) {
	in, err := s.open(path)
	if err != nil {
		return nil, nil, usage("%v", err)
	}
	defer in.Close()
	if path == standard {
		path = "standard input"
	}
	data, err := io.ReadAll(io.LimitReader(in, statecontext.MaxBackupBytes+1))
	if err != nil {
		return nil, nil, fmt.Errorf("backup: %w", err)
	}
	if len(data) > statecontext.MaxBackupBytes {
		return nil, nil, fmt.Errorf("%s has more than %d bytes, the limit of a backup", path,
			statecontext.MaxBackupBytes)
	}
	b, err := statecontext.ReadBackup(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %s: %w", string(errcode.BackupUnusable), path, err)
	}
	return data, b, nil
}

// writeWhole writes a file atomically and durably, and reads it again.
func writeWhole(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("backup file: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // it no longer exists if all went well
	if _, err = tmp.Write(data); err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("write %s: %w", tmp.Name(), err)
	}
	if _, _, err := readBackup(Streams{}, tmp.Name()); err != nil {
		return fmt.Errorf("reading the written file back: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// backupContent is the JSON output of `cluster backup verify`.
type backupContent struct {
	statecontext.BackupInfo
	Managers int           `json:"managers"`
	Indexers int           `json:"indexers"`
	Buckets  int           `json:"buckets"`
	Indexes  []backupIndex `json:"indexes"`
}

type backupIndex struct {
	Bucket    string `json:"bucket"`
	Name      string `json:"name"`
	State     string `json:"state"`
	Statement string `json:"definition"`
}

func printBackup(s Streams, output format, b *statecontext.Backup) error {
	c := backupContent{BackupInfo: b.BackupInfo, Indexes: []backupIndex{}}
	for range b.State.Managers() {
		c.Managers++
	}
	for range b.State.Indexers() {
		c.Indexers++
	}
	for range b.State.Buckets() {
		c.Buckets++
	}
	for x := range b.State.Indexes() {
		d := &x.Definition
		c.Indexes = append(c.Indexes, backupIndex{Bucket: d.Bucket, Name: d.Name, State: d.State.String(),
			Statement: d.Statement})
	}
	if output != formatTable {
		return write(s.Out, output, c)
	}
	t := tabwriter.NewWriter(s.Out, 2, 0, 2, ' ', 0)
	fmt.Fprintf(t, "cluster\t%s\nepoch\t%d\ncas\t%d\nformat level\t%d\ntaken\t%s by tidemark %s\nholds\t%s, %s, %s, "+
		"%s\n\n",
		c.ClusterID, c.Epoch, c.CAS, c.FormatLevel, time.UnixMilli(c.TimeMS).UTC().Format(time.RFC3339), c.Version,
		counted(len(c.Indexes), "index", "indexes"),
		counted(c.Buckets, "bucket", "buckets"), counted(c.Managers, "manager", "managers"),
		counted(c.Indexers, "indexer", "indexers"))
	for _, i := range c.Indexes {
		fmt.Fprintf(t, "%s/%s\t%s\t%s\n", i.Bucket, i.Name, i.State, i.Statement)
	}
	return t.Flush()
}

func newRestore(s Streams, f *serverFlags) *cobra.Command {
	var newCluster, yes, dryRun bool
	cmd := &cobra.Command{Use: "restore FILE", Short: "Restore a backup",
		Args: exactArgs("a file, or - for standard input"),
		Long: `Restores definitions and limits from a backup, either all of them or nothing. Writes are refused meanwhile.

By default the backup is restored in place, into the cluster that it was taken of. Indexes of the backup that still
exist stay as they are, with their present replicas, nodes and slices; missing indexes are created again; indexes that
the backup does not have are dropped. The recorded outcomes of earlier requests are deleted. With --new-cluster the
backup is restored into another cluster, which must have no indexes; all indexes are built from KV.`,
		Example: "  tidemark cluster restore tidemark.backup --dry-run\n  tidemark cluster restore tidemark.backup --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			data, b, err := readBackup(s, args[0])
			if err != nil {
				return err
			}
			mode := statecontext.RestoreInPlace
			if newCluster {
				mode = statecontext.RestoreNewCluster
			}
			restore := func(dryRun bool) (reply v1.RestoreReply, err error) {
				err = f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
					reply, err = c.Restore(ctx, data, mode.String(), dryRun)
					return err
				})
				return reply, err
			}
			if !yes && !dryRun {
				plan, err := restore(true)
				if err != nil {
					return err
				}
				fmt.Fprint(s.Err, planNames(plan.Indexes))
				if err := confirm(cmd.Context(), s, false, fmt.Sprintf("restore cas %d of cluster %s, %s: %s", b.CAS,
					b.ClusterID, mode, planText(plan.Indexes))); err != nil {
					return err
				}
			}
			reply, err := restore(dryRun)
			if err != nil {
				return err
			}
			if f.output != formatTable {
				return write(s.Out, f.output, reply)
			}
			word := "restored"
			if dryRun {
				word = "would restore"
			}
			_, err = fmt.Fprintf(s.Out, "%s cas %d of cluster %s, %s: %s; the cluster is at cas %d, epoch %d\n%s", word,
				b.CAS, b.ClusterID, mode, planText(reply.Indexes), reply.CAS, reply.Epoch, planNames(reply.Indexes))
			return err
		}}
	cmd.Flags().BoolVar(&newCluster, "new-cluster", false, "restore into another cluster than the one the backup was "+
		"taken of; all indexes are built")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only report what would be done")
	return cmd
}

func planText(p statecontext.RestorePlan) string {
	text := fmt.Sprintf("%s, %s with what their hosts hold, %s, %s in state error, %s",
		counted(p.Kept+p.Differing, "index stays", "indexes stay"),
		counted(p.Adopted, "comes back", "come back"), counted(p.Rebuilt, "is built", "are built"),
		counted(p.Failed, "comes back", "come back"),
		counted(p.Dropped, "is dropped", "are dropped"))
	if p.Waiting > 0 {
		text += ", " + counted(p.Waiting, "waits for BUILD INDEX", "wait for BUILD INDEX")
	}
	if p.Splits > 0 {
		text += ", " + counted(p.Splits, "split ends", "splits end")
	}
	return text
}

// planNames returns lines with the indexes of each action of the plan.
func planNames(p statecontext.RestorePlan) string {
	var text strings.Builder
	for _, of := range []struct {
		fate  statecontext.RestoreFate
		words string
	}{
		{statecontext.FateKept, "stays as it is"},
		{statecontext.FateDiffering, "stays as it is now"},
		{statecontext.FateAdopted, "comes back with what its hosts hold"},
		{statecontext.FateRebuilt, "is built"},
		{statecontext.FateWaiting, "comes back and waits for BUILD INDEX"},
		{statecontext.FateFailed, "comes back in state error"},
		{statecontext.FateDropped, "is dropped"},
	} {
		named := 0
		for _, x := range p.Named {
			if x.Fate != of.fate {
				continue
			}
			named++
			fmt.Fprintf(&text, "  %s/%s %s", x.Keyspace, x.Name, of.words)
			if x.Note != "" {
				fmt.Fprintf(&text, " (%s)", x.Note)
			}
			text.WriteByte('\n')
		}
		if more := p.Of(of.fate) - named; more > 0 {
			fmt.Fprintf(&text, "  and %d more: %s\n", more, of.words)
		}
	}
	return text.String()
}

func newFinalizeUpgrade(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "finalize-upgrade", Short: "Enable the features of the newest version once all managers " +
		"run it",
		Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Raises the cluster's format level to the newest level that its managers support. Features that need this level
work from then on, and managers of an older version can no longer take part. This cannot be undone. It is refused while
any voter runs an older version.`,
		Example: "  tidemark cluster finalize-upgrade",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.FinalizeUpgrade(ctx)
				if err != nil {
					return err
				}
				if f.output != formatTable {
					return write(s.Out, f.output, reply)
				}
				_, err = fmt.Fprintf(s.Out, "the cluster is at format level %d\n", reply.FormatLevel)
				return err
			})
		}}
}

func newLimits(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "limits [NAME=VALUE ...]", Short: "Show the limits, or change them",
		ValidArgsFunction: noFiles,
		Long: `Shows the limits in force, such as the number of buckets and indexes, the length of names and statements, and
how many outcomes of requests are kept and for how long. NAME=VALUE changes a limit; 0 resets it to its default.`,
		Example: "  tidemark cluster limits\n  tidemark cluster limits indexes_per_bucket=500 key_expressions=0   # 0: the " +
			"default",
		RunE: func(cmd *cobra.Command, args []string) error {
			change := map[string]int64{}
			for _, a := range args {
				name, value, ok := strings.Cut(a, "=")
				n, err := strconv.ParseInt(value, 10, 64)
				if !ok || err != nil {
					return usage("%q: want NAME=NUMBER, like indexes_per_bucket=500", a)
				}
				change[name] = n
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				l, err := c.Limits(ctx)
				if err == nil {
					err = knownLimits(&l, change)
				}
				if len(change) > 0 && err == nil {
					l, err = c.SetLimits(ctx, change)
				}
				if err != nil {
					return err
				}
				if f.output != formatTable {
					return write(s.Out, f.output, l)
				}
				t := tabwriter.NewWriter(s.Out, 2, 0, 2, ' ', 0)
				for _, row := range l.Table() {
					fmt.Fprintf(t, "%s\t%d\n", row.Name, row.Value)
				}
				return t.Flush()
			})
		}}
}

// knownLimits returns an error for changes of unknown limits.
func knownLimits(l *statecontext.Limits, change map[string]int64) error {
	var names []string
	for _, row := range l.Table() {
		names = append(names, row.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(change)) {
		if !slices.Contains(names, name) {
			return usage("there is no limit %q; the limits are: %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}
