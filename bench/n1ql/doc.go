// Package n1ql compares tidemark's expressions with another evaluator of the same language: it generates expressions
// over all functions and operators and over unusual values, evaluates each with both, and requires every difference
// to be listed in the table "Other than Couchbase" of docs/expressions.md. It is a separate module, for tests only.
//
// The other evaluator is a program named by N1QL_ORACLE, for example one built from the Apache-licensed line (6.6 and
// before) of Couchbase's query engine, checked out beside this repository; without it the comparison is skipped. The
// program reads lines of JSON on its standard input, {"expr": text, "doc": document}, and answers each with a line:
// {"value": JSON}, {"missing": true}, {"error": text} for an evaluation that fails, or {"parse": text} for an
// expression that it does not accept. The document has the id doc, CAS 1, flags 3 and no expiration.
package n1ql
