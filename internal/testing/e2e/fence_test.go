package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/wire"
)

// fenced is a component that checks leaders' fences: a projector or an indexer.
type fenced struct{ id, admin, view, metric string }

// obedient returns every projector and indexer of a cluster.
func obedient(up *testcluster.Cluster) (all []fenced) {
	for _, e := range up.Manifest().Projectors {
		all = append(all, fenced{e.ID, e.Admin, "/v1/state", "tidemark_projector_commands_fenced_total"})
	}
	for _, e := range up.Manifest().Indexers {
		all = append(all, fenced{e.ID, e.Admin, "/v1/status", "tidemark_indexer_commands_fenced_total"})
	}
	return all
}

// fence returns the highest fence that the component has received.
func (f fenced) fence(ctx context.Context, t *testing.T) wire.Fence {
	t.Helper()
	var s struct {
		Fence wire.Fence `json:"fence"`
	}
	if err := testcluster.GetJSON(ctx, f.admin+f.view, &s); err != nil {
		t.Fatal(err)
	}
	return s.Fence
}

// refusals returns how many commands it has refused because of their fences, from its metrics.
func (f fenced) refusals(ctx context.Context, t *testing.T) int {
	t.Helper()
	status, text := harness.Get(ctx, t, f.admin+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("%s: %d %.1000s", f.id, status, text)
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, f.metric+" "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no metric %s", f.id, f.metric)
	return 0
}

// fencesOf returns the fence of every component, and how many commands it has refused.
func fencesOf(ctx context.Context, t *testing.T, all []fenced) (fences []wire.Fence, refusals []int) {
	t.Helper()
	for _, f := range all {
		fences, refusals = append(fences, f.fence(ctx, t)), append(refusals, f.refusals(ctx, t))
	}
	return fences, refusals
}

// refuseOld waits until every component has received a fence of a later term than in old, then sends each one the
// next command of the old, deposed leader: it must be refused as FENCED, counted, and change nothing. refuseOld logs
// how many late commands of the deposed leader itself were refused before.
func refuseOld(ctx context.Context, t *testing.T, all []fenced, old []wire.Fence, before []int) {
	t.Helper()
	for i, f := range all {
		now := f.fence(ctx, t)
		for end := time.Now().Add(harness.Hang); now.Term <= old[i].Term; now = f.fence(ctx, t) {
			if time.Now().After(end) {
				t.Fatalf("%s still obeys term %d", f.id, now.Term)
			}
			time.Sleep(50 * time.Millisecond)
		}
		late := old[i]
		late.Counter += 1000 // more commands than it can have sent meanwhile
		body, err := json.Marshal(wire.HelloRequest{Fence: late, Leader: wire.Leader{ID: "deposed", Term: late.Term}})
		if err != nil {
			t.Fatal(err)
		}
		had := f.refusals(ctx, t)
		status, _, answer, _ := request(ctx, t, http.MethodPut, f.admin+"/v1/hello", string(body))
		if status != http.StatusConflict || !strings.Contains(answer, string(errcode.Fenced)) {
			t.Errorf("%s at term %d answers a command of the deposed leader of term %d with %d %.200s; want 409 FENCED", f.id,
				now.Term, late.Term, status, answer)
		}
		if n := f.refusals(ctx, t); n <= had {
			t.Errorf("%s refused a command and counts %d, %d before", f.id, n, had)
		}
		if after := f.fence(ctx, t); after.Term < now.Term {
			t.Errorf("%s has gone back from term %d to %d", f.id, now.Term, after.Term)
		}
		t.Logf("%s: term %d, then %d; %d commands refused by their fence before ours", f.id, old[i].Term, now.Term,
			had-before[i])
	}
}
