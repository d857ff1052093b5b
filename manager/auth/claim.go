package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"

	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// A claim is what a manager says to another one of whom it has let in, as a query string. A certificate is named by its
// URI and believed, since a process of role manager has verified it. Of a user it says how he has shown himself, so
// that the other manager can look that up in a state of its own, which may be newer; the role is never said.
const (
	claimPeer        = "peer"        // URI of a certificate of a node or administrator
	claimUser        = "user"        // name
	claimToken       = "token"       // its id
	claimPassword    = "password"    // digest of the hash that the password matched
	claimCertificate = "certificate" // "yes": of the user
)

// Claim returns the claim of somebody who was let in.
func (id *Identity) Claim() string {
	v := url.Values{}
	switch {
	case id.Node != nil:
		return PeerClaim(*id.Node)
	case id.admin != nil:
		return PeerClaim(*id.admin)
	case id.user == "":
		return "" // nobody
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

// PeerClaim is the claim of the holder of a certificate.
func PeerClaim(p tlsconf.Peer) string { return url.Values{claimPeer: {p.String()}}.Encode() }

// digest tells one stored hash from another and is of no other use.
func digest(hash string) string {
	sum := sha256.Sum256([]byte(hash))
	return hex.EncodeToString(sum[:16])
}

// Accept returns whom a manager's claim stands for, as the state has him now. Errors wrap ErrUnauthenticated.
func (a *Authenticator) Accept(claim string) (*Identity, error) {
	v, err := url.ParseQuery(claim)
	if err != nil {
		return nil, fmt.Errorf("%w: a manager's claim %.100q: %w", ErrUnauthenticated, claim, err)
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
		return nil, fmt.Errorf("%w: a manager's claim: %w", ErrUnauthenticated, err)
	}
	switch p.Role {
	case tlsconf.Admin:
		return administrator(p), nil
	case tlsconf.Manager, tlsconf.Projector, tlsconf.Indexer:
		return component(p), nil
	}
	return nil, fmt.Errorf("%w: a manager's claim for %s", ErrUnauthenticated, p)
}

// administrator is the holder of an administrator's certificate.
func administrator(p tlsconf.Peer) *Identity {
	return &Identity{Name: "admin:" + p.ID, Role: statecontext.UserAdmin, admin: &p}
}

// component is a node that shows its certificate.
func component(p tlsconf.Peer) *Identity {
	return &Identity{Name: string(p.Role) + ":" + p.ID, Node: &p}
}

// OfUser reports whether an identity is as good only as the state that it was looked up in: a user's or token's, and no
// administrator's certificate.
func (id *Identity) OfUser() bool { return id.user != "" }

// Token returns the id of the token that was shown, "" for none.
func (id *Identity) Token() string { return id.token }

// Modified returns which version of the user was looked at, of an identity that is OfUser.
func (id *Identity) Modified() uint64 { return id.modified }

// ByPassword reports whether a password was shown.
func (id *Identity) ByPassword() bool { return id.hash != "" }
