package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocbcore/v10"

	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
	"tidemark/kv/store"
)

// rest sends a documented request to a node's admin interface and returns the status and the body.
func rest(t *testing.T, n *Node, method, path string, form ...string) (int, string) {
	t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	r, err := http.NewRequest(method, "http://"+n.AdminAddr()+path, strings.NewReader(values.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.SetBasicAuth(testUser, testPassword)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, strings.TrimSpace(string(body))
}

const scopesOf = "/pools/default/buckets/world/scopes"

func restOK(t *testing.T, n *Node, want, method, path string, form ...string) {
	t.Helper()
	if status, body := rest(t, n, method, path, form...); status != http.StatusOK || body != want {
		t.Fatalf("%s %s: %d %s, want %s", method, path, status, body, want)
	}
}

// The documented calls work, and invalid ones are refused.
func TestCollectionsByREST(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	const first = `{"uid":"0","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]}]}`
	restOK(t, n, first, "GET", scopesOf)
	restOK(t, n, `{"uid":"1"}`, "POST", scopesOf, "name", "s")
	restOK(t, n, `{"uid":"2"}`, "POST", scopesOf+"/s/collections", "name", "c")
	restOK(t, n, `{"uid":"3"}`, "POST", scopesOf+"/_default/collections", "name", "d")
	restOK(t, n, `{"uid":"4"}`, "DELETE", scopesOf+"/s/collections/c")
	restOK(t, n, `{"uid":"5"}`, "POST", scopesOf+"/s/collections", "name", "c") // another collection of the name
	const now = `{"uid":"5","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"},` +
		`{"name":"d","uid":"a"}]},{"name":"s","uid":"8","collections":[{"name":"c","uid":"b"}]}]}`
	restOK(t, n, now, "GET", scopesOf)
	for _, x := range []struct {
		status              int
		words, method, path string
		form                []string
	}{
		{400, "already exists", "POST", scopesOf, []string{"name", "s"}},
		{400, "already exists", "POST", scopesOf + "/s/collections", []string{"name", "c"}},
		{400, "not beginning with", "POST", scopesOf, []string{"name", "_x"}},
		{400, "must be supplied", "POST", scopesOf, nil},
		{400, "cannot be dropped", "DELETE", scopesOf + "/_default", nil},
		{400, "cannot be dropped", "DELETE", scopesOf + "/_default/collections/_default", nil},
		{404, "is not found", "POST", scopesOf + "/x/collections", []string{"name", "c"}},
		{404, "is not found", "DELETE", scopesOf + "/s/collections/x", nil},
		{404, "resource not found", "POST", "/pools/default/buckets/x/scopes", []string{"name", "c"}},
		{404, "not found", "GET", "/pools/default/buckets/x/scopes", nil},
	} {
		if status, body := rest(t, n, x.method, x.path, x.form...); status != x.status || !strings.Contains(body, x.words) {
			t.Errorf("%s %s %v: %d %s, want %d and %q", x.method, x.path, x.form, status, body, x.status, x.words)
		}
	}
	restOK(t, n, now, "GET", scopesOf)
	restOK(t, n, `{"uid":"6"}`, "DELETE", scopesOf+"/s")
}

func withCollection(id uint32, f mcbp.Frame) mcbp.Frame {
	f.Key = mcbp.AppendCollectionKey(nil, id, f.Key)
	return f
}

// eventLine is line for connections with collections enabled.
func eventLine(t *testing.T, f mcbp.Frame) string {
	t.Helper()
	switch f.Op {
	case mcbp.OpDCPMutation, mcbp.OpDCPDeletion:
		id, key, err := mcbp.SplitCollectionKey(f.Key)
		if err != nil {
			t.Fatal(err)
		}
		f.Key = fmt.Appendf(nil, "%x/%s", id, key)
	case mcbp.OpDCPSystemEvent:
		m, err := mcbp.DecodeSystemEvent(f.Extras)
		if err != nil {
			t.Fatal(err)
		}
		e, err := mcbp.DecodeCollectionEvent(m.Event, f.Value)
		return fmt.Sprintf("event %d: %d of %x.%x %s uid %d %v", m.Seqno, m.Event, e.Scope, e.Collection, f.Key, e.Manifest,
			err)
	}
	return line(f)
}

func expectEvents(t *testing.T, c *rawClient, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := eventLine(t, c.read()); got != w {
			t.Fatalf("got %q, want %q", got, w)
		}
	}
}

func openWithCollections(t *testing.T, n *Node, name string) *rawClient {
	t.Helper()
	c := login(t, n.MemcachedAddr(), mcbp.FeatureCollections)
	c.want(request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: mcbp.OpenProducer}.AppendExtras(nil), []byte(name), nil),
		mcbp.StatusOK)
	return c
}

