package fleet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/internal/rpc"
	"tidemark/internal/testing/need"
	"tidemark/internal/testing/rpctest"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector"
	"tidemark/projector/core"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestNodesOf: the nodes of a map, depending on the address at which it was read.
func TestNodesOf(t *testing.T) {
	config := &mcbp.ClusterConfig{NodesExt: []mcbp.ConfigNodeExt{
		{Hostname: "10.0.0.1", Services: map[string]int{"kv": 11210, "kvSSL": 11207, "mgmt": 8091},
			AlternateAddresses: map[string]mcbp.AlternateAddress{"external": {Hostname: "kv1.example",
				Ports: map[string]int{"kv": 31210}}}},
		{Hostname: "10.0.0.2", Services: map[string]int{"kv": 11210, "kvSSL": 11207, "mgmt": 8091}},
	}}
	alone := &mcbp.ClusterConfig{NodesExt: []mcbp.ConfigNodeExt{{ThisNode: true,
		Services: map[string]int{"kv": 11210, "kvSSL": 11207, "mgmt": 8091}}}}
	for _, tt := range []struct {
		name, via, network string
		config             *mcbp.ClusterConfig
		tls, rest          bool
		want               string
	}{
		{name: "plain", config: config, via: "10.0.0.2:11210", want: "10.0.0.1:11210 10.0.0.2:11210"},
		{name: "TLS: called as ever", config: config, via: "10.0.0.2:11207", tls: true,
			want: "10.0.0.1:11210=10.0.0.1:11207 10.0.0.2:11210=10.0.0.2:11207"},
		{name: "from outside, found", config: config, via: "kv1.example:31210",
			want: "10.0.0.1:11210=kv1.example:31210 10.0.0.2:11210=!"},
		{name: "from outside, named", config: config, via: "tunnel:1", network: "external",
			want: "10.0.0.1:11210=kv1.example:31210 10.0.0.2:11210=!"},
		{name: "managers", config: config, via: "10.0.0.2:11210", rest: true,
			want: "10.0.0.1:11210/10.0.0.1:8091 10.0.0.2:11210/10.0.0.2:8091"},
		{name: "one that does not know its name", config: alone, via: "[::1]:11210", want: "[::1]:11210"},
	} {
		var got []string
		for _, n := range nodesOf(tt.config, tt.via, tt.network, tt.tls, tt.rest) {
			text := n.Name
			switch {
			case n.Addr == "" && n.Why == "", n.Addr != "" && n.Why != "":
				t.Errorf("%s: %+v", tt.name, n)
			case n.Addr == "":
				text += "=!"
			case n.Addr != n.Name:
				text += "=" + n.Addr
			}
			if n.Manager != "" {
				text += "/" + n.Manager
			}
			got = append(got, text)
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}

// open returns a process with these seeds; it does not run.
func open(t *testing.T, c Config) *Fleet {
	t.Helper()
	p := &c.Projector
	p.ID, p.Managers, p.Admin, p.User, p.Password = "p1", []string{"http://127.0.0.1:1"}, "127.0.0.1:0", "u", "p"
	f, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.listener.Close()
		f.managers.Close()
	})
	return f
}

// silent returns an address that accepts connections and answers nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// TestSeeds: a hanging and a dead seed do not keep the process from one that answers, which is tried first from then
// on. If none does, readiness lists each.
func TestSeeds(t *testing.T) {
	server := &kvclienttest.Server{User: "u", Password: "p"}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	http1 := httptest.NewServer(http.NotFoundHandler())
	defer http1.Close()
	manager := strings.TrimPrefix(http1.URL, "http://")
	for _, tt := range []struct {
		name string
		c    Config
		want string
	}{
		{"nodes", Config{Seeds: []string{silent(t), "127.0.0.1:1", server.Addr()}}, server.Addr()},
		{"managers", Config{Managers: []string{silent(t), "127.0.0.1:1", manager}}, manager},
		{"none", Config{Seeds: []string{"127.0.0.1:1", "127.0.0.1:2"}}, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f := open(t, tt.c)
		n, err := f.answering(ctx, core.KVNode{})
		if n.Addr != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %+v, %v", tt.name, n, err)
		}
		if err != nil {
			f.seedErr = err.Error()
			if r := f.reasons(); len(r) != 1 || r[0].Code != reasonNoNode || !strings.Contains(r[0].Detail, "127.0.0.1:1") ||
				!strings.Contains(r[0].Detail, "127.0.0.1:2") {
				t.Errorf("%s: not ready for %v", tt.name, r)
			}
			continue
		}
		f.cfg.Seeds, f.cfg.Managers = nil, nil
		if again, err := f.answering(ctx, n); err != nil || again != n {
			t.Errorf("%s: then %+v, %v", tt.name, again, err)
		}
	}
}

