package kv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"tidemark/internal/rpc"
)

// passedOn marks a forwarded request: another node received it first and did not lead.
const passedOn = "Tidemark-Passed-On"

// passOn answers a request for a change that this node cannot make. If err is a missing right, it answers with that;
// if another node has to make the change, it forwards the request and returns that node's answer. The leader gets the
// request as it came, with the user's password, and checks the rights with the newest map: this node may lag and
// admit users who were removed. passOn returns false for other errors; then nothing was answered.
func (n *Node) passOn(w http.ResponseWriter, r *http.Request, err error) (answered bool) {
	var other *NotLeaderError
	var refused *rpc.Problem
	switch {
	case errors.As(err, &refused):
		rpc.WriteProblem(w, refused)
		return true
	case !errors.As(err, &other):
		return false
	}
	if by := r.Header.Get(passedOn); by != "" {
		_ = formError(w, http.StatusServiceUnavailable, "_", fmt.Sprintf("the lead of the cluster is changing: node %s "+
			"considers this node the leader, and this node %s: try again", by, other.Leader))
		return true
	}
	// The caller may go away: what has begun is carried out.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), adminCallTimeout)
	defer cancel()
	status, media, body, err := n.askAs(ctx, r, other.Leader)
	if err != nil {
		_ = formError(w, http.StatusServiceUnavailable, "_", fmt.Sprintf("%s, the leader of the cluster, did "+
			"not answer: check whether the change was made, and try again: %v", other.Leader, err))
		return true
	}
	if media != "" {
		w.Header().Set("Content-Type", media)
	}
	rpc.BeginAnswer(w)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a failure means that the client is gone
	return true
}

// askAs sends the request to another node, as the same user.
func (n *Node) askAs(ctx context.Context, r *http.Request, admin string) (
	status int, media string, answer []byte, err error) {
	remote := n.cluster.peers.orders
	req, err := http.NewRequestWithContext(ctx, r.Method, remote.url(admin, r.URL.RequestURI()),
		strings.NewReader(r.PostForm.Encode()))
	if err != nil {
		return 0, "", nil, err
	}
	user, password, _ := r.BasicAuth()
	req.SetBasicAuth(user, password)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set(passedOn, n.config.NodeID)
	resp, err := remote.HTTP.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	answer, err = rpc.ReadAnswer(resp, maxPassedOn)
	return resp.StatusCode, resp.Header.Get("Content-Type"), answer, err
}

// maxPassedOn bounds the bytes of the answer to a change.
const maxPassedOn = 64 << 10
