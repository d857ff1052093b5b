package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestRollingUpgrade: three managers are replaced one by one by a version that supports the next level. What needs
// that level is refused until the upgrade is finalized, which is refused until all are replaced; then it works, and
// the older version refuses by name to start on that data, to join, and to read a backup of it.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	const newer = statecontext.NextLevel
	c := newTrio(t)
	backup := func() (int, []byte) {
		code, _, body := c.call(c.nodes[c.leader()], "GET", "/v1/backup", "", nil)
		return code, body
	}
	restore := func(data []byte) (int, string) {
		code, _, body := c.call(c.nodes[c.leader()], "POST", "/v1/restore?mode=in-place", string(data),
			map[string]string{"Content-Type": "application/octet-stream"})
		return code, string(body)
	}
	finalize := func() (int, string) {
		code, _, body := c.call(c.nodes[c.leader()], "POST", "/v1/cluster:finalize-upgrade", "", nil)
		return code, string(body)
	}
	needsNewer := func() error { return c.proposed(&statecontext.Reserved{}) }
	code, data := backup() // the older version's backup
	if code != 200 {
		t.Fatalf("backup: %d", code)
	}
	for i := range 3 {
		if err := needsNewer(); !errors.Is(err, consensus.ErrFormatTooOld) ||
			!strings.Contains(err.Error(), "finalize-upgrade") {
			t.Fatalf("with %d of 3 replaced, a command of the next level gives %v", i, err)
		}
		c.stop(i)
		c.cfgs[i].newestFormat = newer
		c.start(i)
		c.leader()
		name := c.cfgs[i].Name
		c.until(name+" registered as a newer one", func() bool {
			for m := range c.nodes[i].m.raft.State().Managers() {
				if m.Name == name && m.FormatLevel == newer {
					return true
				}
			}
			return false
		})
		if i < 2 {
			if code, body := finalize(); code != 409 || !strings.Contains(body, "FORMAT_NOT_ALLOWED") ||
				!strings.Contains(body, c.cfgs[2].Name) {
				t.Fatalf("with %d of 3 replaced, finalize-upgrade gives %d %s", i+1, code, body)
			}
		}
	}
	code, body := finalize()
	var reply v1.FormatReply
	if err := json.Unmarshal([]byte(body), &reply); err != nil || code != 200 || reply.FormatLevel != newer {
		t.Fatalf("finalize-upgrade: %d %s", code, body)
	}
	if err := needsNewer(); err != nil {
		t.Fatalf("a command of the level that is in force: %v", err)
	}
	if code, body := restore(data); code != 200 {
		t.Fatalf("restore of the older version's backup: %d %s", code, body)
	}
	c.until("all have the restored state", func() bool {
		for _, n := range c.nodes {
			if n.m.raft.State().Restored() == nil {
				return false
			}
		}
		return true
	})
	if code, data = backup(); code != 200 {
		t.Fatalf("backup of the newer version: %d", code)
	}
	if _, err := statecontext.ReadBackup(data); !errors.Is(err, statecontext.ErrBackupVersion) {
		t.Fatalf("an older version reads it: %v", err)
	}

	c.stop(2)
	c.cfgs[2].newestFormat = 0
	if m, err := Open(c.cfgs[2]); !errors.Is(err, consensus.ErrFormatTooNew) ||
		!strings.Contains(err.Error(), "install tidemark") {
		t.Fatalf("an older version starts over the data: %v %v", m, err)
	}
	c.cfgs[2].Dir = t.TempDir() // wiped
	m, err := Open(c.cfgs[2])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.Run(ctx); !errors.Is(err, consensus.ErrFormatTooNew) {
		t.Fatalf("an older version joins: %v", err)
	}
}

// TestLimitsAreConfiguration: limits are listed, changed and refused by name, and take effect at once.
func TestLimitsAreConfiguration(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	n := c.nodes[c.leader()]
	for body, want := range map[string]string{
		`{"indexes_per_bucket": 7}`:      `"indexes_per_bucket":7`,
		`{"key_expressions": 5000}`:      "key_expressions 5000; want 1 to 1000",
		`{"ledger_max_age_ms": 60000}`:   "ledger_max_age_ms 60000 must not be below ledger_min_age_ms",
		`{"name_length": 8}`:             "name_length 8; want 16 to 1000",
		`{"statement_length": 20}`:       "statement_length 20; want 64 to 262144",
		`{"ledger_entries": 1}`:          "ledger_entries 1; want 1000 to 1000000",
		`{"indexes_per_buckets": 1}`:     "indexes_per_buckets",
		`{"indexes_per_bucket": "many"}`: "BAD_REQUEST",
	} {
		_, _, answer := c.call(n, "PATCH", "/v1/limits", body, nil)
		if !strings.Contains(strings.ReplaceAll(string(answer), " ", ""), strings.ReplaceAll(want, " ", "")) {
			t.Errorf("%s gives %s, want %s", body, answer, want)
		}
	}
	if got := n.m.raft.State().Limits(); got.IndexesPerBucket != 7 ||
		got.KeyExpressions != statecontext.DefaultLimits().KeyExpressions {
		t.Errorf("limits in force: %+v", got)
	}
	_, _, status := c.call(n, "GET", "/v1/status", "", nil)
	if !strings.Contains(strings.ReplaceAll(string(status), " ", ""), `"indexes_per_bucket":7`) {
		t.Errorf("status does not show them: %s", status)
	}
}

