package kvclient

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	xdg "github.com/xdg-go/scram"
)

// The SASL mechanisms, best first.
const (
	mechSHA512 = "SCRAM-SHA512"
	mechSHA256 = "SCRAM-SHA256"
	mechSHA1   = "SCRAM-SHA1"
	mechPlain  = "PLAIN"
)

// maxIterations bounds the work that a node can demand: one million rounds take about a second.
const maxIterations = 1_000_000

// scram is the client side of one SCRAM exchange (RFC 5802, RFC 7677) without channel binding. The library implements
// the protocol; checkFirst refuses harmful messages that the library accepts, before a key is derived.
type scram struct {
	talk     *xdg.ClientConversation
	of       *derivation
	nonce    string // ours
	answered bool   // the proof was made: only then is there a signature with which to compare the node's
}

// newScram starts an exchange; nil for a mechanism that is not SCRAM. The nonce is the library's if nonce is "".
func newScram(mechanism, user, password, nonce string) *scram {
	of := derived.of(identity{mechanism, user, password, nonce})
	if of == nil {
		return nil
	}
	return &scram{talk: of.client.NewConversation(), of: of}
}

// identity is the mechanism and the credentials of a login.
type identity struct{ mechanism, user, password, nonce string }

// client returns the library's client for an identity; nil for a mechanism that is not SCRAM.
func (id identity) client() *xdg.Client {
	var hash xdg.HashGeneratorFcn
	switch id.mechanism {
	case mechSHA512:
		hash = xdg.SHA512
	case mechSHA256:
		hash = xdg.SHA256
	case mechSHA1:
		hash = xdg.SHA1
	default:
		return nil
	}
	c, err := hash.NewClientUnprepped(id.user, id.password, "") // KV does not normalize names and passwords: no SASLprep
	if err != nil {
		return nil
	}
	if id.nonce != "" {
		c = c.WithNonceGenerator(func() string { return id.nonce })
	}
	return c.WithMinIterations(1)
}

// derivations caches the keys derived from passwords (RFC 5802, section 5.1), inside the library's clients, so that
// further connections do not cost thousands of hashes each. A client's cache grows if a node sends each connection
// another salt: therefore a client is discarded after mostUses exchanges, and all of them if there are more than
// mostIdentities.
type derivations struct {
	mu  sync.Mutex
	all map[identity]*derivation
}

type derivation struct {
	client *xdg.Client
	uses   int
	one    sync.Mutex // concurrent connections wait for the first one to derive the key
}

const (
	mostUses       = 100
	mostIdentities = 100
)

var derived = derivations{all: map[identity]*derivation{}}

// of returns the cached derivation of an identity; nil for a mechanism that is not SCRAM.
func (d *derivations) of(id identity) *derivation {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.all[id]
	if of == nil || of.uses == mostUses {
		c := id.client()
		if c == nil {
			return nil
		}
		if len(d.all) >= mostIdentities {
			clear(d.all)
		}
		of = &derivation{client: c}
		d.all[id] = of
	}
	of.uses++
	return of
}

// first returns the client's first message.
func (s *scram) first() string {
	message, _ := s.talk.Step("") // cannot fail at the start of a conversation
	s.nonce = message[strings.LastIndex(message, ",r=")+len(",r="):]
	return message
}

// final returns the proof that answers the server's first message.
func (s *scram) final(serverFirst string) (string, error) {
	if err := s.checkFirst(serverFirst); err != nil {
		return "", fmt.Errorf("%w: %w", ErrAuth, err)
	}
	s.of.one.Lock()
	answer, err := s.talk.Step(serverFirst)
	s.of.one.Unlock()
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrAuth, printable([]byte(err.Error())))
	}
	s.answered = true
	return answer, nil
}

// checkFirst checks in a node's first message what the library does not: a salt, a nonce with a part of the node's
// own, and a limited number of rounds. It checks every occurrence of a repeated attribute.
func (s *scram) checkFirst(message string) error {
	for part := range strings.SplitSeq(message, ",") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "r":
			if len(value) <= len(s.nonce) {
				return errors.New("the node's nonce does not continue ours")
			}
		case "s":
			if salt, err := base64.StdEncoding.DecodeString(value); err != nil || len(salt) == 0 {
				return errors.New("the node sent no usable salt")
			}
		case "i":
			if rounds, err := strconv.Atoi(value); err != nil || rounds < 1 || rounds > maxIterations {
				return fmt.Errorf("the node asks for %q iterations, want 1 to %d", value, maxIterations)
			}
		}
	}
	return nil
}

// verify checks the server's last message, which proves that it knows the password too. The library would accept an
// empty signature after a first message that it refused.
func (s *scram) verify(serverFinal string) error {
	if !s.answered {
		return fmt.Errorf("%w: the node claims to know the password before it was asked", ErrAuth)
	}
	if _, err := s.talk.Step(serverFinal); err != nil {
		return fmt.Errorf("%w: the node did not prove that it knows the password: %s", ErrAuth,
			printable([]byte(err.Error())))
	}
	return nil
}
