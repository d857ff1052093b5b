package scan

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
)

func definition(desc ...bool) *index.Definition {
	d := &index.Definition{ID: 5, Name: "i", Bucket: testBucket, State: index.Maintenance}
	for i, down := range desc {
		d.Keys = append(d.Keys, index.KeyExpr{Expr: fmt.Sprintf("f%d", i), Desc: down})
	}
	return d
}

func TestParseRequest(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{``, ""},
		{`{}`, ""},
		{`{"limit":5,"consistency":"session","equal":["FR"],"reverse":true,"want_timestamp":true}`, ""},
		{`{"consistency":"at_plus","tokens":[{"vbucket":3,"vbuuid":"18446744073709551615","seqno":9}]}`, ""},
		{`{"range":{"low":["a"],"high":null,"inclusion":"low"}}`, ""},
		{`{"limt":1}`, "limt"},
		{`{"range":{"lo":[1]}}`, `"lo"`},
		{`{"consistency":"strong"}`, "want any, at_plus or session"},
		{`{"limit":-1}`, "limit -1"},
		{`{"limit":"5"}`, `field "limit" is a string, want a whole number`},
		{`{"limit":99999999999999999999}`, `field "limit" is 99999999999999999999, want a whole number up to 9223372036854775807`},
		{`{"project":[0,1.5]}`, `is 1.5, want a whole number`},
		{`{"reverse":1}`, `field "reverse" is a number, want true or false`},
		{`{"limit":1} {}`, "more data after"},
		{`{"limit":1`, "ends in the middle"},
		{`{"limit":}`, "at byte"},
		{`[]`, "array"},
		{`{"consistency":"at_plus"}`, "needs tokens"},
		{`{"tokens":[{"vbucket":3,"vbuuid":"1","seqno":9}]}`, "at_plus"},
		{`{"consistency":"at_plus","tokens":[{"vbucket":3,"vbuuid":7,"seqno":9}]}`, "vbuuid must be a string of decimal digits, up to"},
		{`{"consistency":"at_plus","tokens":[{"vbucket":70000,"vbuuid":"7","seqno":9}]}`, `vbucket" is 70000, want a whole number from 0 to 65535`},
		{`{"equal":[1],"range":{}}`, "exclude each other"},
	} {
		_, err := ParseRequest([]byte(c.body))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.body, err)
		case c.want != "" && (err == nil || CodeOf(err) != errcode.BadRequest || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want BAD_REQUEST with %q", c.body, err, c.want)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{"equal":["a","b","c"]}`, "equal has 3 values, but a key of this index has 2 components"},
		{`{"range":{"low":[1,2,3]}}`, "low has 3 values"},
		{`{"range":{"inclusion":"all"}}`, "want both, low, high or neither"},
		{`{"offset":-1}`, "offset -1"},
		{`{"project":[2]}`, "components 0 to 1"},
		{`{"project":[1,1]}`, "twice"},
		{`{"project":[1],"distinct":true}`, "leading components"},
		{`{"project":[],"distinct":true}`, "leading components"},
		{`{"equal":["` + strings.Repeat("x", MaxKeyBytes) + `"]}`, "longer than"},
		{`{"equal":[` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `]}`, "nested"},
	} {
		r, err := ParseRequest([]byte(c.body))
		if err == nil {
			_, err = r.Compile(definition(false, false))
		}
		if err == nil || CodeOf(err) != errcode.BadRequest || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: %v, want BAD_REQUEST with %q", c.body, err, c.want)
		}
	}
}

func key(t interface{ Fatal(...any) }, text string, desc []bool) []byte {
	var values []json.RawMessage
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(text, err)
	}
	var parts [][]byte
	for _, v := range values {
		parts = append(parts, v)
	}
	k, err := collate.AppendComposite(nil, parts, desc)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// in returns how many of the ranges contain a key with a document id, as storage decides it.
func in(ranges []Range, key []byte) (times int) {
	row := string(key) + "doc"
	for _, r := range ranges {
		if (r.Low == nil || row >= string(r.Low)) && (r.High == nil || row < string(r.High)) {
			times++
		}
	}
	return times
}

