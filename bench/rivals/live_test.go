package rivals

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/testing/testcluster"
)

var (
	liveBinaries = flag.String("live.binaries", "", "binaries of the product, separated by commas, that BenchmarkLive "+
		"compares by turns; empty: the present source")
	liveRounds = flag.Int("live.rounds", 5, "rounds of -postgres.updates updates for each binary")
	liveRate   = flag.Int("live.rate", 0, "updates a second, 0: as fast as KV takes them")
)

// profileEnv names the folder that profiles are written to, by bench/profiled in the product's place.
const profileEnv = "TIDEMARK_PROFILE_DIR"

// role holds the processes of one role.
type role struct {
	name string
	pids []int
}

func (r *rival) roles() []role {
	m := r.up.Manifest()
	all := []role{{name: "manager"}, {name: "projector"}, {name: "indexer"}, {name: "kv"}}
	for _, e := range m.Managers {
		all[0].pids = append(all[0].pids, e.PID)
	}
	for _, e := range m.Projectors {
		all[1].pids = append(all[1].pids, e.PID)
	}
	for _, e := range m.Indexers {
		all[2].pids = append(all[2].pids, e.PID)
	}
	for _, e := range m.KV {
		all[3].pids = append(all[3].pids, e.PID)
	}
	return all
}

// profiled signals all processes of the product, if profiles were requested.
func (r *rival) profiled(s syscall.Signal) {
	if os.Getenv(profileEnv) == "" {
		return
	}
	for _, role := range r.roles() {
		for _, pid := range role.pids {
			if err := syscall.Kill(pid, s); err != nil {
				r.b.Fatal(err)
			}
		}
	}
}

// BenchmarkLive measures the product's part of BenchmarkPostgres alone: catch-up, then rounds of live updates, with
// the CPU per document of each role. With several binaries their rounds alternate, each on its own cluster.
func BenchmarkLive(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 50*time.Minute)
	defer cancel()
	binaries := strings.Split(*liveBinaries, ",")
	if *liveBinaries == "" {
		product(b)
		binaries = []string{os.Getenv(productEnv)}
	}
	for b.Loop() {
		sides := make([]*rival, len(binaries))
		for i, path := range binaries {
			b.Setenv(productEnv, path)
			up := testcluster.Start(b, b.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1")
			r := &rival{b: b, up: up, c: up.Client(), kv: up.KV(ctx), docs: *pgDocuments}
			r.load(ctx, r.docs, func(i int) (int, uint64) { return i, 0 })
			r.create(ctx, "CREATE INDEX by_name ON "+up.Manifest().Bucket+"(name)")
			r.count(ctx, "by_name")
			sides[i] = r
		}
		for round := range *liveRounds {
			for i, r := range sides {
				r.liveRound(ctx, i, uint64(round))
			}
		}
		for _, r := range sides {
			r.up.Stop()
		}
	}
	b.ReportMetric(0, "ns/op")
}

func (r *rival) liveRound(ctx context.Context, side int, round uint64) {
	roles := r.roles()
	before := make([]time.Duration, len(roles))
	for i := range roles {
		before[i] = roles[i].cpu()
	}
	began := time.Now()
	r.profiled(syscall.SIGUSR1)
	r.paced(ctx, 1<<21+round)
	r.count(ctx, "by_name")
	r.profiled(syscall.SIGUSR2)
	line := fmt.Sprintf("binary %d round %d: %6.0f docs/s, µs/doc", side, round,
		float64(*pgUpdates)/time.Since(began).Seconds())
	var own time.Duration
	for i := range roles {
		used := roles[i].cpu() - before[i]
		if roles[i].name != "kv" {
			own += used
		}
		line += fmt.Sprintf(" %s %.2f", roles[i].name, float64(used.Microseconds())/float64(*pgUpdates))
	}
	r.b.Logf("%s, all but kv %.2f", line, float64(own.Microseconds())/float64(*pgUpdates))
}

func (o role) cpu() (sum time.Duration) {
	for _, pid := range o.pids {
		sum += familyCPU(pid)
	}
	return sum
}

// paced updates as fast as KV accepts writes, or at the requested rate.
func (r *rival) paced(ctx context.Context, seed uint64) {
	if *liveRate == 0 {
		r.updates(ctx, seed)
		return
	}
	random, began := rand.New(rand.NewPCG(seed, 1)), time.Now()
	r.load(ctx, *pgUpdates, func(i int) (int, uint64) {
		time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(*liveRate))))
		return random.IntN(r.docs), seed<<32 + uint64(i)
	})
}
