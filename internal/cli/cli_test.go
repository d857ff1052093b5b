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

// fake is a manager that keeps the body of the last request that was not a GET. A command that waits uses several
// connections at once, and its last request may still be in flight when the command returns.
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

// fullTimeout ends the arguments of commands that use up their --timeout. They run in parallel; the time is long enough
// for an answer even on a busy machine.
const fullTimeout = "|--timeout|5s"

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

func run(t testing.TB, in string, args ...string) (code int, out, stderr string) {
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
		args        string // separated by |
		in          string
		code        int
		out, stderr string // contained
		body        string // contained in the last request
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
		{args: "index|build|b|n", out: "ready", stderr: "building: 100 %"},
		{args: "index|build|b|n|--no-wait|--output|jsonl", out: `"cas":4`, body: `"names":["n"]`},
		{args: "index|drop|b/n", stderr: "dropped b/n"},
		{args: "index|drop|b/notfound", code: errcode.ExitNotFound, stderr: "UNKNOWN_INDEX"},
		{args: "index|drop|b/notfound|--if-exists", stderr: "there is no b/notfound"},
		{args: "index|drop|b/mismatch|--if-match|3", code: errcode.ExitConflict, stderr: "CAS_MISMATCH"},
		{args: "index|scan|b/n", out: "\"y\", null  d2\n", stderr: "2 rows at timestamp 11"},
		{args: "scan|b/n|--limit|5|--reverse", out: "\"y\", null  d2\n", body: `"limit":5,"consistency":"any","reverse":true`},
		{args: "scan|b|n", out: "\"y\", null  d2\n"},
		{args: "scan|7", out: "\"y\", null  d2\n"},
		{args: "scan", out: "tidemark scan [command]"},
		{args: "cluster|backup", code: errcode.ExitUsage, stderr: "needs a file, or - for standard output"},
		{args: "cluster|backup|verify|-", in: "x", code: errcode.ExitFailed, stderr: "BACKUP_UNUSABLE: standard input: "},
		{args: "cluster|backup|verify|" + sql, code: errcode.ExitFailed, stderr: "BACKUP_UNUSABLE: " + sql + ": "},
		{args: "cluster|backup|verify|" + dir, code: errcode.ExitFailed, stderr: "is a directory"},
		{args: "cluster|backup|verify|" + dir + "/none", code: errcode.ExitUsage, stderr: "no such file"},
		{args: "scan|lst", code: errcode.ExitUsage, stderr: "did you mean list?"},
		{args: "scan|b/n|b/m", code: errcode.ExitUsage, stderr: "takes one index, BUCKET/NAME or ID"},
		{args: "shell", in: "scan b/n\nscan b n --limit 1\nindex scan b n\n", out: "d2\nKEY"},
		{args: "index|scan|b|n", out: "\"y\", null  d2\n"},
		{args: "index|count|b|n", out: "2\n"},
		{args: "index|describe|b|n", out: "CREATE INDEX n ON b(a)"},
		{args: "index|scan|b/n|--output|jsonl", out: `{"key":["y",null],"id":"d2"}` + "\n"},
		{args: `index|scan|b/n|--equal|["FR"]|--limit|5|--reverse|--consistency|session`, out: "d1", body: `"limit":5,"consistency":"session","equal":["FR"],"reverse":true`},
		{args: `index|scan|b/n|--low|[1]|--high|[2]|--inclusion|low`, out: "d1", body: `"range":{"low":[1],"high":[2],"inclusion":"low"}`},
		{args: `index|scan|b/n|--low|[2]|--high|[1]`, out: "d1", body: `"low":[2]`, stderr: "\n--low [2] --high [1] --inclusion both selects nothing"},
		{args: `index|scan|b/n|--range|{"low":[1]}|--range|{"low":["z"],"high":["a"]}`, out: "d1", stderr: `11` + "\n" + `--range {"low":["z"],"high":["a"]} selects`},
		{args: `index|count|b/n|--low|[1]|--high|[1]|--inclusion|low`, out: "2\n", stderr: "--inclusion low selects nothing"},
		{args: `index|count|b/n|--where|{"component":1,"low":2,"high":1}`, out: "2\n", stderr: `--where {"component":1,"low":2,"high":1} selects nothing`},
		{args: "index|scan|b/cut", code: errcode.ExitFailed, out: "d1", stderr: "cut off"},
		{args: "index|scan|b/n|--equal|FR", code: errcode.ExitUsage, stderr: "JSON array"},
		{args: "index|count|b/n", out: "2\n"},
		{args: "index|count|b/n|--output|jsonl", out: `{"count":2,`},
		{args: "watch|--count|1", out: "cas 6 index b/n pending → backfill\n"},
		{args: "watch|--count|1|--output|json|--kinds|index", out: `"was":"pending"`},
		{args: "watch" + fullTimeout, out: "cas 5 snapshot: nothing was seen (0 managers, 1 index)"},
		{args: "watch|--server|" + gone + fullTimeout, code: errcode.ExitUnavailable, stderr: "no answer in time"},
		{args: "watch|--server|ftp://x", code: errcode.ExitUsage, stderr: "http://"},
		{args: "cluster|status", out: "voter, not seen"},
		{args: "cluster|status|--output|json", out: `"cluster_id": "c1"`},
		{args: "sql|CREATE INDEX n ON b(a)|--no-wait", out: "pending"},
		{args: "sql|--file|" + sql + "|--no-wait", out: "pending", body: "DROP INDEX n ON b"},
		{args: "sql|--no-wait", in: "BUILD INDEX ON b(n)", out: "pending", body: "BUILD INDEX"},
		{args: "sql|--no-wait", in: "\ufeffBUILD INDEX ON b(n)\r\n", out: "pending", body: `"statement":"BUILD INDEX`},
		{args: "sql", code: errcode.ExitUsage, stderr: "no statement"},
		{args: "sql|--file|/nowhere/x", code: errcode.ExitUsage, stderr: "/nowhere/x"},
		{args: "sql|bad", code: errcode.ExitFailed, stderr: "SYNTAX_ERROR"},
		{args: "sql|conflict", code: errcode.ExitConflict, stderr: "because of NAME_EXISTS"},
		{args: "sql|noprojector", code: errcode.ExitUnavailable, stderr: "NO_PROJECTOR"},
		{args: "sql|noleader" + fullTimeout, code: errcode.ExitUnavailable, stderr: "NO_LEADER"},
		{args: "sql|unknownoutcome" + fullTimeout, code: errcode.ExitTimeout, stderr: "OUTCOME_UNKNOWN"},
		{args: "index|list|--server|" + gone + fullTimeout, code: errcode.ExitUnavailable,
			stderr: "no answer in time"},
		{args: "index|list|--server|ftp://x", code: errcode.ExitUsage, stderr: "http://"},
		{args: "index|list|--output|xml", code: errcode.ExitUsage, stderr: `--output "xml": want table, json, jsonl, yaml or csv; see tidemark index list --help`},
		{args: "index|list|--timeout|0s", code: errcode.ExitUsage, stderr: "--timeout"},
		{args: "index|list|--data|" + dir, code: errcode.ExitUsage, stderr: "no running `tidemark up`"},
		{args: "index|list|x", code: errcode.ExitUsage, stderr: `got "x"`},
		{args: "index|list|--wat", code: errcode.ExitUsage, stderr: "tidemark index list --help"},
		{args: "index|describe|n", code: errcode.ExitUsage, stderr: "bucket/name"},
		{args: "index|create|b|n|--partitions|-1", code: errcode.ExitUsage, stderr: "--partitions"},
		{args: "index|nothing", code: errcode.ExitUsage, stderr: "nothing"},
		{args: "nothing", code: errcode.ExitUsage, stderr: "nothing"},
		{args: "manager", code: errcode.ExitUsage, stderr: "--data"},
		{args: "indexer", code: errcode.ExitUsage, stderr: "--data"},
		{args: "projector", code: errcode.ExitUsage, stderr: "--managers"},
		{args: "kv", code: errcode.ExitUsage, stderr: "kv load"},
		{args: "kv|get|x", code: errcode.ExitUsage, stderr: "--bucket"},
		{args: "kv|set|k|{a|--data|" + dir, code: errcode.ExitUsage, stderr: "not JSON"},
		{args: "kv|load|/nowhere/x", code: errcode.ExitUsage, stderr: "/nowhere/x"},
		{args: "up|--managers|0", code: errcode.ExitUsage, stderr: "--managers 0"},
		{args: "up|--managers|99|--data|" + dir, code: errcode.ExitUsage, stderr: "--managers 99: want 1 to 16"},
		{args: "up|--log-level|loud|--data|" + dir, code: errcode.ExitUsage, stderr: "loud"},
		{args: "version|--output|json", out: "\"version\": \"0."},
		{args: "indx", code: errcode.ExitUsage, stderr: "did you mean index?"},
		{args: "index|lst", code: errcode.ExitUsage, stderr: "did you mean list?"},
		{args: "index|create|b|n", code: errcode.ExitUsage, stderr: "--primary"},
		{args: "index|create|b|n|--key|a|--print|--replicas|1", out: "CREATE INDEX n ON b(a) WITH {\"num_replica\":1};\n"},
		{args: "index|create|b|n|--key|a b|--print", code: errcode.ExitFailed, stderr: "^"},
		{args: "index|create|b|n|--key|a) ; DROP INDEX x ON b (a|--print", code: errcode.ExitFailed, stderr: "line 1"},
		{args: "index|create|--file|-|--print", in: `[{"name":"n","bucket":"b","keys":[{"expr":"a"}],"defer_build":true},{"name":"p","bucket":"b","is_primary":true}]`,
			out: "CREATE INDEX n ON b(a) WITH {\"defer_build\":true};\nCREATE PRIMARY INDEX p ON b;\n"},
		{args: "index|create|--file|-", in: `{"name":"n","bucket":"b","key":[]}`, code: errcode.ExitUsage, stderr: `unknown field "key"`},
		{args: "index|create|--file|-", in: ` `, code: errcode.ExitUsage, stderr: "the file is empty"},
		{args: "index|create|--file|-|--primary", code: errcode.ExitUsage, stderr: "omit --primary"},
		{args: "index|create|--file|-|b|n", code: errcode.ExitUsage, stderr: "omit b n"},
		{args: "index|create|--file|-|--no-wait", in: `{"name":"n","bucket":"b","is_primary":true} {"name":"m","bucket":"b","is_primary":true}`, out: "ready", body: `"name":"m"`},
		{args: "index|build|--file|-|--no-wait", in: `{"bucket":"b","names":["n","m"]}`, out: "pending", body: `["n","m"]`},
		{args: "index|build|--file|-|--dry-run", in: `{"bucket":"b","names":[]}`, stderr: "there is nothing to do", out: "BUCKET"},
		{args: "sql|--dry-run|DROP INDEX n ON b", code: errcode.ExitFailed, stderr: "the statements WERE executed"},
		{args: "index|build|b|n|m|--print", out: "BUILD INDEX ON b(n, m);\n"},
		{args: "index|build|b|--all", stderr: "bucket b has no deferred index", out: "ID"},
		{args: "index|build|b", code: errcode.ExitUsage, stderr: "--all"},
		{args: "index|build|b|--all|--file|x", code: errcode.ExitUsage, stderr: "omit the arguments"},
		{args: "index|drop|b/n|b/m", code: errcode.ExitUsage, stderr: "drop 2 indexes: b/n, b/m; confirm with --yes"},
		{args: "index|drop|b/n|b/m|--yes|--output|jsonl", out: `{"index":"b/m","dropped":true}`, stderr: "dropped b/m"},
		{args: "index|drop|b/n|b/notfound|--yes", code: errcode.ExitNotFound, stderr: "b/notfound (dropped before it: b/n)"},
		{args: "index|drop|b/n|b/m|--dry-run", code: errcode.ExitFailed, stderr: "the statements WERE executed",
			body: `{"statement":"DROP INDEX n ON b;\nDROP INDEX n ON b"}`},
		{args: "index|drop|b/n|b/m|--if-match|3", code: errcode.ExitUsage, stderr: "one index"},
		{args: "index|drop", code: errcode.ExitUsage, stderr: "once or more"},
		{args: "index|scan|b/n|--limit|-1", code: errcode.ExitUsage, stderr: "--limit -1"},
		{args: "index|scan|b/n|--limit|99999999999999999999", code: errcode.ExitUsage,
			stderr: `--limit "99999999999999999999": want a whole number up to 9223372036854775807; see tidemark index scan --help`},
		{args: "index|drop|b/n|--if-match|-1", code: errcode.ExitUsage, stderr: `--if-match "-1": want a whole number from 0 to 18446744073709551615; see`},
		{args: "index|list|--timeout|30", code: errcode.ExitUsage, stderr: `--timeout "30": want a time with its unit, as 300ms, 30s or 1h30m; see`},
		{args: "index|scan|b/n|--distinct=perhaps", code: errcode.ExitUsage, stderr: `--distinct "perhaps": want true or false; see`},
		{args: `index|list|--server|a"b`, code: errcode.ExitUsage, stderr: `--server "a\"b": want a list separated by commas`},
		{args: "indexer|--memory-quota|much", code: errcode.ExitUsage, stderr: `"much": want a whole number of bytes, or one with a unit`},
		{args: "index|scan|b/n|--project|[99999999999999999999]", code: errcode.ExitUsage, stderr: `it is 99999999999999999999, want a whole number up to 9223372036854775807, at line 1`},
		{args: `index|scan|b/n|--token|{"vbucket":70000,"vbuuid":"1","seqno":1}`, code: errcode.ExitUsage, stderr: `field "vbucket" is 70000, want a whole number from 0 to 65535, at line 1`},
		{args: `index|scan|b/n|--token|{"vbucket":1,"vbuuid":1,"seqno":1}`, code: errcode.ExitUsage, stderr: `not a string of decimal digits, up to 18446744073709551615`},
		{args: `index|scan|b/n|--range|{"low":1}`, code: errcode.ExitUsage, stderr: `field "low" is a number, want an array, at line 1`},
		{args: "index|list|--ddl", out: "CREATE INDEX n ON b(a);\n"},
		{args: "index|list|--ddl|--output|jsonl", out: `{"statement":"CREATE INDEX n ON b(a)"}` + "\n"},
		{args: "index|list|--watch=-1s", code: errcode.ExitUsage, stderr: "--watch"},
		{args: "sql|--print|create index n on b(a); drop index m on b", out: "CREATE INDEX n ON b(a);\nDROP INDEX m ON " +
			"b;\n"},
		{args: "sql|--print|CREATE INDEX n ON b(a,, b)", code: errcode.ExitFailed, stderr: "^"},
		{args: "cluster|status|--wait" + fullTimeout, code: errcode.ExitTimeout, stderr: "manager m2 does not answer"},
		{args: "cluster|status|--wait=members" + fullTimeout, code: errcode.ExitTimeout, stderr: "manager m2 does not answer"},
		{args: "cluster|status|--wait=all", code: errcode.ExitUsage, stderr: "want ready or members"},
		{args: "config|show|manager|--log-level|debug", out: "log-level                    debug           flag"},
		{args: "config|show|projector|--output|jsonl", out: `{"key":"id","value":"p1","origin":"default","env":"TIDEMARK_ID"`},
		{args: "config|show|nothing", code: errcode.ExitUsage, stderr: "no command"},
		{args: "cluster|leave", code: errcode.ExitUsage, stderr: "needs --server"}, // not that of the environment
		{args: "help|exit-codes", out: "6  not finished in time"},
		{args: "help|ports", out: "127.0.0.1:9541"},
		{args: "help|topics", out: "exit-codes"},
		{args: "help|environment", out: "NO_COLOR"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			f := &fake{}
			s := httptest.NewServer(f)
			defer s.Close()
			if strings.HasSuffix(tc.args, fullTimeout) {
				t.Parallel() // which excludes Setenv
				if !strings.Contains(tc.args, "--server") {
					tc.args += "|--server|" + s.URL
				}
			} else {
				t.Setenv("TIDEMARK_SERVER", s.URL)
			}
			code, out, stderr := run(t, tc.in, strings.Split(tc.args, "|")...)
			if code != tc.code || !strings.Contains(out, tc.out) || !strings.Contains(stderr, tc.stderr) || tc.out == "" &&
				out != "" {
				t.Errorf("exit %d, want %d\nout: %s\nwant: %s\nerr: %s\nwant: %s", code, tc.code, out, tc.out, stderr, tc.stderr)
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
		t.Errorf("the environment was ignored: %s", out)
	}
	if _, out, _ := run(t, "", "index", "list", "--output", "table"); !strings.HasPrefix(out, "ID") {
		t.Errorf("the command line does not override the environment: %s", out)
	}
	t.Setenv("TIDEMARK_TIMEOUT", "soon")
	if code, _, stderr := run(t, "", "index", "list"); code != errcode.ExitUsage ||
		!strings.Contains(stderr, "TIDEMARK_TIMEOUT") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte("bootstrap-expect: 3\nrst: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := run(t, "", "manager", "--config", file)
	if code != errcode.ExitUsage || !strings.Contains(stderr, `unknown key "rst"`) {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// everyCommand calls do for each command of the tree, except those that cobra adds.
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
			t.Errorf("%s has no summary", c.CommandPath())
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
		t.Errorf("%s: example %q has an unknown command: %v", of.CommandPath(), line, err)
		return
	}
	if of.HasParent() && !strings.HasPrefix(c.CommandPath(), of.CommandPath()) &&
		!strings.Contains(of.Example, of.CommandPath()) {
		t.Errorf("%s: an example is of another command: %q", of.CommandPath(), line)
	}
	for _, w := range words {
		if name, isFlag := strings.CutPrefix(w, "--"); isFlag {
			name, _, _ = strings.Cut(name, "=")
			if c.Flag(name) == nil {
				t.Errorf("%s: example %q has the unknown flag --%s", of.CommandPath(), line, name)
			}
		}
	}
}

// TestCommandsThatPrintDataHaveOutput checks for --output in commands that print data.
func TestCommandsThatPrintDataHaveOutput(t *testing.T) {
	for _, c := range []string{"version", "index list", "index describe", "index create", "index build", "index drop",
		"index scan", "index count", "sql",
		"cluster status", "config show manager", "config show up", "kv get", "kv set", "kv delete", "kv load", "up"} {
		cmd, _, err := newRoot(Streams{}).Find(strings.Fields(c))
		if err != nil || cmd.Flag("output") == nil {
			t.Errorf("%s has no --output: %v", c, err)
		}
	}
}

var update = flag.Bool("update", false, "write the pages that are generated from the commands")

// TestGeneratedDocs checks that the generated pages match the commands.
func TestGeneratedDocs(t *testing.T) {
	for _, page := range []string{"cli", "configuration"} {
		code, out, stderr := run(t, "", "docs", page)
		if code != errcode.ExitOK {
			t.Fatal(stderr)
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
			t.Errorf("%s is out of date; run: go test ./internal/cli -run TestGeneratedDocs -update (%v)",
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
