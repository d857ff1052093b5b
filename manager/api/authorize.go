package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/manager/auth"
	"tidemark/statecontext"
	"tidemark/wire"
)

// HeaderPrincipal says on whose behalf a manager passes a request on: an auth claim, or principalNobody. It counts only
// on a connection that shows a manager's certificate, and a user's claim is looked up in this manager's own state;
// without TLS the request's own credentials are passed on and looked at again.
const HeaderPrincipal = "Tidemark-Principal"

// principalNobody stands for those who showed nothing.
const principalNobody = "nobody"

// identityKey leads to the *auth.Identity of a request.
type identityKey struct{}

// credentialsKey leads to the Authorization header of a request.
type credentialsKey struct{}

// needs returns the least role of a user for a route.
func (r Role) needs() statecontext.UserRole {
	switch r {
	case RoleMetrics:
		return statecontext.UserMetrics
	case RoleRead:
		return statecontext.UserReads
	case RoleDDL:
		return statecontext.UserDDL
	}
	return statecontext.UserAdmin
}

// access says who sends a request, and what he may do.
type access struct {
	*ground
	*currency
}

// authorize says who sends a request, in its context, and refuses what he may not do. It is the one place that does.
func (g *access) authorize(r *http.Request, rt *route) (*http.Request, error) {
	if g.cfg.Auth == nil || rt.role == RoleNone {
		return r, nil
	}
	g.takeSession(r)
	if err := errors.Join(rpc.CheckOrigin(r), rpc.CheckHost(r, hostOf(g.cfg.REST))); err != nil {
		return r, rpc.Refuse(errcode.Forbidden, "%s %s: %v", r.Method, r.URL.Path, err)
	}
	if rt.component() {
		return r, g.nodeMay(r, rt)
	}
	id, err := g.identifyFor(r, rt)
	switch {
	case err != nil:
		return r, unauthenticated(err)
	case id.Role < rt.role.needs():
		return r, rpc.Refuse(errcode.Forbidden, "%s %s is %s for %s; the call needs role %s", r.Method, r.URL.Path,
			roleName(id), id.Name, rt.role)
	}
	ctx := context.WithValue(rpc.WithPrincipal(r.Context(), id.Name), identityKey{}, id)
	if h := r.Header.Get("Authorization"); h != "" {
		ctx = context.WithValue(ctx, credentialsKey{}, h)
	}
	return r.WithContext(ctx), nil
}

// identifyFor returns who sends a request. Who may not do what he asks for, as far as is known here, may have been
// allowed to a moment ago: that is looked at before he is refused.
func (g *access) identifyFor(r *http.Request, rt *route) (*auth.Identity, error) {
	sure := g.catchUpTo(r.Context(), g.now())
	id, err := g.identify(r)
	if err != nil || id.Role >= rt.role.needs() || !id.OfUser() {
		return id, err
	}
	if !sure() {
		return nil, g.refuseUnsure()
	}
	return g.identify(r)
}

// hostOf returns the host of a base URL.
func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// stillMay reports whether who was let in would be let in now: for answers that last. A manager that does not know is
// no.
func (g *access) stillMay(ctx context.Context) bool {
	id, ok := ctx.Value(identityKey{}).(*auth.Identity)
	if !ok {
		return g.cfg.Auth == nil
	}
	return g.still(id) && (!id.OfUser() || g.current())
}

// still reports whether somebody who was let in would be let in now.
func (g *access) still(id *auth.Identity) bool {
	switch {
	case g.cfg.Auth == nil:
		return true
	case id.Name == rpc.Anonymous:
		return !g.authRequired()
	}
	return g.cfg.Auth.Still(id)
}

// whileMay returns a context that ends, with a problem as its cause, when who was let in would be let in no longer by
// what this manager knows: for calls that take hours. release is to be called at their end.
func (g *access) whileMay(ctx context.Context) (whole context.Context, release func()) {
	id, ok := ctx.Value(identityKey{}).(*auth.Identity)
	if !ok {
		return ctx, func() {}
	}
	whole, end := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(mayLag)
		defer tick.Stop()
		for g.still(id) {
			select {
			case <-whole.Done():
				return
			case <-tick.C:
			}
		}
		end(rpc.Refuse(errcode.Unauthenticated, "the user, his password or role, or the token of %s has changed or ended "+
			"since this was begun, or users were added; what was told until now counts", id.Name))
	}()
	return whole, func() { end(nil) }
}

func roleName(id *auth.Identity) string {
	if id.Role == 0 {
		return "not allowed"
	}
	return "beyond role " + id.Role.String()
}

func unauthenticated(err error) error {
	switch {
	case errors.Is(err, auth.ErrTooMany):
		p := rpc.Refuse(errcode.TooManyFailures, "%v", err)
		p.RetryAfterMS = retryAfterMS
		return p
	case errors.Is(err, auth.ErrUnauthenticated):
		return rpc.Refuse(errcode.Unauthenticated, "%v", err)
	}
	return err
}

// identify returns who sends a user's request. While authentication is off, who shows nothing is an administrator.
func (g *access) identify(r *http.Request) (*auth.Identity, error) {
	id, err := g.lookUpNow(r)
	if err != nil {
		return nil, err
	}
	if id != nil && id.Node != nil {
		if id.Node.Role != tlsconf.Manager { // no user: it may do nothing here
			return id, nil
		}
		if r.Header.Get(HeaderPrincipal) != principalNobody && g.authRequired() { // asks for itself
			return &auth.Identity{Name: id.Name, Role: statecontext.UserReads, Node: id.Node}, nil
		}
		id = nil // who showed nothing there has to show something here, if anybody has
	}
	if id != nil {
		return id, nil
	}
	return g.anonymous()
}

