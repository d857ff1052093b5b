package auth

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/argon2"

	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// world is a state with users, and a clock.
type world struct {
	t     *testing.T
	state *statecontext.State
	index uint64
	now   time.Time
	a     *Authenticator
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, state: statecontext.New(), now: time.UnixMilli(1_000_000)}
	w.do(&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: statecontext.FormatLevel})
	var err error
	if w.a, err = New(func() *statecontext.State { return w.state }, func() time.Time { return w.now }); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) do(b statecontext.Body) {
	w.t.Helper()
	w.index++
	next, results, _ := statecontext.ApplyCommands(w.state, w.index,
		[]statecontext.Command{{TimeMS: w.now.UnixMilli(), Body: b}})
	if err := results[0].Err(); err != nil {
		w.t.Fatal(err)
	}
	if err := statecontext.Check(next); err != nil {
		w.t.Fatal(err)
	}
	w.state = next
}

func (w *world) user(name string, role statecontext.UserRole, password string) {
	w.t.Helper()
	w.do(&statecontext.PutUser{Mode: statecontext.PutNew, Name: name, Role: role, Hash: cheapHash(password)})
}

func (w *world) password(name, password string) {
	w.t.Helper()
	w.do(&statecontext.PutUser{Mode: statecontext.PutChange, Name: name, Hash: cheapHash(password)})
}

// cheapHash is HashPassword at the lowest cost: a hash contains its own parameters.
func cheapHash(password string) string {
	salt := random(saltBytes)
	key := argon2.IDKey([]byte(password), salt, 1, 8, 1, keyBytes)
	return fmt.Sprintf("$argon2id$v=%d$m=8,t=1,p=1$%s$%s", argon2.Version, base64.RawStdEncoding.EncodeToString(salt),
		base64.RawStdEncoding.EncodeToString(key))
}

func (w *world) ask(header string) (*Identity, error) { return w.a.Identify(w.request(header)) }

func (w *world) request(header string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if user, password, ok := strings.Cut(header, "/"); ok {
		r.SetBasicAuth(user, password)
	} else if header != "" {
		r.Header.Set("Authorization", header)
	}
	return r
}

// shows adds a certificate to a request.
func shows(r *http.Request, p tlsconf.Peer) *http.Request {
	cert := &x509.Certificate{URIs: []*url.URL{{Scheme: "tidemark", Host: string(p.Role), Path: "/" + p.ID}}}
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert},
		VerifiedChains: [][]*x509.Certificate{{cert}}}
	return r
}

// TestUserOfACertificate: only a user certificate authenticates the user with its id.
func TestUserOfACertificate(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	before := w.state
	w.user("ann", statecontext.UserDDL, "battery staple")
	for role, want := range map[tlsconf.Role]string{tlsconf.Manager: "manager:ann", tlsconf.Projector: "projector:ann",
		tlsconf.Indexer: "indexer:ann", tlsconf.Admin: "admin:ann", tlsconf.User: "ann", tlsconf.KV: ""} {
		r := shows(w.request(""), tlsconf.Peer{Role: role, ID: "ann"})
		id, err := w.a.Identify(r)
		switch {
		case want == "":
			if !errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), string(role)+"/ann") {
				t.Errorf("%s: %+v %v", role, id, err)
			}
		case err != nil || id.Name != want || id.OfUser() != (role == tlsconf.User):
			t.Errorf("%s: %+v %v", role, id, err)
		}
		if w.a.Differs(r, before) != (role == tlsconf.User) {
			t.Errorf("%s: whether it was made a user meanwhile", role)
		}
	}
	id, err := w.a.Identify(shows(w.request("ann/battery staple"), tlsconf.Peer{Role: tlsconf.KV, ID: "root"}))
	if err != nil || id.Name != "ann" {
		t.Errorf("a password beside a KV node's certificate: %+v %v", id, err)
	}
	if _, err := w.a.Identify(shows(w.request(""), tlsconf.Peer{Role: tlsconf.User, ID: "bob"})); !errors.Is(err,
		ErrUnauthenticated) || !strings.Contains(err.Error(), `"bob"`) {
		t.Errorf("the certificate of a user that there is none of: %v", err)
	}
}

func newToken() string {
	b := make([]byte, statecontext.TokenSecretBytes)
	_, _ = rand.Read(b)
	return statecontext.TokenPrefix + base64.RawURLEncoding.EncodeToString(b)
}

