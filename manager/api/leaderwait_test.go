package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/consensus"
)

// TestSuccession checks the answer of a call, its time, and the number of attempts while leaders change.
func TestSuccession(t *testing.T) {
	none, m1, m2 := leading{}, leading{leader: consensus.Leader{ID: "m1", Known: true}},
		leading{leader: consensus.Leader{ID: "m2", Known: true}}
	own := leading{leader: consensus.Leader{ID: "m3", Known: true}, serving: true}
	lost, unknown := rpc.Refuse(errcode.NoLeader, "no"), rpc.Refuse(errcode.OutcomeUnknown, "who knows")
	full := rpc.Refuse(errcode.OutcomeUnknown, "who knows; nothing can be stored now")
	full.Reasons = []rpc.Reason{{Code: reasonUnstored}}
	busy, exists := rpc.Refuse(errcode.Busy, "full"), rpc.Refuse(errcode.NameExists, "n")
	type at struct {
		after time.Duration
		leads leading
	}
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		limit   time.Duration
		keyed   bool
		leads   []at
		answers []*rpc.Problem // of the attempts in order; the last one repeats
		want    errcode.Code   // "": done
		tries   int
		took    time.Duration
	}{
		{"nothing in the way", leaderWait, false, []at{{0, m1}}, []*rpc.Problem{nil}, "", 1, 0},
		{"refused for another reason", leaderWait, false, []at{{0, m1}}, []*rpc.Problem{exists}, errcode.NameExists, 1, 0},
		{"another leader", leaderWait, false, []at{{0, m1}, {390 * ms, none}, {790 * ms, m2}},
			[]*rpc.Problem{lost, lost, nil}, "", 3, 800 * ms}, // m1 was asked again after 260 ms
		{"none, then itself", leaderWait, false, []at{{0, none}, {990 * ms, own}}, []*rpc.Problem{lost, nil},
			"", 2, 1000 * ms},
		{"the same one is about to lead", leaderWait, false, []at{{0, m1}}, []*rpc.Problem{lost, lost, nil}, "", 3, 520 * ms},
		{"never a leader", leaderWait, false, []at{{0, none}}, []*rpc.Problem{lost}, errcode.NoLeader, 1, 2020 * ms},
		{"no leader, and little patience", 100 * ms, false, []at{{0, none}}, []*rpc.Problem{lost},
			errcode.NoLeader, 1, 120 * ms},
		{"a write that went with the leader", leaderWait, false, []at{{0, m1}, {10 * ms, m2}}, []*rpc.Problem{unknown, nil},
			errcode.OutcomeUnknown, 1, 0},
		{"the same with a key", leaderWait, true, []at{{0, m1}, {10 * ms, m2}}, []*rpc.Problem{unknown, nil}, "", 2, 20 * ms},
		{"with a key, and then no manager leads", leaderWait, true, []at{{0, m1}, {10 * ms, m2}, {30 * ms, none}},
			[]*rpc.Problem{unknown, lost}, errcode.OutcomeUnknown, 2, 2020 * ms},
		{"with a key, and then too much to do", leaderWait, true, []at{{0, m1}, {10 * ms, m2}},
			[]*rpc.Problem{unknown, busy}, errcode.OutcomeUnknown, 9, 2020 * ms},
		{"with a key, and it had been done", leaderWait, true, []at{{0, m1}, {10 * ms, m2}},
			[]*rpc.Problem{unknown, exists}, errcode.NameExists, 2, 20 * ms},
		{"with a key, and nothing can be stored", leaderWait, true, []at{{0, m1}, {10 * ms, m2}},
			[]*rpc.Problem{full, nil}, errcode.OutcomeUnknown, 1, 0},
		{"with a key, and nothing can be stored at the next one, either", leaderWait, true, []at{{0, m1}, {10 * ms, m2}},
			[]*rpc.Problem{unknown, full, nil}, errcode.OutcomeUnknown, 2, 20 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := succession{places: make(chan struct{}, 1), leads: func() (now leading) {
					for _, l := range c.leads {
						if time.Since(began) >= l.after {
							now = l.leads
						}
					}
					return now
				}}
				tries := 0
				p, _ := s.run(t.Context(), c.limit, func() (p *rpc.Problem, again bool) {
					if len(s.places) != 0 {
						t.Error("it holds a place while it is tried")
					}
					tries++
					p = c.answers[min(tries, len(c.answers))-1]
					return p, p != nil && worthAgain(p, c.keyed)
				})
				var code errcode.Code
				if p != nil {
					code = p.Code
				}
				if took := time.Since(began); code != c.want || tries != c.tries || took != c.took {
					t.Errorf("%q after %d tries and %s; want %q, %d, %s", code, tries, took, c.want, c.tries, c.took)
				}
				if len(s.places) != 0 {
					t.Error("it holds its place")
				}
			})
		})
	}
}

