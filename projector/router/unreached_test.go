package router_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/projector/router"
)

// shown describes what a router cannot reach, with seconds since a moment.
func (f *fixture) shown(from time.Time) string {
	var all []string
	for _, u := range f.r.Unreached() {
		text := fmt.Sprintf("%d at %s since %.0f: %s", u.Node, u.Address, u.Since.Sub(from).Seconds(), u.Error)
		if u.Refused {
			text += " (refused)"
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// An endpoint is listed once no connection has worked for 5 seconds, with the beginning of that; no longer when it
// has acknowledged something, when a connection stands, when it has another address, or when the view lacks it.
func TestUnreached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, router.Config{Connections: 2}, maintenance(4))
		from := time.Now()
		after := func(d time.Duration, when, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := f.shown(from); got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		f.tap.set(f.tap.refuse, "n1", true)
		v := view(t, 1, one(1, 1, 2))
		for vb := range uint16(4) {
			f.begin(vb, 1, v, 0)
		}
		after(4900*time.Millisecond, "for a moment", "")
		after(200*time.Millisecond, "for long", "1 at n1 since 0: no route")
		f.tap.set(f.tap.refuse, "n1", false)
		after(2*time.Second, "it acknowledges", "")

		at := func(addr string, revision uint64) *router.View {
			v, err := router.NewView(router.ViewConfig{Revision: revision, Topologies: []partition.Topology{one(1, 1, 2)},
				Endpoints: map[index.NodeID]string{1: addr, 2: "n2"}})
			f.must(err)
			return v
		}
		f.tap.set(f.tap.refuse, "other", true)
		f.topic.Announce(at("other", 2))
		after(8*time.Second, "at its new address", "1 at other since 7: no route")
		f.topic.Announce(at("n1", 3))
		after(0, "at its old address again", "")
		after(10*time.Second, "at its old address for a while", "")
		f.topic.Announce(at("other", 4))
		after(8*time.Second, "again at the new one", "1 at other since 25: no route")
		f.topic.Announce(view(t, 5, one(1, 2)))
		after(0, "when it has no copies", "")
		after(20*time.Second, "when it has no copies for a while", "")
	})
}

// A connection that ends before the endpoint acknowledges anything does not end the time for which it is unreached,
// one that stands does, even if nothing is to be acknowledged.
func TestUnreachedByConnectionsThatEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, router.Config{}, maintenance(1))
		from := time.Now()
		f.tap.set(f.tap.hold, "n1", true)
		f.begin(0, 1, view(t, 1, one(1, 1)), 0)
		for i := 0; time.Since(from) < 6*time.Second; i++ {
			synctest.Wait()
			if conns := f.tap.at("n1"); len(conns) > i {
				conns[i].Close()
			}
			time.Sleep(backoffMost)
		}
		if got, want := f.shown(from), "1 at n1 since 0: waiting for more to send: cut"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(3 * time.Second)
		if got := f.shown(from); got != "" {
			t.Errorf("a connection stands: %q", got)
		}
	})
}

// backoffMost is the longest pause between two attempts.
const backoffMost = time.Second

// A side stream that is requested again and again has other lanes each time: the time counts from the first one, and
// ends some time after the last.
func TestUnreachedOverRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, router.Config{}, maintenance(1))
		from := time.Now()
		f.tap.set(f.tap.refuse, "n1", true)
		for i := range 4 {
			cfg := maintenance(1)
			cfg.Path, cfg.Class = fmt.Sprint("/backfill/1/", i), keyversion.ClassBackfill
			topic, err := f.r.Open(cfg)
			f.must(err)
			f.must(topic.Begin(t.Context(), view(t, 1, one(1, 1)), streamAt(0, inc(uint64(i+1)), 0)))
			time.Sleep(3 * time.Second)
			topic.Close()
			time.Sleep(time.Second)
		}
		if got, want := f.shown(from), "1 at n1 since 0: no route"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(10 * time.Second)
		if got := f.shown(from); got != "" {
			t.Errorf("some time after the last attempt: %q", got)
		}
	})
}

// An endpoint that refuses maintenance streams is listed, with its reason. One that refuses side streams is not
// listed, and no longer if it was, unless it refuses them for minutes.
func TestUnreachedByRefusals(t *testing.T) {
	t.Parallel()
	for class, want := range map[keyversion.Class]string{
		keyversion.ClassMaintenance: "1 at n1 since 0: try again (refused)",
		keyversion.ClassCatchup:     "",
	} {
		t.Run(fmt.Sprint(class), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := maintenance(1)
				cfg.Class = class
				f := newFixture(t, router.Config{}, cfg)
				from := time.Now()
				check := func(when, want string) {
					t.Helper()
					time.Sleep(6 * time.Second)
					synctest.Wait()
					if got := f.shown(from); got != want {
						t.Errorf("%s: %q, want %q", when, got, want)
					}
				}
				f.tap.set(f.tap.refuse, "n1", true)
				f.begin(0, 1, view(t, 1, one(1, 1)), 0)
				check("unreachable", "1 at n1 since 0: no route")
				f.tap.set(f.tap.deny, "n1", true)
				f.tap.set(f.tap.refuse, "n1", false)
				check("refused", want)
				check("still refused", want)
				time.Sleep(2 * time.Minute) // refusedAfter
				check("refused all the time", "1 at n1 since 0: try again (refused)")
				f.tap.set(f.tap.deny, "n1", false)
				check("accepted", "")
			})
		})
	}
}

// The reason comes through from real sockets: nothing listens, there is no answer, only one side uses TLS, and the
// certificate is of another authority. Without CPU for 2 s any attempt ends without an answer: others follow.
func TestUnreachedHasAReason(t *testing.T) {
	t.Parallel()
	silent, closed := listen(t), listen(t)
	closed.Close()
	web := httptest.NewUnstartedServer(http.NotFoundHandler())
	web.EnableHTTP2 = true
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.StartTLS()
	t.Cleanup(web.Close)
	for name, c := range map[string]struct {
		addr string
		tls  *tls.Config
		want string
	}{
		"nothing listens":  {closed.Addr().String(), nil, "dial tcp ADDR: connect: connection refused"},
		"no answer":        {silent.Addr().String(), nil, "no answer within 2s"},
		"no answer to TLS": {silent.Addr().String(), &tls.Config{}, "no answer within 2s"},
		"another authority": {web.Listener.Addr().String(), &tls.Config{}, "authentication handshake failed: tls: failed to " +
			"verify certificate: x509: certificate signed by unknown authority"},
		"without TLS": {web.Listener.Addr().String(), nil, ""}, // the server's end of it varies
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRouter(t, router.Config{Connections: 1, TLS: c.tls})
			topic, err := r.Open(maintenance(1))
			if err != nil {
				t.Fatal(err)
			}
			v, err := router.NewView(router.ViewConfig{Revision: 1, Endpoints: map[index.NodeID]string{1: c.addr},
				Topologies: []partition.Topology{one(1, 1)}})
			if err != nil {
				t.Fatal(err)
			}
			if err := topic.Begin(t.Context(), v, streamAt(0, inc(1), 0)); err != nil {
				t.Fatal(err)
			}
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			deadline, got := time.After(patience), ""
			for got == "" || c.want != "" && got != c.want {
				select {
				case <-tick.C:
				case <-deadline:
					t.Fatalf("the reason is %q, want %q", got, c.want)
				}
				for _, u := range r.Unreached() {
					if u.Node != 1 || u.Address != c.addr || u.Refused {
						t.Errorf("%+v", u)
					}
					got = strings.ReplaceAll(u.Error, c.addr, "ADDR")
				}
			}
		})
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
