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

// maxIterations bounds the work that a node can demand of us: one million rounds
// take about a second.
const maxIterations = 1_000_000

// scram is the client's side of one SCRAM exchange (RFC 5802, RFC 7677) without
// channel binding. The library keeps the protocol; what it lets a node do to us, checkFirst refuses before a key is
// derived.
type scram struct {
	talk     *xdg.ClientConversation
	of       *derivation
	nonce    string // ours
	answered bool   // the proof was made: only then is there a signature to compare the node's with
}

// newScram begins an exchange; nil for a mechanism that is not SCRAM. Our nonce is the library's, or the one given.
func newScram(mechanism, user, password, nonce string) *scram {
	of := derived.of(identity{mechanism, user, password, nonce})
	if of == nil {
		return nil
	}
	return &scram{talk: of.client.NewConversation(), of: of}
}

// identity is by what, and as whom, a client logs in.
type identity struct{ mechanism, user, password, nonce string }

// client makes what begins exchanges of an identity; nil for a mechanism that is not SCRAM.
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
	c, err := hash.NewClientUnprepped(id.user, id.password, "") // KV keeps names and passwords as they are: no SASLprep
	if err != nil {
		return nil
	}
	if id.nonce != "" {
		c = c.WithNonceGenerator(func() string { return id.nonce })
	}
	return c.WithMinIterations(1)
}

// derivations keeps what was derived from passwords (RFC 5802, section 5.1), in the library's clients, so that a
// connection more costs no thousands of hashes more. A node that gives each connection another salt makes one grow: it
// is let go after mostUses exchanges, and all of them are when there are more than mostIdentities.
type derivations struct {
	mu  sync.Mutex
	all map[identity]*derivation
}

type derivation struct {
	client *xdg.Client
	uses   int
	one    sync.Mutex // connections that are made at once wait for the first to derive
}

const (
	mostUses       = 100
	mostIdentities = 100
)

var derived = derivations{all: map[identity]*derivation{}}

// of returns what is kept of an identity; nil for a mechanism that is not SCRAM.
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

// first is the client's first message.
func (s *scram) first() string {
	message, _ := s.talk.Step("") // fails in no conversation that begins
	s.nonce = message[strings.LastIndex(message, ",r=")+len(",r="):]
	return message
}

// final answers the server's first message with the proof.
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

// checkFirst holds a node's first message to what the library does not: a salt, a nonce that has something of the
// node's own, and no more rounds than we are ready for. Of attributes that come twice each is looked at.
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

// verify checks the server's last message: it must know the password too. The library would take an empty signature
// after a first message that it refused.
func (s *scram) verify(serverFinal string) error {
	if !s.answered {
		return fmt.Errorf("%w: the node claims to know the password before it was asked", ErrAuth)
	}
	if _, err := s.talk.Step(serverFinal); err != nil {
		return fmt.Errorf("%w: the node could not prove that it knows the password: %s", ErrAuth,
			printable([]byte(err.Error())))
	}
	return nil
}
