// Package v1 declares the bodies of the managers' REST interface: requests and answers. Managers write the answers,
// package client and the command line read them, and the OpenAPI document is generated from them, so that each form
// is declared once. docs/api.md lists the bodies of each call.
//
// It guarantees that its declarations are complete and match the JSON, and that it imports only nouns and the
// replicated state: no I/O, no clock, no lock. It makes no calls; package client does.
//
// Units are in the names: MS is milliseconds, points in time are milliseconds of Unix time, Bytes is bytes; Stats and
// its parts have the names and units of Couchbase's index service (nanoseconds). Numbers that may exceed 2^53 (ids,
// vbuuids, hashes) are strings of decimal digits. Fields that may be absent are omitempty, and document what their
// absence means. An answer other than 2xx is a [tidemark/wire.Problem]; package errcode has its codes.
//
// Equal, Prefix, From and the others make the bounds of a scan from Go values, encoded by encoding/json.
package v1
