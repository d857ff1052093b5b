package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemark/kv/mcbp"
)

func parse(t *testing.T, text string) []Role {
	t.Helper()
	roles, err := ParseRoles(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return roles
}

// TestPermitted lists what roles permit, permission by permission, in the bucket that the roles are for, in another
// one, and in the cluster.
func TestPermitted(t *testing.T) {
	none := SetOf()
	for _, tc := range []struct {
		roles                string
		world, other, global Set
	}{
		{"", none, none, none},
		{"admin", All, All, SetOf(Enter, ReadCluster, ManageCluster, ReadUsers, ManageUsers)},
		{"ro_admin", SetOf(See, Stats), SetOf(See, Stats), SetOf(Enter, ReadCluster, ReadUsers)},
		{"cluster_admin", SetOf(See, Stats, ManageBucket), SetOf(See, Stats, ManageBucket),
			SetOf(Enter, ReadCluster, ManageCluster)},
		{"bucket_admin[world]", SetOf(See, Stats, ManageBucket), none, SetOf(Enter)},
		{"bucket_full_access[world]", SetOf(See, Read, Write, ReadMeta, WriteMeta, Stream), none, SetOf(Enter)},
		{"data_reader[world]", SetOf(See, Read, ReadMeta), none, SetOf(Enter)},
		{"data_writer[world]", SetOf(See, Write), none, SetOf(Enter)},
		{"data_dcp_reader[world]", SetOf(See, ReadMeta, Stream), none, SetOf(Enter)},
		{"data_monitoring[world]", SetOf(See, Stats), none, SetOf(Enter)},
		{"data_reader[*]", SetOf(See, Read, ReadMeta), SetOf(See, Read, ReadMeta), SetOf(Enter)},
		{"data_reader[world],data_writer[other]", SetOf(See, Read, ReadMeta), SetOf(See, Write), SetOf(Enter)},
		{"data_reader[world],data_writer[*]", SetOf(See, Read, ReadMeta, Write), SetOf(See, Write), SetOf(Enter)},
		{"data_reader[worlds]", none, none, SetOf(Enter)},
	} {
		for bucket, want := range map[string]Set{"world": tc.world, "other": tc.other} {
			got := Permitted(parse(t, tc.roles), bucket)
			for p := See; p < permissions; p++ {
				if got.Has(p) != want.Has(p) {
					t.Errorf("%q in %s: may %v: %t", tc.roles, bucket, p, got.Has(p))
				}
			}
		}
		got := Permitted(parse(t, tc.roles), "")
		if lacks, more := got.Lacks(tc.global), tc.global.Lacks(got); len(lacks)+len(more) > 0 {
			t.Errorf("%q in the cluster: lacks %v, and has besides %v", tc.roles, lacks, more)
		}
	}
	if got := Permitted([]Role{{Name: "root"}}, "world"); got != 0 {
		t.Errorf("a role that there is not permits %b", got)
	}
}

// TestRights checks what roles for parts of a bucket permit there, combined with a role for all of it, and what a
// user sees.
func TestRights(t *testing.T) {
	m := &mcbp.Manifest{UID: 7, Scopes: []mcbp.Scope{{Name: mcbp.DefaultName, Collections: []mcbp.Collection{
		{Name: mcbp.DefaultName}}},
		{Name: "s", ID: 8, Collections: []mcbp.Collection{{Name: "c", ID: 9}, {Name: "d", ID: 10}}}, {Name: "e", ID: 11}}}
	reads, writes, streams := SetOf(See, Read, ReadMeta), SetOf(See, Write), SetOf(See, ReadMeta, Stream)
	sees := SetOf(See)
	for _, tc := range []struct {
		roles             string
		whole, some       Set
		base, c, d, s, e  Set // the default collection, two of scope s, that scope, an empty one
		scopes, collected int // that are shown
	}{
		{"", 0, 0, 0, 0, 0, 0, 0, 0, 0},
		{"data_reader[w]", reads, reads, reads, reads, reads, reads, reads, 3, 3},
		{"data_reader[w:s:c]", sees, reads, sees, reads, sees, sees, sees, 1, 1},
		{"data_reader[w:s]", sees, reads, sees, reads, reads, reads, sees, 1, 2},
		{"data_reader[w:e]", sees, reads, sees, sees, sees, sees, reads, 1, 0},
		{"data_reader[w:_default]", sees, reads, reads, sees, sees, sees, sees, 1, 1},
		{"data_reader[w:s:x]", sees, sees, sees, sees, sees, sees, sees, 0, 0},
		{"data_reader[v:s:c]", 0, 0, 0, 0, 0, 0, 0, 0, 0},
		{"data_dcp_reader[w:s:c],data_writer[w:s]", sees, streams | writes, sees, streams | writes, writes, writes, sees, 1, 2},
		{"data_writer[w],data_reader[w:s:d]", writes, reads | writes, writes, writes, reads | writes, writes, writes, 3, 3},
	} {
		r := rightsIn(parse(t, tc.roles), "w", m)
		r.Whole &^= SetOf(Enter)
		want := []Set{tc.whole, tc.some, tc.base, tc.c, tc.d, tc.s, tc.e}
		if got := []Set{r.Whole, r.Somewhere(), r.In(0), r.In(9), r.In(10), r.InScope(8), r.InScope(11)}; !slices.Equal(got,
			want) {
			t.Errorf("%s: %b, want %b", tc.roles, got, want)
		}
		shown, n := r.Shown(m), 0
		for _, s := range shown.Scopes {
			n += len(s.Collections)
		}
		if len(shown.Scopes) != tc.scopes || n != tc.collected || shown.UID != 7 {
			t.Errorf("%s: shown is %+v", tc.roles, shown)
		}
		if r.HasCollection(12) || !r.HasCollection(10) || !r.HasScope(11) || r.HasScope(9) {
			t.Errorf("%s: other collections are there", tc.roles)
		}
	}
}

func TestGranting(t *testing.T) {
	if got := Granting(SetOf(Read), "world"); got != "admin, bucket_full_access[world], data_reader[world]" {
		t.Error(got)
	}
	if got := Granting(SetOf(ManageUsers), ""); got != "admin" {
		t.Error(got)
	}
	for p := range permissions {
		if Granting(SetOf(p), "b") == "" || strings.HasPrefix(p.String(), "permission") {
			t.Errorf("no role permits %v", p)
		}
	}
}

func TestParseRoles(t *testing.T) {
	roles := parse(t, " data_writer[b], admin ,data_reader[*],admin")
	if fmt.Sprint(roles) != "[admin data_reader[*] data_writer[b]]" {
		t.Errorf("%v", roles)
	}
	parts := parse(t, "data_reader[b:s:c],data_writer[b:s],data_reader[b:*:*],data_dcp_reader[b:s:*],data_reader[b:*],"+
		"data_monitoring[b:*],data_reader[b:_default:_default]")
	if fmt.Sprint(parts) != "[data_dcp_reader[b:s] data_monitoring[b] data_reader[b:_default:_default] "+
		"data_reader[b:s:c] data_reader[b] data_writer[b:s]]" {
		t.Errorf("%v", parts)
	}
	if got := parse(t, " "); got == nil || len(got) > 0 {
		t.Errorf("no role: %#v", got)
	}
	for text, says := range map[string]string{
		"root": "there is no role", "data_reader": "want data_reader[BUCKET]", "data_reader[]": "want data_reader[BUCKET]",
		"admin[world]": "takes no bucket", "data_reader[world": "want data_reader[BUCKET]",
		"data_reader[w]]":           "not a valid bucket name",
		"data_monitoring[w:s]":      "applies to whole buckets",
		"bucket_full_access[w:s:c]": "applies to whole buckets",
		"data_reader[w:]":           "want data_reader[BUCKET:SCOPE]", "data_reader[w:s:]": "want data_reader[BUCKET:SCOPE]",
		"data_reader[w:*:c]": "want data_reader[BUCKET:SCOPE]", "data_reader[*:s]": "want data_reader[BUCKET:SCOPE]",
		"data_reader[w:s:c:d]": "or data_reader[BUCKET:SCOPE:COLLECTION]", "data_reader[w:s c]": "not a valid scope or collection name",
		"data_reader[w:" + strings.Repeat("s", 252) + "]": "not a valid scope or collection name",
		"data_reader[" + strings.Repeat("w", 101) + "]":   "not a valid bucket name", ",": "there is no role",
		strings.Repeat("data_reader[w],", MaxRoles) + "admin": "at most",
	} {
		if _, err := ParseRoles(text); !errors.Is(err, ErrAccess) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40s: %v", text, err)
		}
	}
}

