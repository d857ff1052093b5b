package rpc

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// How long a connection with TLS lives: who holds a certificate shows it again within connMaxAge. After connRenewAfter
// an answer closes it in an orderly way, and what still runs at its end, a long stream, is cancelled.
const (
	connRenewAfter = 45 * time.Minute
	connMaxAge     = time.Hour
)

// acceptedKey leads to the time at which a request's connection was accepted.
type acceptedKey struct{}

// stampConn notes when a connection was accepted.
func stampConn(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, acceptedKey{}, time.Now())
}

// aged bounds the life of connections with TLS.
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
		ctx, cancel := context.WithDeadline(r.Context(), accepted.Add(connMaxAge))
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// CheckOrigin refuses what a page of another site makes a browser send: without users, or with a password that the
// browser remembers, it would count as the user's own. Programs are not concerned.
func CheckOrigin(r *http.Request) error {
	var protection http.CrossOriginProtection
	if err := protection.Check(r); err != nil {
		return fmt.Errorf("sent by a page of another site: %w", err)
	}
	return nil
}

// CheckHost refuses requests from this machine, without TLS and credentials, that name a host whose owner may have
// pointed it here to make pages of it the same site: addresses, localhost, names without a dot, and own are none.
func CheckHost(r *http.Request, own string) error {
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if r.TLS != nil || r.Header.Get("Authorization") != "" || err != nil || !net.ParseIP(from).IsLoopback() {
		return nil
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	if net.ParseIP(host) != nil || !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") ||
		strings.EqualFold(host, own) {
		return nil
	}
	return fmt.Errorf("host %q is not this server's own: without credentials, say its address, or localhost", host)
}
