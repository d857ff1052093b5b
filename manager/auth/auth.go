// Package auth identifies the sender of a request: by password (HTTP Basic), by token (Bearer) or by certificate,
// against the users and tokens of the StateContext.
//
// A correct password is cached for a short time, so that not every request costs a hash, and only as long as the user
// does not change. Attempts are counted before they are verified, per user and address and per address, and rejected
// without verification when there are too many, so that no user is locked out by other addresses. Credentials that
// are cached, and valid tokens, are never locked out. Rejecting an unknown user name takes as long as rejecting a
// known one. No secret appears in an error or a log. The package never decides what a user may do: package api does.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// Limits.
const (
	cacheTTL     = 5 * time.Minute
	maxCached    = 4096 // correct passwords
	hashesAtOnce = 2    // each takes a core for about 20 ms, and 19 MiB
	maxCounted   = 8192 // users and addresses with counted failures

	userBurst    = 20 // failures of a user from one address at once, then one per userPause
	userPause    = 3 * time.Second
	addressBurst = 60 // failures of an address at once, then one per addressPause
	addressPause = time.Second

	sessionBurst = 16 // sessions that a user begins at once, then one per sessionPause: each is written to the log
	sessionPause = 10 * time.Second
)

var (
	// ErrUnauthenticated is wrapped if credentials are missing, wrong or expired.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrTooMany is wrapped if a user or an address has failed too often.
	ErrTooMany = errors.New("too many failed logins")
	// ErrUnsure is wrapped if the credentials may be newer than the state of this manager.
	ErrUnsure = errors.New("unknown credentials, which may be newer than this manager's state")
)

// Identity is the authenticated sender of a request.
type Identity struct {
	Name string
	Role statecontext.UserRole // 0: not a user
	// Node is set if a manager, projector or indexer presents its certificate.
	Node *tlsconf.Peer

	user     string // user of the cluster; "" for a certificate that suffices by itself
	modified uint64 // version of the user at that time
	token    string // id of the token, if one was used
	hash     string // hash that the password matched, if one was used
	admin    *tlsconf.Peer
}

// Authenticator checks credentials. It is safe for concurrent use.
type Authenticator struct {
	state func() *statecontext.State
	now   func() time.Time
	dummy string // a hash that matches no password
	salt  [32]byte
	slots *turns
	// failures counts failures of users and addresses.
	failures *failures
	begun    *failures // sessions of users, counted alike; separate, so that neither evicts entries of the other

	mu     sync.Mutex
	cache  map[[32]byte]remembered
	checks map[check]*outcome
}

// check is a password verification in progress: many concurrent requests with one password share one hash.
type check struct {
	key      [32]byte
	modified uint64 // version of the user
	address  string
}

// outcome is the result of a check; err may be read once done is closed.
type outcome struct {
	done chan struct{}
	err  error
}

// remembered is a cached correct password.
type remembered struct {
	modified uint64 // version of the user at that time
	until    time.Time
}

// New returns an Authenticator for the users in state; now is time.Now except in tests.
func New(state func() *statecontext.State, now func() time.Time) (*Authenticator, error) {
	a := &Authenticator{state: state, now: now, slots: newTurns(hashesAtOnce), cache: map[[32]byte]remembered{},
		checks: map[check]*outcome{}}
	if _, err := rand.Read(a.salt[:]); err != nil {
		return nil, fmt.Errorf("salt: %w", err)
	}
	a.failures, a.begun = newFailures(a.salt, now), newFailures(a.salt, now)
	a.dummy = dummyHash()
	return a, nil
}

// Failure is the error for credentials that were verified, found wrong, and counted. It wraps ErrUnauthenticated, or
// ErrTooMany if the count is at its limit.
type Failure struct {
	err   error
	token bool   // for a token, which cannot be guessed
	back  func() // takes the count back, once
}

// Error returns the text for the client.
func (f *Failure) Error() string { return f.err.Error() }

// Unwrap returns the error that wraps ErrUnauthenticated or ErrTooMany.
func (f *Failure) Unwrap() error { return f.err }

// IdentifyIn is Identify on a state that may lag. If that state rejects the credentials, they are checked again after
// catchUp has brought the state up to what was acknowledged when the request came; catchUp reports whether that is
// certain. A rejection by an older state does not count if a newer one accepts the credentials. Without certainty the
// error is ErrUnsure, and failed passwords count, for existing user names as for others: otherwise lockouts, and the
// time of the answer, would reveal which names exist. Failures counted for a name before its user became known do not
// count afterwards.
func (a *Authenticator) IdentifyIn(r *http.Request, catchUp func() (certain bool)) (*Identity, error) {
	before := a.state()
	id, err := a.Identify(r)
	if !refused(err) {
		return id, err
	}
	certain := catchUp()
	if a.Differs(r, before) {
		forgive(err, false)
		id, err = a.Identify(r)
	}
	if !refused(err) || certain {
		return id, err
	}
	forgive(err, true)
	return nil, ErrUnsure
}

