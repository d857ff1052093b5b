package access

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha1" //nolint:gosec // of SCRAM-SHA-1, which old clients need
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"tidemark/kv/mcbp"
)

// Limits of users.
const (
	// MaxUsers bounds the users of a cluster, all of which every node stores and sends to the others.
	MaxUsers = 256
	// MaxRoles bounds the roles of a user, and of a group.
	MaxRoles = 32
	// MaxID and MaxName bound a user's id and full name, in characters.
	MaxID   = 128
	MaxName = 256
	// MinPassword (in characters) and MaxPassword (in bytes) bound a password.
	MinPassword = 6
	MaxPassword = 256

	// Iterations is how often a password is hashed for its keys. MaxIterations bounds that number, since each check
	// of a password costs a node that time.
	Iterations    = 4096
	MaxIterations = 1 << 16

	// SaltBytes is the length of a salt in bytes.
	SaltBytes = 16
)

// User is a user as it is stored: everything but the password.
type User struct {
	ID string `json:"id"`
	// Name is the full name, for people.
	Name  string `json:"name,omitempty"`
	Roles []Role `json:"roles"`
	// Groups are the names of the user's groups, in order; one that does not exist has no effect.
	Groups []string `json:"groups,omitempty"`
	Keys   Keys     `json:"keys"`
}

// Keys are what is stored of a password (RFC 5802): they verify a client's proof that it knows the password, and
// prove to the client that the server has them.
type Keys struct {
	Iterations int `json:"iterations"`
	SHA1       Key `json:"sha1"`
	SHA256     Key `json:"sha256"`
	SHA512     Key `json:"sha512"`
}

// Key is the key for SCRAM with one hash.
type Key struct {
	Salt   []byte `json:"salt"`
	Stored []byte `json:"stored"`
	Server []byte `json:"server"`
}

// Derive returns the keys of a password; random fills a slice with random bytes. Error: ErrAccess.
func Derive(password string, random func([]byte)) (k Keys, err error) {
	if err := CheckPassword(password); err != nil {
		return k, err
	}
	k.Iterations = Iterations
	for _, x := range k.all() {
		salt := make([]byte, SaltBytes)
		random(salt)
		if *x.key, err = DeriveOne(x.hash, password, salt); err != nil {
			return k, err
		}
	}
	return k, nil
}

// DeriveOne returns the key of any password for one hash, by Iterations rounds. Names and passwords are used as they
// are, without SASLprep. It fails only if the hash does.
func DeriveOne(h func() hash.Hash, password string, salt []byte) (Key, error) {
	salted, err := pbkdf2.Key(h, password, salt, Iterations, h().Size())
	if err != nil {
		return Key{}, fmt.Errorf("derive keys: %w", err)
	}
	return Key{Salt: salt, Stored: stored(h, salted), Server: mac(h, salted, "Server Key")}, nil
}

// hashed is a key with its hash.
type hashed struct {
	key  *Key
	hash func() hash.Hash
}

func (k *Keys) all() []hashed {
	return []hashed{{&k.SHA1, sha1.New}, {&k.SHA256, sha256.New}, {&k.SHA512, sha512.New}}
}

