package kv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
	"tidemark/kv/store"
	"tidemark/timestamp"
)

const (
	clusterBodyMax = 4 << 20
	// mapBodyMax bounds a map: one of clustermap.MaxBuckets buckets in a rebalance, with long names of nodes and
	// collections and all users and groups, takes about 40 MiB.
	mapBodyMax     = peerMaxBytes
	maxSeal        = 30 * time.Second
	commandTimeout = operationTimeout + adminTimeout
	// relayTimeout bounds requests that this node forwards to another one.
	relayTimeout = operationTimeout + adminCallTimeout + adminTimeout
)

// ClusterView is the answer of GET /v1/cluster: the cluster as one node sees it.
type ClusterView struct {
	Node string `json:"node"`
	// Ready reports whether the node serves documents, Stored whether it has a log of each bucket, and Member whether it
	// is in the map.
	Ready  bool `json:"ready"`
	Stored bool `json:"stored"`
	Member bool `json:"member"`
	// Map is without users. If only some copies were requested, it has only their buckets, with name and UUID.
	Map clustermap.Map `json:"map"`
	// Copies holds the vbuckets of the node, by bucket.
	Copies map[string][]CopyView `json:"copies"`
	// Paused holds the buckets whose replication to this node is paused.
	Paused   []string `json:"paused,omitempty"`
	Progress Progress `json:"progress"`
	// Promises holds epochs that other nodes have begun and of which this node has no map yet.
	Promises clustermap.Promises `json:"promises,omitempty"`
}

// CopyView describes one copy of a vbucket.
type CopyView struct {
	VBucket uint16 `json:"vbucket"`
	State   string `json:"state"`
	High    uint64 `json:"high_seqno"`
	Items   int    `json:"items"`
	// For a replica: Whole reports whether High ends a snapshot, Joined whether its history was checked against the
	// active copy's, and Known is the highest known seqno of the active copy.
	Whole  bool                  `json:"whole"`
	Joined bool                  `json:"joined"`
	Known  uint64                `json:"known"`
	Log    timestamp.FailoverLog `json:"failover_log"`
}

// Progress describes the progress of an operation; only the leader has it.
type Progress struct {
	Operation string `json:"operation,omitempty"`
	Left      int    `json:"left"`
	Total     int    `json:"total"`
	// Waiting is what the operation waits for.
	Waiting string `json:"waiting,omitempty"`
}

// copiesQuery is the parameter of pathCluster that selects copies, once per bucket: world:0,17,1023. If it is absent,
// all copies are returned; if it is empty, none.
const copiesQuery = "copies"

// copies holds vbuckets by bucket, each list ascending; nil means all.
type copies map[string][]uint16

// copiesOf returns the vbuckets of the given moves.
func copiesOf(m clustermap.Map, moves []clustermap.Move) copies {
	out := copies{}
	for _, v := range moves {
		name := m.Buckets[v.Bucket].Name
		out[name] = append(out[name], v.VBucket)
	}
	for _, vbuckets := range out {
		slices.Sort(vbuckets)
	}
	return out
}

// askedCopies is the maximum number of vbuckets that a query selects: more do not fit into a request line.
const askedCopies = 8 * clustermap.MaxVBuckets

// path returns the path that requests these copies, or all copies if they are too many to be listed.
func (c copies) path() string {
	n := 0
	for _, vbuckets := range c {
		n += len(vbuckets)
	}
	if c == nil || n > askedCopies {
		return pathCluster
	}
	q := url.Values{}
	if len(c) == 0 {
		q.Set(copiesQuery, "")
	}
	for bucket, vbuckets := range c {
		ids := make([]string, len(vbuckets))
		for i, vb := range vbuckets {
			ids[i] = strconv.Itoa(int(vb))
		}
		q.Add(copiesQuery, bucket+":"+strings.Join(ids, ","))
	}
	return pathCluster + "?" + q.Encode()
}

// parseCopies parses the query of path.
func parseCopies(q url.Values) (copies, error) {
	if !q.Has(copiesQuery) {
		return nil, nil
	}
	out := copies{}
	for _, text := range q[copiesQuery] {
		if text == "" {
			continue
		}
		bucket, ids, ok := strings.Cut(text, ":")
		for id := range strings.SplitSeq(ids, ",") {
			vb, err := strconv.ParseUint(id, 10, 16)
			if !ok || err != nil {
				return nil, rpc.Refuse(errcode.BadRequest, "%s=%q: want a bucket and its vbuckets, like world:0,17", copiesQuery,
					text)
			}
			out[bucket] = append(out[bucket], uint16(vb))
		}
		slices.Sort(out[bucket])
	}
	return out, nil
}

