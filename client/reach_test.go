package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/ports"
)

// TestUntrusted: if no server is trusted, the call fails at once, with the reason for each; if one is
// trusted, it gets the call.
func TestUntrusted(t *testing.T) {
	t.Parallel()
	certified := httptest.NewTLSServer(text("{}"))
	defer certified.Close()
	_, plain := serve(t, text("{}"))
	plain = strings.Replace(plain, "http://", "https://", 1)
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	mutual := httptest.NewUnstartedServer(text("{}"))
	mutual.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	mutual.StartTLS()
	defer mutual.Close()
	foreign := &tls.Config{RootCAs: roots, Certificates: mutual.TLS.Certificates}
	wrongName := strings.Replace(certified.URL, "127.0.0.1", "localhost", 1)
	ca, untrusted := &tls.Config{RootCAs: roots}, &tls.Config{RootCAs: x509.NewCertPool()}
	for _, tc := range []struct {
		name    string
		servers []string
		conf    *tls.Config
		want    []string // in the error; none: no error
	}{
		{"another CA", []string{certified.URL}, untrusted, []string{certified.URL, "unknown authority"}},
		{"another name", []string{wrongName}, ca, []string{wrongName, "localhost"}},
		{"no TLS", []string{plain}, ca, []string{plain, "HTTP response to HTTPS"}},
		{"does not trust the client", []string{mutual.URL}, foreign, []string{mutual.URL, "unknown certificate authority"}},
		{"requires a certificate", []string{mutual.URL}, ca, []string{mutual.URL, "certificate required"}},
		{"each for its own reason", []string{wrongName, plain}, ca, []string{wrongName, "localhost", plain, "HTTP response to HTTPS"}},
		{"the same one twice", []string{certified.URL, certified.URL + "/"}, untrusted, []string{"unknown authority"}},
		{"one is trusted", []string{wrongName, plain, certified.URL}, ca, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Open(Options{Servers: tc.servers, TLS: tc.conf})
			defer c.Close()
			silent(c)
			_, err := c.Indexes(t.Context(), "") // only the client ends it
			if (len(tc.want) == 0) != (err == nil) || err != nil && !errors.Is(err, ErrUntrusted) {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %v", want, err)
				}
			}
			for _, err := range c.Watch(t.Context(), "") { // nor a watch, whose server sends little
				if len(tc.want) > 0 && !errors.Is(err, ErrUntrusted) {
					t.Error(err)
				}
				break
			}
		})
	}
}

// TestUnreachableServerIsAwaitedBesideUntrusted: a server that may come back, and be trusted, is waited for.
func TestUnreachableServerIsAwaitedBesideUntrusted(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(text("{}"))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := Open(Options{Servers: []string{s.URL, ports.Addr(t)}, TLS: &tls.Config{RootCAs: x509.NewCertPool()}})
	defer c.Close()
	silent(c)
	tries := 0
	c.Waiting = func(error) {
		if tries++; tries == 8 {
			cancel()
		}
	}
	if _, err := c.Indexes(ctx, ""); tries != 8 || errors.Is(err, ErrUntrusted) || !errors.Is(err, ErrUnreached) {
		t.Errorf("after %d tries: %v", tries, err)
	}
}

// TestUnreached: if no server accepts a connection, the call fails once ReachFor is over and each was tried. A server
// that was ever reached is waited for, and so is every server by a client without that limit.
func TestUnreached(t *testing.T) {
	t.Parallel()
	a, b := ports.Addr(t), ports.Addr(t)
	c := Open(Options{Servers: []string{a, b}, ReachFor: 1}) // is over at once
	defer c.Close()
	silent(c)
	_, err := c.Indexes(t.Context(), "")
	if !errors.Is(err, ErrUnreached) || !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	for _, want := range []string{"http://" + a, "http://" + b, "connection refused"} {
		if strings.Count(err.Error(), want) < 1 {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	for _, err := range c.Watch(t.Context(), "") {
		if !errors.Is(err, ErrUnreached) {
			t.Error(err)
		}
		break
	}

	unlimited := Open(Options{Servers: []string{a}})
	defer unlimited.Close()
	silent(unlimited)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tries := 0
	unlimited.Waiting = func(error) {
		if tries++; tries == 5 {
			cancel()
		}
	}
	_, err = unlimited.Indexes(ctx, "")
	if tries != 5 || !errors.Is(err, ErrUnreached) || !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a limit, after %d tries: %v", tries, err)
	}
}

// TestUnreachedErrorStatesElapsedTime: the error states the time that has passed, not the limit: attempts may exceed
// it.
func TestUnreachedErrorStatesElapsedTime(t *testing.T) {
	c := Open(Options{Servers: []string{"a"}, ReachFor: 5 * time.Second})
	defer c.Close()
	r := c.reach()
	r.began = r.began.Add(-90 * time.Minute)
	r.attempt(t.Context())
	err, over := r.failed("a", errors.New("i/o timeout"))
	if !over || !strings.Contains(err.Error(), "no server could be reached in 1h3") {
		t.Error(err)
	}
}

// TestServerReachedOnceIsAwaited: a server that disappears after it has answered, or begun to, is waited for.
func TestServerReachedOnceIsAwaited(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]http.HandlerFunc{"answered": text("{}"), "cut": cut,
		"refused": refuse(503, errcode.NoLeader)} {
		t.Run(name, func(t *testing.T) {
			h := httptest.NewServer(first)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := Open(Options{Servers: []string{h.URL}, ReachFor: 1})
			defer c.Close()
			silent(c)
			tries := 0
			c.Waiting = func(error) {
				if tries++; tries == 1 && name != "answered" {
					h.Close()
				}
				if tries == 5 {
					cancel()
				}
			}
			if name == "answered" {
				if _, err := c.Indexes(ctx, ""); err != nil {
					t.Fatal(err)
				}
				h.Close()
				c.rpc.Close() // no idle connection shows that there was one
			}
			if _, err := c.Indexes(ctx, ""); tries != 5 || errors.Is(err, ErrUnreached) {
				t.Errorf("after %d tries: %v", tries, err)
			}
		})
	}
}

// TestProblemIsReported: a manager's refusal is in the error, even if unreachable servers are tried after it, and if
// it stops answering.
func TestProblemIsReported(t *testing.T) {
	t.Parallel()
	_, busy := serve(t, refuse(503, errcode.NoLeader))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := newClient(t, busy, ports.Addr(t))
	tries := 0
	c.Waiting = func(error) {
		if tries++; tries == 4 { // the one that is gone
			cancel()
		}
	}
	_, err := c.Indexes(ctx, "")
	p := (*rpc.Problem)(nil)
	if !errors.As(err, &p) || p.Code != errcode.NoLeader || !errors.Is(err, ErrUnavailable) ||
		!errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	text := err.Error()
	if strings.Contains(text, "context") || !strings.Contains(text, "before that: NO_LEADER: because") ||
		!strings.Contains(text, "connection refused") {
		t.Error(text)
	}
}
