package statecontext

import (
	"testing"
	"tidemark/errcode"
)

// TestVersionsAgree: the words of rejections, which may differ between versions of one format level, do not make
// replicas differ, and a restore does not depend on checks that only some versions make.
func TestVersionsAgree(t *testing.T) {
	n := cluster(t)
	n.apply(Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: "k"}, Body: &DropIndex{ID: 999}})
	other := *n.state
	other.ledger = other.ledger.cleared()
	key, e := n.state.ledger.oldest("p", false)
	said := *e
	said.outcome.Rejection = &Rejection{Code: e.outcome.Rejection.Code, Message: "the words of another version"}
	other.ledger.put(key, &said)
	if Hash(&other) != Hash(n.state) {
		t.Error("replicas of two versions differ by the words of a refusal")
	}
	said.outcome.Rejection = &Rejection{Code: errcode.UnknownBucket, Message: e.outcome.Rejection.Message}
	if Hash(&other) == Hash(n.state) {
		t.Error("replicas of two outcomes do not differ")
	}

	n.must(create("x", 0, 0))
	b := n.backup()
	odd := *b.State
	odd.limits.LedgerMinAgeMS = -1 // this version's Check rejects it, another version's might not
	if Check(&odd) == nil {
		t.Fatal("Check lets it pass")
	}
	b.Snapshot = snapshot(t, &odd)
	if _, err := PlanRestore(n.state, &odd, RestoreInPlace, 8, nil, nil); err != nil {
		t.Fatalf("its limits are brought within what may be: %v", err)
	}
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 8})
}
