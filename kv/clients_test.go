package kv

import (
	"io"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"tidemark/internal/testing/need"
	"tidemark/kv/mcbp"
)

// plainConfig returns the configuration of a node for clients that support neither buckets nor vbuckets.
func plainConfig(t *testing.T) Config {
	t.Helper()
	config := testConfig(t.TempDir())
	config.AllowPlain = true
	config.Buckets[0].VBuckets = 1
	return config
}

// The tools of libmemcached work, as in the script that users run.
func TestLibmemcachedTools(t *testing.T) {
	t.Parallel()
	need.Tool(t, "bash", "bash")
	need.Tool(t, "libmemcached-tools", "memcp", "memccp")
	n, _ := runNode(t, plainConfig(t))
	out, err := exec.Command("clients/libmemcached.sh", n.MemcachedAddr(), testUser, testPassword).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "\nok\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// memcapable checks a server's answers to the binary protocol one by one. It does not authenticate: a proxy does
// that.
func TestMemcapable(t *testing.T) {
	t.Parallel()
	tool := need.Tool(t, "libmemcached-tools", "memcapable", "memccapable")
	n, _ := runNode(t, plainConfig(t))
	host, port, err := net.SplitHostPort(authenticating(t, n.MemcachedAddr()))
	if err != nil {
		t.Fatal(err)
	}
	out, _ := exec.Command(tool, "-h", host, "-p", port, "-b").CombinedOutput() // the three tests below fail
	// The node refuses FLUSH, and its answer to DELETE carries the CAS of the deletion, as with KV engines.
	for test, want := range map[string]string{"flush": "FAIL", "flushq": "FAIL", "delete": "FAIL", "incr": "pass",
		"appendq": "pass", "getkq": "pass", "stat": ""} {
		if !regexp.MustCompile(`binary ` + test + ` +\[?` + want).Match(out) {
			t.Errorf("%s: want %s", test, want)
		}
	}
	if !strings.Contains(string(out), "3 of 27 tests failed") {
		t.Errorf("%s", out)
	}
}

// authenticating runs a proxy that forwards every connection to addr after it has authenticated there, and returns
// the proxy's address.
func authenticating(t *testing.T, addr string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	t.Cleanup(func() { _ = l.Close(); _ = group.Wait() })
	group.Go(func() error {
		for {
			from, err := l.Accept()
			if err != nil {
				return nil
			}
			group.Go(func() error {
				defer from.Close()
				to, err := net.Dial("tcp", addr)
				if err != nil {
					return err
				}
				defer to.Close()
				hello, err := mcbp.Append(nil, request(mcbp.OpSASLAuth, 0, nil, []byte("PLAIN"),
					[]byte("\x00"+testUser+"\x00"+testPassword)))
				if err != nil {
					return err
				}
				if _, err := to.Write(hello); err != nil {
					return err
				}
				if _, err := io.CopyN(io.Discard, to, mcbp.HeaderSize); err != nil {
					return err
				}
				group.Go(func() error {
					_, err := io.Copy(to, from)
					_ = to.(*net.TCPConn).CloseWrite()
					return err
				})
				_, err = io.Copy(from, to)
				return err
			})
		}
	})
	return l.Addr().String()
}

// The example programs with Couchbase's own Go clients work. They need only Go, as this test does.
func TestGoClients(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"gomemcached", "gocbcore"} {
		t.Run(client, func(t *testing.T) {
			n, _ := runNode(t, plainConfig(t))
			out, err := exec.Command("go", "run", "./clients/"+client, n.MemcachedAddr(), testUser, testPassword,
				"world").CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), "\nok\n") {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}
