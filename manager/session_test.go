package manager

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
)

// console sends a request as the console's pages do, with a session's cookie, and returns the answer with its body.
func (s *secured) console(n *node, method, path string, cookie *http.Cookie,
	header map[string]string) (*http.Response, v1.WhoAmI) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, n.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	if cookie != nil {
		req.AddCookie(cookie)
	}
	resp, err := s.clients[""].Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var who v1.WhoAmI
	if resp.StatusCode < 204 {
		if err := json.NewDecoder(resp.Body).Decode(&who); err != nil {
			s.t.Fatal(err)
		}
	}
	return resp, who
}

// login requests a session.
func (s *secured) login(n *node, user, password string) (*http.Response, rpc.Problem) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", n.url+"/v1/session", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.SetBasicAuth(user, password)
	resp, err := s.clients[""].Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var p rpc.Problem
	if resp.StatusCode != 201 {
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
			s.t.Fatal(err)
		}
	}
	return resp, p
}

// enter begins a session of the first administrator.
func (s *secured) enter(n *node) *http.Cookie {
	s.t.Helper()
	return s.enterAs(n, FirstAdmin, rootPassword)
}

// enterAs begins a session of a user.
func (s *secured) enterAs(n *node, user, password string) *http.Cookie {
	s.t.Helper()
	resp, p := s.login(n, user, password)
	if resp.StatusCode != 201 || len(resp.Cookies()) != 1 {
		s.t.Fatalf("%d %s, cookies %v", resp.StatusCode, p.Detail, resp.Cookies())
	}
	c := resp.Cookies()[0]
	if !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" ||
		!strings.HasPrefix(c.Name, "__Host-") || c.MaxAge != int(api.SessionTime.Seconds()) {
		s.t.Errorf("cookie %v", c)
	}
	return c
}

// TestSessions: all managers accept a session that a follower began; its cookie counts only with the console's header
// and on the manager's own pages; a user has at most eight, and an ended one is not accepted.
func TestSessions(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	leader, follower := s.nodes[s.leader()], s.follower()
	mine := map[string]string{api.HeaderConsole: "1"}
	first := s.enter(follower)
	for _, n := range s.nodes {
		resp, who := s.console(n, "GET", "/v1/whoami", first, mine)
		if resp.StatusCode != 200 || who.Name != FirstAdmin || who.Role != "admin" || who.By != v1.BySession ||
			!who.Users || who.EndsMS == 0 {
			t.Errorf("%d %+v", resp.StatusCode, who)
		}
	}
	for what, header := range map[string]map[string]string{"without the header": nil,
		"of another site": {api.HeaderConsole: "1", "Sec-Fetch-Site": "cross-site"},
		"of another port": {api.HeaderConsole: "1", "Sec-Fetch-Site": "same-site"}} {
		for _, n := range []*node{leader, follower} {
			if resp, _ := s.console(n, "GET", "/v1/whoami", first, header); resp.StatusCode != 401 {
				t.Errorf("%s: %d", what, resp.StatusCode)
			}
		}
	}
	resp, _ := s.console(follower, "GET", "/v1/whoami", nil, mine)
	if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("a page without a session: %d, %q", resp.StatusCode, resp.Header.Get("WWW-Authenticate"))
	}
	resp, _ = s.console(follower, "POST", "/v1/session", first, mine)
	if resp.StatusCode != 400 { // a session cannot begin another one: it would never end
		t.Errorf("a session by a session: %d", resp.StatusCode)
	}
	root := &who{basic: [2]string{FirstAdmin, rootPassword}}
	alike := `{"user":"admin","note":"session of the console","secret":"tmt_` + strings.Repeat("A", 43) + `"}`
	if status, code := s.as(root, leader, "POST", "/v1/tokens", alike); status != 400 || code != errcode.BadRequest {
		t.Errorf("a token that looks like a session: %d %s", status, code)
	}
	var last *http.Cookie
	for range 8 {
		last = s.enter(follower)
	}
	if resp, _ := s.console(leader, "GET", "/v1/whoami", first, mine); resp.StatusCode != 401 {
		t.Errorf("the oldest of nine sessions: %d", resp.StatusCode)
	}
	tokens := 0
	for range leader.m.raft.State().Tokens() {
		tokens++
	}
	if tokens != 8 {
		t.Errorf("%d sessions, want 8", tokens)
	}
	resp, _ = s.console(follower, "DELETE", "/v1/session", last, mine)
	if resp.StatusCode != 204 || len(resp.Cookies()) != 1 || resp.Cookies()[0].MaxAge >= 0 {
		t.Errorf("%d %v", resp.StatusCode, resp.Cookies())
	}
	for _, n := range []*node{leader, follower} { // a follower learns of it a moment later
		s.until("a session that has ended admits no user", func() bool {
			resp, _ := s.console(n, "GET", "/v1/whoami", last, mine)
			return resp.StatusCode == 401
		})
	}
}