func mac(h func() hash.Hash, key []byte, text string) []byte {
	m := hmac.New(h, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// stored returns the key that verifies a client's proof.
func stored(h func() hash.Hash, salted []byte) []byte {
	s := h()
	s.Write(mac(h, salted, "Client Key"))
	return s.Sum(nil)
}

// Matches reports whether the keys are those of password. It always takes as long as hashing with all iterations.
func (k *Keys) Matches(password string) bool {
	salted, err := pbkdf2.Key(sha512.New, password, k.SHA512.Salt, max(k.Iterations, 1), sha512.Size)
	return err == nil && hmac.Equal(stored(sha512.New, salted), k.SHA512.Stored) && len(password) <= MaxPassword
}

// CheckPassword refuses an invalid password. The error, ErrAccess, contains no part of it.
func CheckPassword(password string) error {
	switch {
	case utf8.RuneCountInString(password) < MinPassword:
		return fmt.Errorf("%w: the password must be at least %d characters long", ErrAccess, MinPassword)
	case len(password) > MaxPassword:
		return fmt.Errorf("%w: the password must have at most %d bytes", ErrAccess, MaxPassword)
	case !utf8.ValidString(password) || strings.ContainsFunc(password, unicode.IsControl):
		return fmt.Errorf("%w: the password must not contain control characters, and be valid UTF-8", ErrAccess)
	}
	return nil
}

// CheckID refuses an invalid user name. Error: ErrAccess.
func CheckID(id string) error { return checkName("user", id) }

// checkName refuses an invalid name of a user or a group. Error: ErrAccess.
func checkName(what, id string) error {
	const barred = `()<>@,;:\"/[]?={} `
	n := utf8.RuneCountInString(id)
	if n == 0 || n > MaxID || !utf8.ValidString(id) || strings.ContainsAny(id, barred) ||
		strings.ContainsFunc(id, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		return fmt.Errorf("%w: %s name %q: want 1 to %d characters, none of them a space, a control character or one of %s",
			ErrAccess, what, cut(id), MaxID, strings.TrimSpace(barred))
	}
	return nil
}

// Check reports why a user is invalid. Error: ErrAccess.
func (u *User) Check() error {
	if err := CheckID(u.ID); err != nil {
		return err
	}
	switch {
	case utf8.RuneCountInString(u.Name) > MaxName || !utf8.ValidString(u.Name) ||
		strings.ContainsFunc(u.Name, unicode.IsControl):
		return fmt.Errorf("%w: user %q: the full name must have at most %d characters, and no control characters", ErrAccess,
			u.ID, MaxName)
	case len(u.Groups) > MaxGroupsOfUser:
		return fmt.Errorf("%w: user %q: a user may be in at most %d groups", ErrAccess, u.ID, MaxGroupsOfUser)
	}
	for _, id := range u.Groups {
		if err := checkName("group", id); err != nil {
			return fmt.Errorf("user %q: %w", u.ID, err)
		}
	}
	if err := checkRoles("user", u.ID, u.Roles); err != nil {
		return err
	}
	return u.Keys.check(u.ID)
}

// checkRoles refuses invalid roles of a user or a group.
func checkRoles(what, id string, roles []Role) error {
	if len(roles) > MaxRoles {
		return tooManyRoles()
	}
	for _, r := range roles {
		if _, err := ParseRole(r.String()); err != nil {
			return fmt.Errorf("%s %q: %w", what, id, err)
		}
	}
	return nil
}

func tooManyRoles() error {
	return fmt.Errorf("%w: a user or a group may have at most %d roles: use [*] for all buckets", ErrAccess, MaxRoles)
}

func (k *Keys) check(id string) error {
	if k.Iterations < Iterations || k.Iterations > MaxIterations {
		return fmt.Errorf("%w: user %q: a password must be hashed %d to %d times, not %d", ErrAccess, id, Iterations,
			MaxIterations, k.Iterations)
	}
	for _, x := range k.all() {
		size := x.hash().Size()
		if len(x.key.Salt) != SaltBytes || len(x.key.Stored) != size || len(x.key.Server) != size {
			return fmt.Errorf("%w: user %q: the keys of the password are damaged or missing", ErrAccess, id)
		}
	}
	return nil
}

// CheckAll refuses an invalid list of users: they must be ordered by name, without duplicates. Error: ErrAccess.
func CheckAll(users []User) error {
	if len(users) > MaxUsers {
		return fmt.Errorf("%w: %d users; the limit is %d", ErrAccess, len(users), MaxUsers)
	}
	for i := range users {
		if err := users[i].Check(); err != nil {
			return err
		}
		if i > 0 && users[i-1].ID >= users[i].ID {
			return fmt.Errorf("%w: user %q is listed twice, or out of order", ErrAccess, users[i].ID)
		}
	}
	return nil
}

// Directory holds the users of a cluster at one moment; it is immutable.
type Directory struct{ kept Kept }

// Kept is the content of a directory: users and groups in order (CheckAll, CheckGroups), the secret that all nodes
// share (nil: there is none yet), and the buckets by name.
type Kept struct {
	Users   []User
	Groups  []Group
	Secret  []byte
	Buckets map[string]Bucket
}

// Bucket is a bucket as it was when the directory was made.
type Bucket struct {
	UUID     string
	Manifest *mcbp.Manifest
}

// NewDirectory returns a directory of k.
func NewDirectory(k Kept) *Directory { return &Directory{kept: k} }

// Same reports whether a directory of k would decide everything as d does.
func (d *Directory) Same(k Kept) bool {
	return d != nil && reflect.DeepEqual(d.kept.Users, k.Users) && reflect.DeepEqual(d.kept.Groups, k.Groups) &&
		bytes.Equal(d.kept.Secret, k.Secret) && maps.EqualFunc(d.kept.Buckets, k.Buckets, sameBucket)
}

// sameBucket reports whether a and b are the same bucket with the same collections.
func sameBucket(a, b Bucket) bool {
	return a.UUID == b.UUID && (a.Manifest == b.Manifest || a.Manifest != nil && b.Manifest != nil &&
		a.Manifest.UID == b.Manifest.UID)
}

// Secret returns the cluster's secret, from which salts for unknown user names are derived; nil if there is none.
func (d *Directory) Secret() []byte {
	if d == nil {
		return nil
	}
	return d.kept.Secret
}

// Users returns the users; the caller must not modify the result.
func (d *Directory) Users() []User { return d.kept.Users }

// Find returns the user of that name; nil if there is none.
func (d *Directory) Find(id string) *User {
	if d == nil {
		return nil
	}
	at, ok := Place(d.kept.Users, id)
	if !ok {
		return nil
	}
	return &d.kept.Users[at]
}

// Permitted returns what a user may do in a bucket or, if bucket is empty, in the cluster; nothing for an unknown
// user.
func (d *Directory) Permitted(id, bucket string) Set {
	return Permitted(d.roles(id), bucket)
}

// Rights returns what a user may do in a bucket, in all of it and in parts of it.
func (d *Directory) Rights(id, bucket string) Rights {
	if d == nil {
		return Rights{}
	}
	return rightsIn(d.roles(id), bucket, d.kept.Buckets[bucket].Manifest)
}

// JudgesAs reports whether d and o give a user the same rights in a bucket: the same roles, for the same bucket with
// the same collections.
func (d *Directory) JudgesAs(o *Directory, id, bucket string) bool {
	if d == nil || o == nil {
		return d == o
	}
	return sameBucket(d.kept.Buckets[bucket], o.kept.Buckets[bucket]) && slices.Equal(d.roles(id), o.roles(id))
}

// roles returns the roles of a user; none for an unknown user.
func (d *Directory) roles(id string) []Role {
	if u := d.Find(id); u != nil {
		return d.rolesOf(u)
	}
	return nil
}

// Place returns the index at which a user is, or would be inserted, in ordered users, and whether it is there.
func Place(users []User, id string) (int, bool) {
	return slices.BinarySearchFunc(users, id, func(u User, id string) int { return cmp.Compare(u.ID, id) })
}