// refused reports whether the state contradicts the credentials.
func refused(err error) bool { return errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrTooMany) }

// forgive takes back the count of a failure; with onlyToken only if it cannot have been a guess.
func forgive(err error, onlyToken bool) {
	var f *Failure
	if errors.As(err, &f) && f.back != nil && (f.token || !onlyToken) {
		f.back()
	}
}

// counted returns the key under which attempts for a user name from an address are counted; u is nil if there is no
// such user. The key changes with the version of the user, so the count starts at zero when the user is created or
// gets another password.
func counted(name, addr string, u *statecontext.User) string {
	who, modified := "user "+name+" from "+addr, uint64(0)
	if u != nil {
		modified = u.ModifiedCAS
	}
	return who + hiddenMark + strconv.FormatUint(modified, 10)
}

// Identify returns the sender of a request, or nil for a request without credentials. Errors wrap ErrUnauthenticated,
// ErrTooMany or the context's error.
func (a *Authenticator) Identify(r *http.Request) (*Identity, error) {
	peer, shown := tlsconf.PeerOfRequest(r)
	if shown && (peer.Role == tlsconf.Manager || peer.Role == tlsconf.Projector || peer.Role == tlsconf.Indexer) {
		return component(peer), nil
	}
	scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		return a.token(r, strings.TrimSpace(rest))
	case strings.EqualFold(scheme, "Basic"):
		name, password, ok := r.BasicAuth()
		if !ok {
			return nil, fmt.Errorf("%w: the Authorization header is not valid HTTP Basic", ErrUnauthenticated)
		}
		return a.password(r.Context(), address(r), name, password)
	case scheme != "":
		return nil, fmt.Errorf("%w: the Authorization header needs Basic or Bearer", ErrUnauthenticated)
	case !shown:
		return nil, nil //nolint:nilnil // anonymous
	case peer.Role == tlsconf.Admin:
		return administrator(peer), nil
	case peer.Role != tlsconf.User:
		return nil, fmt.Errorf("%w: the certificate is for %s, not for a user", ErrUnauthenticated, peer)
	}
	if u := a.state().User(peer.ID); u != nil {
		return known(u), nil
	}
	return nil, fmt.Errorf("%w: the certificate is for user %q, which this cluster does not have", ErrUnauthenticated,
		peer.ID)
}

// Differs reports whether the user or token that the request's credentials name differs between the older state and
// the present one, so that a rejection by the older one should be checked again.
func (a *Authenticator) Differs(r *http.Request, before *statecontext.State) bool {
	now := a.state()
	scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		hash, err := TokenHash(strings.TrimSpace(rest))
		return err == nil && (before.TokenByHash(hash) == nil) != (now.TokenByHash(hash) == nil)
	}
	name, _, ok := r.BasicAuth()
	if peer, shown := tlsconf.PeerOfRequest(r); !ok && shown && peer.Role == tlsconf.User {
		name = peer.ID
	}
	was, is := before.User(name), now.User(name)
	return (was == nil) != (is == nil) || was != nil && was.ModifiedCAS != is.ModifiedCAS
}

// known returns the identity of an authenticated user.
func known(u *statecontext.User) *Identity {
	return &Identity{Name: u.Name, Role: u.Role, user: u.Name, modified: u.ModifiedCAS}
}

// byPassword returns the identity of a user with a correct password.
func byPassword(u *statecontext.User) *Identity {
	id := known(u)
	id.hash = u.Hash
	return id
}

// Still reports whether an identity would be accepted now exactly as it was: for requests that last.
func (a *Authenticator) Still(id *Identity) bool {
	if id.user == "" {
		return true // a certificate; its connection does not live long
	}
	s := a.state()
	if u := s.User(id.user); u == nil || u.ModifiedCAS != id.modified {
		return false
	}
	if id.token == "" {
		return true
	}
	x := s.Token(id.token)
	return x != nil && x.User == id.user && !a.ended(x)
}

// BeginSession counts a session of a user. It returns how long the user has to wait before beginning one, 0 for no
// wait.
func (a *Authenticator) BeginSession(id *Identity) (wait time.Duration) {
	if a.begun.take(id.user, sessionBurst, sessionPause) != nil {
		return sessionPause
	}
	return 0
}

