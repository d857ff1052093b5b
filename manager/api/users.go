package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/auth"
	"tidemark/statecontext"
)

const tagUsers = "Users"

func (g users) userRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/users", handle: g.listUsers, role: RoleAdmin, leader: true, limit: v1.ReadTimeout,
			doc: operation{
				id: "listUsers", tag: tagUsers, summary: "List the users",
				answers: []answer{{status: 200, means: "the users by name", body: v1.UserList{}}}}},
		{method: "PUT", path: "/v1/users/{name}", handle: g.putUser, role: RoleAdmin, leader: true, limit: v1.WriteTimeout,
			doc: operation{
				id: "putUser", tag: tagUsers, summary: "Add a user, or change the role or password of one",
				headers: []string{HeaderKey}, body: v1.UserRequest{},
				answers: []answer{{status: 200, means: "the user after the change", body: v1.UserInfo{}}},
				codes: []errcode.Code{errcode.UserExists, errcode.UnknownUser, errcode.LastAdmin,
					errcode.LimitExceeded}}},
		{method: "DELETE", path: "/v1/users/{name}", handle: g.removeUser, role: RoleAdmin, leader: true,
			limit: v1.WriteTimeout,
			doc: operation{
				id: "removeUser", tag: tagUsers, summary: "Remove a user and the user's tokens", headers: []string{HeaderKey},
				answers: []answer{{status: 204, means: "removed"}},
				codes:   []errcode.Code{errcode.UnknownUser, errcode.LastAdmin}}},
		{method: "GET", path: "/v1/tokens", handle: g.listTokens, role: RoleAdmin, leader: true, limit: v1.ReadTimeout,
			doc: operation{
				id: "listTokens", tag: tagUsers, summary: "List the tokens, without their secrets",
				answers: []answer{{status: 200, means: "the tokens by id", body: v1.TokenList{}}}}},
		{method: "POST", path: "/v1/tokens", handle: g.createToken, role: RoleAdmin, leader: true, limit: v1.WriteTimeout,
			doc: operation{
				id: "createToken", tag: tagUsers, summary: "Create a token from a secret that the caller has chosen: tmt_ and 32 " +
					"random bytes in base64url",
				headers: []string{HeaderKey}, body: v1.TokenRequest{},
				answers: []answer{{status: 201, means: "made", body: v1.TokenInfo{}}},
				codes: []errcode.Code{errcode.UnknownUser, errcode.TokenExists,
					errcode.UnknownToken,
					errcode.LimitExceeded}}},
		{method: "DELETE", path: "/v1/tokens/{id}", handle: g.removeToken, role: RoleAdmin, leader: true,
			limit: v1.WriteTimeout,
			doc: operation{
				id: "revokeToken", tag: tagUsers, summary: "Revoke a token", headers: []string{HeaderKey},
				answers: []answer{{status: 204, means: "revoked"}},
				codes:   []errcode.Code{errcode.UnknownToken}}},
	}
}

func userInfo(u *statecontext.User) v1.UserInfo {
	return v1.UserInfo{Name: u.Name, Role: u.Role.String(), ModifiedCAS: u.ModifiedCAS}
}

func tokenInfo(x *statecontext.Token) v1.TokenInfo {
	return v1.TokenInfo{ID: x.ID, User: x.User, Role: x.Role.String(), Note: x.Note, CreatedMS: x.CreatedMS,
		ExpiresMS: x.ExpiresMS}
}

