package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/ports"
	"tidemark/internal/testing/testcluster"
	"tidemark/internal/tlsconf"
)

// guarded is one manager process with TLS and a first administrator.
type guarded struct {
	t          *testing.T
	dir, certs string
	rest, raft string
	cmd        *exec.Cmd
	log        string // file
}

const (
	firstPassword = "hunter2-of-the-first-one"
	otherPassword = "correct-horse-of-another"
	wrongPassword = "battery-staple-is-wrong"
)

func writeFile(t *testing.T, path string, parts ...[]byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", bytes.Join(parts, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newCA(t *testing.T, dir string) *tlsconf.CA {
	t.Helper()
	ca, err := tlsconf.CreateCA(dir, "CA of "+filepath.Base(dir), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *tlsconf.CA, dir, name string, role tlsconf.Role, id string) tlsconf.Files {
	t.Helper()
	files, err := ca.Issue(dir, name, tlsconf.Request{Peer: tlsconf.Peer{Role: role, ID: id}, Hosts: []string{"127.0.0.1"},
		Replace: true})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// startGuarded starts a manager with certificates of a CA in DIR/certs.
func startGuarded(t *testing.T, ca *tlsconf.CA, certs string) *guarded {
	t.Helper()
	g := &guarded{t: t, dir: t.TempDir(), certs: certs, rest: ports.Addr(t), raft: ports.Addr(t)}
	g.log = filepath.Join(g.dir, "log")
	files := issue(t, ca, certs, "m1", tlsconf.Manager, "m1")
	password := filepath.Join(g.dir, "password")
	writeFile(t, password, []byte(firstPassword+"\n"))
	out, err := os.Create(g.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	g.cmd = exec.Command(testcluster.Binary(t), "manager", "--id", "m1", "--data", filepath.Join(g.dir, "data"), "--rest",
		g.rest, "--raft", g.raft,
		"--tls-ca", files.CA, "--tls-cert", files.Cert, "--tls-key", files.Key, "--initial-admin-password-file", password,
		"--log-level", "trace")
	g.cmd.Stdout, g.cmd.Stderr = out, out
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = g.cmd.Process.Signal(syscall.SIGTERM)
		if err := g.cmd.Wait(); err != nil || t.Failed() {
			t.Logf("%v; its log:\n%s", err, readFile(t, g.log))
		}
	})
	return g
}

// client returns a client that trusts the CAs in a file.
func (g *guarded) client(files tlsconf.Files, o client.Options) *client.Client {
	g.t.Helper()
	source, err := tlsconf.Open(files, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	o.Servers, o.TLS = []string{g.rest}, source.UserClient()
	c := client.Open(o)
	g.t.Cleanup(c.Close)
	return c
}

func (g *guarded) until(what string, ok func() bool) {
	g.t.Helper()
	for deadline := time.Now().Add(harness.Hang); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatalf("not in time: %s", what)
		}
	}
}

// may returns nil if the client is permitted to list users.
func may(c *client.Client, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.Users(ctx)
	return err
}

// hangUp sends SIGHUP and waits until the process has logged that it has read its files.
func (g *guarded) hangUp() {
	g.t.Helper()
	before := bytes.Count(readFile(g.t, g.log), []byte("TLS certificate in use"))
	if err := g.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		g.t.Fatal(err)
	}
	g.until("the new files are read", func() bool {
		return bytes.Count(readFile(g.t, g.log),
			[]byte("TLS certificate in use")) > before
	})
}

// TestGuardedManager tests a manager process with TLS: its first administrator, the certificates that its ports
// require, a new CA without a stop, and that no secret is in its files, its command line or its answers.
func TestGuardedManager(t *testing.T) {
	t.Parallel()
	oldDir, newDir := filepath.Join(t.TempDir(), "old"), filepath.Join(t.TempDir(), "new")
	before, after := newCA(t, oldDir), newCA(t, newDir)
	oldCA, newPEM := readFile(t, filepath.Join(oldDir, tlsconf.CAFile)), readFile(t, filepath.Join(newDir, tlsconf.CAFile))
	g := startGuarded(t, before, oldDir)
	only := tlsconf.Files{CA: filepath.Join(newDir, "trusted.pem")} // what the clients trust: both CAs
	writeFile(t, only.CA, oldCA, newPEM)

	first := g.client(only, client.Options{User: "admin", Password: firstPassword})
	g.until("the first administrator", func() bool { return may(first, harness.Hang) == nil })
	t.Run("ports", g.ports)
	said := g.useSecrets(only, first)
	g.rotate(before, after, only, oldCA, newPEM)
	t.Run("no secrets", func(t *testing.T) { g.noSecrets(t, said) })
}

