package server

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/xdg-go/scram"

	"tidemark/kv/access"
)

// Mechanisms by their names on the wire.
const (
	mechSHA1   = "SCRAM-SHA1"
	mechSHA256 = "SCRAM-SHA256"
	mechSHA512 = "SCRAM-SHA512"
	mechPlain  = "PLAIN"

	scramNonceBytes = 18
)

var errScram = errors.New("authentication failed")

// maxChecks is how many passwords are checked at a time.
const maxChecks = 16

// authenticator knows the configured user of a node, and the cluster's users.
type authenticator struct {
	user, password string
	users          func() *access.Directory
	random         func([]byte)  // fills with random bytes
	decoy          []byte        // the secret for salts as long as the cluster has none
	checks         chan struct{} // a place for each password that is being checked: that takes a processor milliseconds

	mu     sync.Mutex
	own    map[string]access.Key // of the configured user, by mechanism, once they are derived
	ownFor []byte                // the secret that their salts are made from
}

func newAuthenticator(user, password string, users func() *access.Directory, random func([]byte)) *authenticator {
	a := &authenticator{user: user, password: password, users: users, random: random,
		decoy: make([]byte, sha256.Size), checks: make(chan struct{}, maxChecks)}
	random(a.decoy)
	return a
}

// secret is what the salts of users are made from that there are not, and those of the configured one: on all nodes the
// same, and over their restarts, so that no salt tells who there is.
func (a *authenticator) secret() []byte {
	if s := a.users().Secret(); s != nil {
		return s
	}
	return a.decoy
}

// ownKey is that of the configured user for a mechanism. It is derived when the mechanism is first asked for: most
// nodes are only ever asked for one, and each takes a processor milliseconds.
func (a *authenticator) ownKey(mech string, hash scram.HashGeneratorFcn) (access.Key, error) {
	secret := a.secret()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.own == nil || !bytes.Equal(a.ownFor, secret) {
		a.own, a.ownFor = map[string]access.Key{}, secret
	}
	key, known := a.own[mech]
	if known {
		return key, nil
	}
	key, err := access.DeriveOne(hash, a.password, saltOf(secret, mech, a.user))
	if err == nil {
		a.own[mech] = key
	}
	return key, err
}

// saltOf is the salt of a user that there is not, or of the configured one.
func saltOf(secret []byte, mech, user string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(mech + " " + user))
	return h.Sum(nil)[:access.SaltBytes]
}

func (a *authenticator) mechanisms(plain bool) string {
	list := strings.Join([]string{mechSHA512, mechSHA256, mechSHA1}, " ")
	if plain {
		list += " " + mechPlain
	}
	return list
}

// hashOf is the hash of a mechanism of SCRAM; false for an unknown mechanism.
func hashOf(mech string) (hash scram.HashGeneratorFcn, ok bool) {
	switch mech {
	case mechSHA1:
		return scram.SHA1, true
	case mechSHA256:
		return scram.SHA256, true
	case mechSHA512:
		return scram.SHA512, true
	}
	return nil, false
}

// lookup returns what is kept of a user's password for a mechanism (RFC 5802), and whether there is such a user.
func (a *authenticator) lookup(mech string, hash scram.HashGeneratorFcn, user string) (c scram.StoredCredentials,
	known bool, err error) {
	key, rounds := access.Key{}, access.Iterations
	switch u := a.users().Find(user); {
	case a.configured(user):
		if key, err = a.ownKey(mech, hash); err != nil {
			return c, false, err
		}
	case u != nil:
		key, rounds = keyFor(mech, u.Keys), u.Keys.Iterations
	default:
		return a.madeUp(mech, hash, user), false, nil
	}
	return scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: string(key.Salt), Iters: rounds},
		StoredKey: key.Stored, ServerKey: key.Server}, true, nil
}

// keyFor is the one of a user's keys that a mechanism takes.
func keyFor(mech string, keys access.Keys) access.Key {
	switch mech {
	case mechSHA1:
		return keys.SHA1
	case mechSHA256:
		return keys.SHA256
	}
	return keys.SHA512
}

// madeUp are credentials of a user that there is not, always the same, which nobody can prove to have.
func (a *authenticator) madeUp(mech string, hash scram.HashGeneratorFcn, user string) scram.StoredCredentials {
	return scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: string(saltOf(a.secret(), mech, user)),
		Iters: access.Iterations}, StoredKey: make([]byte, hash().Size()), ServerKey: make([]byte, hash().Size())}
}

