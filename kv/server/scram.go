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

// Mechanisms with their names in the protocol.
const (
	mechSHA1   = "SCRAM-SHA1"
	mechSHA256 = "SCRAM-SHA256"
	mechSHA512 = "SCRAM-SHA512"
	mechPlain  = "PLAIN"

	scramNonceBytes = 18
)

var errScram = errors.New("authentication failed")

// maxChecks is the maximum number of concurrent password checks.
const maxChecks = 16

// authenticator verifies the configured user of a node and the cluster's users.
type authenticator struct {
	user, password string
	users          func() *access.Directory
	random         func([]byte)  // fills a slice with random bytes
	decoy          []byte        // the secret for salts while the cluster has none
	checks         chan struct{} // a slot per password check, each of which takes some milliseconds of processor time

	mu     sync.Mutex
	own    map[string]access.Key // keys of the configured user by mechanism, derived on demand
	ownFor []byte                // the secret from which their salts were made
}

func newAuthenticator(user, password string, users func() *access.Directory, random func([]byte)) *authenticator {
	a := &authenticator{user: user, password: password, users: users, random: random,
		decoy: make([]byte, sha256.Size), checks: make(chan struct{}, maxChecks)}
	random(a.decoy)
	return a
}

// secret returns the secret from which the salts of unknown users and of the configured one are derived. It is the
// same on all nodes and across restarts, so that a salt does not reveal which users exist.
func (a *authenticator) secret() []byte {
	if s := a.users().Secret(); s != nil {
		return s
	}
	return a.decoy
}

// ownKey returns the configured user's key for a mechanism. It is derived at the first use of the mechanism: most
// nodes need only one, and each takes some milliseconds of processor time.
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

// saltOf returns the salt of an unknown user or of the configured one.
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

// hashOf returns the hash of a SCRAM mechanism; ok is false for an unknown mechanism.
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

// lookup returns a user's stored credentials for a mechanism (RFC 5802), and whether the user exists.
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
		return a.dummyCredentials(mech, hash, user), false, nil
	}
	return scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: string(key.Salt), Iters: rounds},
		StoredKey: key.Stored, ServerKey: key.Server}, true, nil
}

// keyFor returns the one of a user's keys that a mechanism uses.
func keyFor(mech string, keys access.Keys) access.Key {
	switch mech {
	case mechSHA1:
		return keys.SHA1
	case mechSHA256:
		return keys.SHA256
	}
	return keys.SHA512
}

// dummyCredentials returns constant credentials for an unknown user, which no client can prove to have.
func (a *authenticator) dummyCredentials(mech string, hash scram.HashGeneratorFcn,
	user string) scram.StoredCredentials {
	return scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: string(saltOf(a.secret(), mech, user)),
		Iters: access.Iterations}, StoredKey: make([]byte, hash().Size()), ServerKey: make([]byte, hash().Size())}
}

// configured reports whether user is the user of the node's configuration, who takes precedence over all others.
func (a *authenticator) configured(user string) bool {
	return subtle.ConstantTimeCompare([]byte(user), []byte(a.user)) == 1
}

// plain verifies a PLAIN response: authorization id, user and password separated by zero bytes. It returns the user.
func (a *authenticator) plain(message []byte) (user string, ok bool) {
	parts := strings.Split(string(message), "\x00")
	if len(parts) != 3 {
		return "", false
	}
	user = parts[1]
	if a.configured(user) && subtle.ConstantTimeCompare([]byte(parts[2]), []byte(a.password)) == 1 {
		return user, true
	}
	keys := access.Keys{Iterations: access.Iterations} // of no user: a check takes as long for an unknown user
	if u := a.users().Find(user); u != nil && !a.configured(user) {
		keys = u.Keys
	}
	a.checks <- struct{}{}
	defer func() { <-a.checks }()
	return user, keys.Matches(parts[2])
}

// login is the SASL exchange of one connection. A user that it admits has proved the password with one mechanism from
// its first message to its last.
type login struct {
	auth *authenticator
	open *exchange // continued by SASL_STEP
	user string    // the user admitted last
}

// start handles SASL_AUTH, which discards an earlier exchange. Either the client is admitted (in), or the mechanism
// continues with answer. plain reports whether a password may be sent in clear text.
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

// step handles SASL_STEP: without an error the client is admitted, and answer is the server's proof. An exchange
// allows one attempt.
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

// exchange is the server side of one SCRAM exchange, run by the library.
type exchange struct {
	talk      *scram.ServerConversation
	user      string
	knownUser bool
}

// begin answers the client's first message. The library would reveal an unknown user at once: here every client gets
// a challenge, and an unknown user is refused at the end.
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
	case err != nil: // not wrapped: its text may contain parts of a password and must not be logged
		return nil, nil, fmt.Errorf("%w: not a first message of SCRAM without channel binding", errScram)
	case x.talk.AuthzID() != "":
		return nil, nil, fmt.Errorf("%w: authorization ids are not supported", errScram)
	case strings.HasPrefix(answer, "r="+nonce+","): // only our own nonce
		return nil, nil, fmt.Errorf("%w: no nonce", errScram)
	}
	return x, []byte(answer), nil
}

func (a *authenticator) nonce() string {
	b := make([]byte, scramNonceBytes)
	a.random(b)
	return base64.StdEncoding.EncodeToString(b)
}

// finish verifies the client's proof and returns the server's own.
func (x *exchange) finish(message []byte) ([]byte, error) {
	answer, err := x.talk.Step(string(message))
	if err != nil || !x.knownUser {
		return nil, fmt.Errorf("%w: wrong user or password, or the proof is missing", errScram)
	}
	return []byte(answer), nil
}
