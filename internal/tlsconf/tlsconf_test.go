package tlsconf

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// authority creates a CA in a folder of its own.
func authority(t *testing.T) (*CA, string) {
	t.Helper()
	dir := t.TempDir()
	ca, err := CreateCA(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca, dir
}

// open issues a certificate and opens a source with it, whose clock advances by one check interval at each reading.
func open(t *testing.T, ca *CA, req Request) (*Source, Files) {
	t.Helper()
	if req.Hosts == nil {
		req.Hosts = []string{"127.0.0.1"}
	}
	files, err := ca.Issue(t.TempDir(), "x", req)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return eager(s), files
}

// eager makes a source check its files before every handshake.
func eager(s *Source) *Source {
	start, looks := time.Now(), 0
	s.now = func() time.Time { looks++; return start.Add(time.Duration(looks) * checkInterval) }
	return s
}

// echo serves one byte at a time and reports each handshake's error.
func echo(t *testing.T, conf *tls.Config) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			conn := raw
			if conf != nil {
				conn = tls.Server(raw, conf)
			}
			_ = conn.SetDeadline(time.Now().Add(handshakeLimit))
			var b [1]byte
			if _, err := io.ReadFull(conn, b[:]); err == nil {
				_, _ = conn.Write(b[:])
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// ask sends a byte and waits for it to come back.
func ask(addr string, conf *tls.Config) error {
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	conn := raw
	if conf != nil {
		if conf = conf.Clone(); !conf.InsecureSkipVerify {
			conf.ServerName = "127.0.0.1"
		}
		conn = tls.Client(raw, conf)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(handshakeLimit)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// TestHandshakes checks all combinations of clients and servers.
func TestHandshakes(t *testing.T) {
	ours, _ := authority(t)
	theirs, _ := authority(t)
	as := func(ca *CA, role Role) *Source {
		s, _ := open(t, ca, Request{Peer: Peer{role, "x"}})
		return s
	}
	old, _ := open(t, ours, Request{Peer: Peer{Manager, "x"}, Validity: 2 * time.Second}) // read while valid
	late := func() time.Time { return time.Now().Add(time.Minute) }
	manager, indexer, projector, foreign := as(ours, Manager), as(ours, Indexer), as(ours, Projector), as(theirs, Manager)
	anonymous := &Source{files: manager.files, log: hclog.NewNullLogger(), now: time.Now}
	anonymous.current.Store(&material{roots: manager.current.Load().roots})
	anonymous.files.Cert, anonymous.files.Key = "", ""
	anonymous.looked = time.Now().Add(time.Hour)
	raft := manager.Server(Raft, Manager)
	expired := old.Server(Raft, Manager)
	toManager := func(s *Source) *tls.Config { return s.Client(Raft, Manager) }
	tooOld := raft.Clone()
	tooOld.MaxVersion = tls.VersionTLS12
	for _, tc := range []struct {
		name           string
		server, client *tls.Config
		at             func() time.Time // of the client
		want           string           // "" for success
	}{
		{name: "manager to manager", server: raft, client: toManager(manager)},
		{name: "an indexer may not", server: raft, client: toManager(indexer), want: "tls:"},
		{name: "a projector may not", server: raft, client: toManager(projector), want: "tls:"},
		{name: "a manager of a foreign CA", server: raft, client: toManager(foreign), want: "certificate"},
		{name: "to a server of a foreign CA", server: foreign.Server(Raft, Manager), client: toManager(manager),
			want: "unknown authority"},
		{name: "without a certificate", server: raft, client: anonymous.Client(Raft, Manager), want: "certificate required"},
		{name: "to an indexer instead of a manager", server: indexer.Server(Raft, Manager), client: toManager(manager),
			want: "another role"},
		{name: "plain to TLS", server: raft, want: "EOF"},
		{name: "TLS to plain", client: toManager(manager), want: "tls: first record does not look like a TLS handshake"},
		{name: "another protocol", server: raft, client: manager.Client(HTTP, Manager), want: "no application protocol"},
		{name: "a user's client to REST", server: manager.Server(HTTP), client: anonymous.UserClient()},
		{name: "a user's client that shows a certificate", server: manager.Server(HTTP), client: as(ours, User).UserClient()},
		{name: "REST and a certificate of a foreign CA", server: manager.Server(HTTP), client: func() *tls.Config {
			c := foreign.UserClient()
			c.RootCAs = manager.current.Load().roots
			return c
		}(), want: "certificate"},
		{name: "a data port takes projectors", server: indexer.Server(GRPC, Projector),
			client: projector.Client(GRPC, Indexer)},
		{name: "and no managers", server: indexer.Server(GRPC, Projector), client: manager.Client(GRPC, Indexer),
			want: "tls:"},
		{name: "TLS 1.2", server: tooOld,
			client: func() *tls.Config { c := toManager(manager); c.MaxVersion = tls.VersionTLS12; return c }()},
		{name: "TLS 1.1", server: raft, client: func() *tls.Config {
			c := toManager(manager)
			c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
			return c
		}(), want: "protocol version"},
		{name: "a server whose certificate has expired", server: expired, client: toManager(manager), at: late,
			want: "expired"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.at != nil {
				manager.now = tc.at
				defer eager(manager)
			}
			err := ask(echo(t, tc.server), tc.client)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) &&
				!errors.Is(err, io.EOF) && !isReset(err)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// isReset reports whether the connection was reset: a server that has refused may close before its alert is read.
func isReset(err error) bool {
	return strings.Contains(err.Error(), "connection reset") || strings.Contains(err.Error(), "broken pipe")
}

// TestUnlistedHostIsRejected checks that a user's client requires the dialled name or address in the certificate.
func TestUnlistedHostIsRejected(t *testing.T) {
	ca, dir := authority(t)
	s, _ := open(t, ca, Request{Peer: Peer{Manager, "m1"}, Hosts: []string{"m1.example.org"}})
	user, err := Open(Files{CA: filepath.Join(dir, CAFile)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second,
		ErrorLog: hclog.NewNullLogger().StandardLogger(nil)}
	go func() { _ = srv.Serve(s.Listen(l, HTTP)) }()
	t.Cleanup(func() { _ = srv.Close() })
	get := func(conf *tls.Config) error {
		tr := &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: tr}).Get("https://" + l.Addr().String())
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	if err := get(user.UserClient()); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("the address is not in the certificate: %v", err)
	}
	named := user.UserClient()
	named.ServerName = "m1.example.org"
	if err := get(named); err != nil {
		t.Error(err)
	}
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), "HTTPS") {
		t.Errorf("plain HTTP to the TLS port: %s %s", resp.Status, b)
	}
}

// TestRotation checks the replacement of a CA: first every node trusts both, then certificates are replaced, then the
// old CA is removed.
func TestRotation(t *testing.T) {
	before, oldDir := authority(t)
	after, newDir := authority(t)
	var log bytes.Buffer
	server, files := open(t, before, Request{Peer: Peer{Manager, "m1"}})
	server.log = hclog.New(&hclog.LoggerOptions{Output: &log})
	client, clientFiles := open(t, before, Request{Peer: Peer{Manager, "m2"}})
	addr := echo(t, server.Server(Raft, Manager))
	conf := client.Client(Raft, Manager)
	say := func(when string, ok bool) {
		t.Helper()
		if err := ask(addr, conf); (err == nil) != ok {
			t.Errorf("%s: %v", when, err)
		}
	}
	oldCA, newCA := read(t, filepath.Join(oldDir, CAFile)), read(t, filepath.Join(newDir, CAFile))
	say("at first", true)

	write(t, files.CA, append(oldCA, newCA...))
	write(t, clientFiles.CA, append(oldCA, newCA...))
	say("both trust both", true)
	if _, err := after.Issue(filepath.Dir(clientFiles.Cert), "x",
		Request{Peer: Peer{Manager, "m2"}, Replace: true}); err != nil {
		t.Fatal(err)
	}
	say("the client's certificate is of the new CA", true)
	write(t, files.CA, newCA)
	say("the server trusts the new CA only", true)
	write(t, clientFiles.CA, newCA)
	say("the server still shows the old CA's certificate", false)
	if _, err := after.Issue(filepath.Dir(files.Cert), "x", Request{Peer: Peer{Manager, "m1"},
		Replace: true}); err != nil {
		t.Fatal(err)
	}
	say("all is new", true)

	good := read(t, files.Cert)
	for name, damage := range map[string][]byte{"no PEM": []byte("x"), "empty": {},
		"of another key": read(t, clientFiles.Cert)} {
		log.Reset()
		write(t, files.Cert, damage)
		say(name, true)
		say(name+", again", true)
		if err := server.Reload(); !errors.Is(err, ErrFiles) {
			t.Errorf("%s: reload says %v", name, err)
		}
		if n := strings.Count(log.String(), "stay in force"); n != 2 { // once when found, once at the signal
			t.Errorf("%s: %d lines in the log\n%s", name, n, &log)
		}
	}
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	say("the key is gone", true)
	write(t, files.Cert, good)
	if err := server.Reload(); err == nil || strings.Contains(log.String(), "PRIVATE") {
		t.Errorf("reload without a key: %v\n%s", err, &log)
	}
}

// TestRecheck checks that a presented certificate is valid until it ends, or its CA is no longer trusted.
func TestRecheck(t *testing.T) {
	before, oldDir := authority(t)
	_, newDir := authority(t)
	server, files := open(t, before, Request{Peer: Peer{Indexer, "i1"}})
	user, _ := open(t, before, Request{Peer: Peer{User, "ann"}})
	leaf := user.current.Load().cert.Leaf
	shown := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	for when, state := range map[string]*tls.ConnectionState{"at first": shown, "none was shown": {}} {
		if err := server.Recheck(state); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	if err := (*Source)(nil).Recheck(shown); err != nil {
		t.Errorf("without TLS: %v", err)
	}
	now := server.now
	server.now = func() time.Time { return leaf.NotAfter.Add(time.Second) }
	if err := server.Recheck(shown); err == nil {
		t.Error("an expired certificate is valid")
	}
	server.now = now
	write(t, files.CA, append(read(t, filepath.Join(oldDir, CAFile)), read(t, filepath.Join(newDir, CAFile))...))
	if err := server.Recheck(shown); err != nil {
		t.Errorf("both CAs are trusted: %v", err)
	}
	write(t, files.CA, read(t, filepath.Join(newDir, CAFile)))
	if err := server.Recheck(shown); err == nil {
		t.Error("a certificate of a CA that is no longer trusted is valid")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b[:len(b):len(b)]
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNodeCertificateIsRequired checks that a process starts only with a certificate of its own role and id.
func TestNodeCertificateIsRequired(t *testing.T) {
	ca, _ := authority(t)
	_, files := open(t, ca, Request{Peer: Peer{Indexer, "i1"}})
	_, any := open(t, ca, Request{Peer: Peer{Indexer, AnyID}})
	other, _ := authority(t)
	_, foreign := open(t, other, Request{Peer: Peer{Indexer, "i1"}})
	for _, tc := range []struct {
		name  string
		files Files
		id    string
		want  string
	}{
		{"its own", files, "i1", ""},
		{"of another id", files, "i2", "tidemark://indexer/i1"},
		{"of any id", any, "i2", ""},
		{"of a CA that is not trusted", Files{CA: foreign.CA, Cert: files.Cert, Key: files.Key}, "i1", "unknown authority"},
		{"no certificate", Files{CA: files.CA}, "i1", "--tls-cert"},
		{"no key", Files{CA: files.CA, Cert: files.Cert}, "i1", "together"},
		{"no CA", Files{Cert: files.Cert, Key: files.Key}, "i1", "--tls-ca"},
		{"a file that is not there", Files{CA: files.CA + "x", Cert: files.Cert, Key: files.Key}, "i1", files.CA + "x"},
	} {
		if _, err := OpenNode(tc.files, Indexer, tc.id, nil); (err == nil) != (tc.want == "") || err != nil &&
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if _, err := OpenNode(files, Manager, "i1", nil); err == nil ||
		!strings.Contains(err.Error(), "tidemark cert node --role manager") {
		t.Errorf("of another role: %v", err)
	}
	if s, err := OpenNode(Files{}, Manager, "m1", nil); s != nil || err != nil {
		t.Errorf("no TLS: %v %v", s, err)
	}
	for _, p := range []Peer{{}, {Manager, ""}, {"boss", "x"}, {Manager, "a/b"}, {Manager, "a b"},
		{Manager, strings.Repeat("x", maxID+1)}} {
		if _, err := ca.Issue(t.TempDir(), "y", Request{Peer: p}); err == nil {
			t.Errorf("%+v got a certificate", p)
		}
	}
}

// TestCertificatesEndWithTheirCA checks that a certificate ends with its CA at the latest, and that none is issued by
// a CA that has ended.
func TestCertificatesEndWithTheirCA(t *testing.T) {
	ended, err := CreateCA(t.TempDir(), "ended", -time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ended.Issue(t.TempDir(), "i1", Request{Peer: Peer{Indexer, "i1"}}); !errors.Is(err, ErrFiles) ||
		!strings.Contains(err.Error(), "the CA expired at") {
		t.Errorf("issued by a CA that has expired: %v", err)
	}
	ca, err := CreateCA(t.TempDir(), "short", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for validity, sooner := range map[time.Duration]bool{0: true, 2 * time.Hour: true, time.Minute: false} {
		files, err := ca.Issue(t.TempDir(), "i1", Request{Peer: Peer{Indexer, "i1"}, Validity: validity})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		if got := pair.Leaf.NotAfter; got.After(ca.cert.NotAfter) || got.Equal(ca.cert.NotAfter) != sooner {
			t.Errorf("validity %s: the certificate ends at %s, its CA at %s", validity, got, ca.cert.NotAfter)
		}
	}
	if end, sooner := ca.Cap(2 * time.Hour); !sooner || !end.Equal(ca.cert.NotAfter) {
		t.Errorf("the cap is %s, %v", end, sooner)
	}
}

// TestHostsOfACertificate checks that an address is certified as one, and without a zone: its name differs from machine
// to machine.
func TestHostsOfACertificate(t *testing.T) {
	ca, _ := authority(t)
	files, err := ca.Issue(t.TempDir(), "m1", Request{Peer: Peer{Manager, "m1"},
		Hosts: []string{"m1.example.org", "10.0.0.1", "::1", "fe80::1%eth0"}})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(pair.Leaf.DNSNames, pair.Leaf.IPAddresses); got != "[m1.example.org] [10.0.0.1 ::1 fe80::1]" {
		t.Error(got)
	}
}

// TestFilesAreNotOverwritten checks that only the owner may read keys, and that files are overwritten only on request.
func TestFilesAreNotOverwritten(t *testing.T) {
	ca, dir := authority(t)
	if _, err := CreateCA(dir, "again", time.Hour); !errors.Is(err, ErrExists) {
		t.Errorf("a second CA in one folder: %v", err)
	}
	files, err := ca.Issue(dir, "m1", Request{Peer: Peer{Manager, "m1"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Issue(dir, "m1", Request{Peer: Peer{Manager, "m1"}}); !errors.Is(err, ErrExists) {
		t.Errorf("a file was overwritten: %v", err)
	}
	for _, path := range []string{files.Key, filepath.Join(dir, CAKeyFile)} {
		if s, err := os.Stat(path); err != nil || s.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", path, s, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 4 {
		t.Errorf("files are left over: %v %v", entries, err)
	}
	if _, err := LoadCA(dir); err != nil {
		t.Error(err)
	}
	write(t, filepath.Join(dir, CAKeyFile), read(t, files.Key))
	if _, err := LoadCA(dir); err == nil {
		t.Error("a CA was loaded with another one's key")
	}
}

// TestExposure checks that listening beyond loopback requires TLS or --insecure.
func TestExposure(t *testing.T) {
	var none *Source
	for addr, local := range map[string]bool{"127.0.0.1:0": true, "127.8.0.1:1": true, "[::1]:5": true,
		"localhost:1": true, "0.0.0.0:1": false,
		":1": false, "[::]:1": false, "10.0.0.1:1": false, "nowhere.invalid:1": false, "127.0.0.1": false} {
		err := none.MayListen(false, Address{"rest", addr})
		if (err == nil) != local || err != nil && (!errors.Is(err, ErrExposed) ||
			!strings.Contains(err.Error(), "--insecure") || !strings.Contains(err.Error(), "--rest")) {
			t.Errorf("%s: %v", addr, err)
		}
		if none.MayListen(true, Address{"rest", addr}) != nil || (&Source{}).MayListen(false, Address{"rest", addr}) != nil {
			t.Errorf("%s: refused although --insecure permits it", addr)
		}
	}
}
