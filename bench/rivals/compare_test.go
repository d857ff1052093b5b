package rivals

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

var (
	pgDocuments = flag.Int("postgres.documents", 200_000, "documents of BenchmarkPostgres, 256 bytes each")
	pgUpdates   = flag.Int("postgres.updates", 200_000, "random updates of them, as fast as KV takes them")
	pgBurst     = flag.Duration("postgres.burst", 2*time.Second, "length of one round of scans of 100 rows on each side")
	pgRounds    = flag.Int("postgres.rounds", 3, "rounds of scans with each number of connections: one side, the other, …")
	pgClients   = flag.String("postgres.connections", "1,8,64", "numbers of connections that scan, separated by commas")
)

// scanRows is how many rows a scan requests.
const scanRows = 100

// rival runs the comparison.
type rival struct {
	b    *testing.B
	up   *testcluster.Cluster
	c    *client.Client
	kv   *kvclient.Client
	pg   *postgres // nil if this machine has no PostgreSQL
	docs int
}

// document returns a version of a document, with a name that is unrelated to its key.
func document(i int, version uint64) []byte {
	head := fmt.Sprintf(`{"kind":"bench","name":"name %016x","iso_country":"CH","elevation_ft":1416,"tags":["a","b"],"fill":"`, (uint64(i)+1)*0x9e3779b97f4a7c15^version*0xbf58476d1ce4e5b9)
	return []byte(head + strings.Repeat("x", max(0, 256-len(head)-2)) + `"}`)
}

func (r *rival) key(i int) string { return fmt.Sprintf("bench::%09d", i) }

// load stores n documents chosen by pick, pipelined.
func (r *rival) load(ctx context.Context, n int, pick func(i int) (doc int, version uint64)) {
	i := 0
	_, err := r.kv.Load(ctx, func() (string, []byte, bool, error) {
		if i == n {
			return "", nil, false, nil
		}
		doc, version := pick(i)
		i++
		return r.key(doc), document(doc, version), true, nil
	}, nil)
	if err != nil {
		r.b.Fatal(err)
	}
}

func (r *rival) updates(ctx context.Context, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	r.load(ctx, *pgUpdates, func(i int) (int, uint64) { return random.IntN(r.docs), seed<<32 + uint64(i) })
}

// own returns the processor time of the product's processes that an index needs: all but the KV nodes.
func (r *rival) own() (sum time.Duration) {
	m := r.up.Manifest()
	for _, e := range m.Managers {
		sum += familyCPU(e.PID)
	}
	for _, e := range m.Projectors {
		sum += familyCPU(e.PID)
	}
	for _, e := range m.Indexers {
		sum += familyCPU(e.PID)
	}
	return sum
}

// measured reports a phase of n documents.
func (r *rival) measured(name string, n int, cpu func() time.Duration, f func()) {
	before, began := cpu(), time.Now()
	f()
	took := time.Since(began)
	r.b.ReportMetric(float64((cpu()-before).Microseconds())/float64(n), name+"-cpu-µs/doc")
	r.b.ReportMetric(float64(n)/took.Seconds(), name+"-docs/s")
}

// scanner scans by range on its own connection and returns the number of rows.
type scanner func(ctx context.Context, from string) (int, error)

// side is one side of the comparison: a metric's name, the processor time of its server, and a function that
// connects.
type side struct {
	name string
	cpu  func() time.Duration
	open func(ctx context.Context) (scan scanner, end func(), err error)
}

// scans measures scans of 100 rows from a random name on, with one connection and with several, alternating between
// both sides.
func (r *rival) scans(ctx context.Context, sides []side) {
	for i := range sides {
		r.settle(ctx, &sides[i])
	}
	for _, connections := range connectionCounts(r.b) {
		all := make([]burst, len(sides))
		for range *pgRounds {
			for i := range sides {
				r.burst(ctx, &sides[i], connections, &all[i])
			}
		}
		for i := range sides {
			all[i].report(r.b, fmt.Sprintf("%s-scan100-%d", sides[i].name, connections))
		}
	}
}

