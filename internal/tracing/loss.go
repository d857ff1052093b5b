package tracing

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// tellEvery is the pause between two lines of the log on spans that are lost.
const tellEvery = time.Minute

// losses counts the spans that no collector gets, and tells of them in the log: the library keeps silent about those
// for which there is no room, and writes to standard error about those that the collector refuses.
type losses struct {
	log hclog.Logger

	mu      sync.Mutex
	waiting int // spans that wait to be sent, or are being sent
	lost    int // since the log was told last
	why     error
	told    time.Time
}

// enter takes a place for one more span that waits; without one it is lost.
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

// sent gives the places of spans back; why they are lost, nil if they are not.
func (l *losses) sent(spans int, why error) {
	l.mu.Lock()
	l.waiting -= spans
	if why != nil {
		l.lost, l.why = l.lost+spans, why
	}
	due := time.Since(l.told) >= tellEvery
	l.mu.Unlock()
	if due {
		l.tell()
	}
}

// tell tells of what was lost since the last time.
func (l *losses) tell() {
	l.mu.Lock()
	lost, why := l.lost, l.why
	if l.lost, l.why = 0, nil; lost > 0 {
		l.told = time.Now()
	}
	l.mu.Unlock()
	switch {
	case lost == 0:
	case why == nil:
		l.log.Warn("spans are lost: there are more than the collector takes in time", "lost", lost, "waiting_at_most",
			maxQueue)
	default:
		l.log.Warn("spans are lost: the collector does not take them", "lost", lost, "error", why)
	}
}

// exporter is one whose losses are counted.
type exporter struct {
	sdk.SpanExporter
	losses *losses
}

// ExportSpans implements sdk.SpanExporter. What was not taken is told here, and to nobody else.
func (e exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	e.losses.sent(len(spans), e.SpanExporter.ExportSpans(ctx, spans))
	return nil
}

// queue is one that has room for whatever it is given.
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
