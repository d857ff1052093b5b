// Package collatetest is a slow and simple model of package collate: values as decoded by encoding/json, numbers as
// exact decimals, compared as documented. It is for tests only and shares no code with package collate.
package collatetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"
)

// Missing is MISSING, which JSON does not have.
type Missing struct{}

// Decode decodes one JSON value with numbers as json.Number. ok is false if text is not one.
func Decode(text []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil || !json.Valid(text) {
		return nil, false
	}
	return v, true
}

// decimal is an exact number, sign × 0.digits × 10^exponent, which can be compared at any magnitude.
type decimal struct {
	negative bool
	digits   string // no zero at either end; empty for 0
	exponent int
}

// number returns the value of a number text: its integer, or the nearest float64, or the exact decimal beyond
// float64.
func number(text json.Number) decimal {
	s := string(text)
	if _, err := strconv.ParseInt(s, 10, 64); err != nil {
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

func rank(v any) int {
	switch v := v.(type) {
	case Missing:
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

// Compare returns the collation order of two values that Decode returned, or that are Missing.
func Compare(a, b any) int {
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
			if c := Compare(a[i], b[i]); c != 0 {
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
		if c := Compare(a[an[i]], b[bn[i]]); c != 0 {
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