// settle waits until a side's servers have done the work that updates have left, such as compactions: until they use
// less than a tenth of a processor for a second, or for 30 s. PostgreSQL has been vacuumed.
func (r *rival) settle(ctx context.Context, s *side) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before := s.cpu()
	for range 30 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.b.Fatal(ctx.Err())
		}
		now := s.cpu()
		if now-before < 100*time.Millisecond {
			return
		}
		before = now
	}
	r.b.Logf("%s has not come to rest within 30 s", s.name)
}

// connectionCounts reads -postgres.connections.
func connectionCounts(b *testing.B) (all []int) {
	b.Helper()
	for _, text := range strings.Split(*pgClients, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			b.Fatalf("-postgres.connections %q: want numbers from 1 on, as 1,8,64", *pgClients)
		}
		all = append(all, n)
	}
	return all
}

// burst holds the measurements of concurrent scans.
type burst struct {
	mu   sync.Mutex
	each []time.Duration
	cpu  time.Duration // of the servers and of the clients
	took time.Duration
}

func (t *burst) report(b *testing.B, name string) {
	slices.Sort(t.each)
	b.ReportMetric(float64(t.each[len(t.each)/2].Microseconds()), name+"-p50-µs")
	b.ReportMetric(float64(t.each[len(t.each)*99/100].Microseconds()), name+"-p99-µs")
	b.ReportMetric(float64(len(t.each))/t.took.Seconds(), name+"-scans/s")
	b.ReportMetric(float64(t.cpu.Microseconds())/float64(len(t.each)), name+"-cpu-µs")
}

// burst scans on the given number of connections, one scan after the other on each.
func (r *rival) burst(ctx context.Context, s *side, connections int, into *burst) {
	scanners := make([]scanner, connections)
	for i := range scanners {
		scan, end, err := s.open(ctx)
		if err != nil {
			r.b.Fatalf("%s: %v", s.name, err)
		}
		defer end()
		scanners[i] = scan
	}
	before, began := s.cpu()+selfCPU(), time.Now()
	var running sync.WaitGroup
	for i, scan := range scanners {
		running.Go(func() {
			random := rand.New(rand.NewPCG(3, uint64(i)))
			var took []time.Duration
			for time.Since(began) < *pgBurst && !r.b.Failed() {
				from := fmt.Sprintf("name %016x", random.Uint64()/100*99)
				at := time.Now()
				if n, err := scan(ctx, from); err != nil || n != scanRows {
					r.b.Errorf("%s: %d rows from %s on, want %d (%v)", s.name, n, from, scanRows, err)
				}
				took = append(took, time.Since(at))
			}
			into.mu.Lock()
			defer into.mu.Unlock()
			into.each = append(into.each, took...)
		})
	}
	running.Wait()
	into.took += time.Since(began)
	into.cpu += s.cpu() + selfCPU() - before
	if r.b.Failed() {
		r.b.FailNow()
	}
}

// BenchmarkPostgres measures one index of a loaded bucket, first in PostgreSQL fed from the nodes' DCP streams, then
// in the product: catch-up over the stored documents, random updates as fast as KV takes them, scans of 100 rows,
// alternating, and a second index. The KV nodes and the generator of updates are left out of the CPU figures on both
// sides; the sink is a separate process and counts as PostgreSQL's. For scans the clients count too. On a machine
// without PostgreSQL only the product is measured.
func BenchmarkPostgres(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 50*time.Minute)
	defer cancel()
	product(b)
	programs, found := postgresPrograms(b)
	for b.Loop() {
		up := testcluster.Start(b, b.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1")
		r := &rival{b: b, up: up, c: up.Client(), kv: up.KV(ctx), docs: *pgDocuments}
		r.load(ctx, r.docs, func(i int) (int, uint64) { return i, 0 })
		var sides []side
		if found {
			r.pg = startPostgres(ctx, b, programs)
			sides = r.feedPostgres(ctx)
		}
		tm := r.feedTidemark(ctx)
		sides = append(sides, tm, side{"tm-managers", tm.cpu, r.scanByManagers})
		r.scans(ctx, sides)
		if found {
			r.createInPostgres(ctx)
		}
		began := time.Now()
		r.create(ctx, "CREATE INDEX by_country ON "+up.Manifest().Bucket+"(iso_country, elevation_ft)")
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "tm-create-index-ms")
		up.Stop()
	}
	b.ReportMetric(0, "ns/op")
}

