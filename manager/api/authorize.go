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

// HeaderPrincipal names the user on whose behalf a manager forwards a request: an auth claim, or principalNone. It is
// accepted only on a connection with a manager's certificate, and a user's claim is looked up in this manager's own
// state. Without TLS the request's own credentials are forwarded and checked again.
const HeaderPrincipal = "Tidemark-Principal"

// principalNone stands for a sender without credentials.
const principalNone = "nobody"

// identityKey is the context key of a request's *auth.Identity.
type identityKey struct{}

// credentialsKey is the context key of a request's Authorization header.
type credentialsKey struct{}

// needs returns the least user role for a route.
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

// access authenticates requests and checks permissions.
type access struct {
	*ground
	*currency
}

// authorize stores the sender's identity in the request's context, and rejects requests that the sender may not make.
// It is the only place that does.
func (g *access) authorize(r *http.Request, rt *route) (*http.Request, error) {
	if g.cfg.Auth == nil || rt.role == RoleNone {
		return r, nil
	}
	g.takeSession(r)
	if err := errors.Join(rpc.CheckOrigin(r), rpc.CheckHost(r, hostOf(g.cfg.REST), g.cfg.Host)); err != nil {
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
		return r, rpc.Refuse(errcode.Forbidden, "%s has %s; %s %s needs role %s", id.Name, roleName(id), r.Method,
			r.URL.Path, rt.role)
	}
	ctx := context.WithValue(rpc.WithPrincipal(r.Context(), id.Name), identityKey{}, id)
	if h := r.Header.Get("Authorization"); h != "" {
		ctx = context.WithValue(ctx, credentialsKey{}, h)
	}
	return r.WithContext(ctx), nil
}

// identifyFor returns the sender of a request. A sender without the permission may have been granted it a moment ago:
// the state is brought up to date before the request is refused.
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

// stillMay reports whether the sender of a long-lasting call would be admitted now. It returns false if this manager
// cannot tell.
func (g *access) stillMay(ctx context.Context) bool {
	id, ok := ctx.Value(identityKey{}).(*auth.Identity)
	if !ok {
		return g.cfg.Auth == nil
	}
	return g.still(id) && (!id.OfUser() || g.current())
}

// still reports whether an admitted sender would be admitted now.
func (g *access) still(id *auth.Identity) bool {
	switch {
	case g.cfg.Auth == nil:
		return true
	case id.Name == rpc.Anonymous:
		return !g.authRequired()
	}
	return g.cfg.Auth.Still(id)
}

