package kv

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tidemark/kv/mcbp"
)

// partsOf creates scope s (8) with collections c (9) and d (a), and scope t (b) with e (c), in the bucket world.
func partsOf(t *testing.T, n *Node) {
	t.Helper()
	for _, x := range [][]string{{"", "s"}, {"/s/collections", "c"}, {"/s/collections", "d"}, {"", "t"},
		{"/t/collections", "e"}} {
		if status, body := rest(t, n, "POST", scopesOf+x[0], "name", x[1]); status != http.StatusOK {
			t.Fatal(status, body)
		}
	}
}

// inParts is loginOf with collections and extended errors negotiated.
func inParts(t *testing.T, n *Node, user string) *rawClient {
	t.Helper()
	c := loginOf(t, n, user, mcbp.StatusOK)
	c.want(request(mcbp.OpHello, 0, nil, []byte("test"), mcbp.AppendFeatures(nil,
		[]mcbp.Feature{mcbp.FeatureCollections, mcbp.FeatureXerror})), mcbp.StatusOK)
	return c
}

// ofStream is a stream request from the beginning with a filter.
func ofStream(vb uint16, filter string) mcbp.Frame {
	f := fromZero(vb)
	f.Value = []byte(filter)
	return f
}

// A request for a document is permitted by roles for its collection. Without such a role it gets NO_ACCESS if the
// user has another role in that collection, and otherwise an answer as if the collection did not exist; lists of
// collections leave it out, too.
func TestRolesOfCollections(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	partsOf(t, n)
	u := users{t, n}
	root := login(t, n.MemcachedAddr(), mcbp.FeatureCollections)
	key := keysOf(3, 16, 1)[0]
	for _, id := range []uint32{0, 9, 10, 12} {
		root.want(withCollection(id, setFrame(3, key, "1")), mcbp.StatusOK)
	}
	const ok, no, none = mcbp.StatusOK, mcbp.StatusNoAccess, mcbp.StatusUnknownCollection
	for _, tc := range []struct {
		roles string
		get   [4]mcbp.Status // in the default collection, c, d, e
		set   [4]mcbp.Status
		shown string
	}{
		{"data_reader[world:s:c]", [4]mcbp.Status{none, ok, none, none}, [4]mcbp.Status{none, no, none, none}, "s.c"},
		{"data_reader[world:s]", [4]mcbp.Status{none, ok, ok, none}, [4]mcbp.Status{none, no, no, none}, "s.c s.d"},
		{"data_writer[world:s:d],data_reader[world:s]", [4]mcbp.Status{none, ok, ok, none},
			[4]mcbp.Status{none, no, ok, none}, "s.c s.d"},
		{"data_reader[world:_default:_default]", [4]mcbp.Status{ok, none, none, none}, [4]mcbp.Status{no, none, none, none},
			"_default._default"},
		{"data_reader[world],data_writer[world:t:e]", [4]mcbp.Status{ok, ok, ok, ok}, [4]mcbp.Status{no, no, no, ok},
			"_default._default s.c s.d t.e"},
		{"data_monitoring[world],data_reader[world:t]", [4]mcbp.Status{no, no, no, ok}, [4]mcbp.Status{no, no, no, no},
			"_default._default s.c s.d t.e"},
	} {
		u.set("somebody", tc.roles)
		c := inParts(t, n, "somebody")
		for i, id := range []uint32{0, 9, 10, 12} {
			if a := c.call(withCollection(id, request(mcbp.OpGet, 3, nil, []byte(key), nil))); a.Status() != tc.get[i] {
				t.Errorf("%s: get in %x: %v", tc.roles, id, a.Status())
			}
			if a := c.call(withCollection(id, setFrame(3, key, "1"))); a.Status() != tc.set[i] {
				t.Errorf("%s: set in %x: %v", tc.roles, id, a.Status())
			}
			path := []string{"_default._default", "s.c", "s.d", "t.e"}[i]
			want := none
			if strings.Contains(tc.shown, path) {
				want = ok
			} else if scope, _, _ := strings.Cut(path, "."); !strings.Contains(" "+tc.shown, " "+scope+".") {
				want = mcbp.StatusUnknownScope
			}
			if a := c.call(request(mcbp.OpGetCollectionID, 0, nil, nil, []byte(path))); a.Status() != want {
				t.Errorf("%s: the id of %s: %v, want %v", tc.roles, path, a.Status(), want)
			}
		}
		var over, byREST mcbp.Manifest
		if err := over.UnmarshalJSON(c.want(request(mcbp.OpGetCollectionsManifest, 0, nil, nil, nil), ok).Value); err != nil {
			t.Fatal(err)
		}
		if _, body := u.call("somebody", userPassword, "GET", scopesOf); byREST.UnmarshalJSON([]byte(body)) != nil ||
			namesOf(&over) != tc.shown || namesOf(&byREST) != tc.shown {
			t.Errorf("%s: shown are %q and %q, want %q", tc.roles, namesOf(&over), namesOf(&byREST), tc.shown)
		}
	}
	// Clients without collections use the default collection.
	u.set("somebody", "data_reader[world:_default:_default]")
	loginOf(t, n, "somebody", ok).want(request(mcbp.OpGet, 3, nil, []byte(key), nil), ok)
	u.set("somebody", "data_reader[world:s:c]")
	loginOf(t, n, "somebody", ok).want(request(mcbp.OpGet, 3, nil, []byte(key), nil), no)
	loginOf(t, n, "somebody", ok).want(request(mcbp.OpGetAllVBSeqnos, 0, nil, nil, nil), no)
}

