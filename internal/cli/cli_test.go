package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/ports"
)

// fake answers like a manager; it keeps the body of the last writing request. A command that waits uses several
// connections at once, and its last request may still be in flight when it returns.
type fake struct {
	mu    sync.Mutex
	wrote string
}

// sent waits for every request that s is still answering, and returns the last body that was written.
func (f *fake) sent(s *httptest.Server) string {
	s.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wrote
}

// allOfIt ends the arguments of commands that use all of their --timeout: they run in parallel, and get an answer
// before it is over even on a busy machine.
const allOfIt = "|--timeout|5s"

const (
	oneIndex = `{"id":"7","name":"n","bucket":"b","state":"ready","progress":100,"definition":"CREATE INDEX n ON b(a)","items":3,"modified_cas":9,"auto_split":true}`
	result   = `{"results":[{"id":"7","name":"n","bucket":"b","state":"pending","cas":4}]}`
	end      = `{"end":true,"rows":2,"timestamp":{"hash":"11"}}`
)

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	method, path, body := r.Method, r.URL.Path, string(b)
	if method != http.MethodGet {
		f.mu.Lock()
		f.wrote = body
		f.mu.Unlock()
	}
	refuse := func(status int, code errcode.Code) {
		rpc.WriteProblem(w, rpc.NewProblem(status, code, "because of %s", code))
	}
	switch {
	case strings.Contains(path+body, "notfound"):
		refuse(404, "UNKNOWN_INDEX")
	case strings.Contains(path+body, "conflict"):
		refuse(409, "NAME_EXISTS")
	case strings.Contains(path+body, "mismatch"):
		refuse(412, "CAS_MISMATCH")
	case strings.Contains(path+body, "noprojector"):
		refuse(503, "NO_PROJECTOR")
	case strings.Contains(path+body, "noleader"):
		refuse(503, errcode.NoLeader)
	case strings.Contains(path+body, "unknownoutcome"):
		refuse(504, "OUTCOME_UNKNOWN")
	case strings.Contains(path+body, "bad"):
		refuse(400, "SYNTAX_ERROR")
	case strings.Contains(path, "cut:scan"):
		fmt.Fprintf(w, "%s\n%s\n", `{"key":["x",1],"id":"d1"}`, `{"place":""}`) // an empty place: it cannot be continued
	case strings.HasSuffix(path, ":scan"):
		fmt.Fprintf(w, "%s\n%s\n%s\n", `{"key":["x",1],"id":"d1"}`, `{"key":["y",null],"id":"d2"}`, end)
	case strings.HasSuffix(path, ":count"):
		fmt.Fprint(w, `{"count":2,"timestamp":{"hash":"11"}}`)
	case path == "/v1/indexes" && method == "GET":
		fmt.Fprintf(w, `{"cas":9,"indexes":[%s]}`, oneIndex)
	case path == "/v1/events":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "id: 5@c.1\nevent: snapshot\ndata: {\"reason\":\"start\",\"detail\":\"nothing was "+
			"seen\",\"cas\":5,\"indexes\":[{\"id\":\"1\",\"state\":\"pending\"}],\"managers\":[]}\n\n"+
			"id: 6@c.1\nevent: change\ndata: "+
			"{\"cas\":6,\"events\":[{\"cas\":6,\"kind\":\"index\",\"name\":\"n\",\"bucket\":\"b\",\"was\":\"pending\",\"definition\":{\"id\":\"1\",\"state\":\"backfill\"}}]}\n\n")
	case path == "/v1/statements", path == "/v1/indexes:build":
		fmt.Fprint(w, result)
	case path == "/v1/status":
		fmt.Fprint(w, `{"cluster_id":"c1","leader":{"id":"m1"},"verdict":"degraded","reasons":["manager m2 does not answer"],"term":2,"cas":9,"managers":[{"id":"m1","rest":"http://x","role":"leader","alive":true},{"id":"m2","role":"voter"}],"projectors":[],"indexers":[],"buckets":[]}`)
	default:
		fmt.Fprint(w, oneIndex)
	}
}

