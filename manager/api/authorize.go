package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/manager/auth"
	"tidemark/statecontext"
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
	case RoleRead:
		return statecontext.UserReads
	case RoleDDL:
		return statecontext.UserDDL
	}
	return statecontext.UserAdmin
}

// authorize says who sends a request, in its context, and refuses what he may not do. It is the one place that does.
func (a *API) authorize(r *http.Request, rt *route) (*http.Request, error) {
	if a.cfg.Auth == nil || rt.role == RoleNone {
		return r, nil
	}
	a.takeSession(r)
	if err := errors.Join(rpc.CheckOrigin(r), rpc.CheckHost(r, hostOf(a.cfg.REST))); err != nil {
		return r, rpc.Refuse(errcode.Forbidden, "%s %s: %v", r.Method, r.URL.Path, err)
	}
	if rt.component() {
		return r, a.nodeMay(r, rt)
	}
	id, err := a.identifyFor(r, rt)
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
func (a *API) identifyFor(r *http.Request, rt *route) (*auth.Identity, error) {
	sure := a.catchUpTo(r.Context(), a.now())
	id, err := a.identify(r)
	if err != nil || id.Role >= rt.role.needs() || !id.OfUser() {
		return id, err
	}
	if !sure() {
		return nil, a.refuseUnsure()
	}
	return a.identify(r)
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
func (a *API) stillMay(ctx context.Context) bool {
	id, ok := ctx.Value(identityKey{}).(*auth.Identity)
	if !ok {
		return a.cfg.Auth == nil
	}
	return a.still(id) && (!id.OfUser() || a.current())
}

// still reports whether somebody who was let in would be let in now.
func (a *API) still(id *auth.Identity) bool {
	switch {
	case a.cfg.Auth == nil:
		return true
	case id.Name == rpc.Anonymous:
		return !a.authRequired()
	}
	return a.cfg.Auth.Still(id)
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
func (a *API) identify(r *http.Request) (*auth.Identity, error) {
	id, err := a.lookUp(r)
	if errors.Is(err, auth.ErrUnauthenticated) || err == nil && id != nil && id.OfUser() {
		if late := a.ensureCurrent(r.Context()); late != nil {
			return nil, late
		}
	}
	if err != nil {
		return nil, err
	}
	if id != nil && id.Node != nil {
		if id.Node.Role != tlsconf.Manager { // no user: it may do nothing here
			return id, nil
		}
		if r.Header.Get(HeaderPrincipal) != principalNobody && a.authRequired() { // asks for itself
			return &auth.Identity{Name: id.Name, Role: statecontext.UserReads, Node: id.Node}, nil
		}
		id = nil // who showed nothing there has to show something here, if anybody has
	}
	if id != nil {
		return id, nil
	}
	return a.anonymous()
}

// anonymous returns who sends a request that shows nothing.
func (a *API) anonymous() (*auth.Identity, error) {
	switch {
	case !a.authRequired():
		return &auth.Identity{Name: rpc.Anonymous, Role: statecontext.UserAdmin}, nil
	case a.cfg.Raft.State().UserCount() == 0 && !a.closed.Load():
		return nil, errNobody()
	}
	return nil, errNoCredentials()
}

// lookUp gives whose credentials a request shows, or for whom a manager says that it is. Credentials that are not known
// here are refused as such only by who knows every user there was when the request came.
func (a *API) lookUp(r *http.Request) (*auth.Identity, error) {
	sure := a.catchUpTo(r.Context(), a.now())
	id, err := a.cfg.Auth.IdentifyIn(r, sure) // a right password must not be called a wrong one
	if errors.Is(err, auth.ErrUnsure) {
		return nil, a.refuseUnsure()
	}
	if err != nil || id == nil || id.Node == nil {
		return id, err
	}
	claim := passedOn(r, id.Node)
	if claim == "" || claim == principalNobody {
		return id, nil
	}
	if id, err = a.cfg.Auth.Accept(claim); errors.Is(err, auth.ErrUnauthenticated) { // it may be ahead of this manager
		if !sure() {
			return nil, a.refuseUnsure()
		}
		id, err = a.cfg.Auth.Accept(claim)
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
func (a *API) authRequired() bool { return !a.cfg.Open || a.cfg.Raft.HasUsers() || a.closed.Load() }

// passedOn returns the claim with which a manager passes a request on; "" when it says nothing, or somebody else says
// it.
func passedOn(r *http.Request, node *tlsconf.Peer) string {
	if node.Role != tlsconf.Manager {
		return ""
	}
	return r.Header.Get(HeaderPrincipal)
}

// vouch adds to a request that goes to another manager on whose behalf it is.
func (a *API) vouch(out *http.Request, ctx context.Context, in *http.Request) {
	if a.cfg.TLS == nil {
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
func (a *API) node(r *http.Request) (tlsconf.Peer, bool) {
	p, ok := tlsconf.PeerOfRequest(r)
	if ok && passedOn(r, &p) != "" {
		if passed, err := a.cfg.Auth.Accept(passedOn(r, &p)); err == nil && passed.Node != nil {
			return *passed.Node, true
		}
	}
	return p, ok
}

// nodeMay refuses what the sender's certificate is not for. Without TLS, which is on loopback only unless somebody said
// --insecure, components are not asked who they are.
func (a *API) nodeMay(r *http.Request, rt *route) error {
	if a.cfg.TLS == nil {
		return nil
	}
	roles := []tlsconf.Role{tlsconf.Manager}
	switch rt.path {
	case "/v1/cluster/indexers", "/v1/buckets/{bucket}:stabilize", scanport.CheckPath:
		roles = append(roles, tlsconf.Indexer)
	case "/v1/cluster/projectors":
		roles = append(roles, tlsconf.Projector)
	case "/v1/components/{id}/reports":
		roles = append(roles, tlsconf.Indexer, tlsconf.Projector)
	}
	p, ok := a.node(r)
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
func (a *API) speaksFor(r *http.Request, role tlsconf.Role, id string) error {
	if a.cfg.Auth == nil || a.cfg.TLS == nil {
		return nil
	}
	if p, _ := a.node(r); p.Role != tlsconf.Manager && !p.Is(role, id) {
		return rpc.Refuse(errcode.Forbidden, "%s speaks for %s", p, tlsconf.Peer{Role: role, ID: id})
	}
	return nil
}
