package cli

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// TestProjectorsAreQueriedInParallel checks that a projector that hangs does not delay the others: each one answers
// only when all have received their requests.
func TestProjectorsAreQueriedInParallel(t *testing.T) {
	t.Parallel()
	const n = 9
	var requests atomic.Int64
	all := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == n {
			close(all)
		}
		select {
		case <-all:
			rpc.Write(w, r, http.StatusOK, &wire.ProjectorState{ID: "p"})
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	var views []projectorView
	for i := range n {
		views = append(views, projectorView{Admin: fmt.Sprintf("%s/%d", s.URL, i)})
	}
	askProjectors(t.Context(), views, nil)
	for _, v := range views {
		if v.State == nil {
			t.Errorf("%s: %s", v.Admin, v.Error)
		}
	}
}

// TestProjectorStateTimeout checks that no request is made after --timeout, not even with --admin.
func TestProjectorStateTimeout(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			t.Errorf("%v accepted a connection", l.Addr())
		}
	}()
	code, _, stderr := run(t, "", "projector", "state", "--timeout", "1ns", "--admin", l.Addr().String())
	if code != errcode.ExitUnavailable || !strings.Contains(stderr, "no projector answered") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	_ = l.Close()
	<-closed
}
