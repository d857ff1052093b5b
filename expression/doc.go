// Package expression knows the language of index definitions, a small part of N1QL: DDL text becomes statements, and
// definitions become a Program that turns a document into its secondary keys.
//
// The promises. Parse and the printer agree: the printed form of a statement or expression is canonical and reads as
// the same again. A Program is a function of (document id, what KV keeps of it, document) and nothing else; it scans a
// document once, whatever the number of indexes, and allocates nothing for paths, operators and predicates once its
// Scratch is warm. An expression that fails on a document costs
// that index's entry and is counted; it never stops anything. No input panics, and every size has a limit.
//
// # Values
//
// A value is MISSING, NULL, FALSE, TRUE, a number, a string, an array or an object; package collate defines how they
// are ordered, and that MISSING and NULL differ. A path gives MISSING where the document has nothing: no such member,
// no such element, a member of what is no object. Member names are case-sensitive; of members with the same name the
// last counts (as in encoding/json). Element -1 is the last one.
//
// # Operators
//
//   - Comparison is MISSING if one side is MISSING, else NULL if one side is NULL. Values of the same type compare in
//     collation order. Values of different types are unequal, and one is less than the other as its type is in the
//     collation order (as in N1QL). NULL within both makes it NULL whether they are equal.
//   - AND is FALSE if one operand is FALSE, else MISSING if one is, else NULL if one is, else TRUE. OR is TRUE if one
//     operand is TRUE, else NULL if one is, else MISSING if one is, else FALSE. NOT leaves MISSING and NULL as they
//     are. An operand that is no boolean counts as FALSE if it is 0, "", [] or {}, and as TRUE otherwise (as in N1QL).
//   - x IS NULL and x IS NOT NULL are MISSING for MISSING; IS [NOT] MISSING and IS [NOT] VALUED (neither MISSING nor
//     NULL) are always TRUE or FALSE.
//   - Arithmetic of what is no number is NULL, with MISSING it is MISSING; it is exact as long as both sides and the
//     result are int64, else float64. Dividing by 0 is NULL, a result beyond float64 an error.
//   - LIKE, IN, BETWEEN, CASE, ANY, EVERY, ARRAY and FIRST, EXISTS, || and the functions: docs/expressions.md, which is
//     made from the tables of this package.
//
// # What is indexed
//
// A document is in an index if it is JSON, the WHERE predicate is TRUE (a value that is no boolean counts as above),
// and the leading key is not MISSING. A primary index has every document, whether JSON or not; its key is META().id.
// Of an id that is not UTF-8 each such byte is U+FFFD there, as in JSON that shows it.
// An array key (ALL, DISTINCT) makes one entry for each different element; at most one stands in an index.
package expression