func run(t testing.TB, in string, args ...string) (code int, out, talk string) {
	t.Helper()
	var o, e bytes.Buffer
	code = Main(args, Streams{In: strings.NewReader(in), Out: &o, Err: &e})
	return code, o.String(), e.String()
}

// TestCommands checks exit codes, data on standard output, and messages on standard error.
func TestCommands(t *testing.T) {
	gone := ports.Addr(t)
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
		{args: "index|list|--output|jsonl", out: `"modified_cas":9,"auto_split":true}` + "\n"},
		{args: "index|list|--output|json", out: "  \"cas\": 9,\n"},
		{args: "index|describe|b/n", out: "CREATE INDEX n ON b(a)"},
		{args: "index|describe|7|--output|jsonl", out: `{"id":"7"`},
		{args: "index|create|b|n|--key|a|--key|c DESC|--where|x = 1", out: "ready", body: `[{"expr":"a"},{"expr":"c","desc":true}]`},
		{args: "index|create|b|n|--key|a|--no-wait|--defer-build", out: "ID", body: `"defer_build":true`},
		{args: "index|build|b|n", out: "ready", talk: "building: 100 %"},
		{args: "index|build|b|n|--no-wait|--output|jsonl", out: `"cas":4`, body: `"names":["n"]`},
		{args: "index|drop|b/n", talk: "dropped b/n"},
		{args: "index|drop|b/notfound", code: errcode.ExitNotFound, talk: "UNKNOWN_INDEX"},
		{args: "index|drop|b/notfound|--if-exists", talk: "there is no b/notfound"},
		{args: "index|drop|b/mismatch|--if-match|3", code: errcode.ExitConflict, talk: "CAS_MISMATCH"},
		{args: "index|scan|b/n", out: "\"y\", null  d2\n", talk: "2 rows at timestamp 11"},
		{args: "scan|b/n|--limit|5|--reverse", out: "\"y\", null  d2\n", body: `"limit":5,"consistency":"any","reverse":true`},
		{args: "scan|b|n", out: "\"y\", null  d2\n"},
		{args: "scan|7", out: "\"y\", null  d2\n"},
		{args: "scan", out: "tidemark scan [command]"},
		{args: "cluster|backup", code: errcode.ExitUsage, talk: "needs a file, or - for standard output"},
		{args: "cluster|backup|verify|-", in: "x", code: errcode.ExitFailed, talk: "BACKUP_UNUSABLE: standard input: "},
		{args: "cluster|backup|verify|" + sql, code: errcode.ExitFailed, talk: "BACKUP_UNUSABLE: " + sql + ": "},
		{args: "cluster|backup|verify|" + dir, code: errcode.ExitFailed, talk: "is a directory"},
		{args: "cluster|backup|verify|" + dir + "/none", code: errcode.ExitUsage, talk: "no such file"},
		{args: "scan|lst", code: errcode.ExitUsage, talk: "did you mean list?"},
		{args: "scan|b/n|b/m", code: errcode.ExitUsage, talk: "takes one index, BUCKET/NAME or ID"},
		{args: "shell", in: "scan b/n\nscan b n --limit 1\nindex scan b n\n", out: "d2\nKEY"},
		{args: "index|scan|b|n", out: "\"y\", null  d2\n"},
		{args: "index|count|b|n", out: "2\n"},
		{args: "index|describe|b|n", out: "CREATE INDEX n ON b(a)"},
		{args: "index|scan|b/n|--output|jsonl", out: `{"key":["y",null],"id":"d2"}` + "\n"},
		{args: `index|scan|b/n|--equal|["FR"]|--limit|5|--reverse|--consistency|session`, out: "d1", body: `"limit":5,"consistency":"session","equal":["FR"],"reverse":true`},
		{args: `index|scan|b/n|--low|[1]|--high|[2]|--inclusion|low`, out: "d1", body: `"range":{"low":[1],"high":[2],"inclusion":"low"}`},
		{args: `index|scan|b/n|--low|[2]|--high|[1]`, out: "d1", body: `"low":[2]`, talk: "\n--low [2] --high [1] --inclusion both selects nothing"},
		{args: `index|scan|b/n|--range|{"low":[1]}|--range|{"low":["z"],"high":["a"]}`, out: "d1", talk: `11` + "\n" + `--range {"low":["z"],"high":["a"]} selects`},
		{args: `index|count|b/n|--low|[1]|--high|[1]|--inclusion|low`, out: "2\n", talk: "--inclusion low selects nothing"},
		{args: `index|count|b/n|--where|{"component":1,"low":2,"high":1}`, out: "2\n", talk: `--where {"component":1,"low":2,"high":1} selects nothing`},
		{args: "index|scan|b/cut", code: errcode.ExitFailed, out: "d1", talk: "cut off"},
		{args: "index|scan|b/n|--equal|FR", code: errcode.ExitUsage, talk: "JSON array"},
		{args: "index|count|b/n", out: "2\n"},
		{args: "index|count|b/n|--output|jsonl", out: `{"count":2,`},
		{args: "watch|--count|1", out: "cas 6 index b/n pending → backfill\n"},
		{args: "watch|--count|1|--output|json|--kinds|index", out: `"was":"pending"`},
		{args: "watch" + allOfIt, out: "cas 5 snapshot: nothing was seen (0 managers, 1 index)"},
		{args: "watch|--server|" + gone + allOfIt, code: errcode.ExitUnavailable, talk: "no answer in time"},
		{args: "watch|--server|ftp://x", code: errcode.ExitUsage, talk: "http://"},
		{args: "cluster|status", out: "voter, not seen"},
		{args: "cluster|status|--output|json", out: `"cluster_id": "c1"`},
		{args: "sql|CREATE INDEX n ON b(a)|--no-wait", out: "pending"},
		{args: "sql|--file|" + sql + "|--no-wait", out: "pending", body: "DROP INDEX n ON b"},
		{args: "sql|--no-wait", in: "BUILD INDEX ON b(n)", out: "pending", body: "BUILD INDEX"},
		{args: "sql", code: errcode.ExitUsage, talk: "no statement"},
		{args: "sql|--file|/nowhere/x", code: errcode.ExitUsage, talk: "/nowhere/x"},
		{args: "sql|bad", code: errcode.ExitFailed, talk: "SYNTAX_ERROR"},
		{args: "sql|conflict", code: errcode.ExitConflict, talk: "because of NAME_EXISTS"},
		{args: "sql|noprojector", code: errcode.ExitUnavailable, talk: "NO_PROJECTOR"},
		{args: "sql|noleader" + allOfIt, code: errcode.ExitUnavailable, talk: "NO_LEADER"},
		{args: "sql|unknownoutcome" + allOfIt, code: errcode.ExitTimeout, talk: "OUTCOME_UNKNOWN"},
		{args: "index|list|--server|" + gone + allOfIt, code: errcode.ExitUnavailable,
			talk: "no answer in time"},
		{args: "index|list|--server|ftp://x", code: errcode.ExitUsage, talk: "http://"},
		{args: "index|list|--output|xml", code: errcode.ExitUsage, talk: `--output "xml": want table, json, jsonl, yaml or csv; see tidemark index list --help`},
		{args: "index|list|--timeout|0s", code: errcode.ExitUsage, talk: "--timeout"},
		{args: "index|list|--data|" + dir, code: errcode.ExitUsage, talk: "no running `tidemark up`"},
		{args: "index|list|x", code: errcode.ExitUsage, talk: `got "x"`},
		{args: "index|list|--wat", code: errcode.ExitUsage, talk: "tidemark index list --help"},
		{args: "index|describe|n", code: errcode.ExitUsage, talk: "bucket/name"},
		{args: "index|create|b|n|--partitions|-1", code: errcode.ExitUsage, talk: "--partitions"},
		{args: "index|nothing", code: errcode.ExitUsage, talk: "nothing"},
		{args: "nothing", code: errcode.ExitUsage, talk: "nothing"},
		{args: "manager", code: errcode.ExitUsage, talk: "--data"},
		{args: "indexer", code: errcode.ExitUsage, talk: "--data"},
		{args: "projector", code: errcode.ExitUsage, talk: "--managers"},
		{args: "kv", code: errcode.ExitUsage, talk: "kv load"},
		{args: "kv|get|x", code: errcode.ExitUsage, talk: "--bucket"},
		{args: "kv|set|k|{a|--data|" + dir, code: errcode.ExitUsage, talk: "not JSON"},
		{args: "kv|load|/nowhere/x", code: errcode.ExitUsage, talk: "/nowhere/x"},
		{args: "up|--managers|0", code: errcode.ExitUsage, talk: "--managers 0"},
		{args: "up|--managers|99|--data|" + dir, code: errcode.ExitUsage, talk: "--managers 99: want 1 to 16"},
		{args: "up|--log-level|loud|--data|" + dir, code: errcode.ExitUsage, talk: "loud"},
		{args: "version|--output|json", out: "\"version\": \"0."},
		{args: "indx", code: errcode.ExitUsage, talk: "did you mean index?"},
		{args: "index|lst", code: errcode.ExitUsage, talk: "did you mean list?"},
		{args: "index|create|b|n", code: errcode.ExitUsage, talk: "--primary"},
		{args: "index|create|b|n|--key|a|--print|--replicas|1", out: "CREATE INDEX n ON b(a) WITH {\"num_replica\":1};\n"},
		{args: "index|create|b|n|--key|a b|--print", code: errcode.ExitFailed, talk: "^"},
		{args: "index|create|b|n|--key|a) ; DROP INDEX x ON b (a|--print", code: errcode.ExitFailed, talk: "line 1"},
		{args: "index|create|--file|-|--print", in: `[{"name":"n","bucket":"b","keys":[{"expr":"a"}],"defer_build":true},{"name":"p","bucket":"b","is_primary":true}]`,
			out: "CREATE INDEX n ON b(a) WITH {\"defer_build\":true};\nCREATE PRIMARY INDEX p ON b;\n"},
		{args: "index|create|--file|-", in: `{"name":"n","bucket":"b","key":[]}`, code: errcode.ExitUsage, talk: `unknown field "key"`},
		{args: "index|create|--file|-", in: ` `, code: errcode.ExitUsage, talk: "the file is empty"},
		{args: "index|create|--file|-|--primary", code: errcode.ExitUsage, talk: "omit --primary"},
		{args: "index|create|--file|-|b|n", code: errcode.ExitUsage, talk: "omit b n"},
		{args: "index|create|--file|-|--no-wait", in: `{"name":"n","bucket":"b","is_primary":true} {"name":"m","bucket":"b","is_primary":true}`, out: "ready", body: `"name":"m"`},
		{args: "index|build|--file|-|--no-wait", in: `{"bucket":"b","names":["n","m"]}`, out: "pending", body: `["n","m"]`},
		{args: "index|build|--file|-|--dry-run", in: `{"bucket":"b","names":[]}`, talk: "there is nothing to do", out: "BUCKET"},
		{args: "sql|--dry-run|DROP INDEX n ON b", code: errcode.ExitFailed, talk: "the statements WERE executed"},
		{args: "index|build|b|n|m|--print", out: "BUILD INDEX ON b(n, m);\n"},
		{args: "index|build|b|--all", talk: "bucket b has no deferred index", out: "ID"},
		{args: "index|build|b", code: errcode.ExitUsage, talk: "--all"},
		{args: "index|build|b|--all|--file|x", code: errcode.ExitUsage, talk: "omit the arguments"},
		{args: "index|drop|b/n|b/m", code: errcode.ExitUsage, talk: "drop 2 indexes: b/n, b/m; confirm with --yes"},
		{args: "index|drop|b/n|b/m|--yes|--output|jsonl", out: `{"index":"b/m","dropped":true}`, talk: "dropped b/m"},
		{args: "index|drop|b/n|b/notfound|--yes", code: errcode.ExitNotFound, talk: "b/notfound (dropped before it: b/n)"},
		{args: "index|drop|b/n|b/m|--dry-run", code: errcode.ExitFailed, talk: "the statements WERE executed",
			body: `{"statement":"DROP INDEX n ON b;\nDROP INDEX n ON b"}`},
		{args: "index|drop|b/n|b/m|--if-match|3", code: errcode.ExitUsage, talk: "one index"},
		{args: "index|drop", code: errcode.ExitUsage, talk: "once or more"},
		{args: "index|scan|b/n|--limit|-1", code: errcode.ExitUsage, talk: "--limit -1"},
		{args: "index|scan|b/n|--limit|99999999999999999999", code: errcode.ExitUsage,
			talk: `--limit "99999999999999999999": want a whole number up to 9223372036854775807; see tidemark index scan --help`},
		{args: "index|drop|b/n|--if-match|-1", code: errcode.ExitUsage, talk: `--if-match "-1": want a whole number from 0 to 18446744073709551615; see`},
		{args: "index|list|--timeout|30", code: errcode.ExitUsage, talk: `--timeout "30": want a time with its unit, as 300ms, 30s or 1h30m; see`},
		{args: "index|scan|b/n|--distinct=perhaps", code: errcode.ExitUsage, talk: `--distinct "perhaps": want true or false; see`},
		{args: `index|list|--server|a"b`, code: errcode.ExitUsage, talk: `--server "a\"b": want a list separated by commas`},
		{args: "indexer|--memory-quota|much", code: errcode.ExitUsage, talk: `"much": want a whole number of bytes, or one with a unit`},
		{args: "index|scan|b/n|--project|[99999999999999999999]", code: errcode.ExitUsage, talk: `it is 99999999999999999999, want a whole number up to 9223372036854775807, at line 1`},
		{args: `index|scan|b/n|--token|{"vbucket":70000,"vbuuid":"1","seqno":1}`, code: errcode.ExitUsage, talk: `field "vbucket" is 70000, want a whole number from 0 to 65535, at line 1`},
		{args: `index|scan|b/n|--token|{"vbucket":1,"vbuuid":1,"seqno":1}`, code: errcode.ExitUsage, talk: `not a string of decimal digits, up to 18446744073709551615`},
		{args: `index|scan|b/n|--range|{"low":1}`, code: errcode.ExitUsage, talk: `field "low" is a number, want an array, at line 1`},
		{args: "index|list|--ddl", out: "CREATE INDEX n ON b(a);\n"},
		{args: "index|list|--ddl|--output|jsonl", out: `{"statement":"CREATE INDEX n ON b(a)"}` + "\n"},
		{args: "index|list|--watch=-1s", code: errcode.ExitUsage, talk: "--watch"},
		{args: "sql|--print|create index n on b(a); drop index m on b", out: "CREATE INDEX n ON b(a);\nDROP INDEX m ON " +
			"b;\n"},
		{args: "sql|--print|CREATE INDEX n ON b(a,, b)", code: errcode.ExitFailed, talk: "^"},
		{args: "cluster|status|--wait" + allOfIt, code: errcode.ExitTimeout, talk: "manager m2 does not answer"},
		{args: "cluster|status|--wait=members" + allOfIt, code: errcode.ExitTimeout, talk: "manager m2 does not answer"},
		{args: "cluster|status|--wait=all", code: errcode.ExitUsage, talk: "want ready or members"},
		{args: "config|show|manager|--log-level|debug", out: "log-level                    debug           flag"},
		{args: "config|show|projector|--output|jsonl", out: `{"key":"id","value":"p1","origin":"default","env":"TIDEMARK_ID"`},
		{args: "config|show|nothing", code: errcode.ExitUsage, talk: "no command"},
		{args: "cluster|leave", code: errcode.ExitUsage, talk: "needs --server"}, // not that of the environment
		{args: "help|exit-codes", out: "6  not finished in time"},
		{args: "help|ports", out: "127.0.0.1:9541"},
		{args: "help|topics", out: "exit-codes"},
		{args: "help|environment", out: "NO_COLOR"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			f := &fake{}
			s := httptest.NewServer(f)
			defer s.Close()
			if strings.HasSuffix(tc.args, allOfIt) {
				t.Parallel() // and so without an environment
				if !strings.Contains(tc.args, "--server") {
					tc.args += "|--server|" + s.URL
				}
			} else {
				t.Setenv("TIDEMARK_SERVER", s.URL)
			}
			code, out, talk := run(t, tc.in, strings.Split(tc.args, "|")...)
			if code != tc.code || !strings.Contains(out, tc.out) || !strings.Contains(talk, tc.talk) || tc.out == "" &&
				out != "" {
				t.Errorf("exit %d, want %d\nout: %s\nwant: %s\nerr: %s\nwant: %s", code, tc.code, out, tc.out, talk, tc.talk)
			}
			if sent := f.sent(s); !strings.Contains(sent, tc.body) {
				t.Errorf("sent %s, want %s", sent, tc.body)
			}
		})
	}
}

