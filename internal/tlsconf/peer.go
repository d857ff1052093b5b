package tlsconf

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Role is a role that a certificate grants.
type Role string

// The roles. An admin certificate makes its holder an administrator regardless of the cluster's users; a user
// certificate identifies the user of that name, whose role is stored in the cluster.
const (
	Manager   Role = "manager"
	Projector Role = "projector"
	Indexer   Role = "indexer"
	KV        Role = "kv"
	User      Role = "user"
	Admin     Role = "admin"
)

// Roles lists every role, nodes first.
func Roles() []Role { return []Role{Manager, Projector, Indexer, KV, User, Admin} }

// scheme is that of the URI in a certificate's subject alternative names.
const scheme = "tidemark"

// AnyID in a certificate stands for every id of its role.
const AnyID = "*"

// maxID limits an id in bytes.
const maxID = 128

var (
	// ErrNoRole is wrapped when a certificate names no role.
	ErrNoRole = errors.New("the certificate names no tidemark role")
	// ErrRole is wrapped when a certificate is of another role or id than the call needs.
	ErrRole = errors.New("the certificate is of another role")
	// ErrNoCertificate is wrapped when the other side presented no certificate.
	ErrNoCertificate = errors.New("no client certificate")
)

// Peer is the identity in a certificate: the URI tidemark://role/id in its subject alternative names.
type Peer struct {
	Role Role
	ID   string
}

// String returns the URI.
func (p Peer) String() string { return p.uri().String() }

// ParsePeer parses the URI.
func ParsePeer(text string) (Peer, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Peer{}, err
	}
	p := Peer{Role: Role(u.Host), ID: strings.TrimPrefix(u.Path, "/")}
	if err := p.check(); err != nil || u.Scheme != scheme {
		return Peer{}, fmt.Errorf("%q: want %s://role/id: %w", text, scheme, cmp.Or(err, ErrNoRole))
	}
	return p, nil
}

func (p Peer) uri() *url.URL { return &url.URL{Scheme: scheme, Host: string(p.Role), Path: "/" + p.ID} }

// Is reports whether the holder may act under this id of the role. A projector process with several KV nodes has a
// projector for each, whose id is that of the process, @, and the node.
func (p Peer) Is(role Role, id string) bool {
	process, _, several := strings.Cut(id, "@")
	return p.Role == role && (p.ID == id || p.ID == AnyID || role == Projector && several && p.ID == process)
}

func (p Peer) check() error {
	switch {
	case !slices.Contains(Roles(), p.Role):
		return fmt.Errorf("role %q: want one of %v", p.Role, Roles())
	case p.ID == "" || len(p.ID) > maxID || strings.ContainsAny(p.ID, "/?#% \t\n"):
		return fmt.Errorf("id %q: want 1 to %d bytes without spaces or any of / ? # %%", p.ID, maxID)
	}
	return nil
}

// PeerOf returns role and id of a certificate. A certificate with several such URIs is rejected.
func PeerOf(cert *x509.Certificate) (Peer, error) {
	var found []Peer
	for _, u := range cert.URIs {
		if u.Scheme == scheme {
			found = append(found, Peer{Role: Role(u.Host), ID: strings.TrimPrefix(u.Path, "/")})
		}
	}
	if len(found) != 1 {
		return Peer{}, fmt.Errorf("%w: it has %d URIs tidemark://role/id among its alternative names, want 1", ErrNoRole,
			len(found))
	}
	if err := found[0].check(); err != nil {
		return Peer{}, fmt.Errorf("%w: %w", ErrNoRole, err)
	}
	return found[0], nil
}

// allow checks the role of a verified chain.
func allow(certs []*x509.Certificate, roles []Role) error {
	if len(certs) == 0 {
		return fmt.Errorf("%w: want one of role %v", ErrNoCertificate, roles)
	}
	p, err := PeerOf(certs[0])
	if err != nil {
		return err
	}
	if !slices.Contains(roles, p.Role) {
		return fmt.Errorf("%w: %s, want one of role %v", ErrRole, p, roles)
	}
	return nil
}

// PeerOfRequest returns the sender of a request; false if the connection has no TLS or no certificate of this
// cluster.
func PeerOfRequest(r *http.Request) (Peer, bool) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return Peer{}, false
	}
	p, err := PeerOf(r.TLS.PeerCertificates[0])
	return p, err == nil
}

// Only returns a check of requests: over TLS the sender's certificate must be of one of the roles; without TLS, which
// a process serves on loopback only unless --insecure is set, everyone passes.
func Only(roles ...Role) func(r *http.Request) error {
	return func(r *http.Request) error {
		if r.TLS == nil {
			return nil
		}
		if len(r.TLS.VerifiedChains) == 0 {
			return fmt.Errorf("%w: want one of role %v", ErrNoCertificate, roles)
		}
		return allow(r.TLS.PeerCertificates, roles)
	}
}
