// Package auth says who sends a request: by password (HTTP Basic), by token (Bearer) or by certificate, against the users
// and tokens of the StateContext.
//
// It promises that a password that was right is remembered for a short time, so that a hash is not paid for with every
// request, and no longer than the user stays as he is; that wrong ones are counted by user and by address and answered
// without being looked at when there are too many; that a name that nobody has takes as long to refuse as one that
// somebody has; and that no secret appears in an error or a log. It never decides what a user may do: package api does.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"tidemark/statecontext"
	"tidemark/tlsconf"
)

// Limits.
const (
	cacheTTL     = 5 * time.Minute
	maxCached    = 4096 // passwords that were right
	hashesAtOnce = 2    // each takes a core for some 20 ms, and 19 MiB
	maxCounted   = 8192 // users and addresses whose failures are counted

	userBurst    = 20 // failures of a user at once, then one in userPause
	userPause    = 3 * time.Second
	addressBurst = 60 // of an address
	addressPause = time.Second
)

var (
	// ErrUnauthenticated is wrapped when credentials are missing, wrong, or have ended.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrTooMany is wrapped when a user or an address has failed too often.
	ErrTooMany = errors.New("too many failed logins")
)

// Identity is who sends a request.
type Identity struct {
	Name string
	Role statecontext.UserRole // 0: no user
	// Node is set for a manager, projector or indexer that shows its certificate.
	Node *tlsconf.Peer
}

// Authenticator checks credentials. It is safe for use by several goroutines.
type Authenticator struct {
	state func() *statecontext.State
	now   func() time.Time
	dummy string // a hash that no password has
	salt  [32]byte
	slots chan struct{}

	mu       sync.Mutex
	cache    map[[32]byte]remembered
	failures map[string]*bucket
}

// remembered is a password that was right.
type remembered struct {
	modified uint64 // of the user then
	until    time.Time
}

// bucket counts failures; it leaks.
type bucket struct {
	level float64
	at    time.Time
}

// New makes an Authenticator of the users that state has; now is time.Now but for tests.
func New(state func() *statecontext.State, now func() time.Time) (*Authenticator, error) {
	a := &Authenticator{state: state, now: now, slots: make(chan struct{}, hashesAtOnce), cache: map[[32]byte]remembered{}, failures: map[string]*bucket{}}
	if _, err := rand.Read(a.salt[:]); err != nil {
		return nil, fmt.Errorf("salt: %w", err)
	}
	var err error
	a.dummy, err = HashPassword(rand.Text())
	return a, err
}

// Identify says who sends a request; nil for a request without any credentials. Errors wrap ErrUnauthenticated, ErrTooMany
// or the context's.
func (a *Authenticator) Identify(r *http.Request) (*Identity, error) {
	peer, shown := tlsconf.PeerOfRequest(r)
	if shown && (peer.Role == tlsconf.Manager || peer.Role == tlsconf.Projector || peer.Role == tlsconf.Indexer) {
		return &Identity{Name: string(peer.Role) + ":" + peer.ID, Node: &peer}, nil
	}
	scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		return a.token(r, strings.TrimSpace(rest))
	case strings.EqualFold(scheme, "Basic"):
		name, password, ok := r.BasicAuth()
		if !ok {
			return nil, fmt.Errorf("%w: the Authorization header is no HTTP Basic", ErrUnauthenticated)
		}
		return a.password(r.Context(), address(r), name, password)
	case scheme != "":
		return nil, fmt.Errorf("%w: Authorization wants Basic or Bearer", ErrUnauthenticated)
	case !shown:
		return nil, nil //nolint:nilnil // nobody in particular
	case peer.Role == tlsconf.Admin:
		return &Identity{Name: "admin:" + peer.ID, Role: statecontext.UserAdmin}, nil
	}
	if u := a.state().User(peer.ID); u != nil {
		return &Identity{Name: u.Name, Role: u.Role}, nil
	}
	return nil, fmt.Errorf("%w: the certificate is for user %q, whom this cluster does not have", ErrUnauthenticated, peer.ID)
}

func address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// errWrong says the same for every reason, so that nobody learns which names there are.
func errWrong() error {
	return fmt.Errorf("%w: user, password or token is wrong or has ended", ErrUnauthenticated)
}

func (a *Authenticator) token(r *http.Request, secret string) (*Identity, error) {
	from := "address " + address(r)
	if err := a.mayTry(from, addressBurst, addressPause); err != nil {
		return nil, err
	}
	s := a.state()
	hash, err := TokenHash(secret)
	x := s.TokenByHash(hash)
	if err != nil || x == nil || x.ExpiresMS != 0 && x.ExpiresMS <= a.now().UnixMilli() {
		a.failed(from)
		return nil, errWrong()
	}
	u := s.User(x.User)
	if u == nil {
		return nil, errWrong()
	}
	return &Identity{Name: u.Name, Role: min(u.Role, x.Role)}, nil
}

func (a *Authenticator) password(ctx context.Context, addr, name, password string) (*Identity, error) {
	u := a.state().User(name)
	key := a.cacheKey(name, password)
	if u != nil && a.known(key, u.ModifiedCAS) {
		return &Identity{Name: u.Name, Role: u.Role}, nil
	}
	who, from := "user "+name, "address "+addr
	if err := a.mayTry(who, userBurst, userPause); err != nil {
		return nil, err
	}
	if err := a.mayTry(from, addressBurst, addressPause); err != nil {
		return nil, err
	}
	hash := a.dummy
	if u != nil {
		hash = u.Hash
	}
	select {
	case a.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	right := len(password) <= MaxPassword && verifyPassword(hash, password)
	<-a.slots
	if !right || u == nil {
		a.failed(who)
		a.failed(from)
		return nil, errWrong()
	}
	a.remember(key, u.ModifiedCAS)
	return &Identity{Name: u.Name, Role: u.Role}, nil
}

// cacheKey is of no use outside this process.
func (a *Authenticator) cacheKey(name, password string) [32]byte {
	h := sha256.New()
	for _, part := range [...]string{string(a.salt[:]), name, "\x00", password} {
		_, _ = h.Write([]byte(part)) // a hash never fails
	}
	return [32]byte(h.Sum(nil))
}

func (a *Authenticator) known(key [32]byte, modified uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.cache[key]
	return ok && r.modified == modified && a.now().Before(r.until)
}

func (a *Authenticator) remember(key [32]byte, modified uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cache) >= maxCached {
		clear(a.cache) // they come back one by one
	}
	a.cache[key] = remembered{modified: modified, until: a.now().Add(cacheTTL)}
}

// mayTry refuses somebody who has failed too often.
func (a *Authenticator) mayTry(who string, burst float64, pause time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.failures[who]
	if b == nil {
		return nil
	}
	now := a.now()
	b.level = max(b.level-now.Sub(b.at).Seconds()/pause.Seconds(), 0)
	b.at = now
	if b.level == 0 {
		delete(a.failures, who)
	}
	if b.level > burst-1 {
		return fmt.Errorf("%w: %s; wait %s", ErrTooMany, who, pause)
	}
	return nil
}

func (a *Authenticator) failed(who string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.failures[who]
	if b == nil {
		if len(a.failures) >= maxCounted { // somebody tries many names from many addresses: let one go
			for other := range a.failures {
				delete(a.failures, other)
				break
			}
		}
		b = &bucket{at: a.now()}
		a.failures[who] = b
	}
	b.level++
}
