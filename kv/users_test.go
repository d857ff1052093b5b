package kv

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"

	"tidemark/kv/access"
	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
)

const userPassword = "another-secret"

// users calls /settings/rbac/users at a node.
type users struct {
	t *testing.T
	n *Node
}

func (u users) path(id string) string { return pathLocalUsers + "/" + url.PathEscape(id) }

// call sends a request with a user's credentials; form alternates names and values.
func (u users) call(as, password, method, path string, form ...string) (int, string) {
	u.t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	req, err := http.NewRequestWithContext(within(u.t), method, "http://"+u.n.AdminAddr()+path,
		strings.NewReader(values.Encode()))
	if err != nil {
		u.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if as != "" {
		req.SetBasicAuth(as, password)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		u.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		u.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

// set creates a user, or replaces its roles.
func (u users) set(id, roles string) {
	u.t.Helper()
	u.ok(http.MethodPut, u.path(id), "roles", roles, "password", userPassword, "name", "A "+id)
}

// ok sends a request as the administrator, which must succeed.
func (u users) ok(method, path string, form ...string) string {
	u.t.Helper()
	status, body := u.call(testUser, testPassword, method, path, form...)
	if status != http.StatusOK {
		u.t.Fatalf("%s %s %q: %d %s", method, path, form, status, body)
	}
	return body
}

// loginOf authenticates as a user with SCRAM and selects the bucket, which must give status.
func loginOf(t *testing.T, n *Node, user string, status mcbp.Status) *rawClient {
	t.Helper()
	c := dialRaw(t, n.MemcachedAddr())
	if s := c.scram(user, userPassword); s != mcbp.StatusOK {
		t.Fatalf("%s: %v", user, s)
	}
	c.want(request(mcbp.OpSelectBucket, 0, nil, []byte("world"), nil), status)
	return c
}

func openFrame(name string) mcbp.Frame {
	return request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: mcbp.OpenProducer}.AppendExtras(nil), []byte(name), nil)
}

// Each kind of request gets NO_ACCESS if the user's roles do not permit it, and only then.
func TestRolesOverMemcached(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	u := users{t, n}
	key := keysOf(3, 16, 1)[0]
	login(t, n.MemcachedAddr()).want(setFrame(3, key, "1"), mcbp.StatusOK)
	counter := mcbp.Arithmetic{Delta: 1}.AppendExtras(nil)
	requests := []struct {
		name  string
		frame mcbp.Frame
	}{
		{"get", request(mcbp.OpGet, 3, nil, []byte(key), nil)},
		{"set", setFrame(3, key, "1")},
		{"increment", request(mcbp.OpIncrement, 3, counter, []byte(key), nil)},
		{"seqnos", request(mcbp.OpGetAllVBSeqnos, 0, nil, nil, nil)},
		{"stat", request(mcbp.OpStat, 0, nil, []byte("uuid"), nil)},
		{"config", request(mcbp.OpGetClusterConfig, 0, nil, nil, nil)},
		{"open", openFrame("c")}, // the last one: it makes the connection one of DCP
	}
	for roles, may := range map[string]string{
		"admin":                                 "get set increment seqnos stat config open",
		"bucket_full_access[world]":             "get set increment seqnos config open",
		"data_reader[*]":                        "get seqnos config",
		"data_writer[world]":                    "set config",
		"data_reader[world],data_writer[world]": "get set increment seqnos config",
		"data_dcp_reader[world]":                "seqnos config open",
		"data_monitoring[world]":                "stat config",
		"ro_admin":                              "stat config",
	} {
		u.set("somebody", roles)
		c := loginOf(t, n, "somebody", mcbp.StatusOK)
		for _, r := range requests {
			want := mcbp.StatusNoAccess
			if slices.Contains(strings.Fields(may), r.name) {
				want = mcbp.StatusOK
			}
			c.want(r.frame, want)
			if r.name == "stat" && want == mcbp.StatusOK {
				c.read() // the end of the statistics
			}
		}
	}
	status, body := u.call(testUser, testPassword, http.MethodPut, u.path("somebody"), "roles", "data_reader[other]")
	if status != http.StatusBadRequest || !strings.Contains(body, "there is no bucket") {
		t.Errorf("a role for a bucket that there is not: %d %s", status, body)
	}
	u.set("somebody", "")
	c := loginOf(t, n, "somebody", mcbp.StatusNoAccess)
	c.want(request(mcbp.OpSelectBucket, 0, nil, []byte("nowhere"), nil), mcbp.StatusNoAccess)
	c.want(request(mcbp.OpGet, 3, nil, []byte(key), nil), mcbp.StatusNoBucket)
	login(t, n.MemcachedAddr()).want(request(mcbp.OpSelectBucket, 0, nil, []byte("nowhere"), nil), mcbp.StatusKeyNotFound)
}

// For clients with extended errors, a refusal names the roles that would suffice.
func TestRefusalNamesRoles(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	users{t, n}.set("reader", "data_reader[world]")
	c := loginOf(t, n, "reader", mcbp.StatusOK)
	c.want(request(mcbp.OpHello, 0, nil, []byte("test"), mcbp.AppendFeatures(nil, []mcbp.Feature{mcbp.FeatureXerror})),
		mcbp.StatusOK)
	if a := c.want(setFrame(3, "k", "1"), mcbp.StatusNoAccess); !strings.Contains(string(a.Value),
		"data_writer[world]") {
		t.Errorf("%s", a.Value)
	}
}

// Roles changed at one node apply at all nodes: to the next request on open connections, and to their open streams.
func TestRolesChangeWhileConnected(t *testing.T) {
	g := newGroup(t, 2, 0)
	u := users{t, g.nodes["kv2"]} // kv2 is not the leader
	u.set("app", "data_reader[world],data_dcp_reader[world]")
	n := g.nodes["kv1"]
	vb := uint16(0)
	key := keysOf(vb, 16, 1)[0]
	c := loginOf(t, n, "app", mcbp.StatusOK)
	c.want(setFrame(vb, key, "1"), mcbp.StatusNoAccess)
	d := loginOf(t, n, "app", mcbp.StatusOK)
	d.want(openFrame("app"), mcbp.StatusOK)
	d.send(fromZero(vb))
	if f := d.read(); f.Status() != mcbp.StatusOK {
		t.Fatal(f.Status())
	}

	u.ok(http.MethodPut, u.path("app"), "roles", "data_writer[world],data_dcp_reader[world]")
	c.want(setFrame(vb, key, "1"), mcbp.StatusOK)
	c.want(request(mcbp.OpGet, vb, nil, []byte(key), nil), mcbp.StatusNoAccess)
	if got := line(d.read()) + " " + line(d.read()); !strings.Contains(got, "mutation 1") { // the stream goes on
		t.Fatal(got)
	}

	u.ok(http.MethodPut, u.path("app"), "roles", "data_writer[world]")
	if got := line(d.read()); got != fmt.Sprintf("end %v <nil>", mcbp.EndPrivilegeLost) {
		t.Fatal(got)
	}
	d.send(fromZero(vb))
	if f := d.read(); f.Status() != mcbp.StatusNoAccess {
		t.Fatal(f.Status())
	}

	u.ok(http.MethodDelete, u.path("app"))
	c.want(setFrame(vb, key, "1"), mcbp.StatusNoAccess)
	c.want(request(mcbp.OpGetClusterConfig, 0, nil, nil, nil), mcbp.StatusNoAccess)
	c.want(request(mcbp.OpNoop, 0, nil, nil, nil), mcbp.StatusOK)
	if s := dialRaw(t, n.MemcachedAddr()).scram("app", userPassword); s != mcbp.StatusAuthError {
		t.Errorf("a user that was removed: %v", s)
	}
	u.set("app", "data_writer[world]") // the open connection belongs to the new user of that name
	c.want(setFrame(vb, key, "1"), mcbp.StatusOK)
}

// A new password leaves authenticated connections open, and is required for every later authentication, by each
// mechanism.
func TestPasswordOfUser(t *testing.T) {
	config := testConfig(t.TempDir())
	config.AllowPlain = true
	n, stop := runNode(t, config)
	u := users{t, n}
	u.set("app", "data_reader[world]")
	c := loginOf(t, n, "app", mcbp.StatusOK)
	plain := func(password string) mcbp.Status {
		f := dialRaw(t, n.MemcachedAddr()).call(request(mcbp.OpSASLAuth, 0, nil, []byte("PLAIN"),
			[]byte("\x00app\x00"+password)))
		return f.Status()
	}
	check := func(password string, want mcbp.Status) {
		t.Helper()
		if s := dialRaw(t, n.MemcachedAddr()).scram("app", password); s != want {
			t.Errorf("SCRAM with %q: %v", password, s)
		}
		if s := plain(password); s != want {
			t.Errorf("PLAIN with %q: %v", password, s)
		}
	}
	check(userPassword, mcbp.StatusOK)
	check("wrong", mcbp.StatusAuthError)
	if status, body := u.call("app", userPassword, http.MethodPost, pathChangePassword, "password", "short"); status !=
		http.StatusBadRequest || !strings.Contains(body, "at least 6 characters") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := u.call("app", userPassword, http.MethodPost, pathChangePassword, "password",
		"changed-it"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	check("changed-it", mcbp.StatusOK)
	check(userPassword, mcbp.StatusAuthError)
	c.want(request(mcbp.OpGet, 3, nil, []byte("k"), nil), mcbp.StatusKeyNotFound)
	for _, mech := range []gocbcore.AuthMechanism{gocbcore.ScramSha1AuthMechanism, gocbcore.ScramSha256AuthMechanism,
		gocbcore.ScramSha512AuthMechanism} {
		agent, err := gocbcore.CreateAgent(&gocbcore.AgentConfig{BucketName: "world",
			SeedConfig: gocbcore.SeedConfig{MemdAddrs: []string{n.MemcachedAddr()}},
			SecurityConfig: gocbcore.SecurityConfig{AuthMechanisms: []gocbcore.AuthMechanism{mech},
				Auth: gocbcore.PasswordAuthProvider{Username: "app", Password: "changed-it"}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := get(t, agent, "k"); !errors.Is(err, gocbcore.ErrDocumentNotFound) {
			t.Errorf("%s: %v", mech, err)
		}
		_ = agent.Close()
	}
	stop()
	n, _ = runNode(t, config) // the password is on disk
	check("changed-it", mcbp.StatusOK)
}

// With Couchbase's own client, a reader can read, a consumer can stream with DCP, and neither can do more.
func TestGocbcoreUsers(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	u := users{t, n}
	u.set("reader", "data_reader[world]")
	u.set("indexer", "data_dcp_reader[world]")
	key := keysOf(3, 16, 1)[0]
	set(t, kvAgent(t, n.MemcachedAddr(), "world"), key, `{"n":1}`)
	agent := kvAgentOf(t, n.MemcachedAddr(), "world", "reader", userPassword)
	write := func() error {
		return await(t, func(done chan<- error) error {
			_, err := agent.Set(gocbcore.SetOptions{Key: []byte(key), Value: []byte("2")},
				func(_ *gocbcore.StoreResult, err error) { done <- err })
			return err
		})
	}
	if v, err := get(t, agent, key); v != `{"n":1}` || err != nil {
		t.Fatalf("%q %v", v, err)
	}
	if err := write(); !errors.Is(err, gocbcore.ErrMemdAccessError) && !errors.Is(err, gocbcore.ErrAuthenticationFailure) {
		t.Fatalf("a reader writes: %v", err)
	}
	u.ok(http.MethodPut, u.path("reader"), "roles", "data_reader[world],data_writer[world]")
	if err := write(); err != nil {
		t.Fatalf("who may write by now: %v", err)
	}
	dcp := dcpAgentOf(t, n.MemcachedAddr(), "world", "users", memd.DcpOpenFlagProducer, "indexer", userPassword)
	o := newObserver()
	if _, err := openStream(t, dcp, 3, memd.DcpStreamAddFlagActiveOnly, 0, 0, endless, 0, 0, o); err != nil {
		t.Fatal(err)
	}
	o.expect(t, "snapshot 0-2 2", "mutation 2 "+key+"=2")
	u.ok(http.MethodDelete, u.path("indexer"))
	if got := <-o.lines; !strings.HasPrefix(got, "end ") || got == "end <nil>" {
		t.Fatalf("after the user is removed: %q", got)
	}
}

func TestRESTUsers(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	u := users{t, n}
	u.set("app", "data_reader[world],data_dcp_reader[*]")
	u.set("op", "bucket_admin[world]")
	u.set("ro", "ro_admin")
	u.set("ca", "cluster_admin")
	u.set("none", "")
	if got := u.ok(http.MethodGet, u.path("app")); got != `{"id":"app","domain":"local","name":"A app","roles":[`+
		`{"role":"data_dcp_reader","bucket_name":"*","scope_name":"*","collection_name":"*","origins":[{"type":"user"}]},`+
		`{"role":"data_reader","bucket_name":"world","scope_name":"*","collection_name":"*","origins":[{"type":"user"}]}],"groups":[],"external_groups":[]}` {
		t.Error(got)
	}
	var all []restUser
	if err := json.Unmarshal([]byte(u.ok(http.MethodGet, pathUsers)), &all); err != nil || len(all) != 6 ||
		all[0].ID != testUser || all[0].Roles[0].Role != "admin" {
		t.Errorf("%+v %v", all, err)
	}
	var roles []restRole
	if err := json.Unmarshal([]byte(u.ok(http.MethodGet, pathRoles)), &roles); err != nil || len(roles) !=
		len(access.Kinds()) {
		t.Errorf("%+v %v", roles, err)
	}
	const scopes, flush = "/pools/default/buckets/world/scopes", "/pools/default/buckets/world/controller/doFlush"
	for _, tc := range []struct {
		as, method, path string
		status           int
		says             string
	}{
		{"app", "GET", pathWhoAmI, 200, `"id":"app"`},
		{"none", "GET", pathWhoAmI, 200, `"roles":[]`},
		{"nobody", "GET", pathWhoAmI, 401, "wrong KV user or password"},
		{"", "GET", pathWhoAmI, 401, "required"},
		{"app", "GET", pathPool, 200, `"bucketName":"world"`},
		{"none", "GET", pathPool, 403, "may not see the cluster"},
		{"app", "GET", "/pools/default/b/world", 200, "vBucketServerMap"},
		{"app", "GET", pathUsers, 403, "role of admin, ro_admin"},
		{"ro", "GET", pathUsers, 200, `"id":"app"`},
		{"ro", "DELETE", u.path("app"), 403, "role of admin"},
		{"ca", "DELETE", u.path("app"), 403, "may not change users"},
		{"app", "POST", scopes, 403, "bucket_admin[world]"},
		{"op", "POST", scopes, 400, "must be supplied"},
		{"op", "POST", flush, 200, ""},
		{"ro", "POST", flush, 403, "may not change the bucket"},
		{"op", "POST", pathFailOverNode, 403, "cluster_admin"},
		{"ca", "POST", pathFailOverNode, 400, "must be supplied"},
		{"ca", "POST", pathMap, 401, "configuration"},
		{"ca", "GET", pathMap, 401, "configuration"},
		{"", "GET", pathMap, 401, "configuration"},
		{"ro", "POST", pathRebalance, 403, "may not change the cluster"},
		{testUser, "GET", pathWhoAmI, 401, "wrong KV user or password"},
	} {
		status, body := u.call(tc.as, userPassword, tc.method, tc.path)
		if status != tc.status || !strings.Contains(strings.ReplaceAll(body, `\"`, `"`), tc.says) {
			t.Errorf("%s %s %s: %d %.300s", tc.as, tc.method, tc.path, status, body)
		}
	}
	for _, tc := range []struct {
		method, id string
		form       []string
		status     int
		says       string
	}{
		{"PUT", "new", []string{"roles", "data_reader[world]"}, 400, "needs a password"},
		{"PUT", "new", []string{"roles", "data_reader[world]", "password", "short"}, 400, `"password":`},
		{"PUT", "new", []string{"password", userPassword}, 400, `"roles":`},
		{"PUT", "new", []string{"roles", "root", "password", userPassword}, 400, "there is no role"},
		{"PUT", "new", []string{"roles", "data_reader[world:s:c]", "password", userPassword}, 400, "there is no scope"},
		{"PUT", "new", []string{"roles", "", "groups", "g", "password", userPassword}, 400, "no such group"},
		{"PUT", "a b", []string{"roles", "", "password", userPassword}, 400, `"username":`},
		{"PUT", testUser, []string{"roles", ""}, 400, "is in the nodes' configuration"},
		{"DELETE", testUser, nil, 400, "is in the nodes' configuration"},
		{"DELETE", "new", nil, 404, "Unknown user"},
		{"GET", "new", nil, 404, "Unknown user"},
	} {
		status, body := u.call(testUser, testPassword, tc.method, u.path(tc.id), tc.form...)
		if status != tc.status || !strings.Contains(body, tc.says) {
			t.Errorf("%s %s %q: %d %.300s", tc.method, tc.id, tc.form, status, body)
		}
	}
	ca := NewRemote("ca", userPassword, clusterWait, nil)
	add := RebalanceRequest{Add: []clustermap.Node{{ID: "x", Memcached: "127.0.0.1:1", Admin: "127.0.0.1:2"}}}
	if err := ca.Call(within(t), n.AdminAddr(), http.MethodPost, pathRebalance, add, nil); err == nil ||
		!strings.Contains(err.Error(), "may not add nodes") {
		t.Errorf("who may change the cluster and no users adds a node: %v", err)
	}
	err := ca.Call(within(t), n.AdminAddr(), http.MethodPost, pathRebalance, RebalanceRequest{Stop: true}, nil)
	if err != nil && strings.Contains(err.Error(), "may not") {
		t.Errorf("he stops none: %v", err)
	}
	if status, body := u.call(testUser, testPassword, http.MethodPost, pathChangePassword, "password",
		"changed-it"); status != http.StatusBadRequest || !strings.Contains(body, "--kv-password-file") {
		t.Errorf("the configured user's password: %d %s", status, body)
	}
	if got := u.ok(http.MethodGet, pathCluster); strings.Contains(got, `"keys"`) || strings.Contains(got, `"users"`) {
		t.Errorf("what is kept of passwords is shown: %.300s", got)
	}
}

// A change of a user completes only when every member applies it; the error names a member that cannot take the map.
func TestUserThatAMemberDoesNotHave(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 1)
	u := users{t, g.nodes["kv1"]}
	u.set("app", "data_reader[*]")
	late := g.nodes["kv2"]
	late.cluster.changing.Lock()
	goesOn := sync.OnceFunc(late.cluster.changing.Unlock)
	defer goesOn()
	ctx, cancel := context.WithCancel(within(t))
	done := make(chan error, 1)
	go func() {
		_, err := u.n.cluster.changeUser(ctx, clustermap.UserChange{User: "app", Remove: true})
		done <- err
	}()
	eventually(t, func() error {
		if u.n.cluster.directory.Load().Find("app") != nil {
			return errors.New("kv1 has the user still")
		}
		return nil
	})
	if late.cluster.directory.Load().Find("app") == nil {
		t.Fatal("kv2 has the change")
	}
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "kv2 uses the previous ones") {
		t.Errorf("a member without the change: %v", err)
	}
	goesOn()
	u.set("app", "data_reader[*]")
	if _, err := u.n.cluster.changeUser(within(t), clustermap.UserChange{User: "app", Remove: true}); err != nil {
		t.Error(err)
	}
	if late.cluster.directory.Load().Find("app") != nil {
		t.Error("kv2 has the user still")
	}
}

// The leader, which carries out a change, checks the user's rights: through a member that is behind, a user who has
// been removed, or has fewer roles or another password by now, changes nothing.
func TestStaleMemberCannotAuthorize(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 1)
	u := users{t, g.nodes["kv1"]}
	for _, id := range []string{"removed", "demoted", "renewed"} {
		u.set(id, "admin")
	}
	u.set("app", "data_reader[*]")
	late := g.nodes["kv2"]
	late.cluster.changing.Lock()
	goesOn := sync.OnceFunc(late.cluster.changing.Unlock)
	defer goesOn()
	keys, err := access.Derive("a-newer-secret", randomBytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []clustermap.UserChange{{User: "removed", Remove: true},
		{User: "demoted", Roles: &[]access.Role{{Name: "ro_admin"}}}, {User: "renewed", Keys: &keys}} {
		if _, _, err := u.n.cluster.revise(within(t), func(m clustermap.Map) (clustermap.Map, error) {
			return m.ChangeUser(c)
		}); err != nil {
			t.Fatal(err)
		}
	}
	by := users{t, late}
	for id, want := range map[string]int{"removed": 401, "demoted": 403, "renewed": 401} {
		if status, body := by.call(id, userPassword, http.MethodGet, pathUsers); status != http.StatusOK {
			t.Fatalf("kv2 has the change: %s %d %s", id, status, body)
		}
		for _, c := range [][]string{{"DELETE", u.path("app")},
			{"PUT", u.path("mine"), "roles", "admin", "password", "mine-mine"},
			{"POST", pathChangePassword, "password", "mine-mine"},
			{"POST", pathBuckets, "name", "mine", "ramQuotaMB", "100"}, {"DELETE", pathBuckets + "/world"},
			{"POST", pathBuckets + "/world/scopes", "name", "mine"}, {"POST", pathBuckets + "/world/controller/doFlush"}} {
			if id == "demoted" && c[1] == pathChangePassword {
				continue // a user may change its own password
			}
			if status, body := by.call(id, userPassword, c[0], c[1], c[2:]...); status != want {
				t.Errorf("%s %v by a member that is behind: %d %s", id, c, status, body)
			}
		}
	}
	goesOn()
	if u.n.cluster.directory.Load().Find("app") == nil || u.n.cluster.directory.Load().Find("mine") != nil {
		t.Error("something was changed")
	}
	// A user with the right to a change may make it through any member.
	u.set("boss", "admin")
	if status, body := by.call("boss", userPassword, http.MethodDelete, u.path("app")); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if status, body := by.call("boss", userPassword, http.MethodDelete, u.path("app")); status != http.StatusNotFound ||
		!strings.Contains(body, "Unknown user") {
		t.Errorf("%d %s", status, body)
	}
}

// A user who is removed after authentication and before the change begins changes nothing.
func TestRemovedUserChangesNothing(t *testing.T) {
	t.Parallel()
	n, _ := runNode(t, testConfig(t.TempDir()))
	u := users{t, n}
	u.set("boss", "admin")
	u.set("app", "data_reader[*]")
	body := url.Values{"roles": {"admin"}, "password": {"mine-mine"}}.Encode()
	comes, send := io.Pipe()
	in := make(chan struct{})
	ctx := httptrace.WithClientTrace(within(t), &httptrace.ClientTrace{Got100Continue: func() { close(in) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+n.AdminAddr()+u.path("mine"), comes)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = int64(len(body))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Expect", "100-continue") // the handler answers it when it reads the body
	req.SetBasicAuth("boss", userPassword)
	go func() {
		select {
		case <-in:
			u.ok(http.MethodDelete, u.path("boss"))
		case <-ctx.Done():
		}
		_, _ = io.WriteString(send, body)
		_ = send.Close()
	}()
	patient := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: clusterWait, DisableKeepAlives: true}}
	resp, err := patient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized || n.cluster.directory.Load().Find("mine") != nil {
		t.Errorf("%s", resp.Status)
	}
}

// A stream of maps ends when its user loses the right to see the bucket.
func TestRESTStreamOfUser(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	u := users{t, n}
	u.set("app", "data_reader[world]")
	req, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://"+n.AdminAddr()+"/pools/default/bs/world",
		nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("app", userPassword)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	next := func() {
		t.Helper()
		for read := ""; !strings.HasSuffix(read, endOfDocument); {
			b, err := in.ReadByte()
			if err != nil {
				t.Fatal(err)
			}
			read += string(b)
		}
	}
	next()
	u.ok(http.MethodPut, u.path("app"), "roles", "data_writer[*]") // this role shows the bucket, too
	next()
	u.ok(http.MethodDelete, u.path("app"))
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Fatalf("%.200q behind the end of his rights, %v", rest, err)
	}
}

// The command line's client sends keys derived from the password, and maps refusals to errors.
func TestAdminUsers(t *testing.T) {
	g := newGroup(t, 2, 0)
	a := NewAdmin([]string{g.nodes["kv2"].AdminAddr()}, testUser, testPassword, nil)
	roles := []access.Role{{Name: "data_reader", Bucket: access.Any}}
	c := clustermap.UserChange{User: "app", Roles: &roles}
	if err := a.ChangeUser(t.Context(), c, ""); !errors.Is(err, access.ErrAccess) || !errors.Is(err, ErrRefused) {
		t.Errorf("a user without a password: %v", err)
	}
	if err := a.ChangeUser(t.Context(), c, userPassword); err != nil {
		t.Fatal(err)
	}
	for _, n := range g.nodes {
		loginOf(t, n, "app", mcbp.StatusOK)
		all, err := NewAdmin([]string{n.AdminAddr()}, testUser, testPassword, nil).Users(t.Context())
		if err != nil || len(all) != 2 || all[1].ID != "app" || all[1].Roles[0] != "data_reader[*]" {
			t.Errorf("%+v %v", all, err)
		}
	}
	if _, err := NewAdmin([]string{g.nodes["kv1"].AdminAddr()}, "app", userPassword, nil).Users(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "may not see users") {
		t.Errorf("a reader sees users: %v", err)
	}
	c = clustermap.UserChange{User: "app", Remove: true}
	if err := a.ChangeUser(t.Context(), c, ""); err != nil {
		t.Fatal(err)
	}
	if err := a.ChangeUser(t.Context(), c, ""); !errors.Is(err, clustermap.ErrNoUser) {
		t.Errorf("removed twice: %v", err)
	}
}

// TestRolesPage: docs/couchbase.md lists each role and what it permits.
func TestRolesPage(t *testing.T) {
	page, err := os.ReadFile("../docs/couchbase.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range access.Kinds() {
		name := k.Name
		if k.OfBucket {
			name += "[BUCKET]"
		}
		if row := fmt.Sprintf("\n| `%s` | %s | %s |\n", name, k.Title, k.What); !strings.Contains(string(page), row) {
			t.Errorf("it lacks %s", row)
		}
	}
}
