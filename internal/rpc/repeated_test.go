package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestRepeated checks that a field that occurs twice is found at any depth, and that nothing else is reported.
func TestRepeated(t *testing.T) {
	many := func(names int) string {
		var s []string
		for i := range names {
			s = append(s, fmt.Sprintf(`"n%d":{"x":"n0"}`, i))
		}
		return strings.Join(s, ",")
	}
	for body, want := range map[string]string{
		`{}`: "", `7`: "", `"a\"a"`: "", `[]`: "", `[{"a":1},{"a":2}]`: "",
		`{"a":1,"b":{"a":1},"c":[{"a":1}],"d":"a","A":0}`: "",
		`{"a":"{\"b\":1,\"b\":2}","b":"\\"}`:              "",
		`{"a":1,"b":2,"a":3}`:                             `field "a" occurs twice, again at line 1 column 14`,
		"{\"a\":1,\n \"\\u0061\":3}":                      `field "a" occurs twice, again at line 2 column 2`,
		`{"w":{"r":1,"s":[[],{"t":1,"t":1}]}}`:            `field "w.s[1].t" occurs twice`,
		`[1,{"a":[true,{"b":null}],"a":3}]`:               `field "[1].a" occurs twice`,
		`{"":1,"":2}`:                                     `field "" occurs twice`,
		`{` + many(few) + `,"n3":0}`:                      `field "n3" occurs twice`,
		`{` + many(10*few) + `,"n99":0}`:                  `field "n99" occurs twice`,
		`{` + many(few-1) + `,"n3":0}`:                    `field "n3" occurs twice`,
		`{` + many(10*few) + `}`:                          "",
		`{"` + "\xff" + `":1,"` + "\xfe" + `":2}`:         "field \"\ufffd\" occurs twice", // decoded, both are U+FFFD
	} {
		if !json.Valid([]byte(body)) {
			t.Fatalf("%s is no JSON", body)
		}
		if got := Repeated([]byte(body), nil); want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%.100s: %q, want %q", body, got, want)
		}
	}
}

