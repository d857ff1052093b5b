// Package tlsconf provides TLS for all ports of a process: its certificate and key, the trusted CAs, and the roles
// required of the other side's certificate (docs/security.md).
//
// It guarantees that TLS is 1.2 or newer; that a certificate is accepted only if one of the CAs signed it, it is
// valid now, and its role (a URI tidemark://role/id among its alternative names) is one that the port is for; that
// changed files are reloaded, all three or none, at a signal and before a handshake; and that new files that cannot
// be used, or with which a node would not start, have no effect but a log message. It never inspects the traffic.
//
// A nil *Source stands for a process without TLS: every method then returns the plain variant, so that callers need
// no second path.
package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/trust"
)

// Limits.
const (
	// MaxAge is how long a connection may live: within it, a certificate holder has to present it again.
	MaxAge = time.Hour
	// RenewAfter is when a connection is closed in an orderly way; the rest of MaxAge is for requests in progress.
	RenewAfter = 45 * time.Minute

	checkInterval   = time.Second // between two checks of the files
	recheckInterval = time.Minute // between two attempts to read rejected files: one may have become valid, or readable
	logInterval     = 24 * time.Hour
	warnBeforeEnd   = 14 * 24 * time.Hour
	maxFile         = 1 << 20 // bytes of one file
	handshakeLimit  = 5 * time.Second
)

// Protocols of a port, for Server.
const (
	HTTP      = "http/1.1"
	GRPC      = "h2"
	Raft      = "tidemark-raft"
	Memcached = "memcached"
)

// ErrFiles is wrapped when the files cannot be used.
var ErrFiles = errors.New("TLS files")

// Files names PEM files: the trusted CAs, one or more (they overlap during a rotation), the own certificate with its
// intermediates, and its key.
type Files struct {
	CA, Cert, Key string
}

// Empty reports whether no TLS is configured.
func (f Files) Empty() bool { return f == Files{} }

// Source holds the contents of the files when they were last valid.
type Source struct {
	files   Files
	own     *Peer // of a node: the identity that its certificate must have
	log     hclog.Logger
	now     func() time.Time
	current atomic.Pointer[material]

	mu      sync.Mutex // held while checking the files
	looked  time.Time
	refused refusal
	warned  time.Time // when the end of the own certificate was last logged
}

// refusal describes files that could not be used.
type refusal struct {
	stamps stamps
	tried  time.Time
	logged time.Time // the last log message
}

// material is one generation of the files. It is immutable.
type material struct {
	cert   *tls.Certificate
	ends   time.Time // until when others accept it
	roots  *x509.CertPool
	stamps stamps
}

// stamps identify the state of the files.
type stamps [3]struct {
	size int64
	at   time.Time
}

// Open reads the files; if none is given it returns nil: no TLS. A client without a certificate gives only the CA.
func Open(files Files, log hclog.Logger) (*Source, error) { return newSource(files, nil, log) }

// OpenNode is Open for a process that listens: it needs a certificate for its role and id, signed by one of the CAs.
func OpenNode(files Files, role Role, id string, log hclog.Logger) (*Source, error) {
	if files.CA != "" && files.Cert == "" && files.Key == "" {
		return nil, fmt.Errorf("%w: --tls-cert and --tls-key are needed with --tls-ca", ErrFiles)
	}
	return newSource(files, &Peer{role, id}, log)
}

func newSource(files Files, own *Peer, log hclog.Logger) (*Source, error) {
	if files.Empty() {
		return nil, nil //nolint:nilnil // nil is the source of a process without TLS
	}
	if files.CA == "" || (files.Cert == "") != (files.Key == "") {
		return nil, fmt.Errorf("%w: --tls-ca is needed, and --tls-cert and --tls-key together (a node needs all three)",
			ErrFiles)
	}
	if log == nil {
		log = hclog.NewNullLogger()
	}
	s := &Source{files: files, own: own, log: log, now: time.Now}
	m, err := s.read()
	if err != nil {
		return nil, err
	}
	s.take(m)
	return s, nil
}

// take puts valid files in force, which ends a refusal. The caller holds s.mu, unless s is new.
func (s *Source) take(m *material) {
	s.refused = refusal{}
	s.current.Store(m)
	if m.cert == nil {
		return
	}
	s.log.Info("TLS certificate in use", "file", s.files.Cert, "serial", m.cert.Leaf.SerialNumber.Text(16), "valid_until",
		m.ends.UTC().Format(time.RFC3339))
	s.warned = time.Time{}
	s.warn(s.now())
}

