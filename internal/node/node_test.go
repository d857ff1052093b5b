package node

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
)

// buffer is where lines go.
type buffer struct {
	mu     sync.Mutex
	writes []string
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes = append(b.writes, string(p))
	return len(p), nil
}

// TestLines checks that a role's output is forwarded by whole lines, a very long one in parts, an unfinished one at
// the end.
func TestLines(t *testing.T) {
	var out buffer
	var last tail
	l := &lines{to: &out, tail: &last}
	for _, p := range []string{"a", "b\nc", "\nd", "\ne"} {
		if n, err := l.Write([]byte(p)); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	_ = l.Close()
	if got := strings.Join(out.writes, "|"); got != "ab\n|c\n|d\n|e\n" {
		t.Errorf("%q", got)
	}
	if last.String() != "ab\nc\nd\ne\n" {
		t.Errorf("kept: %q", last.String())
	}
	out.writes = nil
	for range 2*maxLine/8 + 1 {
		_, _ = l.Write([]byte("12345678"))
	}
	if len(out.writes) != 2 || len(out.writes[0]) != maxLine || len(l.part) != 8 {
		t.Errorf("a line without end: %d writes, %d bytes held", len(out.writes), len(l.part))
	}
	if len(last.String()) != keptOutput {
		t.Errorf("%d bytes are kept", len(last.String()))
	}
	last.reset()
	if last.String() != "" {
		t.Error("it keeps what was forgotten")
	}
}

// open opens a node whose roles are programs that end at once, or do not exist.
func open(t *testing.T, exe string, roles ...Role) (*Node, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	n, err := Open(Config{ID: "n1", Exe: exe, Dir: filepath.Join(t.TempDir(), "data"), Listen: "127.0.0.1:0", Roles: roles,
		Out: &buffer{}, Logger: hclog.New(&hclog.LoggerOptions{Output: &log, Mutex: &sync.Mutex{}})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.listener.Close(); n.lock.Release() })
	return n, &log
}

// TestReadiness checks that a node is ready if all its roles are; otherwise the reasons name the roles that are not.
func TestReadiness(t *testing.T) {
	answer := func(reasons ...rpc.Reason) Role {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if p := rpc.Unready(reasons); p != nil {
				rpc.WriteProblem(w, p)
				return
			}
			rpc.Write(w, r, http.StatusOK, struct{}{})
		}))
		t.Cleanup(s.Close)
		return Role{Name: tlsconf.Manager, Admin: s.Listener.Addr().String()}
	}
	many := make([]rpc.Reason, 25)
	for i := range many {
		many[i] = rpc.Reason{Code: "copy", Detail: "c"}
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	n, _ := open(t, "/nowhere", answer(), answer(rpc.Reason{Code: "disk", Detail: "full"}), answer(many...),
		Role{Name: tlsconf.Indexer, Admin: silent.Addr().String()},
		Role{Name: tlsconf.Indexer, Admin: "[::1%nowhere]:1"}, Role{Name: tlsconf.Projector, Admin: "127.0.0.1:1"})
	for _, c := range n.children[:5] {
		c.set("")
	}
	w := httptest.NewRecorder()
	n.table().Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
	var p rpc.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusServiceUnavailable {
		t.Fatal(w.Code, err)
	}
	for _, want := range []string{"manager: full", "; and 5 more", "indexer: it does not answer",
		"dial tcp [::1%nowhere]:1", // an address with a zone is dialed, and not taken for a wrong URL
		"projector: it has not started yet"} {
		if !strings.Contains(p.Detail, want) {
			t.Errorf("no %q in %s", want, p.Detail)
		}
	}
	if len(p.Reasons) != 20+1+4 {
		t.Errorf("%d reasons", len(p.Reasons))
	}
	n.children = n.children[:1]
	n.asked = time.Time{}
	w = httptest.NewRecorder()
	n.table().Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
	if w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestKilledAgain checks that the readiness of a node contains why a role is down, and the pause before its restart,
// which grows for a role that is killed repeatedly.
func TestKilledAgain(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "role")
	if err := os.WriteFile(exe, []byte("#!/bin/sh\nkill -9 $$\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	n, _ := open(t, exe, Role{Name: tlsconf.Manager})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	grown := regexp.MustCompile(`signal: killed; restarting it in (2|4|8|16|30)s`)
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if r := n.children[0].reasons(ctx, "http"); len(r) == 1 && r[0].Code == reasonDown &&
			grown.MatchString(r[0].Detail) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%+v", r)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRemoved checks that a node whose roles were all removed from the cluster ends with ErrRemoved, and unlocks its
// folder.
func TestRemoved(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "role")
	script := "#!/bin/sh\necho 'tidemark: it was removed' >&2\nexit 7\n"
	if err := os.WriteFile(exe, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	n, log := open(t, exe, Role{Name: tlsconf.Manager}, Role{Name: tlsconf.Indexer})
	if err := n.Run(t.Context()); err != ErrRemoved { //nolint:errorlint // itself
		t.Fatal(err)
	}
	for _, c := range n.children {
		if r := c.reasons(t.Context(), "http"); len(r) != 1 || r[0].Code != reasonRemoved ||
			!strings.Contains(r[0].Detail, "it was removed") {
			t.Errorf("%+v", r)
		}
	}
	if !strings.Contains(log.String(), "was removed from the cluster and is not restarted") {
		t.Error(log.String())
	}
	again, err := Open(n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(n.cfg); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Error(err)
	}
	_ = again.listener.Close()
	again.lock.Release()
}
