package api

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"tidemark/client"
	"tidemark/internal/rpc"
)

// forward sends a request to the leader and its answer back: one hop, never two.
func (a *API) forward(w http.ResponseWriter, r *http.Request) error {
	leader, ok := a.leaderOf(a.cfg.Raft.State())
	if !ok {
		return noLeader("no leader is known at the moment; try again")
	}
	if r.Header.Get(HeaderForwarded) != "" {
		p := noLeader("this manager does not lead, although it was asked as the leader; try again")
		p.Leader = &leader
		return p
	}
	if leader.REST == a.cfg.REST {
		return noLeader("this manager is taking over leadership; try again")
	}
	body := http.MaxBytesReader(w, r.Body, rpc.MaxControlBody)
	req, err := http.NewRequestWithContext(r.Context(), r.Method, leader.REST+r.URL.RequestURI(), body)
	if err != nil {
		return rpc.NewProblem(http.StatusBadRequest, rpc.CodeBadRequest, "%v", err)
	}
	req.ContentLength = r.ContentLength
	for _, h := range []string{"Content-Type", "Accept", rpc.HeaderFormat, HeaderKey, HeaderTimeout, "If-Match"} {
		if v := r.Header.Get(h); v != "" {
			req.Header.Set(h, v)
		}
	}
	req.Header.Set(HeaderForwarded, a.cfg.Name)
	resp, err := a.rpc.HTTP().Do(req)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return rpc.NewProblem(http.StatusRequestEntityTooLarge, rpc.CodeTooLarge, "the body has more than %d bytes", tooLarge.Limit)
		}
		return a.forwardFailed(r, err)
	}
	defer resp.Body.Close()
	w.Header().Set(rpc.HeaderLeader, leader.REST)
	copyAnswer(w, resp)
	return nil
}

// forwardFailed: whether the leader has done it is unknown for a write that was sent, and no matter for a read, for a
// write that the ledger guards, and for what components send (all of it may be sent twice).
func (a *API) forwardFailed(r *http.Request, err error) error {
	var dial *net.OpError
	unsent := errors.As(err, &dial) && dial.Op == "dial"
	component := strings.HasPrefix(r.URL.Path, "/v1/components/") || strings.HasPrefix(r.URL.Path, "/v1/cluster/")
	if unsent || component || r.Method == http.MethodGet || r.Context().Err() == nil && r.Header.Get(HeaderKey) != "" {
		return noLeader("the leader could not be reached: %v; try again (with the same %s for a write)", err, HeaderKey)
	}
	return rpc.NewProblem(http.StatusGatewayTimeout, client.CodeUnknownOutcome, "the leader gave no answer, the write may or may not be done: %v; with an %s it could be sent again safely", err, HeaderKey)
}

// copyAnswer passes on status, the headers that count, and the body.
func copyAnswer(w http.ResponseWriter, resp *http.Response) {
	for _, h := range []string{"Content-Type", "Content-Length", "ETag", "Retry-After", "Allow", HeaderCAS, rpc.HeaderLeader} {
		if v := resp.Header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // a cut answer shows at the client as one
}