func TestPasswordsAndTokens(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	w.user("ann", statecontext.UserDDL, "battery staple")
	secret := newToken()
	hash, err := TokenHash(secret)
	if err != nil {
		t.Fatal(err)
	}
	w.do(&statecontext.PutToken{Token: statecontext.Token{User: "ann", Role: statecontext.UserReads, Hash: hash,
		ExpiresMS: w.now.Add(time.Hour).UnixMilli()}})
	for _, tc := range []struct {
		header, name string
		role         statecontext.UserRole
		refused      bool
	}{
		{header: "root/correct horse", name: "root", role: statecontext.UserAdmin},
		{header: "ann/battery staple", name: "ann", role: statecontext.UserDDL},
		{header: "ann/battery staplE", refused: true},
		{header: "ann/", refused: true},
		{header: "ann/" + strings.Repeat("x", 1<<16), refused: true},
		{header: "nobody/battery staple", refused: true},
		{header: "Bearer " + secret, name: "ann", role: statecontext.UserReads},
		{header: "Bearer " + newToken(), refused: true},
		{header: "Bearer x", refused: true},
		{header: "Basic x", refused: true},
		{header: "Digest x", refused: true},
		{header: ""},
	} {
		id, err := w.ask(tc.header)
		switch {
		case tc.refused:
			if !errors.Is(err, ErrUnauthenticated) || strings.Contains(err.Error(), "battery") ||
				strings.Contains(err.Error(), statecontext.TokenPrefix) {
				t.Errorf("%q: %v", tc.header, err)
			}
		case tc.name == "":
			if id != nil || err != nil {
				t.Errorf("%q: %v %v", tc.header, id, err)
			}
		case err != nil || id.Name != tc.name || id.Role != tc.role:
			t.Errorf("%q: %v %v", tc.header, id, err)
		}
	}
	w.now = w.now.Add(2 * time.Hour)
	if _, err := w.ask("Bearer " + secret); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("a token that has ended: %v", err)
	}
}

// TestCachedPasswordFollowsTheUser: a change or removal of the user takes effect at the next request.
func TestCachedPasswordFollowsTheUser(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	w.user("ann", statecontext.UserReads, "battery staple")
	say := func(password string, ok bool) {
		t.Helper()
		if _, err := w.ask("ann/" + password); (err == nil) != ok {
			t.Errorf("%s: %v", password, err)
		}
	}
	say("battery staple", true)
	w.do(&statecontext.PutUser{Mode: statecontext.PutChange, Name: "ann", Role: statecontext.UserDDL})
	if id, err := w.ask("ann/battery staple"); err != nil || id.Role != statecontext.UserDDL {
		t.Errorf("%v %v", id, err)
	}
	hash, err := HashPassword("something new")
	if err != nil {
		t.Fatal(err)
	}
	w.do(&statecontext.PutUser{Mode: statecontext.PutChange, Name: "ann", Hash: hash})
	say("battery staple", false)
	say("something new", true)
	w.do(&statecontext.RemoveUser{Name: "ann"})
	say("something new", false)
}

// TestFailuresAreCounted: too many wrong passwords for a user are rejected without verification, and the count decays
// with time; a cached password is not locked out by failures of others.
func TestFailuresAreCounted(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	w.user("ann", statecontext.UserReads, "battery staple")
	if _, err := w.ask("root/correct horse"); err != nil {
		t.Fatal(err)
	}
	for i := range userBurst {
		if _, err := w.ask(fmt.Sprintf("root/wrong %d", i)); !errors.Is(err, ErrUnauthenticated) {
			t.Fatalf("try %d: %v", i, err)
		}
	}
	if _, err := w.ask("root/wrong again"); !errors.Is(err, ErrTooMany) {
		t.Errorf("no end to it: %v", err)
	}
	if _, err := w.ask("root/correct horse"); err != nil {
		t.Errorf("a user with a cached password is refused: %v", err)
	}
	if _, err := w.ask("ann/battery staple"); err != nil {
		t.Errorf("another user is kept out: %v", err)
	}
	w.now = w.now.Add(2 * userPause)
	if _, err := w.ask("root/wrong again"); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("after a while: %v", err)
	}
	for i := range 3 * maxCounted {
		_ = w.a.failures.take(fmt.Sprint("user ", i), userBurst, userPause)
	}
	if len(w.a.failures.of) > maxCounted || len(w.a.cache) > maxCached {
		t.Errorf("%d are counted", len(w.a.failures.of))
	}
}

