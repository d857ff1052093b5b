// Package tracing sends spans to an OpenTelemetry collector (OTLP over HTTP) when one is configured.
//
// Without an endpoint nothing is traced, allocated or sent. There is no global provider: the code that starts a
// request has a tracer, and everything below finds it in the context (rpc.StartSpan). Spans are sent in batches in
// the background; if a collector does not answer, spans are lost, but requests are not affected.
package tracing

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"tidemark/internal/version"
)

// Limits.
const (
	flushPatience = 2 * time.Second // for the remaining spans, in Close
	maxQueue      = 4096            // spans waiting to be sent; further ones are lost and logged
)

// Provider creates the spans of one process. The zero value and nil create none.
type Provider struct {
	spans  *sdk.TracerProvider
	losses *losses
}

// Open returns a provider for a role ("manager") and the name of this process. The endpoint is the base URL of a
// collector ("http://127.0.0.1:4318"). If it is empty, the standard environment applies (OTEL_EXPORTER_OTLP_ENDPOINT
// and related variables, which also set headers, sampling and limits); without that, the provider is off. Lost spans
// are logged.
func Open(ctx context.Context, role, name, endpoint string, log hclog.Logger) (*Provider, error) {
	var options []otlptracehttp.Option
	switch {
	case endpoint != "":
		u, err := url.Parse(endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("OTLP endpoint %q: want a URL such as http://127.0.0.1:4318", endpoint)
		}
		if u.Path == "" || u.Path == "/" {
			u.Path = "/v1/traces"
		}
		options = append(options, otlptracehttp.WithEndpointURL(u.String()))
	case os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "":
		return &Provider{}, nil
	}
	to, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("OTLP exporter: %w", err)
	}
	about, err := resource.Merge(resource.NewSchemaless(attribute.String("service.name", "tidemark-"+role),
		attribute.String("service.instance.id", name),
		attribute.String("service.version", version.Number)), resource.Environment()) // overrides the others
	if err != nil {
		return nil, fmt.Errorf("OTLP resource: %w", err)
	}
	l := &losses{log: log}
	batches := sdk.NewBatchSpanProcessor(exporter{to, l}, sdk.WithMaxQueueSize(maxQueue))
	return &Provider{spans: sdk.NewTracerProvider(sdk.WithSpanProcessor(queue{batches, l}), sdk.WithResource(about)),
		losses: l}, nil
}

// Tracer returns the tracer for incoming requests; nil if the provider is off.
func (p *Provider) Tracer() trace.Tracer {
	if p == nil || p.spans == nil {
		return nil
	}
	return p.spans.Tracer("tidemark")
}

// Close sends the remaining spans, for a bounded time.
func (p *Provider) Close() {
	if p == nil || p.spans == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushPatience)
	defer cancel()
	_ = p.spans.Shutdown(ctx) // fails if the collector is gone
	p.losses.report()
}