// ports tests that the Raft port accepts managers only.
func (g *guarded) ports(t *testing.T) {
	ca, err := tlsconf.LoadCA(g.certs)
	if err != nil {
		t.Fatal(err)
	}
	for role, want := range map[tlsconf.Role]bool{tlsconf.Manager: true, tlsconf.Indexer: false, tlsconf.Projector: false,
		tlsconf.Admin: false} {
		source, err := tlsconf.Open(issue(t, ca, t.TempDir(), "x", role, "x"), nil)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := source.Dial(tlsconf.Raft, tlsconf.Manager)(g.raft, harness.Hang)
		if err == nil { // with TLS 1.3 the refusal arrives with the first read
			patience := harness.Hang
			if want {
				patience = time.Second
			}
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		var slow net.Error
		if listening := errors.As(err, &slow) && slow.Timeout(); listening != want {
			t.Errorf("%s on the Raft port: %v", role, err)
		}
	}
	for _, addr := range []string{g.rest, g.raft} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(harness.Hang))
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		answer, _ := io.ReadAll(conn)
		_ = conn.Close()
		if bytes.Contains(answer, []byte("200 OK")) {
			t.Errorf("%s answers without TLS: %s", addr, answer)
		}
	}
}

// useSecrets sends secrets in every way, valid and invalid, and returns all answers.
func (g *guarded) useSecrets(trust tlsconf.Files, first *client.Client) (said []byte) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 5*time.Minute)
	defer cancel()
	source, err := tlsconf.Open(trust, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: source.UserClient()}
	defer transport.CloseIdleConnections()
	ask := func(method, path, user, password, bearer, body string) {
		req, err := http.NewRequestWithContext(ctx, method, "https://"+g.rest+path, strings.NewReader(body))
		if err != nil {
			g.t.Fatal(err)
		}
		if user != "" {
			req.SetBasicAuth(user, password)
		} else if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			g.t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			g.t.Fatal(err)
		}
		said = append(append(said, b...), '\n')
	}
	secret := "tmt_" + strings.Repeat("A", 42) + "E" // 32 bytes
	for _, path := range []string{"/v1/users", "/v1/state?format=text", "/v1/state", "/v1/tokens", "/metrics",
		"/v1/status", "/v1/backup", "/healthz"} {
		ask("GET", path, "admin", firstPassword, "", "")
	}
	ask("PUT", "/v1/users/ann", "admin", firstPassword, "", `{"new":true,"role":"ddl","password":"`+otherPassword+`"}`)
	ask("PUT", "/v1/users/ann", "admin", firstPassword, "", `{"new":true,"role":"ddl","password":"`+otherPassword+`"}`)
	ask("PUT", "/v1/users/ann", "admin", firstPassword, "", `{"rolle":"ddl","password":"`+otherPassword+`"}`)
	ask("PUT", "/v1/users/ann", "ann", otherPassword, "", `{"password":"`+otherPassword+`"}`)
	ask("POST", "/v1/tokens", "admin", firstPassword, "", `{"user":"ann","role":"read","secret":"`+secret+`"}`)
	ask("POST", "/v1/tokens", "admin", firstPassword, "", `{"user":"ann","role":"read","secret":"`+secret+`"}`)
	ask("POST", "/v1/tokens", "admin", firstPassword, "", `{"user":"ann","role":"read","secret":"`+secret+`x"}`)
	ask("DELETE", "/v1/tokens/"+secret, "admin", firstPassword, "", "")
	ask("GET", "/v1/indexes", "admin", wrongPassword, "", "")
	ask("GET", "/v1/indexes", "", "", secret, "")
	ask("GET", "/v1/indexes", "", "", secret+"x", "")
	ask("GET", "/v1/backup", "admin", firstPassword, "", "")
	if may(first, harness.Hang) != nil || !bytes.Contains(said, []byte("UNAUTHENTICATED")) ||
		!bytes.Contains(said, []byte("FORBIDDEN")) || !bytes.Contains(said, []byte("TOKEN_EXISTS")) {
		g.t.Errorf("not all of it happened: %.2000s", said)
	}
	if bytes.Contains(said, []byte(secret)) {
		g.t.Error("a token's secret was answered")
	}
	if bytes.Contains(readFile(g.t, g.log), []byte(secret)) {
		g.t.Error("a token's secret is in the log")
	}
	return said
}