// warn logs that the own certificate ends soon: once a day, and again when it has ended. The caller holds s.mu.
func (s *Source) warn(now time.Time) {
	m := s.current.Load()
	left := m.ends.Sub(now)
	ended := left <= 0 && s.warned.Before(m.ends)
	if m.cert == nil || left >= warnBeforeEnd || !ended && !due(s.warned, now, logInterval) {
		return
	}
	if s.warned = now; left <= 0 {
		s.log.Error("the TLS certificate has expired and is rejected by others: replace the file; it is loaded without a "+
			"restart",
			"file", s.files.Cert, "ended_at", m.ends.UTC().Format(time.RFC3339))
		return
	}
	s.log.Warn("the TLS certificate expires soon: replace the file; it is loaded without a restart", "file",
		s.files.Cert, "left", left.Round(time.Minute))
}

// Ends returns until when others accept the own certificate; false without one.
func (s *Source) Ends() (time.Time, bool) {
	if s == nil {
		return time.Time{}, false
	}
	m := s.current.Load()
	return m.ends, m.cert != nil
}

// look returns the stamps of the files.
func (s *Source) look() (st stamps) {
	for i, path := range [...]string{s.files.CA, s.files.Cert, s.files.Key} {
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil {
			st[i].size, st[i].at = info.Size(), info.ModTime()
		}
	}
	return st
}

// read reads the files. The stamps may be older than the contents, never newer.
func (s *Source) read() (*material, error) {
	m := &material{stamps: s.look()}
	ca, err := readFile(s.files.CA)
	if err != nil {
		return nil, err
	}
	if m.roots, err = trust.Pool(ca); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFiles, s.files.CA, err)
	}
	if s.files.Cert == "" {
		return m, nil
	}
	cert, err := readFile(s.files.Cert)
	if err != nil {
		return nil, err
	}
	key, err := readFile(s.files.Key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key) // its errors do not contain the contents
	if err != nil {
		return nil, fmt.Errorf("%w: %s with %s: %w", ErrFiles, s.files.Cert, s.files.Key, err)
	}
	now := s.now()
	if now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("%w: %s ended at %s", ErrFiles, s.files.Cert, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if m.cert, m.ends = &pair, pair.Leaf.NotAfter; s.own != nil {
		if m.ends, err = s.fits(m, now); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrFiles, s.files.Cert, err)
		}
	}
	return m, nil
}

// fits returns until when other nodes accept a certificate as this process's, both as a server's and as a client's,
// by the CAs of the same generation; the error is why they would not.
func (s *Source) fits(m *material, now time.Time) (ends time.Time, err error) {
	p, err := PeerOf(m.cert.Leaf)
	if err == nil && !p.Is(s.own.Role, s.own.ID) {
		err = fmt.Errorf("the certificate is for %s, this process is %s", p, s.own)
	}
	if err != nil {
		return ends, fmt.Errorf("%w; make one with: tidemark cert node --role %s --id %s", err, s.own.Role, s.own.ID)
	}
	chain := make([]*x509.Certificate, len(m.cert.Certificate))
	for i, der := range m.cert.Certificate {
		if chain[i], err = x509.ParseCertificate(der); err != nil {
			return ends, err
		}
	}
	ends = m.cert.Leaf.NotAfter
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		found, err := verified(chain, m, now, usage)
		if err != nil {
			return ends, fmt.Errorf("with the CAs of %s other nodes would reject it: %w", s.files.CA, err)
		}
		if way := lasts(found); way.Before(ends) {
			ends = way
		}
	}
	return ends, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	if info.Size() > maxFile || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s: want a regular file of at most %d bytes", ErrFiles, path, maxFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	return b, nil
}

// Reload reads the files again, at a signal. After an error everything stays as it was.
func (s *Source) Reload() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.read()
	if err != nil {
		s.refuse(err)
		return err
	}
	s.take(m)
	return nil
}

func (s *Source) refuse(err error) {
	s.log.Error("the new TLS files cannot be used; the old ones stay in force", "error", err)
}

