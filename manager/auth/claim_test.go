package auth

import (
	"errors"
	"testing"
	"time"

	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// TestClaims: a manager's claim counts only as far as the state of the receiving manager confirms it now: the sender
// may lag.
func TestClaims(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	w.user("ann", statecontext.UserAdmin, "battery staple")
	secret := newToken()
	hash, _ := TokenHash(secret)
	w.do(&statecontext.PutToken{Token: statecontext.Token{User: "ann", Role: statecontext.UserDDL, Hash: hash,
		ExpiresMS: w.now.Add(time.Hour).UnixMilli()}})
	claims := map[string]string{"certificate": known(w.state.User("ann")).Claim()}
	for how, header := range map[string]string{"password": "ann/battery staple", "token": "Bearer " + secret} {
		id, err := w.ask(header)
		if err != nil {
			t.Fatal(err)
		}
		claims[how] = id.Claim()
	}
	const no = statecontext.UserRole(0)
	want := func(when string, roles map[string]statecontext.UserRole) {
		t.Helper()
		for how, claim := range claims {
			id, err := w.a.Accept(claim)
			switch {
			case roles[how] == no:
				if !errors.Is(err, ErrUnauthenticated) {
					t.Errorf("%s, %s: %+v %v", when, how, id, err)
				}
			case err != nil || id.Name != "ann" || id.Role != roles[how] || !w.a.Still(id) || id.Claim() != claim:
				t.Errorf("%s, %s: %+v %v, want role %v", when, how, id, err, roles[how])
			}
		}
	}
	admin, ddl, read := statecontext.UserAdmin, statecontext.UserDDL, statecontext.UserReads
	want("at first", map[string]statecontext.UserRole{"password": admin, "certificate": admin, "token": ddl})
	w.do(&statecontext.PutUser{Mode: statecontext.PutChange, Name: "ann", Role: read})
	want("demoted", map[string]statecontext.UserRole{"password": read, "certificate": read, "token": read})
	w.now = w.now.Add(2 * time.Hour)
	want("when the token has ended", map[string]statecontext.UserRole{"password": read, "certificate": read})
	w.now = w.now.Add(-2 * time.Hour)
	other, _ := HashPassword("battery staple")
	w.do(&statecontext.PutUser{Mode: statecontext.PutChange, Name: "ann", Hash: other})
	want("with another password", map[string]statecontext.UserRole{"certificate": read, "token": read})
	w.do(&statecontext.RemoveToken{ID: w.state.TokenByHash(hash).ID})
	want("without the token", map[string]statecontext.UserRole{"certificate": read})
	w.do(&statecontext.RemoveUser{Name: "ann"})
	want("removed", nil)

	for _, p := range []tlsconf.Peer{{Role: tlsconf.Admin, ID: "op"}, {Role: tlsconf.Manager, ID: "m1"},
		{Role: tlsconf.Projector, ID: "p1"}, {Role: tlsconf.Indexer, ID: "i1"}} {
		id, err := w.a.Accept(PeerClaim(p))
		if err != nil || id.Claim() != PeerClaim(p) || id.OfUser() || (id.Role == admin) != (p.Role == tlsconf.Admin) ||
			(id.Node == nil) != (p.Role == tlsconf.Admin) {
			t.Errorf("%s: %+v %v", p, id, err)
		}
	}
	for _, claim := range []string{"", "%", "user=root", "user=root&password=", "user=root&token=x",
		"user=root&certificate=no", "role=admin&name=root", "admin root",
		"peer=", "peer=root", PeerClaim(tlsconf.Peer{Role: tlsconf.User, ID: "root"}),
		PeerClaim(tlsconf.Peer{Role: tlsconf.KV, ID: "k"}), "peer=http://admin/op"} {
		if id, err := w.a.Accept(claim); !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%q: %+v %v", claim, id, err)
		}
	}
}