// TestValuePrecedence checks the precedence: command line, environment, file, default.
func TestValuePrecedence(t *testing.T) {
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
	if code, _, talk := run(t, "", "index", "list"); code != errcode.ExitUsage ||
		!strings.Contains(talk, "TIDEMARK_TIMEOUT") {
		t.Errorf("exit %d: %s", code, talk)
	}
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte("bootstrap-expect: 3\nrst: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, talk := run(t, "", "manager", "--config", file); code != errcode.ExitUsage || !strings.Contains(talk, `unknown key "rst"`) {
		t.Errorf("exit %d: %s", code, talk)
	}
}

// everyCommand calls do for each command of the tree, except cobra's own.
func everyCommand(do func(c *cobra.Command)) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		do(c)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}))
}

// TestEveryCommandHelps checks that each command has a summary, and examples with existing commands and flags only.
func TestEveryCommandHelps(t *testing.T) {
	root := newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	everyCommand(func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s does not say what it does", c.CommandPath())
		}
		if c.Runnable() && c.HasParent() && c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, line := range strings.Split(strings.ReplaceAll(c.Example, "\\\n", " "), "\n") {
			for _, part := range strings.Split(line, "|") {
				checkExample(t, root, c, strings.TrimSpace(part))
			}
		}
	})
}