func matches(text, format string, into ...any) bool {
	n, err := fmt.Sscanf(text, format, into...)
	return err == nil && n == len(into)
}

func filtered(value string, r mcbp.StreamRequest) mcbp.Frame {
	f := streamFrame(0, r)
	f.Value = []byte(value)
	return f
}

// Documents in collections, ids of names, and the answers for a missing collection or scope.
func TestCollectionsOnTheWire(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	restOK(t, n, `{"uid":"1"}`, "POST", scopesOf, "name", "s")
	restOK(t, n, `{"uid":"2"}`, "POST", scopesOf+"/s/collections", "name", "c")
	c := login(t, n.MemcachedAddr(), mcbp.FeatureCollections, mcbp.FeatureJSON)
	a := c.want(request(mcbp.OpGetCollectionID, 0, nil, nil, []byte("s.c")), mcbp.StatusOK)
	if uid, id, err := mcbp.DecodeCollectionID(a.Extras); uid != 2 || id != 9 || err != nil {
		t.Fatalf("s.c is %x in manifest %d %v", id, uid, err)
	}
	a = c.want(request(mcbp.OpGetScopeID, 0, nil, nil, []byte("s")), mcbp.StatusOK)
	if uid, id, err := mcbp.DecodeCollectionID(a.Extras); uid != 2 || id != 8 || err != nil {
		t.Fatalf("s is %x in manifest %d %v", id, uid, err)
	}
	var m mcbp.Manifest
	a = c.want(request(mcbp.OpGetCollectionsManifest, 0, nil, nil, nil), mcbp.StatusOK)
	if err := json.Unmarshal(a.Value, &m); err != nil || m.UID != 2 || len(m.Scopes) != 2 {
		t.Fatalf("%s %v", a.Value, err)
	}
	for path, status := range map[string]mcbp.Status{"s.d": mcbp.StatusUnknownCollection, "t.c": mcbp.StatusUnknownScope,
		"s": mcbp.StatusInvalid, "s.c.d": mcbp.StatusInvalid} {
		a := c.want(request(mcbp.OpGetCollectionID, 0, nil, nil, []byte(path)), status)
		if status != mcbp.StatusInvalid && string(a.Value) != `{"manifest_uid":"2"}` {
			t.Fatalf("%s: %s", path, a.Value)
		}
	}
	get := func(id uint32) mcbp.Frame { return withCollection(id, request(mcbp.OpGet, 0, nil, []byte("k"), nil)) }
	c.want(withCollection(0, setFrame(0, "k", "default")), mcbp.StatusOK)
	c.want(withCollection(9, setFrame(0, "k", "member")), mcbp.StatusOK)
	if d, m := c.want(get(0), mcbp.StatusOK), c.want(get(9), mcbp.StatusOK); string(d.Value) != "default" ||
		string(m.Value) != "member" {
		t.Fatalf("%q and %q", d.Value, m.Value)
	}
	for _, id := range []uint32{1, 7, 8, 10, 1 << 20} { // a reserved id, a scope's id, unused ids
		if a := c.want(get(id), mcbp.StatusUnknownCollection); string(a.Value) != `{"manifest_uid":"2"}` {
			t.Fatalf("%q", a.Value)
		}
		c.want(withCollection(id, setFrame(0, "k", "1")), mcbp.StatusUnknownCollection)
	}
	c.want(withCollection(9, setFrame(0, strings.Repeat("k", 247), "1")), mcbp.StatusInvalid)

	plain := login(t, n.MemcachedAddr())
	if a := plain.want(request(mcbp.OpGet, 0, nil, []byte("k"), nil), mcbp.StatusOK); string(a.Value) != "default" {
		t.Fatalf("without the feature: %q", a.Value)
	}
	high := func(c *rawClient, extras []byte) uint64 {
		all, err := mcbp.DecodeVBSeqnos(c.want(request(mcbp.OpGetAllVBSeqnos, 0, extras, nil, nil), mcbp.StatusOK).Value)
		if err != nil {
			t.Fatal(err)
		}
		return all[0].Seqno
	}
	if x := []uint64{high(plain, nil), high(c, nil), high(c, []byte{0, 0, 0, 1, 0, 0, 0, 9}),
		high(c, []byte{0, 0, 0, 1, 0, 0, 0, 0})}; x[0] != 3 || x[1] != 4 || x[2] != 4 || x[3] != 3 {
		t.Fatalf("seqnos %v", x)
	}
	restOK(t, n, `{"uid":"3"}`, "DELETE", scopesOf+"/s/collections/c")
	c.want(get(9), mcbp.StatusUnknownCollection)
	restOK(t, n, `{"uid":"4"}`, "POST", scopesOf+"/s/collections", "name", "c")
	c.want(get(9), mcbp.StatusUnknownCollection)
	c.want(get(10), mcbp.StatusKeyNotFound)
}