// until reads stream messages until one contains words.
func (c *rawClient) until(words string) {
	c.t.Helper()
	for {
		if got := eventLine(c.t.(*testing.T), c.read()); strings.Contains(got, words) {
			return
		} else if strings.HasPrefix(got, "end") {
			c.t.Fatalf("%q, and no %q", got, words)
		}
	}
}

func namesOf(m *mcbp.Manifest) string {
	var out []string
	for _, s := range m.Scopes {
		for _, c := range s.Collections {
			out = append(out, s.Name+"."+c.Name)
		}
	}
	return strings.Join(out, " ")
}

// A stream is permitted by roles for all that it shows: its filter's collections, or the whole bucket. The vbuckets'
// seqnos need a role for any part of the bucket, a collection's seqnos one for that collection.
func TestStreamsOfCollectionsByRole(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	partsOf(t, n)
	u := users{t, n}
	const ok, no, none = mcbp.StatusOK, mcbp.StatusNoAccess, mcbp.StatusUnknownCollection
	seqnosOf := func(id uint32) mcbp.Frame {
		return request(mcbp.OpGetAllVBSeqnos, 0, []byte{0, 0, 0, 1, 0, 0, 0, byte(id)}, nil, nil)
	}
	for _, tc := range []struct {
		roles string
		want  map[string]mcbp.Status
		c, e  mcbp.Status // of a request for the seqnos of these collections
	}{
		{"data_dcp_reader[world:s:c]", map[string]mcbp.Status{"": no, `{"collections":["9"]}`: ok,
			`{"collections":["9","a"]}`: none, `{"scope":"8"}`: mcbp.StatusUnknownScope,
			`{"collections":["0"]}`: none, `{"collections":["77"]}`: none}, ok, none},
		{"data_dcp_reader[world:s],data_reader[world:t]", map[string]mcbp.Status{"": no, `{"collections":["9","a"]}`: ok,
			`{"scope":"8"}`: ok, `{"collections":["c"]}`: no, `{"collections":["9","c"]}`: no, `{"scope":"b"}`: no,
			`{"scope":"0"}`: mcbp.StatusUnknownScope}, ok, ok},
		{"data_dcp_reader[world]", map[string]mcbp.Status{"": ok, `{"collections":["9"]}`: ok, `{"scope":"b"}`: ok}, ok, ok},
	} {
		u.set("somebody", tc.roles)
		for filter, want := range tc.want {
			c := inParts(t, n, "somebody")
			c.want(openFrame("c"), ok)
			c.want(request(mcbp.OpGetAllVBSeqnos, 0, nil, nil, nil), ok)
			c.want(seqnosOf(9), tc.c)
			c.want(seqnosOf(12), tc.e)
			c.want(request(mcbp.OpDCPFailoverLog, 3, nil, nil, nil), ok)
			if a := c.call(ofStream(3, filter)); a.Status() != want {
				t.Errorf("%s: a stream of %q: %v, want %v", tc.roles, filter, a.Status(), want)
			}
		}
	}
	u.set("somebody", "data_reader[world:s]")
	inParts(t, n, "somebody").want(openFrame("c"), no)
	u.set("somebody", "data_dcp_reader[world:s]")
	c := loginOf(t, n, "somebody", ok) // without collections: the default collection
	c.want(openFrame("c"), ok)
	c.want(fromZero(3), no)
	u.set("somebody", "data_dcp_reader[world:_default]")
	c.want(fromZero(3), ok)
}