// askIn authenticates with a state that may lag.
func (w *world) askIn(who string, certain bool, news func()) error {
	w.t.Helper()
	_, err := w.a.IdentifyIn(w.request(who), func() bool {
		if news != nil {
			news()
		}
		return certain
	})
	return err
}

// TestStaleManagerRevealsNoNames: while the state may lack users, existing and unknown names are answered and counted
// alike, then and afterwards; tokens, which cannot be guessed, are not counted.
func TestStaleManagerRevealsNoNames(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	for i := range addressBurst + 5 {
		if err := w.askIn("Bearer "+newToken(), false, nil); !errors.Is(err, ErrUnsure) {
			t.Fatalf("try %d of a token: %v", i, err)
		}
	}
	for i := range userBurst + 1 {
		for _, name := range []string{"ann", "root"} {
			if err := w.askIn(name+"/wrong", false, nil); !errors.Is(err, ErrUnsure) {
				t.Fatalf("try %d of a password of %s: %v", i, name, err)
			}
		}
	}
	var texts []string
	for _, name := range []string{"ann", "root"} {
		err := w.askIn(name+"/wrong", true, nil)
		if !errors.Is(err, ErrTooMany) {
			t.Fatalf("%s, afterwards: %v", name, err)
		}
		texts = append(texts, strings.ReplaceAll(err.Error(), name, "NAME"))
	}
	if texts[0] != texts[1] {
		t.Errorf("names are distinguished by %q", texts)
	}
}

// TestNewUserIsAdmittedAfterFailures: a user whom this state lacked, and who tried again and again, is admitted once
// the state has the user, however it learned of the user.
func TestNewUserIsAdmittedAfterFailures(t *testing.T) {
	for _, asked := range []bool{false, true} {
		w := newWorld(t)
		w.user("root", statecontext.UserAdmin, "correct horse")
		for i := range userBurst + 5 {
			if err := w.askIn("ann/battery staple", false, nil); !errors.Is(err, ErrUnsure) {
				t.Fatalf("try %d: %v", i, err)
			}
		}
		made := func() { w.user("ann", statecontext.UserReads, "battery staple") }
		if !asked {
			made()
			made = nil
		}
		if err := w.askIn("ann/battery staple", true, made); err != nil {
			t.Errorf("when she is known: %v", err)
		}
	}
}

// TestNewlyLearnedUsersAreNotCounted: users, passwords and tokens that the state learns of only when they are used are
// admitted, and no failure is counted for them; a valid token is found however many invalid ones came.
func TestNewlyLearnedUsersAreNotCounted(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	for i := range userBurst + 2 {
		name := fmt.Sprint("new", i)
		made := func() { w.user(name, statecontext.UserReads, "battery staple") }
		if err := w.askIn(name+"/battery staple", true, made); err != nil {
			t.Fatalf("user %d: %v", i, err)
		}
		password := fmt.Sprint("password ", i)
		changed := func() { w.password("root", password) }
		if err := w.askIn("root/"+password, true, changed); err != nil {
			t.Fatalf("password %d: %v", i, err)
		}
	}
	token := func() (secret string, made func()) {
		secret = newToken()
		hash, err := TokenHash(secret)
		if err != nil {
			t.Fatal(err)
		}
		return secret, func() {
			w.do(&statecontext.PutToken{Token: statecontext.Token{User: "root", Role: statecontext.UserAdmin, Hash: hash}})
		}
	}
	for i := range 3 {
		secret, made := token()
		if err := w.askIn("Bearer "+secret, true, made); err != nil {
			t.Fatalf("token %d: %v", i, err)
		}
	}
	if n := len(w.a.failures.of); n != 0 {
		t.Errorf("%d have failed", n)
	}
	for range addressBurst + 2 {
		_, _ = w.ask("Bearer " + newToken())
	}
	secret, made := token()
	if err := w.askIn("Bearer "+secret, true, made); err != nil {
		t.Errorf("a new token behind many wrong ones: %v", err)
	}
}

// from authenticates from an address.
func (w *world) from(addr, user, password string) (*Identity, error) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = addr
	r.SetBasicAuth(user, password)
	return w.a.Identify(r)
}

