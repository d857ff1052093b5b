package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"tidemark/internal/tlsconf"
	"tidemark/kv/clustermap"
	"tidemark/kv/store"
	"tidemark/timestamp"
)

const (
	clusterBodyMax = 4 << 20
	maxSeal        = 30 * time.Second
)

// ClusterView is the answer of GET /v1/cluster: what one node knows.
type ClusterView struct {
	Node string `json:"node"`
	// Ready says whether it serves documents, Stored whether it has a log of each bucket; Member whether the map has it.
	Ready  bool           `json:"ready"`
	Stored bool           `json:"stored"`
	Member bool           `json:"member"`
	Map    clustermap.Map `json:"map"`
	// Copies are the vbuckets it has, by bucket.
	Copies map[string][]CopyView `json:"copies"`
	// Paused are the buckets whose replication is held back on this node.
	Paused   []string `json:"paused,omitempty"`
	Progress Progress `json:"progress"`
	// Promises are epochs that others have begun, and of which no map has come yet.
	Promises clustermap.Promises `json:"promises,omitempty"`
}

// CopyView is one copy of a vbucket.
type CopyView struct {
	VBucket uint16 `json:"vbucket"`
	State   string `json:"state"`
	High    uint64 `json:"high_seqno"`
	Items   int    `json:"items"`
	// Of a replica: whether High ends a snapshot, whether its history was checked against the active copy's, and the
	// highest seqno of the active copy that it has heard of.
	Whole  bool                  `json:"whole"`
	Joined bool                  `json:"joined"`
	Known  uint64                `json:"known"`
	Log    timestamp.FailoverLog `json:"failover_log"`
}

// Progress is how an operation goes; only the leader knows.
type Progress struct {
	Operation string `json:"operation,omitempty"`
	Left      int    `json:"left"`
	Total     int    `json:"total"`
	// Waiting says what the operation waits for.
	Waiting string `json:"waiting,omitempty"`
}

// View describes the cluster as this node sees it.
func (n *Node) View() ClusterView {
	m := n.cluster.current()
	_, member := m.Node(n.config.NodeID)
	out := ClusterView{Node: n.config.NodeID, Ready: n.serving.Load(), Stored: n.stored(), Member: member &&
		m.RevEpoch > 0, Map: m, Copies: map[string][]CopyView{}}
	n.cluster.mu.Lock()
	out.Progress, out.Promises = n.cluster.progress, n.cluster.promises
	n.cluster.mu.Unlock()
	for _, b := range n.loadedBuckets() {
		if n.replicator.isPaused(b.name) {
			out.Paused = append(out.Paused, b.name)
		}
		part := m.Bucket(b.name)
		for i := range b.store.VBuckets() {
			info := b.store.VBucket(uint16(i)).Info()
			if info.State == store.Dead {
				continue
			}
			v := CopyView{VBucket: info.ID, State: info.State.String(), High: info.High, Items: info.Items,
				Whole: info.Window.End == info.High, Known: info.High, Log: info.Failover}
			if info.State == store.Replica {
				_, source := part.Role(info.ID, n.config.NodeID)
				seen := n.replicator.look(b.name, info.ID, source)
				v.Joined, v.Known = seen.joined, max(v.High, seen.known)
			}
			out.Copies[b.name] = append(out.Copies[b.name], v)
		}
	}
	return out
}

// clusterHandlers adds the cluster's part of the admin interface. What changes something needs the KV user's password;
// what nodes tell each other comes, over TLS, only from nodes.
func (n *Node) clusterHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET "+pathCluster, n.known(func(w http.ResponseWriter, _ *http.Request) { n.writeJSON(w, n.View()) }))
	mux.HandleFunc("GET "+pathMap, n.known(n.getMap))
	n.collectionHandlers(mux)
	n.restHandlers(mux)
	mux.HandleFunc("GET "+pathLogging, n.known(n.getLogging))
	anybody := func(*http.Request) error { return nil }
	for path, add := range map[string]struct {
		check  func(*http.Request) error
		handle func(context.Context, []byte) (any, error)
	}{
		pathMap: {tlsconf.Only(tlsconf.KV), n.postMap}, pathSeal: {tlsconf.Only(tlsconf.KV), n.postSeal},
		pathPromise: {tlsconf.Only(tlsconf.KV), n.postPromise},
		pathPause:   {anybody, n.postPause}, pathFlush: {anybody, n.postFlush},
		pathFlushAll: {anybody, n.postFlushAll}, pathFailover: {anybody, n.postFailover},
		pathRebalance: {anybody, n.postRebalance}, pathCollections: {anybody, n.postCollections},
	} {
		mux.HandleFunc("POST "+path, n.authorized(add.check, add.handle))
	}
	mux.HandleFunc("PUT "+pathLogging, n.authorized(anybody, n.putLogging))
}

// getMap answers with the map, or with nothing when the caller has it.
func (n *Node) getMap(w http.ResponseWriter, r *http.Request) {
	m := n.cluster.current()
	epoch, err := strconv.ParseInt(r.URL.Query().Get("rev_epoch"), 10, 64)
	rev, rerr := strconv.ParseInt(r.URL.Query().Get("rev"), 10, 64)
	if err == nil && rerr == nil && !m.Newer(clustermap.Map{RevEpoch: epoch, Rev: rev}) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	n.writeJSON(w, m)
}

