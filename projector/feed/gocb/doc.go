// Package gocb is feed.Feed on gocbcore, Couchbase's own client: for clusters that the native feed does not get along
// with, and as the oracle that the native one is held against.
//
// It promises what package feed promises, with these differences, which are gocbcore's:
//   - Bytes are acknowledged when gocbcore has handed them over, not when they are released: up to half of
//     Config.BufferBytes is ahead of the releases. Memory is bounded by Config.BufferBytes plus a message, as there.
//   - Memory is allocated for each message.
//   - It connects to all nodes of the map under the same name, and opens connections again by itself. Streams of
//     vbuckets that the named node does not own are refused here.
//   - The noop interval is three minutes; a dead node is noticed by a second connection that is asked every
//     Config.NoopInterval.
//   - A node whose certificate names it by its common name alone is refused: gocbcore's TLS cannot be told to accept
//     it. Users of LDAP authenticate as there, PLAIN inside checked TLS, which is found out by the second connection.
//   - A node without flow control is refused; metadata behind a value (nmeta) is not cut off; reasons of a stream's end
//     that gocbcore does not know come as their number.
//   - Where an engine cannot say that a stream was closed (it refuses send_stream_end_on_client_close_stream, as old
//     ones do), gocbcore v10.8.1 looks a closed stream up without its lock: the process may end.
//   - A message that is too short for its kind ends the process: gocbcore does not check. Against a node that is not
//     trusted, use the native feed.
//
// It never reconnects for its user, never reopens a stream, never decides what a rollback means.
package gocb
