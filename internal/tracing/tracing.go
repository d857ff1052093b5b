// Package tracing sends spans to an OpenTelemetry collector (OTLP over HTTP) when one is configured.
//
// It promises that nothing is traced, allocated or sent when no endpoint is given. There is no global provider: who
// starts a request has a tracer, and everything below finds it in the context (rpc.StartSpan). Spans are sent in
// batches beside the work; a collector that does not answer costs spans, never requests.
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
	flushPatience = 2 * time.Second // for what is not sent yet, at the end
	maxQueue      = 4096            // spans that wait to be sent; what is more is lost, and told
)

// Provider makes the spans of one process. The zero value and nil make none.
type Provider struct {
	spans  *sdk.TracerProvider
	losses *losses
}

// Open makes a provider for a role ("manager") and the name of this process. The endpoint is a base URL of a collector
// ("http://127.0.0.1:4318"); when it is empty the standard environment counts (OTEL_EXPORTER_OTLP_ENDPOINT and its
// kin, which also set headers, sampling and limits), and without that the provider is off. What no collector gets is
// told to the log.
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
		attribute.String("service.version", version.Number)), resource.Environment()) // the environment counts more
	if err != nil {
		return nil, fmt.Errorf("OTLP resource: %w", err)
	}
	l := &losses{log: log}
	batches := sdk.NewBatchSpanProcessor(exporter{to, l}, sdk.WithMaxQueueSize(maxQueue))
	return &Provider{spans: sdk.NewTracerProvider(sdk.WithSpanProcessor(queue{batches, l}), sdk.WithResource(about)),
		losses: l}, nil
}

// Tracer returns the tracer for requests that come in; nil when the provider is off.
func (p *Provider) Tracer() trace.Tracer {
	if p == nil || p.spans == nil {
		return nil
	}
	return p.spans.Tracer("tidemark")
}

// Close sends what is left, for a bounded time.
func (p *Provider) Close() {
	if p == nil || p.spans == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushPatience)
	defer cancel()
	_ = p.spans.Shutdown(ctx) // a collector that is gone gets nothing
	p.losses.tell()
}
