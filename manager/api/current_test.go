package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/fsm"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/manager/auth"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
	"tidemark/wire"
)

// pair starts two managers' Raft nodes and returns the leader; end stops the other one.
func pair(t *testing.T, heartbeat time.Duration) (leader *consensus.Node, end func()) {
	t.Helper()
	nodes, members := make([]*consensus.Node, 2), make([]consensus.Server, 2)
	for i := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		n, err := consensus.Open(consensus.Config{Name: fmt.Sprintf("m%d", i+1), Dir: t.TempDir(), Listener: l,
			REST: fmt.Sprintf("http://127.0.0.1:%d", i+1), Heartbeat: heartbeat},
			fsm.New(hclog.NewNullLogger(), func(err error) { t.Error(err) }))
		if err != nil {
			t.Fatal(err)
		}
		nodes[i], members[i] = n, consensus.Server{ID: n.ID(), Raft: n.Addr(), Voter: true}
		done := make(chan error, 1)
		go func() {
			done <- n.Run(context.Background(), func(ctx context.Context, _ uint64) error { <-ctx.Done(); return nil })
		}()
		t.Cleanup(func() {
			if err := errors.Join(n.Close(), <-done); err != nil {
				t.Error(err)
			}
		})
	}
	if err := nodes[0].Bootstrap(members); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(3 * time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		for i, n := range nodes {
			if _, serving := n.Serving(); serving {
				return n, func() { _ = nodes[1-i].Close() }
			}
		}
	}
	t.Fatal("no manager leads")
	return nil, nil
}

// vouchFor returns functions that check a ticket of the api's manager, like an indexer, and a token, like a
// projector, and return the code of the answer. The user data of this manager does not change.
func vouchFor(t *testing.T, a *API) (ticket, token func() errcode.Code) {
	t.Helper()
	w := newWritten(t)
	hash, err := auth.HashPassword("battery staple")
	if err != nil {
		t.Fatal(err)
	}
	secret := statecontext.TokenPrefix + strings.Repeat("C", 42) + "A"
	tokenHash, err := auth.TokenHash(secret)
	if err != nil {
		t.Fatal(err)
	}
	w.must(&statecontext.PutUser{Mode: statecontext.PutNew, Name: "ann", Role: statecontext.UserAdmin, Hash: hash})
	w.must(&statecontext.PutToken{Token: statecontext.Token{User: "ann", Role: statecontext.UserAdmin, Hash: tokenHash,
		CreatedMS: time.Now().UnixMilli()}})
	if a.cfg.Auth, err = auth.New(func() *statecontext.State { return w.s }, time.Now); err != nil {
		t.Fatal(err)
	}
	if a.cfg.Tickets, err = auth.NewTickets("http://m", time.Now); err != nil {
		t.Fatal(err)
	}
	login := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	login.SetBasicAuth("ann", "battery staple")
	ann, err := a.cfg.Auth.Identify(login)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := a.cfg.Tickets.Issue(ann, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(path string, body any, answer func(http.ResponseWriter, *http.Request) error) func() errcode.Code {
		return func() errcode.Code {
			b, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(b))
			r.Header.Set("Content-Type", rpc.MediaJSON)
			if err := answer(httptest.NewRecorder(), r); err != nil {
				return rpc.AsProblem(err).Code
			}
			return ""
		}
	}
	g := components{access: a.access}
	return ask(scanport.CheckPath, scanport.Check{Ticket: issued}, g.checkTicket),
		ask(wire.TokenCheckPath, wire.TokenCheck{Token: secret, Remote: "10.0.0.9:1"}, g.checkToken)
}

