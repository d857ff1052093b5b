package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// echoing answers with the body of the request, in the way that its path says.
func echoing(t *testing.T, secure bool) (s *httptest.Server, opened *atomic.Int64) {
	t.Helper()
	opened = &atomic.Int64{}
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		switch r.URL.Path {
		case "/length":
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		case "/close":
			w.Header().Set("Connection", "close")
		case "/cut":
			w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
		case "/chunks":
			_ = http.NewResponseController(w).Flush()
		case "/silent":
			<-r.Context().Done()
			return
		}
		_, _ = w.Write(body)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, opened
}

func ask(ctx context.Context, c *http.Client, url, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// TestDirect: one request after the other goes over one connection, until an answer closes it.
func TestDirect(t *testing.T) {
	long := strings.Repeat("long ", 100<<10)
	for _, secure := range []bool{false, true} {
		s, opened := echoing(t, secure)
		conf := &tls.Config{MinVersion: tls.VersionTLS12}
		if secure {
			conf.RootCAs = x509.NewCertPool()
			conf.RootCAs.AddCert(s.Certificate())
		}
		c := NewDirectClient(2, conf)
		for _, path := range []string{"/length", "/chunks", "/", "/length", "/close"} {
			for _, body := range []string{"short", long} {
				if got, err := ask(t.Context(), c.HTTP(), s.URL+path, body); err != nil || got != body {
					t.Fatalf("%s: %d bytes of %d, %v", path, len(got), len(body), err)
				}
			}
		}
		if n := opened.Load(); n != 2 { // the second of those that close needs one of its own
			t.Errorf("%d connections", n)
		}
		c.Close()
	}
}

// TestDirectAfterTheServerClosed: a connection that was closed while nobody used it is replaced; a server that is gone is an
// error.
func TestDirectAfterTheServerClosed(t *testing.T) {
	s, opened := echoing(t, false)
	c := NewDirectClient(2, nil)
	defer c.Close()
	for range 3 {
		if got, err := ask(t.Context(), c.HTTP(), s.URL, "x"); err != nil || got != "x" {
			t.Fatal(got, err)
		}
		s.CloseClientConnections()
	}
	if n := opened.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
	s.Close()
	if _, err := ask(t.Context(), c.HTTP(), s.URL, "x"); err == nil {
		t.Error("an answer of nobody")
	}
}

// TestDirectCut: an answer that is cut is an error, and its connection is not used again; nor is one whose answer was not
// read to its end.
func TestDirectCut(t *testing.T) {
	s, opened := echoing(t, false)
	c := NewDirectClient(2, nil)
	defer c.Close()
	if got, err := ask(t.Context(), c.HTTP(), s.URL+"/cut", "x"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v", got, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/length", bytes.NewReader(make([]byte, 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.HTTP().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
		t.Error("read after it was closed")
	}
	if got, err := ask(t.Context(), c.HTTP(), s.URL, "x"); err != nil || got != "x" {
		t.Error(got, err)
	}
	if n := opened.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
}

// TestDirectEndsWithItsContext: also while the server is silent.
func TestDirectEndsWithItsContext(t *testing.T) {
	s, _ := echoing(t, false)
	c := NewDirectClient(2, nil)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	if got, err := ask(ctx, c.HTTP(), s.URL, "x"); err != nil || got != "x" {
		t.Fatal(got, err)
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		if _, err := ask(ctx, c.HTTP(), s.URL+"/silent", "x"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
	cancel()
	asking.Wait()
}

// TestDirectByMany: goroutines do not get each other's answers.
func TestDirectByMany(t *testing.T) {
	s, _ := echoing(t, false)
	c := NewDirectClient(4, nil)
	defer c.Close()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 50 {
				body := strconv.Itoa(1000*i + n)
				if got, err := ask(t.Context(), c.HTTP(), s.URL+"/length", body); err != nil || got != body {
					t.Errorf("%q for %q: %v", got, body, err)
				}
			}
		})
	}
	all.Wait()
}
