// Package core holds a projector's decisions: which commands it admits, what a request for streams requires and why
// it is refused, what follows from KV's answer to a stream request, where a stream stands, which copies it feeds,
// which control events their nodes receive, how a side stream ends, and what is reported to the coordinator.
//
// The same calls always return the same answers: the package has no clock, no I/O, no locks and no randomness, and it
// does not depend on DCP connections, HTTP or the router. Package projector queries KV, owns the goroutines and guards
// the state they share; internal/testing/simulation drives the same code with a simulated KV.
package core