// counted returns a function that fills slices with different bytes each time.
func counted() func([]byte) {
	var n byte
	return func(b []byte) {
		for i := range b {
			n++
			b[i] = n
		}
	}
}

func TestKeys(t *testing.T) {
	random := counted()
	a, err := Derive("secret-1", random)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Derive("secret-1", random)
	if err != nil {
		t.Fatal(err)
	}
	if !a.Matches("secret-1") || a.Matches("secret-2") || a.Matches("") || (&Keys{}).Matches("secret-1") {
		t.Error("a password is taken for another one")
	}
	if string(a.SHA1.Stored) == string(b.SHA1.Stored) || string(a.SHA512.Server) == string(b.SHA512.Server) {
		t.Error("one password has the same keys twice")
	}
	for password, says := range map[string]string{"five5": "at least 6", strings.Repeat("x", MaxPassword+1): "at most",
		"with\x00zero": "control", "bad\xffbytes": "UTF-8"} {
		if _, err := Derive(password, random); !errors.Is(err, ErrAccess) || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), password) {
			t.Errorf("%.20q: %v", password, err)
		}
	}
}

func TestCheckAll(t *testing.T) {
	keys, err := Derive("secret-1", counted())
	if err != nil {
		t.Fatal(err)
	}
	user := func(id string, edit func(*User)) User {
		u := User{ID: id, Name: "A Name", Roles: []Role{{Name: "data_reader", Bucket: "world"}}, Keys: keys}
		if edit != nil {
			edit(&u)
		}
		return u
	}
	users := []User{user("a", nil), user("b", nil), user("ö", nil)}
	if err := CheckAll(users); err != nil {
		t.Fatal(err)
	}
	d := NewDirectory(Kept{Users: users})
	if d.Find("b") == nil || d.Find("c") != nil || d.Permitted("b", "world") != SetOf(Enter, See, Read, ReadMeta) ||
		d.Permitted("c", "world") != 0 || (*Directory)(nil).Find("b") != nil {
		t.Error("the directory does not find its users")
	}
	grouped := NewDirectory(Kept{
		Users:  []User{{ID: "u", Roles: parse(t, "data_writer[world]"), Groups: []string{"g", "x"}}},
		Groups: []Group{{ID: "g", Roles: parse(t, "data_reader[world],ro_admin")}}})
	if r := grouped.Rights("u", "world"); grouped.Permitted("u", "world") != SetOf(Enter, See, Read, ReadMeta, Write,
		Stats, ReadCluster, ReadUsers) || r.Whole != grouped.Permitted("u", "world") {
		t.Errorf("with the roles of its groups: %b", r.Whole)
	}
	many, crowd := make([]Role, MaxRoles+1), make([]User, MaxUsers+1)
	for i := range many {
		many[i] = Role{Name: "data_reader", Bucket: fmt.Sprintf("b%03d", i)}
	}
	for i := range crowd {
		crowd[i] = user(fmt.Sprintf("u%03d", i), nil)
	}
	for name, tc := range map[string]struct {
		bad []User
		ok  []User // the same within the bound
	}{
		"out of order": {[]User{users[1], users[0]}, users[:2]},
		"twice":        {[]User{users[0], users[0]}, users[:1]},
		"no name":      {bad: []User{user("", nil)}},
		"a space":      {bad: []User{user("a b", nil)}},
		"a colon":      {bad: []User{user("a:b", nil)}},
		"long":         {[]User{user(strings.Repeat("a", MaxID+1), nil)}, []User{user(strings.Repeat("a", MaxID), nil)}},
		"bad role":     {bad: []User{user("a", func(u *User) { u.Roles = []Role{{Name: "root"}} })}},
		"many roles": {[]User{user("a", func(u *User) { u.Roles = many })},
			[]User{user("a", func(u *User) { u.Roles = many[1:] })}},
		"full name": {bad: []User{user("a", func(u *User) { u.Name = "a\nb" })}},
		"no keys":   {bad: []User{user("a", func(u *User) { u.Keys = Keys{Iterations: Iterations} })}},
		"short key": {bad: []User{user("a", func(u *User) { u.Keys.SHA256.Stored = u.Keys.SHA256.Stored[1:] })}},
		"few":       {bad: []User{user("a", func(u *User) { u.Keys.Iterations = 1 })}},
		"much work": {[]User{user("a", func(u *User) { u.Keys.Iterations = MaxIterations + 1 })},
			[]User{user("a", func(u *User) { u.Keys.Iterations = MaxIterations })}},
		"too many": {crowd, crowd[1:]},
	} {
		if err := CheckAll(tc.bad); !errors.Is(err, ErrAccess) {
			t.Errorf("%s: %v", name, err)
		}
		if err := CheckAll(tc.ok); err != nil {
			t.Errorf("%s, within the bound: %v", name, err)
		}
	}
}

