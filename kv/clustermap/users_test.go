package clustermap

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"tidemark/kv/access"
)

func keysFor(t *testing.T, password string) *access.Keys {
	t.Helper()
	k, err := access.Derive(password, func(b []byte) { clear(b) })
	if err != nil {
		t.Fatal(err)
	}
	return &k
}

func TestChangeUser(t *testing.T) {
	m := Derive(nodes(2), specs(8, 1))
	bucket := m.Buckets[0].Name
	reader := []access.Role{{Name: "data_reader", Bucket: bucket}}
	none := []access.Role{}
	name := "A Name"
	first, second := keysFor(t, "secret-1"), keysFor(t, "secret-2")
	change := func(c UserChange) {
		t.Helper()
		next, err := m.ChangeUser(c)
		if err != nil || !next.Newer(m) || next.Rev != m.Rev+1 {
			t.Fatalf("%+v: %d.%d, %v", c, next.RevEpoch, next.Rev, err)
		}
		body, err := json.Marshal(next)
		if err != nil || strings.Contains(string(body), "secret") {
			t.Fatalf("%s %v", body, err)
		}
		m = Map{} // as another node reads it
		if err := json.Unmarshal(body, &m); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(specs(8, 1)); err != nil {
			t.Fatal(err)
		}
	}
	change(UserChange{User: "b", Roles: &reader, Keys: first})
	change(UserChange{User: "a", Roles: &none, Keys: first, Name: &name})
	change(UserChange{User: "c", Roles: &reader, Keys: first})
	change(UserChange{User: "b", Keys: second})
	change(UserChange{User: "c", Roles: &none})
	before := m
	change(UserChange{User: "a", Remove: true})
	var seen []string
	for _, u := range m.Users {
		seen = append(seen, fmt.Sprint(u.ID, u.Roles, u.Keys.Matches("secret-1"), u.Keys.Matches("secret-2")))
	}
	if got := strings.Join(seen, " "); got != fmt.Sprintf("b[data_reader[%s]] false true c[] true false", bucket) {
		t.Error(got)
	}
	if len(before.Users) != 3 || before.Users[0].Name != name || len(m.WithoutUsers().Users) != 0 || len(m.Users) != 2 {
		t.Error("a change has changed another map")
	}
	for says, c := range map[string]UserChange{
		"needs a password": {User: "d", Roles: &none}, "no such user": {User: "d", Keys: first},
		"no such user: \"d\"": {User: "d", Remove: true}, "user name": {User: "d d", Roles: &none, Keys: first},
		"there is no bucket": {User: "b", Roles: &[]access.Role{{Name: "data_reader", Bucket: "nowhere"}}},
		"keys":               {User: "b", Keys: &access.Keys{Iterations: access.Iterations}},
	} {
		if got, err := m.ChangeUser(c); !errors.Is(err, access.ErrAccess) || !strings.Contains(err.Error(), says) ||
			got.Newer(m) {
			t.Errorf("%s: %v", says, err)
		}
	}
	all := []access.Role{{Name: "data_reader", Bucket: access.Any}, {Name: "data_writer", Bucket: bucket}}
	change(UserChange{User: "c", Roles: &all})
	dropped, err := m.ChangeBuckets(BucketChange{Name: bucket, Drop: true})
	if err != nil || fmt.Sprint(dropped.Users[0].Roles, dropped.Users[1].Roles) != "[] [data_reader[*]]" ||
		len(m.Users[1].Roles) != 2 {
		t.Errorf("roles of a bucket that was dropped: %v %v, %v", dropped.Users[0].Roles, dropped.Users[1].Roles, err)
	}
	partRoles(t, m, bucket)
	for i := len(m.Users); i < access.MaxUsers; i++ {
		var err error
		if m, err = m.ChangeUser(UserChange{User: fmt.Sprintf("u%03d", i), Roles: &none, Keys: first}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.ChangeUser(UserChange{User: "z", Roles: &none, Keys: first}); !errors.Is(err, access.ErrAccess) {
		t.Errorf("one user more than the limit: %v", err)
	}
}

// partRoles checks that a role for a scope or a collection requires that it exists, and is removed with it or with
// what contains it.
func partRoles(t *testing.T, m Map, bucket string) {
	t.Helper()
	collect := func(m Map, c CollectionChange) Map {
		t.Helper()
		c.Bucket = bucket
		n, err := m.ChangeCollections(c)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	m = collect(m, CollectionChange{Scope: "s"})
	for _, name := range []string{"c", "d"} {
		m = collect(m, CollectionChange{Scope: "s", Collection: name})
	}
	give := func(roles string) (Map, error) {
		t.Helper()
		all, err := access.ParseRoles(strings.ReplaceAll(roles, "B", bucket))
		if err != nil {
			t.Fatal(err)
		}
		return m.ChangeUser(UserChange{User: "b", Roles: &all})
	}
	for roles, says := range map[string]string{"data_reader[B:x]": `no scope "x"`, "data_reader[B:x:c]": `no scope "x"`,
		"data_reader[B:s:x]": `no collection "x"`} {
		if _, err := give(roles); !errors.Is(err, access.ErrAccess) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", roles, err)
		}
	}
	m, err := give("data_reader[B],data_reader[B:_default:_default],data_writer[B:s],data_writer[B:s:c]," +
		"data_writer[B:s:d]")
	if err != nil {
		t.Fatal(err)
	}
	roles := func(m Map) string {
		return strings.ReplaceAll(strings.ReplaceAll(fmt.Sprint(m.Users[0].Roles), bucket, "B"), "data_", "")
	}
	if got := roles(collect(m, CollectionChange{Scope: "s", Collection: "c", Drop: true})); got !=
		"[reader[B:_default:_default] reader[B] writer[B:s:d] writer[B:s]]" {
		t.Error("without the collection:", got)
	}
	if got := roles(collect(m, CollectionChange{Scope: "s", Drop: true})); got !=
		"[reader[B:_default:_default] reader[B]]" || len(m.Users[0].Roles) != 5 {
		t.Error("without the scope:", got)
	}
	dropped, err := m.ChangeBuckets(BucketChange{Name: bucket, Drop: true})
	if got := roles(dropped); err != nil || got != "[]" {
		t.Error("without the bucket:", got, err)
	}
}

// TestChangeGroup creates, changes and removes groups; a user is in a group by its name, until the group is removed.
func TestChangeGroup(t *testing.T) {
	m := Derive(nodes(2), specs(8, 1))
	bucket := m.Buckets[0].Name
	some, none := []access.Role{{Name: "data_reader", Bucket: bucket}, {Name: "admin"}}, []access.Role{}
	group := func(c GroupChange) {
		t.Helper()
		n, err := m.ChangeGroup(c)
		if err != nil || !n.Newer(m) || n.Check(specs(8, 1)) != nil {
			t.Fatal(err, n.Check(specs(8, 1)))
		}
		m = n
	}
	group(GroupChange{Group: "b", Roles: &some})
	group(GroupChange{Group: "a", Roles: &none, Description: new("first")})
	group(GroupChange{Group: "b", Description: new("second")})
	in, err := m.ChangeUser(UserChange{User: "u", Roles: &none, Groups: new([]string{"b", "a", "b"}),
		Keys: keysFor(t, "secret-1")})
	if err != nil || fmt.Sprint(in.Users[0].Groups) != "[a b]" {
		t.Fatal(in.Users, err)
	}
	m = in
	if got := fmt.Sprint(m.Groups); got != fmt.Sprintf("[{a first []} {b second [admin data_reader[%s]]}]", bucket) {
		t.Error(got)
	}
	for says, c := range map[string]GroupChange{"no such group": {Group: "c"}, `no such group: "c"`: {Group: "c", Remove: true},
		"group name": {Group: "c d", Roles: &none}, "the description": {Group: "a", Description: new("a\nb")},
		"there is no bucket": {Group: "a", Roles: &[]access.Role{{Name: "data_reader", Bucket: "nowhere"}}}} {
		if n, err := m.ChangeGroup(c); !errors.Is(err, access.ErrAccess) || !strings.Contains(err.Error(), says) ||
			n.Newer(m) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if v, err := m.ChangeUser(UserChange{User: "v", Groups: new([]string{"a"}),
		Keys: keysFor(t, "secret-2")}); err != nil || len(v.Users) != len(m.Users)+1 {
		t.Errorf("a new user that has the roles of a group alone: %v", err)
	}
	if _, err := m.ChangeUser(UserChange{User: "u", Groups: new([]string{"c"})}); !errors.Is(err, ErrNoGroup) {
		t.Error(err)
	}
	if n, err := m.ChangeBuckets(BucketChange{Name: bucket, Drop: true}); err != nil ||
		fmt.Sprint(n.Groups[1].Roles) != "[admin]" || len(m.Groups[1].Roles) != 2 {
		t.Error("roles of a bucket that was dropped:", n.Groups, err)
	}
	before := m
	group(GroupChange{Group: "a", Remove: true})
	if fmt.Sprint(m.Users[0].Groups) != "[b]" || len(before.Users[0].Groups) != 2 || len(m.Groups) != 1 ||
		len(m.WithoutUsers().Groups) != 0 {
		t.Error(m.Users[0].Groups, m.Groups)
	}
	for i := len(m.Groups); i < access.MaxGroups; i++ {
		group(GroupChange{Group: fmt.Sprintf("g%03d", i), Roles: &none})
	}
	if _, err := m.ChangeGroup(GroupChange{Group: "z", Roles: &none}); !errors.Is(err, access.ErrAccess) {
		t.Errorf("one group more than the limit: %v", err)
	}
	many := make([]string, 0, access.MaxGroupsOfUser+1)
	for i := range access.MaxGroupsOfUser + 1 {
		many = append(many, m.Groups[i].ID)
	}
	if _, err := m.ChangeUser(UserChange{User: "u", Groups: &many}); !errors.Is(err, access.ErrAccess) {
		t.Errorf("in one group more than the limit: %v", err)
	}
	m.Groups[0], m.Groups[1] = m.Groups[1], m.Groups[0]
	if m.Check(specs(8, 1)) == nil {
		t.Error("groups out of order")
	}
}
