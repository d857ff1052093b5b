// Package node tests `tidemark node` as an operator starts it: the commands of docs/operations.md, on three machines
// that are folders and loopback addresses, with a KV node on each. The tests replace scp and systemctl by
// equivalents, following the unit of deploy/; all other commands run as the page has them.
package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
)

const (
	patience  = 3 * time.Minute // detects a hang
	poll      = 50 * time.Millisecond
	machines  = 3
	documents = 300
	password  = "correct horse battery"
	kvBucket  = "world:00000000000000000000000000000001:64:1"
)

func TestMain(m *testing.M) { harness.Main(m) }

// site is three machines.
type site struct {
	t     *testing.T
	dir   string // of the operator
	net   string // the first three numbers of the machines' addresses
	unit  string // the arguments of the unit's program
	nodes map[string]*testcluster.Process
	page  []string // the page's commands
	made  int      // number of settings in the page's file
}

var block = regexp.MustCompile("(?ms)^```(yaml)?\n(.*?)^```$")

func newSite(t *testing.T) *site {
	h := fnv.New32a()
	s := &site{t: t, dir: t.TempDir(), nodes: map[string]*testcluster.Process{}}
	_, _ = h.Write([]byte(s.dir)) // never fails
	s.net = fmt.Sprintf("127.78.%d.", h.Sum32()&0xff)
	if l, err := net.Listen("tcp", s.net+"1:0"); err != nil {
		t.Skipf("needs more loopback addresses than one: %v", err)
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	unit, err := os.ReadFile("../../../../deploy/systemd/tidemark-node.service")
	if err != nil {
		t.Fatal(err)
	}
	const start = "\nExecStart=/usr/local/bin/tidemark "
	_, rest, found := strings.Cut(string(unit), start)
	if s.unit, _, _ = strings.Cut(rest, "\n"); !found || s.unit == "" {
		t.Fatalf("the unit has no line %q", start)
	}
	page, err := os.ReadFile("../../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## Start\n")
	blocks := block.FindAllStringSubmatch(text, 2)
	if len(blocks) != 2 || blocks[0][1] != "yaml" || blocks[1][1] != "" {
		t.Fatalf("the page does not begin with a file and commands: %q", blocks)
	}
	s.write("tidemark.yaml", blocks[0][2])
	s.made = strings.Count(blocks[0][2], "\n")
	s.page = strings.Split(strings.TrimSpace(blocks[1][2]), "\n")
	s.write("root-password", password+"\n")
	for i := range machines {
		s.write(filepath.Join(s.host(i), "etc", "kv-password"), "secret\n")
	}
	s.kv()
	return s
}

func (s *site) host(i int) string { return s.net + strconv.Itoa(i+1) }

func (s *site) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// kv starts a KV node on each machine.
func (s *site) kv() {
	var nodes []string
	for i := range machines {
		nodes = append(nodes, fmt.Sprintf("kv%d=%s:11210=%s:11211", i+1, s.host(i), s.host(i)))
	}
	for i := range machines {
		name := fmt.Sprintf("kv%d", i+1)
		testcluster.Spawn(s.t, s.dir, name, "kv", "--id", name, "--data", filepath.Join(s.dir, s.host(i), "kv"),
			"--memcached", s.host(i)+":11210", "--admin", s.host(i)+":11211", "--nodes", strings.Join(nodes, ","), "--buckets",
			kvBucket, "--kv-user", "index", "--kv-password-file", filepath.Join(s.dir, s.host(i), "etc", "kv-password"))
	}
}

// follow runs the page's commands.
func (s *site) follow() {
	s.t.Helper()
	for _, line := range s.page {
		line = strings.ReplaceAll(line, "10.0.0.", s.net)
		words := strings.Fields(line)
		s.t.Log(line)
		switch words[0] {
		case "scp":
			s.copy(words[1:])
		case "ssh":
			s.start(line)
		case "tidemark":
			if out, err := s.run(words[1:]...); err != nil {
				s.t.Fatalf("%s\n%v\n%s", line, err, out)
			}
		default:
			s.t.Fatalf("nothing does %q", line)
		}
	}
}

// run runs a command of the product in the operator's folder. Passwords, which a terminal would prompt for, are in
// the environment.
func (s *site) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, testcluster.Binary(s.t), args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "TIDEMARK_NEW_PASSWORD_FILE=root-password", "TIDEMARK_TIMEOUT=2m")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// copy replaces scp FILE... root@HOST:/etc/tidemark/.
func (s *site) copy(words []string) {
	s.t.Helper()
	to, ok := strings.CutPrefix(words[len(words)-1], "root@")
	host, folder, _ := strings.Cut(to, ":")
	if !ok || folder != "/etc/tidemark/" {
		s.t.Fatalf("nothing copies to %s", to)
	}
	for _, pattern := range words[:len(words)-1] {
		files, err := filepath.Glob(filepath.Join(s.dir, pattern))
		if err != nil || len(files) == 0 {
			s.t.Fatalf("scp: %s: there is no such file (%v)", pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				s.t.Fatal(err)
			}
			text := strings.ReplaceAll(string(b), "10.0.0.", s.net)
			text = strings.ReplaceAll(text, "127.0.0.1:11210", host+":11210")
			text = strings.ReplaceAll(text, "/etc/tidemark", filepath.Join(s.dir, host, "etc"))
			// three nodes share one machine
			text = strings.ReplaceAll(text, "memory-quota: 4GiB", "memory-quota: 512MiB")
			s.write(filepath.Join(host, "etc", filepath.Base(f)), text)
		}
	}
}

