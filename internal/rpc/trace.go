package rpc

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// StartSpan begins a child of ctx's span, with the same provider. If ctx has no recording span, it does nothing and
// allocates nothing. End the span with EndSpan, or by its own method.
func StartSpan(ctx context.Context, name string) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, parent // of an untraced request: ending it does nothing
	}
	return parent.TracerProvider().Tracer("tidemark").Start(ctx, name)
}

// EndSpan ends a span of StartSpan; parent is the context that was passed to StartSpan. The error is recorded in the
// span.
func EndSpan(parent context.Context, span trace.Span, err error) {
	if !span.IsRecording() || span == trace.SpanFromContext(parent) {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, WithoutSecrets(err.Error())) // it may contain a URL
	}
	span.End()
}

// ResumeSpan begins a child of another process's span that was stored with a request, after that request has been
// answered. If the parent is not sampled, or there is no tracer, it does nothing.
func ResumeSpan(ctx context.Context, tracer trace.Tracer, parent trace.SpanContext, name string) (context.Context,
	trace.Span) {
	if tracer == nil || !parent.IsSampled() {
		return ctx, trace.SpanFromContext(context.Background())
	}
	return tracer.Start(trace.ContextWithSpanContext(ctx, parent), name)
}

// ServerSpan begins the span of an incoming request, as a child of the caller's (W3C traceparent).
func ServerSpan(tracer trace.Tracer, r *http.Request, name string) (*http.Request, trace.Span) {
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", r.Method), attribute.String("url.path", WithoutSecrets(r.URL.Path)),
		attribute.String("tidemark.request_id", RequestID(ctx))))
	return r.WithContext(ctx), span
}

// EndServerSpan records the status of the answer and ends the span.
func EndServerSpan(span trace.Span, status int) {
	span.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(status))
	}
	span.End()
}

// Traced returns a handler that makes a span of each request to next; with a nil tracer it returns next.
func Traced(tracer trace.Tracer, next http.Handler) http.Handler {
	if tracer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, span := ServerSpan(tracer, r, r.Method+" "+WithoutSecrets(r.URL.Path))
		kept := &Keeper{ResponseWriter: w, Status: http.StatusOK}
		defer func() { EndServerSpan(span, kept.Status) }()
		next.ServeHTTP(kept, r)
	})
}

// Keeper records the status of an answer.
type Keeper struct {
	http.ResponseWriter
	Status int
}

// WriteHeader records the status.
func (k *Keeper) WriteHeader(status int) {
	k.Status = status
	k.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (k *Keeper) Unwrap() http.ResponseWriter { return k.ResponseWriter }
