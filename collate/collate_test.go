package collate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"math/rand"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/collate/collatetest"
	_ "tidemark/internal/testing/draws"
)

func mustAppend(t testing.TB, text string) []byte {
	t.Helper()
	key, err := collate.AppendJSON(nil, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return key
}

func sign(c int) int {
	switch {
	case c < 0:
		return -1
	case c > 0:
		return 1
	}
	return 0
}

// TestOrder has values in strictly ascending order: every pair must compare like its positions.
func TestOrder(t *testing.T) {
	rising := []string{
		"null", "false", "true", "-1e99999999999", "-2e400", "-1e400", "-1.7976931348623157e308", "-1e300",
		"-9223372036854777857",
		"-9223372036854775808", "-9223372036854775807", "-9007199254740993", "-9007199254740992", "-9007199254740991", "-5",
		"-0.5",
		"-5e-324", "0", "5e-324", "0.5", "1", "1.5", "9007199254740991", "9007199254740992", "9007199254740993",
		"9007199254740994",
		"9223372036854775806", "9223372036854775807", "9223372036854775808", "18446744073709551615", "1e300",
		"1.7976931348623157e308",
		"1e400", "1.5e400", "2e400", "1e401", "1e99999999999", `""`, `"\u0000"`, `"\u0000\u0000"`, `"\u0001"`, `"a"`, `"a\u0000"`, `"a\u0000b"`,
		`"aa"`, `"b"`, `"é"`, `"\uffff"`, `"😀"`, "[]", "[null]", "[1]", "[1,null]", "[1,2]", `["a"]`, `["a",1]`, `["a\u0000"]`, `["b"]`, "[[]]",
		"{}", `{"a":1}`, `{"a":2}`, `{"b":1}`, `{"a":1,"b":2}`, `{"a":1,"c":0}`, `{"a":2,"b":1}`,
	}
	keys := [][]byte{collate.AppendMissing(nil)}
	for _, text := range rising {
		keys = append(keys, mustAppend(t, text))
	}
	for i, a := range keys {
		for j, b := range keys {
			if got, want := bytes.Compare(a, b), sign(i-j); got != want {
				t.Errorf("place %d to %d: %d, want %d", i, j, got, want)
			}
			down := bytes.Clone(b)
			collate.Complement(down)
			if i != j && (bytes.HasPrefix(a, b) || bytes.HasPrefix(down, a)) {
				t.Errorf("place %d is a prefix of %d", j, i)
			}
		}
	}
}

// TestEqual has texts of equal values.
func TestEqual(t *testing.T) {
	for _, same := range [][]string{
		{"0", "-0", "0.0", "-0.0", "0e99", "1e-400", "-1e-400", "0e99999999999999999999"},
		{"1", "1.0", "10e-1", "0.01E+2"},
		{"9007199254740992", "9007199254740992.0", "9007199254740993.0"}, // a fraction makes it a float64
		{"1e23", "99999999999999991611392"},
		{"1e400", "10e399", "0.0001e404", "1" + strings.Repeat("0", 400), "1.000e400"},
		{"1e1000000000", "1e1000000001", "9e99999999999999999999"},
		{`"a"`, `"\u0061"`}, {`"/"`, `"\/"`}, {`"😀"`, `"\ud83d\ude00"`, `"\uD83D\uDE00"`}, {`"\ufffd"`, `"\ud800"`, "\"\xff\""},
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, ` { "b" : 3 , "a":1.0,"b":2 } `},
		{"[1,2]", " [ 1 ,\t2\n]\r"},
	} {
		for _, text := range same[1:] {
			if !bytes.Equal(mustAppend(t, same[0]), mustAppend(t, text)) {
				t.Errorf("%s and %s differ", same[0], text)
			}
		}
	}
}

// TestOrderModel compares random values as bytes, ascending and descending, and with the model.
func TestOrderModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := collatetest.ValueText(3).Draw(t, "a"), collatetest.ValueText(3).Draw(t, "b")
		checkPair(t, a, b)
	})
}

