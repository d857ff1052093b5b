// Package core is what a projector decides: whom it obeys, what a request for streams means and what is refused, what
// becomes of a start by KV's answers, where a stream stands, which copies it feeds and what their nodes are told of it,
// how a side stream comes to its end, and what the coordinator is told.
//
// It promises the same answers to the same calls: it holds no clock, no I/O, no lock and no chance, and knows nothing
// of DCP connections, HTTP or the router. Package projector asks KV, owns the goroutines and guards what several of
// them share; internal/testing/simulation drives the same code with a KV of its own.
package core