// Streams with each filter: none (everything with system events), a collection, a scope, or the default collection
// alone.
func TestStreamsOfCollections(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	restOK(t, n, `{"uid":"1"}`, "POST", scopesOf, "name", "s")
	restOK(t, n, `{"uid":"2"}`, "POST", scopesOf+"/s/collections", "name", "c")
	c := login(t, n.MemcachedAddr(), mcbp.FeatureCollections)
	c.want(withCollection(0, setFrame(0, "k", "1")), mcbp.StatusOK)
	c.want(withCollection(9, setFrame(0, "k", "2")), mcbp.StatusOK)

	endless := mcbp.StreamRequest{End: mcbp.EndOfTime}
	all := openWithCollections(t, n, "all")
	all.want(fromZero(0), mcbp.StatusOK)
	expectEvents(t, all, "snapshot 0-4 2 <nil>", "event 1: 3 of 8.0 s uid 1 <nil>", "event 2: 0 of 8.9 c uid 2 <nil>",
		"mutation 3 0/k=1 <nil>", "mutation 4 9/k=2 <nil>")
	one := openWithCollections(t, n, "one")
	one.want(filtered(`{"collections":["9"],"uid":"2"}`, endless), mcbp.StatusOK)
	expectEvents(t, one, "snapshot 0-4 2 <nil>", "event 2: 0 of 8.9 c uid 2 <nil>", "mutation 4 9/k=2 <nil>")
	scope := openWithCollections(t, n, "scope")
	scope.want(filtered(`{"scope":"8"}`, endless), mcbp.StatusOK)
	expectEvents(t, scope, "snapshot 0-4 2 <nil>", "event 1: 3 of 8.0 s uid 1 <nil>", "event 2: 0 of 8.9 c uid 2 <nil>",
		"mutation 4 9/k=2 <nil>")
	standard := openWithCollections(t, n, "default")
	standard.want(filtered(`{"collections":["0"]}`, endless), mcbp.StatusOK)
	expectEvents(t, standard, "snapshot 0-4 2 <nil>", "mutation 3 0/k=1 <nil>", "advanced 4 <nil>")
	legacy := openDCP(t, n.MemcachedAddr(), "legacy", 0)
	legacy.want(fromZero(0), mcbp.StatusOK)
	legacy.lines("snapshot 0-3 2 <nil>", "mutation 3 k=1 <nil>")

	restOK(t, n, `{"uid":"3"}`, "POST", scopesOf+"/s/collections", "name", "d")
	expectEvents(t, all, "snapshot 5-5 1 <nil>", "event 5: 0 of 8.a d uid 3 <nil>")
	expectEvents(t, one, "snapshot 5-5 1 <nil>", "advanced 5 <nil>")
	expectEvents(t, scope, "snapshot 5-5 1 <nil>", "event 5: 0 of 8.a d uid 3 <nil>")
	c.want(withCollection(10, setFrame(0, "k", "3")), mcbp.StatusOK)
	expectEvents(t, scope, "snapshot 6-6 1 <nil>", "mutation 6 a/k=3 <nil>")
	expectEvents(t, one, "snapshot 6-6 1 <nil>", "advanced 6 <nil>")
	restOK(t, n, `{"uid":"4"}`, "DELETE", scopesOf+"/s/collections/c")
	expectEvents(t, one, "snapshot 7-7 1 <nil>", "event 7: 1 of 8.9  uid 4 <nil>", "end filter empty <nil>")
	expectEvents(t, scope, "snapshot 7-7 1 <nil>", "event 7: 1 of 8.9  uid 4 <nil>")
	restOK(t, n, `{"uid":"5"}`, "DELETE", scopesOf+"/s")
	expectEvents(t, scope, "snapshot 8-9 1 <nil>", "event 8: 1 of 8.a  uid 5 <nil>", "event 9: 4 of 8.0  uid 5 <nil>",
		"end filter empty <nil>")
	c.want(withCollection(0, setFrame(0, "j", "4")), mcbp.StatusOK)
	var start uint64 // the first snapshot may begin at any seqno that the stream has skipped
	if got := line(legacy.read()); !matches(got, "snapshot %d-10 1 <nil>", &start) || start < 4 || start > 10 {
		t.Fatalf("got %q, want a snapshot to 10", got)
	}
	legacy.lines("mutation 10 j=4 <nil>")

	late := openWithCollections(t, n, "late")
	late.want(streamFrame(0, mcbp.StreamRequest{End: 9}), mcbp.StatusOK)
	expectEvents(t, late, "snapshot 0-10 2 <nil>", "mutation 3 0/k=1 <nil>", "event 7: 1 of 8.9  uid 4 <nil>",
		"event 8: 1 of 8.a  uid 5 <nil>", "event 9: 4 of 8.0  uid 5 <nil>", "mutation 10 0/j=4 <nil>", "end ok <nil>")
	for value, status := range map[string]mcbp.Status{
		`{"collections":["9"]}`: mcbp.StatusUnknownCollection, `{"scope":"8"}`: mcbp.StatusUnknownScope,
		`{"collections":["x"]}`: mcbp.StatusInvalid, `{"collections":["0"],"scope":"0"}`: mcbp.StatusInvalid,
		`{"uid":"6"}`: mcbp.StatusManifestAhead,
	} {
		if a := late.want(filtered(value, endless), status); status != mcbp.StatusInvalid &&
			string(a.Value) != `{"manifest_uid":"5"}` {
			t.Errorf("%s: %s", value, a.Value)
		}
	}
}