// TestSessionsEndWithTheirPassword: a session ends everywhere when its user's password or role is changed
// through any manager; other users' sessions and other tokens do not. The change has "by", even without an
// Idempotency-Key. A user who begins session after session has to wait, and displaces no events.
func TestSessionsEndWithTheirPassword(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	leader, follower := s.nodes[s.leader()], s.follower()
	mine := map[string]string{api.HeaderConsole: "1"}
	root := &who{basic: [2]string{FirstAdmin, rootPassword}}
	do := func(w *who, method, path, body string) {
		t.Helper()
		if status, code := s.known(w, follower, method, path, body); status > 204 {
			t.Fatalf("%s %s: %d %s", method, path, status, code)
		}
	}
	is := func(c *http.Cookie, status int) {
		t.Helper()
		for _, n := range s.nodes { // a follower learns of it a moment later
			s.until("what a session is worth", func() bool {
				resp, _ := s.console(n, "GET", "/v1/whoami", c, mine)
				return resp.StatusCode == status
			})
		}
		passed := &who{header: map[string]string{api.HeaderConsole: "1", "Cookie": c.Name + "=" + c.Value}}
		if got, _ := s.known(passed, follower, "GET", "/v1/indexes", ""); got != status {
			t.Errorf("what a follower passes on: %d, want %d", got, status)
		}
	}
	do(root, "PUT", "/v1/users/ann", `{"new":true,"role":"read","password":"`+readPassword+`"}`)
	secret := "tmt_" + strings.Repeat("A", 43)
	do(root, "POST", "/v1/tokens", `{"user":"admin","secret":"`+secret+`"}`)
	stolen, others := s.enter(follower), s.enterAs(follower, "ann", readPassword)
	is(stolen, 200)
	do(root, "PUT", "/v1/users/admin", `{"password":"another-password-1"}`)
	is(stolen, 401)
	is(others, 200)
	root.basic[1] = "another-password-1"
	do(&who{header: map[string]string{"Authorization": "Bearer " + secret}}, "GET", "/v1/users", "")
	do(root, "PUT", "/v1/users/ann", `{"role":"ddl"}`)
	is(others, 401)

	before := leader.m.machine.State().CAS()
	begun, pause := 0, int64(0)
	s.until("too many sessions", func() bool {
		resp, p := s.login(follower, "ann", readPassword)
		if resp.StatusCode == 201 {
			begun++
			return false
		}
		switch pause = p.RetryAfterMS; p.Code {
		case errcode.Busy:
			return true
		case errcode.NoLeader, errcode.OutcomeUnknown, errcode.ManagerNotCurrent, errcode.Timeout: // retried
			return false
		}
		t.Fatalf("session %d: %d %+v", begun, resp.StatusCode, p)
		return false
	})
	if begun < 15 || pause <= 0 { // one was begun before
		t.Errorf("%d sessions were begun; the next one in %d ms", begun, pause)
	}
	do(root, "DELETE", "/v1/users/ann", "")
	loud, last := 0, statecontext.Event{}
	for _, e := range leader.m.machine.Feed(0, before).Events {
		if last = e; e.Kind == statecontext.EventSession && e.Kind.Loud() && e.By == "ann" {
			loud++
		}
	}
	if loud != begun || last.By != FirstAdmin || last.Kind != statecontext.EventCluster {
		t.Errorf("%d events of %d sessions; the last one is %+v", loud, begun, last)
	}
}
