// Package mcbp is the memcached binary protocol and the Database Change
// Protocol (DCP) on top of it: frames, codes and the fixed fields of every
// message, for both the consumer's and the producer's side.
//
// Parsing never panics, never allocates by an unchecked length (MaxBody, MaxKey, MaxFrameExtras), and never copies:
// the slices of a parsed Frame alias the bytes from which it was parsed. Appending is the exact inverse of parsing.
//
// The package never opens a socket, starts a goroutine or reads a clock, and keeps no state. The answers to requests
// are decided by the packages above (kv, feed, kvclient).
//
// All integers on the wire are big-endian.
package mcbp