// A finite stream that waits for its consumer while a deletion is made and purged does not end with status ok:
// neither when nothing is left up to its end, nor when only other collections have items there.
func TestFiniteStreamLacksADeletion(t *testing.T) {
	config := testConfig(t.TempDir())
	config.Nasty = server.ExactEnd // applies to vbucket 1
	n, _ := runNode(t, config)
	restOK(t, n, `{"uid":"1"}`, "POST", scopesOf, "name", "s")
	restOK(t, n, `{"uid":"2"}`, "POST", scopesOf+"/s/collections", "name", "c")
	c := login(t, n.MemcachedAddr(), mcbp.FeatureCollections)
	c.want(withCollection(0, setFrame(1, "k", "1")), mcbp.StatusOK)
	var waiting []*rawClient
	for _, end := range []uint64{4, 5} {
		d := openDCP(t, n.MemcachedAddr(), fmt.Sprint("to ", end), 0)
		d.want(request(mcbp.OpDCPControl, 0, nil, []byte(mcbp.ControlBufferSize), []byte("60")), mcbp.StatusOK)
		d.want(streamFrame(1, mcbp.StreamRequest{End: end}), mcbp.StatusOK)
		d.lines("snapshot 0-3 2 <nil>", "mutation 3 k=1 <nil>") // the window is full
		waiting = append(waiting, d)
	}
	c.want(withCollection(0, request(mcbp.OpDelete, 1, nil, []byte("k"), nil)), mcbp.StatusOK)
	c.want(withCollection(9, setFrame(1, "x", "1")), mcbp.StatusOK)
	c.want(withCollection(0, setFrame(1, "j", "1")), mcbp.StatusOK)
	v := n.vbucket("world", 1)
	if err := v.ForgetTombstones(); err != nil || v.Purged() != 4 {
		t.Fatal(v.Purged(), err)
	}
	for _, d := range waiting {
		d.send(request(mcbp.OpDCPBufferAck, 0, mcbp.AppendBufferAck(nil, 1<<10), nil, nil))
		d.lines("end too slow <nil>")
	}
}

