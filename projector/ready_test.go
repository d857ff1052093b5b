package projector

import (
	"errors"
	"net/http"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// TestReadyz: a projector is ready when it is registered, knows the indexes, and the leader hears of it.
func TestReadyz(t *testing.T) {
	w := newWorld(t)
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
	w.manager.Close()
	w.eventually("the leader does not hear of it", func() bool { return readyz() == "no_leader " })
}

// TestNotReadyBeforeRegistered: what is in the way is said with its cause.
func TestNotReadyBeforeRegistered(t *testing.T) {
	p := &Projector{}
	p.heard(errors.New("connection refused"))
	if all := p.reasons(); len(all) != 1 || all[0] != (rpc.Reason{Code: rpc.ReasonNoCluster,
		Detail: "no manager has registered this projector yet: connection refused"}) {
		t.Errorf("%+v", all)
	}
}
