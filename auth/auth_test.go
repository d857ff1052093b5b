package auth

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

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
	next, results, _ := statecontext.ApplyCommands(w.state, w.index, []statecontext.Command{{TimeMS: w.now.UnixMilli(), Body: b}})
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
	hash, err := HashPassword(password)
	if err != nil {
		w.t.Fatal(err)
	}
	w.do(&statecontext.PutUser{Mode: statecontext.PutNew, Name: name, Role: role, Hash: hash})
}

func (w *world) ask(header string) (*Identity, error) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if user, password, ok := strings.Cut(header, "/"); ok {
		r.SetBasicAuth(user, password)
	} else if header != "" {
		r.Header.Set("Authorization", header)
	}
	return w.a.Identify(r)
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
	w.do(&statecontext.PutToken{Token: statecontext.Token{User: "ann", Role: statecontext.UserReads, Hash: hash, ExpiresMS: w.now.Add(time.Hour).UnixMilli()}})
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
			if !errors.Is(err, ErrUnauthenticated) || strings.Contains(err.Error(), "battery") || strings.Contains(err.Error(), statecontext.TokenPrefix) {
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

// TestARememberedPasswordIsTheUsers: a change of the user is seen at the next request, and so is a removal.
func TestARememberedPasswordIsTheUsers(t *testing.T) {
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

// TestFailuresAreCounted: too many wrong passwords of a user are answered without a look, and time heals; who is
// remembered is not kept out by others' failures.
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
		t.Errorf("who was right before is kept out: %v", err)
	}
	if _, err := w.ask("ann/battery staple"); err != nil {
		t.Errorf("another user is kept out: %v", err)
	}
	w.now = w.now.Add(2 * userPause)
	if _, err := w.ask("root/wrong again"); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("after a while: %v", err)
	}
	for i := range 3 * maxCounted {
		w.a.failed(fmt.Sprint("user ", i))
	}
	if len(w.a.failures) > maxCounted || len(w.a.cache) > maxCached {
		t.Errorf("%d are counted", len(w.a.failures))
	}
}

func TestHashesAreOfTheirForm(t *testing.T) {
	for _, p := range []string{"", "short", strings.Repeat("x", MaxPassword+1)} {
		if _, err := HashPassword(p); !errors.Is(err, ErrPassword) || p != "" && strings.Contains(err.Error(), p) {
			t.Errorf("%.10q: %v", p, err)
		}
	}
	hash, err := HashPassword("battery staple")
	if err != nil || !strings.HasPrefix(hash, "$argon2id$v=19$m=19456,t=2,p=1$") || strings.Contains(hash, "staple") {
		t.Errorf("%s %v", hash, err)
	}
	for _, bad := range []string{"", "x", "$2a$10$x", strings.Replace(hash, "m=19456", "m=99999999", 1), strings.Replace(hash, "t=2", "t=0", 1), hash[:len(hash)-4]} {
		if verifyPassword(bad, "battery staple") {
			t.Errorf("%q lets in", bad)
		}
	}
}

// BenchmarkRemembered is what each request of a user pays.
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
