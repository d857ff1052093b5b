package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"

	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// A claim is a query string in which a manager sends another one the identity that it has authenticated. A
// certificate is named by its URI and trusted, since a process with the role manager has verified it. For a user the
// claim contains the kind of credentials, so that the other manager can check them against its own state, which may
// be newer; it never contains the role.
const (
	claimPeer        = "peer"        // URI of a certificate of a node or administrator
	claimUser        = "user"        // name
	claimToken       = "token"       // its id
	claimPassword    = "password"    // digest of the hash that the password matched
	claimCertificate = "certificate" // "yes": a certificate of the user
)

// Claim returns the claim for an identity.
func (id *Identity) Claim() string {
	v := url.Values{}
	switch {
	case id.Node != nil:
		return PeerClaim(*id.Node)
	case id.admin != nil:
		return PeerClaim(*id.admin)
	case id.user == "":
		return "" // anonymous
	case id.token != "":
		v.Set(claimToken, id.token)
	case id.hash != "":
		v.Set(claimPassword, digest(id.hash))
	default:
		v.Set(claimCertificate, "yes")
	}
	v.Set(claimUser, id.user)
	return v.Encode()
}

// PeerClaim returns the claim for the holder of a certificate.
func PeerClaim(p tlsconf.Peer) string { return url.Values{claimPeer: {p.String()}}.Encode() }

// digest identifies a stored hash without revealing it.
func digest(hash string) string {
	sum := sha256.Sum256([]byte(hash))
	return hex.EncodeToString(sum[:16])
}

// Accept returns the identity that a manager's claim stands for, according to the present state. Errors wrap
// ErrUnauthenticated.
func (a *Authenticator) Accept(claim string) (*Identity, error) {
	v, err := url.ParseQuery(claim)
	if err != nil {
		return nil, fmt.Errorf("%w: a manager's claim of an identity %.100q: %w", ErrUnauthenticated, claim, err)
	}
	if v.Has(claimPeer) {
		return acceptPeer(v.Get(claimPeer))
	}
	s := a.state()
	u := s.User(v.Get(claimUser))
	if u == nil {
		return nil, errWrong()
	}
	id := known(u)
	switch {
	case v.Has(claimToken):
		x := s.Token(v.Get(claimToken))
		if x == nil || x.User != u.Name || a.ended(x) {
			return nil, errWrong()
		}
		id.Role, id.token = min(u.Role, x.Role), x.ID
	case v.Has(claimPassword):
		if id.hash = u.Hash; v.Get(claimPassword) != digest(u.Hash) {
			return nil, errWrong()
		}
	case v.Get(claimCertificate) != "yes":
		return nil, errWrong()
	}
	return id, nil
}

func acceptPeer(uri string) (*Identity, error) {
	p, err := tlsconf.ParsePeer(uri)
	if err != nil {
		return nil, fmt.Errorf("%w: a manager's claim of an identity: %w", ErrUnauthenticated, err)
	}
	switch p.Role {
	case tlsconf.Admin:
		return administrator(p), nil
	case tlsconf.Manager, tlsconf.Projector, tlsconf.Indexer:
		return component(p), nil
	}
	return nil, fmt.Errorf("%w: a manager's claim of identity %s", ErrUnauthenticated, p)
}

// administrator returns the identity of the holder of an administrator's certificate.
func administrator(p tlsconf.Peer) *Identity {
	return &Identity{Name: "admin:" + p.ID, Role: statecontext.UserAdmin, admin: &p}
}

// component returns the identity of a node that presents its certificate.
func component(p tlsconf.Peer) *Identity {
	return &Identity{Name: string(p.Role) + ":" + p.ID, Node: &p}
}

// OfUser reports whether an identity depends on the state that it was checked against: that of a user or token, but
// not an administrator's certificate.
func (id *Identity) OfUser() bool { return id.user != "" }

// Token returns the id of the token that was used, "" if none was.
func (id *Identity) Token() string { return id.token }

// Modified returns the version of the user against which the identity was checked; it is valid if OfUser is true.
func (id *Identity) Modified() uint64 { return id.modified }

// ByPassword reports whether a password was used.
func (id *Identity) ByPassword() bool { return id.hash != "" }
