package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/need"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

var watcherCount = flag.Int("watchers", 20, "watchers in TestManyWatchers; docs/performance.md has the figures of 1000")

// usage returns the CPU time and the memory of a process.
func usage(t *testing.T, pid int) (cpu time.Duration, rss int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		need.Missing(t, "no process figures here: %v", err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // from the third field on
	number := func(i int) int64 {
		n, err := strconv.ParseInt(f[i-3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const ticksPerSecond = 100
	return time.Duration(number(14)+number(15)) * time.Second / ticksPerSecond, number(24) * int64(os.Getpagesize())
}

// TestManyWatchers measures the cost of watchers for one follower: at rest, and while indexes are created. Every
// watcher must receive every index.
func TestManyWatchers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir())
	c, m := up.Client(), up.Manifest()
	l := up.Leader(ctx, 0)
	follower := m.Managers[(l+1)%len(m.Managers)]
	span := min(time.Second+time.Duration(*watcherCount)*10*time.Millisecond, 10*time.Second)
	measure := func(what string, during func()) {
		cpu, _ := usage(t, follower.PID)
		began := time.Now()
		during()
		after, rss := usage(t, follower.PID)
		took := time.Since(began)
		t.Logf("%s: %.1f%% of one core, %d MiB", what, 100*(after-cpu).Seconds()/took.Seconds(), rss>>20)
	}
	rest := func() {
		select {
		case <-ctx.Done():
		case <-time.After(span):
		}
	}
	at := 0
	var created int
	ddl := func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(span); time.Now().Before(end); <-tick.C {
			if _, err := c.Create(ctx, v1.CreateRequest{Bucket: m.Bucket, Name: fmt.Sprint("w", at), IsPrimary: true,
				DeferBuild: true}); err != nil {
				t.Fatal(err)
			}
			at, created = at+1, created+1
		}
	}
	measure("no watchers, at rest", rest)
	measure("no watchers, an index every 50 ms", ddl)
	created = 0
	var ready, received atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	for range *watcherCount {
		wg.Go(func() { listen(watching, t, follower.REST, &ready, &received) })
	}
	harness.Eventually(t, time.Minute, "all have their snapshot", func() (bool, string) {
		return ready.Load() == int64(*watcherCount), fmt.Sprint(ready.Load())
	})
	rest()
	measure(fmt.Sprintf("%d watchers, at rest", *watcherCount), rest)
	measure(fmt.Sprintf("%d watchers, an index every 50 ms", *watcherCount), ddl)
	want := int64(created) * int64(*watcherCount)
	harness.Eventually(t, time.Minute, "every watcher gets every index", func() (bool, string) {
		return received.Load() >= want,
			fmt.Sprintf("%d of %d", received.Load(), want)
	})
	t.Logf("%d indexes, each sent to each watcher", created)
}

// listen reads events as cheaply as a client can.
func listen(ctx context.Context, t *testing.T, server string, ready, received *atomic.Int64) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/v1/events?kinds=index", nil)
	if err != nil {
		t.Error(err)
		return
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", req.URL.Host)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := req.Write(conn); err != nil {
		t.Error(err)
		return
	}
	lines := bufio.NewReaderSize(conn, 4<<10)
	for {
		line, err := lines.ReadSlice('\n')
		switch text := string(line); {
		case err != nil && err != bufio.ErrBufferFull: //nolint:errorlint // bufio's own
			return
		case strings.HasPrefix(text, "event: snapshot"):
			ready.Add(1)
		case strings.HasPrefix(text, "event: change"):
			received.Add(1)
		}
	}
}
