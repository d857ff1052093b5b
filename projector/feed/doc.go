// Package feed consumes the Database Change Protocol (DCP): one connection to one KV node for one bucket, with any
// number of vbucket streams on it.
//
// It guarantees:
//   - Everything that the node sends is delivered in order, in blocks, without a copy: keys and values alias the memory
//     that the socket was read into. The consumer owns a block's memory until it calls Release.
//   - Release acknowledges bytes to the node. What is not processed is not acknowledged, so memory is bounded by
//     Config.BufferBytes plus one message, however slow the consumer is.
//   - Noops are answered independently of the data, so that a slow consumer does not look dead. A node that is silent
//     for Config.DeadAfter is dead: the connection ends.
//   - Each request has a timeout, and the end of a connection fails everything that waits. Nothing hangs, and no
//     goroutine survives Close.
//   - Each opened stream begins with one StreamBegin event and ends with one StreamEnd event or with the connection.
//     The events of a stream carry its StreamID, which distinguishes a vbucket's old stream from its new one.
//
// It never reconnects, never reopens a stream, and does not decide what a rollback means: that is up to its user
// (packages streams and rollback decide, projector acts).
package feed