// start replaces ssh root@HOST systemctl enable --now tidemark-node.
func (s *site) start(line string) {
	s.t.Helper()
	host, command, _ := strings.Cut(strings.TrimPrefix(line, "ssh root@"), " ")
	if command != "systemctl enable --now tidemark-node" {
		s.t.Fatalf("nothing does %q", line)
	}
	s.launch(host)
}

func (s *site) launch(host string) {
	args := strings.Fields(strings.ReplaceAll(s.unit, "/etc/tidemark", filepath.Join(s.dir, host, "etc")))
	args = append(args, "--data", filepath.Join(s.dir, host, "data"))
	s.nodes[host] = testcluster.Spawn(s.t, s.dir, "node"+host, args...)
}

// client returns an HTTP client that trusts the CA, as a user's browser does.
func (s *site) client() *http.Client {
	ca, err := os.ReadFile(filepath.Join(s.dir, "certs", "ca.pem"))
	if err != nil {
		s.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
}

// ready requests a node's readiness; it returns the reasons why it is not ready, nil if it is.
func (s *site) ready(host string) ([]string, error) {
	resp, err := s.client().Get("https://" + host + ":9522/readyz")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusOK {
		return nil, err
	}
	var p struct {
		Reasons []struct{ Code, Detail string }
	}
	if err := json.Unmarshal(b, &p); err != nil || len(p.Reasons) == 0 {
		return nil, fmt.Errorf("%s %s: %w", resp.Status, b, err)
	}
	var all []string
	for _, r := range p.Reasons {
		all = append(all, r.Code+" "+r.Detail)
	}
	return all, nil
}

// until polls f until it returns nil.
func (s *site) until(what string, f func() error) {
	s.t.Helper()
	var last error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(poll) {
		if last = f(); last == nil {
			return
		}
	}
	s.t.Fatalf("%s: %v", what, last)
}

func (s *site) allReady() {
	s.t.Helper()
	for i := range machines {
		s.until(s.host(i)+" becomes ready", func() error {
			why, err := s.ready(s.host(i))
			if err == nil && why != nil {
				err = fmt.Errorf("not ready: %v", why)
			}
			return err
		})
	}
}

// children returns the processes of a node by role.
func (s *site) children(host string) map[string]int {
	s.t.Helper()
	all := map[string]int{}
	lists, err := filepath.Glob("/proc/" + strconv.Itoa(s.nodes[host].PID()) + "/task/*/children")
	if err != nil || len(lists) == 0 {
		s.t.Skipf("needs /proc: %v", err)
	}
	for _, list := range lists {
		b, _ := os.ReadFile(list) // the thread may have ended
		for _, text := range strings.Fields(string(b)) {
			line, err := os.ReadFile("/proc/" + text + "/cmdline")
			if words := bytes.Split(line, []byte{0}); err == nil && len(words) > 1 {
				if all[string(words[1])], err = strconv.Atoi(text); err != nil {
					s.t.Fatal(err)
				}
			}
		}
	}
	return all
}

// gone waits until no process listens on a node's ports and none of its processes is left.
func (s *site) gone(host string, children map[string]int) {
	s.t.Helper()
	for role, pid := range children {
		s.until(role+" ends", func() error {
			if err := syscall.Kill(pid, 0); err == nil {
				if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(stat) > 0 {
					return fmt.Errorf("process %d is there", pid)
				}
			}
			return nil
		})
	}
	for port := 9520; port < 9530; port++ {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			s.t.Errorf("a port of a node that has ended: %v", err)
			continue
		}
		_ = l.Close()
	}
}

