// Package scale measures what one leading manager costs when many components report to it: real managers (processes of
// their own, Raft on disk) and simulated projectors and indexers that speak the product's protocol over HTTP, each with
// a listener and connections of its own. It has tests only; docs/scale.md says how to run them and what they showed.
//
// It promises that the managers are the product's own and that the components report as often and as much as real ones.
// It never moves a document: KV, streams and indexes are counters.
package scale
