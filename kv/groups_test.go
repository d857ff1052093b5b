package kv

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tidemark/kv/mcbp"
)

// The documented calls work, and invalid ones are refused. A user is shown with its own roles and those of its
// groups, each with its origins.
func TestRESTGroups(t *testing.T) {
	config := testConfig(t.TempDir())
	n, stop := runNode(t, config)
	u := users{t, n}
	group := func(id string) string { return pathGroups + "/" + id }
	if got := u.ok("GET", pathGroups); got != "[]" {
		t.Error(got)
	}
	u.ok("PUT", group("readers"), "roles", "data_reader[world]", "description", "who read")
	u.ok("PUT", group("admins"), "roles", "ro_admin,data_reader[world]")
	const readers = `{"id":"readers","description":"who read","roles":[{"role":"data_reader","bucket_name":"world",` +
		`"scope_name":"*","collection_name":"*"}]}`
	if got := u.ok("GET", group("readers")); got != readers {
		t.Error(got)
	}
	if got := u.ok("GET", pathGroups); !strings.HasPrefix(got, `[{"id":"admins",`) || !strings.HasSuffix(got, readers+"]") {
		t.Error(got)
	}
	put := []string{"roles", "data_writer[world],data_reader[world]", "password", userPassword}
	u.ok("PUT", u.path("app"), append(put, "groups", "readers, admins,readers")...)
	const place = `"bucket_name":"world","scope_name":"*","collection_name":"*",`
	if got := u.ok("GET", u.path("app")); got != `{"id":"app","domain":"local","name":"","roles":[{"role":"data_reader",`+
		place+`"origins":[{"type":"user"},{"type":"group","name":"admins"},{"type":"group","name":"readers"}]},`+
		`{"role":"data_writer",`+place+`"origins":[{"type":"user"}]},{"role":"ro_admin","origins":[{"type":"group",`+
		`"name":"admins"}]}],"groups":["admins","readers"],"external_groups":[]}` {
		t.Error(got)
	}
	for _, x := range []struct {
		status              int
		words, method, path string
		form                []string
	}{
		{404, "Unknown group", "GET", group("none"), nil},
		{404, "Unknown group", "DELETE", group("none"), nil},
		{400, `"roles":"The value must be supplied"`, "PUT", group("new"), []string{"description", "x"}},
		{400, "there is no role", "PUT", group("new"), []string{"roles", "root"}},
		{400, "there is no bucket", "PUT", group("new"), []string{"roles", "data_reader[none]"}},
		{400, "LDAP is not supported", "PUT", group("new"), []string{"roles", "", "ldap_group_ref", "cn=x"}},
		{400, "group name", "PUT", group("a%20b"), []string{"roles", ""}},
		{400, "the description must have", "PUT", group("new"), []string{"roles", "", "description", "a\nb"}},
		{400, `"groups":"unusable user or group: there is no such group: \"none\""`, "PUT", u.path("app"), append(put, "groups", "none")},
	} {
		if status, body := u.call(testUser, testPassword, x.method, x.path, x.form...); status != x.status ||
			!strings.Contains(body, x.words) {
			t.Errorf("%s %s %v: %d %s, want %d and %q", x.method, x.path, x.form, status, body, x.status, x.words)
		}
	}
	if status, body := u.call("app", userPassword, "GET", pathGroups); status != http.StatusOK { // by a group's role
		t.Error(status, body)
	}
	if status, body := u.call("app", userPassword, "PUT", group("readers"), "roles", "admin"); status !=
		http.StatusForbidden {
		t.Error(status, body)
	}
	stop()
	n, _ = runNode(t, config)
	u = users{t, n}
	if got := u.ok("GET", group("readers")); got != readers {
		t.Error(got)
	}
	u.ok("DELETE", group("admins"))
	if got := u.ok("GET", u.path("app")); !strings.Contains(got, `"groups":["readers"]`) || strings.Contains(got,
		"ro_admin") {
		t.Error(got)
	}
	u.ok("PUT", u.path("app"), put...) // a PUT without groups removes them
	if got := u.ok("GET", u.path("app")); !strings.Contains(got, `"groups":[]`) {
		t.Error(got)
	}
}

// A change of a group's roles applies to its users on all nodes: to the next request on open connections, and to
// their open streams.
func TestGroupsChangeWhileConnected(t *testing.T) {
	g := newGroup(t, 2, 0)
	n := g.nodes["kv1"]
	u := users{t, g.nodes["kv2"]} // kv2 is not the leader
	const group = pathGroups + "/team"
	u.ok("PUT", group, "roles", "data_reader[world],data_dcp_reader[world]")
	u.ok("PUT", u.path("app"), "roles", "", "groups", "team", "password", userPassword)
	key := keysOf(0, 16, 1)[0]
	c := loginOf(t, n, "app", mcbp.StatusOK)
	c.want(setFrame(0, key, "1"), mcbp.StatusNoAccess)
	d := loginOf(t, n, "app", mcbp.StatusOK)
	d.want(openFrame("app"), mcbp.StatusOK)
	d.want(fromZero(0), mcbp.StatusOK)
	u.ok("PUT", group, "roles", "data_writer[world],data_dcp_reader[world]")
	c.want(setFrame(0, key, "1"), mcbp.StatusOK)
	c.want(request(mcbp.OpGet, 0, nil, []byte(key), nil), mcbp.StatusNoAccess)
	d.until("mutation 1")
	u.ok("DELETE", group)
	d.until(fmt.Sprintf("end %v <nil>", mcbp.EndPrivilegeLost))
	c.want(setFrame(0, key, "1"), mcbp.StatusNoAccess)
}
