package statecontext

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"tidemark/errcode"
	"tidemark/index"
)

// governed returns a cluster with an administrator, users with role ddl, and a small ledger.
func governed(t testing.TB, entries uint32, users ...string) *node {
	n := cluster(t)
	n.must(&PutUser{Mode: PutFirst, Name: "admin", Role: UserAdmin, Hash: "h"})
	for _, name := range users {
		n.must(&PutUser{Mode: PutNew, Name: name, Role: UserDDL, Hash: "h"})
	}
	limits := DefaultLimits()
	limits.LedgerEntries = entries
	n.must(&SetLimits{Limits: limits})
	return n
}

// askAs sends a request with a key of its own.
func (n *node) askAs(principal string, b Body) error {
	n.t.Helper()
	r := n.apply(Command{TimeMS: n.now, Request: &Request{Principal: principal, Key: fmt.Sprint(n.raft)}, Body: b})[0]
	return r.Err()
}

// fill sends requests with role ddl until one is rejected, and returns how many were remembered.
func (n *node) fill(principal string) (written int) {
	n.t.Helper()
	for {
		switch err := n.askAs(principal, &DropIndex{ID: 999}); {
		case errors.Is(err, errcode.LedgerFull):
			return written
		case !errors.Is(err, errcode.UnknownIndex):
			n.t.Fatal(err)
		}
		written++
	}
}

// TestOnePrincipalDoesNotFillTheLedger: a user who writes without pause takes neither the room of other users nor the
// administrators' ability to stop that user.
func TestOnePrincipalDoesNotFillTheLedger(t *testing.T) {
	users := []string{"ann", "bob", "cid", "dan", "eve", "fay", "gus"}
	n := governed(t, 320, users...)
	for i, name := range users {
		left := 300 - n.state.LedgerLen() // without the reserve
		if got := n.fill(name); got != (left+1)/2 {
			t.Fatalf("%s, after %d others, got room for %d of %d", name, i, got, left)
		}
	}
	for range 5 {
		if err := n.askAs("admin", &DropIndex{ID: 999}); !errors.Is(err, errcode.UnknownIndex) {
			t.Fatalf("an administrator's DDL: %v", err)
		}
	}
	for _, name := range users { // authenticated by a certificate
		if err := n.askAs("operator", &RemoveUser{Name: name}); err != nil {
			t.Fatalf("removing %s: %v", name, err)
		}
	}
	if n.state.UserCount() != 1 {
		t.Fatalf("%d users are left", n.state.UserCount())
	}
}

// TestBusyUserLosesItsOldestOutcomes: a user who writes much loses the oldest of the user's own outcomes, not those
// of other users.
func TestBusyUserLosesItsOldestOutcomes(t *testing.T) {
	n := governed(t, 320, "ann", "bob")
	if err := n.askAs("bob", &DropIndex{ID: 999}); !errors.Is(err, errcode.UnknownIndex) {
		t.Fatal(err)
	}
	for range 10 {
		n.now += n.state.limits.LedgerMinAgeMS
		n.fill("ann")
		if n.state.ledger.share("bob") != 1 || n.state.ledger.share("ann") > 150 {
			t.Fatalf("bob's outcome is gone, or ann has %d", n.state.ledger.share("ann"))
		}
	}
	n.now += n.state.limits.LedgerMaxAgeMS
	for range 20 {
		n.askAs("ann", &DropIndex{ID: 999})
	}
	if n.state.ledger.share("bob") != 0 || n.state.LedgerLen() > 20 {
		t.Fatalf("%d outcomes are kept beyond their age", n.state.LedgerLen())
	}
	s, err := ReadSnapshot(bytes.NewReader(snapshot(t, n.state)))
	if err != nil || s.ledger.share("ann") != n.state.ledger.share("ann") {
		t.Fatalf("%v: a snapshot brings %d of %d outcomes of ann's", err, s.ledger.share("ann"), n.state.ledger.share("ann"))
	}
}

// TestLedgerIsBounded: whatever requests come at whatever time, the ledger stays within its bound, no young outcome
// is forgotten, and an administrator is never rejected unless administrators alone use up the reserve.
func TestLedgerIsBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const entries = 64
		users := []string{"ann", "bob", "cid", "dan"}
		n := governed(t, entries, users...)
		n.t = t
		type outcome struct {
			principal, key string
			atMS           int64
		}
		var young []outcome
		for i := range rapid.IntRange(1, 150).Draw(rt, "requests") {
			n.now += int64(rapid.SampledFrom([]int{0, 0, 0, 1000, 60_000, 600_000}).Draw(rt, "later"))
			minAge := n.state.limits.LedgerMinAgeMS
			admins, kept := 0, young[:0]
			for _, o := range young {
				if n.now-o.atMS < minAge {
					kept = append(kept, o)
					if o.principal == "admin" {
						admins++
					}
				}
			}
			young = kept
			o := outcome{rapid.SampledFrom(append(users, "ann", "ann", "ann", "admin")).Draw(rt, "principal"), fmt.Sprint(i),
				n.now}
			r := n.apply(Command{TimeMS: n.now, Request: &Request{Principal: o.principal, Key: o.key},
				Body: &DropIndex{ID: index.ID(999)}})[0]
			switch refused := errors.Is(r.Err(), errcode.LedgerFull); {
			case !refused:
				young = append(young, o)
			case o.principal == "admin" && admins < entries/reservedPart:
				rt.Fatalf("an administrator with %d young outcomes is refused: %v", admins, r.Err())
			}
			if n.state.LedgerLen() > entries {
				rt.Fatalf("%d outcomes, at most %d", n.state.LedgerLen(), entries)
			}
			for _, o := range young {
				if _, known := n.state.Outcome(&Request{Principal: o.principal, Key: o.key}); !known {
					rt.Fatalf("the outcome %s of %s is forgotten after %d ms", o.key, o.principal, n.now-o.atMS)
				}
			}
		}
	})
}
