package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

// TestUnreachedDataPort shuts a data port of an indexer, whose other ports work: before and after an index is built
// through it, and the one that a build is filled through. The status has the projector, the indexer, the address and
// why, and the index what it waits for; when the port is open again, everything is ready.
func TestUnreachedDataPort(t *testing.T) {
	t.Parallel()
	const documents = 50
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	up, links := testcluster.StartLinked(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1", "--vbuckets",
		"16")
	m, c, kv := up.Manifest(), up.Client(), up.KV(ctx)
	for i := range documents {
		if _, err := kv.Set(ctx, fmt.Sprint("doc", i), fmt.Appendf(nil, `{"k":%d}`, i), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	indexer := m.Indexers[0]
	verdict := func(want string) *v1.Status {
		t.Helper()
		var st v1.Status
		harness.Eventually(t, harness.Hang, "the cluster is "+want, func() (bool, string) {
			var err error
			st, err = c.Status(ctx)
			return err == nil && st.Verdict == want, fmt.Sprintf("%s %q: %v", st.Verdict, st.Reasons, err)
		})
		return &st
	}
	host, _, err := net.SplitHostPort(verdict(v1.VerdictReady).Indexers[0].Scan)
	if err != nil {
		t.Fatal(err)
	}
	create := func(name string) {
		t.Helper()
		if _, err := c.Create(ctx, v1.CreateRequest{Bucket: m.Bucket, Name: name, IsPrimary: true}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		what, port, address, index string
		after                      bool // the index is ready before
	}{
		{"before a build", "maintenance", indexer.Data.Maintenance, "first", false},
		{"when it is ready", "maintenance", indexer.Data.Maintenance, "first", true},
		{"during a build", "backfill", indexer.Data.Backfill, "second", false},
	} {
		links.Shut(tc.address)
		began := time.Now()
		if !tc.after {
			create(tc.index)
		}
		_, port, err := net.SplitHostPort(tc.address)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("projector %s cannot reach the %s port of indexer %s at %s, since ", m.Projectors[0].ID, tc.port,
			indexer.ID, net.JoinHostPort(host, port))
		shows := func(where string, args ...string) {
			t.Helper()
			harness.Eventually(t, harness.Hang, tc.what+": "+where, func() (bool, string) {
				out := harness.MustRun(ctx, t, up, args...)
				_, rest, found := strings.Cut(out, text)
				line, _, _ := strings.Cut(rest, "\n")
				return found && strings.Contains(line, "connection refused"), text + "… is not in\n" + out
			})
		}
		shows("the index lists what it waits for", "index", "describe", m.Bucket+"/"+tc.index)
		shows("the status lists what is wrong", "cluster", "status")
		st := verdict(v1.VerdictDegraded)
		if all := strings.Join(st.Reasons, "\n"); !strings.Contains(all, text) || len(st.Projectors[0].Unreached) != 1 {
			t.Errorf("%s: the reasons are\n%s\nand unreached %+v", tc.what, all, st.Projectors[0].Unreached)
		}
		shown := time.Since(began)
		links.Reopen(t, indexer.ID, tc.address)
		harness.WaitReady(ctx, t, c, m.Bucket)
		if st := verdict(v1.VerdictReady); len(st.Projectors[0].Unreached) != 0 {
			t.Errorf("%s: all is well, and unreached %+v", tc.what, st.Projectors[0].Unreached)
		}
		harness.Eventually(t, harness.Hang, tc.what+": the index waits for nothing", func() (bool, string) {
			info, err := c.Index(ctx, client.Ref(m.Bucket, tc.index))
			return err == nil && len(info.WaitingFor) == 0, fmt.Sprintf("%q: %v", info.WaitingFor, err)
		})
		if s, err := harness.ScanSoon(ctx, c, m.Bucket, tc.index, harness.Hang); err != nil || len(s.IDs) != documents {
			t.Errorf("%s: then a scan has %d rows of %d: %v", tc.what, len(s.IDs), documents, err)
		}
		t.Logf("%s: shown after %s, all is well %s after that", tc.what, shown.Round(time.Millisecond),
			(time.Since(began) - shown).Round(time.Millisecond))
	}
}
