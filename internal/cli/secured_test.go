package cli

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/statecontext"
)

// guarded is a manager with TLS that refuses every request, and records its credentials.
type guarded struct {
	mu   sync.Mutex
	sent []string // credentials of each request
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who := r.Header.Get("Authorization")
	if r.URL.Path != "/healthz" { // liveness needs no credentials
		g.mu.Lock()
		g.sent = append(g.sent, who)
		g.mu.Unlock()
	}
	if who == "" {
		rpc.WriteProblem(w, rpc.NewProblem(401, errcode.Unauthenticated, "who are you?"))
		return
	}
	rpc.WriteProblem(w, rpc.NewProblem(403, errcode.Forbidden, "not you"))
}

// take returns the credentials of the requests since its last call.
func (g *guarded) take() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	sent := g.sent
	g.sent = nil
	return sent
}

// TestEveryCommandSendsItsCredentials checks that each command that uses a cluster, in its first example, uses TLS and
// sends the given user or token with every request; without credentials it reports that they are required.
func TestEveryCommandSendsItsCredentials(t *testing.T) {
	g := &guarded{}
	s := httptest.NewTLSServer(g)
	defer s.Close()
	t.Chdir(t.TempDir())
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	var backup strings.Builder
	if err := statecontext.WriteBackup(&backup, statecontext.New(), 1, "1"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"ca.pem": string(ca), "secret": "tdm_secret\n",
		"b.backup": backup.String()} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// given has arguments where the first example has another cluster or user, or needs a file or input
	given := map[string][]string{
		"tidemark cluster leave":   {},
		"tidemark cluster restore": {"b.backup", "--yes"},
		"tidemark user add":        {"bob", "--role", "read", "--new-password-file", "secret"},
		"tidemark user passwd":     {"bob", "--new-password-file", "secret"},
		"tidemark user whoami":     {},
		"tidemark token create":    {"bob"},
	}
	offline := map[string]bool{"tidemark cluster backup verify": true, "tidemark cluster recover": true,
		"tidemark context add": true, "tidemark shell": true /* its lines are other commands */}
	commands := 0
	everyCommand(func(c *cobra.Command) {
		if c.Flag("token-file") == nil || c.Flag("server") == nil || !c.Runnable() || c.HasSubCommands() ||
			offline[c.CommandPath()] {
			return
		}
		args, ok := given[c.CommandPath()]
		if ok {
			args = append(strings.Fields(c.CommandPath())[1:], args...)
		} else {
			first, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
			words, err := splitWords(first)
			if err != nil {
				t.Errorf("%s: %v", c.CommandPath(), err)
				return
			}
			args = words
		}
		commands++
		t.Run(c.CommandPath(), func(t *testing.T) {
			all := append(append([]string{}, args...), "--server", s.URL, "--tls-ca", "ca.pem", "--timeout", "1h")
			for who, flags := range map[string][]string{"Bearer tdm_secret": {"--token-file", "secret"},
				"Basic YWxpY2U6dGRtX3NlY3JldA==": {"--user", "alice", "--password-file", "secret"}, "": nil} {
				code, _, stderr := run(t, "", append(append([]string{}, all...), flags...)...)
				want := "FORBIDDEN"
				if who == "" {
					want = "UNAUTHENTICATED"
				}
				if sent := g.take(); code != errcode.ExitFailed || !strings.Contains(stderr, want) || len(sent) == 0 {
					t.Errorf("as %q: exit code %d, %d requests: %s", who, code, len(sent), stderr)
				} else {
					for _, a := range sent {
						if a != who {
							t.Errorf("as %q: a request had the credentials %q", who, a)
						}
					}
				}
			}
		})
	})
	if commands < 40 {
		t.Errorf("only %d commands", commands)
	}
}
