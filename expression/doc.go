// Package expression implements the language of index definitions, a small part of N1QL: it parses DDL text into
// statements, and compiles definitions into a Program that turns a document into its secondary keys.
//
// Guarantees: the printed form of a statement or expression is canonical, and parses to the same tree again. A
// Program is a function of (document id, KV's metadata, document) and nothing else; it scans a document once,
// whatever the number of indexes, and allocates nothing for paths, operators and predicates once its Scratch is warm.
// An expression that fails on a document costs that index's entry and is counted; it never stops anything. No input
// panics, and every size has a limit.
//
// # Values
//
// A value is MISSING, NULL, FALSE, TRUE, a number, a string, an array or an object; package collate defines their
// order, and that MISSING and NULL differ. A path is MISSING if the document has nothing there: no such member, no
// such element, or a member of something that is not an object. Member names are case-sensitive; of several members
// with the same name the last counts (as in encoding/json). Element -1 is the last one.
//
// # Operators
//
//   - Comparison is MISSING if one side is MISSING, else NULL if one side is NULL. Values of the same type compare in
//     collation order. Values of different types are unequal, and ordered as their types are in the collation order (as
//     in N1QL). NULL within both makes it NULL whether they are equal.
//   - AND is FALSE if one operand is FALSE, else MISSING if one is, else NULL if one is, else TRUE. OR is TRUE if one
//     operand is TRUE, else NULL if one is, else MISSING if one is, else FALSE. NOT leaves MISSING and NULL as they
//     are. A non-boolean operand counts as FALSE if it is 0, "", [] or {}, and as TRUE otherwise (as in N1QL).
//   - x IS NULL and x IS NOT NULL are MISSING for MISSING; IS [NOT] MISSING and IS [NOT] VALUED (neither MISSING nor
//     NULL) are always TRUE or FALSE.
//   - Arithmetic is MISSING if one side is MISSING, else NULL if one side is not a number. It is exact as long as both
//     sides and the result are int64, otherwise it uses float64. Division by 0 is NULL, and a result beyond float64 is
//     an error.
//   - LIKE, IN, BETWEEN, CASE, ANY, EVERY, ARRAY and FIRST, EXISTS, || and the functions: docs/expressions.md, which is
//     generated from the tables of this package.
//
// # What is indexed
//
// A document is in an index if it is JSON, the WHERE predicate is TRUE (a non-boolean counts as above), and the
// leading key is not MISSING. A primary index has every document, JSON or not; its key is META().id, in which each
// byte that is not UTF-8 is replaced by U+FFFD, as in JSON that shows the id. An array key (ALL, DISTINCT) makes one
// entry for each different element; an index has at most one.
package expression
