package rpc

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// HeaderRequestID carries the id of a request. The client sets it or learns it from the answer; it is passed on with
// forwards and calls to components, and appears in answers, problems and logs.
const HeaderRequestID = "X-Request-Id"

// MaxRequestID is the longest request id accepted from a client, in bytes.
const MaxRequestID = 64

// Anonymous is the principal of unauthenticated requests.
const Anonymous = "anonymous"

type (
	requestIDKey struct{}
	principalKey struct{}
)

// NewRequestID returns a new request id: 32 hexadecimal digits.
func NewRequestID() string {
	var b [16]byte
	for i := range 2 {
		u := rand.Uint64() // it must be unique, not secret
		for j := range 8 {
			b[8*i+j] = byte(u >> (8 * j))
		}
	}
	return hex.EncodeToString(b[:])
}

// ValidRequestID reports whether an id may be accepted from a client: 1 to 64 letters, digits and ._:/+=- .
func ValidRequestID(id string) bool {
	if id == "" || len(id) > MaxRequestID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == ':', c == '/',
			c == '+', c == '=', c == '-':
		default:
			return false
		}
	}
	return true
}

// WithRequestID returns a context whose requests (Client.Do and what uses Outgoing) carry the id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns the id of the request that ctx belongs to, "" if there is none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// WithPrincipal returns a context that carries the principal on whose behalf it works.
func WithPrincipal(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, principalKey{}, name)
}

// Principal returns the principal of ctx, Anonymous if there is none.
func Principal(ctx context.Context) string {
	if name, ok := OnBehalf(ctx); ok {
		return name
	}
	return Anonymous
}

// OnBehalf returns the principal of ctx, and whether there is one: the cluster's own work has none.
func OnBehalf(ctx context.Context) (name string, ok bool) {
	name, ok = ctx.Value(principalKey{}).(string)
	return name, ok && name != ""
}

// Identify assigns each request an id: the client's if it is valid, else a new one. It is set in the answer's header
// at the start, so that problems can repeat it.
func Identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(HeaderRequestID)
		if !ValidRequestID(id) {
			id = NewRequestID()
		}
		w.Header().Set(HeaderRequestID, id)
		next.ServeHTTP(w, r.WithContext(WithRequestID(r.Context(), id)))
	})
}

// Outgoing copies the request id, and the span if there is one, from the request's context into its headers.
func Outgoing(r *http.Request) {
	if id := RequestID(r.Context()); id != "" {
		r.Header.Set(HeaderRequestID, id)
	}
	if trace.SpanContextFromContext(r.Context()).IsValid() {
		propagation.TraceContext{}.Inject(r.Context(), propagation.HeaderCarrier(r.Header))
	}
}