// TestLongCallEndsWithItsPermission checks that a long call ends, with the reason, when its user is changed or
// removed, or when its manager cannot find out for a minute; that the call of an unchanged user continues, and that
// it leaves nothing behind at its end.
func TestLongCallEndsWithItsPermission(t *testing.T) {
	hash := "$argon2id$" // no caller asks for it
	for _, tc := range []struct {
		name  string
		c     statecontext.Body // nil: nothing happens
		cut   time.Duration     // how long the manager is cut off
		admin bool              // by certificate, which needs no state
		want  errcode.Code      // "": the call continues
	}{
		{name: "nothing happens"},
		{name: "he is demoted", c: &statecontext.PutUser{Mode: statecontext.PutChange, Name: "bob",
			Role: statecontext.UserReads}, want: errcode.Unauthenticated},
		{name: "another password", c: &statecontext.PutUser{Mode: statecontext.PutChange, Name: "bob",
			Hash: "$argon2id$new"}, want: errcode.Unauthenticated},
		{name: "he is removed", c: &statecontext.RemoveUser{Name: "bob"}, want: errcode.Unauthenticated},
		{name: "a leader is elected", cut: 40 * time.Second},
		{name: "the manager is cut off", cut: 80 * time.Second, want: errcode.ManagerNotCurrent},
		{name: "it is cut off from an administrator's view", cut: time.Hour, admin: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWritten(t)
				for _, u := range []string{"ann", "bob"} {
					w.must(&statecontext.PutUser{Mode: statecontext.PutNew, Name: u, Role: statecontext.UserAdmin, Hash: hash})
				}
				var state atomic.Pointer[statecontext.State]
				state.Store(w.s)
				users, err := auth.New(state.Load, time.Now)
				if err != nil {
					t.Fatal(err)
				}
				uri := &url.URL{Scheme: "tidemark", Host: "user", Path: "/bob"}
				if tc.admin {
					uri = &url.URL{Scheme: "tidemark", Host: "admin", Path: "/root"}
				}
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
				shown := []*x509.Certificate{{URIs: []*url.URL{uri}, NotAfter: time.Now().Add(24 * time.Hour)}}
				r.TLS = &tls.ConnectionState{PeerCertificates: shown, VerifiedChains: [][]*x509.Certificate{shown}}
				bob, err := users.Identify(r)
				if err != nil || bob.OfUser() == tc.admin {
					t.Fatal(bob, err)
				}
				g := over(&ground{cfg: Config{Auth: users, Name: "m"}, now: time.Now}).access
				run := func(d time.Duration) { // in which the state is current
					for range d / currentEvery {
						g.noteCurrent(time.Now())
						time.Sleep(currentEvery)
					}
				}
				g.noteCurrent(time.Now().Add(1))
				done, ended := make(chan error, 1), make(chan struct{})
				go func() {
					done <- g.whileMay(r.WithContext(context.WithValue(t.Context(), identityKey{}, bob)),
						func(r *http.Request) error {
							select {
							case <-ended:
								return nil
							case <-r.Context().Done():
								return r.Context().Err()
							}
						})
				}()
				run(time.Hour)
				time.Sleep(tc.cut)
				if tc.c != nil {
					w.must(tc.c)
					state.Store(w.s)
				}
				run(2 * mayLag)
				close(ended)
				if err := <-done; tc.want == "" && err != nil || tc.want != "" && rpc.AsProblem(err).Code != tc.want {
					t.Errorf("it ends with %v, want %q", err, tc.want)
				}
			}) // the bubble waits for what is left behind
		})
	}
}

// TestBeforeTheFirstUser checks that nobody's credentials count as wrong while the first user is about to be added,
// however often they are shown: a client that waits for a starting cluster tries again. In a cluster that gets
// no user they are wrong.
func TestBeforeTheFirstUser(t *testing.T) {
	t.Parallel()
	node, _ := pair(t, time.Second)
	g := &ground{cfg: Config{Raft: node, Name: "m"}, now: time.Now}
	a := over(g)
	var err error
	if g.cfg.Auth, err = auth.New(node.State, time.Now); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(time.Minute); !a.catchUpTo(t.Context(), g.now())() || !a.current(); {
		if time.Now().After(until) {
			t.Fatal("a leader could not prove that it is one")
		}
	}
	named := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/status", nil)
	named.SetBasicAuth("admin", "battery staple")
	nameless := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/status", nil)
	for _, r := range []*http.Request{named, nameless} {
		for comes, want := range map[bool]errcode.Code{true: errcode.Unavailable, false: errcode.Unauthenticated} {
			g.cfg.FirstUser = comes
			tries := 1
			if comes {
				tries = 30 // more than the wrong passwords of a user in one moment
			}
			for until := time.Now().Add(time.Minute); tries > 0; {
				_, err := a.authorize(r, &route{role: RoleRead})
				switch {
				case err != nil && rpc.AsProblem(err).Code == want:
					tries--
				case err == nil || rpc.AsProblem(err).Code != errcode.ManagerNotCurrent || time.Now().After(until):
					t.Fatalf("a first user comes: %v: %v, want %s; %d more tries", comes, err, want, tries)
				}
			}
		}
	}
}

// TestResumedLeaderIsNotCurrent checks a manager that was stopped and continues: it considers itself the leader until
// Raft has found otherwise. Its user data must not count as current for longer than any other manager's, it must
// refuse no user by it, and it must not confirm tickets and tokens to indexers and projectors, whose users may have
// been removed meanwhile.
func TestResumedLeaderIsNotCurrent(t *testing.T) {
	t.Parallel()
	node, end := pair(t, 5*time.Second)
	stood := time.Duration(0)
	g := &ground{cfg: Config{Raft: node, Name: "m"}, now: func() time.Time { return time.Now().Add(stood) }}
	a := over(g)
	c := a.currency
	ticket, token := vouchFor(t, a)
	for until := time.Now().Add(time.Minute); !c.catchUpTo(t.Context(), g.now())() || !c.current(); {
		if time.Now().After(until) {
			t.Fatal("a leader could not prove that it is one")
		}
	}
	if of, with := ticket(), token(); of != "" || with != "" {
		t.Errorf("a manager that is current: the ticket %q, the token %q", of, with)
	}
	end() // the other manager no longer answers, as if it followed another leader
	stood = mayLag + time.Second
	came := g.now()
	if c.current() {
		t.Error("it lets users in by what it knew before it was stopped")
	}
	if c.currentSince(came) {
		t.Error("it counts as current, though it has got no answer since it continues")
	}
	var p *rpc.Problem
	if err := c.ensureCurrent(t.Context()); !errors.As(err, &p) || p.Code != errcode.ManagerNotCurrent {
		t.Errorf("it lets users in: %v", err)
	}
	if of, with := ticket(), token(); of != errcode.ManagerNotCurrent || with != errcode.ManagerNotCurrent {
		t.Errorf("it confirms credentials: the ticket %q, the token %q", of, with)
	}
	if c.catchUpTo(t.Context(), came)() {
		t.Error("it counts as current, though no manager answers it")
	}
}
