package cli

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"tidemark/internal/rpc"
)

// fake answers as a manager does; it remembers the last request's body and method.
type fake struct{ method, path, body string }

const (
	oneIndex = `{"id":"7","name":"n","bucket":"b","state":"maintenance","progress":100,"definition":"CREATE INDEX n ON b(a)","items":3,"modified_cas":9}`
	result   = `{"results":[{"id":"7","name":"n","bucket":"b","state":"pending","cas":4}]}`
	end      = `{"end":true,"rows":2,"timestamp":{"hash":"11"}}`
)

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	f.method, f.path, f.body = r.Method, r.URL.Path, string(b)
	refuse := func(status int, code string) {
		rpc.WriteProblem(w, rpc.NewProblem(status, code, "because of %s", code))
	}
	switch {
	case strings.Contains(f.path+f.body, "notfound"):
		refuse(404, "UNKNOWN_INDEX")
	case strings.Contains(f.path+f.body, "conflict"):
		refuse(409, "NAME_EXISTS")
	case strings.Contains(f.path+f.body, "mismatch"):
		refuse(412, "CAS_MISMATCH")
	case strings.Contains(f.path+f.body, "noprojector"):
		refuse(503, "NO_PROJECTOR")
	case strings.Contains(f.path+f.body, "noleader"):
		refuse(503, rpc.CodeNoLeader)
	case strings.Contains(f.path+f.body, "unknownoutcome"):
		refuse(504, "OUTCOME_UNKNOWN")
	case strings.Contains(f.path+f.body, "bad"):
		refuse(400, "SYNTAX_ERROR")
	case strings.Contains(f.path, "cut:scan"):
		fmt.Fprintln(w, `{"key":["x",1],"id":"d1"}`)
	case strings.HasSuffix(f.path, ":scan"):
		fmt.Fprintf(w, "%s\n%s\n%s\n", `{"key":["x",1],"id":"d1"}`, `{"key":["y",null],"id":"d2"}`, end)
	case strings.HasSuffix(f.path, ":count"):
		fmt.Fprint(w, `{"count":2,"timestamp":{"hash":"11"}}`)
	case f.path == "/v1/indexes" && f.method == "GET":
		fmt.Fprintf(w, `{"cas":9,"indexes":[%s]}`, oneIndex)
	case f.path == "/v1/statements", f.path == "/v1/indexes:build":
		fmt.Fprint(w, result)
	case f.path == "/v1/status":
		fmt.Fprint(w, `{"cluster_id":"c1","leader":{"id":"m1"},"term":2,"cas":9,"managers":[{"id":"m1","rest":"http://x","role":"leader","alive":true},{"id":"m2","role":"voter"}],"projectors":[],"indexers":[],"buckets":[]}`)
	default:
		fmt.Fprint(w, oneIndex)
	}
}

func run(t *testing.T, in string, args ...string) (code int, out, talk string) {
	t.Helper()
	var o, e bytes.Buffer
	code = Main(args, Streams{In: strings.NewReader(in), Out: &o, Err: &e})
	return code, o.String(), e.String()
}

