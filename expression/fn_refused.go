package expression

import (
	"slices"
	"strings"
)

// RefusedFunctions are functions of N1QL, or of SQL, that a key cannot contain, with the reason and the alternative.
type RefusedFunctions struct {
	Names   []string // a name that ends with _ is a prefix
	Why     string   // follows "NAME() "
	Instead string   // a sentence without its period; NAME is replaced by the function's name
	never   bool     // wrong in principle, not just unsupported
}

var refusedFunctions = []RefusedFunctions{
	{Names: []string{"COUNT", "SUM", "AVG", "MIN", "MAX"}, never: true,
		Why:     "is an aggregate over documents: a key must depend on one document alone",
		Instead: "for the elements of an array use ARRAY_NAME()"},
	{Names: []string{"ARRAY_AGG", "COUNTN", "MEAN", "MEDIAN", "STDDEV", "STDDEV_POP", "STDDEV_SAMP", "VARIANCE",
		"VARIANCE_POP", "VARIANCE_SAMP", "VAR_POP", "VAR_SAMP", "CUME_DIST", "DENSE_RANK", "FIRST_VALUE", "LAG", "LAST_VALUE",
		"LEAD", "NTH_VALUE", "NTILE", "PERCENT_RANK", "RANK", "RATIO_TO_REPORT", "ROW_NUMBER"}, never: true,
		Why:     "depends on several documents: a key must depend on one document alone",
		Instead: "compute it from the rows of a scan"},
	{Names: []string{"NOW", "NOW_", "CLOCK", "CLOCK_", "CURRENT_DATE"}, never: true,
		Why:     "cannot be indexed, because its value changes with time: a key must depend on the document alone",
		Instead: "index the date in the document, and select dates by the bounds of the scan"},
	{Names: []string{"RANDOM", "UUID"}, never: true,
		Why:     "cannot be indexed, because each call returns another value: a key must depend on the document alone",
		Instead: "META().id identifies documents"},
	{Names: []string{"CURRENT_USERS", "CURRENT_USER", "NODE_NAME", "NODE_UUID", "VERSION", "MIN_VERSION", "DS_VERSION"},
		never:   true,
		Why:     "cannot be indexed, because it depends on the user or the node: a key must depend on the document alone",
		Instead: "store the value in the document"},
	{Names: []string{"CURL", "ADVISOR", "FORMALIZE", "FORMALISE", "ABORT", "EVALUATE", "EXTRACTDDL", "INFER_VALUE"},
		never:   true,
		Why:     "cannot be indexed, because it depends on more than the document: a key must depend on the document alone",
		Instead: "store its result in the document"},
	{Names: []string{"SEARCH", "SEARCH_META", "SEARCH_SCORE"}, never: true,
		Why:     "needs a search index, which does not exist here",
		Instead: "index words by DISTINCT TOKENS(…), and test for words by CONTAINS_TOKEN(…) in WHERE"},
	{Names: []string{"UNNEST_POS", "UNNEST_POSITION"}, never: true,
		Why:     "belongs to UNNEST in a query, which a key does not have",
		Instead: "the position of an element is i in ARRAY … FOR i:v IN … END"},
	{Names: []string{"SIN", "COS", "TAN", "ASIN", "ACOS", "ATAN", "ATAN2", "EXP", "LN", "LOG", "POWER"},
		Why:     "is not supported: its last digits differ between processors, and replicas of an index must agree",
		Instead: "index the number itself, and compute the bounds of the scan in the application"},
	{Names: []string{"NAN", "INF", "POSINF", "POS_INF", "NEGINF", "NEG_INF", "NANIF", "NAN_IF", "POSINFIF", "POSINF_IF",
		"NEGINFIF", "NEGINF_IF"},
		Why:     "is not supported: its result is not a number of JSON, so that a key could not be decoded",
		Instead: "NULLIF(x, y) is NULL if both are equal"},
	{Names: []string{"SUCCESSOR", "LIKE_PREFIX", "LIKE_STOP", "LIKE_SUFFIX", "REGEXP_PREFIX", "REGEXP_STOP",
		"REGEXP_SUFFIX"},
		Why:     "is not supported: it is an undocumented function for the bounds in query plans",
		Instead: "give bounds in the request of a scan"},
	{Names: []string{"LEN"}, Why: "is not supported",
		Instead: "POLY_LENGTH(x) is the length of a text, array or object"},
	{Names: []string{"OBJECT_FIELD"}, Why: "is not supported",
		Instead: "write the path: x.name, or x.[\"name\"] with an expression for the name"},
	{Names: []string{"OBJECT_PATHS", "OBJECT_PAIRS_NESTED"}, Why: "is not supported",
		Instead: "PAIRS(x) contains the names and values at any depth"},
	{Names: []string{"URLENCODE", "URLDECODE", "URL_ENCODE", "URL_DECODE", "MASK", "COMPRESS", "UNCOMPRESS", "HASHBYTES"},
		Why: "is not supported", Instead: "store its result in the document"},
	{Names: []string{"HASH", "RANGE"}, never: true, Why: "is not a function", Instead: "write it after PARTITION BY"},
}

// RefusedFunctionTable returns a copy of the table.
func RefusedFunctionTable() []RefusedFunctions { return slices.Clone(refusedFunctions) }

// refused returns the entry of a refused function; nil if it is not refused.
func refused(name string) *RefusedFunctions {
	i := slices.IndexFunc(refusedFunctions, func(r RefusedFunctions) bool {
		return slices.ContainsFunc(r.Names, func(n string) bool {
			return n == name || strings.HasSuffix(n, "_") && strings.HasPrefix(name, n)
		})
	})
	if i < 0 {
		return nil
	}
	return &refusedFunctions[i]
}

// unknownFunction returns the error for a name that cannot be called, with the function that may have been meant.
func (p *parser) unknownFunction(tok token, name string) error {
	if name == "FLATTEN_KEYS" {
		return p.fail(tok, "%s", flattenedPlace)
	}
	if r := refused(name); r != nil {
		why := name + "() " + r.Why + "; " + strings.ReplaceAll(r.Instead, "NAME", name)
		if r.never {
			return p.fail(tok, "%s", why)
		}
		return p.unsupported(tok, "%s", why)
	}
	if like := closest(name); like != "" {
		return p.unsupported(tok, "the function %s() is unknown; did you mean %s()?", name, like)
	}
	return p.unsupported(tok, "the function %s() is unknown; docs/expressions.md lists all functions", name)
}