// TestRepeatedIgnoringCase checks that names that differ only in case are one field of a struct, as encoding/json
// decodes them, and several keys wherever case counts.
func TestRepeatedIgnoringCase(t *testing.T) {
	type Inner struct {
		Limit int `json:"limit,omitempty"`
		Skip  int
	}
	type body struct {
		Inner
		Equal []json.RawMessage            `json:"equal"`
		Low   json.RawMessage              `json:"low"`
		Any   any                          `json:"any"`
		Map   map[string]map[string]*Inner `json:"map"`
		List  []*Inner                     `json:"list"`
		At    opaque                       `json:"at"`
	}
	names := func(first, last string) string {
		for i := range 2 * few {
			first += fmt.Sprintf(`,"n%d":0`, i)
		}
		return first + "," + last
	}
	for text, want := range map[string]string{
		`{"limit":5,"Limit":10}`:                             `field "Limit" occurs twice, again at line 1 column 12 in`,
		`{"limit":5,"skip":1,"LIMIT":10}`:                    `field "LIMIT" occurs twice`,
		`{"skip":5,"Skip":1}`:                                `field "Skip" occurs twice`,
		`{"skip":5,"` + "\u017f" + `kip":1}`:                 `field "ſkip" occurs twice`, // a long s is an s
		`{"skip":5,"\u017fkip":1}`:                           `field "ſkip" occurs twice`,
		`{"list":[{"limit":1},{"limit":1,"lImit":2}]}`:       `field "list[1].lImit" occurs twice`,
		`{"LIST":[{"limit":1,"lImit":2}]}`:                   `field "LIST[0].lImit" occurs twice`,
		`{"map":{"a":{"A":{"limit":1,"Limit":2}}}}`:          `field "map.a.A.Limit" occurs twice`,
		`{"map":{"a":{"b":{},"B":{}},"A":{}},"limit":1}`:     "",
		`{"low":{"a":1,"A":2},"any":[{"a":1,"A":2}]}`:        "",
		`{"low":{"a":1,"A":2,"a":3},"any":[{"a":1,"a":{}}]}`: "", // as a document may have it
		`{"low":[{"a":[{"b":1,"b":2}]},{"a":1,"a":2}]}`:      "",
		`{"any":{"a":1,"a":2},"low":1,"low":2}`:              `field "low" occurs twice`,
		`{"map":{"a":{"b":{}},"a":{}}}`:                      `field "map.a" occurs twice`,
		`{"equal":[{"limit":1,"Limit":{"a":1,"A":1}}]}`:      "",
		`{"at":{"limit":1,"Limit":2}}`:                       "",
		`{"low":{` + names(`"a":1`, `"A":2`) + `}}`:          "",
		`{"low":{` + names(`"a":1`, `"a":2`) + `}}`:          "",
		`{"map":{` + names(`"a":1`, `"a":2`) + `}}`:          `field "map.a" occurs twice`,
		`{` + names(`"skip":1`, `"`+"\u017f"+`KIP":2`) + `}`: `field "ſKIP" occurs twice`,
	} {
		if !json.Valid([]byte(text)) {
			t.Fatalf("%s is no JSON", text)
		}
		if got := Repeated([]byte(text), new(body)); want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%.100s: %q, want %q", text, got, want)
		}
	}
	for _, v := range []any{new(map[string]int), new(any), new(json.RawMessage), nil} {
		if got := Repeated([]byte(`{"limit":5,"Limit":10}`), v); got != "" {
			t.Errorf("case counts in %T: %q", v, got)
		}
	}
	var decoded body
	err := ReadJSON([]byte(`{"limit":5,"Limit":10}`), &decoded)
	if err == nil || !strings.Contains(err.Error(), "in another case: send it once") {
		t.Errorf("%v, decoded as %+v", err, decoded.Inner)
	}
}

// opaque decodes itself, so that Repeated cannot find out its fields.
type opaque struct{ Limit int }

func (p *opaque) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &p.Limit) }

// FuzzRepeated compares Repeated with a slow reader of the same JSON.
func FuzzRepeated(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":[{"b":"\"","b":{}}]}`, `[[],{},"x\\",{"\u0061":1,"a":2}]`, ` { "a" : -1e5 } `, `[1E700]`,
		`{"` + "\xff" + `":1,"` + "\xfe" + `":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if !json.Valid(body) {
			return
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber() // as 1E700 is no float64
		var twice bool
		var value func()
		value = func() {
			token, err := dec.Token()
			if err != nil {
				t.Fatal(err) // body is valid
			}
			delim, is := token.(json.Delim)
			if !is {
				return
			}
			seen := map[string]bool{}
			for dec.More() {
				if delim == '{' {
					name, err := dec.Token()
					if err != nil {
						t.Fatal(err)
					}
					text, _ := name.(string)
					twice, seen[text] = twice || seen[text], true
				}
				value()
			}
			_, _ = dec.Token()
		}
		value()
		if got := Repeated(body, nil); got != "" != twice {
			t.Errorf("%q: %q, and a slow reader finds %t", body, got, twice)
		}
	})
}

func BenchmarkRepeated(b *testing.B) {
	scan := []byte(`{"equal":["FR"],"limit":10,"consistency":"session","project":[0,1],"want_timestamp":true}`)
	large := []byte(`{"indexes":[` + strings.Repeat(`{"bucket":"world","name":"x","keys":[{"expr":"a"},{"expr":"b"}]},`,
		12_000) + `{}]}`)
	for name, body := range map[string][]byte{"scan": scan, "large": large} {
		b.Run(name, func(b *testing.B) {
			var into map[string]any
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if Repeated(body, &into) != "" {
					b.Fatal("a repeated field was reported, but there is none")
				}
			}
		})
	}
}
