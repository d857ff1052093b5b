// Package tracingtest provides a collector of spans for tests.
package tracingtest

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector receives spans by OTLP over HTTP.
type Collector struct {
	URL string

	mu    sync.Mutex
	spans map[string]Span
}

// Span is a received span.
type Span struct {
	ID, Trace, Parent string // Parent is "" for the first span of a trace
	Service           string // the name of the process
	Name              string
	Began, Ended      time.Time
	Attributes        string // " key=value key=value"
	Events            []Event
}

// Event is an event of a span.
type Event struct {
	Name string
	At   time.Time
}

// New starts a collector, which stops at the end of the test.
func New(t testing.TB) *Collector {
	c := &Collector{spans: map[string]Span{}}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// ServeHTTP receives spans.
func (c *Collector) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	var m collector.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(b, &m) != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range m.GetResourceSpans() {
		service := ""
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.instance.id" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				span := Span{ID: hex.EncodeToString(s.GetSpanId()), Trace: hex.EncodeToString(s.GetTraceId()),
					Parent:  hex.EncodeToString(s.GetParentSpanId()),
					Service: service, Name: s.GetName(), Began: when(s.GetStartTimeUnixNano()), Ended: when(s.GetEndTimeUnixNano())}
				for _, a := range s.GetAttributes() {
					if v := a.GetValue(); v.GetStringValue() != "" {
						span.Attributes += " " + a.GetKey() + "=" + v.GetStringValue()
					} else {
						span.Attributes += fmt.Sprintf(" %s=%d", a.GetKey(), v.GetIntValue())
					}
				}
				for _, e := range s.GetEvents() {
					span.Events = append(span.Events, Event{e.GetName(), when(e.GetTimeUnixNano())})
				}
				c.spans[span.ID] = span
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func when(ns uint64) time.Time { return time.Unix(0, int64(ns)) }

// Begin returns a context whose requests belong to a new trace, and the trace's id.
func Begin(ctx context.Context) (context.Context, string) {
	var c trace.SpanContextConfig
	binary.BigEndian.PutUint64(c.TraceID[:8], rand.Uint64())
	binary.BigEndian.PutUint64(c.TraceID[8:], rand.Uint64()|1) // all zero is invalid
	binary.BigEndian.PutUint64(c.SpanID[:], rand.Uint64()|1)
	c.TraceFlags = trace.FlagsSampled
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(c)), c.TraceID.String()
}

// Trace returns the spans received so far of a trace, by their start.
func (c *Collector) Trace(id string) (all []Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Trace == id {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Span) int { return a.Began.Compare(b.Began) })
	return all
}

// about removes attributes that a line of a timeline shows anyway.
func about(attributes string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(attributes), func(a string) bool {
		return !strings.HasPrefix(a, "tidemark.") || strings.HasPrefix(a, "tidemark.request_id=")
	}), " ")
}

// Timeline formats a trace as lines: the start and duration of each span in milliseconds, each below its parent.
func Timeline(spans []Span) string {
	if len(spans) == 0 {
		return "no spans"
	}
	var b strings.Builder
	known := map[string]bool{}
	for _, s := range spans {
		known[s.ID] = true
	}
	ms := func(t time.Time) float64 { return float64(t.Sub(spans[0].Began).Microseconds()) / 1000 }
	var below func(parent, indent string)
	below = func(parent, indent string) {
		for _, s := range spans {
			if s.Parent != parent && (parent != "" || known[s.Parent]) {
				continue
			}
			fmt.Fprintf(&b, "%8.1f %+8.1f  %s%s  %s %s\n", ms(s.Began), float64(s.Ended.Sub(s.Began).Microseconds())/1000,
				indent, s.Service, s.Name, about(s.Attributes))
			for _, e := range s.Events {
				fmt.Fprintf(&b, "%8.1f           %s  - %s\n", ms(e.At), indent, e.Name)
			}
			below(s.ID, indent+"  ")
		}
	}
	below("", "")
	return b.String()
}
