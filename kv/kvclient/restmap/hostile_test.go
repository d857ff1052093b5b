package restmap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// A manager that accepts connections and never starts TLS blocks none of them for longer than the timeout.
func TestHandshakesEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, err = io.Copy(io.Discard, conn)
		}
		ended <- err
	}()
	s := New(Options{Managers: []string{l.Addr().String()}, Bucket: "world", Timeout: 50 * time.Millisecond,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}}) //nolint:gosec // not verified
	if _, err := s.Ask(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatalf("the connection stays: %v", err)
	}
}

// elsewhere is a map of a cluster whose second node's manager is at the given address.
func elsewhere(t *testing.T, manager string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(manager)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.ReplaceAll(document(3), `"10.0.0.2","services":{"mgmt":8091,"mgmtSSL":18091`,
		fmt.Sprintf(`%q,"services":{"mgmt":%s,"mgmtSSL":%s`, host, port, port)), "10.0.0.2:8091", manager)
}

// Without TLS, and with TLS without verification, the password is not sent to a host that only a map names.
func TestForeignHosts(t *testing.T) {
	trusted, anyone := &tls.Config{}, &tls.Config{InsecureSkipVerify: true} //nolint:gosec // only looked at
	for _, tt := range []struct {
		name, foreign string
		tls           *tls.Config
		asked         bool
	}{
		{"another host", "kv9.example.org:8091", nil, false},
		{"another port of the host named", "127.0.0.1:8191", nil, true},
		{"the host named, as IPv6 has it", "[::ffff:127.0.0.1]:8191", nil, true},
		{"another IPv6 host", "[::2]:8091", nil, false},
		{"checked", "kv9.example.org:8091", trusted, true},
		{"unchecked", "kv9.example.org:8091", anyone, false},
	} {
		s := New(Options{Managers: []string{"127.0.0.1:8091"}, Bucket: "world", TLS: tt.tls})
		if o := s.take([]byte(elsewhere(t, tt.foreign)), "127.0.0.1:8091", 0); o.err != nil {
			t.Fatal(o.err)
		}
		if all, _ := s.managers(); slices.Contains(all, tt.foreign) != tt.asked {
			t.Errorf("%s: %v are asked", tt.name, all)
		}
	}
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"KV1.example.org", "kv1.example.org.", true}, {"kv1", "kv2", false}, {"::1", "0:0::1", true},
		{"fe80::1%a", "fe80::1%b", false}, {"1.2.3.4", "kv1", false}, {"::ffff:1.2.3.4", "1.2.3.4", true},
	} {
		if sameHost(tt.a, tt.b) != tt.same {
			t.Errorf("%s and %s", tt.a, tt.b)
		}
	}
}

// A manager that was removed from the cluster (404, 401) does not decide while another one is not ready.
func TestRemovedManagerDoesNotDecide(t *testing.T) {
	says := func(status int) string {
		return manager(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	}
	for _, tt := range []struct {
		name   string
		status []int
		want   error
		not    []error
	}{
		{"not ready yet", []int{404, 503}, kvclient.ErrTemporary, []error{kvclient.ErrNoBucket}},
		{"not ready yet, and a former one", []int{503, 401}, kvclient.ErrTemporary, []error{kvclient.ErrAuth}},
		{"all say so", []int{404, 404}, kvclient.ErrNoBucket, nil},
		{"all refuse", []int{401, 404}, kvclient.ErrAuth, nil},
	} {
		var managers []string
		for _, status := range tt.status {
			managers = append(managers, says(status))
		}
		_, err := source(t, managers...).Ask(t.Context())
		if !errors.Is(err, tt.want) || slices.ContainsFunc(tt.not, func(not error) bool { return errors.Is(err, not) }) {
			t.Errorf("%s: %v", tt.name, err)
		}
		for _, status := range tt.status {
			if !strings.Contains(fmt.Sprint(err), http.StatusText(status)) {
				t.Errorf("%s: %v says nothing of %d", tt.name, err, status)
			}
		}
	}
	// A dead manager does not decide.
	if _, err := source(t, "127.0.0.1:1", says(401)).Ask(t.Context()); !errors.Is(err, kvclient.ErrAuth) {
		t.Error(err)
	}
}

// The text of a manager's refusal must not reach a terminal unescaped.
func TestRefusalsArePrintable(t *testing.T) {
	at := manager(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		_, _ = w.Write([]byte("\x1b]0;owned\a"))
	})
	if _, err := source(t, at).Ask(t.Context()); err == nil || strings.ContainsAny(err.Error(), "\x1b\a") {
		t.Errorf("%q", err)
	}
}

