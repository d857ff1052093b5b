package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/internal/testing/pipenet"
)

// short is the server's timeout for a request, and for an answer, in these tests.
const short = 10 * time.Second

// shortServer serves h with timeouts that tests can wait for.
func shortServer(t testing.TB, h http.HandlerFunc) *pipenet.Listener {
	t.Helper()
	l := pipenet.Listen()
	s := NewServer(h)
	s.ReadTimeout, s.WriteTimeout = short, short
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, s, l, time.Second) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// long waits for longer than the server's timeouts, or for the end of the request.
func long(r *http.Request) error {
	select {
	case <-r.Context().Done():
		return fmt.Errorf("the request was ended: %w", r.Context().Err())
	case <-time.After(3 * short):
		return nil
	}
}

// TestLongCallsAreNotCancelled checks that a call that takes longer than the server's timeouts is not cancelled, with a
// body and without, whether it answers at its end or streams, and that its connection can be used again.
func TestLongCallsAreNotCancelled(t *testing.T) { synctest.Test(t, longCallsAreNotCancelled) }

func longCallsAreNotCancelled(t *testing.T) {
	l := shortServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 100))
		if err == nil {
			err = long(r)
		}
		switch {
		case err != nil:
			WriteProblem(w, err)
		case r.URL.Path == "/problem":
			WriteProblem(w, Refuse(errcode.NotFound, "late"))
		case r.URL.Path == "/stream":
			c := http.NewResponseController(w)
			for _, b := range body {
				_ = c.SetWriteDeadline(time.Now().Add(short))
				_, _ = w.Write([]byte{b})
				_ = c.Flush()
				if long(r) != nil {
					panic(http.ErrAbortHandler)
				}
			}
			_ = c.SetWriteDeadline(time.Now().Add(short)) // the server writes the end
		default:
			Write(w, r, http.StatusOK, string(body))
		}
	})
	c := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, DialContext: l.Dial}}
	defer c.CloseIdleConnections()
	for _, tc := range []struct{ method, path, body, want string }{
		{"GET", "/", "", `""`}, {"POST", "/", "abc", `"abc"`}, {"POST", "/chunked", "abc", `"abc"`}, {"POST", "/stream", "abc", "abc"},
		{"POST", "/problem", "abc", `"detail": "late"`}, {"POST", "/", "", `""`}, {"HEAD", "/", "", ""},
	} {
		var body io.Reader = strings.NewReader(tc.body)
		if tc.path == "/chunked" {
			body = io.MultiReader(body) // of unknown length
		}
		req, err := http.NewRequest(tc.method, "http://"+l.Addr().String()+tc.path, body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Errorf("%s %s: %v", tc.method, tc.path, err)
			continue
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(got), tc.want) {
			t.Errorf("%s %s: %s %q %v, want %q", tc.method, tc.path, resp.Status, got, err, tc.want)
		}
	}
}

// TestSlowRequestsAreCancelled checks that a body that does not arrive is given up after the server's timeout, and
// that a client that disconnects ends its call at once.
func TestSlowRequestsAreCancelled(t *testing.T) { synctest.Test(t, slowRequestsAreCancelled) }

func slowRequestsAreCancelled(t *testing.T) {
	ended := make(chan error, 1)
	l := shortServer(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		if err == nil {
			select {
			case <-r.Context().Done():
				err = r.Context().Err()
			case <-time.After(time.Minute):
			}
		}
		ended <- err
		WriteProblem(w, Refuse(errcode.BadRequest, "reading the body: %v", err))
	})
	dial := func(text string) net.Conn {
		t.Helper()
		c, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	slow := dial("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
	defer slow.Close()
	var timeout net.Error
	if err := <-ended; !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("half a body: %v", err)
	}
	if line, err := bufio.NewReader(slow).ReadString('\n'); err != nil || !strings.Contains(line, "400") {
		t.Errorf("half a body is answered %q, %v", line, err)
	}
	gone := dial("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
	time.AfterFunc(2*short, func() { _ = gone.Close() })
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the client went: %v", err)
	}
}
