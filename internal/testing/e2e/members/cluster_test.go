// Package members tests membership of clusters, with real processes that are started as an operator does, without
// `up`: managers that join, leave, are removed, replaced and moved, a lost majority, indexers that do not come back,
// and roles started in every order. Rows are compared with the oracle.
package members

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/sample"
	"tidemark/internal/testing/atonce"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/ports"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

const (
	bucket    = "world"
	vbuckets  = 64
	documents = 1500            // of the sample: enough for rows in every slice, and quick
	patience  = 3 * time.Minute // detects a hang
	poll      = 50 * time.Millisecond
)

// statements create indexes that the oracle has under the same names, with slices on every indexer.
var statements = []string{
	`CREATE INDEX airports_by_country ON world(iso_country, name) WHERE kind = "airport" WITH {"num_partition":4}`,
	`CREATE INDEX places_by_name ON world(name) WITH {"num_partition":4}`,
}

func TestMain(m *testing.M) {
	atonce.Tests(4) // tests wait part of their time
	harness.Main(m)
}

// cluster is a folder, a range of ports, and the processes in it.
type cluster struct {
	t     *testing.T
	dir   string
	base  int
	host  string // under which managers reach each other
	procs map[string]*testcluster.Process
	keys  []string
	kv    *kvclient.Client
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	w := &cluster{t: t, dir: t.TempDir(), base: ports.Range(t), host: "127.0.0.1",
		procs: map[string]*testcluster.Process{}}
	if err := os.WriteFile(filepath.Join(w.dir, "password"), []byte("pw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *cluster) spawn(name string, args ...string) *testcluster.Process {
	w.t.Helper()
	w.procs[name] = testcluster.Spawn(w.t, w.dir, name, args...)
	return w.procs[name]
}

func (w *cluster) addr(offset int) string { return fmt.Sprintf("127.0.0.1:%d", w.base+offset) }

// rest returns the address of manager n as other processes get it.
func (w *cluster) rest(n int) string { return fmt.Sprintf("%s:%d", w.host, w.base+n) }

// manager starts manager n: REST on port n of the range, Raft on port 20+n.
func (w *cluster) manager(n int, more ...string) *testcluster.Process {
	w.t.Helper()
	return w.managerAt(n, n, more...)
}

// managerAt starts manager n with the ports of another.
func (w *cluster) managerAt(n, at int, more ...string) *testcluster.Process {
	w.t.Helper()
	id := fmt.Sprintf("m%d", n)
	args := []string{"manager", "--id", id, "--data", filepath.Join(w.dir, id), "--rest", w.addr(at), "--raft",
		w.addr(20 + at),
		"--rest-advertise", w.rest(at), "--raft-advertise", w.rest(20 + at)}
	return w.spawn(id, append(args, more...)...)
}

func (w *cluster) join(managers ...int) string {
	var all []string
	for _, n := range managers {
		all = append(all, w.rest(n))
	}
	return strings.Join(all, ",")
}

// trio starts managers 1 to 3.
func (w *cluster) trio() {
	w.t.Helper()
	for n := 1; n <= 3; n++ {
		w.manager(n, "--bootstrap-expect", "3", "--join", w.join(1, 2, 3))
	}
}

func (w *cluster) startKV() {
	w.t.Helper()
	w.spawn("kv1", "kv", "--id", "kv1", "--data", filepath.Join(w.dir, "kv1"), "--memcached", w.addr(40), "--admin",
		w.addr(41),
		"--nodes", fmt.Sprintf("kv1=%s=%s", w.addr(40), w.addr(41)), "--buckets", fmt.Sprintf("%s:%032x:%d", bucket, w.base,
			vbuckets),
		"--kv-user", "u", "--kv-password-file", "password")
}

// projector starts the projector; at is the place of its port.
func (w *cluster) projector(at int) *testcluster.Process {
	w.t.Helper()
	return w.spawn("p1", "projector", "--id", "p1", "--managers", w.join(1, 2, 3), "--admin", w.addr(at), "--kv",
		w.addr(40),
		"--kv-user", "u", "--kv-password-file", "password")
}

// indexer starts indexer n with its folder and ports.
func (w *cluster) indexer(n int) *testcluster.Process {
	w.t.Helper()
	return w.indexerAt(fmt.Sprintf("i%d", n), fmt.Sprintf("i%d", n), 45+5*n)
}

func (w *cluster) indexerAt(id, folder string, at int) *testcluster.Process {
	w.t.Helper()
	return w.spawn(id, "indexer", "--id", id, "--data", filepath.Join(w.dir, folder), "--managers", w.join(1, 2, 3),
		"--admin", w.addr(at),
		"--scan", w.addr(at+1), "--maintenance", w.addr(at+2), "--backfill", w.addr(at+3), "--catchup", w.addr(at+4))
}

// everything starts three managers, KV with its projector, and indexers.
func (w *cluster) everything(indexers int) {
	w.t.Helper()
	w.trio()
	w.startKV()
	w.projector(42)
	for n := 1; n <= indexers; n++ {
		w.indexer(n)
	}
}

// client returns a client of the managers at these places.
func (w *cluster) client(managers ...int) *client.Client {
	w.t.Helper()
	var urls []string
	for _, n := range managers {
		urls = append(urls, "http://"+w.rest(n))
	}
	c := client.Open(client.Options{Servers: urls})
	w.t.Cleanup(c.Close)
	return c
}

// run runs a command of the product against managers and returns its output and exit code.
func (w *cluster) run(ctx context.Context, servers string, args ...string) (out string, exit int) {
	w.t.Helper()
	if servers != "" {
		args = append(args, "--server", servers)
	}
	cmd := exec.CommandContext(ctx, testcluster.Binary(w.t), args...)
	cmd.Dir = w.dir
	b, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	w.t.Logf("$ tidemark %s\n%s(exit %d)", strings.Join(args, " "), b, cmd.ProcessState.ExitCode())
	return string(b), cmd.ProcessState.ExitCode()
}

// does runs a command that must end with an exit code and print the texts.
func (w *cluster) does(ctx context.Context, exit int, servers string, args []string, texts ...string) string {
	w.t.Helper()
	out, got := w.run(ctx, servers, args...)
	if got != exit {
		w.t.Fatalf("tidemark %s: exit code %d, want %d:\n%s", strings.Join(args, " "), got, exit, out)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			w.t.Errorf("tidemark %s does not print %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
	return out
}

// until waits for a condition.
func (w *cluster) until(ctx context.Context, what string, f func() (bool, string)) {
	w.t.Helper()
	began, last := time.Now(), ""
	for ok := false; ; time.Sleep(poll) {
		if ok, last = f(); ok {
			w.t.Logf("%s after %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
		if ctx.Err() != nil || time.Since(began) > patience {
			w.t.Fatalf("%s: not within %s: %s", what, time.Since(began).Round(time.Second), last)
		}
	}
}

// roles returns the role of each manager in the leader's status, by name; "dead" for one that does not answer.
func roles(s *v1.Status) map[string]string {
	all := map[string]string{}
	for _, m := range s.Managers {
		if all[m.ID] = m.Role; !m.Alive {
			all[m.ID] = "dead"
		}
	}
	return all
}

// voters waits until exactly these managers are members, all with a vote, and all answer.
func (w *cluster) voters(ctx context.Context, c *client.Client, want ...string) {
	w.t.Helper()
	w.until(ctx, fmt.Sprintf("voters %v", want), func() (bool, string) {
		s, err := c.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		have := roles(&s)
		for _, id := range want {
			if have[id] != "voter" && have[id] != "leader" {
				return false, fmt.Sprint(have)
			}
		}
		return len(have) == len(want), fmt.Sprint(have)
	})
}

// leader returns the number of the leading manager.
func (w *cluster) leader(ctx context.Context, c *client.Client) (n int) {
	w.t.Helper()
	w.until(ctx, "a leader", func() (bool, string) {
		s, err := c.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		for _, m := range s.Managers {
			if m.Role == "leader" {
				_, err = fmt.Sscanf(m.ID, "m%d", &n)
				return err == nil, m.ID
			}
		}
		return false, fmt.Sprint(s.Managers)
	})
	return n
}

// term returns the leader's term.
func (w *cluster) term(ctx context.Context, c *client.Client) (term uint64) {
	w.t.Helper()
	w.until(ctx, "a term", func() (bool, string) {
		s, err := c.Status(ctx)
		term = s.Term
		return err == nil && term > 0, fmt.Sprint(err)
	})
	return term
}

// active waits until exactly this many projectors and indexers are known and active.
func (w *cluster) active(ctx context.Context, c *client.Client, projectors, indexers int) {
	w.t.Helper()
	w.until(ctx, "projectors and indexers are active", func() (bool, string) {
		s, err := c.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		var states []string
		for _, p := range s.Projectors {
			states = append(states, p.State)
		}
		for _, i := range s.Indexers {
			states = append(states, i.State)
		}
		return s.Coordinator == "active" && len(s.Projectors) == projectors && len(s.Indexers) == indexers &&
			!slices.ContainsFunc(states, func(s string) bool { return s != "active" }), fmt.Sprint(s.Coordinator, states)
	})
}

// load stores documents of the sample.
func (w *cluster) load(ctx context.Context) {
	w.t.Helper()
	var err error
	w.until(ctx, "KV answers", func() (bool, string) {
		w.kv, err = kvclient.Connect(ctx, []string{w.addr(40)}, kvclient.Options{User: "u", Password: "pw", Bucket: bucket,
			Name: "test"})
		return err == nil, fmt.Sprint(err)
	})
	w.t.Cleanup(func() { _ = w.kv.Close() })
	r, err := sample.Open()
	if err != nil {
		w.t.Fatal(err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for n := 0; len(w.keys) < documents; n++ {
		d, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if n%5 != 0 { // keys of all kinds
			continue
		}
		key, value := d.Key, bytes.Clone(d.Value)
		w.keys = append(w.keys, key)
		g.Go(func() error {
			_, err := w.kv.Set(gctx, key, value, kvclient.StoreOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		w.t.Fatal(err)
	}
}

// writes changes and deletes documents until ctx ends.
func (w *cluster) writes(ctx context.Context, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		key := w.keys[r.IntN(len(w.keys))]
		var err error
		if r.IntN(6) == 0 {
			_, err = w.kv.Delete(context.WithoutCancel(ctx), key, 0)
		} else {
			value := fmt.Sprintf(`{"kind":"airport","name":"place %d","iso_country":%q}`, r.IntN(500), []string{"FR", "DE", "CH"}[r.IntN(3)])
			_, err = w.kv.Set(context.WithoutCancel(ctx), key, []byte(value), kvclient.StoreOptions{})
		}
		if err != nil && !errors.Is(err, kvclient.ErrKeyNotFound) {
			w.t.Errorf("a KV write: %v", err)
		}
	}
}

// create runs CREATE statements and waits until the indexes are ready.
func (w *cluster) create(ctx context.Context, c *client.Client, statements ...string) {
	w.t.Helper()
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	harness.Create(limited, w.t, c, statements...)
}

// equal compares session scans of indexes, by their names in the oracle, with what KV has. No writes may run
// meanwhile.
func (w *cluster) equal(ctx context.Context, c *client.Client, when string, named map[string]string) {
	w.t.Helper()
	docs, err := testcluster.Documents(ctx, w.kv, w.keys)
	if err != nil {
		w.t.Fatal(err)
	}
	for name, known := range named {
		want, err := oracle.Rows(known, maps.Clone(docs))
		if err != nil {
			w.t.Fatal(err)
		}
		var s harness.Scanned
		w.until(ctx, fmt.Sprintf("%s: %s is scanned", when, name), func() (bool, string) {
			limited, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			s, err = harness.Scan(limited, c, bucket, name, "session")
			return err == nil, fmt.Sprint(err)
		})
		if d := oracle.Diff(want, s.Keys, s.IDs); d != "" {
			w.t.Fatalf("%s: %s differs from the oracle: %s", when, name, d)
		}
		if len(s.IDs) == 0 {
			w.t.Fatalf("%s: %s has no rows: that proves nothing", when, name)
		}
		w.t.Logf("%s: %s: %d rows equal the oracle's", when, name, len(s.IDs))
	}
}

// both maps the indexes of statements to their names in the oracle.
var both = map[string]string{"airports_by_country": "airports_by_country", "places_by_name": "places_by_name"}

// ddl creates and drops indexes, one after the other, and records what was acknowledged.
type ddl struct {
	kept, dropped []string
	unknown       int
	acknowledged  atomic.Int64
}

// ddlEnough is how many acknowledged writes make the test meaningful.
const ddlEnough = 10

// enough waits for that many acknowledged writes.
func (d *ddl) enough(ctx context.Context, w *cluster) {
	w.t.Helper()
	w.until(ctx, "DDL that proves something", func() (bool, string) {
		n := d.acknowledged.Load()
		return n >= ddlEnough, fmt.Sprint(n, " acknowledged")
	})
}

// run creates and drops indexes until ctx ends. A request may take long while leadership moves, but must not fail.
func (d *ddl) run(ctx context.Context, t *testing.T, c *client.Client) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("ddl_%d", n)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		_, err := c.Create(limited, v1.CreateRequest{Bucket: bucket, Name: name, IsPrimary: true, DeferBuild: true})
		switch {
		case err != nil:
			t.Errorf("DDL: create %s: %v", name, err)
			d.unknown++
		case n%5 == 0:
			d.kept = append(d.kept, name)
			d.acknowledged.Add(1)
		default:
			if err := c.Drop(limited, client.Ref(bucket, name), 0); err != nil {
				t.Errorf("DDL: drop %s: %v", name, err)
				d.unknown++
				break
			}
			d.dropped = append(d.dropped, name)
			d.acknowledged.Add(1)
		}
		cancel()
		time.Sleep(poll)
	}
}

// check compares a listing with what was acknowledged.
func (d *ddl) check(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	list, err := c.Indexes(ctx, bucket)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]int{}
	for _, i := range list.Indexes {
		if i.State != index.Dropping {
			have[i.Name]++
		}
	}
	for _, name := range d.kept {
		if have[name] != 1 {
			t.Errorf("%s was created and is listed %d times", name, have[name])
		}
	}
	for _, name := range d.dropped {
		if have[name] != 0 {
			t.Errorf("%s was dropped and is listed", name)
		}
	}
	t.Logf("%d indexes created and kept, %d created and dropped, none lost, %d unknown", len(d.kept), len(d.dropped),
		d.unknown)
}