// TestSuccessionHasBounds checks that a call whose caller leaves waits no longer, and that one too many does not
// wait.
func TestSuccessionHasBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := succession{places: make(chan struct{}, 1), leads: func() leading { return leading{} }}
		lost := func() (*rpc.Problem, bool) { return rpc.Refuse(errcode.NoLeader, "no"), true }
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		first := make(chan time.Duration)
		began := time.Now()
		go func() {
			if _, full := s.run(ctx, leaderWaitMost, lost); full {
				t.Error("the first one had no place")
			}
			first <- time.Since(began)
		}()
		synctest.Wait()
		p, full := s.run(t.Context(), leaderWaitMost, lost)
		if p.Code != errcode.NoLeader || !full || time.Since(began) != 0 {
			t.Errorf("one too many: %v after %s; no place: %t", p, time.Since(began), full)
		}
		if took := <-first; took != time.Second {
			t.Errorf("it waited for %s", took)
		}
	})
}

// TestLeaderPatience checks which calls wait for a leader, and for how long.
func TestLeaderPatience(t *testing.T) {
	user := route{method: http.MethodPost, role: RoleDDL, leader: true}
	for _, c := range []struct {
		name, prefer string
		rt           route
		forwarded    bool
		want         time.Duration
	}{
		{"a user's call", "", user, false, leaderWait},
		{"no patience", "wait=0", user, false, 0},
		{"more of it", "respond-async, Wait=5", user, false, 5 * time.Second},
		{"too much of it", "wait=3600", user, false, leaderWaitMost},
		{"unreadable", "wait=soon", user, false, leaderWait},
		{"with parameters", `wait="3"; foo=bar`, user, false, 3 * time.Second},
		{"forwarded", "", user, true, 0},
		{"a component's", "", route{role: RoleComponent}, false, 0},
		{"anybody's", "", route{role: RoleNone}, false, 0},
		{"an upload", "", route{role: RoleAdmin, upload: true}, false, 0},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
		if c.prefer != "" {
			r.Header.Set(HeaderPrefer, c.prefer)
		}
		if c.forwarded {
			r.Header.Set(HeaderForwarded, "m2")
		}
		if got := leaderPatience(r, &c.rt); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestRepeatable checks which calls are repeated at the next leader if the last one may have executed them. (Logging
// out once was not, and failed with OUTCOME_UNKNOWN during elections.)
func TestRepeatable(t *testing.T) {
	a := sessions{&access{}}
	for _, rt := range a.sessionRoutes() {
		if want := rt.method != http.MethodGet; rt.again != want {
			t.Errorf("%s %s: repeatable %t, want %t", rt.method, rt.path, rt.again, want)
		}
	}
	keyed := route{method: http.MethodPost, doc: operation{headers: []string{HeaderKey}}}
	for _, c := range []struct {
		name string
		rt   route
		key  string
		want bool
	}{
		{"twice is as once", route{method: http.MethodDelete, again: true}, "", true},
		{"a write with its key", keyed, "k1", true},
		{"the same without", keyed, "", false},
		{"a forgotten key", route{method: http.MethodPost}, "k1", false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.rt.method, "/", http.NoBody)
		if c.key != "" {
			r.Header.Set(HeaderKey, c.key)
		}
		if got := repeatable(r, &c.rt); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