// authorized checks the sender and the password, reads the body, and words refusals.
func (n *Node) authorized(check func(*http.Request) error, handle func(context.Context, []byte) (any,
	error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !n.hasPassword(r) {
			n.unauthorized(w, "the KV user and password are needed")
			return
		}
		if err := check(r); err != nil {
			n.refuse(w, http.StatusForbidden, problem{Code: codeRefused, Detail: err.Error()})
			return
		}
		var body json.RawMessage
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, clusterBodyMax)).Decode(&body); err != nil {
			n.refuse(w, http.StatusBadRequest, problem{Code: codeRefused, Detail: "the body is no JSON: " + err.Error()})
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(operationTimeout + adminTimeout))
		answer, err := handle(r.Context(), body)
		var other *NotLeaderError
		switch {
		case err == nil:
			n.writeJSON(w, answer)
		case errors.As(err, &other):
			n.refuse(w, http.StatusMisdirectedRequest, problem{Code: codeNotLeader, Detail: err.Error(), Leader: other.Leader})
		case errors.Is(err, store.ErrSealBroken):
			n.refuse(w, http.StatusPreconditionFailed, problem{Code: codeSealBroken, Detail: err.Error()})
		case errors.Is(err, errOlder):
			n.refuse(w, http.StatusConflict, problem{Code: codeOlder, Detail: err.Error()})
		default:
			n.refuse(w, http.StatusConflict, problem{Code: codeOf(err), Detail: err.Error()})
		}
	}
}

func (n *Node) refuse(w http.ResponseWriter, status int, p problem) {
	body, err := json.Marshal(p)
	if err != nil {
		body = nil
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

func decode[T any](body []byte) (r T, err error) {
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return r, nil
}

type done struct {
	RevEpoch int64 `json:"rev_epoch"`
	Rev      int64 `json:"rev"`
}

func doneWith(m clustermap.Map) done { return done{m.RevEpoch, m.Rev} }

// postMap takes a map from the leader.
func (n *Node) postMap(_ context.Context, body []byte) (any, error) {
	r, err := decode[pushRequest](body)
	if err != nil {
		return nil, err
	}
	if err := n.cluster.adopt(r.Map, r.Sealed); err != nil {
		return nil, err
	}
	return doneWith(n.cluster.current()), nil
}

// postPromise promises an epoch to its maker.
func (n *Node) postPromise(_ context.Context, body []byte) (any, error) {
	r, err := decode[promiseRequest](body)
	if err != nil {
		return nil, err
	}
	d := time.Duration(r.Milliseconds) * time.Millisecond
	if d < 0 || d > maxSeal {
		return nil, fmt.Errorf("%w: a promise for %v: want at most %v", ErrRefused, d, maxSeal)
	}
	return n.cluster.give(clustermap.Promise{RevEpoch: r.Epoch, Maker: r.Maker}, d)
}

// postSeal makes vbuckets refuse writes for a while, or take them again.
func (n *Node) postSeal(_ context.Context, body []byte) (any, error) {
	r, err := decode[sealRequest](body)
	if err != nil {
		return nil, err
	}
	d := time.Duration(r.Milliseconds) * time.Millisecond
	if d < 0 || d > maxSeal {
		return nil, fmt.Errorf("%w: a seal of %v: want at most %v", ErrRefused, d, maxSeal)
	}
	var a sealAnswer
	for _, id := range r.VBuckets {
		v := n.vbucket(r.Bucket, id)
		switch {
		case v == nil:
			return nil, fmt.Errorf("%w: bucket %q vbucket %d is not there", ErrRefused, r.Bucket, id)
		case d == 0:
			v.Unseal()
			continue
		}
		high, err := v.Seal(d)
		if err != nil {
			return nil, err
		}
		a.Highs = append(a.Highs, high)
	}
	return a, nil
}

// PauseRequest holds replication to a node back, at the ends of snapshots, for tests and drills. Without Bucket it is
// for all.
type PauseRequest struct {
	Bucket string `json:"bucket,omitempty"`
	Paused bool   `json:"paused"`
}

func (n *Node) postPause(_ context.Context, body []byte) (any, error) {
	r, err := decode[PauseRequest](body)
	if err != nil {
		return nil, err
	}
	n.replicator.pause(r.Bucket, r.Paused)
	return doneWith(n.cluster.current()), nil
}

// FailoverRequest takes nodes out of the cluster. Lose accepts that what is not replicated is lost.
type FailoverRequest struct {
	Nodes []string `json:"nodes"`
	Lose  bool     `json:"lose"`
}

// FailoverAnswer says what was promoted.
type FailoverAnswer struct {
	RevEpoch   int64                  `json:"rev_epoch"`
	Rev        int64                  `json:"rev"`
	Promotions []clustermap.Promotion `json:"promotions"`
}

func (n *Node) postFailover(ctx context.Context, body []byte) (any, error) {
	r, err := decode[FailoverRequest](body)
	if err != nil {
		return nil, err
	}
	return n.cluster.failover(ctx, r)
}

// RebalanceRequest changes who is a member; without both it spreads the vbuckets anew. Stop ends what is under way.
type RebalanceRequest struct {
	Add    []clustermap.Node `json:"add,omitempty"`
	Remove []string          `json:"remove,omitempty"`
	Stop   bool              `json:"stop,omitempty"`
}

func (n *Node) postRebalance(ctx context.Context, body []byte) (any, error) {
	r, err := decode[RebalanceRequest](body)
	if err != nil {
		return nil, err
	}
	return n.cluster.rebalance(ctx, r)
}