// TestCommands: exit code, data on standard output, talk on standard error.
func TestCommands(t *testing.T) {
	f := &fake{}
	s := httptest.NewServer(f)
	defer s.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	dir := t.TempDir()
	sql := filepath.Join(dir, "s.sql")
	if err := os.WriteFile(sql, []byte("DROP INDEX n ON b"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args      string // separated by |
		in        string
		code      int
		out, talk string // contained
		body      string // contained in what was sent
	}{
		{args: "version", out: "tidemark "},
		{args: "--help", out: "tidemark up --sample"},
		{args: "index|list", out: "b       n     ready"},
		{args: "index|list|--output|jsonl", out: `"modified_cas":9}` + "\n"},
		{args: "index|list|--output|json", out: "  \"cas\": 9,\n"},
		{args: "index|describe|b/n", out: "CREATE INDEX n ON b(a)"},
		{args: "index|describe|7|--output|jsonl", out: `{"id":"7"`},
		{args: "index|create|b|n|--key|a|--key|c DESC|--where|x = 1", out: "ready", body: `[{"expr":"a"},{"expr":"c","desc":true}]`},
		{args: "index|create|b|n|--key|a|--no-wait|--defer-build", out: "ID", body: `"defer_build":true`},
		{args: "index|build|b|n", out: "pending", talk: "building: 100 %"},
		{args: "index|build|b|n|--no-wait|--output|jsonl", out: `"cas":4`, body: `"names":["n"]`},
		{args: "index|drop|b/n", talk: "dropped b/n"},
		{args: "index|drop|b/notfound", code: ExitNotFound, talk: "UNKNOWN_INDEX"},
		{args: "index|drop|b/notfound|--if-exists", talk: "there is no b/notfound"},
		{args: "index|drop|b/mismatch|--if-match|3", code: ExitConflict, talk: "CAS_MISMATCH"},
		{args: "index|scan|b/n", out: "\"y\", null  d2\n", talk: "2 rows at timestamp 11"},
		{args: "index|scan|b/n|--output|jsonl", out: `{"key":["y",null],"id":"d2"}` + "\n"},
		{args: `index|scan|b/n|--equal|["FR"]|--limit|5|--reverse|--consistency|session`, out: "d1", body: `"limit":5,"consistency":"session","equal":["FR"],"reverse":true`},
		{args: `index|scan|b/n|--low|[1]|--high|[2]|--inclusion|low`, out: "d1", body: `"range":{"low":[1],"high":[2],"inclusion":"low"}`},
		{args: "index|scan|b/cut", code: ExitFailed, out: "d1", talk: "cut off"},
		{args: "index|scan|b/n|--equal|FR", code: ExitUsage, talk: "JSON array"},
		{args: "index|count|b/n", out: "2\n"},
		{args: "index|count|b/n|--output|jsonl", out: `{"count":2,`},
		{args: "cluster|status", out: "voter, not seen"},
		{args: "cluster|status|--output|json", out: `"cluster_id": "c1"`},
		{args: "sql|CREATE INDEX n ON b(a)|--no-wait", out: "pending"},
		{args: "sql|--file|" + sql + "|--no-wait", out: "pending", body: "DROP INDEX n ON b"},
		{args: "sql|--no-wait", in: "BUILD INDEX ON b(n)", out: "pending", body: "BUILD INDEX"},
		{args: "sql", code: ExitUsage, talk: "no statement"},
		{args: "sql|--file|/nowhere/x", code: ExitUsage, talk: "/nowhere/x"},
		{args: "sql|bad", code: ExitFailed, talk: "SYNTAX_ERROR"},
		{args: "sql|conflict", code: ExitConflict, talk: "because of NAME_EXISTS"},
		{args: "sql|noprojector", code: ExitUnavailable, talk: "NO_PROJECTOR"},
		{args: "sql|noleader|--timeout|200ms", code: ExitUnavailable, talk: "NO_LEADER"},
		{args: "sql|unknownoutcome|--timeout|200ms", code: ExitTimeout, talk: "OUTCOME_UNKNOWN"},
		{args: "index|list|--server|" + gone.Addr().String() + "|--timeout|200ms", code: ExitUnavailable, talk: "no server answered"},
		{args: "index|list|--server|ftp://x", code: ExitUsage, talk: "http://"},
		{args: "index|list|--output|xml", code: ExitUsage, talk: "table, json or jsonl"},
		{args: "index|list|--timeout|0s", code: ExitUsage, talk: "--timeout"},
		{args: "index|list|--data|" + dir, code: ExitUsage, talk: "no running `tidemark up`"},
		{args: "index|list|x", code: ExitUsage, talk: `got "x"`},
		{args: "index|list|--wat", code: ExitUsage, talk: "tidemark index list --help"},
		{args: "index|describe|n", code: ExitUsage, talk: "bucket/name"},
		{args: "index|create|b|n|--partitions|-1", code: ExitUsage, talk: "--partitions"},
		{args: "index|nothing", code: ExitUsage, talk: "nothing"},
		{args: "nothing", code: ExitUsage, talk: "nothing"},
		{args: "manager", code: ExitUsage, talk: "--data"},
		{args: "indexer", code: ExitUsage, talk: "--data"},
		{args: "projector", code: ExitUsage, talk: "--managers"},
		{args: "kv", code: ExitUsage, talk: "kv load"},
		{args: "kv|get|x", code: ExitUsage, talk: "--bucket"},
		{args: "kv|set|k|{a|--data|" + dir, code: ExitUsage, talk: "no JSON"},
		{args: "kv|load|/nowhere/x", code: ExitUsage, talk: "/nowhere/x"},
		{args: "up|--managers|0", code: ExitFailed, talk: "--managers 0"},
		{args: "up|--log-level|loud|--data|" + dir + "|--managers|99", code: ExitFailed, talk: "99"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Setenv("TIDEMARK_SERVER", s.URL)
			*f = fake{}
			sent := &f.body
			code, out, talk := run(t, tc.in, strings.Split(tc.args, "|")...)
			if code != tc.code || !strings.Contains(out, tc.out) || !strings.Contains(talk, tc.talk) || tc.out == "" && out != "" {
				t.Errorf("exit %d, want %d\nout: %s\nwant: %s\nerr: %s\nwant: %s", code, tc.code, out, tc.out, talk, tc.talk)
			}
			if tc.body != "" && f.method != "GET" && !strings.Contains(*sent, tc.body) {
				t.Errorf("sent %s, want %s", *sent, tc.body)
			}
		})
	}
}

// TestWhereAValueComesFrom: the command line wins over the environment, that over the file, that over the default.
func TestWhereAValueComesFrom(t *testing.T) {
	f := &fake{}
	s := httptest.NewServer(f)
	defer s.Close()
	t.Setenv("TIDEMARK_SERVER", s.URL)
	t.Setenv("TIDEMARK_OUTPUT", "jsonl")
	if _, out, _ := run(t, "", "index", "list"); !strings.HasPrefix(out, `{"id"`) {
		t.Errorf("the environment was not heard: %s", out)
	}
	if _, out, _ := run(t, "", "index", "list", "--output", "table"); !strings.HasPrefix(out, "ID") {
		t.Errorf("the command line does not win: %s", out)
	}
	t.Setenv("TIDEMARK_TIMEOUT", "soon")
	if code, _, talk := run(t, "", "index", "list"); code != ExitUsage || !strings.Contains(talk, "TIDEMARK_TIMEOUT") {
		t.Errorf("exit %d: %s", code, talk)
	}
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte("bootstrap-expect: 3\nrst: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, talk := run(t, "", "manager", "--config", file); code != ExitUsage || !strings.Contains(talk, `unknown key "rst"`) {
		t.Errorf("exit %d: %s", code, talk)
	}
}

// TestEveryCommandHelps: a line on what it does, and an example for what people type.
func TestEveryCommandHelps(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s does not say what it does", c.CommandPath())
		}
		if c.Runnable() && !c.HasSubCommands() && c.Name() != "version" && c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}))
}

func TestBar(t *testing.T) {
	var b bytes.Buffer
	bar := newBar(&b, "loading")
	for _, p := range []float64{0, 3, 9, 31, 30, 99, 100, 100} {
		bar.set(p)
	}
	bar.done(true)
	if want := "loading: 0 %\nloading: 31 %\nloading: 99 %\nloading: 100 %\n"; b.String() != want {
		t.Errorf("%q", b.String())
	}
}
