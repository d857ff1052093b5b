package cli

import (
	"bufio"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/leash"
	"tidemark/internal/testing/ports"
	"tidemark/internal/testing/testcluster"
)

// hangGuard is how long a test waits for something that must happen.
const hangGuard = 45 * time.Second

// awaitOK waits until a GET of a URL returns 200.
func awaitOK(t *testing.T, p *testcluster.Process, url string) {
	t.Helper()
	c := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	defer c.CloseIdleConnections()
	for deadline := time.Now().Add(hangGuard); ; time.Sleep(20 * time.Millisecond) {
		resp, err := c.Get(url)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-p.Ended():
			t.Fatalf("%s has ended: %s", p.Name, p.Log())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", url, err)
		}
	}
}

// childOf returns the process id of a role that a node runs, 0 if there is none now.
func childOf(t *testing.T, node *testcluster.Process, role string) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		stat, err := os.ReadFile(path)
		if err != nil { // it has ended
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest) // state, parent
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if args := strings.Split(string(line), "\x00"); err != nil || len(args) < 2 || args[1] != role ||
			fields[1] != strconv.Itoa(node.PID()) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		return pid
	}
	return 0
}

// TestLogWithoutReader checks that a node whose log is not read continues, and so does a role whose node does not read
// its log; that roles that end are restarted; and that all of them stop on SIGTERM.
func TestLogWithoutReader(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("needs /proc")
	}
	dir := t.TempDir()
	fifo := filepath.Join(dir, "full")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := log.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for err == nil { // until it is full
		_, err = log.Write([]byte("full\n"))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	exe := testcluster.Binary(t)
	port := ports.Range(t)
	at := func(i int) string { return "http://127.0.0.1:" + strconv.Itoa(port+i) + "/readyz" }
	unread := func(name string, args ...string) *testcluster.Process {
		line := append([]string{"-c", `exec "$0" "$@" 2>` + fifo, exe}, args...)
		return testcluster.SpawnCommand(t, dir, name, "sh", line...)
	}
	node := unread("node", "node", "--data", filepath.Join(dir, "data"), "--port", strconv.Itoa(port))
	awaitOK(t, node, at(portNode))
	was := childOf(t, node, "indexer")
	if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(hangGuard); ; time.Sleep(20 * time.Millisecond) {
		if now := childOf(t, node, "indexer"); now != 0 && now != was {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the indexer is not restarted")
		}
	}
	awaitOK(t, node, at(portNode))
	if code := node.Stop(); code != errcode.ExitOK {
		t.Errorf("the node ended with %d", code)
	}
	alone := unread("alone", "manager", "--data", filepath.Join(dir, "data", "manager"), "--id", "n1", "--rest",
		"127.0.0.1:"+strconv.Itoa(port), "--raft", "127.0.0.1:"+strconv.Itoa(port+1))
	awaitOK(t, alone, at(portREST))
	if err := log.SetReadDeadline(time.Now().Add(hangGuard)); err != nil {
		t.Fatal(err)
	}
	for in := bufio.NewScanner(log); ; { // the reader is back
		if !in.Scan() {
			t.Fatalf("the manager's log has no more lines: %v", in.Err())
		}
		if strings.Contains(in.Text(), "entering leader state") {
			break
		}
	}
	if code := alone.Stop(); code != errcode.ExitOK {
		t.Errorf("the manager ended with %d", code)
	}
}

// TestLogReaderDisconnects checks that a process continues when the reader of its log has closed the pipe.
func TestLogReaderDisconnects(t *testing.T) {
	dir, port := t.TempDir(), ports.Range(t)
	fifo := filepath.Join(dir, "log")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	rest := "127.0.0.1:" + strconv.Itoa(port)
	p := testcluster.SpawnCommand(t, dir, "manager", "sh", "-c", `unset `+leash.Env+`; exec "$0" "$@" 2>`+fifo,
		testcluster.Binary(t), "manager", "--data", filepath.Join(dir, "data"), "--rest", rest, "--raft",
		"127.0.0.1:"+strconv.Itoa(port+1))
	awaitOK(t, p, "http://"+rest+"/readyz")
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := run(t, "", "cluster", "logging", "m1", "trace", "--server", rest); code != errcode.ExitOK {
		t.Errorf("exit %d: %s", code, stderr) // a change of levels is logged
	}
	awaitOK(t, p, "http://"+rest+"/readyz")
	if code := p.Stop(); code != errcode.ExitOK {
		t.Errorf("the manager ended with %d", code)
	}
}

// TestHangupWithoutTLS checks that SIGHUP, which reloads certificates, ends neither a node without TLS nor its roles.
func TestHangupWithoutTLS(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("needs /proc")
	}
	dir, port := t.TempDir(), ports.Range(t)
	node := testcluster.Spawn(t, dir, "node", "node", "--data", filepath.Join(dir, "data"), "--port", strconv.Itoa(port))
	ready := "http://127.0.0.1:" + strconv.Itoa(port+portNode) + "/readyz"
	awaitOK(t, node, ready)
	// all roles have started; --wait=members does not wait for a projector, as none has registered
	server := "127.0.0.1:" + strconv.Itoa(port)
	code, out, stderr := run(t, "", "cluster", "status", "--wait=members", "--server", server)
	if code != errcode.ExitOK ||
		!strings.Contains(out, "no projector has registered") {
		t.Errorf("waiting for members: exit %d\n%s%s", code, out, stderr)
	}
	roles := []string{"manager", "indexer"}
	var was []int
	for _, r := range roles {
		was = append(was, childOf(t, node, r))
	}
	node.Signal(syscall.SIGHUP)
	for deadline := time.Now().Add(hangGuard); strings.Count(node.Log(), "no certificates") < 3; {
		if time.Sleep(20 * time.Millisecond); time.Now().After(deadline) {
			t.Fatal("the node and its two roles do not log that there are no certificates")
		}
	}
	awaitOK(t, node, ready)
	for i, r := range roles {
		if now := childOf(t, node, r); now != was[i] {
			t.Errorf("%s was restarted", r)
		}
	}
	if code := node.Stop(); code != errcode.ExitOK {
		t.Errorf("the node ended with %d", code)
	}
}
