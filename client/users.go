package client

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"net/url"

	"tidemark/manager/api/v1"
	"tidemark/statecontext"
)

// Users lists the users.
func (c *Client) Users(ctx context.Context) ([]v1.UserInfo, error) {
	var list v1.UserList
	err := c.call(ctx, http.MethodGet, "/v1/users", nil, nil, &list)
	return list.Users, err
}

// PutUser adds or changes a user.
func (c *Client) PutUser(ctx context.Context, name string, req v1.UserRequest) (v1.UserInfo, error) {
	var info v1.UserInfo
	return info, c.call(ctx, http.MethodPut, "/v1/users/"+url.PathEscape(name), nil, req, &info)
}

// RemoveUser removes a user and the user's tokens.
func (c *Client) RemoveUser(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/users/"+url.PathEscape(name), nil, nil, nil)
}

// Tokens lists the tokens.
func (c *Client) Tokens(ctx context.Context) ([]v1.TokenInfo, error) {
	var list v1.TokenList
	err := c.call(ctx, http.MethodGet, "/v1/tokens", nil, nil, &list)
	return list.Tokens, err
}

// CreateToken creates a token and returns its secret, which cannot be retrieved later.
func (c *Client) CreateToken(ctx context.Context, req v1.TokenRequest) (v1.TokenInfo, string, error) {
	random := make([]byte, statecontext.TokenSecretBytes)
	_, _ = rand.Read(random) // crypto/rand.Read never fails
	req.Secret = statecontext.TokenPrefix + base64.RawURLEncoding.EncodeToString(random)
	var info v1.TokenInfo
	err := c.call(ctx, http.MethodPost, "/v1/tokens", nil, req, &info)
	return info, req.Secret, err
}

// RevokeToken revokes a token.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, nil, nil)
}

// WhoAmI returns the identity that the cluster assigns to this client.
func (c *Client) WhoAmI(ctx context.Context) (v1.WhoAmI, error) {
	var w v1.WhoAmI
	return w, c.call(ctx, http.MethodGet, "/v1/whoami", nil, nil, &w)
}
