package tracing

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// reportEvery is the minimum interval between two log lines about lost spans.
const reportEvery = time.Minute

// losses counts the spans that do not reach a collector, and logs the number: the library does not report spans that
// it drops for lack of room, and reports those that the collector refuses on standard error only.
type losses struct {
	log hclog.Logger

	mu       sync.Mutex
	waiting  int // spans that are waiting or being sent
	lost     int // since the last log line
	why      error
	reported time.Time
}

// enter reserves a place in the queue for one span; it returns false if the queue is full, and the span is lost.
func (l *losses) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == maxQueue {
		l.lost++
		return false
	}
	l.waiting++
	return true
}

// sent frees the places of spans; why is the reason if they are lost, otherwise nil.
func (l *losses) sent(spans int, why error) {
	l.mu.Lock()
	l.waiting -= spans
	if why != nil {
		l.lost, l.why = l.lost+spans, why
	}
	due := time.Since(l.reported) >= reportEvery
	l.mu.Unlock()
	if due {
		l.report()
	}
}

// report logs the losses since the last log line.
func (l *losses) report() {
	l.mu.Lock()
	lost, why := l.lost, l.why
	if l.lost, l.why = 0, nil; lost > 0 {
		l.reported = time.Now()
	}
	l.mu.Unlock()
	switch {
	case lost == 0:
	case why == nil:
		l.log.Warn("spans are lost: the collector is too slow", "lost", lost, "waiting_at_most",
			maxQueue)
	default:
		l.log.Warn("spans are lost: the collector does not accept them", "lost", lost, "error", why)
	}
}

// exporter wraps an exporter and counts its losses.
type exporter struct {
	sdk.SpanExporter
	losses *losses
}

// ExportSpans implements sdk.SpanExporter. It reports failures to losses, and returns none to the library.
func (e exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	e.losses.sent(len(spans), e.SpanExporter.ExportSpans(ctx, spans))
	return nil
}

// queue is a span processor that drops spans before its own queue could overflow.
type queue struct {
	sdk.SpanProcessor
	losses *losses
}

// OnEnd implements sdk.SpanProcessor.
func (q queue) OnEnd(s sdk.ReadOnlySpan) {
	if s.SpanContext().IsSampled() && q.losses.enter() {
		q.SpanProcessor.OnEnd(s)
	}
}
