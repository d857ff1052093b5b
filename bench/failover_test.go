package bench

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/testcluster"
)

const (
	askEvery   = 5 * time.Millisecond   // between two requests to a survivor
	askTimeout = 300 * time.Millisecond // of one request; a follower may be waiting for the killed leader
	settleFor  = 4 * time.Second        // between the return of a manager and the next kill
	gapFor     = 3 * time.Second        // of DDL around a SIGTERM
)

// streamCounters reads what the KV nodes have seen of DCP.
func streamCounters(ctx context.Context, b *testing.B, up *testcluster.Cluster) (connections, streams int64) {
	b.Helper()
	for _, e := range up.Manifest().KV {
		var s struct {
			Counters struct {
				DCPOpens        int64 `json:"dcp_opens"`
				StreamsAccepted int64 `json:"streams_accepted"`
				Rollbacks       int64 `json:"rollbacks"`
			} `json:"counters"`
		}
		if err := testcluster.GetJSON(ctx, e.Admin+"/v1/status", &s); err != nil {
			b.Fatal(err)
		}
		connections, streams = connections+s.Counters.DCPOpens, streams+s.Counters.StreamsAccepted+s.Counters.Rollbacks
	}
	return connections, streams
}

// leaderEntry returns the leading manager, and the others.
func leaderEntry(ctx context.Context, b *testing.B, up *testcluster.Cluster,
	c *client.Client) (at localcluster.ManagerEntry, others []string) {
	b.Helper()
	url := leader(ctx, b, c)
	for _, e := range up.Manifest().Managers {
		if e.REST == url {
			at = e
		} else {
			others = append(others, e.REST)
		}
	}
	if at.PID == 0 {
		b.Fatalf("no manager has %s", url)
	}
	return at, others
}

func pidOf(id string) func(m *localcluster.Manifest) int {
	return func(m *localcluster.Manifest) int {
		for _, e := range m.Managers {
			if e.ID == id {
				return e.PID
			}
		}
		return 0
	}
}

// nextDDL sends a CREATE to the survivors in turn, with the same Idempotency-Key, until one accepts it.
func nextDDL(ctx context.Context, c *caller, survivors []string, name string) error {
	body := mustJSON(createRequest(name))
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		one, cancel := context.WithTimeout(ctx, askTimeout)
		_, err := c.call(one, "POST", survivors[i%len(survivors)]+"/v1/indexes", name, body)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// BenchmarkFailover kills the leader with SIGKILL, ten times, and measures the time until a survivor accepts the next
// DDL (bar: max < 1 s), and until a user's client, which tries all managers including the dead one, has its answer.
// There is an index, and the KV nodes count DCP connections and streams: none may be reopened.
func BenchmarkFailover(b *testing.B) {
	ctx := within(b, 10*time.Minute)
	up, c := start(ctx, b, b.TempDir())
	createIndex(ctx, b, c, "CREATE INDEX by_name ON world(name)")
	connections, streams := streamCounters(ctx, b, up)
	probe := newCaller(4)
	defer probe.close()
	var took, client []time.Duration
	host, began := hostCPU(), time.Now()
	for i := range *kills {
		time.Sleep(settleFor)
		at, survivors := leaderEntry(ctx, b, up, c)
		var wg sync.WaitGroup
		killed := time.Now()
		if err := syscall.Kill(at.PID, syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			if err := nextDDL(ctx, probe, survivors, fmt.Sprintf("killed_%d", i)); err != nil {
				b.Error(err)
			}
			took = append(took, time.Since(killed))
		})
		wg.Go(func() {
			if _, err := c.Create(ctx, createRequest(fmt.Sprintf("client_%d", i))); err != nil {
				b.Error(err)
			}
			client = append(client, time.Since(killed))
		})
		wg.Wait()
		up.WaitRestart(at.PID, pidOf(at.ID))
	}
	b.ReportMetric(100*(hostCPU()-host).Seconds()/time.Since(began).Seconds(), "host-%cpu")
	b.Logf("each kill: %v", took)
	b.ReportMetric(ms(quantile(took, 0.5)), "median-ms")
	b.ReportMetric(ms(quantile(took, 1)), "max-ms")
	b.ReportMetric(ms(quantile(client, 1)), "client-max-ms")
	nowConnections, nowStreams := streamCounters(ctx, b, up)
	b.ReportMetric(float64(nowStreams-streams), "streams-reopened")
	b.ReportMetric(float64(nowConnections-connections), "connections-reopened")
}

// BenchmarkStop ends the leader with SIGTERM, ten times, and measures the longest time without an accepted DDL, with
// a client that sends to a survivor without pause. Bar: < 250 ms.
func BenchmarkStop(b *testing.B) {
	ctx := within(b, 10*time.Minute)
	up, c := start(ctx, b, b.TempDir())
	probe := newCaller(1)
	defer probe.close()
	var gaps []time.Duration
	host, began := hostCPU(), time.Now()
	for i := range *kills {
		time.Sleep(settleFor)
		at, survivors := leaderEntry(ctx, b, up, c)
		n := 0
		next := func() {
			n++
			if err := nextDDL(ctx, probe, survivors[i%2:][:1], fmt.Sprintf("stop_%d_%d", i, n)); err != nil {
				b.Fatal(err)
			}
		}
		next()
		last, gap := time.Now(), time.Duration(0)
		if err := syscall.Kill(at.PID, syscall.SIGTERM); err != nil {
			b.Fatal(err)
		}
		for until := last.Add(gapFor); last.Before(until); {
			next()
			now := time.Now()
			gap, last = max(gap, now.Sub(last)), now
		}
		gaps = append(gaps, gap)
		up.WaitRestart(at.PID, pidOf(at.ID))
	}
	b.ReportMetric(100*(hostCPU()-host).Seconds()/time.Since(began).Seconds(), "host-%cpu")
	b.Logf("each stop: %v", gaps)
	b.ReportMetric(ms(quantile(gaps, 0.5)), "median-ms")
	b.ReportMetric(ms(quantile(gaps, 1)), "max-ms")
}
