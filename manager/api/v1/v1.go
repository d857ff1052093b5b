// Package v1 has the bodies of the managers' REST interface: what users send and what they are answered. Managers write
// them, package client and the command line read them, and the OpenAPI document is made of them, so that each form is
// declared once. docs/api.md says which call has which.
//
// It promises that what it declares is all that crosses the interface, as it is in JSON, and that it needs no more than
// the nouns and the replicated state: no I/O, no clock, no lock. It calls nobody; that is package client.
//
// Units are in the names: MS is milliseconds, points in time are milliseconds of Unix time, Bytes is bytes; Stats and
// what is in it have the names and units that users of such indexes know (nanoseconds). Numbers that may pass 2^53
// (ids, vbuuids, hashes) are strings of decimal digits. What may be absent is omitempty, and says what its absence
// means.
// An answer that is no 2xx is a [tidemark/wire.Problem]; package errcode has its codes.
//
// The bounds of a scan are made of Go values, which encoding/json writes, by Equal, Prefix, From and the others.
package v1
