package rpc

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Lifetime of TLS connections: a certificate holder must present it again within connMaxAge. After connRenewAfter an
// answer closes the connection in an orderly way; whatever still runs at connMaxAge, such as a long stream, is
// cancelled. For Lasting calls the certificate is checked every recheckEvery instead.
const (
	connRenewAfter = 45 * time.Minute
	connMaxAge     = time.Hour
	recheckEvery   = time.Minute
)

// acceptedKey is the context key of the time at which a request's connection was accepted.
type acceptedKey struct{}

// stampConn stores the time at which a connection was accepted.
func stampConn(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, acceptedKey{}, time.Now())
}

// PeerCheck returns why the certificate presented on a connection is no longer valid; nil if it is, or none was
// presented.
type PeerCheck func(*tls.ConnectionState) error

// peerCheckKey is the context key of a server's PeerCheck; wholeKey is that of a request's context without the
// deadline of its connection.
type (
	peerCheckKey struct{}
	wholeKey     struct{}
)

// WithPeerCheck returns a context for the requests of a server that checks certificates by check.
func WithPeerCheck(ctx context.Context, check PeerCheck) context.Context {
	return context.WithValue(ctx, peerCheckKey{}, check)
}

// Lasting returns a request that may outlive its connection's lifetime, for calls that take hours: its context ends
// with its client, or when the client's certificate is no longer valid. Deadlines set on r are dropped. The caller
// must call release at the end of the call.
func Lasting(r *http.Request) (lasting *http.Request, release func()) {
	whole, aged := r.Context().Value(wholeKey{}).(context.Context)
	if !aged {
		return r, func() {}
	}
	ctx, end := context.WithCancelCause(context.WithoutCancel(r.Context()))
	stop := context.AfterFunc(whole, func() { end(context.Cause(whole)) })
	if check, ok := whole.Value(peerCheckKey{}).(PeerCheck); ok {
		go recheck(ctx, end, func() error { return check(r.TLS) })
	}
	return r.WithContext(ctx), func() {
		stop()
		end(nil)
	}
}

// recheck cancels a call when its client's certificate is no longer valid.
func recheck(ctx context.Context, end context.CancelCauseFunc, check func() error) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := check(); err != nil {
			end(fmt.Errorf("the presented certificate is no longer valid: %w", err))
			return
		}
	}
}

// aged limits the lifetime of TLS connections.
func aged(h http.Handler, now func() time.Time) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accepted, ok := r.Context().Value(acceptedKey{}).(time.Time)
		if r.TLS == nil || !ok {
			h.ServeHTTP(w, r)
			return
		}
		if now().Sub(accepted) >= connRenewAfter {
			w.Header().Set("Connection", "close")
		}
		whole := context.WithValue(r.Context(), wholeKey{}, r.Context())
		ctx, cancel := context.WithDeadline(whole, accepted.Add(connMaxAge))
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// CheckOrigin rejects requests sent by a page of another site through a browser: without users, or with a password
// remembered by the browser, they would count as the user's own. Programs are not affected.
func CheckOrigin(r *http.Request) error {
	var protection http.CrossOriginProtection
	if err := protection.Check(r); err != nil {
		return fmt.Errorf("sent by a page of another site: %w", err)
	}
	return nil
}

// CheckHost rejects requests from this machine, without TLS and credentials, for a host name that its owner may have
// pointed at this machine (DNS rebinding), so that a browser treats the owner's pages as same-site. Addresses,
// localhost, names without a dot, and those in own are accepted.
func CheckHost(r *http.Request, own ...string) error {
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if r.TLS != nil || r.Header.Get("Authorization") != "" || err != nil || !net.ParseIP(from).IsLoopback() {
		return nil
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	if net.ParseIP(host) != nil || !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") ||
		slices.ContainsFunc(own, func(name string) bool { return strings.EqualFold(host, name) }) {
		return nil
	}
	return fmt.Errorf("host %q is not a name of this server: without credentials, use its address, or localhost", host)
}