// TestFailedLoginsBlockNoOtherUsers: attempts from one address do not affect another one, and invalid tokens affect
// neither passwords nor valid tokens.
func TestFailedLoginsBlockNoOtherUsers(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	secret := newToken()
	hash, err := TokenHash(secret)
	if err != nil {
		t.Fatal(err)
	}
	w.do(&statecontext.PutToken{Token: statecontext.Token{User: "root", Role: statecontext.UserAdmin, Hash: hash}})
	for i := range userBurst + 2 {
		_, err = w.from("10.0.0.1:99", "root", fmt.Sprint("wrong ", i))
	}
	if !errors.Is(err, ErrTooMany) {
		t.Fatalf("no end to it: %v", err)
	}
	if _, err := w.from("10.0.0.2:1", "root", "correct horse"); err != nil {
		t.Errorf("another address is kept out: %v", err)
	}
	if _, err := w.from("[2001:db8::1]:5", "root", "wrong"); !errors.Is(err, ErrUnauthenticated) {
		t.Error(err)
	}
	for i := range 3 * addressBurst {
		if _, err = w.ask("Bearer " + newToken()); err == nil {
			t.Fatal(i)
		}
	}
	if !errors.Is(err, ErrTooMany) {
		t.Errorf("wrong tokens: %v", err)
	}
	if _, err := w.ask("Bearer " + secret); err != nil {
		t.Errorf("a right token: %v", err)
	}
	if _, err := w.ask("root/correct horse"); err != nil {
		t.Errorf("a password, after wrong tokens: %v", err)
	}
	if a, b := w.addressOf("[2001:db8:0:1::1]:5"), w.addressOf("[2001:db8:0:1:ffff::2]:7"); a != b ||
		a == w.addressOf("[2001:db8:0:2::1]:5") {
		t.Errorf("%s and %s", a, b)
	}
}

func (w *world) addressOf(remote string) string {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = remote
	return address(r)
}

// TestManyAtOnce: a hundred concurrent requests with the correct password, before it is cached, all pass; a hundred
// concurrent guesses count as no more guesses than the limit.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	hash, err := HashPassword("correct horse") // expensive, so that the verifications overlap
	if err != nil {
		t.Fatal(err)
	}
	w.do(&statecontext.PutUser{Mode: statecontext.PutNew, Name: "root", Role: statecontext.UserAdmin, Hash: hash})
	const many = 100
	run := func(password func(i int) string) (in, wrong, tooMany int) {
		errs := make(chan error, many)
		for i := range many {
			go func() {
				_, err := w.from("10.0.0.1:99", "root", password(i))
				errs <- err
			}()
		}
		for range many {
			switch err := <-errs; {
			case err == nil:
				in++
			case errors.Is(err, ErrUnauthenticated):
				wrong++
			case errors.Is(err, ErrTooMany):
				tooMany++
			default:
				t.Error(err)
			}
		}
		return in, wrong, tooMany
	}
	if in, _, _ := run(func(int) string { return "correct horse" }); in != many {
		t.Errorf("%d of %d passed", in, many)
	}
	if in, wrong, tooMany := run(func(i int) string { return fmt.Sprint("guess ", i) }); in != 0 || wrong != userBurst ||
		tooMany != many-userBurst {
		t.Errorf("%d guesses were looked at, %d refused, want %d", wrong, tooMany, userBurst)
	}
	if _, err := w.from("10.0.0.1:99", "root", "correct horse"); err != nil {
		t.Errorf("a user with a cached password is refused: %v", err)
	}
	if len(w.a.checks) != 0 {
		t.Errorf("%d are still looked at", len(w.a.checks))
	}
}

