package console

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"tidemark/manager/api/v1"
	"tidemark/manager/console"
)

// TestTakeover checks what the overview shows of the status of a leader that is taking over, which lasts too short a
// time in a real cluster: no stream as missing that it has not heard of yet, and not that it does not answer.
func TestTakeover(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	st := v1.Status{Verdict: v1.VerdictNotReady, Reasons: []string{"m1 has just become leader and is taking over"},
		Coordinator: "hello", Managers: []v1.ManagerStatus{}, Projectors: []v1.ProjectorStatus{{ID: "p1", State: "unknown"}},
		Indexers: []v1.IndexerStatus{}, Buckets: []v1.BucketStatus{{Name: "world", VBuckets: 128, Wanted: true,
			StreamsMissing: 128}}}
	st.Leader.ID, st.Node.ID, st.Node.Role = "m1", "m1", "leader"
	answers := map[string]any{"/v1/whoami": v1.WhoAmI{Role: "admin", By: "nothing"}, "/v1/status": st,
		"/v1/rebalances": v1.RebalanceList{Rebalances: []v1.RebalanceInfo{}}}
	h, err := console.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	defer s.Close()
	b.visit(s.URL + console.Path)
	b.shows("The new leader is taking over: it counts indexes once it has heard of their slices.")
	b.shows("1, state unknown")
	b.until("its streams are unknown",
		"document.querySelector('[aria-label=Buckets] tbody').innerText.includes('unknown')")
	quiet(b)
}
