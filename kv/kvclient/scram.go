package kvclient

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"hash"
	"strconv"
	"strings"
)

// The SASL mechanisms, best first.
const (
	mechSHA512 = "SCRAM-SHA512"
	mechSHA256 = "SCRAM-SHA256"
	mechSHA1   = "SCRAM-SHA1"
	mechPlain  = "PLAIN"
)

// maxIterations bounds the work that a node can demand of us: one million rounds
// take about a second.
const maxIterations = 1_000_000

// nonceSize is the length of our random nonce in bytes.
const nonceSize = 18

// scram is the client's side of one SCRAM exchange (RFC 5802, RFC 7677) without
// channel binding.
type scram struct {
	newHash   func() hash.Hash
	user      string
	password  string
	nonce     string
	firstBare string
	serverSig []byte
}

// newScram begins an exchange; nil for a mechanism that is not SCRAM.
func newScram(mechanism, user, password, nonce string) *scram {
	s := &scram{user: user, password: password, nonce: nonce}
	switch mechanism {
	case mechSHA512:
		s.newHash = sha512.New
	case mechSHA256:
		s.newHash = sha256.New
	case mechSHA1:
		s.newHash = sha1.New
	default:
		return nil
	}
	return s
}

// randomNonce makes a nonce of printable characters without commas.
func randomNonce() string {
	var b [nonceSize]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return base64.StdEncoding.EncodeToString(b[:])
}

// first is the client's first message.
func (s *scram) first() string {
	name := strings.NewReplacer("=", "=3D", ",", "=2C").Replace(s.user)
	s.firstBare = "n=" + name + ",r=" + s.nonce
	return "n,," + s.firstBare
}

// final answers the server's first message with the proof.
func (s *scram) final(serverFirst string) (string, error) {
	a := scramAttributes(serverFirst)
	nonce := a['r']
	if len(nonce) <= len(s.nonce) || !strings.HasPrefix(nonce, s.nonce) {
		return "", fmt.Errorf("%w: the node's nonce does not continue ours", ErrAuth)
	}
	salt, err := base64.StdEncoding.DecodeString(a['s'])
	if err != nil || len(salt) == 0 {
		return "", fmt.Errorf("%w: the node sent no usable salt", ErrAuth)
	}
	rounds, err := strconv.Atoi(a['i'])
	if err != nil || rounds < 1 || rounds > maxIterations {
		return "", fmt.Errorf("%w: the node asks for %q iterations, want 1 to %d", ErrAuth, a['i'], maxIterations)
	}
	salted, err := pbkdf2.Key(s.newHash, s.password, salt, rounds, s.newHash().Size())
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrAuth, err)
	}
	withoutProof := "c=biws,r=" + nonce
	message := s.firstBare + "," + serverFirst + "," + withoutProof
	clientKey := s.mac(salted, "Client Key")
	h := s.newHash()
	h.Write(clientKey)
	proof := s.mac(h.Sum(nil), message)
	for i := range proof {
		proof[i] ^= clientKey[i]
	}
	s.serverSig = s.mac(s.mac(salted, "Server Key"), message)
	return withoutProof + ",p=" + base64.StdEncoding.EncodeToString(proof), nil
}

// verify checks the server's last message: it must know the password too.
func (s *scram) verify(serverFinal string) error {
	a := scramAttributes(serverFinal)
	if e := a['e']; e != "" {
		return fmt.Errorf("%w: %s", ErrAuth, printable([]byte(e)))
	}
	sig, err := base64.StdEncoding.DecodeString(a['v'])
	if err != nil || s.serverSig == nil || !hmac.Equal(sig, s.serverSig) {
		return fmt.Errorf("%w: the node could not prove that it knows the password", ErrAuth)
	}
	return nil
}

// mac is HMAC with the mechanism's hash.
func (s *scram) mac(key []byte, message string) []byte {
	m := hmac.New(s.newHash, key)
	m.Write([]byte(message))
	return m.Sum(nil)
}

// scramAttributes splits "a=…,b=…".
func scramAttributes(s string) map[byte]string {
	out := map[byte]string{}
	for part := range strings.SplitSeq(s, ",") {
		if len(part) >= 2 && part[1] == '=' {
			out[part[0]] = part[2:]
		}
	}
	return out
}
