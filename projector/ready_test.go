package projector

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// TestReadyz: a projector is ready when it is registered, has definitions, KV accepts it, and its reports reach the
// leader.
func TestReadyz(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addr, stop := startKV(t, dir, "127.0.0.1:0")
	w := newWorldAt(t, addr)
	readyz := func() (codes string) {
		resp, err := http.Get(w.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return ""
		}
		p := rpc.AsProblem(rpc.ReadProblem(resp))
		if p.Status != http.StatusServiceUnavailable || p.Code != errcode.NotReady {
			t.Errorf("%+v", p)
		}
		for _, r := range p.Reasons {
			codes += r.Code + " "
		}
		return codes
	}
	w.eventually("it has no definitions", func() bool { return readyz() == "no_definitions " })
	w.define(1, 1)
	w.eventually("it is ready", func() bool { return readyz() == "" })
	w.start(1)
	stop()
	w.eventually("KV is away", func() bool { return readyz() == "kv_unavailable " })
	w.eventually("the leader gets reports", func() bool {
		w.manager.mu.Lock()
		defer w.manager.mu.Unlock()
		k := w.manager.reports[len(w.manager.reports)-1].KV
		return len(k) == 1 && k[0].Bucket == testBucket && k[0].Node == addr && k[0].SinceMS > 0 &&
			strings.Contains(k[0].Error, "refused")
	})
	if k := w.p.state().KVTroubles; len(k) != 1 || k[0].Node != addr {
		t.Errorf("the state shows %+v", k)
	}
	startKV(t, dir, addr)
	w.eventually("KV is back", func() bool { return readyz() == "" })
	w.manager.Close()
	w.eventually("the leader does not get it", func() bool { return readyz() == "no_leader " })
}

// TestNotReadyBeforeRegistered: the reasons include their cause.
func TestNotReadyBeforeRegistered(t *testing.T) {
	p := &Projector{}
	p.noteLeader(errors.New("connection refused"))
	if all := p.reasons(); len(all) != 1 || all[0] != (rpc.Reason{Code: rpc.ReasonNoCluster,
		Detail: "no manager has registered this projector yet: connection refused"}) {
		t.Errorf("%+v", all)
	}
}
