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
			var u wire.Unreached
			w.eventually("a report lists the port, with the reason", func() bool {
				r := last()
				if len(r.Unreached) != 1 {
					return false
				}
				u = r.Unreached[0] // without CPU for 2 s, an attempt ends without an answer first
				return u.Error == "dial tcp "+closed+": connect: connection refused"
			})
			if since := time.UnixMilli(u.SinceMS); u.Node != 1 || u.Address != closed || time.Since(since) < 5*time.Second ||
				since.Before(began.Truncate(time.Millisecond)) || u.Refused {
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
			w.eventually("a report lists it no longer", func() bool { return len(last().Unreached) == 0 })
		})
	}
}

// TestReportedPortsAreBounded: a report lists the first of many ports, and has the errors of fewer.
func TestReportedPortsAreBounded(t *testing.T) {
	all := make([]router.Unreached, 2*wire.MaxUnreached)
	for i := range all {
		all[i] = router.Unreached{Address: fmt.Sprint(i), Error: "no route", Refused: i%2 == 1}
	}
	for _, n := range []int{0, 1, wire.MaxUnreachedErrors, wire.MaxUnreached, len(all)} {
		ports := reportedPorts(all[:n])
		if want := min(n, wire.MaxUnreached); len(ports) != want {
			t.Errorf("of %d ports %d are listed, want %d", n, len(ports), want)
		}
		for i, p := range ports {
			if p.Address != fmt.Sprint(i) || (p.Error != "") != (i < wire.MaxUnreachedErrors) || p.Refused != (i%2 == 1) {
				t.Errorf("port %d of %d: %+v", i, n, p)
			}
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
	a.Refused, a.Since = true, time.Now() // with a monotonic reading, which is for no reader
	x.log(log, []router.Unreached{a})
	if !strings.Contains(out.String(), "refuses connections") ||
		!strings.Contains(out.String(), "since="+a.Since.UTC().Format(time.RFC3339)+" ") {
		t.Errorf("a refusal is logged as %q", out.String())
	}
}