// whileMay makes a call that may take hours. Its context ends, with a problem as its cause, when its sender would be
// admitted no longer, or when this manager has not been able to find out at unsureLooks looks in a row: a removed user
// must not go on for as long as this manager is cut off. A call that has not begun its answer returns that problem.
func (g *access) whileMay(r *http.Request, call func(*http.Request) error) error {
	id, ok := r.Context().Value(identityKey{}).(*auth.Identity)
	if !ok {
		return call(r)
	}
	ctx, end := context.WithCancelCause(r.Context())
	defer end(nil)
	go func() {
		tick := time.NewTicker(mayLag)
		defer tick.Stop()
		for unsure := 0; ; {
			switch {
			case !g.still(id):
				end(rpc.Refuse(errcode.Unauthenticated, "the user, password, role or token of %s was changed or removed, or "+
					"users were added, since this request began; what was sent until now is valid", id.Name))
				return
			case !id.OfUser() || g.current():
				unsure = 0
			default:
				if unsure++; unsure == unsureLooks {
					end(rpc.Refuse(errcode.ManagerNotCurrent, "%s; what was sent until now is valid; repeat the request at "+
						"another manager", g.notCurrent()))
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	err := call(r.WithContext(ctx))
	if p := (*rpc.Problem)(nil); err != nil && errors.As(context.Cause(ctx), &p) {
		return p
	}
	return err
}

// unsureLooks is the number of looks, one each mayLag, after which a long call ends because this manager's user data
// may be outdated: a minute. The election of a leader, or the restart of this manager's disk, must not end what has run
// for hours. Looks are counted, as a process that was stopped has to find out first what is so now.
const unsureLooks = 12

func roleName(id *auth.Identity) string {
	if id.Role == 0 {
		return "no role"
	}
	return "role " + id.Role.String()
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

// identify returns the sender of a user's request. While authentication is off, a sender without credentials is an
// administrator.
func (g *access) identify(r *http.Request) (*auth.Identity, error) {
	id, err := g.lookUpNow(r)
	if err != nil {
		return nil, err
	}
	if id != nil && id.Node != nil {
		if id.Node.Role != tlsconf.Manager { // not a user: it may do nothing here
			return id, nil
		}
		if r.Header.Get(HeaderPrincipal) != principalNone && g.authRequired() { // the manager's own request
			return &auth.Identity{Name: id.Name, Role: statecontext.UserReads, Node: id.Node}, nil
		}
		id = nil // a sender without credentials there needs them here, if there are users
	}
	if id != nil {
		return id, nil
	}
	return g.anonymous()
}

// anonymous returns the identity of a sender without credentials.
func (g *access) anonymous() (*auth.Identity, error) {
	switch {
	case !g.authRequired():
		return &auth.Identity{Name: rpc.Anonymous, Role: statecontext.UserAdmin}, nil
	case g.awaitsFirst():
		return nil, g.errFirst()
	case g.cfg.Raft.State().UserCount() == 0 && !g.closed.Load():
		return nil, errNobody()
	}
	return nil, errNoCredentials()
}

// lookUpNow is like lookUp, with a state that is current wherever the result depends on that.
func (g *access) lookUpNow(r *http.Request) (*auth.Identity, error) {
	if r.Header.Get("Authorization") != "" && g.awaitsFirst() { // a right password must not count as a wrong one
		if !g.catchUpTo(r.Context(), g.now())() {
			return nil, g.refuseUnsure()
		}
		if g.awaitsFirst() {
			return nil, g.errFirst()
		}
	}
	known := g.current()
	id, err := g.lookUp(r)
	if errors.Is(err, auth.ErrUnauthenticated) || err == nil && id != nil && id.OfUser() {
		if late := g.ensureCurrent(r.Context()); late != nil {
			return nil, late
		}
		if g.awaitsFirst() {
			return nil, g.errFirst()
		}
		if err == nil && !known { // it may have been found in an outdated state
			return g.lookUp(r)
		}
	}
	return id, err
}

// lookUp returns the identity of a request's credentials, or the one that a forwarding manager claims. Unknown
// credentials are refused as such only if this manager has every user that existed when the request arrived.
func (g *access) lookUp(r *http.Request) (*auth.Identity, error) {
	sure := g.catchUpTo(r.Context(), g.now())
	id, err := g.cfg.Auth.IdentifyIn(r, sure) // a right password must not be refused as wrong
	if errors.Is(err, auth.ErrUnsure) {
		return nil, g.refuseUnsure()
	}
	if err != nil || id == nil || id.Node == nil {
		return id, err
	}
	claim := passedOn(r, id.Node)
	if claim == "" || claim == principalNone {
		return id, nil
	}
	if id, err = g.cfg.Auth.Accept(claim); errors.Is(err, auth.ErrUnauthenticated) { // the other may be ahead
		if !sure() {
			return nil, g.refuseUnsure()
		}
		id, err = g.cfg.Auth.Accept(claim)
	}
	return id, err
}

// awaitsFirst reports whether the first user is about to be added: until then nobody's credentials are right or wrong.
func (g *access) awaitsFirst() bool {
	return g.cfg.FirstUser && !g.cfg.Raft.HasUsers() && !g.closed.Load()
}

func (g *access) errFirst() error {
	return rpc.Refuse(errcode.Unavailable, "manager %s knows no users yet: the leader adds the first administrator, "+
		"if it was started with --initial-admin-password-file; try again", g.cfg.Name)
}

func errNobody() error {
	return rpc.Refuse(errcode.Unauthenticated, "there are no users yet: start the managers with "+
		"--initial-admin-password-file, or show an administrator's certificate (tidemark cert user --admin)")
}

func errNoCredentials() error {
	return rpc.Refuse(errcode.Unauthenticated, "this cluster requires credentials: give a user and password, or a token")
}

// authRequired reports whether requests without credentials are refused.
func (g *access) authRequired() bool { return !g.cfg.Open || g.cfg.Raft.HasUsers() || g.closed.Load() }

// passedOn returns the claim with which a manager forwards a request; "" if there is none, or if the sender is not a
// manager.
func passedOn(r *http.Request, node *tlsconf.Peer) string {
	if node.Role != tlsconf.Manager {
		return ""
	}
	return r.Header.Get(HeaderPrincipal)
}

// forwardIdentity adds to a request for another manager the identity on whose behalf it is sent.
func (g *ground) forwardIdentity(out *http.Request, ctx context.Context, in *http.Request) {
	if g.cfg.TLS == nil {
		if h, ok := ctx.Value(credentialsKey{}).(string); ok {
			out.Header.Set("Authorization", h)
		}
		return
	}
	if id, ok := ctx.Value(identityKey{}).(*auth.Identity); ok {
		out.Header.Set(HeaderPrincipal, cmp.Or(id.Claim(), principalNone))
		return
	}
	if in != nil {
		if p, ok := tlsconf.PeerOfRequest(in); ok {
			out.Header.Set(HeaderPrincipal, auth.PeerClaim(p))
		}
	}
}

// node returns the component that has sent a request, over TLS; false without TLS.
func (g *access) node(r *http.Request) (tlsconf.Peer, bool) {
	p, ok := tlsconf.PeerOfRequest(r)
	if ok && passedOn(r, &p) != "" {
		if passed, err := g.cfg.Auth.Accept(passedOn(r, &p)); err == nil && passed.Node != nil {
			return *passed.Node, true
		}
	}
	return p, ok
}

// nodeMay rejects calls for which the sender's certificate is not valid. Without TLS, which is restricted to loopback
// unless --insecure is set, components are not authenticated.
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
		return rpc.Refuse(errcode.Unauthenticated, "%s is a call between components: it needs a certificate of one of the "+
			"roles %v",
			r.URL.Path, roles)
	case !slices.Contains(roles, p.Role):
		return rpc.Refuse(errcode.Forbidden, "%s is not open to %s: it needs a certificate of one of the roles "+
			"%v", r.URL.Path, p, roles)
	}
	return nil
}

// speaksFor rejects a component that claims to be another one.
func (g *access) speaksFor(r *http.Request, role tlsconf.Role, id string) error {
	if g.cfg.Auth == nil || g.cfg.TLS == nil {
		return nil
	}
	if p, _ := g.node(r); p.Role != tlsconf.Manager && !p.Is(role, id) {
		return rpc.Refuse(errcode.Forbidden, "the certificate of %s does not allow a request on behalf of "+
			"%s", p, tlsconf.Peer{Role: role, ID: id})
	}
	return nil
}
