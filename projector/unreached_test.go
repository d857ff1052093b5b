package projector

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/testing/ports"
	"tidemark/projector/router"
	"tidemark/wire"
)

// TestUnreachedIsReported: an indexer's data port at which nothing listens is reported to the leader and counted in
// the metrics, with the reason, until it can be reached, or the indexer has left.
func TestUnreachedIsReported(t *testing.T) {
	t.Parallel()
	addr, _ := startKV(t, t.TempDir(), "127.0.0.1:0")
	for _, left := range []bool{false, true} {
		t.Run(fmt.Sprint("left ", left), func(t *testing.T) {
			t.Parallel()
			w := newWorldAt(t, addr)
			last := func() *wire.ProjectorReport {
				w.manager.mu.Lock()
				defer w.manager.mu.Unlock()
				return &w.manager.reports[len(w.manager.reports)-1]
			}
			closed := ports.Addr(t)
			w.data.addr = closed
			began := time.Now()
			w.define(1, 1)
			w.start(1)
			w.eventually("the leader is told", func() bool { return len(last().Unreached) == 1 })
			u := last().Unreached[0]
			if since := time.UnixMilli(u.SinceMS); u.Node != 1 || u.Address != closed || time.Since(since) < 5*time.Second ||
				since.Before(began.Truncate(time.Millisecond)) || u.Error != "dial tcp "+closed+": connect: connection refused" {
				t.Errorf("the report has %+v; the attempts began after %v", u, began)
			}
			if m := w.metrics(); !strings.Contains(m, "\ntidemark_projector_unreached_ports 1\n") {
				t.Errorf("no metric of it in\n%s", m)
			}
			if left {
				w.data.addr = ""
				w.define(3)
			} else {
				w.data = newEndpointAt(t, closed)
			}
			w.eventually("the leader is told that it is over", func() bool { return len(last().Unreached) == 0 })
		})
	}
}

// TestReportedPortsAreBounded: a report lists some of many ports, and counts the others.
func TestReportedPortsAreBounded(t *testing.T) {
	all := make([]router.Unreached, 3*wire.MaxUnreached)
	for i := range all {
		all[i].Address = fmt.Sprint(i)
	}
	for n, omitted := range map[int]int{0: 0, 1: 0, wire.MaxUnreached: 0, len(all): 2 * wire.MaxUnreached} {
		ports, o := reportedPorts(all[:n])
		if len(ports)+o != n || o != omitted || n > 0 && ports[0].Address != "0" {
			t.Errorf("of %d ports %d are listed, and %d omitted", n, len(ports), o)
		}
	}
}

// TestUnreachedIsLoggedOnce: a port that cannot be reached gets one line in the log, another one when that is over.
func TestUnreachedIsLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	log := hclog.New(&hclog.LoggerOptions{Output: &out})
	var x unreached
	check := func(lines int, all ...router.Unreached) {
		t.Helper()
		x.log(log, all)
		if got := strings.Count(out.String(), "\n"); got != lines || len(x) != len(all) {
			t.Errorf("%v: logged is %q, and %d are kept", all, out.String(), len(x))
		}
		out.Reset()
	}
	a, b := router.Unreached{Node: 1, Address: "a:1"}, router.Unreached{Node: 1, Address: "a:2"}
	check(0)
	check(1, a)
	a.Error = "another"
	check(1, a, b)
	check(1, b)
	check(2, a)
	check(1)
	check(0)
}