// A stream ends when its user loses the role for what it shows, and not when another role is lost. If its collection
// is dropped, and the role with it, the stream ends as for every user; a new collection of the same name does not get
// that role back.
func TestRolesOfCollectionsChangeWhileConnected(t *testing.T) {
	g := newGroup(t, 2, 0)
	n := g.nodes["kv1"]
	partsOf(t, g.nodes["kv2"])
	g.settled()
	u := users{t, g.nodes["kv2"]} // kv2 is not the leader
	u.set("app", "data_dcp_reader[world:s:c],data_dcp_reader[world:t],data_writer[world:s]")
	var vb uint16
	for _, c := range n.View().Copies["world"] {
		if c.State == "active" {
			vb = c.VBucket
		}
	}
	d := inParts(t, n, "app")
	d.want(openFrame("app"), mcbp.StatusOK)
	d.want(ofStream(vb, `{"collections":["9"]}`), mcbp.StatusOK)
	d.until("of 8.9 c")
	key := keysOf(vb, 16, 1)[0]
	c := inParts(t, n, "app")
	// The role for the scope covers the collection, too.
	u.ok(http.MethodPut, u.path("app"), "roles", "data_dcp_reader[world:s],data_writer[world:s]")
	c.want(withCollection(9, setFrame(vb, key, "1")), mcbp.StatusOK)
	d.until("9/" + key + "=1")
	u.ok(http.MethodPut, u.path("app"), "roles", "data_dcp_reader[world:s:d],data_writer[world:s:c]")
	d.until(fmt.Sprintf("end %v <nil>", mcbp.EndPrivilegeLost))
	d.want(ofStream(vb, `{"collections":["9"]}`), mcbp.StatusNoAccess)
	d.want(ofStream(vb, `{"collections":["a"]}`), mcbp.StatusOK)
	d.until("of 8.a d")
	if status, body := rest(t, n, "DELETE", scopesOf+"/s/collections/d"); status != http.StatusOK {
		t.Fatal(status, body)
	}
	d.until(fmt.Sprintf("%d of 8.a", mcbp.EventCollectionEnds))
	d.until(fmt.Sprintf("end %v <nil>", mcbp.EndFilterEmpty))
	if status, body := rest(t, n, "POST", scopesOf+"/s/collections", "name", "d"); status != http.StatusOK {
		t.Fatal(status, body)
	}
	if got := u.ok(http.MethodGet, u.path("app")); strings.Contains(got, "data_dcp_reader") {
		t.Error(got)
	}
	d.want(ofStream(vb, `{"collections":["d"]}`), mcbp.StatusNoAccess)
	// A role for a scope covers collections that are created later.
	u.ok(http.MethodPut, u.path("app"), "roles", "data_writer[world:s]")
	if status, body := rest(t, n, "POST", scopesOf+"/s/collections", "name", "f"); status != http.StatusOK {
		t.Fatal(status, body)
	}
	c.want(withCollection(14, setFrame(vb, key, "1")), mcbp.StatusOK)
	if a := c.call(withCollection(14, request(mcbp.OpGet, vb, nil, []byte(key), nil))); a.Status() !=
		mcbp.StatusNoAccess || !strings.Contains(string(a.Value), "data_reader[world]") {
		t.Errorf("%v %s", a.Status(), a.Value)
	}
}

// REST requests with a user and a password are judged by that user's roles, also without TLS: a wrong password is
// refused, and a user sees only what its own roles permit. Without TLS, a request without credentials reads
// everything but documents and users.
func TestReadingByRESTIsJudgedByCredentials(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	partsOf(t, n)
	u := users{t, n}
	u.set("somebody", "data_reader[world:s:c]")
	u.set("ro", "ro_admin")
	const all = "_default._default s.c s.d t.e"
	for _, tc := range []struct {
		as, password string
		scopes       int
		shown        string
		rest         int // paths about the whole cluster
	}{
		{"", "", http.StatusOK, all, http.StatusOK},
		{"somebody", userPassword, http.StatusOK, "s.c", http.StatusForbidden},
		{"somebody", "wrong-password", http.StatusUnauthorized, "", http.StatusUnauthorized},
		{"somebody", "", http.StatusUnauthorized, "", http.StatusUnauthorized},
		{"nobody", userPassword, http.StatusUnauthorized, "", http.StatusUnauthorized},
		{testUser, "wrong-password", http.StatusUnauthorized, "", http.StatusUnauthorized},
		{testUser, testPassword, http.StatusOK, all, http.StatusOK},
		{"ro", userPassword, http.StatusOK, all, http.StatusOK},
	} {
		status, body := u.call(tc.as, tc.password, http.MethodGet, scopesOf)
		var m mcbp.Manifest
		if status == http.StatusOK {
			if err := m.UnmarshalJSON([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		if status != tc.scopes || namesOf(&m) != tc.shown {
			t.Errorf("%q with %q: scopes: %d %q, want %d %q", tc.as, tc.password, status, namesOf(&m), tc.scopes, tc.shown)
		}
		for _, path := range []string{pathCluster, "/v1/status", "/v1/buckets", "/metrics"} {
			if status, _ := u.call(tc.as, tc.password, http.MethodGet, path); status != tc.rest {
				t.Errorf("%q with %q: %s: %d, want %d", tc.as, tc.password, path, status, tc.rest)
			}
		}
	}
}