// TestInclusion is the table of what ranges mean.
func TestInclusion(t *testing.T) {
	up, down := []bool{false, false}, []bool{true, false}
	keys := []string{`["DE","A"]`, `["FR",null]`, `["FR","A"]`, `["FR","M"]`, `["FR","Z"]`, `["FRA","A"]`, `["US","A"]`, `["US","B"]`}
	for _, c := range []struct {
		name string
		desc []bool
		body string
		want []string
	}{
		{"everything", up, `{}`, keys},
		{"open range", up, `{"range":{}}`, keys},
		{"empty arrays are open", up, `{"range":{"low":[],"high":[]}}`, keys},
		{"prefix", up, `{"equal":["FR"]}`, keys[1:5]},
		{"whole key", up, `{"equal":["FR","A"]}`, keys[2:3]},
		{"a string is no prefix of a longer one", up, `{"equal":["F"]}`, nil},
		{"both", up, `{"range":{"low":["FR"],"high":["US"]}}`, keys[1:]},
		{"low", up, `{"range":{"low":["FR"],"high":["US"],"inclusion":"low"}}`, keys[1:6]},
		{"high", up, `{"range":{"low":["FR"],"high":["US"],"inclusion":"high"}}`, keys[5:]},
		{"neither", up, `{"range":{"low":["FR"],"high":["US"],"inclusion":"neither"}}`, keys[5:6]},
		{"neither, longer bounds", up, `{"range":{"low":["FR","A"],"high":["US","A"],"inclusion":"neither"}}`, keys[3:6]},
		{"open high", up, `{"range":{"low":["FR","M"]}}`, keys[3:]},
		{"open high, excluded", up, `{"range":{"low":["FR","M"],"inclusion":"neither"}}`, keys[4:]},
		{"open low", up, `{"range":{"high":["FR"]}}`, keys[:5]},
		{"open low, excluded", up, `{"range":{"high":["FR"],"inclusion":"low"}}`, keys[:1]},
		{"within a prefix", up, `{"range":{"low":["FR","A"],"high":["FR","M"]}}`, keys[2:4]},
		{"from the prefix on", up, `{"range":{"low":["FR"],"high":["FR","M"]}}`, keys[1:4]},
		{"upside down", up, `{"range":{"low":["US"],"high":["FR"]}}`, nil},
		{"a point, excluded", up, `{"range":{"low":["FR"],"high":["FR"],"inclusion":"low"}}`, nil},
		{"desc, both", down, `{"range":{"low":["FR"],"high":["US"]}}`, keys[1:]},
		{"desc, low", down, `{"range":{"low":["FR"],"high":["US"],"inclusion":"low"}}`, keys[1:6]},
		{"desc, high", down, `{"range":{"low":["FR"],"high":["US"],"inclusion":"high"}}`, keys[5:]},
		{"desc, open high", down, `{"range":{"low":["US"]}}`, keys[6:]},
		{"desc, open low, excluded", down, `{"range":{"high":["FR"],"inclusion":"neither"}}`, keys[:1]},
		{"desc, the second component decides", down, `{"range":{"low":["FR","A"],"high":["FR","M"]}}`, keys[2:4]},
		{"desc, equal", down, `{"equal":["FR"]}`, keys[1:5]},
		{"several", up, `{"ranges":[{"low":["US"]},{"high":["DE"]},{"low":["US","B"],"high":["US","B"]}]}`, []string{keys[0], keys[6], keys[7]}},
		{"no range at all", up, `{"ranges":[]}`, nil},
	} {
		r, err := ParseRequest([]byte(c.body))
		if err != nil {
			t.Fatal(c.name, err)
		}
		spec, err := r.Compile(definition(c.desc...))
		if err != nil {
			t.Fatal(c.name, err)
		}
		var got []string
		for _, k := range keys {
			if n := in(spec.Ranges, key(t, k, c.desc)); n > 1 {
				t.Errorf("%s: %s comes %d times", c.name, k, n)
			} else if n == 1 {
				got = append(got, k)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestRangesModel compares compiled ranges with the rule applied literally to small keys.
func TestRangesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		desc := rapid.SliceOfN(rapid.Bool(), 1, 3).Draw(t, "desc")
		r := Request{Consistency: Any, Ranges: []Bounds{}}
		type model struct {
			low, high []int
			inclusion Inclusion
		}
		var models []model
		for range rapid.IntRange(0, 3).Draw(t, "ranges") {
			m := model{
				low: rapid.SliceOfN(rapid.IntRange(0, 3), 0, len(desc)).Draw(t, "low"), high: rapid.SliceOfN(rapid.IntRange(0, 3),
					0, len(desc)).Draw(t, "high"),
				inclusion: rapid.SampledFrom([]Inclusion{"", Both, LowOnly, HiOnly, Neither}).Draw(t, "inclusion"),
			}
			models = append(models, m)
			r.Ranges = append(r.Ranges, Bounds{Low: raw(m.low), High: raw(m.high), Inclusion: m.inclusion})
		}
		spec, err := r.Compile(definition(desc...))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(spec.Ranges, func(a, b Range) int { return strings.Compare(string(a.Low), string(b.Low)) }) {
			t.Fatalf("ranges out of order: %x", spec.Ranges)
		}
		for _, b := range r.Ranges {
			if _, some, err := b.compile(desc); err != nil || b.Empty() == some {
				t.Fatalf("%+v (desc %v): empty %v, but a range is compiled: %v, %v", b, desc, b.Empty(), some, err)
			}
		}
		eachKey(len(desc), func(k []int) {
			want := 0
			for _, m := range models {
				if modelIn(k, m.low, m.high, m.inclusion, desc) {
					want = 1
				}
			}
			if got := in(spec.Ranges, key(t, fmt.Sprintf("[%s]", strings.Join(texts(k), ",")), desc)); got != want {
				t.Fatalf("key %v (desc %v) in %+v: %d times, want %d; compiled %x", k, desc, models, got, want, spec.Ranges)
			}
		})
	})
}

func raw(values []int) []json.RawMessage {
	out := []json.RawMessage{}
	for _, s := range texts(values) {
		out = append(out, json.RawMessage(s))
	}
	return out
}

func texts(values []int) (out []string) {
	for _, v := range values {
		out = append(out, fmt.Sprint(v))
	}
	return out
}

func eachKey(n int, fn func([]int)) {
	k := make([]int, n)
	for {
		fn(k)
		i := n - 1
		for ; i >= 0; i-- {
			if k[i]++; k[i] <= 4 {
				break
			}
			k[i] = -1
		}
		if i < 0 {
			return
		}
	}
}

// modelIn is the rule: bounds are in value order; the component where they first differ, or where one ends, decides
// whether the index order is reversed; keys are compared with a bound by its components only.
func modelIn(k, low, high []int, inclusion Inclusion, desc []bool) bool {
	decides := -1
	for i := range desc {
		if i >= len(low) && i >= len(high) {
			break
		}
		if i >= len(low) || i >= len(high) || low[i] != high[i] {
			decides = i
			break
		}
	}
	withLow, withHigh := inclusion == "" || inclusion == Both || inclusion == LowOnly, inclusion == "" ||
		inclusion == Both || inclusion == HiOnly
	if decides >= 0 && desc[decides] {
		low, high, withLow, withHigh = high, low, withHigh, withLow
	}
	place := func(bound []int) int { // of the key's first components relative to the bound, in index order
		for i, v := range bound {
			c := k[i] - v
			if desc[i] {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return 0
	}
	above := len(low) == 0 || place(low) > 0 || place(low) == 0 && withLow
	below := len(high) == 0 || place(high) < 0 || place(high) == 0 && withHigh
	return above && below
}

// TestMissing: null in a bound is NULL, and no value stands for MISSING, which precedes it. A range that ends below
// null contains it.
func TestMissing(t *testing.T) {
	fr := []byte(`"FR"`)
	for _, desc := range [][]bool{{false, false}, {false, true}} {
		for body, want := range map[string][]bool{ // MISSING, NULL, "A"
			`{"equal":["FR"]}`:      {true, true, true},
			`{"equal":["FR",null]}`: {false, true, false},
			`{"range":{"low":["FR"],"high":["FR",null],"inclusion":"low"}}`: {true, false, false},
			`{"range":{"low":["FR"],"high":["FR",null]}}`:                   {true, true, false},
			`{"range":{"low":["FR",null],"high":["FR"]}}`:                   {false, true, true},
		} {
			r, err := ParseRequest([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			spec, err := r.Compile(definition(desc...))
			if err != nil {
				t.Fatal(err)
			}
			for i, second := range [][]byte{nil, []byte("null"), []byte(`"A"`)} {
				k, err := collate.AppendComposite(nil, [][]byte{fr, second}, desc)
				if err != nil {
					t.Fatal(err)
				}
				if got := in(spec.Ranges, k) == 1; got != want[i] {
					t.Errorf("%s, desc %v: %q is in it: %v", body, desc, second, got)
				}
			}
		}
	}
}

// TestOneComponent: with one component the direction of the index does not matter: low <= value <= high.
func TestOneComponent(t *testing.T) {
	for _, desc := range []bool{false, true} {
		for low := -1; low < 5; low++ {
			for high := -1; high < 5; high++ {
				b := Bounds{Low: raw([]int{low}), High: raw([]int{high}), Inclusion: LowOnly}
				if low < 0 {
					b.Low = nil
				}
				if high < 0 {
					b.High = nil
				}
				r := Request{Range: &b}
				spec, err := r.Compile(definition(desc))
				if err != nil {
					t.Fatal(err)
				}
				for v := range 5 {
					want := (low < 0 || v >= low) && (high < 0 || v < high)
					if got := in(spec.Ranges, key(t, fmt.Sprintf("[%d]", v), []bool{desc})) == 1; got != want {
						t.Errorf("%d in [%d, %d) desc %v: %v", v, low, high, desc, got)
					}
				}
			}
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(`{"limit":5,"consistency":"session","ranges":[{"low":[1,"a"],"high":[2],"inclusion":"low"}]}`))
	f.Add([]byte(`{"equal":[{"a":[null,true]}],"reverse":true}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := ParseRequest(body)
		if err == nil {
			_, err = r.Compile(definition(false, true))
		}
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Code != errcode.BadRequest) {
			t.Fatalf("%v", err)
		}
	})
}
