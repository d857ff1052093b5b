package expression_test

import (
	"strings"
	"testing"
)

// TestAsN1QL holds boundary values against what N1QL is documented to give, written down by hand, a line each: an expression
// over the document of the examples, " ⇒ ", and its value. A line without the arrow is a heading.
func TestAsN1QL(t *testing.T) {
	n := 0
	for line := range strings.Lines(asN1QL) {
		expr, want, found := strings.Cut(strings.TrimSpace(line), " ⇒ ")
		if !found {
			continue
		}
		n++
		if got := valueOf(t, expr, exampleDoc); got != want && (want != "error" || !strings.HasPrefix(got, "error: ")) {
			t.Errorf("%s = %s, N1QL says %s", expr, got, want)
		}
	}
	if n < 300 {
		t.Errorf("%d lines", n)
	}
}

const asN1QL = `
logic
NULL AND MISSING ⇒ MISSING
NULL AND FALSE ⇒ false
MISSING AND TRUE ⇒ MISSING
NULL AND TRUE ⇒ null
MISSING OR NULL ⇒ null
MISSING OR FALSE ⇒ MISSING
MISSING OR TRUE ⇒ true
NOT MISSING ⇒ MISSING
NOT 0 ⇒ true
NOT "" ⇒ true
NOT [] ⇒ true
NOT {} ⇒ true
NOT -0.0 ⇒ true
NULL = NULL ⇒ null
MISSING = MISSING ⇒ MISSING
NULL = MISSING ⇒ MISSING
NULL != 1 ⇒ null
NULL IS NULL ⇒ true
MISSING IS NULL ⇒ MISSING
MISSING IS NOT NULL ⇒ MISSING
NULL IS MISSING ⇒ false
NULL IS NOT MISSING ⇒ true
MISSING IS VALUED ⇒ false
MISSING IS NOT VALUED ⇒ true
0 IS VALUED ⇒ true
comparison, and the order of types
FALSE < TRUE ⇒ true
TRUE < 0 ⇒ true
99 < "" ⇒ true
"z" < [] ⇒ true
[9] < {} ⇒ true
1 = "1" ⇒ false
1 = 1.0 ⇒ true
-0 = 0 ⇒ true
100 = 1e2 ⇒ true
"a" < "B" ⇒ false
"a" < "ab" ⇒ true
"" < "a" ⇒ true
[1, 2] < [1, 2, 3] ⇒ true
[1, 3] > [1, 2, 9] ⇒ true
[] < [null] ⇒ true
{"a": 1} < {"a": 0, "b": 0} ⇒ true
{"b": 1} > {"a": 2} ⇒ true
{"a": 1, "b": 2} = {"b": 2, "a": 1} ⇒ true
9007199254740993 = 9007199254740992 ⇒ false
9007199254740993 > 9007199254740992.0 ⇒ true
9223372036854775807 > 9223372036854775806 ⇒ true
-9223372036854775808 < -9223372036854775807 ⇒ true
LIKE
"" LIKE "" ⇒ true
"" LIKE "%" ⇒ true
"" LIKE "_" ⇒ false
"é" LIKE "_" ⇒ true
"abc" LIKE "a.c" ⇒ false
"a.c" LIKE "a.c" ⇒ true
"abc" LIKE "%%c" ⇒ true
"abc" LIKE "abc%" ⇒ true
"ABC" LIKE "abc" ⇒ false
"a\nb" LIKE "a%b" ⇒ true
"a%c" LIKE "a\\%c" ⇒ true
"abc" LIKE "a\\%c" ⇒ false
"a_c" LIKE "a\\_c" ⇒ true
"abc" LIKE "a\\_c" ⇒ false
"a\\b" LIKE "a\\\\b" ⇒ true
"aab" LIKE "%ab" ⇒ true
NULL LIKE "a" ⇒ null
gone LIKE "a" ⇒ MISSING
1 LIKE "1" ⇒ null
"1" LIKE 1 ⇒ null
gone NOT LIKE "a" ⇒ MISSING
IN
1 IN [1.0] ⇒ true
1 IN [] ⇒ false
1 NOT IN [] ⇒ true
1 IN [null] ⇒ null
1 IN [null, 1] ⇒ true
NULL IN [] ⇒ false
NULL IN [1] ⇒ null
NULL NOT IN [] ⇒ true
gone IN [] ⇒ MISSING
1 IN gone ⇒ MISSING
1 IN NULL ⇒ null
1 IN 1 ⇒ null
[1] IN [[1]] ⇒ true
"x" IN tags ⇒ true
BETWEEN
2 BETWEEN 1 AND 3 ⇒ true
1 BETWEEN 1 AND 1 ⇒ true
2 BETWEEN 3 AND 1 ⇒ false
NULL BETWEEN 1 AND 2 ⇒ null
gone BETWEEN 1 AND 2 ⇒ MISSING
5 BETWEEN NULL AND 3 ⇒ false
2 BETWEEN NULL AND 3 ⇒ null
5 NOT BETWEEN 1 AND 3 ⇒ true
"b" BETWEEN "a" AND "c" ⇒ true
CASE
CASE WHEN gone THEN 1 END ⇒ null
CASE WHEN NULL THEN 1 WHEN TRUE THEN 2 END ⇒ 2
CASE NULL WHEN NULL THEN 1 ELSE 2 END ⇒ 2
CASE gone WHEN 1 THEN 1 ELSE 2 END ⇒ 2
CASE 1 WHEN 1.0 THEN "x" END ⇒ "x"
CASE WHEN TRUE THEN gone ELSE 1 END ⇒ MISSING
arithmetic
5 / 2 ⇒ 2.5
4 / 2 ⇒ 2
-5 % 3 ⇒ -2
5.5 % 2 ⇒ 1.5
5 % 0 ⇒ null
0 / 0 ⇒ null
1 + NULL ⇒ null
1 + gone ⇒ MISSING
NULL + gone ⇒ MISSING
"1" + 1 ⇒ null
-"a" ⇒ null
-gone ⇒ MISSING
- -1 ⇒ 1
2 + 3 * 4 ⇒ 14
(2 + 3) * 4 ⇒ 20
10 - 2 - 3 ⇒ 5
0.1 + 0.2 ⇒ 0.30000000000000004
9007199254740993 * 1 ⇒ 9007199254740993
9223372036854775806 + 1 ⇒ 9223372036854775807
9223372036854775807 + 1 ⇒ 9223372036854775808
1e308 * 10 ⇒ error
1e400 + 1 ⇒ error
"a" || NULL ⇒ null
"a" || gone ⇒ MISSING
"a" || 1 ⇒ null
"a" || "" ⇒ "a"
string functions
CONCAT("a", "b", "c") ⇒ "abc"
CONCAT("a", 1) ⇒ null
CONCAT("a", gone) ⇒ MISSING
CONCAT(gone, NULL) ⇒ MISSING
CONTAINS("abc", "") ⇒ true
CONTAINS("abc", "d") ⇒ false
CONTAINS(NULL, "a") ⇒ null
CONTAINS(NULL, gone) ⇒ MISSING
CONTAINS(1, "1") ⇒ null
LENGTH("") ⇒ 0
LENGTH("é") ⇒ 2
LENGTH(5) ⇒ null
MB_LENGTH("é😀") ⇒ 2
LOWER("ÄÖ") ⇒ "äö"
LOWER(1) ⇒ null
UPPER("ä1") ⇒ "Ä1"
LPAD("abc", 5) ⇒ "  abc"
LPAD("abc", 2) ⇒ "ab"
LPAD("abc", 3) ⇒ "abc"
LPAD("a", 4, "xy") ⇒ "xyxa"
RPAD("a", 4, "xy") ⇒ "axyx"
RPAD("é", 2, "é") ⇒ "éé"
LTRIM("  a ") ⇒ "a "
LTRIM("xyxa", "yx") ⇒ "a"
RTRIM(" a\n\t") ⇒ " a"
TRIM("xxaxx", "x") ⇒ "a"
TRIM("") ⇒ ""
TRIM(" a ", NULL) ⇒ null
TRIM(" a ", gone) ⇒ MISSING
POSITION("abc", "") ⇒ 0
POSITION("abc", "d") ⇒ -1
POSITION("", "") ⇒ 0
POSITION(s, " ") ⇒ 3
POSITION(1, "1") ⇒ null
POSITION0("abc", "c") ⇒ 2
POSITION1("abc", "c") ⇒ 3
POSITION1("abc", "d") ⇒ 0
REPEAT("a", 0) ⇒ ""
REPEAT("a", -1) ⇒ null
REPEAT("a", 1.5) ⇒ null
REPEAT("a", "1") ⇒ null
REPLACE("aaa", "a", "b") ⇒ "bbb"
REPLACE("aaa", "a", "b", 2) ⇒ "bba"
REPLACE("aaa", "a", "b", 0) ⇒ "aaa"
REPLACE("aaa", "a", "b", -1) ⇒ "bbb"
REPLACE("abc", "", "-") ⇒ "-a-b-c-"
REPLACE("aaa", "a", NULL) ⇒ null
REVERSE("") ⇒ ""
REVERSE("aé") ⇒ "éa"
SPLIT("a  b") ⇒ ["a","b"]
SPLIT("") ⇒ []
SPLIT("", ",") ⇒ [""]
SPLIT("a,b,", ",") ⇒ ["a","b",""]
SPLIT("abc", "") ⇒ ["a","b","c"]
SPLIT("a, b", ", ") ⇒ ["a","b"]
SPLIT("a", NULL) ⇒ null
SPLIT(1) ⇒ null
SUBSTR("abc", 0) ⇒ "abc"
SUBSTR("abc", 2) ⇒ "c"
SUBSTR("abc", 3) ⇒ null
SUBSTR("abc", -1) ⇒ "c"
SUBSTR("abc", -3) ⇒ "abc"
SUBSTR("abc", -4) ⇒ null
SUBSTR("abc", 1, 0) ⇒ ""
SUBSTR("abc", 1, -1) ⇒ null
SUBSTR("abc", 1, 99) ⇒ "bc"
SUBSTR("abc", -2, 1) ⇒ "b"
SUBSTR("abc", 0.5) ⇒ null
SUBSTR("abc", "0") ⇒ null
SUBSTR("", 0) ⇒ null
SUBSTR(NULL, 0) ⇒ null
SUBSTR("abc", gone) ⇒ MISSING
SUBSTR0("abc", 1) ⇒ "bc"
SUBSTR1("abc", 1) ⇒ "abc"
SUBSTR1("abc", 0) ⇒ "abc"
SUBSTR1("abc", 3) ⇒ "c"
SUBSTR1("abc", 4) ⇒ null
SUBSTR1("abc", -1) ⇒ "c"
SUFFIXES("") ⇒ []
SUFFIXES("éa") ⇒ ["éa","a"]
TITLE("hello_world o'neil 2nd x-RAY") ⇒ "Hello_world O'Neil 2nd X-Ray"
INITCAP("ÉTÉ indien") ⇒ "Été Indien"
TOKENS("a b a") ⇒ ["a","b"]
REGEXP_CONTAINS("abc", "b") ⇒ true
REGEXP_CONTAINS("abc", "^b") ⇒ false
REGEXP_LIKE("abc", "b") ⇒ false
REGEXP_LIKE("abc", "a|abc") ⇒ true
REGEXP_LIKE(1, "1") ⇒ null
REGEXP_POSITION("abc", "z") ⇒ -1
REGEXP_POSITION("abc", "c") ⇒ 2
REGEXP_REPLACE("aaa", "a", "b") ⇒ "bbb"
REGEXP_REPLACE("aaa", "a", "b", 2) ⇒ "bba"
REGEXP_REPLACE("aaa", "a", "b", 0) ⇒ "aaa"
REGEXP_REPLACE("aaa", "a", "b", 1.5) ⇒ null
REGEXP_REPLACE("ab", "(a)(b)", "$2$1") ⇒ "ba"
REGEXP_REPLACE("ab", "", "-", 1) ⇒ "-ab"
number functions
ABS(-9007199254740993) ⇒ 9007199254740993
ABS("1") ⇒ null
CEIL(-2.5) ⇒ -2
CEIL(2) ⇒ 2
FLOOR(-2.5) ⇒ -3
FLOOR(-0.5) ⇒ -1
ROUND(2.5) ⇒ 3
ROUND(-2.5) ⇒ -3
ROUND(3.49) ⇒ 3
ROUND(1234.5678, 2) ⇒ 1234.57
ROUND(1234.5678, -2) ⇒ 1200
ROUND(1250, -2) ⇒ 1300
ROUND(2.567, 1.5) ⇒ null
ROUND(2.5, "1") ⇒ null
ROUND(gone) ⇒ MISSING
ROUND(9007199254740993) ⇒ 9007199254740993
TRUNC(-2.7) ⇒ -2
TRUNC(2.789, 2) ⇒ 2.78
TRUNC(1299, -2) ⇒ 1200
TRUNC(0.9) ⇒ 0
SIGN(-0.0) ⇒ 0
SIGN(-7) ⇒ -1
SIGN("a") ⇒ null
SQRT(-1) ⇒ null
SQRT(2) ⇒ 1.4142135623730951
IDIV(7, 2) ⇒ 3
IDIV(7, 0) ⇒ null
IMOD(7, 0) ⇒ null
IMOD(-7, 3) ⇒ -1
GREATEST(NULL, gone) ⇒ null
GREATEST(1, "a", [0]) ⇒ [0]
LEAST(1, NULL, "a") ⇒ 1
LEAST(TRUE, FALSE) ⇒ false
date functions
STR_TO_MILLIS("1970-01-01T00:00:00.5Z") ⇒ 500
STR_TO_MILLIS("1969-12-31T23:59:59Z") ⇒ -1000
STR_TO_MILLIS("2016-05-15 03:59:00Z") ⇒ 1463284740000
STR_TO_MILLIS("2016-05-15T03:59:00+01:00") ⇒ 1463281140000
STR_TO_MILLIS("2016-02-30") ⇒ null
STR_TO_MILLIS("") ⇒ null
STR_TO_MILLIS(7) ⇒ null
MILLIS("1970-01-02") ⇒ 86400000
MILLIS_TO_STR(1463284740000) ⇒ "2016-05-15T03:59:00Z"
MILLIS_TO_STR(1463284740000, "1111-11-11") ⇒ "2016-05-15"
MILLIS_TO_UTC(1463284740000, "1111-11-11 11:11:11") ⇒ "2016-05-15 03:59:00"
MILLIS_TO_STR("0") ⇒ null
STR_TO_UTC("2016-05-15T03:59:00+05:30") ⇒ "2016-05-14T22:29:00Z"
DATE_ADD_MILLIS(0, 1, "century") ⇒ 3155760000000
DATE_ADD_MILLIS(0, 1.5, "day") ⇒ null
DATE_ADD_STR("2016-05-15", "1", "day") ⇒ null
DATE_ADD_STR("2016-12-31", 1, "day") ⇒ "2017-01-01"
DATE_ADD_STR("2016-05-15T03:59:00Z", -1, "decade") ⇒ "2006-05-15T03:59:00Z"
DATE_ADD_STR("1016-05-15", 1, "MILLENNIUM") ⇒ "2016-05-15"
DATE_ADD_STR("2016-05-15", -2, "quarter") ⇒ "2015-11-15"
DATE_DIFF_STR("2017-01-01", "2016-01-01", "day") ⇒ 366
DATE_DIFF_STR("2016-01-01", "2017-01-01", "day") ⇒ -366
DATE_DIFF_STR("2035-01-01", "2016-01-01", "decade") ⇒ 1
DATE_DIFF_STR("2016-05-15T03:59:00Z", "2016-05-15T03:58:30Z", "second") ⇒ 30
DATE_DIFF_MILLIS(604800000, 0, "week") ⇒ 1
DATE_FORMAT_STR("2016-05-15T03:59:00Z", "1111-11-11") ⇒ "2016-05-15"
DATE_FORMAT_STR("x", "1111-11-11") ⇒ null
DATE_PART_STR("2016-05-15T03:59:00Z", "week") ⇒ 20
DATE_PART_STR("2016-05-15T03:59:00Z", "iso_week") ⇒ 19
DATE_PART_STR("2016-01-01", "iso_year") ⇒ 2015
DATE_PART_STR("2016-05-15T03:59:00Z", "dow") ⇒ 0
DATE_PART_STR("2016-05-15T03:59:00Z", "iso_dow") ⇒ 7
DATE_PART_STR("2016-05-15T03:59:00Z", "doy") ⇒ 136
DATE_PART_STR("2016-05-15T03:59:00Z", "quarter") ⇒ 2
DATE_PART_STR("2016-05-15T03:59:00Z", "millennium") ⇒ 3
DATE_PART_STR("2016-05-15T03:59:00Z", "century") ⇒ 21
DATE_PART_STR("2016-05-15T03:59:00Z", "decade") ⇒ 201
DATE_PART_STR("2016-05-15T03:59:00.25Z", "millisecond") ⇒ 250
DATE_PART_STR("2016-05-15T03:59:00+05:30", "timezone") ⇒ 19800
DATE_PART_STR("2016-05-15T03:59:00+05:30", "timezone_hour") ⇒ 5
DATE_PART_STR("2016-05-15T03:59:00-05:30", "timezone_minute") ⇒ -30
DATE_PART_MILLIS(1463284740000, "day") ⇒ 15
DATE_PART_MILLIS(0, s) ⇒ null
DATE_TRUNC_STR("2016-05-15T03:59:00Z", "quarter") ⇒ "2016-04-01T00:00:00Z"
DATE_TRUNC_STR("2016-05-15T03:59:00Z", "decade") ⇒ "2010-01-01T00:00:00Z"
DATE_TRUNC_STR("2116-05-15T03:59:00Z", "century") ⇒ "2100-01-01T00:00:00Z"
DATE_TRUNC_STR("2116-05-15", "millennium") ⇒ "2000-01-01"
DATE_TRUNC_MILLIS(90061001, "hour") ⇒ 90000000
WEEKDAY_STR("2016-05-15") ⇒ "Sunday"
WEEKDAY_MILLIS(NULL) ⇒ null
array functions
ARRAY_APPEND([], NULL) ⇒ null
ARRAY_APPEND(1, 2) ⇒ null
ARRAY_APPEND([1], [2]) ⇒ [1,[2]]
ARRAY_AVG([]) ⇒ null
ARRAY_AVG([1, 2]) ⇒ 1.5
ARRAY_CONCAT([1], NULL) ⇒ null
ARRAY_CONTAINS([1, "a"], "a") ⇒ true
ARRAY_CONTAINS([[1]], [1]) ⇒ true
ARRAY_COUNT([null, 1, null]) ⇒ 1
ARRAY_DISTINCT([1, 1.0, "1"]) ⇒ [1,"1"]
ARRAY_FLATTEN([[1, [2]]], 2) ⇒ [1,2]
ARRAY_FLATTEN([[1, [2]]], 0) ⇒ [[1,[2]]]
ARRAY_IFNULL([]) ⇒ null
ARRAY_IFNULL([null, 1]) ⇒ 1
ARRAY_INTERSECT([1, 2], [2.0, 3]) ⇒ [2]
ARRAY_LENGTH([]) ⇒ 0
ARRAY_LENGTH("abc") ⇒ null
ARRAY_MAX([]) ⇒ null
ARRAY_MAX([1, "a", [0]]) ⇒ [0]
ARRAY_MIN(["a", 1, true]) ⇒ true
ARRAY_POSITION([1, 2], 3) ⇒ -1
ARRAY_POSITION([1, 2], 2.0) ⇒ 1
ARRAY_PREPEND(0, [1]) ⇒ [0,1]
ARRAY_PUT([1, 2], 2.0) ⇒ [1,2]
ARRAY_PUT([1], 3) ⇒ [1,3]
ARRAY_RANGE(5, 1) ⇒ []
ARRAY_RANGE(5, 1, -2) ⇒ [5,3]
ARRAY_REMOVE([1, 2, 1.0], 1) ⇒ [2]
ARRAY_REVERSE([]) ⇒ []
ARRAY_SORT([[], {}, "", 0, false, null]) ⇒ [null,false,0,"",[],{}]
ARRAY_SUM([]) ⇒ 0
ARRAY_UNION([1], [1, 2]) ⇒ [1,2]
object functions
OBJECT_ADD({"a": 1}, "a", 2) ⇒ null
OBJECT_ADD({"a": 1}, gone, 2) ⇒ {"a":1}
OBJECT_ADD({"a": 1}, NULL, 2) ⇒ {"a":1}
OBJECT_ADD({"a": 1}, "b", gone) ⇒ {"a":1}
OBJECT_ADD({"a": 1}, "b", NULL) ⇒ {"a":1,"b":null}
OBJECT_ADD([], "b", 1) ⇒ null
OBJECT_CONCAT({"a": 1}, {"a": 2}) ⇒ {"a":2}
OBJECT_CONCAT({"a": 1}, NULL) ⇒ null
OBJECT_LENGTH({}) ⇒ 0
OBJECT_LENGTH([1]) ⇒ null
OBJECT_NAMES({}) ⇒ []
OBJECT_PUT({"a": 1}, "a", 2) ⇒ {"a":2}
OBJECT_PUT({"a": 1}, "a", gone) ⇒ {}
OBJECT_REMOVE({"a": 1}, "b") ⇒ {"a":1}
OBJECT_VALUES({"b": null, "a": 1}) ⇒ [1,null]
type functions
ISATOM(NULL) ⇒ null
ISATOM([]) ⇒ false
ISNUMBER(gone) ⇒ MISSING
ISBOOLEAN("true") ⇒ false
ISSTRING("") ⇒ true
ISOBJECT([]) ⇒ false
ISARRAY(NULL) ⇒ null
TOARRAY(NULL) ⇒ null
TOARRAY("a") ⇒ ["a"]
TOATOM([1, 2]) ⇒ null
TOATOM([[{"a": 1}]]) ⇒ 1
TOBOOLEAN("") ⇒ false
TOBOOLEAN("false") ⇒ true
TOBOOLEAN(0) ⇒ false
TOBOOLEAN([]) ⇒ false
TOBOOLEAN(NULL) ⇒ null
TONUMBER("") ⇒ null
TONUMBER("-") ⇒ null
TONUMBER(".") ⇒ null
TONUMBER("e5") ⇒ null
TONUMBER("1.2.3") ⇒ null
TONUMBER("+-1") ⇒ null
TONUMBER("abc") ⇒ null
TONUMBER(" 5") ⇒ null
TONUMBER("1e3") ⇒ 1000
TONUMBER("007") ⇒ 7
TONUMBER("-00.50") ⇒ -0.5
TONUMBER("+5") ⇒ 5
TONUMBER(".5") ⇒ 0.5
TONUMBER("5.") ⇒ 5
TONUMBER("5.e1") ⇒ 50
TONUMBER("9007199254740993") ⇒ 9007199254740993
TONUMBER(TRUE) ⇒ 1
TONUMBER([1]) ⇒ null
TOOBJECT("a") ⇒ {}
TOOBJECT(NULL) ⇒ null
TOSTRING(TRUE) ⇒ "true"
TOSTRING(1.50) ⇒ "1.5"
TOSTRING([1]) ⇒ null
TOSTRING(9007199254740993) ⇒ "9007199254740993"
TYPE(NULL) ⇒ "null"
TYPE(1.5) ⇒ "number"
conditional functions
IFMISSING(gone, gone) ⇒ null
IFMISSING(gone, NULL) ⇒ null
IFNULL(NULL, gone) ⇒ MISSING
IFNULL(NULL, NULL) ⇒ null
IFMISSINGORNULL(NULL, gone) ⇒ null
COALESCE(NULL, gone, 3) ⇒ 3
NVL(NULL, 2) ⇒ 2
NVL2(NULL, 1, 2) ⇒ 2
NVL2(0, 1, 2) ⇒ 1
NULLIF(1, 1.0) ⇒ null
NULLIF(1, 2) ⇒ 1
MISSINGIF(1, 2) ⇒ 1
MISSINGIF(1, 1) ⇒ MISSING
DECODE(3, 1, "a", "z") ⇒ "z"
DECODE(3, 1, "a") ⇒ null
DECODE(NULL, NULL, "n") ⇒ "n"
collections
ANY v IN [] SATISFIES TRUE END ⇒ false
EVERY v IN [] SATISFIES FALSE END ⇒ true
ANY AND EVERY v IN [1] SATISFIES v = 1 END ⇒ true
ANY v IN gone SATISFIES TRUE END ⇒ MISSING
ANY v IN NULL SATISFIES TRUE END ⇒ null
ANY v IN [null] SATISFIES v IS NULL END ⇒ true
ARRAY v.qty FOR v IN items WHEN v.sku = "q" END ⇒ [1]
ARRAY v.none FOR v IN items END ⇒ []
ARRAY v FOR v IN gone END ⇒ MISSING
FIRST v FOR v IN [] END ⇒ MISSING
FIRST v FOR v IN [null, 1] END ⇒ null
EXISTS [] ⇒ false
EXISTS [null] ⇒ true
EXISTS gone ⇒ MISSING
`
