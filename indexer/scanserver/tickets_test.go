package scanserver

import (
	"errors"
	"sync"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/auth"
	"tidemark/statecontext"
)

// TestTicketIsCachedBriefly checks that a manager is queried about a ticket once for many scans, and again when
// its answer has expired.
func TestTicketIsCachedBriefly(t *testing.T) {
	managers := newIssuer(t)
	var clock sync.Mutex
	now := time.Now()
	known := newTickets(managers, func() time.Time { clock.Lock(); defer clock.Unlock(); return now })
	ticket := managers.issue(t, "alice")
	if who, err := known.check(t.Context(), ticket); err != nil || who != "alice" {
		t.Fatalf("%q %v", who, err)
	}
	managers.mu.Lock()
	managers.revoked = true
	managers.mu.Unlock()
	if _, err := known.check(t.Context(), ticket); err != nil || managers.checks != 1 {
		t.Errorf("a moment later: %v, %d requests", err, managers.checks)
	}
	clock.Lock()
	now = now.Add(TicketTrust)
	clock.Unlock()
	var p *rpc.Problem
	if _, err := known.check(t.Context(), ticket); !errors.As(err, &p) || p.Code != errcode.Unauthenticated {
		t.Errorf("when the word is old: %v", err)
	}
	other, err := auth.NewTickets("http://127.0.0.1:1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Issue(&auth.Identity{Name: "eve", Role: statecontext.UserAdmin}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := known.check(t.Context(), foreign); !errors.As(err, &p) || p.Code != errcode.Unauthenticated {
		t.Errorf("of an unknown manager: %v", err)
	}
	known.renewals.Wait()
}