// TestCommandsOfTheOperationsPage starts three nodes with TLS and users, by at most nine commands and a file of at
// most six settings that is the same on all, and checks the page's statements about a role, a node and a stop.
func TestCommandsOfTheOperationsPage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if len(s.page) > 9 || s.made > 6 {
		t.Errorf("the page has %d commands and %d settings", len(s.page), s.made)
	}
	s.follow()
	s.allReady()
	operator := []string{"--server", s.host(0) + ":9520", "--certs-dir", "certs/operator"}
	out, err := s.run(append([]string{"cluster", "status"}, operator...)...)
	if err != nil {
		t.Fatal(err, out)
	}
	for _, role := range []string{"manager", "indexer", "projector"} {
		for _, n := range []string{"n1", "n2", "n3"} {
			if !regexp.MustCompile(`(?m)^` + role + ` +` + n + ` +(leader|voter|active) +https://`).MatchString(out) {
				t.Errorf("no %s %s in\n%s", role, n, out)
			}
		}
	}

	// Users have access, and no other client.
	as := []string{"--server", s.host(1) + ":9520", "--tls-ca", "certs/operator/ca.pem"}
	if out, err := s.run(append([]string{"index", "list"}, as...)...); err == nil {
		t.Errorf("who shows nothing is let in: %s", out)
	}
	as = append(as, "--user", "root", "--password-file", "root-password")
	s.load()
	if out, err := s.run(append([]string{"sql", `CREATE INDEX by_n ON world(n) WITH {"num_replica":1}`}, as...)...); err !=
		nil {
		t.Fatal(err, out)
	}
	count := func() error {
		out, err := s.run(append([]string{"index", "count", "world/by_n", "--consistency", "session"}, as...)...)
		if err == nil && strings.TrimSpace(out) != strconv.Itoa(documents) {
			err = fmt.Errorf("counted %s", out)
		} else if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	if err := count(); err != nil {
		t.Fatal(err)
	}

	// Each role is restarted when it is killed; the node's readiness names the missing role.
	for _, role := range []string{"manager", "indexer", "projector"} {
		pid := s.children(s.host(2))[role]
		if pid == 0 {
			t.Fatalf("no %s runs: %v", role, s.children(s.host(2)))
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s.until("the log names it", func() error {
			if log := s.nodes[s.host(2)].Log(); !strings.Contains(log, "role ended and is being restarted: role="+role) {
				return fmt.Errorf("not yet")
			}
			return nil
		})
		s.until(role+" comes back", func() error {
			if again := s.children(s.host(2))[role]; again == 0 || again == pid {
				return fmt.Errorf("it is %d", again)
			}
			return nil
		})
	}
	s.allReady()
	if err := count(); err != nil {
		t.Error(err)
	}

	// SIGTERM stops all roles, SIGKILL leaves no process behind, and both nodes come back.
	stopped, killed := s.host(0), s.host(1)
	children := s.children(stopped)
	if code := s.nodes[stopped].Stop(); code != 0 || len(children) != 3 {
		t.Errorf("exit code %d, with %d roles", code, len(children))
	}
	s.gone(stopped, children)
	if log := s.nodes[stopped].Log(); !strings.Contains(log, "all roles have ended") ||
		strings.Contains(log, "did not stop cleanly") {
		t.Error("the stop is not logged, or was not orderly")
	}
	s.launch(stopped)
	s.allReady()
	children = s.children(killed)
	s.nodes[killed].Kill()
	s.gone(killed, children)
	s.launch(killed)
	s.allReady()
	if err := count(); err != nil {
		t.Error(err)
	}

	// A role that cannot run is named with its error, while the others serve.
	s.write(filepath.Join(s.host(2), "etc", "projector.pem"), "no certificate")
	_ = syscall.Kill(s.children(s.host(2))["projector"], syscall.SIGKILL)
	s.until("readiness names the projector", func() error {
		why, err := s.ready(s.host(2))
		if err == nil && (len(why) != 1 || !strings.HasPrefix(why[0], "role_down projector: ") ||
			!strings.Contains(why[0], "projector.pem")) {
			err = fmt.Errorf("reasons: %v", why)
		}
		return err
	})
	s.until("another node is ready all the same", func() error {
		why, err := s.ready(s.host(0))
		if err == nil && why != nil {
			err = fmt.Errorf("reasons: %v", why)
		}
		return err
	})

	// All certificates are replaced; the page's scp installs them, and the role comes back.
	if out, err := s.run("cert", "cluster", "--out", "certs", "--replace"); err != nil {
		t.Fatal(err, out)
	}
	for i := range machines {
		s.copy([]string{fmt.Sprintf("certs/n%d/*", i+1), "root@" + s.host(i) + ":/etc/tidemark/"})
		s.nodes[s.host(i)].Signal(syscall.SIGHUP)
	}
	s.allReady()
	if err := count(); err != nil {
		t.Error(err)
	}
}

// load stores documents.
func (s *site) load() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	c, err := kvclient.Connect(ctx, []string{s.host(0) + ":11210"}, kvclient.Options{User: "index", Password: "secret",
		Bucket: "world", Name: "test"})
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	for n := range documents {
		if _, err := c.Set(ctx, fmt.Sprintf("d%d", n), fmt.Appendf(nil, `{"n":%d}`, n), kvclient.StoreOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
}
