package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// source returns the environment and the sections of a file for three roles.
func source(lookup func(string) (string, bool)) Source {
	return Source{Lookup: lookup, Role: "manager", Sections: map[string][]string{"manager": nil,
		"indexer": {"scan", "log-level"}}}
}

func flagSet(file string) *pflag.FlagSet {
	f := pflag.NewFlagSet("t", pflag.ContinueOnError)
	f.String("log-level", "info", "")
	f.Int("expect", 1, "")
	f.StringSlice("join", nil, "")
	f.String(FileFlag, file, "")
	return f
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func env(pairs ...string) func(string) (string, bool) {
	return func(k string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == k {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func TestFlagBeatsEnvironmentBeatsFileBeatsDefault(t *testing.T) {
	path := write(t, "log-level: debug\nexpect: 5\njoin: [a, b]\n")
	f := flagSet(path)
	if err := f.Parse([]string{"--log-level", "warn"}); err != nil {
		t.Fatal(err)
	}
	o, err := Resolve(f, source(env("TIDEMARK_EXPECT", "3", "TIDEMARK_LOG_LEVEL", "trace")))
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"log-level": "warn flag", "expect": "3 env TIDEMARK_EXPECT",
		"join": "[a,b] file " + path} {
		if got := f.Lookup(flag).Value.String() + " " + o[flag]; got != want {
			t.Errorf("%s: %q, want %q", flag, got, want)
		}
	}
}

func TestErrorsNameTheKey(t *testing.T) {
	for _, c := range []struct{ file, env, want string }{
		{"logg-level: debug", "", `unknown key "logg-level"; did you mean log-level?; known keys: expect, join, log-level`},
		{"Log_Level: debug", "", `did you mean log-level?`},
		{"xyzzyxyzzy: 1", "", `unknown key "xyzzyxyzzy"; known keys`},
		{"manager: {expekt: 3}", "", `manager: unknown key "expekt"; did you mean expect?`},
		{"indexer: {scann: x}", "", `indexer: unknown key "scann"; did you mean scan?`},
		{"indexr: {scan: x}", "", `unknown section "indexr"; did you mean indexer?`},
		{"config: x", "", `unknown key "config"`},
		{"expect: 1\n---\nexpect: 2", "", "several documents"},
		{"expect: {a: b}", "", `unknown section "expect"`},
		{"expect: many", "", `key "expect": "many": want a whole number up to 9223372036854775807`},
		{"", "x", `environment TIDEMARK_EXPECT: "x": want a whole number up to 9223372036854775807`},
		{"{", "", "c.yaml"},
	} {
		lookup := env()
		if c.env != "" {
			lookup = env("TIDEMARK_EXPECT", c.env)
		}
		if _, err := Resolve(flagSet(write(t, c.file)), source(lookup)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.file, err, c.want)
		}
	}
	if _, err := Resolve(flagSet("/does/not/exist"), source(env())); err == nil {
		t.Error("a missing file passes")
	}
}

// TestSections checks that a role's section takes precedence over the top level, and that other roles' sections do
// not apply.
func TestSections(t *testing.T) {
	path := write(t, "log-level: warn\nexpect: 2\nmanager:\n  expect: 3\nindexer:\n  log-level: trace\n  scan: a:1\n")
	f := flagSet(path)
	o, err := Resolve(f, source(env()))
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"log-level": "warn", "expect": "3"} {
		if got := f.Lookup(flag).Value.String(); got != want || o[flag] != "file "+path {
			t.Errorf("%s is %s from %s, want %s", flag, got, o[flag], want)
		}
	}
	if _, err := Resolve(flagSet(write(t, "# nothing\n")), source(env())); err != nil {
		t.Error(err)
	}
}

func TestSettings(t *testing.T) {
	f := flagSet("")
	f.String("kv-password", "", "")
	f.String("kv-password-file", "", "")
	f.Int("bad-token", 0, "")
	o, err := Resolve(f, source(env("TIDEMARK_KV_PASSWORD", "hunter2", "TIDEMARK_KV_PASSWORD_FILE", "/p", "TIDEMARK_JOIN",
		"a,b")))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range Settings(f, o, FileFlag) {
		got[s.Key] = s.Value + " from " + s.Origin
	}
	for key, want := range map[string]string{"kv-password": Redacted + " from env TIDEMARK_KV_PASSWORD",
		"kv-password-file": "/p from env TIDEMARK_KV_PASSWORD_FILE",
		"join":             "a,b from env TIDEMARK_JOIN", "expect": "1 from default"} {
		if got[key] != want {
			t.Errorf("%s: %s, want %s", key, got[key], want)
		}
	}
	if _, ok := got[FileFlag]; ok {
		t.Error("a skipped flag is shown")
	}
	if _, err := Resolve(f, source(env("TIDEMARK_BAD_TOKEN", "hunter2"))); err == nil ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an error shows a secret: %v", err)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"bootstrap-expect", "join", "log-level", "rest", "raft", "data"}
	for word, want := range map[string]string{"rst": "rest", "loglevel": "log-level", "bootstrap": "bootstrap-expect",
		"jion": "join", "zzzz": "", "": "", "x": ""} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
