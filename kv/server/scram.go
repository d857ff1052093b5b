package server

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/xdg-go/scram"
)

// Mechanisms by their names on the wire.
const (
	mechSHA1   = "SCRAM-SHA1"
	mechSHA256 = "SCRAM-SHA256"
	mechSHA512 = "SCRAM-SHA512"
	mechPlain  = "PLAIN"

	scramIterations = 4096
	scramSaltBytes  = 16
	scramNonceBytes = 18
)

var errScram = errors.New("authentication failed")

// credentials are what the server keeps of a password for one mechanism (RFC 5802): it can check a proof and prove
// itself, but not recover the password.
type credentials struct {
	hash   scram.HashGeneratorFcn
	stored scram.StoredCredentials
}

// authenticator knows the one user of a node.
type authenticator struct {
	user, password string
	random         func([]byte) // fills with random bytes

	mu     sync.Mutex
	byMech map[string]*credentials
}

func newAuthenticator(user, password string, random func([]byte)) *authenticator {
	return &authenticator{user: user, password: password, random: random, byMech: map[string]*credentials{}}
}

func (a *authenticator) mechanisms(plain bool) string {
	list := strings.Join([]string{mechSHA512, mechSHA256, mechSHA1}, " ")
	if plain {
		list += " " + mechPlain
	}
	return list
}

// credentials derives the keys of a mechanism at its first use; an error for an unknown mechanism.
func (a *authenticator) credentials(mech string) (*credentials, error) {
	var hash scram.HashGeneratorFcn
	switch mech {
	case mechSHA1:
		hash = scram.SHA1
	case mechSHA256:
		hash = scram.SHA256
	case mechSHA512:
		hash = scram.SHA512
	default:
		return nil, fmt.Errorf("%w: mechanism %q is not offered", errScram, mech)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.byMech[mech]; c != nil {
		return c, nil
	}
	salt := make([]byte, scramSaltBytes)
	a.random(salt)
	maker, err := hash.NewClientUnprepped(a.user, a.password, "") // names and passwords as they are: no SASLprep
	if err != nil {
		return nil, fmt.Errorf("derive keys: %w", err)
	}
	stored, err := maker.GetStoredCredentialsWithError(scram.KeyFactors{Salt: string(salt), Iters: scramIterations})
	if err != nil {
		return nil, fmt.Errorf("derive keys: %w", err)
	}
	c := &credentials{hash: hash, stored: stored}
	a.byMech[mech] = c
	return c, nil
}

// plain checks a PLAIN response: authorization id, user and password divided by zero bytes.
func (a *authenticator) plain(message []byte) bool {
	parts := strings.Split(string(message), "\x00")
	if len(parts) != 3 {
		return false
	}
	user := subtle.ConstantTimeCompare([]byte(parts[1]), []byte(a.user))
	password := subtle.ConstantTimeCompare([]byte(parts[2]), []byte(a.password))
	return user&password == 1
}

// login is the SASL conversation of one connection. Whoever it lets in has shown that he knows user and password, by
// one mechanism from its first message to its last.
type login struct {
	auth *authenticator
	open *exchange // that SASL_STEP goes on with
}

// start takes SASL_AUTH, which gives up what went before. The client is in, or his mechanism goes on with answer; plain
// says whether he may send his password as it is.
func (l *login) start(mech string, message []byte, plain bool) (answer []byte, in bool, err error) {
	l.open = nil
	if mech == mechPlain {
		if !plain || !l.auth.plain(message) {
			return nil, false, errScram
		}
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
	return x.finish(message)
}

// exchange is one SCRAM conversation, server side, in the library's hands.
type exchange struct {
	talk      *scram.ServerConversation
	knownUser bool
}

// begin answers the client's first message. The library would tell a stranger at once that nobody has that name: here
// everybody gets the challenge of the one user, and is refused in the end.
func (a *authenticator) begin(mech string, message []byte) (*exchange, []byte, error) {
	c, err := a.credentials(mech)
	if err != nil {
		return nil, nil, err
	}
	x := &exchange{}
	server, err := c.hash.NewServer(func(user string) (scram.StoredCredentials, error) {
		x.knownUser = subtle.ConstantTimeCompare([]byte(user), []byte(a.user)) == 1
		return c.stored, nil
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
