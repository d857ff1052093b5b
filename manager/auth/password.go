package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"

	"tidemark/statecontext"
)

// The cost of a password hash: argon2id with the parameters that OWASP lists first for servers. A hash contains its
// own parameters, so a later version may raise these.
const (
	argonMemory  = 19 << 10 // KiB
	argonTime    = 2
	argonThreads = 1
	saltBytes    = 16
	keyBytes     = 32

	// MinPassword and MaxPassword bound a password, in bytes.
	MinPassword = 8
	MaxPassword = 1024
)

var (
	// ErrPassword is wrapped if a text cannot be a password.
	ErrPassword = errors.New("password")
	// ErrToken is wrapped if a text cannot be a token.
	ErrToken = errors.New("token")
)

// HashPassword returns the hash to store for a password: $argon2id$v=19$m=…,t=…,p=…$salt$key.
func HashPassword(password string) (string, error) {
	if len(password) < MinPassword || len(password) > MaxPassword {
		return "", fmt.Errorf("%w: want %d to %d bytes", ErrPassword, MinPassword, MaxPassword)
	}
	salt := random(saltBytes)
	return hashText(salt, argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonThreads, keyBytes)), nil
}

// dummyHash returns a hash that matches no password. Verifying against it takes as long as against any other.
func dummyHash() string { return hashText(random(saltBytes), random(keyBytes)) }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}

func hashText(salt, key []byte) string {
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonTime, argonThreads,
		base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(key))
}

// verifyPassword reports whether a password has this hash. Its time does not depend on how similar they are.
func verifyPassword(hash, password string) bool {
	var version, memory, passes, threads uint32
	parts := strings.Split(hash, "$")
	if len(parts) != 6 || parts[1] != "argon2id" {
		return false
	}
	if _, err := fmt.Sscanf(parts[2], "v=%d", &version); err != nil || version != argon2.Version {
		return false
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &memory, &passes, &threads); err != nil ||
		memory > 4*argonMemory || passes < 1 || passes > 8*argonTime || threads < 1 || threads > 4 {
		return false
	}
	salt, err := base64.RawStdEncoding.DecodeString(parts[4])
	if err != nil {
		return false
	}
	want, err := base64.RawStdEncoding.DecodeString(parts[5])
	if err != nil || len(want) != keyBytes {
		return false
	}
	got := argon2.IDKey([]byte(password), salt, passes, memory, uint8(threads), keyBytes)
	return subtle.ConstantTimeCompare(got, want) == 1
}

// TokenHash returns the hash to store for a token.
func TokenHash(secret string) ([32]byte, error) {
	text, ok := strings.CutPrefix(secret, statecontext.TokenPrefix)
	if b, err := base64.RawURLEncoding.DecodeString(text); !ok || err != nil || len(b) != statecontext.TokenSecretBytes {
		return [32]byte{}, fmt.Errorf("%w: want %s and %d random bytes in base64url", ErrToken, statecontext.TokenPrefix,
			statecontext.TokenSecretBytes)
	}
	return sha256.Sum256([]byte(secret)), nil
}