// A late answer does not restore a bucket that another one of the same name has replaced.
func TestLateAnswer(t *testing.T) {
	asked, late := make(chan struct{}), make(chan struct{})
	var turn atomic.Int64
	at := manager(t, func(w http.ResponseWriter, _ *http.Request) {
		if turn.Add(1) == 1 {
			close(asked)
			<-late
			_, _ = w.Write([]byte(document(9)))
			return
		}
		_, _ = w.Write([]byte(strings.ReplaceAll(document(2), "0a1b", "2c3d")))
	})
	s := source(t, at)
	var first sync.WaitGroup
	first.Go(func() { _, _ = s.Ask(t.Context()) })
	<-asked
	// The second answer comes with a newer map in between, so that only the first request is older than the newest map.
	if o := s.take([]byte(document(8)), at, s.turns()); o.err != nil {
		t.Fatal(o.err)
	}
	if a, err := s.Ask(t.Context()); err != nil || a.Config.UUID != "2c3d" {
		t.Fatalf("%+v %v", a.Config, err)
	}
	s.mu.Lock()
	s.newest.Config.Rev = 20 // or it would win by its number
	s.mu.Unlock()
	close(late)
	first.Wait()
	if a, _ := s.Newest(); a.Config.UUID != "2c3d" {
		t.Fatalf("%+v is back", a.Config)
	}
}

// A caller that wants the current map never gets one that is older than a known one.
func TestCurrentDoesNotGoBack(t *testing.T) {
	rev := atomic.Int64{}
	rev.Store(9)
	at := manager(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(document(int(rev.Load())))) })
	s := source(t, at)
	for range 2 {
		if a, err := s.Current(t.Context()); err != nil || a.Config.Rev != 9 {
			t.Fatalf("%+v %v", a.Config, err)
		}
		rev.Store(4) // a manager that was restarted from an older state
	}
}

// A manager whose stream ends after a map, again and again, is asked less and less often; one that lasted, at once.
func TestPauses(t *testing.T) {
	pause := firstPause
	for range 20 {
		next := pauseAfter(pause, time.Second)
		if next < pause || next > maxPause {
			t.Fatalf("%v after %v", next, pause)
		}
		pause = next
	}
	if pause != maxPause || pauseAfter(pause, maxPause) != firstPause {
		t.Errorf("%v, then %v", pause, pauseAfter(pause, maxPause))
	}
}

// Outcomes after the end of a request block nothing, and no goroutine outlives it.
func TestOutcomesAfterTheEnd(t *testing.T) {
	for range 50 { // either the end or an outcome is seen first
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		var left atomic.Int64
		go func() {
			defer close(ended)
			_, err := source(t, "a:1").first(ctx, func(ctx context.Context, _ string, first chan<- outcome) {
				left.Add(1)
				cancel()
				<-ctx.Done()
				first <- outcome{err: ErrAnswer}
				first <- outcome{err: ErrAnswer}
				left.Add(-1)
			})
			if err == nil || left.Load() != 0 {
				t.Errorf("%v, %d go on", err, left.Load())
			}
		}()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatal("the question does not end")
		}
	}
}

// A stream with a document that is too long ends, and the document is not used.
func TestLongDocumentOfStream(t *testing.T) {
	at := manager(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(strings.Repeat(" ", mcbp.MaxConfigBytes+len(endOfDocument)+1)))
	})
	if _, err := source(t, at).stream(t.Context()); !errors.Is(err, mcbp.ErrConfig) ||
		!strings.Contains(err.Error(), "more than 4194304 bytes") {
		t.Fatal(err)
	}
}