// TestNumberModel does the same for numbers alone.
func TestNumberModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		checkPair(t, collatetest.NumberText().Draw(t, "a"), collatetest.NumberText().Draw(t, "b"))
	})
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func checkPair(t failer, a, b string) {
	t.Helper()
	av, ok := collatetest.Decode([]byte(a))
	bv, ok2 := collatetest.Decode([]byte(b))
	if !ok || !ok2 {
		t.Fatalf("the generator made no JSON: %s or %s", a, b)
	}
	ak, err := collate.AppendJSON(nil, []byte(a))
	if err != nil {
		t.Fatalf("%v", err)
	}
	bk, err := collate.AppendJSON(nil, []byte(b))
	if err != nil {
		t.Fatalf("%v", err)
	}
	want := sign(collatetest.Compare(av, bv))
	if got := bytes.Compare(ak, bk); got != want {
		t.Fatalf("%s to %s: bytes %d, model %d", a, b, got, want)
	}
	collate.Complement(ak)
	collate.Complement(bk)
	if got := bytes.Compare(ak, bk); got != -want {
		t.Fatalf("%s to %s: complemented bytes %d, model %d", a, b, got, -want)
	}
}

// TestNumbersExact compares int64 and float64 values with math/big, with many near 2^53, 2^63 and the denormals.
func TestNumbersExact(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	type num struct {
		key   []byte
		exact *big.Float
		text  string
	}
	integer := func(v int64) num {
		return num{collate.AppendInt64(nil, v), new(big.Float).SetPrec(2000).SetInt64(v), strconv.FormatInt(v, 10)}
	}
	float := func(f float64) num {
		return num{collate.AppendFloat64(nil, f), new(big.Float).SetPrec(2000).SetFloat64(f),
			strconv.FormatFloat(f, 'e', -1, 64)}
	}
	random := func() num {
		switch r.Intn(9) {
		case 0:
			return integer(math.MaxInt64 - int64(r.Intn(2000)))
		case 1:
			return integer(math.MinInt64 + int64(r.Intn(2000)))
		case 2:
			return integer(1<<53 + int64(r.Intn(50)) - 25)
		case 3:
			return integer(int64(r.Uint64()) >> uint(r.Intn(63)))
		case 4:
			return float(1<<53 + float64(r.Intn(50)) - 25)
		case 5:
			return float(math.Float64frombits(uint64(r.Intn(100)) | uint64(r.Intn(2))<<63))
		case 6:
			return float(math.Ldexp(float64(int64(r.Uint64())>>10), r.Intn(30)))
		case 7:
			return float((r.Float64() - .5) * math.Pow(10, float64(r.Intn(40)-10)))
		}
		for {
			if f := math.Float64frombits(r.Uint64()); !math.IsNaN(f) && !math.IsInf(f, 0) {
				return float(f)
			}
		}
	}
	for range 300_000 {
		a, b := random(), random()
		if got, want := bytes.Compare(a.key, b.key), a.exact.Cmp(b.exact); got != want {
			t.Fatalf("%s to %s: bytes %d, value %d", a.text, b.text, got, want)
		}
		text, err := collate.AppendNumber(nil, []byte(a.text))
		if err != nil || !bytes.Equal(text, a.key) {
			t.Fatalf("%s: as text %x (%v), as value %x", a.text, text, err, a.key)
		}
		back, err := collate.Decode(nil, a.key)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := collate.AppendNumber(nil, back); !bytes.Equal(again, a.key) {
			t.Fatalf("%s is decoded as %s", a.text, back)
		}
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if got := collate.AppendFloat64(nil, f); !bytes.Equal(got, collate.AppendNull(nil)) {
			t.Errorf("%v: %x", f, got)
		}
	}
}

