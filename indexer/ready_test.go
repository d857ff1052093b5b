package indexer

import (
	"net/http"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// readyz returns the codes of the reasons why the indexer is not ready, and their details. No codes: it is ready.
func (w *world) readyz() (codes, detail string) {
	w.t.Helper()
	var endpoint string
	w.locked(func() { endpoint = w.endpoint.Admin })
	resp, err := http.Get(endpoint + "/readyz")
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return "", ""
	}
	p := rpc.AsProblem(rpc.ReadProblem(resp))
	if p.Status != http.StatusServiceUnavailable || p.Code != errcode.NotReady || p.RetryAfterMS == 0 {
		w.t.Errorf("not ready: %+v", p)
	}
	var all []string
	for _, r := range p.Reasons {
		all = append(all, r.Code)
	}
	return strings.Join(all, " "), p.Detail
}

// untilReadyz waits for these codes.
func (w *world) untilReadyz(want string) (detail string) {
	w.t.Helper()
	w.until("readyz says "+want, func() bool {
		w.mu.Unlock() // the test's servers may get requests meanwhile
		defer w.mu.Lock()
		codes, text := w.readyz()
		detail = text
		return codes == want
	})
	return detail
}

// TestReadyz checks that the indexer is not ready while a copy of a ready index holds no timestamp, and names the
// copy, is ready then, and is not ready while no manager accepts its reports.
func TestReadyz(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.untilReadyz("")
	if err := w.define(10, 21); err != nil {
		t.Fatal(err)
	}
	if detail := w.untilReadyz("not_held"); !strings.Contains(detail, "of 2 on this indexer") ||
		!strings.Contains(detail, "copy 21 (slice 0 of world/i2)") {
		t.Errorf("%s", detail)
	}
	w.begin(nil)
	w.write(testDoc{id: "a", value: 1})
	w.promote(t.Context())
	w.untilReadyz("")
	w.manager.Close()
	w.untilReadyz("no_leader")
}
