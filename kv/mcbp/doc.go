// Package mcbp is the memcached binary protocol and the Database Change
// Protocol (DCP) on top of it: frames, codes and the fixed fields of every
// message, for both the consumer's and the producer's side.
//
// It promises that parsing never panics, never allocates by a length it has
// not checked (MaxBody, MaxKey, MaxFrameExtras), and never copies: the slices of
// a parsed Frame alias the bytes it was parsed from. Appending is the exact
// inverse of parsing.
//
// It never opens a socket, never starts a goroutine, never reads a clock, and
// keeps no state. It does not decide: what to answer to a request is the
// business of the packages above (kv, feed, kvclient).
//
// All integers on the wire are big-endian.
package mcbp