// fresh returns the newest material: before a handshake the files are checked, at most once a second.
func (s *Source) fresh() *material {
	if s.mu.TryLock() { // if another goroutine is checking, the present material is used
		defer s.mu.Unlock()
		if now := s.now(); due(s.looked, now, checkInterval) {
			s.looked = now
			s.lookAgain(now)
			s.warn(now)
		}
	}
	return s.current.Load()
}

// lookAgain reloads files that have changed, or that may have become valid. The caller holds s.mu.
func (s *Source) lookAgain(now time.Time) {
	st, known := s.look(), s.refused
	if st == s.current.Load().stamps || st == known.stamps && !due(known.tried, now, recheckInterval) {
		return
	}
	m, err := s.read()
	if err == nil {
		s.take(m)
		return
	}
	s.refused.stamps, s.refused.tried = st, now
	if st != known.stamps || due(known.logged, now, logInterval) {
		s.refused.logged = now
		s.refuse(err)
	}
}

// due reports whether an action is due again; a clock that was set back does not delay it.
func due(last, now time.Time, every time.Duration) bool {
	return now.Before(last) || now.Sub(last) >= every
}

// Has returns what is wrong with the own certificate unless it is of one of the roles; nil without TLS.
func (s *Source) Has(roles ...Role) error {
	if s == nil {
		return nil
	}
	var own []*x509.Certificate
	if cert := s.current.Load().cert; cert != nil {
		own = append(own, cert.Leaf)
	}
	return allow(own, roles)
}

// Scheme returns "https", or "http" without TLS.
func (s *Source) Scheme() string {
	if s == nil {
		return "http"
	}
	return "https"
}

// BaseURL returns the base URL for host:port; it returns a base URL unchanged.
func (s *Source) BaseURL(addr string) string { return BaseURL(s.Scheme(), addr) }

// BaseURL returns the base URL for host:port; it returns a base URL unchanged. The zone of an IPv6 address,
// [fe80::1%eth0], is escaped as URLs require, [fe80::1%25eth0].
func BaseURL(scheme, addr string) string {
	addr = strings.TrimRight(strings.TrimSpace(addr), "/")
	if !strings.Contains(addr, "://") {
		addr = scheme + "://" + addr
	}
	before, zone, zoned := strings.Cut(addr, "%")
	if open := strings.LastIndexByte(before, '['); zoned && open >= 0 && !strings.Contains(before[open:], "]") &&
		!strings.HasPrefix(zone, "25") {
		return before + "%25" + zone
	}
	return addr
}

// Server returns the configuration of a port; nil without TLS. With roles, every client must present a certificate of
// one of them. Without, a client may present one, to be checked by Only and PeerOfRequest.
func (s *Source) Server(protocol string, roles ...Role) *tls.Config {
	if s == nil {
		return nil
	}
	config := func(m *material) *tls.Config {
		c := &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{protocol}, ClientCAs: m.roots,
			ClientAuth:   tls.VerifyClientCertIfGiven,
			Certificates: []tls.Certificate{*m.cert}, SessionTicketsDisabled: true, // each connection must authenticate
		}
		if len(roles) > 0 {
			c.ClientAuth = tls.RequireAndVerifyClientCert
			c.VerifyConnection = func(state tls.ConnectionState) error { return allow(state.PeerCertificates, roles) }
		}
		return c
	}
	base := config(s.current.Load())
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return config(s.fresh()), nil }
	return base
}

// Listen adds TLS to a listener; without TLS it returns l.
func (s *Source) Listen(l net.Listener, protocol string, roles ...Role) net.Listener {
	if s == nil {
		return l
	}
	return tls.NewListener(l, s.Server(protocol, roles...))
}

// Client returns the configuration for calls to components of the given roles; nil without TLS. The other side is
// identified by its role, not by its address: addresses change, and every node of a role is trusted alike.
func (s *Source) Client(protocol string, roles ...Role) *tls.Config {
	if s == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{protocol}, GetClientCertificate: s.present,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it, with the CAs of now and not of the start
		VerifyConnection: func(state tls.ConnectionState) error {
			if err := verify(state.PeerCertificates, s.fresh(), s.now(), x509.ExtKeyUsageServerAuth); err != nil {
				return err
			}
			return allow(state.PeerCertificates, roles)
		},
	}
}

// UserClient returns the configuration for a user's calls: the server is identified by its name, as usual on the web;
// nil without TLS. Its CAs are not reloaded.
func (s *Source) UserClient() *tls.Config {
	if s == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{HTTP}, RootCAs: s.current.Load().roots,
		GetClientCertificate: s.present}
}