// wants reports whether the selection includes a vbucket.
func (c copies) wants(bucket string, vb uint16) bool {
	if c == nil {
		return true
	}
	_, ok := slices.BinarySearch(c[bucket], vb)
	return ok
}

// cut returns the part of a map that an answer about the selected copies needs.
func (c copies) cut(m clustermap.Map) clustermap.Map {
	if c == nil {
		return m.WithoutUsers()
	}
	out := clustermap.Map{Format: m.Format, RevEpoch: m.RevEpoch, Rev: m.Rev, Leader: m.Leader}
	for _, b := range m.Buckets {
		if c[b.Name] != nil {
			out.Buckets = append(out.Buckets, clustermap.Bucket{Name: b.Name, UUID: b.UUID})
		}
	}
	return out
}

// View returns the cluster as this node sees it.
func (n *Node) View() ClusterView { return n.view(nil) }

// view is View for some copies.
func (n *Node) view(of copies) ClusterView {
	m := n.cluster.current()
	_, member := m.Node(n.config.NodeID)
	out := ClusterView{Node: n.config.NodeID, Ready: n.serving.Load(), Stored: n.stored(), Member: member &&
		m.RevEpoch > 0, Map: of.cut(m), Copies: map[string][]CopyView{}}
	n.cluster.mu.Lock()
	out.Progress, out.Promises = n.cluster.progress, n.cluster.promises
	n.cluster.mu.Unlock()
	for _, b := range n.loadedBuckets() {
		if n.replicator.isPaused(b.name) {
			out.Paused = append(out.Paused, b.name)
		}
		part := m.BucketOf(b.name, b.uuid)
		if part == nil { // the bucket is being opened or closed
			continue
		}
		for i := range b.store.VBuckets() {
			if !of.wants(b.name, uint16(i)) {
				continue
			}
			info := b.store.VBucket(uint16(i)).Info()
			if info.State == store.Dead {
				continue
			}
			v := CopyView{VBucket: info.ID, State: info.State.String(), High: info.High, Items: info.Items,
				Whole: info.Window.End == info.High, Known: info.High, Log: info.Failover}
			if info.State == store.Replica {
				_, source := part.Role(info.ID, n.config.NodeID)
				seen := n.replicator.look(b.id(), info.ID, source)
				v.Joined, v.Known = seen.joined, max(v.High, seen.known)
			}
			out.Copies[b.name] = append(out.Copies[b.name], v)
		}
	}
	return out
}

// clusterRoutes returns the cluster's part of the admin interface. Changes need a KV user with the right to make
// them; requests among nodes, which include users' keys, need the nodes' own user and over TLS a node's certificate.
func (n *Node) clusterRoutes() []route.Route {
	known, user, node := n.known(access.ReadCluster), n.user(), n.node()
	post := func(path string, who route.Role, handle func(context.Context, []byte) (any, error)) route.Route {
		return route.Route{Method: "POST", Path: path, Role: who, Body: clusterBodyMax, Limit: commandTimeout,
			Handle: command(handle)}
	}
	return []route.Route{
		{Method: "GET", Path: pathCluster, Role: known, Limit: adminTimeout, Handle: n.getCluster},
		{Method: "GET", Path: pathMap, Role: node, Limit: adminTimeout, Handle: n.getMap},
		{Method: "POST", Path: pathMap, Role: node, Body: mapBodyMax, Limit: commandTimeout, Handle: command(n.postMap)},
		post(pathSeal, node, n.postSeal), post(pathPromise, node, n.postPromise),
		post(pathPause, user, n.postPause), post(pathFlush, node, n.postFlush), post(pathFlushAll, user, n.postFlushAll),
		post(pathFailover, user, n.postFailover),
		{Method: "POST", Path: pathRebalance, Role: user, Body: clusterBodyMax, Limit: commandTimeout,
			Handle: n.postRebalance},
		post(pathCollections, user, n.postCollections),
		{Method: "GET", Path: pathLogging, Role: known, Limit: adminTimeout, Handle: n.getLogging},
		{Method: "PUT", Path: pathLogging, Role: user, Body: clusterBodyMax, Limit: adminTimeout,
			Handle: command(n.putLogging)},
	}
}

