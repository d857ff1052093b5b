package manager

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// TestStaleFollowerCannotAuthorize: an administrator is removed and another one demoted while a follower
// cannot store that. Through the follower they cannot write from the first moment on, since the leader checks them
// itself; and after a short time the follower answers no user by itself until it has caught up.
func TestStaleFollowerCannotAuthorize(t *testing.T) {
	t.Parallel()
	s := newSecured(t, steadfast)
	root := &who{name: "root", basic: [2]string{FirstAdmin, rootPassword}}
	leader, follower := s.nodes[s.leader()], s.follower()
	const staleRead, write = "/v1/indexes?consistency=stale", "/v1/limits"
	ask := func(w *who, n *node, method, path, body string, want int) {
		t.Helper()
		if status, code := s.known(w, n, method, path, body); status != want {
			t.Fatalf("%s: %s %s: %d %s, want %d", w.name, method, path, status, code, want)
		}
	}
	secret := statecontext.TokenPrefix + strings.Repeat("C", 42) + "A"
	gone := []*who{
		{name: "removed", basic: [2]string{"removed", ddlPassword}},
		{name: "demoted", basic: [2]string{"demoted", ddlPassword}},
		{name: "token of the removed", header: map[string]string{"Authorization": "Bearer " + secret}},
		{name: "certificate", certificate: tlsconf.Peer{Role: tlsconf.User, ID: "reader"}.String()},
	}
	for _, name := range []string{"removed", "demoted", "reader"} {
		ask(root, leader, "PUT", "/v1/users/"+name, fmt.Sprintf(`{"new":true,"role":"admin","password":%q}`, ddlPassword), 200)
	}
	ask(root, leader, "POST", "/v1/tokens", fmt.Sprintf(`{"user":"removed","role":"admin","secret":%q}`, secret), 201)
	promoted := &who{name: "promoted", basic: [2]string{"promoted", readPassword}}
	ask(root, leader, "PUT", "/v1/users/promoted", fmt.Sprintf(`{"new":true,"role":"read","password":%q}`, readPassword), 200)
	ask(promoted, follower, "GET", staleRead, "", 200)
	for _, w := range append(gone, root) { // correct passwords are cached
		ask(w, follower, "PATCH", write, `{}`, 200)
		ask(w, follower, "GET", staleRead, "", 200)
	}

	follower.full.Store(true)
	ask(root, leader, "DELETE", "/v1/users/removed", "", 204)
	ask(root, leader, "PUT", "/v1/users/demoted", `{"role":"read"}`, 200)
	ask(root, leader, "DELETE", "/v1/users/reader", "", 204)
	ask(root, leader, "PUT", "/v1/users/late", fmt.Sprintf(`{"new":true,"role":"admin","password":%q}`, ddlPassword), 200)
	late := &who{name: "late", basic: [2]string{"late", ddlPassword}}
	if status, code := s.as(late, follower, "GET", staleRead, ""); status != http.StatusServiceUnavailable ||
		code != errcode.ManagerNotCurrent {
		t.Errorf("a user whom the follower cannot know yet: %d %s", status, code)
	}
	ask(root, leader, "PUT", "/v1/users/promoted", `{"role":"admin"}`, 200)
	if status, code := s.as(promoted, follower, "PATCH", write, `{}`); status != http.StatusServiceUnavailable ||
		code != errcode.ManagerNotCurrent {
		t.Errorf("a user whose new role the follower cannot know yet: %d %s", status, code)
	}
	for _, w := range gone {
		want := http.StatusUnauthorized
		if w.name == "demoted" {
			want = http.StatusForbidden
		}
		status, code := s.as(w, follower, "PUT", "/v1/users/mine", fmt.Sprintf(`{"new":true,"role":"admin","password":%q}`, ddlPassword))
		if status != want && code != errcode.ManagerNotCurrent {
			t.Errorf("%s writes by way of a follower that does not know: %d %s", w.name, status, code)
		}
	}
	for _, w := range append(gone, root) {
		s.until(w.name+" is not let in by a follower that cannot know", func() bool {
			status, code := s.as(w, follower, "GET", staleRead, "")
			return status == http.StatusServiceUnavailable && code == errcode.ManagerNotCurrent
		})
	}
	var ready rpc.Problem
	if _, err := s.get(follower, "/readyz", &ready); err != nil || !strings.Contains(fmt.Sprint(ready.Reasons),
		"not_current") {
		t.Errorf("%v %+v", err, ready)
	}
	ask(&who{name: "operator", certificate: tlsconf.Peer{Role: tlsconf.Admin, ID: "operator"}.String()}, follower, "GET",
		staleRead, "", 200)

	follower.full.Store(false)
	s.until("the follower knows again", func() bool {
		status, _ := s.as(root, follower, "GET", staleRead, "")
		return status == http.StatusOK
	})
	for _, w := range gone {
		want := http.StatusUnauthorized
		if w.name == "demoted" {
			want = http.StatusOK
		}
		ask(w, follower, "GET", staleRead, "", want)
	}
}

