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
		seen = append(seen, fmt.Sprint(u.ID, u.Roles, u.Keys.Know("secret-1"), u.Keys.Know("secret-2")))
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
	all := []access.Role{{Name: "data_reader", Bucket: access.AnyBucket}, {Name: "data_writer", Bucket: bucket}}
	change(UserChange{User: "c", Roles: &all})
	dropped, err := m.ChangeBuckets(BucketChange{Name: bucket, Drop: true})
	if err != nil || fmt.Sprint(dropped.Users[0].Roles, dropped.Users[1].Roles) != "[] [data_reader[*]]" ||
		len(m.Users[1].Roles) != 2 {
		t.Errorf("roles of a bucket that was dropped: %v %v, %v", dropped.Users[0].Roles, dropped.Users[1].Roles, err)
	}
	for i := len(m.Users); i < access.MaxUsers; i++ {
		var err error
		if m, err = m.ChangeUser(UserChange{User: fmt.Sprintf("u%03d", i), Roles: &none, Keys: first}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.ChangeUser(UserChange{User: "z", Roles: &none, Keys: first}); !errors.Is(err, access.ErrAccess) {
		t.Errorf("one user more than may be: %v", err)
	}
}
