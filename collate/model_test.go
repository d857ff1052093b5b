package collate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"

	"pgregory.net/rapid"
)

// The obvious model: values as encoding/json reads them, numbers as exact decimals, compared by the book.

// decode reads one JSON value with numbers as text, or tells that it is none.
func decode(text []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil || !json.Valid(text) {
		return nil, false
	}
	return v, true
}

// decimal is an exact number, sign × 0.digits × 10^exponent, small enough to be compared by hand at any magnitude.
type decimal struct {
	negative bool
	digits   string // no zero at either end; empty for 0
	exponent int
}

// number is the value that a number text stands for: its integer, or the float64 nearest to it, or itself beyond.
func number(text json.Number) decimal {
	s := string(text)
	if strings.ContainsAny(s, ".eE") {
		if f, err := strconv.ParseFloat(s, 64); err == nil {
			s = big.NewFloat(f).Text('f', 1100) // exact: no float64 has more digits
		}
	}
	d := decimal{negative: strings.HasPrefix(s, "-")}
	s = strings.TrimPrefix(s, "-")
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	if exponent != "" {
		e, ok := new(big.Int).SetString(strings.TrimPrefix(exponent, "+"), 10)
		if !ok {
			panic(s)
		}
		d.exponent = math.MaxInt32 * 4
		if e.IsInt64() && e.Int64() < int64(d.exponent) {
			d.exponent = int(e.Int64())
		}
	}
	all := whole + fraction
	d.exponent += len(whole)
	trimmed := strings.TrimLeft(all, "0")
	d.exponent -= len(all) - len(trimmed)
	d.digits = strings.TrimRight(trimmed, "0")
	if d.digits == "" {
		return decimal{}
	}
	if d.exponent > 1_000_000_000 {
		d.digits, d.exponent = "1", 1_000_000_001
	}
	return d
}

func (d decimal) sign() int {
	switch {
	case d.digits == "":
		return 0
	case d.negative:
		return -1
	}
	return 1
}

func (d decimal) compare(o decimal) int {
	if s := d.sign() - o.sign(); s != 0 || d.sign() == 0 {
		return s
	}
	c := d.exponent - o.exponent
	if c == 0 {
		c = strings.Compare(d.digits, o.digits) // no zeros at the end, so the longer is the larger
	}
	return c * d.sign()
}

type missing struct{}

func rank(v any) int {
	switch v := v.(type) {
	case missing:
		return 0
	case nil:
		return 1
	case bool:
		if v {
			return 3
		}
		return 2
	case json.Number:
		return 4
	case string:
		return 5
	case []any:
		return 6
	case map[string]any:
		return 7
	}
	panic(fmt.Sprintf("%T", v))
}

// compare is the collation order.
func compare(a, b any) int {
	if c := rank(a) - rank(b); c != 0 {
		return c
	}
	switch a := a.(type) {
	case json.Number:
		return number(a).compare(number(b.(json.Number)))
	case string:
		return strings.Compare(a, b.(string))
	case []any:
		b := b.([]any)
		for i := range min(len(a), len(b)) {
			if c := compare(a[i], b[i]); c != 0 {
				return c
			}
		}
		return len(a) - len(b)
	case map[string]any:
		return compareObjects(a, b.(map[string]any))
	}
	return 0
}

func compareObjects(a, b map[string]any) int {
	if c := len(a) - len(b); c != 0 {
		return c
	}
	an, bn := names(a), names(b)
	for i := range an {
		if c := strings.Compare(an[i], bn[i]); c != 0 {
			return c
		}
		if c := compare(a[an[i]], b[bn[i]]); c != 0 {
			return c
		}
	}
	return 0
}

func names(m map[string]any) (all []string) {
	for n := range m {
		all = append(all, n)
	}
	sort.Strings(all)
	return all
}

// Generators of JSON texts. They love edges: values that are near to each other or equal in other words.

var edgeNumbers = []string{
	"0", "-0", "0.0", "-0.0", "0e5", "0e999999", "1", "1.0", "10e-1", "-1", "0.1", "0.10000000000000001", "5e-324", "4e-324", "2e-324",
	"-5e-324", "1e-400", "-1e-400", "2.2250738585072014e-308", "9007199254740991", "9007199254740992", "9007199254740993",
	"9007199254740994", "9007199254740993.0", "9007199254740993e0", "-9007199254740991", "-9007199254740992", "-9007199254740993",
	"9223372036854775807", "9223372036854775806", "9223372036854775808", "9223372036854775809", "9223372036854775295",
	"9223372036854774784", "9223372036854775296", "9.223372036854775807e18", "-9223372036854775808", "-9223372036854775809",
	"-9223372036854775807", "18446744073709551615", "18446744073709551616", "1e19", "10000000000000000000", "1e23",
	"100000000000000000000000", "99999999999999991611392", "123456789012345678901234567890", "123456789012345678901234567891",
	"-123456789012345678901234567890", "1.2345678901234568e29", "1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308",
	"-1.7976931348623159e308", "1e309", "1e400", "1.0e400", "10e399", "1.5e400", "-1e400", "-1.5e400", "1e999999999", "1e1000000000", "1e1000000001",
	"0.01e402", "1e99999999999999999999999", "-1e99999999999999999999999", "1e-99999999999999999999999",
	"1" + strings.Repeat("0", 400), "1" + strings.Repeat("0", 399) + "1", "1" + strings.Repeat("0", 308), "2" + strings.Repeat("0", 308),
	"179769313486231570814527423731704356798070567525844996598917476803157260780028538760589558632766878171540458953514382464234321326889464182768467546703537516986049910576551282076245490090389328944075868508455133942304583236903222948165808559332123347747797926204144723168738177180919299881250404026184124858368",
	"179769313486231570814527423731704356798070567525844996598917476803157260780028538760589558632766878171540458953514382464234321326889464182768467546703537516986049910576551282076245490090389328944075868508455133942304583236903222948165808559332123347747797926204144723168738177180919299881250404026184124858367",
	"179769313486231580793728971405303415079934132710037826936173778980444968292764750946649017977587207096330286416692887910946555547851940402630657488671505820681908902000708383676273854845817711531764475730270069855571366959622842914819860834936475292719074168444365510704342711559699508093042880177904174497791",
	"179769313486231580793728971405303415079934132710037826936173778980444968292764750946649017977587207096330286416692887910946555547851940402630657488671505820681908902000708383676273854845817711531764475730270069855571366959622842914819860834936475292719074168444365510704342711559699508093042880177904174497792",
}

func numberText() *rapid.Generator[string] {
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

func stringText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{
			`""`, `"a"`, `"a\u0000"`, `"a\u0000b"`, `"aa"`, `"\u0000"`, `"\u0000\u0000"`, `"\u0001"`, `"é"`, `"\u00e9"`,
			`"\ud83d\ude00"`, `"😀"`, `"\ud83d"`, `"\ude00"`, `"\ufffd"`, `"\uffff"`, `"\/\\\"\b\f\n\r\t"`, `"abcdefgh"`, `"abcdefgh\""`,
			"\"\x80\"", "\"\xff\xfe\"", "\"a\xc3\"",
		}),
		rapid.Map(rapid.String(), func(s string) string { b, _ := json.Marshal(s); return string(b) }),
	)
}

func valueText(depth int) *rapid.Generator[string] {
	scalars := []*rapid.Generator[string]{rapid.SampledFrom([]string{"null", "false", "true"}), numberText(), stringText()}
	if depth == 0 {
		return rapid.OneOf(scalars...)
	}
	inner := valueText(depth - 1)
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