// get reads an answer with any status.
func (s *secured) get(n *node, path string, answer any) (int, error) {
	resp, err := s.clients[""].Get(n.url + path)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, json.NewDecoder(resp.Body).Decode(answer)
}

// TestStaleFollowerOfAnOpenClusterCloses: the first user of an open cluster is created while a follower cannot
// store that. The leader announces that there are users, and the follower admits no anonymous client any more,
// although it has no user; a user that it cannot check is not called wrong.
func TestStaleFollowerOfAnOpenClusterCloses(t *testing.T) {
	t.Parallel()
	c := newTrio(t, steadfast)
	leader, follower := c.nodes[c.leader()], c.follower()
	const staleRead = "/v1/indexes?consistency=stale"
	if status, _, body := c.call(follower, "GET", staleRead, "", nil); status != http.StatusOK {
		t.Fatalf("an open cluster: %d %s", status, body)
	}
	follower.full.Store(true)
	if status, _, body := c.call(leader, "PUT", "/v1/users/root",
		fmt.Sprintf(`{"new":true,"role":"admin","password":%q}`, rootPassword), nil); status != http.StatusOK {
		t.Fatalf("the first user: %d %s", status, body)
	}
	c.until("the follower is not open any more", func() bool {
		status, _, _ := c.once(follower, "GET", staleRead, "", nil)
		return status == http.StatusUnauthorized
	})
	if follower.m.raft.HasUsers() {
		t.Error("it has the user, so that nothing is tested")
	}
	login := map[string]string{"Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte("root:"+rootPassword))}
	status, h, body := c.once(follower, "GET", staleRead, "", login)
	if p := problemOf(t, h, body); status != http.StatusServiceUnavailable || p.Code != errcode.ManagerNotCurrent {
		t.Errorf("a user whom it cannot know: %d %s", status, body)
	}
	follower.full.Store(false)
	c.until("it knows the user", func() bool {
		status, _, _ := c.once(follower, "GET", staleRead, "", login)
		return status == http.StatusOK
	})
}

// TestFormerRightsAreNotGranted: an administrator is removed while a follower can store nothing; it admits no user
// meanwhile. At the moment when it can store again, it does not grant that user the former rights.
func TestFormerRightsAreNotGranted(t *testing.T) {
	t.Parallel()
	s := newSecured(t, steadfast)
	root := &who{name: "root", basic: [2]string{FirstAdmin, rootPassword}}
	gone := &who{name: "removed", basic: [2]string{"removed", ddlPassword}}
	leader, follower := s.nodes[s.leader()], s.follower()
	const staleRead = "/v1/indexes?consistency=stale"
	if status, code := s.known(root, leader, "PUT", "/v1/users/removed",
		fmt.Sprintf(`{"new":true,"role":"admin","password":%q}`, ddlPassword)); status != http.StatusOK {
		t.Fatal(status, code)
	}
	if status, code := s.known(gone, follower, "GET", staleRead, ""); status != http.StatusOK {
		t.Fatal(status, code)
	}
	follower.full.Store(true)
	if status, code := s.known(root, leader, "DELETE", "/v1/users/removed", ""); status != http.StatusNoContent {
		t.Fatal(status, code)
	}
	s.until("it admits no user", func() bool {
		_, code := s.as(gone, follower, "GET", staleRead, "")
		return code == errcode.ManagerNotCurrent
	})
	var let atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for status := 0; status != http.StatusUnauthorized && t.Context().Err() == nil; {
				if status, _ = s.as(gone, follower, "GET", staleRead, ""); status == http.StatusOK {
					let.Add(1)
				}
			}
		})
	}
	follower.full.Store(false)
	all.Wait()
	if n := let.Load(); n > 0 {
		t.Errorf("a removed user, whom the follower no longer admitted, was admitted %d times", n)
	}
}
