package server

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strings"
	"sync"
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
	hash      func() hash.Hash
	salt      []byte
	storedKey []byte
	serverKey []byte
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

// credentials derives the keys of a mechanism at its first use; nil for an unknown mechanism.
func (a *authenticator) credentials(mech string) (*credentials, error) {
	var h func() hash.Hash
	switch mech {
	case mechSHA1:
		h = sha1.New
	case mechSHA256:
		h = sha256.New
	case mechSHA512:
		h = sha512.New
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
	salted, err := pbkdf2.Key(h, a.password, salt, scramIterations, h().Size())
	if err != nil {
		return nil, fmt.Errorf("derive keys: %w", err)
	}
	c := &credentials{hash: h, salt: salt, storedKey: digest(h, mac(h, salted, "Client Key")),
		serverKey: mac(h, salted, "Server Key")}
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

// exchange is one SCRAM conversation, server side.
type exchange struct {
	mech        string
	c           *credentials
	knownUser   bool
	clientFirst string // without the GS2 header
	serverFirst string
	nonce       string
	gs2         string
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

// begin answers the client's first message.
func (a *authenticator) begin(mech string, message []byte) (*exchange, []byte, error) {
	c, err := a.credentials(mech)
	if err != nil {
		return nil, nil, err
	}
	text := string(message)
	gs2 := "n,,"
	if !strings.HasPrefix(text, gs2) && !strings.HasPrefix(text, "y,,") {
		return nil, nil, fmt.Errorf("%w: channel binding or authorization ids are not supported", errScram)
	}
	x := &exchange{mech: mech, c: c, gs2: text[:3], clientFirst: text[3:]}
	user, clientNonce := attribute(x.clientFirst, 'n'), attribute(x.clientFirst, 'r')
	if clientNonce == "" {
		return nil, nil, fmt.Errorf("%w: no nonce", errScram)
	}
	x.knownUser = subtle.ConstantTimeCompare([]byte(unescape(user)), []byte(a.user)) == 1
	nonce := make([]byte, scramNonceBytes)
	a.random(nonce)
	x.nonce = clientNonce + base64.StdEncoding.EncodeToString(nonce)
	x.serverFirst = fmt.Sprintf("r=%s,s=%s,i=%d", x.nonce, base64.StdEncoding.EncodeToString(c.salt), scramIterations)
	return x, []byte(x.serverFirst), nil
}

// finish checks the client's proof and returns the server's own.
func (x *exchange) finish(message []byte) ([]byte, error) {
	text := string(message)
	at := strings.LastIndex(text, ",p=")
	if at < 0 {
		return nil, fmt.Errorf("%w: no proof", errScram)
	}
	bare := text[:at]
	proof, err := base64.StdEncoding.DecodeString(text[at+3:])
	if err != nil {
		return nil, fmt.Errorf("%w: the proof is not base64", errScram)
	}
	binding := base64.StdEncoding.EncodeToString([]byte(x.gs2))
	if attribute(bare, 'r') != x.nonce || attribute(bare, 'c') != binding {
		return nil, fmt.Errorf("%w: another nonce or channel binding", errScram)
	}
	authMessage := x.clientFirst + "," + x.serverFirst + "," + bare
	signature := mac(x.c.hash, x.c.storedKey, authMessage)
	if len(proof) != len(signature) {
		return nil, fmt.Errorf("%w: a proof of %d bytes, want %d", errScram, len(proof), len(signature))
	}
	key := make([]byte, len(proof))
	subtle.XORBytes(key, proof, signature)
	same := subtle.ConstantTimeCompare(digest(x.c.hash, key), x.c.storedKey) == 1
	if !same || !x.knownUser {
		return nil, fmt.Errorf("%w: wrong user or password", errScram)
	}
	return []byte("v=" + base64.StdEncoding.EncodeToString(mac(x.c.hash, x.c.serverKey, authMessage))), nil
}

// attribute finds the value of one-letter attribute name in a comma-separated message.
func attribute(message string, name byte) string {
	for part := range strings.SplitSeq(message, ",") {
		if len(part) > 1 && part[0] == name && part[1] == '=' {
			return part[2:]
		}
	}
	return ""
}

func unescape(user string) string {
	return strings.NewReplacer("=2C", ",", "=3D", "=").Replace(user)
}

func mac(h func() hash.Hash, key []byte, message string) []byte {
	m := hmac.New(h, key)
	m.Write([]byte(message))
	return m.Sum(nil)
}

func digest(h func() hash.Hash, b []byte) []byte {
	d := h()
	d.Write(b)
	return d.Sum(nil)
}