// TestDecode has the texts to which values are decoded.
func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		"-0": "0", "1.0": "1", "1.50": "1.5", "1e2": "100", "0.1": "0.1", "9007199254740993": "9007199254740993",
		"-9223372036854775808": "-9223372036854775808", "1e20": "100000000000000000000", "1e21": "1e+21",
		"9223372036854775808": "9223372036854775808", "1e19": "10000000000000000000", "1e-7": "1e-07",
		"123456789012345678901234567890": "1.2345678901234568e+29",
		"-18446744073709551615":          "-18446744073709551616", "15e400": "1.5e+401", "-1e400": "-1e+400", "0.00001": "0.00001",
		`"\u0041\u0000\n"`: `"A\u0000\n"`, `"é"`: `"é"`, ` { "b": [ ], "a" : { } } `: `{"a":{},"b":[]}`, `{"a":1,"a":[null,true]}`: `{"a":[null,true]}`,
	} {
		got, err := collate.Decode([]byte("x"), mustAppend(t, text))
		if err != nil || string(got) != "x"+want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}

// checkRoundTrip encodes and decodes a valid text and compares with the model.
func checkRoundTrip(t failer, text []byte) {
	t.Helper()
	v, _ := collatetest.Decode(text)
	key, err := collate.AppendJSON([]byte("dst"), text)
	if err != nil {
		if errors.Is(err, collate.ErrDepth) {
			return
		}
		t.Fatalf("%s: %v", text, err)
	}
	key = key[3:]
	back, err := collate.Decode(nil, key)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	bv, ok := collatetest.Decode(back)
	if !ok || collatetest.Compare(v, bv) != 0 {
		t.Fatalf("%s comes back as %s", text, back)
	}
	if again, err := collate.AppendJSON(nil, back); err != nil || !bytes.Equal(again, key) {
		t.Fatalf("%s: %x, its decoded form %s: %x (%v)", text, key, back, again, err)
	}
	component, rest, err := collate.Next(append(bytes.Clone(key), 0xFF, 0), false)
	if err != nil || !bytes.Equal(component, key) || len(rest) != 2 {
		t.Fatalf("%s: Next gives %x and %x (%v)", text, component, rest, err)
	}
	collate.Complement(key)
	component, rest, err = collate.Next(append(bytes.Clone(key), 0xFF, 0), true)
	if err != nil || !bytes.Equal(component, key) || len(rest) != 2 {
		t.Fatalf("%s: Next descending gives %x and %x (%v)", text, component, rest, err)
	}
	if end := collate.PrefixEnd(key); end != nil && bytes.Compare(end, append(key, 0xFF, 0xFF, 0xFF)) <= 0 {
		t.Fatalf("%s: PrefixEnd %x", text, end)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkRoundTrip(t, []byte(collatetest.ValueText(4).Draw(t, "value"))) })
}

// TestComposite compares whole keys of mixed directions with the model, and decodes them.
func TestComposite(t *testing.T) {
	component := rapid.OneOf(rapid.Just(""), collatetest.ValueText(1)) // "" stands for MISSING
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "components")
		desc := rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "desc")
		key := func(name string) (key []byte, values []any) {
			var parts [][]byte
			for _, text := range rapid.SliceOfN(component, n, n).Draw(t, name) {
				if text == "" {
					parts, values = append(parts, nil), append(values, collatetest.Missing{})
					continue
				}
				v, _ := collatetest.Decode([]byte(text))
				parts, values = append(parts, []byte(text)), append(values, v)
			}
			key, err := collate.AppendComposite(nil, parts, desc)
			if err != nil {
				t.Fatal(err)
			}
			return key, values
		}
		ak, av := key("a")
		bk, bv := key("b")
		want := 0
		for i := 0; i < n && want == 0; i++ {
			want = sign(collatetest.Compare(av[i], bv[i]))
			if desc[i] {
				want = -want
			}
		}
		if got := bytes.Compare(ak, bk); got != want {
			t.Fatalf("bytes %d, model %d", got, want)
		}
		text, err := collate.DecodeComposite(nil, ak, desc)
		if err != nil {
			t.Fatal(err)
		}
		places, err := collate.MissingComponents(ak, desc)
		if err != nil {
			t.Fatal(err)
		}
		back, _ := collatetest.Decode(text)
		for _, i := range places {
			if back.([]any)[i] != nil {
				t.Fatalf("component %d is MISSING in %s", i, text)
			}
			back.([]any)[i] = collatetest.Missing{}
		}
		if collatetest.Compare(av, back) != 0 {
			t.Fatalf("%v comes back as %s", av, text)
		}
	})
}