// TestAcceptedIdentityIsRechecked: an identity that was accepted once is not accepted for ever.
func TestAcceptedIdentityIsRechecked(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	w.user("ann", statecontext.UserDDL, "battery staple")
	secret := newToken()
	hash, _ := TokenHash(secret)
	w.do(&statecontext.PutToken{Token: statecontext.Token{User: "ann", Role: statecontext.UserReads, Hash: hash,
		ExpiresMS: w.now.Add(time.Hour).UnixMilli()}})
	in := func(header string) *Identity {
		t.Helper()
		id, err := w.ask(header)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	say := func(what string, id *Identity, want bool) {
		t.Helper()
		if w.a.Still(id) != want {
			t.Errorf("%s: %v", what, !want)
		}
	}
	ann, byToken := in("ann/battery staple"), in("Bearer "+secret)
	say("at first", ann, true)
	say("by token", byToken, true)
	w.now = w.now.Add(2 * time.Hour)
	say("when the token has ended", byToken, false)
	w.now = w.now.Add(-2 * time.Hour)
	w.do(&statecontext.RemoveToken{ID: byToken.token})
	say("when the token is revoked", byToken, false)
	say("the user is not", ann, true)
	w.do(&statecontext.PutUser{Mode: statecontext.PutChange, Name: "ann", Role: statecontext.UserReads})
	say("when the role is another", ann, false)
	ann = in("ann/battery staple")
	w.do(&statecontext.RemoveUser{Name: "ann"})
	say("when the user is removed", ann, false)
	say("a certificate", &Identity{Name: "admin:x", Role: statecontext.UserAdmin}, true)
}

func TestHashFormat(t *testing.T) {
	for _, p := range []string{"", "short", strings.Repeat("x", MaxPassword+1)} {
		if _, err := HashPassword(p); !errors.Is(err, ErrPassword) || p != "" && strings.Contains(err.Error(), p) {
			t.Errorf("%.10q: %v", p, err)
		}
	}
	hash, err := HashPassword("battery staple")
	if err != nil || !strings.HasPrefix(hash, "$argon2id$v=19$m=19456,t=2,p=1$") || strings.Contains(hash, "staple") {
		t.Errorf("%s %v", hash, err)
	}
	for _, bad := range []string{"", "x", "$2a$10$x", strings.Replace(hash, "m=19456", "m=99999999", 1),
		strings.Replace(hash, "t=2", "t=0", 1), hash[:len(hash)-4]} {
		if verifyPassword(bad, "battery staple") {
			t.Errorf("%q lets in", bad)
		}
	}
}

// BenchmarkRemembered measures the cost per request of a user.
func BenchmarkRemembered(b *testing.B) {
	w := newWorld(&testing.T{})
	w.user("root", statecontext.UserAdmin, "correct horse")
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.SetBasicAuth("root", "correct horse")
	for b.Loop() {
		if _, err := w.a.Identify(r); err != nil {
			b.Fatal(err)
		}
	}
}

// TestDiffers: a second check is needed only if the named user or token is new or changed.
func TestDiffers(t *testing.T) {
	w := newWorld(t)
	w.user("ann", statecontext.UserAdmin, "battery staple")
	before := w.state
	basic := func(name string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.SetBasicAuth(name, "x")
		return r
	}
	w.user("bob", statecontext.UserReads, "correct horse")
	for name, want := range map[string]bool{"ann": false, "bob": true, "nobody": false} {
		if got := w.a.Differs(basic(name), before); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if w.a.Differs(basic("bob"), w.state) {
		t.Error("bob differs from himself")
	}
	secret := newToken()
	hash, err := TokenHash(secret)
	if err != nil {
		t.Fatal(err)
	}
	bearer := httptest.NewRequest(http.MethodGet, "/", nil)
	bearer.Header.Set("Authorization", "Bearer "+secret)
	if w.a.Differs(bearer, before) {
		t.Error("an unknown token")
	}
	before = w.state
	w.do(&statecontext.PutToken{Token: statecontext.Token{User: "ann", Role: statecontext.UserReads, Hash: hash}})
	if !w.a.Differs(bearer, before) {
		t.Error("a new token")
	}
}

// TestHashOfUnknownUser: a login with an unknown user name takes a hash of the same cost as any other.
func TestHashOfUnknownUser(t *testing.T) {
	real, err := HashPassword("battery staple")
	if err != nil {
		t.Fatal(err)
	}
	a, b := dummyHash(), dummyHash()
	was, is := strings.Split(real, "$"), strings.Split(a, "$")
	if len(is) != len(was) || !slices.Equal(is[:4], was[:4]) || len(is[4]) != len(was[4]) || len(is[5]) != len(was[5]) {
		t.Errorf("%s costs something else than %s", a, real)
	}
	if a == b || verifyPassword(a, "battery staple") || verifyPassword(a, "") {
		t.Errorf("%s and %s are not the unknown user's", a, b)
	}
}