// A change of collections is answered when all vbuckets have applied it: the answer waits while a vbucket is sealed,
// and is an error if the caller gives up first.
func TestCollectionsOfASealedVBucket(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	v := n.vbucket("world", 1)
	change := func(scope string) (context.CancelFunc, <-chan error) {
		t.Helper()
		if _, err := v.Seal(time.Hour); err != nil {
			t.Fatal(err)
		}
		before := n.cluster.manifest("world").UID
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		done := make(chan error, 1)
		go func() {
			_, err := n.cluster.changeCollections(ctx, clustermap.CollectionChange{Bucket: "world", Scope: scope})
			done <- err
		}()
		eventually(t, func() error {
			if n.cluster.manifest("world").UID == before {
				return errors.New("no new manifest")
			}
			return nil
		})
		return cancel, done
	}
	cancel, done := change("s")
	cancel()
	if err := <-done; !errors.Is(err, store.ErrSealed) {
		t.Fatalf("while a vbucket is sealed: %v", err)
	}
	if _, ok := n.vbucket("world", 0).CollectionsOf(8); !ok {
		t.Fatal("the others wait for it")
	}
	_, done = change("t")
	v.Unseal()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint32{8, 9} {
		if _, ok := v.CollectionsOf(id); !ok {
			t.Fatalf("the vbucket does not have scope %d", id)
		}
	}
}

// The nodes of a cluster agree on collections, and replicas have their documents. A node that missed a change catches
// up, also when it becomes active only then.
func TestCollectionsOfACluster(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, 1)
	admin := func(id string) *Node { return g.nodes[id] }
	for i, id := range []string{"kv1", "kv2", "kv3"} { // at every member
		restOK(t, admin(id), fmt.Sprintf(`{"uid":"%d"}`, i+1), "POST", scopesOf, "name", "s"+id)
	}
	restOK(t, admin("kv2"), `{"uid":"4"}`, "POST", scopesOf+"/skv1/collections", "name", "c")
	if status, body := rest(t, admin("kv3"), "POST", scopesOf, "name", "skv1"); status != 400 {
		t.Fatalf("a scope that exists, by way of another node: %d %s", status, body)
	}
	agent := kvAgent(t, g.nodes["kv1"].MemcachedAddr(), "world")
	put := func(key string) error {
		return await(t, func(done chan<- error) error {
			_, err := agent.Set(gocbcore.SetOptions{Key: []byte(key), Value: []byte("{}"), ScopeName: "skv1",
				CollectionName: "c", Deadline: time.Now().Add(testTimeout)},
				func(_ *gocbcore.StoreResult, err error) { done <- err })
			return err
		})
	}
	for i := range 64 {
		if err := put(fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	g.settled()
	items := func() (n int) {
		for id := range g.nodes {
			for _, b := range g.nodes[id].Status().Buckets {
				n += b.Items
			}
		}
		return n
	}
	if n := items(); n != 64 {
		t.Fatalf("%d documents", n)
	}
	g.stop("kv3")
	delete(g.nodes, "kv3")
	remote := NewRemote(testUser, testPassword, clusterWait, nil)
	err := remote.Call(t.Context(), g.nodes["kv1"].AdminAddr(), http.MethodPost, pathFailover,
		FailoverRequest{Nodes: []string{"kv3"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.settled()
	if n := items(); n != 64 {
		t.Fatalf("%d documents after a failover", n)
	}
	admins := NewAdmin([]string{g.nodes["kv2"].AdminAddr()}, testUser, testPassword, nil)
	if _, err := admins.Collections(t.Context(), clustermap.CollectionChange{Bucket: "world",
		Scope: "skv1", Collection: "c", Drop: true}); err != nil {
		t.Fatal(err)
	}
	if n := items(); n != 0 {
		t.Fatalf("%d documents after the collection was dropped", n)
	}
	_, err = admins.Collections(t.Context(), clustermap.CollectionChange{Bucket: "world",
		Scope: "skv1", Collection: "c", Drop: true})
	if !errors.Is(err, clustermap.ErrNoCollection) {
		t.Fatalf("dropped again: %v", err)
	}
	g.stop("kv1")
	g.stop("kv2")
	g.again("kv1")
	g.again("kv2")
	ready(t, g.nodes["kv1"])
	ready(t, g.nodes["kv2"])
	if status, body := rest(t, g.nodes["kv2"], "GET", scopesOf); status != 200 || !strings.Contains(body, `"uid":"5"`) {
		t.Fatalf("after a restart: %d %s", status, body)
	}
}
