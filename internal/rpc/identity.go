package rpc

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// HeaderRequestID is the name under which one request is known to all who had a part in it: the client makes it or is
// told it; it is passed along on forwards and to components, and it stands in answers, problems and logs.
const HeaderRequestID = "X-Request-Id"

// MaxRequestID is the most bytes of a request id that is taken from a client.
const MaxRequestID = 64

// Anonymous is the principal of requests that nobody has signed.
const Anonymous = "anonymous"

type (
	requestIDKey struct{}
	principalKey struct{}
)

// NewRequestID makes a request id: 32 hexadecimal digits.
func NewRequestID() string {
	var b [16]byte
	for i := range 2 {
		u := rand.Uint64() // it needs to be unlike others, not secret
		for j := range 8 {
			b[8*i+j] = byte(u >> (8 * j))
		}
	}
	return hex.EncodeToString(b[:])
}

// ValidRequestID reports whether an id may be taken from a client: 1 to 64 letters, digits and ._:/+=- .
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

// RequestID returns the id of the request that ctx belongs to, "" for none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// WithPrincipal returns a context that knows on whose behalf it works.
func WithPrincipal(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, principalKey{}, name)
}

// Principal gives on whose behalf ctx works: Anonymous when nobody has said.
func Principal(ctx context.Context) string {
	if name, ok := OnBehalf(ctx); ok {
		return name
	}
	return Anonymous
}

// OnBehalf gives on whose behalf ctx works, and whether anybody has said: nobody has of what the cluster does
// by itself.
func OnBehalf(ctx context.Context) (name string, ok bool) {
	name, ok = ctx.Value(principalKey{}).(string)
	return name, ok && name != ""
}

// Identify returns every request an id: the client's if it is well-formed, else a new one. The answer has it from the
// start, so that problems can repeat it.
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

// Outgoing adds to a request what its context carries along: the request id, and the span if it is traced.
func Outgoing(r *http.Request) {
	if id := RequestID(r.Context()); id != "" {
		r.Header.Set(HeaderRequestID, id)
	}
	if trace.SpanContextFromContext(r.Context()).IsValid() {
		propagation.TraceContext{}.Inject(r.Context(), propagation.HeaderCarrier(r.Header))
	}
}
