package server

import (
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"encoding/base64"
	"strings"
	"testing"

	"tidemark/kv/access"
)

// client is the client side of an exchange, written from RFC 5802 and not from the server's code.
type client struct {
	mech, user, password string
	gs2, bare            string
}

func newClient(mech, user, password, gs2, nonce string) *client {
	return &client{mech: mech, user: user, password: password, gs2: gs2,
		bare: "n=" + strings.NewReplacer("=", "=3D", ",", "=2C").Replace(user) + ",r=" + nonce}
}

// salts caches what is expensive to compute.
type salts map[[3]string][]byte

func (s salts) password(t *testing.T, a *authenticator, mech, password, salt64 string) []byte {
	t.Helper()
	id := [3]string{mech, password, salt64}
	if s[id] == nil {
		salt, err := base64.StdEncoding.DecodeString(salt64)
		if err != nil || len(salt) != access.SaltBytes {
			t.Fatalf("the salt is %q: %v", salt64, err)
		}
		h, _ := hashOf(mech)
		if s[id], err = pbkdf2.Key(h, password, salt, 4096, h().Size()); err != nil {
			t.Fatal(err)
		}
	}
	return s[id]
}

// final answers the server's challenge; signature is what the server must then return.
func (c *client) final(t *testing.T, a *authenticator, known salts, challenge string) (bare string, proof,
	signature []byte) {
	t.Helper()
	part := strings.Split(challenge, ",")
	if len(part) != 3 || !strings.HasPrefix(part[0], "r=") || !strings.HasPrefix(part[1], "s=") || part[2] != "i=4096" {
		t.Fatalf("the challenge is %q", challenge)
	}
	h, _ := hashOf(c.mech)
	sum := func(key []byte, text string) []byte {
		m := hmac.New(h, key)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	salted := known.password(t, a, c.mech, c.password, part[1][2:])
	bare = "c=" + base64.StdEncoding.EncodeToString([]byte(c.gs2)) + "," + part[0]
	message := c.bare + "," + challenge + "," + bare
	key := sum(salted, "Client Key")
	stored := h()
	stored.Write(key)
	proof = sum(stored.Sum(nil), message)
	for i := range proof {
		proof[i] ^= key[i]
	}
	return bare, proof, sum(sum(salted, "Server Key"), message)
}

// noUsers returns the directory of a cluster without users.
func noUsers() *access.Directory { return nil }

// script splits a fuzz input.
type script []byte

func (s *script) next() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

func (s *script) take(n int) []byte {
	n = min(n, len(*s))
	b := (*s)[:n]
	*s = (*s)[n:]
	return b
}

// FuzzLogin plays exchanges of any kind with the server's side of SASL: right and wrong clients, changed and repeated
// messages, in any order. Exactly the clients that prove user and password correctly are admitted and get the
// server's proof.
func FuzzLogin(f *testing.F) {
	const user, password = "us,er=1", "pass word"
	mechanisms := []string{mechSHA512, mechSHA256, mechSHA1, mechPlain, "SCRAM-MD5"}
	known := salts{}
	var count byte
	auth := newAuthenticator(user, password, noUsers, func(b []byte) {
		for i := range b {
			count++
			b[i] = count
		}
	})
	for m := range byte(3) {
		f.Add([]byte{1, m, 0, 3, 'a', 'b', 'c', 3, 0, 0}, false)                       // right
		f.Add([]byte{1, m, 4, 3, 'a', 'b', 'c', 3, 0, 0, 5, 3, 0, 0}, true)            // right, then repeated
		f.Add([]byte{1, m, 1, 3, 'a', 'b', 'c', 3, 0, 0}, false)                       // another user
		f.Add([]byte{1, m, 2, 3, 'a', 'b', 'c', 3, 0, 0, 1, m, 0, 1, 'x', 3, 0}, true) // another password, then the right one
		f.Add([]byte{1, m, 0, 3, 'a', 'b', 'c', 3, 80, 1}, false)                      // with a flipped bit in the proof
		f.Add([]byte{1, m, 0, 1, 'x', 0, m, 7, 'n', ',', ',', 'r', '=', 'a', 'b', 3, 0, 0}, false)
	}
	f.Add([]byte{4, 0, 0}, true)
	f.Add([]byte{4, 0, 0}, false)
	f.Add([]byte{4, 5, 1, 2, 3, 'a', 'b', 'c'}, true)
	f.Add([]byte{2, 9, 'c', '=', ',', 'p', '=', '=', '=', '=', '='}, true)
	f.Fuzz(func(t *testing.T, input []byte, plain bool) {
		in := script(input)
		l := login{auth: auth}
		var open *client // client of the present exchange; nil: one that cannot be admitted
		var challenge, last string
		begin := func(c *client, mech string, message []byte) bool {
			answer, let, err := l.start(mech, message, plain)
			if open, challenge = nil, ""; err == nil && !let {
				open, challenge = c, string(answer)
			}
			return let
		}
		for range 16 {
			if len(in) == 0 {
				return
			}
			switch op := in.next() % 6; op {
			case 0: // anything as a first message
				mech := mechanisms[int(in.next())%len(mechanisms)]
				message := in.take(int(in.next()))
				if let := begin(nil, mech, message); let != (mech == mechPlain && plain && knows(message, user, password)) {
					t.Fatalf("%s %q lets in: %t", mech, message, let)
				}
			case 1: // a client's first message
				c := newClient(mechanisms[in.next()%3], user, password, "n,,", "")
				how := in.next()
				if how&1 != 0 {
					c.user = "user"
				}
				if how&2 != 0 {
					c.password = "password"
				}
				if how&4 != 0 {
					c.gs2 = "y,,"
				}
				nonce := base64.StdEncoding.EncodeToString(in.take(int(in.next())))
				c = newClient(c.mech, c.user, c.password, c.gs2, nonce)
				if begin(c, c.mech, []byte(c.gs2+c.bare)) {
					t.Fatal("let in after the first message")
				}
				if (open == nil) != (nonce == "") {
					t.Fatalf("nonce %q begins a conversation: %t", nonce, open != nil)
				}
			case 4: // PLAIN, one byte changed
				message := []byte("\x00" + user + "\x00" + password)
				message[int(in.next())%len(message)] ^= in.next()
				if let := begin(nil, mechPlain, message); let != (plain && knows(message, user, password)) {
					t.Fatalf("PLAIN %q lets in: %t", message, let)
				}
			default: // a second message: any, the client's with one byte changed, the last one again
				var bare, signature string
				var proof []byte
				if open != nil {
					b, p, s := open.final(t, auth, known, challenge)
					bare, proof, signature = b, p, base64.StdEncoding.EncodeToString(s)
				}
				switch op {
				case 2:
					last = string(in.take(int(in.next())))
				case 3:
					message := []byte(bare + ",p=" + base64.StdEncoding.EncodeToString(proof))
					message[int(in.next())%len(message)] ^= in.next()
					last = string(message)
				}
				right := open != nil && open.user == user && open.password == password && says(last, bare, proof)
				open = nil
				if answer, err := l.step([]byte(last)); (err == nil) != right || right && string(answer) != "v="+signature {
					t.Fatalf("%q is answered %q, %v; right: %t", last, answer, err, right)
				}
			}
		}
	})
}

func randomBytes(b []byte) { _, _ = rand.Read(b) } // never fails

// TestSaltsRevealNoUsers: the nodes of a cluster, also across restarts, return the same salt for a name, whether or not
// a user has it or it is the configured one; other names and mechanisms get other salts.
func TestSaltsRevealNoUsers(t *testing.T) {
	keys, err := access.Derive("app's password", randomBytes)
	if err != nil {
		t.Fatal(err)
	}
	d := access.NewDirectory(access.Kept{Users: []access.User{{ID: "app", Keys: keys}}, Secret: []byte("secret")})
	nodes := make([]*authenticator, 2)
	for i := range nodes {
		nodes[i] = newAuthenticator("own", "password", func() *access.Directory { return d }, randomBytes)
	}
	seen := map[string]bool{}
	for _, user := range []string{"own", "app", "nobody", "none"} {
		for _, mech := range []string{mechSHA1, mechSHA256, mechSHA512} {
			hash, _ := hashOf(mech)
			a, _, err := nodes[0].lookup(mech, hash, user)
			b, _, berr := nodes[1].lookup(mech, hash, user)
			if err != nil || berr != nil || a.KeyFactors != b.KeyFactors || len(a.Salt) != access.SaltBytes || seen[a.Salt] {
				t.Errorf("%s %s: %+v, %+v, %v, %v", user, mech, a.KeyFactors, b.KeyFactors, err, berr)
			}
			seen[a.Salt] = true
		}
	}
}

// TestRefusalsKeepSecrets: errors, which are logged, contain nothing that the client sent: it may be a password sent
// with the wrong mechanism.
func TestRefusalsKeepSecrets(t *testing.T) {
	auth := newAuthenticator("user", "secret", noUsers, func(b []byte) { clear(b) })
	for _, message := range []string{"\x00user\x00secret,,,", "n,secret,n=user,r=x", "n,,secret,r=x", "n,,n=sec=ret,r=x",
		"n,,n=user,secret", "p=secret,,n=user,r=x"} {
		l := login{auth: auth}
		_, in, err := l.start(mechSHA1, []byte(message), false)
		if in || err == nil || strings.Contains(err.Error(), "ret") {
			t.Errorf("%q: let in: %t, %v", message, in, err)
		}
	}
	for _, message := range []string{"c=secret,r=x,p=secret", "secret,secret,secret", "c=biws,secret,p=AAAA"} {
		l := login{auth: auth}
		if _, _, err := l.start(mechSHA1, []byte("n,,n=user,r=x"), false); err != nil {
			t.Fatal(err)
		}
		if _, err := l.step([]byte(message)); err == nil || strings.Contains(err.Error(), "ret") {
			t.Errorf("%q: %v", message, err)
		}
	}
}

// knows reports whether a PLAIN message has the user and password.
func knows(message []byte, user, password string) bool {
	part := bytes.Split(message, []byte{0})
	return len(part) == 3 && string(part[1]) == user && string(part[2]) == password
}

// says reports whether a client's last message has that text and that proof: base64 may encode the same bytes in
// several ways.
func says(message, bare string, proof []byte) bool {
	at := strings.LastIndex(message, ",p=")
	if at < 0 || message[:at] != bare {
		return false
	}
	got, err := base64.StdEncoding.DecodeString(message[at+3:])
	return err == nil && bytes.Equal(got, proof)
}
