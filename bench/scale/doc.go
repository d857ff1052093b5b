// Package scale measures the cost of one leading manager when many components report to it: real managers (separate
// processes, Raft on disk) and simulated projectors and indexers that speak the product's protocol over HTTP, each
// with its own listener and connections. It contains only tests; docs/scale.md describes how to run them, and the
// results.
//
// The managers are the product's own, and the components report as often and as much as real ones. No documents are
// moved: KV, streams and indexes are counters.
package scale
