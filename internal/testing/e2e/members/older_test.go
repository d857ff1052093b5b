package members

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
)

// TestOlderCopyOfAFolder kills all managers after a write that m3 has missed, and starts m2 on an older copy of its
// folder, with m3: what they agree on is not what was acknowledged. m1, which has it, was killed in between, and still
// does not accept theirs in its place: it ends, names the entry, and does so at every start until a recovery makes its
// history the cluster's.
func TestOlderCopyOfAFolder(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newCluster(t)
	w.trio()
	w.voters(ctx, w.client(1, 2, 3), "m1", "m2", "m3")
	m2, older := filepath.Join(w.dir, "m2"), filepath.Join(w.dir, "m2.older")
	set := func(n int64, managers ...int) {
		t.Helper()
		c := w.client(managers...)
		w.until(ctx, "a write", func() (bool, string) {
			l, err := c.SetLimits(ctx, map[string]int64{"indexes": n})
			if err != nil {
				return false, err.Error()
			}
			return int64(l.Indexes) == n, ""
		})
	}
	start := func(n int) { w.manager(n, "--bootstrap-expect", "3", "--join", w.join(1, 2, 3)) }
	m1 := w.client(1)
	copies := func() {
		t.Helper()
		w.procs["m2"].Stop()
		if err := os.RemoveAll(older); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(older, os.DirFS(m2)); err != nil {
			t.Fatal(err)
		}
		start(2)
		w.voters(ctx, m1, "m1", "m2", "m3")
	}
	// m1 leads in one term from before the copy until it has written. Otherwise both histories might choose a leader in
	// the same term, and m1 could not tell them apart (docs/operations.md).
	for led := false; !led; {
		set(901, 1, 2, 3)
		if w.leader(ctx, m1) != 1 {
			_, err := m1.TransferLeadership(ctx, "m1")
			t.Log("m1 is to lead: ", err)
			continue
		}
		before := w.term(ctx, m1)
		copies()
		w.procs["m3"].Kill()
		set(902, 1, 2)
		w.until(ctx, "m1 shows it", func() (bool, string) {
			l, err := m1.Limits(ctx)
			return err == nil && l.Indexes == 902, fmt.Sprint(l, err)
		})
		if led = w.term(ctx, m1) == before && w.leader(ctx, m1) == 1; !led {
			start(3)
		}
	}
	w.procs["m1"].Kill()
	w.procs["m2"].Kill()
	if err := os.RemoveAll(m2); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(older, m2); err != nil {
		t.Fatal(err)
	}
	start(2)
	start(3)
	set(903, 2, 3)

	for _, when := range []string{"started", "started again"} {
		start(1)
		p := w.procs["m1"]
		if code := p.Wait(); code != errcode.ExitFailed {
			t.Fatalf("m1 was %s and ended with %d", when, code)
		}
		if !strings.Contains(p.Log(), "the leader's log contradicts this manager's") ||
			!strings.Contains(p.Log(), "was committed here") {
			t.Fatalf("m1 was %s and does not say why it ended:\n%s", when, p.Log())
		}
		if err := os.Truncate(filepath.Join(w.dir, "m1.log"), 0); err != nil { // each start has to say it
			t.Fatal(err)
		}
	}
	w.procs["m2"].Stop()
	w.procs["m3"].Stop()
	w.does(ctx, errcode.ExitOK, "", []string{"cluster", "recover", "--data", "m1", "--yes-lose-data"})
	start(1)
	w.voters(ctx, m1, "m1")
	if l, err := m1.Limits(ctx); err != nil || l.Indexes != 902 {
		t.Errorf("after the recovery: %+v, %v", l, err)
	}
}