func TestCompositeErrors(t *testing.T) {
	dst := []byte("dst")
	got, err := collate.AppendComposite(dst, [][]byte{[]byte("1"), []byte("]")}, nil)
	if !errors.Is(err, collate.ErrJSON) || !strings.Contains(err.Error(), "key component 1") || string(got) != "dst" {
		t.Errorf("%s, %v", got, err)
	}
	got, err = collate.DecodeComposite(dst, []byte{byte(collate.Null), 0x77}, nil)
	if !errors.Is(err, collate.ErrKey) || !strings.Contains(err.Error(), "key component 1") || string(got) != "dst" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := collate.Decode(nil, []byte{byte(collate.Null), byte(collate.Null)}); !errors.Is(err, collate.ErrKey) {
		t.Error(err)
	}
	if text, err := collate.DecodeComposite(nil, nil, nil); err != nil || string(text) != "[]" {
		t.Errorf("the empty key: %s, %v", text, err)
	}
}

// TestInvalid has texts that are not a JSON value.
func TestInvalid(t *testing.T) {
	for _, text := range []string{
		"", " ", "nul", "nulll", "True", "tru", "+1", "-", "01", "-01", "1.", ".5", "1e", "1e+", "1.e5", "0x10", "NaN",
		"Infinity", "1_0", "--1",
		`"`, `"a`, `"a\"`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`, `"\u`, "\"\n\"", "\"abcdefghij\x01\"", "'a'", "[", "]", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1]]",
		"{", "}", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{a:1}`, `{"a" 1}`, `{"a":1 "b":2}`, `{1:2}`, `{,}`, "1 2", "nullnull", "\x00", "\xff", "\u00a01",
	} {
		if json.Valid([]byte(text)) {
			t.Fatalf("%q is valid", text)
		}
		got, err := collate.AppendJSON([]byte("dst"), []byte(text))
		if !errors.Is(err, collate.ErrJSON) || string(got) != "dst" {
			t.Errorf("%q: %x, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "1x", "x", `"1"`, "1 ", " 1", "1.5.5"} {
		if _, err := collate.AppendNumber(nil, []byte(text)); !errors.Is(err, collate.ErrJSON) {
			t.Errorf("number %q: %v", text, err)
		}
	}
}

func TestLimits(t *testing.T) {
	nested := func(n int, open, shut string) []byte {
		return []byte(strings.Repeat(open, n) + "1" + strings.Repeat(shut, n))
	}
	for _, text := range [][]byte{nested(collate.MaxDepth, "[", "]"), nested(collate.MaxDepth, `{"a":`, "}")} {
		key := mustAppend(t, string(text))
		if back, err := collate.Decode(nil, key); err != nil || !bytes.Equal(back, text) {
			t.Errorf("%s: %v", back, err)
		}
		deep := append(bytes.Repeat([]byte{byte(collate.Array)}, 1), key...)
		deep = append(deep, 0)
		if _, err := collate.Decode(nil, deep); !errors.Is(err, collate.ErrDepth) {
			t.Errorf("decoding one level more: %v", err)
		}
	}
	for _, text := range [][]byte{
		nested(collate.MaxDepth+1, "[", "]"), nested(collate.MaxDepth+1, `{"a":`, "}"), bytes.Repeat([]byte("["), 1<<20),
		bytes.Repeat([]byte(`{"":`), 1<<20),
	} {
		if _, err := collate.AppendJSON(nil, text); !errors.Is(err, collate.ErrDepth) {
			t.Errorf("%.20s…: %v", text, err)
		}
	}
	if _, err := collate.Decode(nil, bytes.Repeat([]byte{byte(collate.Array)}, 1<<20)); !errors.Is(err, collate.ErrDepth) {
		t.Error(err)
	}
	long := []byte("[" + strings.Repeat("1,", 1<<20) + "1]")
	if _, err := collate.AppendJSONLimit([]byte("dst"), long, 1000); !errors.Is(err, collate.ErrTooLong) {
		t.Error(err)
	}
	if _, err := collate.AppendJSONLimit([]byte("dst"), []byte("[1,2]"), 20); err != nil {
		t.Error(err)
	}
}

func TestPrefixEnd(t *testing.T) {
	for _, c := range []struct{ prefix, end []byte }{
		{nil, nil}, {[]byte{1}, []byte{2}}, {[]byte{1, 0xFF}, []byte{2}}, {[]byte{0xFF, 0xFF}, nil},
		{[]byte{0xFE, 0, 0xFF}, []byte{0xFE, 1}},
	} {
		before := bytes.Clone(c.prefix)
		if got := collate.PrefixEnd(c.prefix); !bytes.Equal(got, c.end) || !bytes.Equal(before, c.prefix) {
			t.Errorf("%x: %x, want %x", c.prefix, got, c.end)
		}
	}
}

// TestStrings checks that all bytes are ordered by their value, also those that no JSON string can represent.
func TestStrings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.OneOf(rapid.ByteRange(0, 2), rapid.ByteRange(254, 255), rapid.Byte()), 0, 12)
		x, y := b.Draw(t, "x"), b.Draw(t, "y")
		xk, yk := collate.AppendString(nil, x), collate.AppendString(nil, y)
		if got, want := bytes.Compare(xk, yk), bytes.Compare(x, y); got != want {
			t.Fatalf("%d, want %d", got, want)
		}
		text, err := collate.Decode(nil, xk)
		if err != nil || !json.Valid(text) {
			t.Fatalf("%s: %v", text, err)
		}
		var s string
		if json.Unmarshal(text, &s) != nil || s != strings.ToValidUTF8(string(x), "\ufffd") && len(s) == len(x) {
			t.Fatalf("%x comes back as %q", x, s)
		}
	})
}

// TestQuoteUnquote runs the string functions against encoding/json.
func TestQuoteUnquote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := collatetest.StringText().Draw(t, "text")
		var want string
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		end, plain := collate.ScanString([]byte(text), 1)
		if end != len(text)-1 || plain && text[1:end] != want {
			t.Fatalf("ends at %d, plain %v", end, plain)
		}
		got, err := collate.AppendUnquoted([]byte("x"), []byte(text[1:end]))
		if err != nil || string(got) != "x"+want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
		var again string
		if err := json.Unmarshal(collate.AppendQuoted(nil, []byte(want)), &again); err != nil || again != want {
			t.Fatalf("%q, %v", again, err)
		}
	})
}

// TestStoredBytes pins the format: keys live in stored files.
func TestStoredBytes(t *testing.T) {
	for text, want := range map[string]string{
		"null": "\x10", "false": "\x18", "true": "\x20",
		"1": "\x28\xbf\xf0\x00\x00\x00\x00\x00\x00", "-1": "\x28\x40\x0f\xff\xff\xff\xff\xff\xff",
		"9007199254740993":  "\x28\xc3\x40\x00\x00\x00\x00\x00\x00\x81\x01",
		"-9007199254740993": "\x28\x3c\xbf\xff\xff\xff\xff\xff\xff\x7f\xfe",
		"15e400":            "\x28\xff\xf0\x00\x00\x00\x00\x00\x00\x00\x00\x01\x92\x02\x06\x00",
		`"a\u0000"`:         "\x30a\x00\xff\x00\x01", "[true]": "\x38\x20\x00", `{"a":null}`: "\x40\x00\x00\x00\x01\x30a\x00\x01\x10\x00",
	} {
		if got := mustAppend(t, text); string(got) != want {
			t.Errorf("%s: %x, want %x", text, got, want)
		}
	}
	if got := collate.AppendMissing(nil); string(got) != "\x08" {
		t.Errorf("%x", got)
	}
}

func TestNoAllocation(t *testing.T) {
	components := [][]byte{[]byte(`"San Francisco"`), []byte("34"), []byte(`{"b":1.5,"a":[true]}`), nil}
	desc := []bool{false, true, true}
	dst := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := collate.AppendComposite(dst, components, desc); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !slices.Equal(desc, []bool{false, true, true}) {
		t.Error("desc changed")
	}
}
