package managerclient

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Bounds of token checks and of their cache.
const (
	tokenGood    = 4 * time.Second // how long a valid token is cached
	tokensKept   = 64
	tokensAtOnce = 16
	tokenWait    = 2 * time.Second
	maxToken     = 200 // bytes
)

var errTokens = errors.New("the token of a user of the cluster is accepted as well")

// tokens caches the tokens that managers have recently found valid.
type tokens struct {
	trust  time.Duration // tokenGood, except in tests
	asking *rpc.Places   // limits checks per host, so that no host can use all of them

	mu   sync.Mutex // leaf
	good map[[32]byte]time.Time
}

// OrToken extends a check of certificates: it also accepts a request with a token (Authorization: Bearer) of a user
// who may read metrics, which a manager verifies. Without TLS only check decides.
func (c *Client) OrToken(check func(r *http.Request) error) func(r *http.Request) error {
	return func(r *http.Request) error {
		err := check(r)
		if err == nil || r.TLS == nil {
			return err
		}
		scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || secret == "" {
			return fmt.Errorf("%w; %w", err, errTokens)
		}
		return c.checkToken(r.Context(), strings.TrimSpace(secret), r.RemoteAddr)
	}
}

func (c *Client) checkToken(ctx context.Context, secret, remote string) error {
	if len(secret) > maxToken {
		return fmt.Errorf("a token of %d bytes is not valid", len(secret))
	}
	key := sha256.Sum256([]byte(secret))
	if c.tokens.known(key, time.Now()) {
		return nil
	}
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return fmt.Errorf("address %q: %w", remote, err)
	}
	if err := c.tokens.asking.Enter(host); err != nil {
		return err
	}
	defer c.tokens.asking.Leave(host)
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	resp := new(wire.TokenChecked)
	err = c.do(ctx, http.MethodPost, wire.TokenCheckPath, 0, wire.TokenCheck{Token: secret, Remote: remote}, resp)
	var p *rpc.Problem
	switch {
	case errors.As(err, &p) && (p.Code == errcode.Unauthenticated || p.Code == errcode.Forbidden):
		return errors.New(p.Detail)
	case err != nil:
		return fmt.Errorf("no manager could check the token: %w", err)
	}
	c.tokens.note(key, time.Now())
	return nil
}

// known reports whether a manager has recently found a token valid.
func (t *tokens) known(key [32]byte, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Before(t.good[key])
}

// note records that a token is valid.
func (t *tokens) note(key [32]byte, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, until := range t.good {
		if !now.Before(until) {
			delete(t.good, k)
		}
	}
	if t.good == nil {
		t.good = map[[32]byte]time.Time{}
	}
	if len(t.good) < tokensKept {
		t.good[key] = now.Add(t.trust)
	}
}
