package v1

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	_ "tidemark/internal/testing/draws"
)

// TestPrefixIsARange checks that exactly the strings with a prefix lie between its bounds, in the order of indexes.
func TestPrefixIsARange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		char := rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune{0, 'a', 'b', 0x7F, 0x7FF, 0xD7FF, 0xE000, 0xFFFF,
			0x10FFFF}))
		text := func(name string) string {
			return strings.ToValidUTF8(string(rapid.SliceOfN(char, 0, 4).Draw(t, name)), "")
		}
		prefix := text("prefix")
		key := text("key")
		if rapid.Bool().Draw(t, "begins") {
			key = prefix + key
		}
		r := Prefix("x", prefix)
		if r.err != nil || r.Inclusion != "low" || len(r.Low) != 2 || len(r.High) != 2 {
			t.Fatalf("%+v", r)
		}
		k, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		at := func(v json.RawMessage) []byte {
			b, err := collate.AppendComposite(nil, [][]byte{v}, []bool{false})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		in := bytes.Compare(at(k), at(r.Low[1])) >= 0 && bytes.Compare(at(k), at(r.High[1])) < 0
		if in != strings.HasPrefix(key, prefix) {
			t.Fatalf("%q with prefix %q: %v in %s", key, prefix, in, r.High[1])
		}
	})
}

// TestBoundsAreBodies checks the encoding of ranges in a request's body.
func TestBoundsAreBodies(t *testing.T) {
	for _, c := range []struct {
		req  ScanRequest
		want string
	}{
		{ScanRequest{Limit: 3}.In(Equal("FR", nil, true, 1.5)), `{"limit":3,"ranges":[{"low":["FR",null,true,1.5],` +
			`"high":["FR",null,true,1.5],"inclusion":"both"}]}`},
		{ScanRequest{}.In(After(1).Before(5), After(7).To(9), From(11).Before(12)),
			`{"ranges":[{"low":[1],"high":[5],"inclusion":"neither"},{"low":[7],"high":[9],"inclusion":"high"},` +
				`{"low":[11],"high":[12],"inclusion":"low"}]}`},
		{ScanRequest{Equal: []json.RawMessage{json.RawMessage("1")}}.In(Equal(2)),
			`{"ranges":[{"low":[2],"high":[2],"inclusion":"both"}]}`},
	} {
		if body, err := c.req.Encode(); err != nil || string(body) != c.want {
			t.Errorf("%s, %v, want %s", body, err, c.want)
		}
	}
}

// TestConditions checks that conditions are made from Go values, and that invalid ones are rejected before anything
// is sent.
func TestConditions(t *testing.T) {
	r := ScanRequest{Where: []Condition{Component(1, From(3000).Before(4000)), Component(2, Equal(nil)),
		Component(0, Below("M")), ComponentIn(3, "a", true)}}
	body, err := r.Encode()
	if want := `{"where":[{"component":1,"low":3000,"high":4000,"inclusion":"low"},` +
		`{"component":2,"low":null,"high":null,"inclusion":"both"},{"component":0,"high":"M","inclusion":"low"},` +
		`{"component":3,"in":["a",true]}]}`; err != nil || string(body) != want {
		t.Errorf("%v\n%s, want\n%s", err, body, want)
	}
	for _, c := range []Condition{Component(0, Equal("a", "b")), Component(0, Range{}), ComponentIn(0),
		ComponentIn(0, func() {}), Component(0, Prefix(7))} {
		r := ScanRequest{Where: []Condition{c}}
		if _, err := r.Encode(); !errors.Is(err, ErrBounds) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
