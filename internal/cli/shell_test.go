package cli

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestShellWords(t *testing.T) {
	for line, want := range map[string][]string{
		`index list`:                                   {"index", "list"},
		`tidemark index list`:                          {"index", "list"},
		`index scan w/i --equal '["FR", "a b"]'`:       {"index", "scan", "w/i", "--equal", `["FR", "a b"]`},
		`index scan w/i --equal "[\"FR\"]"`:            {"index", "scan", "w/i", "--equal", `["FR"]`},
		`index scan w/i --equal '["$HOME"]' --limit 1`: {"index", "scan", "w/i", "--equal", `["$HOME"]`, "--limit", "1"},
	} {
		if got, err := splitWords(line); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
	for line, want := range map[string]string{
		`index scan '["FR`: "invalid command line",
		`index list | wc`:  "at byte 12",
		`index list; exit`: "at byte 11",
		`index list &`:     "at byte 12",
	} {
		if got, err := splitWords(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %s", line, got, err, want)
		}
	}
}

// TestShellSettings checks that the shell's flags apply to lines that do not set them, and that credentials of one
// cluster are not sent to another.
func TestShellSettings(t *testing.T) {
	sh := &shell{set: map[string]string{"server": "a:1,b:2", "user": "u", "output": "json"}}
	for line, want := range map[string]string{
		"index list":                         "index list --output=json --server=a:1,b:2 --user=u",
		"index list --output table":          "index list --server=a:1,b:2 --user=u --output table",
		"index list -o table":                "index list --server=a:1,b:2 --user=u -o table",
		"index --server c:3 list":            "index list --output=json --server c:3",
		"index list --context=other":         "index list --output=json --context=other",
		"index list --data folder":           "index list --output=json --data folder",
		"index drop w/i -- --server":         "index drop --output=json --server=a:1,b:2 --user=u w/i -- --server",
		"version":                            "version --output=json",
		"unknown command":                    "unknown command",
		"kv get --server k:1 bucket key":     "kv get --output=json --server k:1 bucket key",
		"index scan w/i --limit 3 --user me": "index scan --output=json --server=a:1,b:2 w/i --limit 3 --user me",
	} {
		args, err := splitWords(line)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(sh.withSettings(newRoot(Streams{}), args), " "); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// TestShellSecrets checks that a secret that the shell has read is used only for lines about its cluster and user.
func TestShellSecrets(t *testing.T) {
	t.Setenv(tokenEnv, "of another user")
	sh := &shell{secrets: map[string]string{passwordEnv: "typed", tokenEnv: ""}}
	for line, want := range map[string]string{
		"index list":                   "typed",
		"index list --output json":     "typed",
		"index list -- --server":       "typed",
		"index list --context test":    "",
		"index list --server=c:3":      "",
		"index --data d list":          "",
		"index list --user carol":      "",
		"index list --token-file=file": "",
	} {
		args, err := splitWords(line)
		if err != nil {
			t.Fatal(err)
		}
		restore := sh.setSecrets(args)
		got := os.Getenv(passwordEnv)
		restore()
		if got != want || os.Getenv(passwordEnv) != "" || os.Getenv(tokenEnv) != "of another user" {
			t.Errorf("%s: %q, want %q; then %q", line, got, want, os.Getenv(passwordEnv))
		}
	}
}

// TestShellContext checks that the context at the start of the shell applies until it ends, even if another one is
// chosen.
func TestShellContext(t *testing.T) {
	t.Setenv(contextsEnv, filepath.Join(t.TempDir(), "contexts.yaml"))
	for _, args := range [][]string{{"context", "add", "prod", "--server", "127.0.0.1:1"},
		{"context", "add", "test", "--server", "127.0.0.1:2"}, {"context", "use", "prod"}} {
		root := newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
		root.SetArgs(args)
		if err := root.Execute(); err != nil {
			t.Fatal(args, err)
		}
	}
	lines := strings.NewReader("context use test\nindex list --timeout 10ms\n")
	root := newRoot(Streams{In: lines, Out: io.Discard, Err: io.Discard})
	root.SetArgs([]string{"shell"})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("%v, want no answer from 127.0.0.1:1", err)
	}
}

func TestShellCompletes(t *testing.T) {
	sh := &shell{set: map[string]string{"timeout": "1s"}}
	for typed, want := range map[string]string{
		"ver":                        "version ",
		"cr":                         "CREATE INDEX ",
		"cluster stat":               "status ",
		"index scan --consist":       "--consistency ",
		"cluster status --output js": "json jsonl",
		"exi":                        "exit ",
		"index scan 'a":              "",
	} {
		head, found, tail := sh.words(typed+" rest", len([]rune(typed)))
		if got := strings.Join(found, " "); got != want || tail != " rest" || !strings.HasPrefix(typed, head) {
			t.Errorf("%s: %q after %q, before %q, want %q", typed, got, head, tail, want)
		}
	}
}
