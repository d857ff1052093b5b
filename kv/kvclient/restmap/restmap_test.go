package restmap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

const patience = 3 * time.Minute

// document returns a map of a bucket on two nodes, as managers return it: the first without a name of its own, and
// with a third node without documents.
func document(rev int) string {
	return fmt.Sprintf(`{"rev":%d,"name":"world","uri":"/pools/default/buckets/world?bucket_uuid=0a1b",
"streamingUri":"/pools/default/bucketsStreaming/world?bucket_uuid=0a1b","nodeLocator":"vbucket","uuid":"0a1b",
"nodes":[{"hostname":"$HOST:8091","ports":{"direct":11210}},{"hostname":"10.0.0.2:8091","ports":{"direct":11210}}],
"nodesExt":[{"thisNode":true,"services":{"mgmt":8091,"mgmtSSL":18091,"kv":11210,"kvSSL":11207},
"alternateAddresses":{"external":{"hostname":"kv1.example.org","ports":{"mgmt":9091,"kv":21210,"kvSSL":21207}}}},
{"hostname":"10.0.0.2","services":{"mgmt":8091,"mgmtSSL":18091,"kv":11210,"kvSSL":11207},
"alternateAddresses":{"external":{"hostname":"kv2.example.org"}}},
{"hostname":"10.0.0.3","services":{"mgmt":8091,"mgmtSSL":18091,"n1ql":8093}}],
"vBucketServerMap":{"hashAlgorithm":"CRC","numReplicas":1,"serverList":["$HOST:11210","10.0.0.2:11210"],
"vBucketMap":[[0,1],[1,0]]},"clusterCapabilitiesVer":[1,0],"clusterCapabilities":{"n1ql":["enhancedPreparedStatements"]}}`,
		rev)
}

// The result of a document, for each way to get it.
func TestAnswers(t *testing.T) {
	config, err := mcbp.ParseClusterConfig([]byte(document(7)))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		manager, network string
		tls              bool
		node, second     string // addresses, or words of the error
	}{
		{"10.0.0.1:8091", "", false, "10.0.0.1:11210", "10.0.0.2:8091"},
		{"10.0.0.1:18091", "", true, "10.0.0.1:11207", "10.0.0.2:18091"},
		{"[::1]:8091", "default", false, "[::1]:11210", "10.0.0.2:8091"},
		{"kv1.example.org:9091", "", false, "kv1.example.org:21210", "kv2.example.org:8091"},
		{"kv2.example.org:8091", "", true, "kv1.example.org:21207", "kv2.example.org:18091"},
		{"10.0.0.1:8091", "external", false, "kv1.example.org:21210", "kv2.example.org:8091"},
		{"kv1.example.org:9091", "default", false, "kv1.example.org:11210", "10.0.0.2:8091"},
		{"10.0.0.1:8091", "none", false, `"none"`, `"none"`},
	} {
		a := Answer{config, tt.manager}
		node, err := a.Node(tt.network, tt.tls)
		if node != tt.node && (err == nil || !strings.Contains(err.Error(), tt.node)) {
			t.Errorf("%+v: node %s %v", tt, node, err)
		}
		second, err := config.ManagerAddrIn(a.Network(tt.network), 1, a.Host(), tt.tls)
		if second != tt.second && (err == nil || !strings.Contains(err.Error(), tt.second)) {
			t.Errorf("%+v: second manager %s %v", tt, second, err)
		}
	}
	config.NodesExt[0].ThisNode = false
	config.NodesExt[2].ThisNode = true
	if _, err := (Answer{config, "10.0.0.3:8091"}).Node("", false); !errors.Is(err, mcbp.ErrConfig) {
		t.Errorf("a node without documents: %v", err)
	}
}

func TestDocuments(t *testing.T) {
	in := bufio.NewScanner(strings.NewReader("{\"a\":\n1}\n\n\n\n\n\n\n\n{}\n\n\n\n{\"cut"))
	in.Split(documents)
	var got []string
	for in.Scan() {
		got = append(got, in.Text())
	}
	if want := []string{"{\"a\":\n1}", "", "{}"}; fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) || in.Err() != nil {
		t.Errorf("%q %v", got, in.Err())
	}
}

// manager is a test server with scripted answers.
func manager(t *testing.T, serve http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.Listener.Addr().String()
}

// hanging accepts connections and sends nothing.
func hanging(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func source(t *testing.T, managers ...string) *Source {
	t.Helper()
	return New(Options{Managers: managers, Bucket: "world", User: "u", Timeout: patience,
		Password: func() (string, error) { return "p", nil }, Pinned: true})
}

// Refusals have their own errors, and a redirect is a refusal: the password is sent nowhere else.
func TestRefusals(t *testing.T) {
	var elsewhere atomic.Int64
	other := manager(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	for name, tt := range map[string]struct {
		serve http.HandlerFunc
		want  error
	}{
		"password": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, kvclient.ErrAuth},
		"right":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, kvclient.ErrAuth},
		"bucket":   {http.NotFound, kvclient.ErrNoBucket},
		"busy":     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, kvclient.ErrTemporary},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+other, http.StatusFound)
		}, ErrAnswer},
		"no map": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, mcbp.ErrConfig},
		"too long": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(" ", mcbp.MaxConfigBytes+1)))
		}, mcbp.ErrConfig},
		"another bucket": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Replace(document(1), `"world"`, `"other"`, 1)))
		}, ErrAnswer},
		"memcached bucket": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Replace(document(1), `"vbucket"`, `"ketama"`, 1)))
		}, mcbp.ErrNoVBuckets},
	} {
		s := source(t, manager(t, tt.serve))
		if _, err := s.Ask(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if _, ok := s.Newest(); ok {
			t.Errorf("%s: a map was kept", name)
		}
	}
	if elsewhere.Load() > 0 {
		t.Error("a redirect was followed")
	}
}

