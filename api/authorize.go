package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"tidemark/auth"
	"tidemark/internal/rpc"
	"tidemark/scanport"
	"tidemark/statecontext"
	"tidemark/tlsconf"
)

// HeaderPrincipal says on whose behalf a manager passes a request on: role and name. It counts only on a connection that
// shows a manager's certificate; without TLS the request's own credentials are passed on and looked at again.
const HeaderPrincipal = "Tidemark-Principal"

// identityKey leads to the *auth.Identity of a request.
type identityKey struct{}

// credentialsKey leads to the Authorization header of a request.
type credentialsKey struct{}

// needs gives the least role of a user for a route.
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
	if err := errors.Join(rpc.CheckOrigin(r), rpc.CheckHost(r, hostOf(a.cfg.REST))); err != nil {
		return r, rpc.Refuse(rpc.CodeForbidden, "%s %s: %v", r.Method, r.URL.Path, err)
	}
	if rt.component() {
		return r, a.nodeMay(r, rt)
	}
	id, err := a.identify(r)
	switch {
	case err != nil:
		return r, unauthenticated(err)
	case id.Role < rt.role.needs():
		return r, rpc.Refuse(rpc.CodeForbidden, "%s %s is %s for %s; the call needs role %s", r.Method, r.URL.Path, roleName(id), id.Name, rt.role)
	}
	ctx := context.WithValue(rpc.WithPrincipal(r.Context(), id.Name), identityKey{}, id)
	if h := r.Header.Get("Authorization"); h != "" {
		ctx = context.WithValue(ctx, credentialsKey{}, h)
	}
	return r.WithContext(ctx), nil
}

// hostOf gives the host of a base URL.
func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// stillMay tells whether who was let in would be let in now: for answers that last.
func (a *API) stillMay(ctx context.Context) bool {
	id, ok := ctx.Value(identityKey{}).(*auth.Identity)
	if !ok {
		return a.cfg.Auth == nil
	}
	return a.still(id)
}

// still tells whether somebody who was let in would be let in now.
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
		p := rpc.Refuse(rpc.CodeTooManyFailures, "%v", err)
		p.RetryAfterMS = retryAfterMS
		return p
	case errors.Is(err, auth.ErrUnauthenticated):
		return rpc.Refuse(rpc.CodeUnauthorized, "%v", err)
	}
	return err
}

// identify gives who sends a user's request. While authentication is off, who shows nothing is an administrator.
func (a *API) identify(r *http.Request) (*auth.Identity, error) {
	came, before := a.now(), a.cfg.Raft.State()
	id, err := a.cfg.Auth.Identify(r)
	if errors.Is(err, auth.ErrUnauthenticated) { // the user may be newer than what was known here
		a.catchUpOnce(r.Context(), came)
		if a.cfg.Auth.Differs(r, before) {
			id, err = a.cfg.Auth.Identify(r)
		}
	}
	if err != nil {
		return nil, err
	}
	if id != nil && id.Node != nil {
		passed := forwarded(r, id.Node)
		switch {
		case passed != nil && passed.Name != rpc.Anonymous:
			return passed, nil
		case passed != nil: // who showed nothing there has to show something here, if anybody has
		case id.Node.Role != tlsconf.Manager: // no user: it may do nothing here
			return id, nil
		case a.authRequired(): // asks for itself
			return &auth.Identity{Name: id.Name, Role: statecontext.UserReads}, nil
		}
		id = nil
	}
	switch {
	case id != nil:
		return id, nil
	case !a.authRequired():
		return &auth.Identity{Name: rpc.Anonymous, Role: statecontext.UserAdmin}, nil
	case a.cfg.Raft.State().UserCount() == 0:
		return nil, errNobody()
	}
	return nil, errNoCredentials()
}

func errNobody() error {
	return rpc.Refuse(rpc.CodeUnauthorized, "there are no users yet: start the managers with --initial-admin-password-file, or show an administrator's certificate (tidemark cert user --admin)")
}

func errNoCredentials() error {
	return rpc.Refuse(rpc.CodeUnauthorized, "this cluster has users: give user and password, or a token")
}

// authRequired tells whether requests without credentials are refused.
func (a *API) authRequired() bool { return !a.cfg.Open || a.cfg.Raft.HasUsers() }

// askPause is between two questions to the leader about credentials that are not known here: who tries many passwords does
// not load it.
const askPause = 20 * time.Millisecond

// catchUpOnce brings a follower's state up to what it was at the leader when a request came. Those that come while one asks
// share the next question. Without an answer the state stays as it is.
func (a *API) catchUpOnce(ctx context.Context, came time.Time) {
	if _, serving := a.cfg.Raft.Serving(); serving {
		return
	}
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		return
	}
	if a.asked.After(came) {
		return
	}
	pause := time.NewTimer(askPause - a.now().Sub(a.asked))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return
	}
	now := a.now()
	if a.catchUp(ctx) == nil {
		a.asked = now
	}
}

// forwarded gives whom a manager passes a request on for; nil when it says nothing, or somebody else says it.
func forwarded(r *http.Request, node *tlsconf.Peer) *auth.Identity {
	role, name, ok := strings.Cut(r.Header.Get(HeaderPrincipal), " ")
	if !ok || name == "" || node.Role != tlsconf.Manager {
		return nil
	}
	if role == string(RoleNone) {
		return &auth.Identity{Name: rpc.Anonymous}
	}
	if user, err := statecontext.ParseUserRole(role); err == nil {
		return &auth.Identity{Name: name, Role: user}
	}
	return &auth.Identity{Name: role + ":" + name, Node: &tlsconf.Peer{Role: tlsconf.Role(role), ID: name}}
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
		role := id.Role.String()
		if id.Name == rpc.Anonymous {
			role = string(RoleNone)
		}
		out.Header.Set(HeaderPrincipal, role+" "+id.Name)
		return
	}
	if in != nil {
		if p, ok := tlsconf.PeerOfRequest(in); ok {
			out.Header.Set(HeaderPrincipal, string(p.Role)+" "+p.ID)
		}
	}
}

// node gives the component that a request is of, over TLS; false without TLS.
func (a *API) node(r *http.Request) (tlsconf.Peer, bool) {
	p, ok := tlsconf.PeerOfRequest(r)
	if ok {
		if passed := forwarded(r, &p); passed != nil && passed.Node != nil {
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
		return rpc.Refuse(rpc.CodeUnauthorized, "%s is between components: it needs the certificate of one of %v", r.URL.Path, roles)
	case !slices.Contains(roles, p.Role):
		return rpc.Refuse(rpc.CodeForbidden, "%s is not for %s: it needs the certificate of one of %v", r.URL.Path, p, roles)
	}
	return nil
}

// speaksFor refuses a component that says it is another one.
func (a *API) speaksFor(r *http.Request, role tlsconf.Role, id string) error {
	if a.cfg.Auth == nil || a.cfg.TLS == nil {
		return nil
	}
	if p, _ := a.node(r); p.Role != tlsconf.Manager && !p.Is(role, id) {
		return rpc.Refuse(rpc.CodeForbidden, "%s speaks for %s", p, tlsconf.Peer{Role: role, ID: id})
	}
	return nil
}