// TestJudgesAs checks that two directories decide alike if the user's roles, its own and those of its groups, and the
// bucket with its collections are the same.
func TestJudgesAs(t *testing.T) {
	roles := func(text string) []Role {
		out, err := ParseRoles(text)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	kept := func(change func(*Kept)) *Directory {
		k := Kept{Users: []User{{ID: "a", Roles: roles("data_reader[w:s]"), Groups: []string{"g"}}, {ID: "b"}},
			Groups: []Group{{ID: "g", Roles: roles("data_writer[w]")}, {ID: "h"}}, Buckets: map[string]Bucket{
				"w": {UUID: "1", Manifest: &mcbp.Manifest{UID: 1}}, "x": {UUID: "2", Manifest: &mcbp.Manifest{UID: 1}}}}
		change(&k)
		return NewDirectory(k)
	}
	bucket := func(name, uuid string, uid uint64) func(*Kept) {
		return func(k *Kept) { k.Buckets[name] = Bucket{UUID: uuid, Manifest: &mcbp.Manifest{UID: uid}} }
	}
	before := kept(func(*Kept) {})
	for _, tc := range []struct {
		name   string
		change func(*Kept)
		want   bool
	}{
		{"nothing", func(*Kept) {}, true},
		{"its password", func(k *Kept) { k.Users[0].Keys.Iterations++ }, true},
		{"its roles", func(k *Kept) { k.Users[0].Roles = roles("data_reader[w:t]") }, false},
		{"its groups", func(k *Kept) { k.Users[0].Groups = nil }, false},
		{"its group's roles", func(k *Kept) { k.Groups[0].Roles = nil }, false},
		{"its group is gone", func(k *Kept) { k.Groups = k.Groups[1:] }, false},
		{"it is gone", func(k *Kept) { k.Users = k.Users[1:] }, false},
		{"another user", func(k *Kept) { k.Users[1].Roles = roles("data_reader[w]") }, true},
		{"another group", func(k *Kept) { k.Groups[1].Roles = roles("data_reader[w]") }, true},
		{"its bucket's collections", bucket("w", "1", 2), false},
		{"another bucket of its name", bucket("w", "3", 1), false},
		{"the bucket is gone", func(k *Kept) { delete(k.Buckets, "w") }, false},
		{"another bucket's collections", bucket("x", "2", 2), true},
		{"a bucket is made", bucket("y", "4", 1), true},
	} {
		if got := kept(tc.change).JudgesAs(before, "a", "w"); got != tc.want {
			t.Errorf("%s: judges the same: %v, want %v", tc.name, got, tc.want)
		}
	}
	var none *Directory
	if before.JudgesAs(none, "a", "w") || none.JudgesAs(before, "a", "w") || !none.JudgesAs(none, "a", "w") {
		t.Error("none judges as one does, or not as none")
	}
}
