package cli

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/ports"
)

// TestNoServerListens checks that, if all addresses refuse connections, the command tries for a few seconds only, not
// for the default --timeout, and lists the addresses with their errors; managers' logs are not mentioned.
func TestNoServerListens(t *testing.T) {
	t.Parallel()
	a, b := ports.Addr(t), ports.Addr(t)
	code, out, stderr := run(t, "", "index", "list", "--server", a+","+b)
	if code != errcode.ExitUnavailable || out != "" {
		t.Errorf("exit code %d, out %q", code, out)
	}
	for _, want := range []string{"no server could be reached in ", "http://" + a, "http://" + b, "connection refused"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not in %q", want, stderr)
		}
	}
	if strings.Contains(stderr, "request_id") {
		t.Error(stderr)
	}
}

// TestNoKVListens checks the same for KV nodes and KV's cluster managers. A timeout that the user has set is used in
// full, and so is the default once a node has accepted a connection.
func TestNoKVListens(t *testing.T) {
	t.Parallel()
	a, b := ports.Addr(t), ports.Addr(t)
	code, out, stderr := run(t, "", "kv", "get", "x", "--kv", a+","+b, "--bucket", "w", "--kv-user", "u", "--kv-password",
		"p")
	if code != errcode.ExitUnavailable || out != "" {
		t.Errorf("exit code %d, out %q", code, out)
	}
	for _, want := range []string{"no answer from KV yet", "no KV node was reached in 5s", a + ": ", b + ": ", "refused"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not in %q", want, stderr)
		}
	}
	f := &kvFlags{kv: "http://" + a, bucket: "w", user: "u", timeout: time.Minute,
		stderr: func() io.Writer { return io.Discard }}
	if _, _, _, err := f.connect(t.Context()); !errors.Is(err, errKVUnreached) || !strings.Contains(err.Error(), a) {
		t.Errorf("no cluster manager: %v", err)
	}
	for _, tc := range []struct {
		unreached time.Duration
		dialed    error
		want      string
		ends      bool
	}{
		{reachFor, errors.New("refused"), "(kv1: refused); trying for 5s (longer with --timeout)", true},
		{0, errors.New("refused"), "(kv1: refused); trying for 1h0m0s (--timeout)", false},
		{reachFor, nil, "yet; trying for 1h0m0s (--timeout)", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			var b strings.Builder
			r := &kvReach{}
			r.dialed("kv1", tc.dialed)
			r.follow(ctx, &b, tc.unreached, time.Hour, end)
			if !strings.HasSuffix(b.String(), tc.want+"\n") {
				t.Errorf("%q, want %q", b.String(), tc.want)
			}
			if got := errors.Is(context.Cause(ctx), errKVUnreached); got != tc.ends {
				t.Errorf("%s: ended %v, want %v", tc.want, got, tc.ends)
			}
		})
	}
}

// TestNoServerIsTrusted checks that a command ends before its timeout if no server is trusted, with that error.
func TestNoServerIsTrusted(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(&fake{})
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	other := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(ca, other, 0o600); err != nil {
		t.Fatal(err)
	}
	name := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	code, _, stderr := run(t, "", "index", "list", "--server", name, "--tls-ca", ca, "--timeout", "24h")
	if code != errcode.ExitFailed || !strings.Contains(stderr, "no server is trusted") ||
		!strings.Contains(stderr, name) || strings.Contains(stderr, "request_id") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr = run(t, "", "index", "list", "--server", s.URL, "--tls-ca", ca); code != errcode.ExitOK {
		t.Errorf("by the name that the certificate has: exit code %d: %s", code, stderr)
	}
}

// TestWaitLimited checks which flags limit the wait; the value false does not.
func TestWaitLimited(t *testing.T) {
	for args, want := range map[string]bool{
		"index list": false, "index list --timeout 60s": true, "cluster status": false, "cluster status --wait": true,
		"cluster status --wait=members": true, "index drop x --wait": true, "sql x": false, "sql x --wait": true,
		"sql x --wait=false": false, "rebalance run --wait": true, "watch": false, "watch --timeout 0s": true,
	} {
		words := strings.Fields(args)
		cmd, rest, err := newRoot(Streams{}).Find(words)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Fatal(err)
		}
		if waitLimited(cmd) != want {
			t.Errorf("%s: waitLimited is %v", args, !want)
		}
	}
}

// TestWaitMessage checks that the message about a missing answer states the time limit, and whether the user has set
// it.
func TestWaitMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			err     error
			limit   time.Duration
			timeout time.Duration
			want    string
		}{
			{client.ErrUnreached, reachFor, time.Minute, "trying for 5s (longer with --timeout)"},
			{client.ErrUnreached, 0, time.Minute, "trying for 1m0s (--timeout)"},
			{client.ErrUnavailable, reachFor, time.Minute, "trying for 1m0s (--timeout)"},
			{client.ErrUnavailable, 0, watchForever, "trying until it is stopped"},
		} {
			var b strings.Builder
			report := (&serverFlags{timeout: tc.timeout, streams: Streams{Err: &b}}).waiting(tc.limit)
			report(tc.err)
			if b.Len() > 0 {
				t.Errorf("reported at once: %s", b.String())
			}
			time.Sleep(reportAfter + 1)
			report(tc.err)
			report(tc.err)
			if strings.Count(b.String(), tc.want) != 1 || strings.Count(b.String(), "\n") != 1 {
				t.Errorf("%q, want %q once", b.String(), tc.want)
			}
		}
	})
}

// TestLogHint checks that managers' logs are mentioned only for calls that they may contain.
func TestLogHint(t *testing.T) {
	refused := rpc.NewProblem(503, errcode.NoLeader, "none")
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("%w: %w", client.ErrUnavailable, context.DeadlineExceeded), true},
		{fmt.Errorf("%w: %w", client.ErrUnavailable, refused), true},
		{fmt.Errorf("%w: %w", client.ErrUnavailable, client.ErrUnreached), false},
		{client.ErrUntrusted, false},
		{&tls.CertificateVerificationError{}, false},
		{errors.New("another error"), false},
	} {
		var b strings.Builder
		printError(&b, tc.err, "abc")
		if strings.Contains(b.String(), "request_id abc") != tc.want {
			t.Errorf("%v: %s", tc.err, b.String())
		}
	}
}
