// Package kvclient is a client of the memcached binary protocol of KV nodes: it opens authenticated connections
// (Handshake, also used by package feed for DCP), pipelines requests over them (Conn), and routes document operations
// to the nodes of a cluster by the bucket map (Client).
//
// Guarantees: every call ends with its context, with the timeout of its attempt, or with the connection; a password
// is sent in the clear only if TLS protects it or the caller permits it; a write is reported as done only after the
// node has acknowledged it. If the answer to a write was lost and its retry was refused, the error is ErrAmbiguous.
//
// The package never caches documents, never batches across callers, and never retries what cannot succeed later (a
// key that exists, a wrong password).
package kvclient