// product builds the program of the module that contains this one.
func product(b *testing.B) {
	b.Helper()
	if os.Getenv(productEnv) != "" {
		return
	}
	path := filepath.Join(b.TempDir(), "tidemark")
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", path, "./cmd/tidemark").CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	b.Setenv(productEnv, path)
}

// productEnv names a program that testcluster runs instead of building one.
const productEnv = "TIDEMARK_TEST_BINARY"

// startSink runs the sink until stop is called; it returns the sink's pid and how much it has applied.
func (r *rival) startSink(ctx context.Context) (pid int, applied *atomic.Uint64, stop func()) {
	m := r.up.Manifest()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %s %s %d", sinkEnv, r.pg.socket, m.KV[0].Memcached, m.KVUser,
		m.KVPassword, m.Bucket, r.pg.port))
	in, err := cmd.StdinPipe()
	if err != nil {
		r.b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.b.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		r.b.Fatal(err)
	}
	applied = &atomic.Uint64{}
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if n, err := strconv.ParseUint(lines.Text(), 10, 64); err == nil {
				applied.Store(n)
			}
		}
	})
	stop = sync.OnceFunc(func() {
		_ = in.Close() // this ends the sink
		reading.Wait()
		_ = cmd.Wait()
	})
	r.b.Cleanup(stop)
	return cmd.Process.Pid, applied, stop
}

