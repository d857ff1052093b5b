package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

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
	o, err := Resolve(f, env("TIDEMARK_EXPECT", "3", "TIDEMARK_LOG_LEVEL", "trace"))
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"log-level": "warn flag", "expect": "3 env TIDEMARK_EXPECT", "join": "[a,b] file " + path} {
		if got := f.Lookup(flag).Value.String() + " " + o[flag]; got != want {
			t.Errorf("%s: %q, want %q", flag, got, want)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct{ file, env, want string }{
		{"logg-level: debug", "", `unknown key "logg-level"; known: expect, join, log-level`},
		{"expect: many", "", `key "expect"`},
		{"", "x", "environment TIDEMARK_EXPECT"},
		{"{", "", "c.yaml"},
	} {
		lookup := env()
		if c.env != "" {
			lookup = env("TIDEMARK_EXPECT", c.env)
		}
		if _, err := Resolve(flagSet(write(t, c.file)), lookup); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.file, err, c.want)
		}
	}
	if _, err := Resolve(flagSet("/does/not/exist"), env()); err == nil {
		t.Error("a missing file passes")
	}
}
