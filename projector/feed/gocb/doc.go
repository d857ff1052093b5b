// Package gocb implements feed.Feed on gocbcore, Couchbase's own client: for clusters that the native feed cannot
// handle, and as an oracle that the native feed is compared with.
//
// It gives the guarantees of package feed, with these differences, which are due to gocbcore:
//   - Bytes are acknowledged when gocbcore has delivered them, not when they are released: up to half of
//     Config.BufferBytes is acknowledged early. Memory is bounded by Config.BufferBytes plus a message, as there.
//   - Memory is allocated for each message.
//   - It connects to all nodes of the map under the same name, and reopens connections by itself. Streams of vbuckets
//     that the configured node does not own are refused here.
//   - The noop interval is three minutes; a dead node is detected by a second connection that is probed every
//     Config.NoopInterval.
//   - A node whose certificate names it by its common name alone is refused: gocbcore's TLS cannot accept it. LDAP
//     users authenticate as in package feed, by PLAIN inside verified TLS; the second connection detects this.
//   - A node without flow control is refused; metadata behind a value (nmeta) is not cut off; reasons of a stream's end
//     that gocbcore does not know are passed on as their number.
//   - If an engine does not report that a stream was closed (it refuses send_stream_end_on_client_close_stream, as
//     old ones do), gocbcore v10.8.1 looks up a closed stream without holding its lock: the process may crash.
//   - A message that is too short for its kind crashes the process, because gocbcore does not check. Against a node
//     that is not trusted, use the native feed.
//
// It never reconnects for its user, never reopens a stream, and does not decide what a rollback means.
package gocb
