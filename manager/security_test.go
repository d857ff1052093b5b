package manager

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api"
	"tidemark/manager/auth"
	"tidemark/statecontext"
	"tidemark/wire"
)

// secured is three managers with TLS, users and tokens, whose REST interface is called with all kinds of credentials.
type secured struct {
	*trio
	ca      *tlsconf.CA
	certs   string
	clients map[string]*http.Client // by name of the certificate, "" for none
}

const (
	rootPassword = "root-password-1"
	readPassword = "read-password-1"
	ddlPassword  = "ddl-password-12"
)

// certificate issues one and returns the source of a process that holds it.
func certificate(t testing.TB, ca *tlsconf.CA, dir string, p tlsconf.Peer) *tlsconf.Source {
	t.Helper()
	files, err := ca.Issue(dir, string(p.Role)+"-"+p.ID, tlsconf.Request{Peer: p, Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	source, err := tlsconf.Open(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// newSecured starts the managers with a password for the first administrator.
func newSecured(t testing.TB, change ...func(*Config)) *secured {
	t.Helper()
	s := &secured{certs: t.TempDir(), clients: map[string]*http.Client{}}
	var err error
	if s.ca, err = tlsconf.CreateCA(s.certs, "test", time.Hour); err != nil {
		t.Fatal(err)
	}
	s.trio = newTrioWith(t, append(change, func(cfg *Config) {
		cfg.TLS = certificate(t, s.ca, s.certs, tlsconf.Peer{Role: tlsconf.Manager, ID: cfg.Name})
		cfg.InitialAdmin = rootPassword
	})...)
	trusting, err := tlsconf.Open(tlsconf.Files{CA: filepath.Join(s.certs, tlsconf.CAFile)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.client("", trusting.UserClient())
	for _, p := range []tlsconf.Peer{{Role: tlsconf.Manager, ID: "m7"}, {Role: tlsconf.Projector, ID: "p1"},
		{Role: tlsconf.Indexer, ID: "i1"},
		{Role: tlsconf.Admin, ID: "operator"}, {Role: tlsconf.User, ID: "reader"}, {Role: tlsconf.User, ID: "nobody"}} {
		s.client(p.String(), certificate(t, s.ca, s.certs, p).UserClient())
	}
	foreign, err := tlsconf.CreateCA(t.TempDir(), "of another cluster", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	intruder := certificate(t, foreign, t.TempDir(), tlsconf.Peer{Role: tlsconf.Admin, ID: "operator"})
	conf := trusting.UserClient()
	conf.GetClientCertificate = intruder.UserClient().GetClientCertificate
	s.client("foreign", conf)
	s.until("the first administrator", func() bool { return s.nodes[0].m.raft.State().UserCount() > 0 })
	s.leader()
	return s
}

func (s *secured) client(name string, conf *tls.Config) {
	transport := &http.Transport{TLSClientConfig: conf}
	s.t.Cleanup(transport.CloseIdleConnections)
	s.clients[name] = &http.Client{Transport: transport, Timeout: patience}
}

// who is a kind of client.
type who struct {
	name        string
	certificate string
	basic       [2]string
	header      map[string]string
	may         api.Role // its highest role; "" for none, component roles by name
	node        tlsconf.Role
}

// known is like as, but retries while the manager cannot check credentials, there is no leader, or nothing was done
// in time: on a busy machine a follower may have lost contact to its leader for a moment.
func (s *secured) known(w *who, n *node, method, path, body string) (status int, code errcode.Code) {
	s.t.Helper()
	s.until("an answer", func() bool {
		status, code = s.as(w, n, method, path, body)
		return code != errcode.ManagerNotCurrent && code != errcode.NoLeader && code != errcode.Timeout
	})
	return status, code
}

// as sends a request with a client's credentials and returns status and code; a connection error has status 0.
func (s *secured) as(w *who, n *node, method, path, body string) (int, errcode.Code) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel() // ends streams
	req, err := http.NewRequestWithContext(ctx, method, n.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range w.header {
		req.Header.Set(k, v)
	}
	if w.basic[0] != "" {
		req.SetBasicAuth(w.basic[0], w.basic[1])
	}
	resp, err := s.clients[w.certificate].Do(req)
	if err != nil {
		return 0, errcode.Code(err.Error())
	}
	defer resp.Body.Close()
	if resp.StatusCode < 300 {
		return resp.StatusCode, ""
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		s.t.Fatal(err)
	}
	var p rpc.Problem
	if json.Unmarshal(b, &p) != nil {
		return resp.StatusCode, errcode.Code(b)
	}
	return resp.StatusCode, p.Code
}

// allowed defines what each route's role means, independently of the code.
func allowed(w *who, route *api.RouteInfo) bool {
	rank := map[api.Role]int{api.RoleMetrics: 1, api.RoleRead: 2, api.RoleDDL: 3, api.RoleAdmin: 4}
	switch route.Role {
	case api.RoleNone:
		return true
	case api.RoleComponent:
		switch route.Path {
		case "/v1/cluster/indexers", "/v1/buckets/{bucket}:stabilize", "/v1/tickets:check":
			return w.node == tlsconf.Manager || w.node == tlsconf.Indexer
		case "/v1/cluster/projectors", "/v1/cluster/projectors:leave":
			return w.node == tlsconf.Manager || w.node == tlsconf.Projector
		case "/v1/components/{id}/reports", wire.TokenCheckPath:
			return w.node != ""
		}
		return w.node == tlsconf.Manager
	}
	return rank[w.may] >= rank[route.Role]
}

// TestEveryRouteByEveryRole: each route of the mux is called by every kind of client, on the leader and on a
// follower: it is refused with 401 or 403 exactly if the route's role requires that.
func TestEveryRouteByEveryRole(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	root := &who{name: "root", basic: [2]string{FirstAdmin, rootPassword}, may: api.RoleAdmin}
	leader, follower := s.nodes[s.leader()], s.follower()
	s.until("all know the first administrator", func() bool {
		return !slices.ContainsFunc(s.nodes, func(n *node) bool { return n.m.raft.State().UserCount() == 0 })
	})
	for name, role := range map[string][2]string{"reader": {"read", readPassword}, "changer": {"ddl", ddlPassword},
		"watcher": {"metrics", readPassword}} {
		body := fmt.Sprintf(`{"new":true,"role":%q,"password":%q}`, role[0], role[1])
		if status, code := s.known(root, follower, "PUT", "/v1/users/"+name, body); status != 200 {
			t.Fatalf("%s: %d %s", name, status, code)
		}
	}
	secret := statecontext.TokenPrefix + strings.Repeat("A", 43)
	if status, code := s.known(root, leader, "POST", "/v1/tokens", fmt.Sprintf(`{"user":"changer","role":"read","secret":%q}`, secret)); status != 201 {
		t.Fatalf("token: %d %s", status, code)
	}
	s.until("all know the users", func() bool {
		for _, n := range s.nodes {
			if state := n.m.raft.State(); state.UserCount() != 4 || state.Token(tokenID(t, secret)) == nil {
				return false
			}
		}
		return true
	})
	forged := map[string]string{api.HeaderPrincipal: "user=" + FirstAdmin + "&certificate=yes"}
	manager := tlsconf.Peer{Role: tlsconf.Manager, ID: "m7"}.String()
	everybody := []*who{
		root,
		{name: "anonymous"},
		{name: "anonymous with a forwarded principal",
			header: map[string]string{api.HeaderPrincipal: forged[api.HeaderPrincipal], api.HeaderForwarded: "m1"}},
		{name: "wrong token", header: map[string]string{"Authorization": "Bearer " + statecontext.TokenPrefix +
			strings.Repeat("B", 43)}},
		{name: "metrics", basic: [2]string{"watcher", readPassword}, may: api.RoleMetrics},
		{name: "read", basic: [2]string{"reader", readPassword}, may: api.RoleRead},
		{name: "reader with a forwarded principal", basic: [2]string{"reader", readPassword}, header: forged,
			may: api.RoleRead},
		{name: "ddl", basic: [2]string{"changer", ddlPassword}, may: api.RoleDDL},
		{name: "token of ddl for read", header: map[string]string{"Authorization": "Bearer " + secret}, may: api.RoleRead},
		{name: "certificate of an administrator", certificate: tlsconf.Peer{Role: tlsconf.Admin, ID: "operator"}.String(),
			may: api.RoleAdmin},
		{name: "certificate of a user", certificate: tlsconf.Peer{Role: tlsconf.User, ID: "reader"}.String(),
			may: api.RoleRead},
		{name: "certificate of an unknown user", certificate: tlsconf.Peer{Role: tlsconf.User, ID: "nobody"}.String()},
		{name: "manager", certificate: manager, node: tlsconf.Manager, may: api.RoleRead},
		{name: "manager, for a user", certificate: manager, node: tlsconf.Manager,
			header: map[string]string{api.HeaderPrincipal: "user=changer&certificate=yes"}, may: api.RoleDDL},
		{name: "manager, for a user that says more than is", certificate: manager, node: tlsconf.Manager,
			header: map[string]string{api.HeaderPrincipal: "user=changer&role=admin"}},
		{name: "manager, for a user that is not", certificate: manager, node: tlsconf.Manager,
			header: map[string]string{api.HeaderPrincipal: "user=gone&certificate=yes"}},
		{name: "manager, for an anonymous client", certificate: manager, node: tlsconf.Manager,
			header: map[string]string{api.HeaderPrincipal: "nobody"}},
		{name: "projector", certificate: tlsconf.Peer{Role: tlsconf.Projector, ID: "p1"}.String(), node: tlsconf.Projector,
			header: forged},
		{name: "indexer", certificate: tlsconf.Peer{Role: tlsconf.Indexer, ID: "i1"}.String(), node: tlsconf.Indexer,
			header: forged},
		{name: "indexer, with a user's password", certificate: tlsconf.Peer{Role: tlsconf.Indexer, ID: "i1"}.String(),
			node: tlsconf.Indexer, basic: [2]string{FirstAdmin, rootPassword}},
	}
	for where, n := range map[string]*node{"leader": leader, "follower": follower} {
		for _, route := range leader.m.api.Routes() {
			for _, w := range everybody {
				s.checkRoute(where, n, &route, w)
			}
		}
		if status, said := s.known(&who{certificate: "foreign"}, n, "GET", "/v1/indexes", ""); status != 0 {
			t.Errorf("%s: a certificate of another CA: %d %s", where, status, said)
		}
	}
	t.Run("wrong passwords", func(t *testing.T) { // each costs a hash: not for every route
		for _, basic := range [][2]string{{FirstAdmin, readPassword}, {"reader", rootPassword}, {"nobody", readPassword},
			{"reader", ""}} {
			if status, code := s.known(&who{basic: basic}, follower, "GET", "/v1/indexes", ""); status != 401 ||
				code != errcode.Unauthenticated {
				t.Errorf("%v: %d %s", basic, status, code)
			}
		}
	})
	t.Run("streams end with the right to them", s.streams)
}

// TestNewUsersAreKnownEverywhere: a user created a moment ago at the leader is admitted by the followers, whether
// they have applied that or not, and so is a token.
func TestNewUsersAreKnownEverywhere(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	root := &who{name: "root", basic: [2]string{FirstAdmin, rootPassword}}
	for i := range 10 {
		leader, follower := s.nodes[s.leader()], s.follower()
		name := fmt.Sprint("user", i)
		if status, code := s.known(root, leader, "PUT", "/v1/users/"+name, fmt.Sprintf(`{"new":true,"role":"read","password":%q}`, readPassword)); status != 200 {
			t.Fatalf("%s: %d %s", name, status, code)
		}
		if status, code := s.known(&who{basic: [2]string{name, readPassword}}, follower, "GET", "/v1/indexes",
			""); status != 200 {
			t.Errorf("%s at a follower: %d %s", name, status, code)
		}
		secret := statecontext.TokenPrefix + strings.Repeat(string(rune('A'+i)), 42) + "A"
		if status, code := s.known(root, leader, "POST", "/v1/tokens", fmt.Sprintf(`{"user":%q,"role":"read","secret":%q}`, name, secret)); status != 201 {
			t.Fatalf("token of %s: %d %s", name, status, code)
		}
		bearer := map[string]string{"Authorization": "Bearer " + secret}
		if status, code := s.known(&who{header: bearer}, follower, "GET", "/v1/indexes", ""); status != 200 {
			t.Errorf("token of %s at a follower: %d %s", name, status, code)
		}
	}
}

// checkRoute calls one route. Allowed requests have a body that no handler accepts, so that nothing happens: any
// answer except 401 and 403 is right.
func (s *secured) checkRoute(where string, n *node, route *api.RouteInfo, w *who) {
	s.t.Helper()
	path := regexp.MustCompile(`\{\w+(:[^}]*\]\+|:[^}]*)?\}`).ReplaceAllString(route.Path, "77")
	if allowed(w, route) && (route.Path == "/v1/cluster/managers:transfer-leadership" ||
		route.Path == "/v1/cluster:finalize-upgrade") {
		return // it would take effect
	}
	status, code := s.known(w, n, route.Method, path, `{"no such field":1}`)
	refused := status == http.StatusUnauthorized || status == http.StatusForbidden
	if status == 0 || status == http.StatusTooManyRequests && code == errcode.TooManyFailures || status >= 500 &&
		status != 503 {
		s.t.Errorf("%s %s %s on the %s: %d %s", w.name, route.Method, path, where, status, code)
	}
	if refused == allowed(w, route) {
		s.t.Errorf("%s %s %s (role %s) on the %s: %d %s", w.name, route.Method, path, route.Role, where, status, code)
	}
}

func tokenID(t testing.TB, secret string) string {
	t.Helper()
	hash, err := auth.TokenHash(secret)
	if err != nil {
		t.Fatal(err)
	}
	return statecontext.TokenID(hash)
}

// streams verifies that a stream of events is cut when its user is removed.
func (s *secured) streams(t *testing.T) {
	n := s.follower()
	req, err := http.NewRequestWithContext(t.Context(), "GET", n.url+"/v1/events?kinds=cluster", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("reader", readPassword)
	resp, err := s.clients[""].Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	defer resp.Body.Close()
	root := &who{basic: [2]string{FirstAdmin, rootPassword}}
	if status, code := s.known(root, n, "DELETE", "/v1/users/reader", ""); status != 204 {
		t.Fatalf("%d %s", status, code)
	}
	all, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(all, []byte("event: end")) || !bytes.Contains(all, []byte(`"refused"`)) {
		t.Errorf("%v: %s", err, all)
	}
	if status, _ := s.known(&who{basic: [2]string{"reader", readPassword}}, n, "GET", "/v1/indexes", ""); status != 401 {
		t.Errorf("a removed user: %d", status)
	}
}

// TestPortsOfASecuredManager: the Raft port accepts only managers; neither port works without TLS.
func TestPortsOfASecuredManager(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	n := s.nodes[s.leader()]
	for _, tc := range []struct {
		peer tlsconf.Peer
		ok   bool
	}{{tlsconf.Peer{Role: tlsconf.Manager, ID: "m8"}, true}, {tlsconf.Peer{Role: tlsconf.Indexer, ID: "i8"}, false},
		{tlsconf.Peer{Role: tlsconf.Projector, ID: "p8"}, false}, {tlsconf.Peer{Role: tlsconf.Admin, ID: "a8"}, false},
		{tlsconf.Peer{Role: tlsconf.User, ID: "u8"}, false}} {
		source := certificate(t, s.ca, s.certs, tc.peer)
		conn, err := source.Dial(tlsconf.Raft, tlsconf.Manager)(n.m.cfg.Raft, patience)
		if err == nil { // with TLS 1.3 the refusal comes with the first read
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		var waiting net.Error
		listening := errors.As(err, &waiting) && waiting.Timeout() // the other side waits for a handshake
		if listening != tc.ok {
			t.Errorf("%s on the Raft port: %v", tc.peer, err)
		}
	}
	for _, addr := range []string{n.m.cfg.Raft, n.m.cfg.REST} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "GET /v1/indexes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		answer, _ := io.ReadAll(conn)
		_ = conn.Close()
		if bytes.Contains(answer, []byte("200 OK")) || bytes.Contains(answer, []byte("indexes")) {
			t.Errorf("%s answers without TLS: %s", addr, answer)
		}
	}
	resp, err := http.Get("http://" + n.m.cfg.REST + "/v1/indexes")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if p := rpc.ReadProblem(resp); resp.StatusCode != 400 || !strings.Contains(p.Detail, "https://") {
		t.Errorf("without TLS: %d %v", resp.StatusCode, p)
	}
}
