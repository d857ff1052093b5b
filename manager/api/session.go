package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/http"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/auth"
	"tidemark/statecontext"
)

// HeaderConsole is set by pages of the console. A session's cookie is accepted only together with it: a page of
// another site can make a browser send the cookie, but never the header.
const HeaderConsole = "Tidemark-Console"

// SessionTime is how long a session lasts after the login. A session is a token of its user whose secret is in a
// cookie, so that any manager accepts it; package statecontext limits their number and ends them.
const SessionTime = 8 * time.Hour

func (g sessions) sessionRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/whoami", handle: g.whoami, role: RoleRead, limit: v1.ReadTimeout, doc: operation{
			id: "whoAmI", tag: tagUsers, summary: "The caller's identity and rights",
			answers: []answer{{status: 200, means: "the caller", body: v1.WhoAmI{}}}}},
		{method: "POST", path: "/v1/session", handle: g.beginSession, role: RoleRead, leader: true, again: true,
			limit: v1.WriteTimeout, doc: operation{
				id: "beginSession", tag: tagUsers, summary: "Begin a console session with a user's password: the " +
					"answer sets a cookie, which is valid in addition to the header " + HeaderConsole,
				answers: []answer{{status: 201, means: "it has begun", body: v1.WhoAmI{}}},
				codes:   []errcode.Code{errcode.LimitExceeded, errcode.UnknownUser, errcode.Busy}}},
		{method: "DELETE", path: "/v1/session", handle: g.endSession, role: RoleRead, leader: true, again: true,
			limit: v1.WriteTimeout, doc: operation{
				id: "endSession", tag: tagUsers, summary: "End the caller's session, if there is one",
				answers: []answer{{status: 204, means: "it has ended"}}}},
	}
}

// cookieName returns the cookie's name, which includes the cluster since cookies are shared between ports. Browsers
// accept the prefix __Host- only with TLS.
func (g *access) cookieName() string {
	name := "tidemark-" + cmp.Or(g.cfg.Raft.ClusterID(), "session")
	if g.cfg.TLS != nil {
		return "__Host-" + name
	}
	return name
}

// sessionCookie returns the cookie for a secret, or, with "", the one that removes it.
func (g sessions) sessionCookie(secret string) *http.Cookie {
	c := &http.Cookie{Name: g.cookieName(), Value: secret, Path: "/", MaxAge: int(SessionTime.Seconds()), HttpOnly: true,
		Secure: g.cfg.TLS != nil, SameSite: http.SameSiteStrictMode}
	if secret == "" {
		c.MaxAge = -1
	}
	return c
}

// takeSession copies the token of a session's cookie into the Authorization header, for requests of pages of this
// manager that have no other credentials.
func (g *access) takeSession(r *http.Request) {
	if r.Header.Get(HeaderConsole) == "" || r.Header.Get("Authorization") != "" {
		return
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return
	}
	if c, err := r.Cookie(g.cookieName()); err == nil && c.Value != "" {
		r.Header.Set("Authorization", "Bearer "+c.Value)
	}
}

func (g sessions) whoami(w http.ResponseWriter, r *http.Request) error {
	rpc.Write(w, r, http.StatusOK, g.whoIs(r.Context()))
	return nil
}

// whoIs describes the authenticated caller.
func (g sessions) whoIs(ctx context.Context) v1.WhoAmI {
	id, ok := ctx.Value(identityKey{}).(*auth.Identity)
	if !ok { // authentication is off
		return v1.WhoAmI{Name: rpc.Anonymous, Role: statecontext.UserAdmin.String(), By: v1.ByNothing}
	}
	who := v1.WhoAmI{Name: id.Name, Role: id.Role.String(), By: v1.ByCertificate, Users: g.authRequired()}
	switch x := g.cfg.Raft.State().Token(id.Token()); {
	case id.Name == rpc.Anonymous:
		who.By = v1.ByNothing
	case id.ByPassword():
		who.By = v1.ByPassword
	case x != nil && x.Session():
		who.By, who.EndsMS = v1.BySession, x.ExpiresMS
	case x != nil:
		who.By, who.EndsMS = v1.ByToken, x.ExpiresMS
	}
	return who
}

func (g sessions) beginSession(w http.ResponseWriter, r *http.Request) error {
	id, ok := r.Context().Value(identityKey{}).(*auth.Identity)
	if !ok || !id.ByPassword() {
		return rpc.Refuse(errcode.InvalidArgument, "a session begins with a user's password (HTTP Basic); a caller with a "+
			"token or a certificate, or of a cluster without users, needs no session")
	}
	if wait := g.cfg.Auth.BeginSession(id); wait > 0 {
		p := rpc.Refuse(errcode.Busy, "%s has begun too many sessions recently: wait %s before the next one", id.Name,
			wait.Round(time.Second))
		p.RetryAfterMS = wait.Milliseconds()
		return p
	}
	now := g.now()
	random := make([]byte, statecontext.TokenSecretBytes)
	_, _ = rand.Read(random) // crypto/rand.Read never fails
	secret := statecontext.TokenPrefix + base64.RawURLEncoding.EncodeToString(random)
	hash, err := auth.TokenHash(secret)
	if err != nil {
		return err
	}
	x := statecontext.Token{User: id.Name, Role: id.Role, Hash: hash, Note: statecontext.SessionNote,
		CreatedMS: now.UnixMilli(), ExpiresMS: now.Add(SessionTime).UnixMilli(), ModifiedCAS: id.Modified()}
	err = g.proposeToken(r.Context(), &statecontext.PutToken{Token: x})
	switch {
	case errors.Is(err, errcode.CASMismatch): // the password was changed since it was checked
		return rpc.Refuse(errcode.Unauthenticated, "%v", err)
	case err != nil:
		return err
	}
	g.cfg.Logger.Info("session begun", "request_id", rpc.RequestID(r.Context()), "principal", id.Name, "token",
		statecontext.TokenID(hash))
	http.SetCookie(w, g.sessionCookie(secret))
	rpc.Write(w, r, http.StatusCreated, v1.WhoAmI{Name: id.Name, Role: id.Role.String(), By: v1.BySession,
		EndsMS: x.ExpiresMS, Users: true})
	return nil
}

func (g sessions) endSession(w http.ResponseWriter, r *http.Request) error {
	id, ok := r.Context().Value(identityKey{}).(*auth.Identity)
	if ok {
		if x := g.cfg.Raft.State().Token(id.Token()); x != nil && x.Session() {
			if err := g.endToken(r.Context(), x.ID); err != nil {
				return err
			}
			g.cfg.Logger.Info("session ended", "request_id", rpc.RequestID(r.Context()), "principal", id.Name, "token", x.ID)
		}
	}
	http.SetCookie(w, g.sessionCookie(""))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// endToken removes a token; a missing one is not an error.
func (g sessions) endToken(ctx context.Context, id string) error {
	err := g.proposeToken(ctx, &statecontext.RemoveToken{ID: id})
	if errors.Is(err, errcode.UnknownToken) {
		return nil
	}
	return err
}

// proposeToken commits a change of tokens, without a request in the ledger.
func (g sessions) proposeToken(ctx context.Context, body statecontext.Body) error {
	res, err := g.cfg.Raft.Propose(ctx, statecontext.Command{Body: body})
	if err != nil {
		return err
	}
	return res.Err()
}
