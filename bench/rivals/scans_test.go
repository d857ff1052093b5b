package rivals

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/testing/testcluster"
)

var (
	scanBinaries = flag.String("scans.binaries", "", "binaries of the product, separated by commas, whose scans "+
		"BenchmarkScans compares by turns; empty: the present source")
	scanWith = flag.String("scans.with", "", "the WITH of the index that is scanned, as {\"num_partition\":1}")
)

// BenchmarkScans measures the scans of BenchmarkPostgres alone, over the same documents and updates: PostgreSQL over
// its socket and over TCP, and one or more binaries of the product, alternating. All binaries are scanned with the
// client of the present source. With profiles, each binary's indexer and this process are profiled while that binary
// is scanned.
func BenchmarkScans(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 50*time.Minute)
	defer cancel()
	binaries := strings.Split(*scanBinaries, ",")
	if *scanBinaries == "" {
		product(b)
		binaries = []string{os.Getenv(productEnv)}
	}
	programs, found := postgresPrograms(b)
	for b.Loop() {
		var sides []side
		var first *rival
		for i, path := range binaries {
			b.Setenv(productEnv, path)
			up := testcluster.Start(b, b.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1")
			r := &rival{b: b, up: up, c: up.Client(), kv: up.KV(ctx), docs: *pgDocuments}
			r.load(ctx, r.docs, func(i int) (int, uint64) { return i, 0 })
			if i == 0 && found {
				r.pg = startPostgres(ctx, b, programs)
				sides = r.feedPostgres(ctx)
			}
			with := ""
			if *scanWith != "" {
				with = " WITH " + *scanWith
			}
			r.create(ctx, "CREATE INDEX by_name ON "+up.Manifest().Bucket+"(name)"+with)
			r.updates(ctx, 1<<21)
			r.count(ctx, "by_name")
			name := "tm"
			if len(binaries) > 1 {
				name = fmt.Sprintf("tm%d", i)
			}
			sides = append(sides, side{name, r.own, r.profiledScans(name, r.scanTidemark)})
			first = r
		}
		first.scans(ctx, sides)
	}
	b.ReportMetric(0, "ns/op")
}

// profiledScans makes the product and this process write profiles of the scans from the first connection on, if
// profiles were requested.
func (r *rival) profiledScans(name string, open func(context.Context) (scanner, func(),
	error)) func(context.Context) (scanner, func(), error) {
	dir := os.Getenv(profileEnv)
	if dir == "" {
		return open
	}
	connections := 0
	return func(ctx context.Context) (scanner, func(), error) {
		scan, end, err := open(ctx)
		if err != nil {
			return nil, nil, err
		}
		if connections++; connections == 1 {
			r.profiled(syscall.SIGUSR1)
			file, err := os.Create(filepath.Join(dir, "client-"+name+".pprof"))
			if err == nil {
				err = pprof.StartCPUProfile(file)
			}
			if err != nil {
				r.b.Fatal(err)
			}
			inner := end
			end = func() {
				inner()
				pprof.StopCPUProfile()
				r.profiled(syscall.SIGUSR2)
				if err := file.Close(); err != nil {
					r.b.Error(err)
				}
			}
		}
		return scan, func() { end(); connections-- }, nil
	}
}