func (g users) listUsers(w http.ResponseWriter, r *http.Request) error {
	if err := g.catchUp(r.Context()); err != nil {
		return err
	}
	list := v1.UserList{Users: []v1.UserInfo{}}
	for u := range g.cfg.Raft.State().Users() {
		list.Users = append(list.Users, userInfo(u))
	}
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

func (g users) listTokens(w http.ResponseWriter, r *http.Request) error {
	if err := g.catchUp(r.Context()); err != nil {
		return err
	}
	list := v1.TokenList{Tokens: []v1.TokenInfo{}}
	for x := range g.cfg.Raft.State().Tokens() {
		list.Tokens = append(list.Tokens, tokenInfo(x))
	}
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

// propose commits a change of users; meaning identifies the request for its Idempotency-Key, without secrets.
func (g users) propose(r *http.Request, meaning any, body statecontext.Body) error {
	sent, err := json.Marshal(meaning) // not the body: a hash of a password must not be stored
	if err != nil {
		return fmt.Errorf("hashing the request: %w", err)
	}
	req, err := request(r, 0, sent)
	if err != nil {
		return err
	}
	res, err := g.cfg.Raft.Propose(r.Context(), statecontext.Command{Request: req, Body: body})
	if err != nil {
		return err
	}
	return res.Err()
}

func (g users) putUser(w http.ResponseWriter, r *http.Request) error {
	var body v1.UserRequest
	if err := rpc.Read(r, &body); err != nil {
		return err
	}
	name := r.PathValue("name")
	if name == rpc.Anonymous {
		return rpc.Refuse(errcode.InvalidArgument, "user name %q is reserved for requests without credentials",
			name)
	}
	c := &statecontext.PutUser{Mode: statecontext.PutChange, Name: name}
	if body.New {
		c.Mode = statecontext.PutNew
	}
	var err error
	if body.Role != "" {
		if c.Role, err = statecontext.ParseUserRole(body.Role); err != nil {
			return rpc.Refuse(errcode.BadRequest, "%v", err)
		}
	}
	if body.Password != "" {
		if c.Hash, err = auth.HashPassword(body.Password); err != nil {
			return rpc.Refuse(errcode.BadRequest, "%v", err)
		}
	}
	body.Password = "" // a fast hash of it must not be stored
	if err := g.propose(r, []any{name, body, c.Hash != ""}, c); err != nil {
		return err
	}
	u := g.cfg.Raft.State().User(name)
	if u == nil {
		return rpc.Refuse(errcode.UnknownUser, "user %q was removed meanwhile", name)
	}
	rpc.Write(w, r, http.StatusOK, userInfo(u))
	return nil
}

func (g users) removeUser(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if err := g.propose(r, name, &statecontext.RemoveUser{Name: name}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (g users) createToken(w http.ResponseWriter, r *http.Request) error {
	var body v1.TokenRequest
	if err := rpc.Read(r, &body); err != nil {
		return err
	}
	hash, err := auth.TokenHash(body.Secret)
	if err != nil {
		return rpc.Refuse(errcode.BadRequest, "secret: %v", err)
	}
	u := g.cfg.Raft.State().User(body.User)
	if u == nil {
		return rpc.Refuse(errcode.UnknownUser, "there is no user %q", body.User)
	}
	if body.Note == statecontext.SessionNote {
		return rpc.Refuse(errcode.BadRequest, "note: %q is reserved for sessions, the oldest of which end when there are "+
			"many", body.Note)
	}
	c := &statecontext.PutToken{Token: statecontext.Token{User: body.User, Role: u.Role, Hash: hash, Note: body.Note,
		CreatedMS: g.now().UnixMilli(),
		ExpiresMS: body.ExpiresMS}}
	if body.Role != "" {
		if c.Token.Role, err = statecontext.ParseUserRole(body.Role); err != nil {
			return rpc.Refuse(errcode.BadRequest, "%v", err)
		}
	}
	if err := g.propose(r, body, c); err != nil {
		return err
	}
	x := g.cfg.Raft.State().TokenByHash(hash)
	if x == nil {
		return rpc.Refuse(errcode.UnknownToken, "the token was revoked meanwhile")
	}
	rpc.Write(w, r, http.StatusCreated, tokenInfo(x))
	return nil
}

func (g users) removeToken(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if strings.HasPrefix(id, statecontext.TokenPrefix) {
		return rpc.Refuse(errcode.BadRequest, "this is a token's secret, which is now in logs and no longer secret; GET "+
			"/v1/tokens lists the ids of all tokens: revoke it by its id")
	}
	if err := g.propose(r, id, &statecontext.RemoveToken{ID: id}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
