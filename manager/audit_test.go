package manager

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api"
	"tidemark/statecontext"
	"tidemark/wire"
)

// audited reads all audit logs of a cluster.
func audited(t testing.TB, dir string) (all []api.Audited) {
	t.Helper()
	for _, name := range []string{"m1", "m2", "m3"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			var x api.Audited
			if err := json.Unmarshal(line, &x); err != nil {
				t.Fatalf("%s: %q: %v", name, line, err)
			}
			all = append(all, x)
		}
		if strings.Contains(string(b), rootPassword) || strings.Contains(string(b), readPassword) {
			t.Errorf("a password is in the audit log of %s", name)
		}
	}
	return all
}

// TestAuditLog: each write has one line from the manager that has answered it, wherever it was sent, and one from the
// manager that has forwarded it; each refused login and each forbidden request has one; reads have none.
func TestAuditLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newSecured(t, func(cfg *Config) { cfg.Audit.Name = filepath.Join(dir, cfg.Name) })
	root := &who{name: "root", basic: [2]string{FirstAdmin, rootPassword}, may: api.RoleAdmin}
	s.until("all know the first administrator", func() bool {
		for _, n := range s.nodes {
			if n.m.raft.State().UserCount() == 0 {
				return false
			}
		}
		return true
	})
	f := s.follower()
	ask := func(w *who, method, path, body string, want int) {
		t.Helper()
		if status, code := s.known(w, f, method, path, body); status != want {
			t.Fatalf("%s %s: %d %s, want %d", method, path, status, code, want)
		}
	}
	ask(root, "PUT", "/v1/users/ann", fmt.Sprintf(`{"new":true,"role":"read","password":%q}`, readPassword), 200)
	ann := &who{name: "ann", basic: [2]string{"ann", readPassword}}
	ask(ann, "GET", "/v1/indexes", "", 200)
	ask(ann, "DELETE", "/v1/users/admin", "", 403)
	ask(&who{name: "wrong", basic: [2]string{"ann", "wrong password"}}, "GET", "/v1/indexes", "", 401)
	ask(root, "DELETE", "/v1/indexes/b/none", "", 404)
	got := map[string]int{}
	for _, x := range audited(t, dir) {
		if x.Outcome == "MANAGER_NOT_CURRENT" || x.Outcome == "NO_LEADER" || x.Outcome == "TIMEOUT" { // retried
			continue
		}
		if x.Time.IsZero() || x.RequestID == "" || x.Remote == "" || x.Manager == "" || x.Status >= 400 && x.Status != 404 &&
			x.Detail == "" {
			t.Errorf("something is missing: %+v", x)
		}
		got[fmt.Sprintf("%s %s %s %d %s", x.Principal, x.Method, x.Path, x.Status, x.Outcome)]++
	}
	want := map[string]int{"admin PUT /v1/users/ann 200 OK": 1, "admin PUT /v1/users/ann 200 PASSED_ON": 1,
		" DELETE /v1/users/admin 403 FORBIDDEN": 1,
		" GET /v1/indexes 401 UNAUTHENTICATED":  1, "admin DELETE /v1/indexes/b/none 404 UNKNOWN_INDEX": 1,
		"admin DELETE /v1/indexes/b/none 404 PASSED_ON": 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the audit logs have\n%v\nwant\n%v", got, want)
	}
}