// A hanging and a refusing manager do not block, whichever is asked first; the user is the configured one.
func TestManagersThatHang(t *testing.T) {
	good := manager(t, func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != "p" || r.URL.Path != "/pools/default/b/world" {
			w.WriteHeader(401)
			return
		}
		_, _ = w.Write([]byte(document(3)))
	})
	s := source(t, hanging(t), "127.0.0.1:1", hanging(t), good)
	for range 4 {
		if a, err := s.Ask(t.Context()); err != nil || a.Config.Rev != 3 || a.Manager != good {
			t.Fatalf("%+v %v", a, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := source(t, hanging(t)).Ask(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// The stream delivers each newer map and no older one, is restarted where it ends, is silent, or has an invalid
// document, and continues at another manager if one dies.
func TestStream(t *testing.T) {
	say := make(chan string)
	var streams atomic.Int64
	serve := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/pools/default/bs/world" {
			w.WriteHeader(404)
			return
		}
		streams.Add(1)
		for {
			select {
			case text := <-say:
				if text == "end" {
					return
				}
				_, _ = w.Write([]byte(text + "\n\n\n\n"))
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
	first := httptest.NewServer(http.HandlerFunc(serve))
	defer first.Close()
	s := New(Options{Managers: []string{first.Listener.Addr().String(), manager(t, serve)}, Bucket: "world", Pinned: true,
		Silence: 200 * time.Millisecond, Timeout: patience})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	push := func(text string) {
		t.Helper()
		select {
		case say <- text:
		case <-time.After(patience):
			t.Fatal("no stream is open")
		}
	}
	// Repeated until it is received: an abandoned stream may receive it, too.
	shown := func(rev int) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; {
			changed := s.Changed()
			if a, ok := s.Newest(); ok && a.Config.Rev >= int64(rev) {
				if a.Config.Rev > int64(rev) {
					t.Fatalf("revision %d, want %d", a.Config.Rev, rev)
				}
				return
			}
			select {
			case say <- document(rev):
			case <-changed:
			case <-time.After(time.Until(deadline)):
				t.Fatalf("revision %d does not come", rev)
			}
		}
	}
	shown(5)
	push(document(4)) // an older map
	push("")
	shown(6)
	push("end")
	shown(7)
	push("no map")
	shown(8)
	before := streams.Load()
	for deadline := time.Now().Add(patience); streams.Load() == before; time.Sleep(time.Millisecond) { // it is silent
		if time.Now().After(deadline) {
			t.Fatal("a silent stream is never restarted")
		}
	}
	first.CloseClientConnections()
	_ = first.Listener.Close()
	shown(9)
}

// A changed password takes effect with the next request.
func TestPasswordIsReadPerRequest(t *testing.T) {
	var now atomic.Value
	now.Store("old")
	at := manager(t, func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != now.Load() {
			w.WriteHeader(401)
			return
		}
		_, _ = w.Write([]byte(document(1)))
	})
	mine := "old"
	s := New(Options{Managers: []string{at}, Bucket: "world", User: "u",
		Password: func() (string, error) { return mine, nil }, Timeout: patience})
	if _, err := s.Ask(t.Context()); err != nil {
		t.Fatal(err)
	}
	now.Store("new")
	if _, err := s.Ask(t.Context()); !errors.Is(err, kvclient.ErrAuth) {
		t.Fatal(err)
	}
	mine = "new"
	s.opt.Pinned = true // the managers in the map do not exist here
	if _, err := s.Ask(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.opt.Password = func() (string, error) { return "", errors.New("no file") }
	if _, err := s.Ask(t.Context()); !errors.Is(err, kvclient.ErrAuth) {
		t.Fatal(err)
	}
}

// A caller that wants the current map does not wait long for a hanging manager if a map is known. If a single manager
// is asked, another bucket with the name is accepted although its revisions start again.
func TestCurrent(t *testing.T) {
	var say atomic.Value
	say.Store(document(9))
	hang := make(chan struct{})
	var asked atomic.Int64
	at := manager(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		text := say.Load().(string)
		if text == "" {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return
		}
		_, _ = w.Write([]byte(text))
	})
	defer close(hang)
	s := source(t, at)
	current := func(rev int64, uuid string) {
		t.Helper()
		a, err := s.Current(t.Context())
		if err != nil || a.Config.Rev != rev || a.Config.UUID != uuid {
			t.Fatalf("%+v %v, want revision %d of %s", a.Config, err, rev, uuid)
		}
	}
	current(9, "0a1b")
	say.Store("")
	current(9, "0a1b") // it hangs
	say.Store(strings.ReplaceAll(document(2), "0a1b", "2c3d"))
	current(2, "2c3d")
	if a, _ := s.Newest(); a.Config.UUID != "2c3d" {
		t.Fatalf("kept is %+v", a.Config)
	}
	s.streams(2)
	s.streams(-1) // one is left
	say.Store("")
	before := asked.Load()
	if current(2, "2c3d"); asked.Load() != before {
		t.Error("a manager is asked beside the stream")
	}
}
