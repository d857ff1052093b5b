package aggregate

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/collate/collatetest"
	_ "tidemark/internal/testing/draws"
)

// component encodes a JSON text; "MISSING" stands for that value.
func component(t testing.TB, text string) []byte {
	t.Helper()
	if text == "MISSING" {
		return collate.AppendMissing(nil)
	}
	c, err := collate.AppendJSON(nil, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

func result(t testing.TB, a *Acc) string {
	t.Helper()
	text, err := a.AppendResult(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestResults compares rows, count, sum, avg, min and max of the same values with results worked out by hand.
func TestResults(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		{"", "0 0 null null null null"},
		{"null MISSING null", "3 0 null null null null"},
		{`"a" true [] {}`, `4 4 null null true {}`},
		{"1 2 null 4", "4 3 7 2.3333333333333335 1 4"},
		{`10 "x" MISSING 20`, `4 3 30 15 10 "x"`},
		{"9223372036854775807 9223372036854775807 1", "3 3 18446744073709551615 6148914691236517205 1 9223372036854775807"},
		{"-9223372036854775808 -9223372036854775808 -1", "3 3 -18446744073709551617 -6148914691236516864 -9223372036854775808 -1"},
		{"9223372036854775807 1 -9223372036854775808", "3 3 0 0 -9223372036854775808 9223372036854775807"},
		{"9007199254740993 9007199254740993", "2 2 18014398509481986 9007199254740993 9007199254740993 9007199254740993"},
		{"0.1 0.2 0.3", "3 3 0.6 0.2 0.1 0.3"}, // added one by one, they are 0.6000000000000001
		{"1e16 1 -1e16 0.5", "4 4 1.5 0.375 -10000000000000000 10000000000000000"},
		{"1e308 1e308 -1e308", "3 3 1e+308 3.333333333333333e+307 -1e+308 1e+308"},
		{"1e308 1e308", "2 2 null 1e+308 1e+308 1e+308"}, // the sum is out of range, the mean is not
		{"5e-324 5e-324", "2 2 1e-323 5e-324 5e-324 5e-324"},
		{"5e-324 0", "2 2 5e-324 0 0 5e-324"}, // half of the smallest number: ties go to the even one
		{"5e-324 5e-324 5e-324 0", "4 4 1.5e-323 5e-324 0 5e-324"},
		{"1e400 1", "2 2 null null 1 1e+400"},
		{"1e30 -1e30 7", "3 3 7 2.3333333333333335 -1e+30 1e+30"},
		{"-0 -0.0", "2 2 0 0 0 0"},
	} {
		var got []string
		for _, op := range Ops {
			a := Acc{Op: op}
			for _, v := range strings.Fields(c.values) {
				a.Add(component(t, v))
			}
			got = append(got, result(t, &a))
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.values, g, c.want)
		}
	}
}

// exactly computes sum and mean with fractions of any size: a sum of integers with all digits, otherwise the nearest
// float64.
func exactly(values []string) (total, mean string) {
	x, n, integers := new(big.Rat), int64(0), true
	for _, v := range values {
		f, err := strconv.ParseFloat(v, 64)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return null, null
		case err != nil: // not a number
			continue
		}
		n++
		r := new(big.Rat)
		if i, err := strconv.ParseInt(v, 10, 64); err == nil {
			r.SetInt64(i)
		} else { // its form in a key
			r.SetFloat64(f)
			integers = integers && r.IsInt() && r.Num().IsInt64()
		}
		x.Add(x, r)
	}
	if n == 0 {
		return null, null
	}
	text := func(x *big.Rat) string {
		if integers && x.IsInt() {
			return x.Num().String()
		}
		f, _ := x.Float64()
		if math.IsInf(f, 0) {
			return null
		}
		b, _ := collate.Decode(nil, collate.AppendFloat64(nil, f))
		return string(b)
	}
	return text(x), text(new(big.Rat).Quo(x, new(big.Rat).SetInt64(n)))
}

// TestPartsEqualWhole: however values are distributed over parts, and in whatever order they are added and joined,
// the result is that of all of them, and sums and means are the exact ones, rounded once.
func TestPartsEqualWhole(t *testing.T) {
	value := rapid.OneOf(collatetest.NumberText(), collatetest.NumberText(), collatetest.ValueText(1),
		rapid.Just("MISSING"), rapid.SampledFrom([]string{"9223372036854775807", "-9223372036854775808", "1e308", "5e-324",
			"-1e308", "0.1", "2.5", "1e16", "9007199254740993"}),
		rapid.Map(rapid.Int64(), func(i int64) string { return strconv.FormatInt(i, 10) }),
		rapid.Map(rapid.Float64(), func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }))
	rapid.Check(t, func(rt *rapid.T) {
		values := rapid.SliceOfN(value, 0, 20).Draw(rt, "values")
		total, mean := exactly(values)
		for _, op := range Ops {
			whole, parts := Acc{Op: op}, make([]Acc, rapid.IntRange(1, 4).Draw(rt, "parts"))
			for i := range parts {
				parts[i].Op = op
				if rapid.Bool().Draw(rt, "used before") {
					parts[i].Add(component(t, "1.25"))
					parts[i].Reset()
				}
			}
			for _, v := range values {
				whole.Add(component(t, v))
				parts[rapid.IntRange(0, len(parts)-1).Draw(rt, "part")].Add(component(t, v))
			}
			joined := Acc{Op: op}
			for _, i := range rapid.Permutation(order(len(parts))).Draw(rt, "order") {
				state := append(parts[i].AppendState(nil), "rest"...)
				rest, err := joined.Join(state)
				if err != nil || string(rest) != "rest" {
					rt.Fatalf("%s of %v: %q, %v", op, values, rest, err)
				}
			}
			got := result(t, &whole)
			if j := result(t, &joined); j != got {
				rt.Errorf("%s of %v: %s in parts, %s as a whole", op, values, j, got)
			}
			if want := map[Op]string{Sum: total, Avg: mean}[op]; want != "" && got != want {
				rt.Errorf("%s of %v: %s, want %s", op, values, got, want)
			}
			if !json.Valid([]byte(got)) {
				rt.Errorf("%s is no JSON", got)
			}
		}
	})
}