// TestAManagerHasNoZone: a manager at an IPv6 address with a zone is recognized by the address alone, and a name that
// it does not prove is refused.
func TestAManagerHasNoZone(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		need.Missing(t, "this machine has no IPv6: %v", err)
	}
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	_ = s.Listener.Close()
	s.Listener = l
	s.StartTLS()
	defer s.Close()
	trusts := x509.NewCertPool()
	trusts.AddCert(s.Certificate())
	at, err := net.ResolveTCPAddr("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	at.Zone = "1" // of the loopback interface, also by this number
	f := open(t, Config{Managers: []string{at.String()}, Projector: projector.Config{KVTLS: &tls.Config{RootCAs: trusts}}})
	if err := f.probeManager(t.Context(), at.String()); err != nil {
		t.Error(err)
	}
	var other x509.HostnameError
	f.cfg.Projector.KVTLS.ServerName = "other.example.org"
	if err := f.probeManager(t.Context(), at.String()); !errors.As(err, &other) {
		t.Errorf("a manager that does not prove the name: %v", err)
	}
}

// TestAMemberEnds: a projector that ends by itself ends neither the process nor the others; the reason why its node
// is not served is reported, and there is another projector after a while.
func TestAMemberEnds(t *testing.T) {
	f := open(t, Config{Seeds: []string{"127.0.0.1:1"}})
	const well, ill = "10.0.0.1:11210", "10.0.0.2:11210"
	f.plan.Saw(f.nowMS(), "world", timestamp.MapRevision{Rev: 1}, []core.KVNode{{Name: well, Addr: well},
		{Name: ill, Addr: ill}})
	began := make(chan string, 8)
	first := true // only of the failing one, of which there is one at a time
	f.run = func(ctx context.Context, p *projector.Projector) error {
		node := strings.TrimPrefix(string(p.ID()), "p1@")
		began <- node
		if node == ill && first {
			first = false
			return errors.New("its disk is full")
		}
		<-ctx.Done()
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	seen := map[string]int{}
	for reported := false; seen[ill] < 2 || !reported; {
		select {
		case node := <-began:
			seen[node]++
		case err := <-ended:
			t.Fatalf("the process ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if p := f.process(); len(p.Unserved) == 1 && p.Unserved[0].Node == ill {
			reported = reported || strings.Contains(p.Unserved[0].Error, "its disk is full")
			if r := f.reasons(); !slices.ContainsFunc(r, func(r rpc.Reason) bool {
				return r.Code == reasonUnserved && strings.Contains(r.Detail, "its disk is full")
			}) {
				t.Fatalf("readiness does not say so: %v", r)
			}
		}
	}
	if n := (&member{fleet: f}).Sharers(); n != 2 {
		t.Errorf("%d share the memory of one", n)
	}
	if seen[well] != 1 {
		t.Errorf("the other one began %d times", seen[well])
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestTroubleIsReportedOnce: a repeated error is logged once in a while, whatever its numbers; a different one is
// logged at once.
func TestTroubleIsReportedOnce(t *testing.T) {
	var l troubleLog
	at := time.Now()
	for i, tt := range []struct {
		after time.Duration
		text  string // empty: no error any more
		want  bool
	}{
		{0, "", false},
		{0, "read 127.0.0.1:4711: reset", true},
		{5 * time.Second, "read 127.0.0.1:4712: reset", false},
		{10 * time.Second, "no route", true},
		{15 * time.Second, "no route", false},
		{11 * time.Minute, "no route", true},
		{12 * time.Minute, "", true},
		{12 * time.Minute, "no route", true},
	} {
		got := false
		if tt.text == "" {
			got = l.over()
		} else {
			got = l.news(at.Add(tt.after), tt.text)
		}
		if got != tt.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}

// TestTable: the calls of a process's port are bounded, and docs/protocol.md lists them.
func TestTable(t *testing.T) {
	rpctest.Whole(t, "A projector process with --kv-all, --admin", open(t, Config{Seeds: []string{"127.0.0.1:1"}}).table())
}

// TestOnePort: behind one port each node's projector is reached under its node's name; unknown paths are refused.
func TestOnePort(t *testing.T) {
	f := open(t, Config{Seeds: []string{"127.0.0.1:1"}})
	for _, name := range []string{"10.0.0.1:11210", "[::1]:11210"} {
		m := &member{fleet: f, node: core.KVNode{Name: name}}
		cfg := f.cfg.Projector
		cfg.ID, cfg.Host = f.idOf(name), m
		var err error
		if m.p, err = projector.Open(cfg); err != nil {
			t.Fatal(err)
		}
		f.members[name] = m
		stop := m.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "%s says %s?%s", name, r.URL.Path, r.URL.RawQuery)
		}))
		defer stop()
	}
	f.unserved = []core.KVNode{{Name: "10.0.0.9:11210", Why: "it has no address"}}
	h := f.table().Handler()
	ask := func(url string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		r.Header.Set("Accept", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for name, m := range f.members {
		_, path, _ := strings.Cut(m.URL(), f.AdminAddr())
		code, got := ask(path + "/v1/streams:stop?a=b")
		if code != http.StatusOK || got != name+" says /v1/streams:stop?a=b" {
			t.Errorf("%s: %d %s", path, code, got)
		}
	}
	for _, path := range []string{"/v1/state", "/"} {
		if code, got := ask(path); code != http.StatusNotFound || !strings.Contains(got, "NOT_FOUND") {
			t.Errorf("%s: %d %s", path, code, got)
		}
	}
	// NOT_FOUND would mean that a bucket or an index does not exist.
	if code, got := ask("/kv/10.0.0.2:11210/v1/state"); code != http.StatusServiceUnavailable ||
		!strings.Contains(got, `"UNAVAILABLE"`) {
		t.Errorf("of a node that it does not serve: %d %s", code, got)
	}
	code, got := ask("/v1/projectors")
	var p wire.ProjectorProcess
	if err := json.Unmarshal([]byte(got), &p); err != nil || code != http.StatusOK || len(p.Projectors) != 2 ||
		p.Projectors[0].ID != "p1@10.0.0.1:11210" || len(p.Unserved) != 1 || p.Unserved[0].Error != "it has no address" {
		t.Errorf("%d %s: %v", code, got, err)
	}
	if code, got := ask("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(got, "10.0.0.9:11210") ||
		!strings.Contains(got, "[::1]:11210: no manager has registered") {
		t.Errorf("%d %s", code, got)
	}
	if code, got := ask("/metrics"); code != http.StatusOK ||
		!strings.Contains(got, `tidemark_projector_buckets{kv_node="[::1]:11210"} 0`) ||
		!strings.Contains(got, `tidemark_projector_kv_nodes{state="unserved"} 1`) ||
		strings.Count(got, "\ntidemark_build_info{") != 1 || strings.Count(got, "\nprocess_resident_memory_bytes ") != 1 {
		t.Errorf("%d %s", code, got)
	}
	if r := f.reasons(); !slices.ContainsFunc(r, func(r rpc.Reason) bool { return r.Code == reasonUnserved }) {
		t.Errorf("%v", r)
	}
}
