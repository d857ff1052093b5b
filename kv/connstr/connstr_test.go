package connstr

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// shown returns a Spec as one line.
func shown(s Spec) string {
	service, name, _ := s.SRV()
	return fmt.Sprintf("%s %s %s %q %q %s %s", s.Scheme, strings.Join(s.Addrs(false), ","),
		strings.Join(s.Addrs(true), ","), s.Bucket, s.Network, service, name)
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.4:11210":           ` 10.0.0.4:11210 10.0.0.4:11210 "" ""  `,
		"10.0.0.4":                 ` 10.0.0.4:11210 10.0.0.4:11207 "" ""  `,
		"kv1, kv2:12000;kv3":       ` kv1:11210,kv2:12000,kv3:11210 kv1:11207,kv2:12000,kv3:11207 "" ""  `,
		"[::1]:11210":              ` [::1]:11210 [::1]:11210 "" ""  `,
		"::1":                      ` [::1]:11210 [::1]:11207 "" ""  `,
		"[fe80::1%eth0]":           ` [fe80::1%eth0]:11210 [fe80::1%eth0]:11207 "" ""  `,
		"couchbase://db":           `couchbase db:11210 db:11207 "" "" couchbase db`,
		"COUCHBASES://db.example/": `couchbases db.example:11210 db.example:11207 "" "" couchbases db.example`,
		"couchbase://db:11210":     `couchbase db:11210 db:11210 "" ""  `,
		"couchbase://a,b":          `couchbase a:11210,b:11210 a:11207,b:11207 "" ""  `,
		"couchbase://10.0.0.4":     `couchbase 10.0.0.4:11210 10.0.0.4:11207 "" ""  `,
		"couchbase://[::1]":        `couchbase [::1]:11210 [::1]:11207 "" ""  `,
		"couchbases://a_b,[::1]:7/world?network=external": `couchbases a_b:11210,[::1]:7 a_b:11207,[::1]:7 "world" "external"  `,
		"couchbase://a/beer%25sample?network=auto":        `couchbase a:11210 a:11207 "beer%sample" "" couchbase a`,
		"couchbase://a?network=default":                   `couchbase a:11210 a:11207 "" "default" couchbase a`,
	} {
		s, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := shown(s); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
}

// TestManagers checks that managers have schemes of their own.
func TestManagers(t *testing.T) {
	for text, want := range map[string]string{
		"http://a":                      "a:8091",
		"https://a,[::1]":               "a:18091 [::1]:18091",
		"http://10.0.0.4:9000,b/world":  "10.0.0.4:9000 b:8091",
		"HTTPS://a:8091?network=extern": "a:8091",
		"couchbase://a":                 "",
		"a":                             "",
	} {
		s, err := Parse(text)
		if _, _, srv := s.SRV(); err != nil || strings.Join(s.Managers(), " ") != want || srv && s.REST() {
			t.Errorf("%s: %q, %v", text, s.Managers(), err)
		}
	}
}

func TestTLS(t *testing.T) {
	for _, tt := range []struct {
		text        string
		asked, want bool
	}{
		{"a", false, false}, {"a", true, true}, {"couchbase://a", true, false}, {"couchbases://a", false, true},
		{"http://a", true, false}, {"https://a", false, true},
	} {
		if s, err := Parse(tt.text); err != nil || s.TLS(tt.asked) != tt.want {
			t.Errorf("%s, TLS asked for %t: %t, %v", tt.text, tt.asked, s.TLS(tt.asked), err)
		}
	}
}

// TestRefused checks that an error gives its reason in words, and never repeats a password.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "has no host",
		",":                                     "has no host",
		"couchbase://":                          "has no host",
		"http://a:11210":                        "18091",
		"a:8091":                                "11210",
		"couchbases://a:18091":                  "https://HOST:18091",
		"memcached://a":                         `scheme "memcached"`,
		"a/world":                               "needs a scheme",
		"a?network=external":                    "needs a scheme",
		"couchbase://a/b/c":                     "not a bucket name",
		"couchbase://a?kv_timeout=2s":           `"kv_timeout"`,
		"couchbase://a?network=":                "without a value",
		"couchbase://a?network=a&network=b":     "twice",
		"couchbase://a?%zz":                     "are malformed",
		"a:":                                    "no port",
		"a:0":                                   "not a port",
		"a:70000":                               "not a port",
		"a:kv":                                  "not a port",
		"fd00::1:11210:":                        "brackets",
		"[::1":                                  "not closed",
		"[::1]x":                                "follows",
		"[::1]:":                                "no port",
		"[10.0.0.1]:1":                          "not an IPv6",
		"a b":                                   `' '`,
		"couchbase://me:secret@a":               "user and password",
		strings.Repeat("a", maxHostBytes+1):     "253",
		strings.Repeat("a,", MaxHosts) + "b":    "more than 64",
		strings.Repeat("a", MaxBytes+1):         "limit is 4096",
		"couchbase://" + strings.Repeat("@", 9): "user and password",
	} {
		_, err := Parse(text)
		if !errors.Is(err, ErrString) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") ||
			len(err.Error()) > 1000 {
			t.Errorf("%.40q: %v; want %q", text, err, want)
		}
	}
}

// FuzzParse checks that a parsed text, written as addresses, has the same meaning.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a", "couchbases://a,[::1]:7/b?network=external", "[fe80::1%eth0]", "a:1;b", "::1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(strings.Join(s.Addrs(false), ","))
		if err != nil || strings.Join(again.Addrs(false), ",") != strings.Join(s.Addrs(false), ",") {
			t.Errorf("%q: %v became %v, %v", text, s.Addrs(false), again.Hosts, err)
		}
	})
}
