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

// Bounds of what is asked and kept of tokens.
const (
	tokenGood    = 4 * time.Second // for which a good one is believed
	tokensKept   = 64
	tokensAtOnce = 16
	tokenWait    = 2 * time.Second
	maxToken     = 200 // bytes
)

var errTokens = errors.New("a token of a user whom the managers know does as well")

// tokens are those that managers have called good lately.
type tokens struct {
	trust  time.Duration // tokenGood, but for tests
	asking *rpc.Places   // by host: none takes all

	mu   sync.Mutex // leaf
	good map[[32]byte]time.Time
}

// OrToken makes of a check of certificates one that a request also passes which shows a token, Authorization: Bearer,
// of somebody who may read metrics: a manager is asked. Without TLS the check alone counts.
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
		return fmt.Errorf("a token of %d bytes is none", len(secret))
	}
	key := sha256.Sum256([]byte(secret))
	if c.tokens.known(key, time.Now()) {
		return nil
	}
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return fmt.Errorf("the address %q: %w", remote, err)
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
		return fmt.Errorf("no manager says whether the token is good: %w", err)
	}
	c.tokens.note(key, time.Now())
	return nil
}

// known reports whether a manager has called a token good lately.
func (t *tokens) known(key [32]byte, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Before(t.good[key])
}

// note keeps that a token is good.
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
