package rpc

import (
	"context"
	"net"
	"net/http"
	"time"
)

// How long a connection with TLS lives: who holds a certificate shows it again within connMaxAge. After connRenewAfter an
// answer closes it in an orderly way, and what still runs at its end, a long stream, is cancelled.
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

// Guard lets requests pass that check finds nothing wrong with; the others are answered 403.
func Guard(check func(r *http.Request) error, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := check(r); err != nil {
			WriteProblem(w, Refuse(CodeForbidden, "%s: %v", r.URL.Path, err))
			return
		}
		h.ServeHTTP(w, r)
	})
}
