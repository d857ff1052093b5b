// Package kvclient speaks the memcached binary protocol to KV nodes: it opens
// authenticated connections (Handshake, used by package feed for DCP), pipelines
// requests over them (Conn), and routes document operations over the nodes of a
// cluster by the bucket map (Client).
//
// It promises that nothing hangs: every call ends by its context, by its
// attempt's timeout, or by the end of the connection; that a password never
// travels in the clear unless TLS protects it or the caller allows it; and that a
// write is reported as done only after the node acknowledged it. A write whose
// answer was lost and whose repetition was refused says so (ErrAmbiguous).
//
// It never caches documents, never batches across callers, and never retries
// what cannot become better by waiting (a key that exists, a bad password).
package kvclient
