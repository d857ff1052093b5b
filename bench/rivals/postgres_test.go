package rivals

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tidemark/internal/testing/ports"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

var pgPrograms = flag.String("postgres", "", "folder with PostgreSQL's initdb and postgres; none: that of Debian's "+
	"newest package")

// sinkEnv makes the test binary run as the sink, in a separate process, so that the generator's CPU does not count as
// the sink's. It holds the server's socket, the KV node's address, user, password and bucket, and the server's port.
const sinkEnv = "TIDEMARK_BENCH_SINK"

func TestMain(m *testing.M) {
	if args := strings.Fields(os.Getenv(sinkEnv)); len(args) == 6 {
		if err := runSink(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	testcluster.Cleanup()
	os.Exit(code)
}

// pgSettings are the settings of the tuned server. Nothing is synced, and the table is unlogged: as for an indexer,
// KV has the data.
var pgSettings = []string{
	"listen_addresses='127.0.0.1'", "shared_buffers=1GB", "work_mem=128MB", "maintenance_work_mem=512MB",
	"synchronous_commit=off", "fsync=off", "full_page_writes=off",
	"wal_level=minimal", "max_wal_senders=0", "max_wal_size=8GB", "checkpoint_timeout=1h", "autovacuum_naptime=10s",
	"jit=off", "huge_pages=off",
}

const pgSchema = `CREATE UNLOGGED TABLE docs (id text COLLATE "C" PRIMARY KEY, seqno bigint NOT NULL, name text COLLATE "C") WITH (fillfactor = 70);
CREATE INDEX by_name ON docs (name, id);`

// postgres is a server started here, on a socket in a temporary folder and on a TCP port of this machine.
type postgres struct {
	pid    int
	socket string
	port   int
}

// postgresPrograms returns the folder of the server's programs; without them it returns false and how to install
// them.
func postgresPrograms(b *testing.B) (string, bool) {
	b.Helper()
	dirs := []string{*pgPrograms}
	if *pgPrograms == "" {
		found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
		if err != nil {
			b.Fatal(err)
		}
		dirs = found
		slices.SortFunc(dirs, func(x, y string) int { return majorOf(y) - majorOf(x) })
	}
	for _, dir := range dirs {
		_, server := os.Stat(filepath.Join(dir, "postgres"))
		if _, initdb := os.Stat(filepath.Join(dir, "initdb")); server == nil && initdb == nil {
			return dir, true
		}
	}
	b.Logf("no initdb and postgres in %q: its figures are left out. On Debian: apt-get install postgresql; else "+
		"-postgres FOLDER", dirs)
	return "", false
}

// majorOf returns 15 for /usr/lib/postgresql/15/bin.
func majorOf(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return n
}

func startPostgres(ctx context.Context, b *testing.B, programs string) *postgres {
	b.Helper()
	dir, err := os.MkdirTemp("", "tidemark-pg-") // short, because it contains a socket
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 { // PostgreSQL does not run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			b.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			b.Fatal(err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(programs, "initdb"), "-D", data, "-A", "trust", "-U", "bench", "-E",
		"UTF8", "--locale=C", "-N")
	initdb.SysProcAttr, initdb.Dir = attr, dir
	if out, err := initdb.CombinedOutput(); err != nil {
		b.Fatalf("initdb: %v\n%s", err, out)
	}
	port := ports.Range(b)
	args := []string{"-D", data, "-k", dir, "-p", strconv.Itoa(port)}
	for _, s := range pgSettings {
		args = append(args, "-c", strings.ReplaceAll(s, "'", ""))
	}
	server := exec.Command(filepath.Join(programs, "postgres"), args...)
	server.SysProcAttr, server.Dir = attr, dir
	var log bytes.Buffer
	server.Stderr = &log
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT) // PostgreSQL's fast shutdown
		_ = server.Wait()
		if b.Failed() {
			b.Logf("postgres:\n%s", log.Bytes())
		}
	})
	p := &postgres{pid: server.Process.Pid, socket: dir, port: port}
	for {
		c, err := p.connect(ctx)
		if err == nil {
			_, err = c.Exec(ctx, pgSchema)
			if err = errors.Join(err, c.Close(ctx)); err != nil {
				b.Fatal(err)
			}
			return p
		}
		select {
		case <-ctx.Done():
			b.Fatalf("no answer of postgres: %v\n%s", err, log.Bytes())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// connect uses the socket, connectTCP the port, like a client on another machine.
func (p *postgres) connect(ctx context.Context) (*pgx.Conn, error) { return p.dial(ctx, p.socket) }

func (p *postgres) connectTCP(ctx context.Context) (*pgx.Conn, error) {
	return p.dial(ctx, "127.0.0.1")
}

func (p *postgres) dial(ctx context.Context, host string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, fmt.Sprintf("host=%s port=%d user=bench dbname=postgres sslmode=disable", host, p.port))
}

// sinkRows is the number of changes in one statement; sinkWait bounds how long the first of them waits.
const (
	sinkRows = 10_000
	sinkWait = 20 * time.Millisecond
)

// row is one change of the table; gone means a deletion.
type row struct {
	id, name string
	seqno    int64
	gone     bool
}

// sink consumes one KV node's DCP streams: each batch is copied by COPY into a temporary table, and from there into
// docs. After each batch the sink prints the sum over all vbuckets of the seqnos that it has applied.
type sink struct {
	conn     *feed.Conn
	pg       *pgx.Conn
	rows     []row
	at       map[string]int // position of each document in rows: only its newest version counts
	begun    time.Time
	vbuckets map[feed.StreamID]*uint64
}

// runSink runs until its standard input ends.
func runSink(args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	port, err := strconv.Atoi(args[5])
	if err != nil {
		return err
	}
	p := postgres{socket: args[0], port: port}
	s := &sink{at: map[string]int{}, vbuckets: map[feed.StreamID]*uint64{}}
	if s.pg, err = p.connect(ctx); err != nil {
		return err
	}
	if _, err = s.pg.Exec(ctx, `CREATE TEMP TABLE batch (id text COLLATE "C", seqno bigint, name text COLLATE "C", gone boolean)`); err != nil {
		return err
	}
	s.conn, err = feed.Dial(ctx, feed.Config{Addr: args[1], User: args[2], Password: args[3], Bucket: args[4],
		Name: "postgres-sink"})
	if err != nil {
		return err
	}
	return s.run(ctx)
}

// run opens the node's streams from the beginning and applies their events until ctx ends.
func (s *sink) run(ctx context.Context) error {
	defer s.conn.Close()
	all, err := s.conn.HighSeqnos(ctx)
	if err != nil {
		return err
	}
	for _, h := range all {
		id := s.conn.NewStreamID()
		s.vbuckets[id] = new(uint64)
		if _, err := s.conn.OpenStream(ctx, feed.StreamRequest{VBucket: h.VBucket, ID: id, End: mcbp.EndOfTime}); err != nil {
			return err
		}
	}
	for {
		wait, cancel := context.WithTimeout(ctx, sinkWait)
		block, err := s.conn.Next(wait)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && wait.Err() == nil:
			return err
		case err == nil:
			s.take(block)
			block.Release()
		}
		if len(s.rows) >= sinkRows || len(s.rows) > 0 && time.Since(s.begun) >= sinkWait {
			if err := s.apply(ctx); err != nil {
				return err
			}
		}
	}
}