// checkExample finds the command of an example line and looks up each of its flags.
func checkExample(t *testing.T, root, of *cobra.Command, line string) {
	t.Helper()
	rest, ok := strings.CutPrefix(line, "tidemark ")
	if !ok {
		if line != "" && !strings.ContainsAny(line, "'") { // the rest of a quoted argument with | in it
			t.Errorf("%s: example %q does not begin with tidemark", of.CommandPath(), line)
		}
		return
	}
	words := strings.Fields(rest)
	c, _, err := root.Find(words)
	if err != nil || c == root {
		t.Errorf("%s: example %q names no command: %v", of.CommandPath(), line, err)
		return
	}
	if of.HasParent() && !strings.HasPrefix(c.CommandPath(), of.CommandPath()) &&
		!strings.Contains(of.Example, of.CommandPath()) {
		t.Errorf("%s: its examples show another command: %q", of.CommandPath(), line)
	}
	for _, w := range words {
		if name, isFlag := strings.CutPrefix(w, "--"); isFlag {
			name, _, _ = strings.Cut(name, "=")
			if c.Flag(name) == nil {
				t.Errorf("%s: example %q names the unknown flag --%s", of.CommandPath(), line, name)
			}
		}
	}
}

// TestEveryCommandThatPrintsDataTakesOutput checks for --output in all commands but roles and groups.
func TestEveryCommandThatPrintsDataTakesOutput(t *testing.T) {
	for _, c := range []string{"version", "index list", "index describe", "index create", "index build", "index drop",
		"index scan", "index count", "sql",
		"cluster status", "config show manager", "config show up", "kv get", "kv set", "kv delete", "kv load", "up"} {
		cmd, _, err := newRoot(Streams{}).Find(strings.Fields(c))
		if err != nil || cmd.Flag("output") == nil {
			t.Errorf("%s has no --output: %v", c, err)
		}
	}
}

var update = flag.Bool("update", false, "write the pages that are made from the commands")

// TestGeneratedDocs checks that the generated pages match the commands.
func TestGeneratedDocs(t *testing.T) {
	for _, page := range []string{"cli", "configuration"} {
		code, out, talk := run(t, "", "docs", page)
		if code != errcode.ExitOK {
			t.Fatal(talk)
		}
		path := filepath.Join("../../docs", page+".md")
		if *update {
			if err := os.WriteFile(path, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil || string(b) != out {
			t.Errorf("%s is not what the commands say now; run: go test ./internal/cli -run TestGeneratedDocs -update (%v)",
				path, err)
		}
	}
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