// anonymous returns who sends a request that shows nothing.
func (g *access) anonymous() (*auth.Identity, error) {
	switch {
	case !g.authRequired():
		return &auth.Identity{Name: rpc.Anonymous, Role: statecontext.UserAdmin}, nil
	case g.cfg.Raft.State().UserCount() == 0 && !g.closed.Load():
		return nil, errNobody()
	}
	return nil, errNoCredentials()
}

// lookUpNow is lookUp in a state that is as new as any, where it depends on that.
func (g *access) lookUpNow(r *http.Request) (*auth.Identity, error) {
	known := g.current()
	id, err := g.lookUp(r)
	if errors.Is(err, auth.ErrUnauthenticated) || err == nil && id != nil && id.OfUser() {
		if late := g.ensureCurrent(r.Context()); late != nil {
			return nil, late
		}
		if err == nil && !known { // it may have been found in a state of before
			return g.lookUp(r)
		}
	}
	return id, err
}

// lookUp gives whose credentials a request shows, or for whom a manager says that it is. Credentials that are not known
// here are refused as such only by who knows every user there was when the request came.
func (g *access) lookUp(r *http.Request) (*auth.Identity, error) {
	sure := g.catchUpTo(r.Context(), g.now())
	id, err := g.cfg.Auth.IdentifyIn(r, sure) // a right password must not be called a wrong one
	if errors.Is(err, auth.ErrUnsure) {
		return nil, g.refuseUnsure()
	}
	if err != nil || id == nil || id.Node == nil {
		return id, err
	}
	claim := passedOn(r, id.Node)
	if claim == "" || claim == principalNobody {
		return id, nil
	}
	if id, err = g.cfg.Auth.Accept(claim); errors.Is(err, auth.ErrUnauthenticated) { // it may be ahead of this manager
		if !sure() {
			return nil, g.refuseUnsure()
		}
		id, err = g.cfg.Auth.Accept(claim)
	}
	return id, err
}

func errNobody() error {
	return rpc.Refuse(errcode.Unauthenticated, "there are no users yet: start the managers with "+
		"--initial-admin-password-file, or show an administrator's certificate (tidemark cert user --admin)")
}

func errNoCredentials() error {
	return rpc.Refuse(errcode.Unauthenticated, "this cluster has users: give user and password, or a token")
}

// authRequired reports whether requests without credentials are refused.
func (g *access) authRequired() bool { return !g.cfg.Open || g.cfg.Raft.HasUsers() || g.closed.Load() }

// passedOn returns the claim with which a manager passes a request on; "" when it says nothing, or somebody else says
// it.
func passedOn(r *http.Request, node *tlsconf.Peer) string {
	if node.Role != tlsconf.Manager {
		return ""
	}
	return r.Header.Get(HeaderPrincipal)
}

// vouch adds to a request that goes to another manager on whose behalf it is.
func (g *ground) vouch(out *http.Request, ctx context.Context, in *http.Request) {
	if g.cfg.TLS == nil {
		if h, ok := ctx.Value(credentialsKey{}).(string); ok {
			out.Header.Set("Authorization", h)
		}
		return
	}
	if id, ok := ctx.Value(identityKey{}).(*auth.Identity); ok {
		out.Header.Set(HeaderPrincipal, cmp.Or(id.Claim(), principalNobody))
		return
	}
	if in != nil {
		if p, ok := tlsconf.PeerOfRequest(in); ok {
			out.Header.Set(HeaderPrincipal, auth.PeerClaim(p))
		}
	}
}

// node returns the component that a request is of, over TLS; false without TLS.
func (g *access) node(r *http.Request) (tlsconf.Peer, bool) {
	p, ok := tlsconf.PeerOfRequest(r)
	if ok && passedOn(r, &p) != "" {
		if passed, err := g.cfg.Auth.Accept(passedOn(r, &p)); err == nil && passed.Node != nil {
			return *passed.Node, true
		}
	}
	return p, ok
}

// nodeMay refuses what the sender's certificate is not for. Without TLS, which is on loopback only unless somebody said
// --insecure, components are not asked who they are.
func (g *access) nodeMay(r *http.Request, rt *route) error {
	if g.cfg.TLS == nil {
		return nil
	}
	roles := []tlsconf.Role{tlsconf.Manager}
	switch rt.path {
	case "/v1/cluster/indexers", "/v1/buckets/{bucket}:stabilize", scanport.CheckPath:
		roles = append(roles, tlsconf.Indexer)
	case "/v1/cluster/projectors", "/v1/cluster/projectors:leave":
		roles = append(roles, tlsconf.Projector)
	case "/v1/components/{id}/reports", wire.TokenCheckPath:
		roles = append(roles, tlsconf.Indexer, tlsconf.Projector)
	}
	p, ok := g.node(r)
	switch {
	case !ok:
		return rpc.Refuse(errcode.Unauthenticated, "%s is between components: it needs the certificate of one of %v",
			r.URL.Path, roles)
	case !slices.Contains(roles, p.Role):
		return rpc.Refuse(errcode.Forbidden, "%s is not for %s: it needs the certificate of one of %v", r.URL.Path, p, roles)
	}
	return nil
}

// speaksFor refuses a component that says it is another one.
func (g *access) speaksFor(r *http.Request, role tlsconf.Role, id string) error {
	if g.cfg.Auth == nil || g.cfg.TLS == nil {
		return nil
	}
	if p, _ := g.node(r); p.Role != tlsconf.Manager && !p.Is(role, id) {
		return rpc.Refuse(errcode.Forbidden, "%s speaks for %s", p, tlsconf.Peer{Role: role, ID: id})
	}
	return nil
}