func (s *sink) take(block *feed.Block) {
	for i := range block.Events {
		e := &block.Events[i]
		if e.Kind != feed.Mutation && e.Kind != feed.Deletion {
			continue
		}
		r := row{id: string(e.Key), seqno: int64(e.Seqno), gone: e.Kind == feed.Deletion}
		if !r.gone {
			var doc struct {
				Name string `json:"name"`
			}
			if json.Unmarshal(e.Value, &doc) == nil {
				r.name = doc.Name
			}
		}
		*s.vbuckets[e.Stream] = e.Seqno
		if len(s.rows) == 0 {
			s.begun = time.Now()
		}
		if at, has := s.at[r.id]; has {
			s.rows[at] = r
			continue
		}
		s.at[r.id] = len(s.rows)
		s.rows = append(s.rows, r)
	}
}

// apply writes one batch in one transaction.
func (s *sink) apply(ctx context.Context) error {
	slices.SortFunc(s.rows, func(x, y row) int { return strings.Compare(x.id, y.id) })
	tx, err := s.pg.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"batch"}, []string{"id", "seqno", "name", "gone"},
		pgx.CopyFromSlice(len(s.rows), func(i int) ([]any, error) {
			r := &s.rows[i]
			return []any{r.id, r.seqno, r.name, r.gone}, nil
		}))
	for _, text := range []string{
		`INSERT INTO docs SELECT id, seqno, name FROM batch WHERE NOT gone
			ON CONFLICT (id) DO UPDATE SET seqno = excluded.seqno, name = excluded.name WHERE docs.seqno < excluded.seqno`,
		`DELETE FROM docs USING batch WHERE docs.id = batch.id AND batch.gone AND docs.seqno < batch.seqno`,
		`TRUNCATE batch`,
	} {
		if err == nil {
			_, err = tx.Exec(ctx, text)
		}
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	s.rows = s.rows[:0]
	clear(s.at)
	sum := uint64(0)
	for _, q := range s.vbuckets {
		sum += *q
	}
	_, err = fmt.Println(sum)
	return err
}
