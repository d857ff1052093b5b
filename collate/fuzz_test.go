package collate_test

import (
	"encoding/json"
	"testing"

	"tidemark/collate"
)

// FuzzRoundTrip checks that a text is accepted if and only if encoding/json accepts it, and is decoded to an equal
// value.
func FuzzRoundTrip(f *testing.F) {
	for _, text := range []string{`{"a":[1,-0.5e3,"x\u0000",null],"a":{}}`, `"\ud83d\ude00"`, "123456789012345678901234567890", " 1e400 ", "[[[", "\"\x80\""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			if key, err := collate.AppendJSON(nil, text); err == nil {
				t.Fatalf("%q is no JSON, but is encoded as %x", text, key)
			}
			return
		}
		checkRoundTrip(t, text)
	})
}

// FuzzOrder checks that two valid texts compare like in the model.
func FuzzOrder(f *testing.F) {
	f.Add([]byte("9007199254740993"), []byte("9007199254740992.0"))
	f.Add([]byte(`{"a":1}`), []byte(`{"b":0}`))
	f.Add([]byte(`["a\u0000"]`), []byte(`["a",1]`))
	f.Add([]byte("1e309"), []byte("1.7976931348623157e308"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if !json.Valid(a) || !json.Valid(b) || len(a) > 1000 || len(b) > 1000 {
			return
		}
		if _, err := collate.AppendJSON(nil, a); err != nil {
			return // too deep; FuzzRoundTrip covers the rest
		}
		if _, err := collate.AppendJSON(nil, b); err != nil {
			return
		}
		checkPair(t, string(a), string(b))
	})
}

// FuzzDecode checks that no bytes make the decoder panic; that accepted ones are decoded to JSON, and that Next
// splits them.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{`{"a":[1,-0.5e3,"x\u0000",null]}`, "123456789012345678901234567890", "-1e400", "9007199254740993"} {
		key, err := collate.AppendJSON(nil, []byte(text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(key, false)
		down := append(collate.AppendMissing(nil), key...)
		collate.Complement(down)
		f.Add(down, true)
	}
	f.Fuzz(func(t *testing.T, key []byte, desc bool) {
		flags := []bool{desc, desc, !desc}
		text, err := collate.DecodeComposite(nil, key, flags)
		if _, missingErr := collate.MissingComponents(key, flags); (err == nil) != (missingErr == nil) {
			t.Fatalf("%v and %v", err, missingErr)
		}
		if err == nil && !json.Valid(text) {
			t.Fatalf("%x is decoded as %s", key, text)
		}
		component, rest, err := collate.Next(key, desc)
		if err == nil && (len(component) == 0 || len(component)+len(rest) != len(key)) {
			t.Fatalf("%x is cut to %x and %x", key, component, rest)
		}
	})
}