// TestLimitsAreChangedAtOnce: concurrent changes of different limits are all kept.
func TestLimitsAreChangedAtOnce(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	n := c.nodes[c.leader()]
	for round := range 10 {
		want := map[string]int{"indexes_per_bucket": 100 + round, "key_expressions": 200 + round, "name_length": 300 + round,
			"buckets": 400 + round}
		var g errgroup.Group
		for name, value := range want {
			g.Go(func() error {
				if code, _, b := c.call(n, "PATCH", "/v1/limits", fmt.Sprintf(`{%q:%d}`, name, value), nil); code != 200 {
					return fmt.Errorf("%s: %d %s", name, code, b)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		_, _, body := c.call(n, "GET", "/v1/limits", "", nil)
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		for name, value := range want {
			if got[name] != float64(value) {
				t.Fatalf("round %d: %s is %v, was set to %d", round, name, got[name], value)
			}
		}
	}
}

// TestLimitsAreEnforced: each limit of an index is the one that was set, lower or higher than the default, in
// whichever way the index is requested; the refusal names the limit and how to change it.
func TestLimitsAreEnforced(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.furnish()
	set := func(body string) {
		t.Helper()
		if code, _, b := c.call(c.follower(), "PATCH", "/v1/limits", body, nil); code != 200 {
			t.Fatalf("%s: %d %s", body, code, b)
		}
	}
	ddl := func(name, bucket string, keys ...string) (status int, refusal wire.Problem) {
		code, h, b := c.call(c.follower(), "POST", "/v1/statements",
			statement("CREATE INDEX `"+name+"` ON `"+bucket+"`("+strings.Join(keys, ",")+") WITH {\"defer_build\":true}"), nil)
		if code != 202 {
			refusal = problemOf(t, h, b)
		}
		list := make([]map[string]string, len(keys))
		for i, k := range keys {
			list[i] = map[string]string{"expr": k}
		}
		body, err := json.Marshal(map[string]any{"name": name, "bucket": bucket, "keys": list, "defer_build": true,
			"if_not_exists": code == 202})
		if err != nil {
			t.Fatal(err)
		}
		again, h, b := c.call(c.follower(), "POST", "/v1/indexes", string(body), nil)
		if code == 202 && again != 200 || code != 202 && (again != code || problemOf(t, h, b).Code != refusal.Code) {
			t.Errorf("%s on %s: %d as a statement, %d as JSON: %s", name, bucket, code, again, b)
		}
		return code, refusal
	}
	many := func(n int) (keys []string) {
		for i := range n {
			keys = append(keys, fmt.Sprint("a", i))
		}
		return keys
	}
	long := func(n int) string { return "a = \"" + strings.Repeat("x", n) + "\"" }
	for i, tc := range []struct {
		set, limit   string
		name, bucket string
		keys         []string
	}{
		{`{}`, "key_expressions", "", "b", many(33)},
		{`{"key_expressions":40}`, "", "k", "b", many(40)},
		{`{"key_expressions":40}`, "key_expressions", "", "b", many(41)},
		{`{"key_expressions":2}`, "key_expressions", "", "b", many(3)},
		{`{}`, "statement_length", "", "b", []string{long(40 << 10)}},
		{`{"statement_length":200000}`, "", "l", "b", []string{long(100 << 10)}},
		{`{"statement_length":200000}`, "statement_length", "", "b", []string{long(210_000)}},
		{`{"statement_length":100}`, "statement_length", "", "b", []string{long(200)}},
		{`{"name_length":16}`, "name_length", "seventeen_letters", "b", many(1)},
		{`{"indexes_per_bucket":2}`, "indexes_per_bucket", "", "b", many(1)},
		{`{"indexes_per_bucket":3}`, "", "third", "b", many(1)},
		{`{"indexes":3}`, "indexes", "", "b", many(1)},
		{`{"buckets":1}`, "buckets", "", "other", many(1)},
	} {
		set(`{"buckets":0,"indexes":0,"indexes_per_bucket":0,"key_expressions":0,"name_length":0,"statement_length":0}`)
		set(tc.set)
		if tc.name == "" {
			tc.name = fmt.Sprint("n", i)
		}
		code, p := ddl(tc.name, tc.bucket, tc.keys...)
		switch {
		case tc.limit == "" && code != 202:
			t.Errorf("with %s, %d key expressions: %d %+v", tc.set, len(tc.keys), code, p)
		case tc.limit != "" && (code != 400 || p.Code != errcode.LimitExceeded ||
			!strings.Contains(p.Detail, "tidemark cluster limits "+tc.limit+"=N")):
			t.Errorf("with %s: %d %+v; want the limit %s", tc.set, code, p, tc.limit)
		}
	}
}
