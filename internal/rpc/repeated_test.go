package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestRepeated checks that a field that is there twice is found at any depth, and nothing else is.
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
		`{"a":1,"b":2,"a":3}`:                             `field "a" is there twice, again at line 1 column 14`,
		"{\"a\":1,\n \"\\u0061\":3}":                      `field "a" is there twice, again at line 2 column 2`,
		`{"w":{"r":1,"s":[[],{"t":1,"t":1}]}}`:            `field "w.s[1].t" is there twice`,
		`[1,{"a":[true,{"b":null}],"a":3}]`:               `field "[1].a" is there twice`,
		`{"":1,"":2}`:                                     `field "" is there twice`,
		`{` + many(few) + `,"n3":0}`:                      `field "n3" is there twice`,
		`{` + many(10*few) + `,"n99":0}`:                  `field "n99" is there twice`,
		`{` + many(few-1) + `,"n3":0}`:                    `field "n3" is there twice`,
		`{` + many(10*few) + `}`:                          "",
	} {
		if !json.Valid([]byte(body)) {
			t.Fatalf("%s is no JSON", body)
		}
		if got := Repeated([]byte(body)); want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%.100s: %q, want %q", body, got, want)
		}
	}
}

// FuzzRepeated compares Repeated with a slow reader of the same JSON.
func FuzzRepeated(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":[{"b":"\"","b":{}}]}`, `[[],{},"x\\",{"\u0061":1,"a":2}]`, ` { "a" : -1e5 } `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if !json.Valid(body) {
			return
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		var twice bool
		var value func()
		value = func() {
			token, err := dec.Token()
			if err != nil && !errors.Is(err, io.EOF) {
				t.Skip(err) // nested too deep
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
						t.Skip(err)
					}
					text, _ := name.(string)
					twice, seen[text] = twice || seen[text], true
				}
				value()
			}
			_, _ = dec.Token()
		}
		value()
		if got := Repeated(body); got != "" != twice {
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
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if Repeated(body) != "" {
					b.Fatal("nothing is there twice")
				}
			}
		})
	}
}
