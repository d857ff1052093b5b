package tlsconf

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// node issues a certificate and returns the source of a process that was started with it, whose clock is at.
func node(t *testing.T, ca *CA, role Role, id string) (s *Source, files Files, at *time.Time, log *bytes.Buffer) {
	t.Helper()
	files, err := ca.Issue(t.TempDir(), "x", Request{Peer: Peer{role, id}, Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	log = &bytes.Buffer{}
	if s, err = OpenNode(files, role, id, hclog.New(&hclog.LoggerOptions{Output: log})); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.now = func() time.Time { return now }
	return s, files, &now, log
}

// serial identifies a certificate.
func serial(m *material) string { return m.cert.Leaf.SerialNumber.Text(16) }

// TestReloadChecksFilesAsAtStart checks that new files with which a process would not start leave the
// old ones in force, at a signal and when they are found; valid ones are put in force.
func TestReloadChecksFilesAsAtStart(t *testing.T) {
	ca, _ := authority(t)
	otherCA, _ := authority(t)
	issue := func(ca *CA, p Peer) Files {
		files, err := ca.Issue(t.TempDir(), "y", Request{Peer: p, Hosts: []string{"127.0.0.1"}})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	good, foreign := issue(ca, Peer{Manager, "m1"}), issue(otherCA, Peer{Manager, "m1"})
	half, added := filepath.Join(t.TempDir(), CAFile), read(t, foreign.CA) // a second CA that is half written
	write(t, half, slices.Concat(read(t, good.CA), added[:len(added)/2]))
	for _, tc := range []struct {
		name  string
		files Files // "": unchanged
		back  time.Duration
		want  string // "": put in force
	}{
		{name: "its own", files: good},
		{name: "of any id", files: issue(ca, Peer{Manager, AnyID})},
		{name: "of another role", files: issue(ca, Peer{Indexer, "m1"}), want: "tidemark://indexer/m1"},
		{name: "of another id", files: issue(ca, Peer{Manager, "m2"}), want: "tidemark://manager/m2"},
		{name: "of another CA", files: Files{Cert: foreign.Cert, Key: foreign.Key}, want: "unknown authority"},
		{name: "its CA is not trusted any more", files: Files{CA: foreign.CA}, want: "unknown authority"},
		{name: "with half of another CA", files: Files{CA: half, Cert: good.Cert, Key: good.Key}, want: "cut or damaged"},
		{name: "not valid yet", files: good, back: time.Hour, want: "not yet valid"},
		{name: "of no role that listens", files: issue(ca, Peer{User, "m1"}), want: "tidemark://user/m1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, files, now, log := node(t, ca, Manager, "m1")
			was := serial(s.fresh())
			put := func(to, from string) {
				if from != "" {
					write(t, to, read(t, from))
				}
			}
			put(files.CA, tc.files.CA)
			put(files.Cert, tc.files.Cert)
			put(files.Key, tc.files.Key)
			*now = now.Add(2*checkInterval - tc.back)
			byItself := serial(s.fresh())
			err := s.Reload()
			if tc.want == "" {
				if want := serial(s.current.Load()); err != nil || byItself == was || byItself != want {
					t.Errorf("the files were not loaded automatically: %v\n%s", err, log)
				}
				return
			}
			if byItself != was || serial(s.current.Load()) != was || !errors.Is(err, ErrFiles) ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("the files were loaded, or not refused with %q: %v", tc.want, err)
			}
			if n := strings.Count(log.String(), "stay in force"); n != 2 { // once when found, once at the signal
				t.Errorf("%d lines in the log:\n%s", n, log)
			}
			put(files.CA, good.CA)
			put(files.Cert, good.Cert)
			put(files.Key, good.Key)
			*now = now.Add(2*checkInterval + tc.back)
			if got := serial(s.fresh()); got == was {
				t.Errorf("valid files were not loaded afterwards:\n%s", log)
			}
		})
	}
}

// TestRejectedFilesAreRetried checks that rejected files are read again although they have not changed: a certificate
// becomes valid, a file becomes readable. The refusal is logged once a day.
func TestRejectedFilesAreRetried(t *testing.T) {
	ca, _ := authority(t)
	s, files, now, log := node(t, ca, Indexer, "i1")
	was := serial(s.fresh())
	if _, err := ca.Issue(filepath.Dir(files.Cert), "x", Request{Peer: Peer{Indexer, "i1"}, Replace: true}); err != nil {
		t.Fatal(err)
	}
	start := *now
	*now = start.Add(-25 * time.Hour)
	for until := start.Add(-time.Hour); now.Before(until); *now = now.Add(20 * time.Minute) {
		if serial(s.fresh()) != was {
			t.Fatal("a certificate that is not valid yet was loaded")
		}
	}
	if n := strings.Count(log.String(), "stay in force"); n != 1 {
		t.Errorf("the refusal of the files is logged %d times in a day:\n%s", n, log)
	}
	*now = start.Add(recheckInterval)
	if serial(s.fresh()) == was {
		t.Errorf("the certificate was not loaded when it became valid:\n%s", log)
	}
}

// TestValidFilesEndRejection checks that rejected files that come back, after valid ones were put in force at a signal,
// are checked and rejected anew.
func TestValidFilesEndRejection(t *testing.T) {
	ca, dir := authority(t)
	s, files, now, log := node(t, ca, Indexer, "i1")
	s.fresh()
	good, bad := read(t, files.Cert), filepath.Join(dir, "bad")
	write(t, files.Cert, []byte("none"))
	for n := 1; n <= 2; n++ {
		*now = now.Add(2 * checkInterval)
		s.fresh()
		if logged := strings.Count(log.String(), "stay in force"); logged != n {
			t.Errorf("refused files are logged %d times, want %d:\n%s", logged, n, log)
		}
		if err := os.Rename(files.Cert, bad); err != nil {
			t.Fatal(err)
		}
		write(t, files.Cert, good)
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(bad, files.Cert); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificateEndsWithFirstUse checks a certificate that is accepted as a server's and as a client's by CAs
// that end at different times. It ends at the earlier time.
func TestCertificateEndsWithFirstUse(t *testing.T) {
	const day = 24 * time.Hour
	for _, tc := range []struct{ leaf, server, client int }{{9, 5, 7}, {9, 7, 5}, {5, 7, 9}} {
		dir := t.TempDir()
		ca, err := CreateCA(dir, "test", 30*day)
		if err != nil {
			t.Fatal(err)
		}
		files, err := ca.Issue(t.TempDir(), "x", Request{Peer: Peer{Indexer, "i1"}, Validity: time.Duration(tc.leaf) * day})
		if err != nil {
			t.Fatal(err)
		}
		var both []byte
		now := time.Now()
		for usage, days := range map[x509.ExtKeyUsage]int{x509.ExtKeyUsageServerAuth: tc.server,
			x509.ExtKeyUsageClientAuth: tc.client} {
			one := *ca.cert
			one.ExtKeyUsage, one.NotAfter = []x509.ExtKeyUsage{usage}, now.Add(time.Duration(days)*day)
			der, err := x509.CreateCertificate(rand.Reader, &one, &one, ca.key.Public(), ca.key)
			if err != nil {
				t.Fatal(err)
			}
			both = append(both, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		}
		files.CA = filepath.Join(dir, "both.pem")
		write(t, files.CA, both)
		s, err := OpenNode(files, Indexer, "i1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if end, _ := s.Ends(); end.Sub(now).Round(day) != 5*day {
			t.Errorf("%+v days: it ends in %s", tc, end.Sub(now))
		}
	}
}

// TestCARotationOfRunningNodes checks that, during the steps of docs/security.md, the nodes accept each other at any
// time.
func TestCARotationOfRunningNodes(t *testing.T) {
	before, oldDir := authority(t)
	after, newDir := authority(t)
	one, oneFiles, _, _ := node(t, before, Manager, "m1")
	two, twoFiles, _, _ := node(t, before, Manager, "m2")
	eager(one)
	eager(two)
	addr := echo(t, one.Server(Raft, Manager))
	say := func(when string) {
		t.Helper()
		if err := ask(addr, two.Client(Raft, Manager)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	renew := func(files Files, id string) {
		t.Helper()
		if _, err := after.Issue(filepath.Dir(files.Cert), "x", Request{Peer: Peer{Manager, id}, Replace: true,
			Hosts: []string{"127.0.0.1"}}); err != nil {
			t.Fatal(err)
		}
	}
	oldCA, newCA := read(t, filepath.Join(oldDir, CAFile)), read(t, filepath.Join(newDir, CAFile))
	both := slices.Concat(oldCA, newCA)
	was := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{one.current.Load().cert.Leaf}}
	say("at first")
	write(t, oneFiles.CA, both)
	say("one trusts both CAs")
	write(t, twoFiles.CA, both)
	say("both do")
	renew(oneFiles, "m1")
	say("the server's certificate is new")
	renew(twoFiles, "m2")
	say("the client's, too")
	write(t, oneFiles.CA, newCA)
	say("the server trusts the new CA alone")
	write(t, twoFiles.CA, newCA)
	say("both do")
	for who, s := range map[string]*Source{"m1": one, "m2": two} {
		if err := s.current.Load().cert.Leaf.CheckSignatureFrom(after.cert); err != nil {
			t.Errorf("%s presents no certificate of the new CA: %v", who, err)
		}
		if s.Recheck(was) == nil {
			t.Errorf("%s still trusts the old CA", who)
		}
	}
}

// TestExpiryIsLogged checks that a running process logs once a day, in the last two weeks, that its certificate
// expires, and once more when it has expired; a new certificate stops that. The end is that of the chain.
func TestExpiryIsLogged(t *testing.T) {
	ca, err := CreateCA(t.TempDir(), "test", 100*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s, files, now, log := node(t, ca, KV, "kv1")
	end, ok := s.Ends()
	if !ok || !end.Equal(ca.cert.NotAfter) {
		t.Fatalf("it ends at %s, %v; its CA at %s", end, ok, ca.cert.NotAfter)
	}
	pass := func(to time.Time, soon, ended int) {
		t.Helper()
		log.Reset()
		for ; now.Before(to); *now = now.Add(20 * time.Minute) {
			s.fresh()
		}
		if a, b := strings.Count(log.String(), "expires soon"), strings.Count(log.String(), "has expired"); a != soon ||
			b != ended {
			t.Errorf("until %s: %d messages that it expires soon, %d that it has expired, want %d and "+
				"%d\n%s", to, a, b, soon, ended, log)
		}
	}
	pass(end.Add(-warnBeforeEnd-time.Hour), 0, 0)
	pass(end.Add(-time.Hour), 14, 0)
	pass(end.Add(23*time.Hour), 0, 1)
	pass(end.Add(47*time.Hour), 0, 1)
	later, err := CreateCA(t.TempDir(), "later", 300*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if files, err = later.Issue(filepath.Dir(files.Cert), "x", Request{Peer: Peer{KV, "kv1"}, Replace: true}); err != nil {
		t.Fatal(err)
	}
	write(t, files.CA, pemOf(t, later))
	pass(now.Add(100*24*time.Hour), 0, 0)
	if new, _ := s.Ends(); !new.Equal(later.cert.NotAfter) {
		t.Errorf("the new certificate ends at %s", new)
	}
	if _, ok := (*Source)(nil).Ends(); ok {
		t.Error("a source without TLS has an end")
	}
}

func pemOf(t *testing.T, ca *CA) []byte {
	t.Helper()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}