// rotate moves the process from one CA to another by files and signals.
func (g *guarded) rotate(before, after *tlsconf.CA, trust tlsconf.Files, oldCA, newCA []byte) {
	t := g.t
	oldAdmin := issue(t, before, t.TempDir(), "op", tlsconf.Admin, "operator")
	newAdmin := issue(t, after, t.TempDir(), "op", tlsconf.Admin, "operator")
	oldAdmin.CA, newAdmin.CA = trust.CA, trust.CA
	say := func(when string, files tlsconf.Files, ok bool) {
		t.Helper()
		patience := harness.Hang
		if !ok { // refused clients retry until then
			patience = 2 * time.Second
		}
		if err := may(g.client(files, client.Options{}), patience); (err == nil) != ok {
			t.Errorf("%s: %v", when, err)
		}
	}
	shows := func() string {
		conn, err := tls.Dial("tcp", g.rest, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Issuer.CommonName
	}
	say("the old CA's, at first", oldAdmin, true)
	say("the new CA's, at first", newAdmin, false)
	writeFile(t, filepath.Join(g.certs, tlsconf.CAFile), oldCA, newCA)
	g.hangUp()
	say("the old CA's, with both", oldAdmin, true)
	say("the new CA's, with both", newAdmin, true)
	issue(t, after, g.certs, "m1", tlsconf.Manager, "m1")
	g.hangUp()
	if got := shows(); got != "CA of new" {
		t.Errorf("the server shows a certificate of %q", got)
	}
	writeFile(t, filepath.Join(g.certs, tlsconf.CAFile), newCA)
	g.hangUp()
	say("the old CA's, when it is gone", oldAdmin, false)
	say("the new CA's, at the end", newAdmin, true)
	writeFile(t, filepath.Join(g.certs, "m1.pem"), []byte("no PEM"))
	if err := g.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	g.until("bad files are named", func() bool {
		return bytes.Contains(readFile(t, g.log),
			[]byte("the old ones stay in force"))
	})
	say("with files that cannot be used", newAdmin, true)
}

// noSecrets checks that no secret is in the log, the command line, the data folder or the answers.
func (g *guarded) noSecrets(t *testing.T, said []byte) {
	args, err := os.ReadFile("/proc/" + strconv.Itoa(g.cmd.Process.Pid) + "/cmdline")
	if err != nil {
		t.Log("no look at the command line:", err)
	}
	looked := map[string][]byte{"the log": readFile(t, g.log), "the command line": args, "the answers": said}
	for where, text := range looked {
		for _, secret := range []string{firstPassword, otherPassword, wrongPassword, "argon2id", "PRIVATE KEY",
			"Authorization", "tmt_A"} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%q is in %s", secret, where)
			}
		}
	}
	if !bytes.Contains(looked["the log"], []byte("refused")) {
		t.Error("the log has no refusal: it is not the log")
	}
	err = filepath.WalkDir(filepath.Join(g.dir, "data"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		for _, secret := range []string{firstPassword, otherPassword, wrongPassword, "PRIVATE KEY"} {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%q is in %s", secret, path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestNoPortBeyondLoopback checks that without TLS no role listens beyond loopback on any of its ports.
func TestNoPortBeyondLoopback(t *testing.T) {
	t.Parallel()
	binary := testcluster.Binary(t)
	for _, args := range [][]string{
		{"manager", "--rest", "0.0.0.0:0", "--raft", "127.0.0.1:0"},
		{"manager", "--rest", "127.0.0.1:0", "--raft", "[::]:0"},
		{"projector", "--admin", ":0", "--managers", "127.0.0.1:1"},
		{"indexer", "--admin", "0.0.0.0:0", "--managers", "127.0.0.1:1"},
		{"indexer", "--scan", "0.0.0.0:0", "--admin", "127.0.0.1:0", "--managers", "127.0.0.1:1"},
		{"indexer", "--maintenance", "0.0.0.0:0", "--admin", "127.0.0.1:0", "--managers", "127.0.0.1:1"},
		{"indexer", "--backfill", "0.0.0.0:0", "--admin", "127.0.0.1:0", "--managers", "127.0.0.1:1"},
		{"indexer", "--catchup", "0.0.0.0:0", "--admin", "127.0.0.1:0", "--managers", "127.0.0.1:1"},
	} {
		if args[0] == "projector" {
			password := filepath.Join(t.TempDir(), "password")
			writeFile(t, password, []byte("x\n"))
			args = append(args, "--kv-user", "index", "--kv-password-file", password)
		} else {
			args = append(args, "--data", filepath.Join(t.TempDir(), "data"))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
		cancel()
		if err == nil || !bytes.Contains(out, []byte("--insecure")) || !bytes.Contains(out, []byte("refusing to listen")) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
