// Package feed consumes the Database Change Protocol (DCP): one connection to
// one KV node for one bucket, with any number of vbucket streams on it.
//
// It promises:
//   - Every byte that the node sends is handed over in order, in blocks, without
//     a copy: keys and values alias the memory that the socket was read into. A
//     block's memory is the consumer's until it calls Release.
//   - Release is what acknowledges bytes to the node. What is not processed is
//     not acknowledged, so the memory here is bounded by Config.BufferBytes plus
//     one message, however slow the consumer is.
//   - Noops are answered beside the data, so a slow consumer is not a dead one. A
//     node that is silent for Config.DeadAfter is dead: the connection ends.
//   - Each request has a timeout; the end of a connection fails everything that
//     waits. Nothing hangs, no goroutine survives Close.
//   - Each opened stream begins with one StreamBegin event and ends with one
//     StreamEnd event or with the connection. The events of a stream carry its
//     StreamID, so that those of a vbucket's old stream are told from those of
//     its new one.
//
// It never reconnects, never reopens a stream, and never decides what a rollback
// means: that is its user's business (packages streams and rollback decide,
// projector does).
package feed