func (a *Authenticator) ended(x *statecontext.Token) bool {
	return x.ExpiresMS != 0 && x.ExpiresMS <= a.now().UnixMilli()
}

// address returns the key under which a remote address is counted: the address itself, or the /64 of an IPv6 address,
// which is what one machine usually has.
func address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap(); ip.Is6() {
		if net, err := ip.WithZone("").Prefix(64); err == nil {
			return net.String()
		}
	}
	return ip.String()
}

// errWrong returns the same error for every reason, so that it does not reveal which names exist.
func errWrong() error {
	return fmt.Errorf("%w: the user, password or token is wrong or has expired", ErrUnauthenticated)
}

// token looks up a token. A valid one is never locked out: 32 random bytes cannot be guessed. Invalid tokens, for
// instance of a program whose token has expired, are no reason to reject passwords from the same address.
func (a *Authenticator) token(r *http.Request, secret string) (*Identity, error) {
	s := a.state()
	hash, err := TokenHash(secret)
	if x := s.TokenByHash(hash); err == nil && x != nil && !a.ended(x) {
		if u := s.User(x.User); u != nil {
			id := known(u)
			id.Role, id.token = min(u.Role, x.Role), x.ID
			return id, nil
		}
	}
	who := "tokens from " + address(r)
	if err := a.failures.take(who, addressBurst, addressPause); err != nil {
		return nil, &Failure{err: err, token: true}
	}
	return nil, a.failed(true, who)
}

// failed returns the error for credentials that were wrong and counted.
func (a *Authenticator) failed(token bool, who ...string) error {
	return &Failure{err: errWrong(), token: token, back: sync.OnceFunc(func() { a.failures.giveBack(who...) })}
}

func (a *Authenticator) password(ctx context.Context, addr, name, password string) (*Identity, error) {
	u, modified := a.state().User(name), uint64(0)
	key := a.cacheKey(name, password)
	if u != nil {
		if modified = u.ModifiedCAS; a.remembers(key, modified) {
			return byPassword(u), nil
		}
	}
	c := check{key: key, modified: modified, address: addr}
	for {
		a.mu.Lock()
		o, others := a.checks[c]
		if !others {
			o = &outcome{done: make(chan struct{})}
			a.checks[c] = o
		}
		a.mu.Unlock()
		if !others {
			o.err = a.tryPassword(ctx, addr, name, password, u)
			if o.err == nil {
				a.remember(key, modified)
			}
			a.mu.Lock()
			delete(a.checks, c)
			a.mu.Unlock()
			close(o.done)
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		switch {
		case o.err == nil:
			return byPassword(u), nil
		case others && !errors.Is(o.err, ErrUnauthenticated) && !errors.Is(o.err, ErrTooMany):
			continue // the request that verified it was cancelled
		}
		return nil, o.err
	}
}

// tryPassword verifies a password once, at the cost of one hash.
func (a *Authenticator) tryPassword(ctx context.Context, addr, name, password string, u *statecontext.User) error {
	who, from := counted(name, addr, u), "address "+addr
	if err := a.failures.take(from, addressBurst, addressPause); err != nil {
		return err
	}
	if err := a.failures.take(who, userBurst, userPause); err != nil {
		a.failures.giveBack(from)
		return err
	}
	hash := a.dummy
	if u != nil {
		hash = u.Hash
	}
	if err := a.slots.enter(ctx, addr); err != nil {
		return err // it stays counted: otherwise requests cancelled in time could try without limit
	}
	right := len(password) <= MaxPassword && verifyPassword(hash, password)
	a.slots.leave()
	if !right || u == nil {
		return a.failed(false, who, from)
	}
	a.failures.giveBack(who, from)
	return nil
}

// cacheKey returns the key of a password in the cache. Its salt makes it useless outside this process.
func (a *Authenticator) cacheKey(name, password string) [32]byte {
	h := sha256.New()
	for _, part := range [...]string{string(a.salt[:]), name, "\x00", password} {
		_, _ = h.Write([]byte(part)) // a hash never fails
	}
	return [32]byte(h.Sum(nil))
}

func (a *Authenticator) remembers(key [32]byte, modified uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.cache[key]
	return ok && r.modified == modified && a.now().Before(r.until)
}

func (a *Authenticator) remember(key [32]byte, modified uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cache) >= maxCached {
		clear(a.cache) // passwords are cached again one by one
	}
	a.cache[key] = remembered{modified: modified, until: a.now().Add(cacheTTL)}
}
