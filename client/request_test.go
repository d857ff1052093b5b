package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// TestRequestsAreWrittenAsByEncodingJSON: whichever way a request is written, it says the same, and what is no JSON is refused.
func TestRequestsAreWrittenAsByEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SampledFrom([]json.RawMessage{json.RawMessage(`"a b"`), json.RawMessage(`1.50`), json.RawMessage(`null`), json.RawMessage(`[1, {"a":"<"}]`), json.RawMessage(`"é\n"`)})
		values := rapid.SliceOfN(value, 0, 3)
		word := rapid.SampledFrom([]string{"", "any", "at_plus", "x y", `"`})
		r := ScanRequest{Limit: rapid.IntRange(-1, 3).Draw(t, "limit"), Consistency: word.Draw(t, "consistency"), Equal: values.Draw(t, "equal"),
			Reverse: rapid.Bool().Draw(t, "reverse"), WantTimestamp: rapid.Bool().Draw(t, "want"), Offset: rapid.IntRange(0, 2).Draw(t, "offset"),
			Distinct: rapid.Bool().Draw(t, "distinct"), Stability: word.Draw(t, "stability")}
		if rapid.Bool().Draw(t, "ranged") {
			r.Range = &Range{Low: values.Draw(t, "low"), High: values.Draw(t, "high"), Inclusion: word.Draw(t, "inclusion")}
		}
		if rapid.IntRange(0, 3).Draw(t, "more") == 0 {
			r.Timestamp, r.Project, r.Tokens = "1.2.3", []int{0}, []Token{{VBucket: 1, VBUUID: 2, Seqno: 3}}
		}
		got, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := normal(t, got), normal(t, want); !bytes.Equal(a, b) {
			t.Fatalf("%s, want %s", a, b)
		}
	})
	for _, bad := range []ScanRequest{{Equal: []json.RawMessage{json.RawMessage(`{`)}}, {Range: &Range{Low: []json.RawMessage{json.RawMessage(`1],"x":[1`)}}}} {
		var wrong *json.MarshalerError
		if b, err := bad.encode(); !errors.As(err, &wrong) {
			t.Errorf("%s %v", b, err)
		}
	}
}

func normal(t *rapid.T, b []byte) []byte {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTheLastLineIsReadAsByEncodingJSON: by parseEnd, or by encoding/json, never in another way.
func TestTheLastLineIsReadAsByEncodingJSON(t *testing.T) {
	for text, quick := range map[string]bool{
		`{"end":true,"rows":100,"timestamp":{"id":"1.0.57.8110943218812215386","hash":"8110943218812215386"}}`: true,
		`{"end":true,"rows":0,"timestamp":{"id":"","hash":""}}`:                                                true,
		`{"end":true,"rows":01,"timestamp":{"id":"1","hash":"2"}}`:                                             false,
		`{"end":true,"rows":99999999999999999999,"timestamp":{"id":"1","hash":"2"}}`:                           false,
		`{"end":true,"rows":1,"timestamp":{"id":"1","hash":"2","vector":[["3",4]]}}`:                           false,
		`{"end":true,"rows":1,"timestamp":{"id":"1","hash":"2"}} `:                                             false,
		`{"end":true,"rows":1,"timestamp":{"id":"a","hash":"2"}}`:                                              false,
		`{"end":true,"rows":1}`: false,
		``:                      false,
	} {
		var got, want ScanEnd
		if parseEnd([]byte(text), &got) != quick {
			t.Errorf("%s: quickly %v", text, !quick)
		}
		if !quick {
			continue
		}
		if err := json.Unmarshal([]byte(text), &want); err != nil || got.Rows != want.Rows || got.Timestamp.ID != want.Timestamp.ID || got.Timestamp.Hash != want.Timestamp.Hash || !got.End {
			t.Errorf("%s: %+v, want %+v (%v)", text, got, want, err)
		}
	}
}
