package statecontext

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"strings"

	"tidemark/errcode"
)

// Bounds of users and tokens.
const (
	MaxUsers         = 1000
	MaxTokens        = 10_000
	MaxUserNameBytes = 64
	MaxSessions      = 8   // per user; beyond that the session that expires first is removed
	maxHashBytes     = 256 // of a password hash in its text form
	maxNoteBytes     = 200
	tokenIDBytes     = 8 // of the secret's hash, used as the token's id

	// TokenPrefix begins the secret of every token, so that scanners for leaked secrets recognise it. TokenSecretBytes
	// random bytes in base64url follow it.
	TokenPrefix      = "tmt_"
	TokenSecretBytes = 32

	// SessionNote is the note of tokens that are console sessions.
	SessionNote = "session of the console"
)

// UserRole determines what a user may do; each role includes the lower ones.
type UserRole uint8

// The roles.
const (
	UserMetrics UserRole = 1 // metrics
	UserReads   UserRole = 2 // listings, status, scans
	UserDDL     UserRole = 3 // changes of indexes
	UserAdmin   UserRole = 4 // changes of the cluster
)

// String returns the word used in the interfaces.
func (r UserRole) String() string {
	switch r {
	case UserMetrics:
		return "metrics"
	case UserReads:
		return "read"
	case UserDDL:
		return "ddl"
	case UserAdmin:
		return "admin"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// ParseUserRole parses the result of String.
func ParseUserRole(text string) (UserRole, error) {
	for r := UserMetrics; r <= UserAdmin; r++ {
		if r.String() == text {
			return r, nil
		}
	}
	return 0, fmt.Errorf("role %q: want metrics, read, ddl or admin", text)
}

// User is an account that can log in.
type User struct {
	Name        string
	Role        UserRole
	Hash        string // of the password, in the text form of its algorithm; never shown
	ModifiedCAS uint64
}

// Token authenticates as a user without a password. Only its holder has its secret.
type Token struct {
	ID          string // prefix of the secret's hash, in hex
	User        string
	Role        UserRole // the lower of it and the user's own role counts
	Hash        [32]byte // SHA-256 of the secret
	Note        string
	CreatedMS   int64
	ExpiresMS   int64 // 0: never
	ModifiedCAS uint64
}

// Session reports whether a token is a console session: it was issued for a password, and is bound to the user's
// version at that time.
func (x *Token) Session() bool { return x.Note == SessionNote }

// TokenID returns the id of the token whose secret has this hash.
func TokenID(hash [32]byte) string { return hex.EncodeToString(hash[:tokenIDBytes]) }

// PutMode is what PutUser requires of the existing users.
type PutMode uint8

// The modes of PutUser.
const (
	PutNew    PutMode = 1 // no user has that name
	PutChange PutMode = 2 // the user exists; a zero Role and an empty Hash leave those fields unchanged
	PutFirst  PutMode = 3 // there is no user at all, otherwise nothing changes: creates the first administrator
)

// PutUser adds or changes a user. A change ends the user's sessions, so that none opened with the old password
// remains.
type PutUser struct {
	Mode PutMode
	Name string
	Role UserRole
	Hash string
}

// RemoveUser removes a user and all tokens of that user. The last administrator cannot be removed, since no user
// could create another one.
type RemoveUser struct{ Name string }

// PutToken adds a token; Apply assigns ID and ModifiedCAS, and CreatedMS is the proposer's wall clock. For a session,
// ModifiedCAS is the version of the user whose password was verified; if the user was changed since, it is rejected
// with CASMismatch.
type PutToken struct{ Token Token }

// RemoveToken revokes a token.
type RemoveToken struct{ ID string }

func (*PutUser) kind() kind     { return kindPutUser }
func (*RemoveUser) kind() kind  { return kindRemoveUser }
func (*PutToken) kind() kind    { return kindPutToken }
func (*RemoveToken) kind() kind { return kindRemoveToken }

func (c *PutUser) append(dst []byte) []byte {
	return appendString(appendString(append(dst, byte(c.Mode), byte(c.Role)), c.Name), c.Hash)
}
func (c *RemoveUser) append(dst []byte) []byte  { return appendString(dst, c.Name) }
func (c *PutToken) append(dst []byte) []byte    { return appendToken(dst, &c.Token) }
func (c *RemoveToken) append(dst []byte) []byte { return appendString(dst, c.ID) }

func decodeUserBody(k kind, d *decoder) Body {
	switch k {
	case kindPutUser:
		return &PutUser{Mode: PutMode(d.byte()), Role: UserRole(d.byte()), Name: d.string(), Hash: d.string()}
	case kindRemoveUser:
		return &RemoveUser{Name: d.string()}
	case kindPutToken:
		return &PutToken{Token: d.token()}
	case kindRemoveToken:
		return &RemoveToken{ID: d.string()}
	}
	return nil
}

func appendUser(dst []byte, u *User) []byte {
	return appendUint(appendString(appendString(append(dst, byte(u.Role)), u.Name), u.Hash), u.ModifiedCAS)
}

func (d *decoder) user() User {
	return User{Role: UserRole(d.byte()), Name: d.string(), Hash: d.string(), ModifiedCAS: d.uint()}
}

func appendToken(dst []byte, x *Token) []byte {
	dst = appendString(appendString(dst, x.ID), x.User)
	dst = append(append(dst, byte(x.Role)), x.Hash[:]...)
	dst = appendInt(appendInt(appendString(dst, x.Note), x.CreatedMS), x.ExpiresMS)
	return appendUint(dst, x.ModifiedCAS)
}

func (d *decoder) token() Token {
	x := Token{ID: d.string(), User: d.string(), Role: UserRole(d.byte())}
	d.fixed(x.Hash[:])
	x.Note, x.CreatedMS, x.ExpiresMS, x.ModifiedCAS = d.string(), d.int(), d.int(), d.uint()
	return x
}

// User returns a user, or nil if it does not exist.
func (s *State) User(name string) *User { u, _ := s.users.Get(name); return u }

// Users returns all users in the order of their names.
func (s *State) Users() iter.Seq[*User] { return values(s.users) }

// WithoutUsers returns a copy of the state without users and tokens.
func (s *State) WithoutUsers() *State {
	clean := *s
	clean.users, clean.tokens = New().users, New().tokens
	return &clean
}

// UserCount returns the number of users.
func (s *State) UserCount() int { return s.users.Len() }

// Token returns a token, or nil if it does not exist.
func (s *State) Token(id string) *Token { x, _ := s.tokens.Get(id); return x }

// TokenByHash returns the token whose secret has this hash, or nil if it does not exist.
func (s *State) TokenByHash(hash [32]byte) *Token {
	if x := s.Token(TokenID(hash)); x != nil && x.Hash == hash {
		return x
	}
	return nil
}

// Tokens returns all tokens in the order of their ids.
func (s *State) Tokens() iter.Seq[*Token] { return values(s.tokens) }

// otherAdmin reports whether a user other than this one is an administrator.
func (s *State) otherAdmin(name string) bool {
	for u := range s.Users() {
		if u.Role == UserAdmin && u.Name != name {
			return true
		}
	}
	return false
}

func checkUserName(name string) *Rejection {
	ok := name != "" && len(name) <= MaxUserNameBytes
	for _, c := range []byte(name) {
		ok = ok && c > ' ' && c < 0x7f && !strings.ContainsRune(`:/?#%"\`, rune(c))
	}
	if !ok {
		return reject(errcode.InvalidArgument, "user name %q: want 1 to %d printable ASCII characters without any of : "+
			"/ ? # %% \" \\", name, MaxUserNameBytes)
	}
	return nil
}

func (c *PutUser) apply(t *tx) *Rejection {
	if rejection := checkUserName(c.Name); rejection != nil {
		return rejection
	}
	if c.Mode == PutFirst && t.s.users.Len() > 0 {
		return nil
	}
	old := t.s.User(c.Name)
	if rejection := c.checkMode(old); rejection != nil {
		return rejection
	}
	u := c.user(old)
	if rejection := u.check(); rejection != nil {
		return rejection
	}
	switch {
	case old == nil && t.s.users.Len() >= MaxUsers:
		return reject(errcode.LimitExceeded, "the cluster has %d users, which is the limit", MaxUsers)
	case u.Role != UserAdmin && !t.s.otherAdmin(c.Name):
		return reject(errcode.LastAdmin, "%q is the last administrator; add another one first", c.Name)
	case old != nil && old.Role == u.Role && old.Hash == u.Hash:
		return nil
	}
	u.ModifiedCAS = t.cas
	own(&t.s.users, &t.owned.users).Set(u.Name, &u)
	t.dropSessions(u.Name, 0)
	t.changedUsers()
	return nil
}

// checkMode rejects adding a user that exists and changing one that does not.
func (c *PutUser) checkMode(old *User) *Rejection {
	switch {
	case c.Mode == PutNew && old != nil:
		return reject(errcode.UserExists, "user %q already exists", c.Name)
	case c.Mode == PutChange && old == nil:
		return reject(errcode.UnknownUser, "there is no user %q", c.Name)
	case c.Mode < PutNew || c.Mode > PutFirst:
		return reject(errcode.InvalidArgument, "mode %d of a user", c.Mode)
	}
	return nil
}

// user returns the user after the command: a change keeps the fields that it does not set.
func (c *PutUser) user(old *User) User {
	u := User{Name: c.Name, Role: c.Role, Hash: c.Hash}
	if c.Mode != PutChange {
		return u
	}
	if u.Role == 0 {
		u.Role = old.Role
	}
	if u.Hash == "" {
		u.Hash = old.Hash
	}
	return u
}

func (u *User) check() *Rejection {
	switch {
	case !u.Role.known():
		return reject(errcode.InvalidArgument, "user %q: role %d", u.Name, u.Role)
	case u.Hash == "" || len(u.Hash) > maxHashBytes:
		return reject(errcode.InvalidArgument, "user %q: a password hash of %d bytes, want 1 to %d", u.Name, len(u.Hash),
			maxHashBytes)
	}
	return nil
}

func (c *RemoveUser) apply(t *tx) *Rejection {
	if t.s.User(c.Name) == nil {
		return reject(errcode.UnknownUser, "there is no user %q", c.Name)
	}
	if !t.s.otherAdmin(c.Name) {
		return reject(errcode.LastAdmin, "%q is the last administrator; add another one first", c.Name)
	}
	own(&t.s.users, &t.owned.users).Delete(c.Name)
	for x := range t.s.Tokens() {
		if x.User == c.Name {
			t.dropToken(x.ID)
		}
	}
	t.changedUsers()
	return nil
}

func (c *PutToken) apply(t *tx) *Rejection {
	x, seen := c.Token, c.Token.ModifiedCAS
	x.ID, x.CreatedMS, x.ModifiedCAS = TokenID(x.Hash), t.calendar(x.CreatedMS), t.cas
	if rejection := t.s.admitToken(&x, seen); rejection != nil {
		return rejection
	}
	if x.Session() {
		t.dropSessions(x.User, MaxSessions-1)
	}
	t.forgetTokens(x.CreatedMS)
	if t.s.tokens.Len() >= MaxTokens {
		return reject(errcode.LimitExceeded, "the cluster has %d tokens, which is the limit; revoke some", MaxTokens)
	}
	own(&t.s.tokens, &t.owned.tokens).Set(x.ID, &x)
	t.changedToken(&x, false)
	return nil
}

// admitToken rejects a token that may not be added; seen is the version of the user for which a session was begun.
func (s *State) admitToken(x *Token, seen uint64) *Rejection {
	u := s.User(x.User)
	switch {
	case u == nil:
		return reject(errcode.UnknownUser, "there is no user %q", x.User)
	case x.Session() && seen != u.ModifiedCAS:
		return reject(errcode.CASMismatch, "user %q was changed after the check of the password: log in again", x.User)
	case x.Role < UserMetrics || x.Role > u.Role:
		return reject(errcode.InvalidArgument, "a token of role %s for user %q, whose role is %s", x.Role, x.User, u.Role)
	case len(x.Note) > maxNoteBytes || x.ExpiresMS < 0 || x.ExpiresMS != 0 && x.ExpiresMS <= x.CreatedMS:
		return reject(errcode.InvalidArgument, "token with a note of %d bytes (at most %d) that ends at %d (now is %d)",
			len(x.Note), maxNoteBytes, x.ExpiresMS, x.CreatedMS)
	case s.Token(x.ID) != nil:
		return reject(errcode.TokenExists, "this token already exists; create another one")
	}
	return nil
}

func (c *RemoveToken) apply(t *tx) *Rejection {
	x := t.s.Token(c.ID)
	if x == nil {
		return reject(errcode.UnknownToken, "there is no token %q", c.ID)
	}
	t.dropToken(c.ID)
	t.changedToken(x, true)
	return nil
}

func (t *tx) dropToken(id string) { own(&t.s.tokens, &t.owned.tokens).Delete(id) }

// dropSessions removes a user's sessions except the given number that expire last.
func (t *tx) dropSessions(user string, left int) {
	var own []*Token
	for x := range t.s.Tokens() {
		if x.User == user && x.Session() {
			own = append(own, x)
		}
	}
	slices.SortStableFunc(own, func(x, y *Token) int { return cmp.Compare(x.ExpiresMS, y.ExpiresMS) }) // ties: by id
	for _, x := range own[:max(len(own)-left, 0)] {
		t.dropToken(x.ID)
	}
}

// forgetTokens drops expired tokens once the maximum number of tokens is reached.
func (t *tx) forgetTokens(nowMS int64) {
	if t.s.tokens.Len() < MaxTokens {
		return
	}
	for x := range t.s.Tokens() {
		if x.ExpiresMS != 0 && x.ExpiresMS <= nowMS {
			t.dropToken(x.ID)
		}
	}
}

// changedUsers marks an update that components need not receive.
func (t *tx) changedUsers() {
	t.changed = true
	t.emit(Event{Kind: EventCluster, Name: t.s.clusterID, Number: t.s.epoch})
}

// changedToken is changedUsers for one token. Users open and close sessions as often as they like, even if they may
// do nothing else, so a session emits a loud event that does not displace others.
func (t *tx) changedToken(x *Token, removed bool) {
	if !x.Session() {
		t.changedUsers()
		return
	}
	t.changed = true
	t.emit(Event{Kind: EventSession, Name: x.User, Removed: removed})
}

func checkUsers(s *State) error {
	if s.users.Len() > MaxUsers || s.tokens.Len() > MaxTokens {
		return broken("%d users and %d tokens, at most %d and %d", s.users.Len(), s.tokens.Len(), MaxUsers, MaxTokens)
	}
	if s.users.Len() > 0 && !s.otherAdmin("") {
		return broken("%d users and no administrator", s.users.Len())
	}
	for u := range s.Users() {
		if checkUserName(u.Name) != nil || u.check() != nil || u.ModifiedCAS > s.cas {
			return broken("user %q: role %d, modified at %d", u.Name, u.Role, u.ModifiedCAS)
		}
	}
	return checkTokens(s)
}

func checkTokens(s *State) error {
	for x := range s.Tokens() {
		if x.ID != TokenID(x.Hash) || s.User(x.User) == nil || !x.Role.known() || x.ModifiedCAS > s.cas ||
			len(x.Note) > maxNoteBytes || x.ExpiresMS < 0 {
			return broken("token %q of user %q: role %d, modified at %d", x.ID, x.User, x.Role, x.ModifiedCAS)
		}
	}
	return nil
}

// known reports whether the role is one of the defined roles.
func (r UserRole) known() bool { return r >= UserMetrics && r <= UserAdmin }