func (n *Node) getCluster(w http.ResponseWriter, r *http.Request) error {
	of, err := parseCopies(r.URL.Query())
	if err != nil {
		return err
	}
	return writeJSON(w, n.view(of))
}

// getMap answers with the map, or with nothing if the caller's is not older.
func (n *Node) getMap(w http.ResponseWriter, r *http.Request) error {
	m := n.cluster.current()
	epoch, err := strconv.ParseInt(r.URL.Query().Get("rev_epoch"), 10, 64)
	rev, rerr := strconv.ParseInt(r.URL.Query().Get("rev"), 10, 64)
	if err == nil && rerr == nil && !m.Newer(clustermap.Map{RevEpoch: epoch, Rev: rev}) {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return writeJSON(w, m)
}

// command returns a handler for a function with JSON request and answer.
func command(handle func(context.Context, []byte) (any, error)) rpc.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(body, new(json.RawMessage)); err != nil {
			return rpc.Refuse(errcode.BadRequest, "the body is not JSON: %v", err)
		}
		answer, err := handle(r.Context(), body)
		if err != nil {
			return err
		}
		return writeJSON(w, answer)
	}
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

// postSeal makes vbuckets refuse writes for a while, all of them or none, or accept them again.
func (n *Node) postSeal(ctx context.Context, body []byte) (any, error) {
	r, err := decode[sealRequest](body)
	if err != nil {
		return nil, err
	}
	d := time.Duration(r.Milliseconds) * time.Millisecond
	if d < 0 || d > maxSeal {
		return nil, fmt.Errorf("%w: a seal of %v: want at most %v", ErrRefused, d, maxSeal)
	}
	var vbuckets []*store.VBucket
	for _, id := range r.VBuckets {
		v := n.vbucket(r.Bucket, id)
		if v == nil {
			return nil, fmt.Errorf("%w: there is no vbucket %[3]d of bucket %[2]q", ErrRefused, r.Bucket, id)
		}
		vbuckets = append(vbuckets, v)
	}
	if d == 0 {
		for _, v := range vbuckets {
			v.Unseal()
		}
		return sealAnswer{}, nil
	}
	var a sealAnswer
	for i, v := range vbuckets {
		high, err := v.Seal(d)
		if err == nil {
			err = context.Cause(ctx) // the caller may have gone
		}
		if err != nil {
			for _, v := range vbuckets[:i+1] {
				v.Unseal()
			}
			return nil, err
		}
		a.Highs = append(a.Highs, high)
	}
	return a, nil
}

// PauseRequest pauses replication to a node at the ends of snapshots, for tests and drills. An empty Bucket means all
// buckets.
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

// FailoverRequest removes nodes from the cluster. Lose accepts the loss of data that is not replicated.
type FailoverRequest struct {
	Nodes []string `json:"nodes"`
	Lose  bool     `json:"lose"`
}

// FailoverAnswer reports the promoted replicas.
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

// RebalanceRequest changes the membership; without Add and Remove it redistributes the vbuckets. Stop ends the
// operation in progress.
type RebalanceRequest struct {
	Add    []clustermap.Node `json:"add,omitempty"`
	Remove []string          `json:"remove,omitempty"`
	Stop   bool              `json:"stop,omitempty"`
}

// postRebalance begins or stops a rebalance. A node that is added gets the nodes' own password, so only users with
// the right to change users may add one.
func (n *Node) postRebalance(w http.ResponseWriter, r *http.Request) error {
	return command(func(ctx context.Context, body []byte) (any, error) {
		q, err := decode[RebalanceRequest](body)
		if err != nil {
			return nil, err
		}
		if user := callerOf(r); len(q.Add) > 0 && !n.permitted(user, "").Has(access.ManageUsers) {
			return nil, rpc.Refuse(errcode.Forbidden, "user %q may not add nodes, because a new node gets the nodes' own "+
				"password: that needs a role of %s", user, access.Granting(access.SetOf(access.ManageUsers), ""))
		}
		return n.cluster.rebalance(ctx, q)
	})(w, r)
}