// ByRole converts a user's configuration to one for calls to components of the given roles, which are identified by
// their role instead of their address. It returns nil if conf has no CAs of its own: a certificate of a public CA has
// no role.
func ByRole(conf *tls.Config, roles ...Role) *tls.Config {
	if conf == nil || conf.RootCAs == nil {
		return nil
	}
	c := conf.Clone()
	c.InsecureSkipVerify = true //nolint:gosec // VerifyConnection does it
	c.VerifyConnection = func(state tls.ConnectionState) error {
		now := time.Now
		if conf.Time != nil {
			now = conf.Time
		}
		m := &material{roots: conf.RootCAs}
		if err := verify(state.PeerCertificates, m, now(), x509.ExtKeyUsageServerAuth); err != nil {
			return err
		}
		if conf.VerifyConnection != nil {
			if err := conf.VerifyConnection(state); err != nil {
				return err
			}
		}
		return allow(state.PeerCertificates, roles)
	}
	return c
}

// present returns the own certificate, or an empty one.
func (s *Source) present(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if m := s.fresh(); m.cert != nil {
		return m.cert, nil
	}
	return &tls.Certificate{}, nil
}

// Recheck returns why the certificate that a client has presented on a connection is no longer valid: it has ended,
// or its CA is no longer trusted. nil: it is valid, or none was presented.
func (s *Source) Recheck(state *tls.ConnectionState) error {
	if s == nil || len(state.PeerCertificates) == 0 {
		return nil
	}
	return verify(state.PeerCertificates, s.fresh(), s.now(), x509.ExtKeyUsageClientAuth)
}

// verify checks the chain of a server, or of a client.
func verify(chain []*x509.Certificate, m *material, now time.Time, usage x509.ExtKeyUsage) error {
	_, err := verified(chain, m, now, usage)
	return err
}

// verified returns the chains from a leaf to a CA.
func verified(chain []*x509.Certificate, m *material, now time.Time, usage x509.ExtKeyUsage) ([][]*x509.Certificate,
	error) {
	if len(chain) == 0 {
		return nil, errors.New("the server presented no certificate")
	}
	opts := x509.VerifyOptions{Roots: m.roots, CurrentTime: now, Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	return chain[0].Verify(opts)
}

// lasts returns until when at least one of the chains is valid.
func lasts(ways [][]*x509.Certificate) (end time.Time) {
	for _, way := range ways {
		first := way[0].NotAfter
		for _, c := range way[1:] {
			if c.NotAfter.Before(first) {
				first = c.NotAfter
			}
		}
		if first.After(end) {
			end = first
		}
	}
	return end
}

// Dial returns a function that opens a TCP connection to a component of one of the roles, with TLS if it is
// configured.
func (s *Source) Dial(protocol string, roles ...Role) func(addr string, timeout time.Duration) (net.Conn, error) {
	return func(addr string, timeout time.Duration) (net.Conn, error) {
		d := net.Dialer{Timeout: timeout}
		if s == nil {
			return d.Dial("tcp", addr)
		}
		return tls.DialWithDialer(&d, "tcp", addr, s.Client(protocol, roles...))
	}
}

// Address is an address to listen on, with the flag that sets it.
type Address struct{ Flag, HostPort string }

// ErrExposed is wrapped when a process would listen beyond loopback without TLS.
var ErrExposed = errors.New("refusing to listen beyond loopback without TLS")

// MayListen returns an error for addresses beyond loopback without TLS, unless insecure permits them.
func (s *Source) MayListen(insecure bool, addrs ...Address) error {
	if s != nil || insecure {
		return nil
	}
	for _, a := range addrs {
		if !Loopback(a.HostPort) {
			return fmt.Errorf("%w: --%s %s can be reached from other machines; give --tls-ca, --tls-cert and --tls-key "+
				"(`tidemark cert` makes them), "+
				"or listen on 127.0.0.1, or say --insecure if the network itself is trusted", ErrExposed, a.Flag, a.HostPort)
		}
	}
	return nil
}

// Loopback reports whether host:port can be reached only from this machine. All addresses of a name must be loopback.
func Loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil || host == "" {
		return false
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	ips, err := net.LookupIP(host)
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return false
		}
	}
	return err == nil && len(ips) > 0
}

// exists reports whether there is a file at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
