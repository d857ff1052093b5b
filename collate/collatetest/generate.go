package collatetest

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"pgregory.net/rapid"
)

// Generators of JSON texts. They favour edge cases: values that are close to each other, or equal but written
// differently.

var edgeNumbers = []string{
	"0", "-0", "0.0", "-0.0", "0e5", "0e999999", "1", "1.0", "10e-1", "-1", "0.1", "0.10000000000000001", "5e-324",
	"4e-324", "2e-324",
	"-5e-324", "1e-400", "-1e-400", "2.2250738585072014e-308", "9007199254740991", "9007199254740992", "9007199254740993",
	"9007199254740994", "9007199254740993.0", "9007199254740993e0", "-9007199254740991", "-9007199254740992",
	"-9007199254740993",
	"9223372036854775807", "9223372036854775806", "9223372036854775808", "9223372036854775809", "9223372036854775295",
	"9223372036854774784", "9223372036854775296", "9.223372036854775807e18", "-9223372036854775808",
	"-9223372036854775809",
	"-9223372036854775807", "18446744073709551615", "18446744073709551616", "1e19", "10000000000000000000", "1e23",
	"100000000000000000000000", "99999999999999991611392", "123456789012345678901234567890",
	"123456789012345678901234567891",
	"-123456789012345678901234567890", "1.2345678901234568e29", "1.7976931348623157e308", "1.7976931348623158e308",
	"1.7976931348623159e308",
	"-1.7976931348623159e308", "1e309", "1e400", "1.0e400", "10e399", "1.5e400", "-1e400", "-1.5e400", "1e999999999",
	"1e1000000000", "1e1000000001",
	"0.01e402", "1e99999999999999999999999", "-1e99999999999999999999999", "1e-99999999999999999999999",
	"1" + strings.Repeat("0", 400), "1" + strings.Repeat("0", 399) + "1", "1" + strings.Repeat("0", 308), "2" +
		strings.Repeat("0", 308),
	"1797693134862315708145274237317043567980705675258449965989174768031572607800285387605895586327668781" +
		"7154045895351438246423432132688946418276846754670353751698604991057655128207624549009038932894407586" +
		"8508455133942304583236903222948165808559332123347747797926204144723168738177180919299881250404026184" +
		"124858368",
	"1797693134862315708145274237317043567980705675258449965989174768031572607800285387605895586327668781" +
		"7154045895351438246423432132688946418276846754670353751698604991057655128207624549009038932894407586" +
		"8508455133942304583236903222948165808559332123347747797926204144723168738177180919299881250404026184" +
		"124858367",
	"1797693134862315807937289714053034150799341327100378269361737789804449682927647509466490179775872070" +
		"9633028641669288791094655554785194040263065748867150582068190890200070838367627385484581771153176447" +
		"5730270069855571366959622842914819860834936475292719074168444365510704342711559699508093042880177904" +
		"174497791",
	"1797693134862315807937289714053034150799341327100378269361737789804449682927647509466490179775872070" +
		"9633028641669288791094655554785194040263065748867150582068190890200070838367627385484581771153176447" +
		"5730270069855571366959622842914819860834936475292719074168444365510704342711559699508093042880177904" +
		"174497792",
}

// NumberText generates JSON texts of numbers.
func NumberText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom(edgeNumbers),
		rapid.Map(rapid.Int64(), func(v int64) string { return strconv.FormatInt(v, 10) }),
		rapid.Map(rapid.Int64Range(-40, 40), func(v int64) string { return strconv.FormatInt(1<<53+v, 10) }),
		rapid.Map(rapid.Int64Range(0, 1100), func(v int64) string { return strconv.FormatInt(math.MaxInt64-v, 10) }),
		rapid.Map(rapid.Float64(), func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }),
		rapid.Map(rapid.Float64Range(-1e19, 1e19), func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }),
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?`),
		rapid.StringMatching(`-?1[01]{300,320}`),
	)
}

// StringText generates JSON texts of strings, including invalid UTF-8.
func StringText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{
			`""`, `"a"`, `"a\u0000"`, `"a\u0000b"`, `"aa"`, `"\u0000"`, `"\u0000\u0000"`, `"\u0001"`, `"é"`, `"\u00e9"`,
			`"\ud83d\ude00"`, `"😀"`, `"\ud83d"`, `"\ude00"`, `"\ufffd"`, `"\uffff"`, `"\/\\\"\b\f\n\r\t"`, `"abcdefgh"`,
			`"abcdefgh\""`, "\"\x80\"", "\"\xff\xfe\"", "\"a\xc3\"",
		}),
		rapid.Map(rapid.String(), func(s string) string { b, _ := json.Marshal(s); return string(b) }),
	)
}

// ValueText generates JSON texts of all types, nested at most depth levels.
func ValueText(depth int) *rapid.Generator[string] {
	scalars := []*rapid.Generator[string]{rapid.SampledFrom([]string{"null", "false", "true"}), NumberText(), StringText()}
	if depth == 0 {
		return rapid.OneOf(scalars...)
	}
	inner := ValueText(depth - 1)
	array := rapid.Custom(func(t *rapid.T) string {
		return "[" + strings.Join(rapid.SliceOfN(inner, 0, 4).Draw(t, "elements"), ", ") + "]"
	})
	object := rapid.Custom(func(t *rapid.T) string {
		var all []string
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			name := rapid.SampledFrom([]string{`"a"`, `"b"`, `"aa"`, `"\u0061"`, `""`, `"a\u0000"`}).Draw(t, "name")
			all = append(all, name+" :"+inner.Draw(t, "value"))
		}
		return "{" + strings.Join(all, ",") + " }"
	})
	return rapid.OneOf(append(scalars, array, object)...)
}