// feedPostgres measures how PostgreSQL takes the stored documents and the changes.
func (r *rival) feedPostgres(ctx context.Context) []side {
	var pid int
	var applied *atomic.Uint64
	var stop func()
	caught := func() {
		all, err := r.kv.VBucketSeqnos(ctx)
		if err != nil {
			r.b.Fatal(err)
		}
		want := uint64(0)
		for _, q := range all {
			want += q
		}
		for applied.Load() < want {
			select {
			case <-ctx.Done():
				r.b.Fatalf("seqnos up to %d of %d are applied", applied.Load(), want)
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	server := func() time.Duration { return familyCPU(r.pg.pid) }
	both := func() time.Duration { return familyCPU(pid) + server() }
	r.measured("pg-catchup", r.docs, both, func() {
		pid, applied, stop = r.startSink(ctx)
		caught()
	})
	r.measured("pg-live", *pgUpdates, both, func() {
		r.updates(ctx, 1<<20)
		caught()
	})
	stop() // the work of feeding the product must not count as the sink's
	c, err := r.pg.connect(ctx)
	if err != nil {
		r.b.Fatal(err)
	}
	defer c.Close(ctx)
	var rows int
	if err := c.QueryRow(ctx, `SELECT count(*) FROM docs`).Scan(&rows); err != nil || rows != r.docs {
		r.b.Fatalf("%d rows of %d (%v)", rows, r.docs, err)
	}
	if _, err := c.Exec(ctx, `VACUUM ANALYZE docs`); err != nil { // for the best plans
		r.b.Fatal(err)
	}
	return []side{{"pg", server, r.scanPostgres}, {"pg-tcp", server, r.scanPostgresTCP}}
}

// scanPostgres scans over the server's socket, scanPostgresTCP over its port.
func (r *rival) scanPostgres(ctx context.Context) (scanner, func(), error) {
	return postgresScanner(ctx, r.pg.connect)
}

func (r *rival) scanPostgresTCP(ctx context.Context) (scanner, func(), error) {
	return postgresScanner(ctx, r.pg.connectTCP)
}

func postgresScanner(ctx context.Context, connect func(context.Context) (*pgx.Conn, error)) (scanner, func(), error) {
	c, err := connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	scan := func(ctx context.Context, from string) (n int, err error) {
		rows, err := c.Query(ctx, `SELECT name, id FROM docs WHERE name >= $1 ORDER BY name, id LIMIT 100`, from)
		if err != nil {
			return 0, err
		}
		var name, id string
		for ; err == nil && rows.Next(); n++ {
			err = rows.Scan(&name, &id)
		}
		rows.Close()
		return n, errors.Join(err, rows.Err())
	}
	return scan, func() { _ = c.Close(ctx) }, nil
}

func (r *rival) createInPostgres(ctx context.Context) {
	c, err := r.pg.connect(ctx)
	if err != nil {
		r.b.Fatal(err)
	}
	defer c.Close(ctx)
	began := time.Now()
	if _, err := c.Exec(ctx, `CREATE INDEX by_seqno ON docs (seqno, id)`); err != nil {
		r.b.Fatal(err)
	}
	r.b.ReportMetric(float64(time.Since(began).Milliseconds()), "pg-create-index-ms")
}

func (r *rival) create(ctx context.Context, statement string) {
	made, err := r.c.Statement(ctx, statement)
	if err == nil {
		err = r.c.WaitReady(ctx, []index.ID{made[0].ID}, nil)
	}
	if err != nil {
		r.b.Fatalf("%s: %v", statement, err)
	}
}

func (r *rival) count(ctx context.Context, name string) {
	n, err := r.c.Count(ctx, client.Ref(r.up.Manifest().Bucket, name), v1.ScanRequest{Consistency: "session"})
	if err != nil || n.Count != uint64(r.docs) {
		r.b.Fatalf("%s counts %d of %d (%v)", name, n.Count, r.docs, err)
	}
}

// feedTidemark measures the build of an index over the stored documents, and its maintenance.
func (r *rival) feedTidemark(ctx context.Context) side {
	r.measured("tm-catchup", r.docs, r.own, func() {
		r.create(ctx, "CREATE INDEX by_name ON "+r.up.Manifest().Bucket+"(name)")
		r.count(ctx, "by_name")
	})
	r.measured("tm-live", *pgUpdates, r.own, func() {
		r.updates(ctx, 1<<21)
		r.count(ctx, "by_name")
	})
	return side{"tm", r.own, r.scanTidemark}
}

func (r *rival) scanTidemark(context.Context) (scanner, func(), error) { return r.scanner(false) }

// scanByManagers scans through a manager, as curl does.
func (r *rival) scanByManagers(context.Context) (scanner, func(), error) { return r.scanner(true) }

func (r *rival) scanner(managers bool) (scanner, func(), error) {
	m := r.up.Manifest()
	c := client.Open(client.Options{Servers: m.Servers(), ViaManagers: managers})
	ref := client.Ref(m.Bucket, "by_name")
	scan := func(ctx context.Context, from string) (n int, err error) {
		low, err := json.Marshal(from)
		if err != nil {
			return 0, err
		}
		rows, err := c.Scan(ctx, ref, v1.ScanRequest{Consistency: "any", Limit: scanRows,
			Range: &v1.Range{Low: []json.RawMessage{low}, Inclusion: "both"}})
		if err != nil {
			return 0, err
		}
		for rows.Next() {
			if row := rows.Row(); len(row.Key) == 1 && row.ID != "" {
				n++
			}
		}
		return n, errors.Join(rows.Err(), rows.Close())
	}
	return scan, c.Close, nil
}