// configured reports whether that is the user of the node's configuration, who comes before all others.
func (a *authenticator) configured(user string) bool {
	return subtle.ConstantTimeCompare([]byte(user), []byte(a.user)) == 1
}

// plain checks a PLAIN response: authorization id, user and password divided by zero bytes. It returns the user.
func (a *authenticator) plain(message []byte) (user string, ok bool) {
	parts := strings.Split(string(message), "\x00")
	if len(parts) != 3 {
		return "", false
	}
	user = parts[1]
	if a.configured(user) && subtle.ConstantTimeCompare([]byte(parts[2]), []byte(a.password)) == 1 {
		return user, true
	}
	keys := access.Keys{Iterations: access.Iterations} // nobody's: it takes as long where there is no such user
	if u := a.users().Find(user); u != nil && !a.configured(user) {
		keys = u.Keys
	}
	a.checks <- struct{}{}
	defer func() { <-a.checks }()
	return user, keys.Know(parts[2])
}

// login is the SASL conversation of one connection. Whoever it lets in has shown that he knows user and password, by
// one mechanism from its first message to its last.
type login struct {
	auth *authenticator
	open *exchange // that SASL_STEP goes on with
	user string    // who was let in last
}

// start takes SASL_AUTH, which gives up what went before. The client is in, or his mechanism goes on with answer; plain
// says whether he may send his password as it is.
func (l *login) start(mech string, message []byte, plain bool) (answer []byte, in bool, err error) {
	l.open = nil
	if mech == mechPlain {
		if !plain {
			return nil, false, errScram
		}
		user, ok := l.auth.plain(message)
		if !ok {
			return nil, false, errScram
		}
		l.user = user
		return nil, true, nil
	}
	l.open, answer, err = l.auth.begin(mech, message)
	return answer, false, err
}

// step takes SASL_STEP: without an error the client is in, and answer is the server's proof. There is no second try.
func (l *login) step(message []byte) (answer []byte, err error) {
	x := l.open
	if x == nil {
		return nil, fmt.Errorf("%w: SASL_STEP without SASL_AUTH", errScram)
	}
	l.open = nil
	if answer, err = x.finish(message); err == nil {
		l.user = x.user
	}
	return answer, err
}

// exchange is one SCRAM conversation, server side, in the library's hands.
type exchange struct {
	talk      *scram.ServerConversation
	user      string
	knownUser bool
}

// begin answers the client's first message. The library would tell a stranger at once that nobody has that name: here
// everybody gets a challenge, and is refused in the end.
func (a *authenticator) begin(mech string, message []byte) (*exchange, []byte, error) {
	hash, ok := hashOf(mech)
	if !ok {
		return nil, nil, fmt.Errorf("%w: mechanism %q is not offered", errScram, mech)
	}
	x := &exchange{}
	server, err := hash.NewServer(func(user string) (c scram.StoredCredentials, err error) {
		x.user = user
		c, x.knownUser, err = a.lookup(mech, hash, user)
		return c, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errScram, err)
	}
	nonce := a.nonce()
	x.talk = server.WithNonceGenerator(func() string { return nonce }).NewConversation()
	answer, err := x.talk.Step(string(message))
	switch {
	case err != nil: // whose text has pieces of the message, which may be a password: it goes to no log
		return nil, nil, fmt.Errorf("%w: no first message of SCRAM without channel binding", errScram)
	case x.talk.AuthzID() != "":
		return nil, nil, fmt.Errorf("%w: authorization ids are not supported", errScram)
	case strings.HasPrefix(answer, "r="+nonce+","): // ours alone
		return nil, nil, fmt.Errorf("%w: no nonce", errScram)
	}
	return x, []byte(answer), nil
}

func (a *authenticator) nonce() string {
	b := make([]byte, scramNonceBytes)
	a.random(b)
	return base64.StdEncoding.EncodeToString(b)
}

// finish checks the client's proof and returns the server's own.
func (x *exchange) finish(message []byte) ([]byte, error) {
	answer, err := x.talk.Step(string(message))
	if err != nil || !x.knownUser {
		return nil, fmt.Errorf("%w: wrong user or password, or no proof", errScram)
	}
	return []byte(answer), nil
}
