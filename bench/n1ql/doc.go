// Package n1ql holds the expressions of tidemark beside those of another evaluator of the same language: it makes
// expressions over all functions and operators and over odd values, has each evaluated by both, and wants every
// difference to stand in the table "Other than Couchbase" of docs/expressions.md. It is a module of its own, for tests
// only.
//
// The other evaluator is a program named by N1QL_ORACLE, such as one made of the Apache-licensed line (6.6 and before)
// of Couchbase's query engine from a checkout that stands beside this repository; without it the comparison is skipped.
// It reads lines of JSON on its standard input, {"expr": text, "doc": document}, and answers each with a line:
// {"value": JSON}, {"missing": true}, {"error": text} for an evaluation that fails, or {"parse": text} for an
// expression that it does not take. The document has the id doc, CAS 1, flags 3 and no expiration.
package n1ql
