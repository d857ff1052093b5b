// Package auth says who sends a request: by password (HTTP Basic), by token (Bearer) or by certificate, against the
// users and tokens of the StateContext.
//
// It promises that a password that was right is remembered for a short time, so that a hash is not paid for with every
// request, and no longer than the user stays as he is; that tries are counted before they are looked at, by user and
// address and by address, and answered without a look when there are too many, so that nobody is kept out by what other
// addresses do; that who is remembered or has a right token is never kept out; that a name that nobody has takes as
// long to refuse as one that somebody has; and that no secret appears in an error or a log. It never decides what a
// user may do: package api does.
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
	maxCached    = 4096 // passwords that were right
	hashesAtOnce = 2    // each takes a core for some 20 ms, and 19 MiB
	maxCounted   = 8192 // users and addresses whose failures are counted

	userBurst    = 20 // failures of a user from one address at once, then one in userPause
	userPause    = 3 * time.Second
	addressBurst = 60 // of an address
	addressPause = time.Second

	sessionBurst = 16 // sessions that a user begins at once, then one in sessionPause: each is written to the log
	sessionPause = 10 * time.Second
)

var (
	// ErrUnauthenticated is wrapped when credentials are missing, wrong, or have ended.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrTooMany is wrapped when a user or an address has failed too often.
	ErrTooMany = errors.New("too many failed logins")
	// ErrUnsure is wrapped when credentials may be newer than what is known.
	ErrUnsure = errors.New("credentials that are not known here, and may be new")
)

// Identity is who sends a request.
type Identity struct {
	Name string
	Role statecontext.UserRole // 0: no user
	// Node is set for a manager, projector or indexer that shows its certificate.
	Node *tlsconf.Peer

	user     string // of the cluster; "" for a certificate that is enough by itself
	modified uint64 // of the user then
	token    string // its id, if it was one
	hash     string // that the password matched, if it was one
	admin    *tlsconf.Peer
}

// Authenticator checks credentials. It is safe for use by several goroutines.
type Authenticator struct {
	state func() *statecontext.State
	now   func() time.Time
	dummy string // a hash that no password has
	salt  [32]byte
	slots *turns
	// failures of users and addresses.
	failures *failures
	begun    *failures // sessions of users, counted likewise; apart, so that neither pushes the other out

	mu     sync.Mutex
	cache  map[[32]byte]remembered
	checks map[check]*outcome
}

// check is a password that is being looked at: who sends many requests at once pays for one hash.
type check struct {
	key      [32]byte
	modified uint64 // of the user
	address  string
}

// outcome of a check; err is to be read when done is closed.
type outcome struct {
	done chan struct{}
	err  error
}

// remembered is a password that was right.
type remembered struct {
	modified uint64 // of the user then
	until    time.Time
}

// New makes an Authenticator of the users that state has; now is time.Now but for tests.
func New(state func() *statecontext.State, now func() time.Time) (*Authenticator, error) {
	a := &Authenticator{state: state, now: now, slots: newTurns(hashesAtOnce), cache: map[[32]byte]remembered{},
		checks: map[check]*outcome{}}
	if _, err := rand.Read(a.salt[:]); err != nil {
		return nil, fmt.Errorf("salt: %w", err)
	}
	a.failures, a.begun = newFailures(a.salt, now), newFailures(a.salt, now)
	a.dummy = nobodysHash()
	return a, nil
}

// Failure is the error of credentials that were looked at in vain, and counted. It wraps ErrUnauthenticated, or
// ErrTooMany where the count has no more room.
type Failure struct {
	err   error
	token bool   // it is of a token, which nobody guesses
	back  func() // takes back what was counted, once
}

// Error is what is told.
func (f *Failure) Error() string { return f.err.Error() }

// Unwrap returns ErrUnauthenticated or ErrTooMany with its words.
func (f *Failure) Unwrap() error { return f.err }

// IdentifyIn is Identify by a state that may lag: whom it refuses is looked at once more when catchUp has brought the
// state up to what was acknowledged when the request came; catchUp reports whether that is certain. What was refused by
// an older state does not count when a newer one knows better. Without certainty the answer is ErrUnsure, and what was
// tried of passwords counts, of names that there are as of others: else those would be told apart by who is kept out
// afterwards, and by how long an answer takes. Of somebody who was not known nothing counts when he is.
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