func order(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// TestManyCarries: limbs do not overflow before they carry, nor afterwards.
func TestManyCarries(t *testing.T) {
	s := sum{}
	for range 3 {
		s.add(component(t, "-0.5"))
		s.wide.adds = manyAdds - 1 // as if that many had been added before
		s.add(component(t, "-0.25"))
		if s.wide.adds != 0 {
			t.Fatalf("%d additions are open", s.wide.adds)
		}
	}
	if got := string(s.appendTotal(nil)); got != "-2.25" {
		t.Error(got)
	}
}

// FuzzJoin: no bytes are read beyond the end, and a refusal is an error.
func FuzzJoin(f *testing.F) {
	for _, op := range Ops {
		a := Acc{Op: op}
		for _, v := range []string{"1", "0.5", "-9223372036854775808", "1e300"} {
			a.Add(component(f, v))
			f.Add(string(op), a.AppendState(nil))
		}
	}
	f.Fuzz(func(t *testing.T, op string, state []byte) {
		a := Acc{Op: Op(op)}
		if !a.Op.Valid() {
			return
		}
		if _, err := a.Join(state); err != nil {
			if !errors.Is(err, ErrState) {
				t.Error(err)
			}
			return
		}
		if a.Op == Min || a.Op == Max { // a value is checked when it is written
			return
		}
		if text := result(t, &a); !json.Valid([]byte(text)) {
			t.Errorf("%s is no JSON", text)
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	for _, v := range []string{"12", "12.99"} {
		b.Run(v, func(b *testing.B) {
			c, a := component(b, v), Acc{Op: Sum}
			for b.Loop() {
				a.Add(c)
			}
		})
	}
}