// TestAuditFile: a full file is renamed, no more than the configured number are kept, and other users cannot read
// them; a file that cannot be written is reported at the start.
func TestAuditFile(t *testing.T) {
	dir := t.TempDir()
	to, err := AuditFile{Name: filepath.Join(dir, "audit.log"), Size: 1, Files: 2}.open()
	if err != nil {
		t.Fatal(err)
	}
	line := append(bytes.Repeat([]byte("x"), 1<<10-1), '\n')
	for range 5 << 10 { // 5 MiB
		if _, err := to.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	files := func() []os.DirEntry {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	c := &trio{t: t}
	c.until("old ones have gone", func() bool { return len(files()) == 3 })
	for _, e := range files() {
		info, err := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 || info.Size() > 1<<20 {
			t.Errorf("%s: %v, %d bytes, %v", e.Name(), info.Mode(), info.Size(), err)
		}
		file, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for scan := bufio.NewScanner(file); scan.Scan(); {
			if len(scan.Text()) != 1<<10-1 {
				t.Errorf("%s has a line of %d bytes", e.Name(), len(scan.Text()))
			}
		}
		_ = file.Close()
	}
	_, err = Open(Config{Dir: t.TempDir(), REST: "127.0.0.1:0", Raft: "127.0.0.1:0",
		Audit: AuditFile{Name: filepath.Join(dir, "none", "audit.log")}})
	if err == nil || !strings.Contains(err.Error(), "audit log") {
		t.Errorf("a file in no folder: %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, os.DevNull, dir} { // a full one would be replaced, as root in the whole machine
		if to, err := (AuditFile{Name: name}).open(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v, %v", name, to, err)
		}
	}
	if to, err := (AuditFile{}).open(); to != nil || err != nil {
		t.Errorf("without a name: %v, %v", to, err)
	}
}

// TestTokenCheck: any manager confirms to a projector that a token is valid for reading metrics, and rejects an
// unknown one; with that token nothing else can be read.
func TestTokenCheck(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	root := &who{name: "root", basic: [2]string{FirstAdmin, rootPassword}, may: api.RoleAdmin}
	projector := &who{name: "p1", certificate: tlsconf.Peer{Role: tlsconf.Projector, ID: "p1"}.String()}
	secret, wrong := statecontext.TokenPrefix+strings.Repeat("A", 43), statecontext.TokenPrefix+strings.Repeat("B", 43)
	for _, x := range [][3]string{
		{"PUT", "/v1/users/prom", fmt.Sprintf(`{"new":true,"role":"metrics","password":%q}`, readPassword)},
		{"POST", "/v1/tokens", fmt.Sprintf(`{"user":"prom","role":"metrics","secret":%q}`, secret)}} {
		if status, code := s.known(root, s.nodes[s.leader()], x[0], x[1], x[2]); status > 201 {
			t.Fatalf("%v: %d %s", x, status, code)
		}
	}
	ask := func(n *node, token string) (int, errcode.Code) {
		return s.known(projector, n, "POST", wire.TokenCheckPath, fmt.Sprintf(`{"token":%q,"remote":"10.0.0.9:1"}`, token))
	}
	for name, n := range map[string]*node{"the leader": s.nodes[s.leader()], "a follower": s.follower()} {
		if status, code := ask(n, secret); status != 200 {
			t.Errorf("%s of a good one: %d %s", name, status, code)
		}
		if status, code := ask(n, wrong); status != 401 || code != errcode.Unauthenticated {
			t.Errorf("%s of a wrong one: %d %s", name, status, code)
		}
		bearer := &who{name: "prom", header: map[string]string{"Authorization": "Bearer " + secret}}
		for path, want := range map[string]int{"/metrics": 200, "/v1/indexes": 403, wire.TokenCheckPath: 405} {
			if status, code := s.known(bearer, n, "GET", path, ""); status != want {
				t.Errorf("%s, %s: %d %s", name, path, status, code)
			}
		}
	}
}

// small is a file that is full after some bytes.
type small struct {
	bytes.Buffer
	room int
}

func (s *small) Write(b []byte) (int, error) {
	n, err := len(b), error(nil)
	if n > s.room {
		n, err = s.room, syscall.ENOSPC
	}
	s.room -= n
	s.Buffer.Write(b[:n])
	return n, err
}

func (s *small) Close() error { return nil }

// stuck is a file whose writes wait for a gate.
type stuck struct {
	small
	gate chan struct{}
}

func (s *stuck) Write(b []byte) (int, error) {
	<-s.gate
	return s.small.Write(b)
}

// slow is a file whose writes take a while.
type slow struct {
	small
	takes time.Duration
}

func (s *slow) Write(b []byte) (int, error) {
	time.Sleep(s.takes)
	return s.small.Write(b)
}

// TestAuditLogThatHangs checks that calls do not wait for an audit log whose disk hangs, the first but for a while, and
// that lines are written again when the disk goes on.
func TestAuditLogThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &stuck{small{room: 1 << 10}, make(chan struct{})}
		l, began := newLines(to, false), time.Now()
		for n, want := range []time.Duration{auditPatience, auditPatience, auditPatience} {
			if _, err := l.Write(fmt.Appendln(nil, n)); !errors.Is(err, errAuditHangs) || time.Since(began) != want {
				t.Errorf("line %d: %v after %v, want %v after %v", n, err, time.Since(began), errAuditHangs, want)
			}
		}
		close(to.gate)
		synctest.Wait()
		if _, err := l.Write([]byte("3\n")); err != nil {
			t.Error(err)
		}
		if got := to.String(); got != "0\n3\n" {
			t.Errorf("the file has %q", got)
		}
	})
}

// TestAuditLogThatIsSlow checks that a call that has waited in vain for its line, most of the time for another's, makes
// no later call give up at once: the line that is being written has not been pending for long.
func TestAuditLogThatIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = auditPatience * 3 / 5
		to := &slow{small{room: 1 << 10}, takes}
		l := newLines(to, false)
		first := make(chan error, 1)
		go func() {
			_, err := l.Write([]byte("0\n"))
			first <- err
		}()
		synctest.Wait()
		if _, err := l.Write([]byte("1\n")); !errors.Is(err, errAuditHangs) { // its own takes until 6/5 of its patience
			t.Errorf("the second line: %v, want %v", err, errAuditHangs)
		}
		if _, err := l.Write([]byte("2\n")); err != nil { // has 1/5 to wait and 3/5 to be written
			t.Errorf("the third line: %v", err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		time.Sleep(takes) // if a line was given up, until it has been written
		synctest.Wait()
		if got := to.String(); got != "0\n1\n2\n" {
			t.Errorf("the file has %q", got)
		}
	})
}

// TestAuditLinesOnAFullDisk: however much of a line could be written, also before a start, lines that are written whole
// afterwards stand for themselves.
func TestAuditLinesOnAFullDisk(t *testing.T) {
	t.Parallel()
	const line = "{\"a\":1}\n"
	for room := range 2*len(line) + 2 {
		to := &small{room: room}
		l := newLines(to, false)
		whole := 0
		write := func() {
			if n, err := l.Write([]byte(line)); err == nil {
				if whole++; n != len(line) {
					t.Errorf("%d bytes are said to be written of %d", n, len(line))
				}
			}
		}
		write()
		write()
		write() // there is no room for this one
		to.room = 1 << 20
		write()
		found := 0
		for text := range strings.Lines(to.String()) {
			if text == line {
				found++
			}
		}
		if found < whole { // one that lacks nothing but its end is whole, too
			t.Errorf("with room for %d bytes %d whole lines are there, %d were written:\n%s", room, found, whole, to.String())
		}
	}
	name := filepath.Join(t.TempDir(), "audit.log")
	for text, want := range map[string]bool{"": false, line: false, line + "{\"a\"": true} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := AuditFile{Name: name}.open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		behind := strings.TrimPrefix(string(got), text)
		if !strings.HasSuffix("\n"+string(got), "\n"+line) || strings.HasPrefix(behind, "\n") != want {
			t.Errorf("behind %q stands %q", text, got)
		}
	}
}