// refused reports whether a state speaks against credentials.
func refused(err error) bool { return errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrTooMany) }

// forgive takes back what a failure has counted; onlyToken: unless somebody may have guessed.
func forgive(err error, onlyToken bool) {
	var f *Failure
	if errors.As(err, &f) && f.back != nil && (f.token || !onlyToken) {
		f.back()
	}
}

// counted is under what tries of a user from an address are counted; u is the user, nil where there is none. Who was
// not known, or had another password, starts afresh when he is known as he is.
func counted(name, addr string, u *statecontext.User) string {
	who, modified := "user "+name+" from "+addr, uint64(0)
	if u != nil {
		modified = u.ModifiedCAS
	}
	return who + untold + strconv.FormatUint(modified, 10)
}

// Identify says who sends a request; nil for a request without any credentials. Errors wrap ErrUnauthenticated,
// ErrTooMany or the context's.
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
			return nil, fmt.Errorf("%w: the Authorization header is no HTTP Basic", ErrUnauthenticated)
		}
		return a.password(r.Context(), address(r), name, password)
	case scheme != "":
		return nil, fmt.Errorf("%w: Authorization wants Basic or Bearer", ErrUnauthenticated)
	case !shown:
		return nil, nil //nolint:nilnil // nobody in particular
	case peer.Role == tlsconf.Admin:
		return administrator(peer), nil
	case peer.Role != tlsconf.User:
		return nil, fmt.Errorf("%w: the certificate is for %s, and no user's", ErrUnauthenticated, peer)
	}
	if u := a.state().User(peer.ID); u != nil {
		return known(u), nil
	}
	return nil, fmt.Errorf("%w: the certificate is for user %q, whom this cluster does not have", ErrUnauthenticated,
		peer.ID)
}

// Differs reports whether whom a request's credentials name, user or token, is not what it was in an older state: who
// was refused by that one is worth another look.
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

// known is a user who has shown that he is.
func known(u *statecontext.User) *Identity {
	return &Identity{Name: u.Name, Role: u.Role, user: u.Name, modified: u.ModifiedCAS}
}

// byPassword is a user whose password was right.
func byPassword(u *statecontext.User) *Identity {
	id := known(u)
	id.hash = u.Hash
	return id
}

// Still reports whether somebody who was let in would be let in now just as he was: for requests that last.
func (a *Authenticator) Still(id *Identity) bool {
	if id.user == "" {
		return true // a certificate; its connection does not last
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

// BeginSession counts a session of a user, and returns how long he has to wait first; 0: he may begin one.
func (a *Authenticator) BeginSession(id *Identity) (wait time.Duration) {
	if a.begun.take(id.user, sessionBurst, sessionPause) != nil {
		return sessionPause
	}
	return 0
}

func (a *Authenticator) ended(x *statecontext.Token) bool {
	return x.ExpiresMS != 0 && x.ExpiresMS <= a.now().UnixMilli()
}

// address returns who is counted as one: an address, or the /64 of an IPv6 address, which is what one machine is given.
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

// errWrong says the same for every reason, so that nobody learns which names there are.
func errWrong() error {
	return fmt.Errorf("%w: user, password or token is wrong or has ended", ErrUnauthenticated)
}

// token looks a token up. A right one is never kept out: nobody guesses 32 random bytes, and wrong ones, of a program
// whose token has ended for instance, are no reason to refuse passwords from there.
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

// failed is the error of credentials that were wrong, and counted.
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
			continue // he who looked has gone
		}
		return nil, o.err
	}
}

// tryPassword pays for one look at a password.
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
		return err // it stays counted: else who gives up in time could try as often as he likes
	}
	right := len(password) <= MaxPassword && verifyPassword(hash, password)
	a.slots.leave()
	if !right || u == nil {
		return a.failed(false, who, from)
	}
	a.failures.giveBack(who, from)
	return nil
}

// cacheKey is of no use outside this process.
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
		clear(a.cache) // they come back one by one
	}
	a.cache[key] = remembered{modified: modified, until: a.now().Add(cacheTTL)}
}
