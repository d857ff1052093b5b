package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// TestAgedConnections checks that a call ends with the lifetime of its TLS connection, unless it is Lasting: such a
// call ends at its own end, with its client, or when the client's certificate is no longer valid.
func TestAgedConnections(t *testing.T) {
	const began = 44 * time.Minute // after its connection was accepted
	gone, bad := errors.New("the client has gone"), errors.New("the CA is another one")
	for name, c := range map[string]struct {
		plain, lasts   bool
		goes, badAfter time.Duration // 0: never
		want           time.Duration // duration of the call
		cause          error
	}{
		"a call":                       {want: connMaxAge - began, cause: context.DeadlineExceeded},
		"a call without TLS":           {plain: true, lasts: true, want: 24 * time.Hour},
		"it lasts":                     {lasts: true, want: 24 * time.Hour},
		"its client goes":              {lasts: true, goes: 3 * time.Hour, want: 3 * time.Hour, cause: gone},
		"a certificate counts no more": {lasts: true, badAfter: 3*time.Hour - time.Second, want: 3 * time.Hour, cause: bad},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx := stampConn(WithPeerCheck(t.Context(), func(*tls.ConnectionState) error {
					if c.badAfter > 0 && time.Since(start) >= c.badAfter {
						return bad
					}
					return nil
				}), nil)
				start = start.Add(began)
				time.Sleep(began)
				ctx, cancel := context.WithCancelCause(ctx)
				defer cancel(nil)
				if c.goes > 0 {
					time.AfterFunc(c.goes, func() { cancel(gone) })
				}
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "https://x/y", nil)
				if c.plain {
					r.TLS = nil
				}
				h := aged(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if c.lasts {
						var release func()
						r, release = Lasting(r)
						defer release()
					}
					select {
					case <-r.Context().Done():
						if cause := context.Cause(r.Context()); !errors.Is(cause, c.cause) || c.cause == nil {
							t.Errorf("it was ended: %v, want %v", cause, c.cause)
						}
					case <-time.After(24 * time.Hour):
					}
				}), time.Now)
				h.ServeHTTP(httptest.NewRecorder(), r)
				if took := time.Since(start); took != c.want {
					t.Errorf("it took %v, want %v", took, c.want)
				}
			})
		})
	}
}
