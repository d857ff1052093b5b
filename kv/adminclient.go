package kv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

const (
	adminCallTimeout = operationTimeout + 2*adminTimeout
	// viewTimeout bounds requests that only read a node's state.
	viewTimeout = 3 * time.Second
	// orderRest is how long after the first of several nodes the others may answer to count as reachable.
	orderRest = 300 * time.Millisecond
	// warmPatience is how long to wait for a node that is loading its documents, warmPause the interval of retries.
	warmPatience = time.Minute
	warmPause    = 250 * time.Millisecond
	// leaderHops is the maximum number of redirections to another leader.
	leaderHops = 3
)

// Admin is a client of a cluster's admin interface, for the command line and tests.
type Admin struct {
	remote    Remote
	addresses []string
}

// ErrSilent is wrapped if no node answered, or not the one that was addressed.
var ErrSilent = errors.New("no KV node answered")

// NewAdmin returns a client for a cluster with these admin addresses (host:port); it finds the other nodes through
// the map. With a TLS configuration it uses HTTPS for all nodes.
func NewAdmin(addresses []string, user, password string, conf *tls.Config) *Admin {
	return &Admin{remote: NewRemote(user, password, adminCallTimeout, conf), addresses: addresses}
}

// NodeStatus describes a node in ClusterStatus.
type NodeStatus struct {
	ID        string `json:"id"`
	Memcached string `json:"memcached,omitempty"`
	Admin     string `json:"admin"`
	// State is ready, warming up, not a member, or unreachable.
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
	// RevEpoch and Rev identify the map that the node has.
	RevEpoch int64              `json:"rev_epoch"`
	Rev      int64              `json:"rev"`
	Buckets  []NodeBucketStatus `json:"buckets"`
}

// unreachable is the State of a node that does not answer.
const unreachable = "unreachable"

// NodeBucketStatus describes a bucket on a node. Items counts items in active vbuckets; Lag sums the seqnos that
// replicas lack of their active copies; Unjoined counts replicas that have not joined their active copy.
type NodeBucketStatus struct {
	Bucket   string `json:"bucket"`
	Active   int    `json:"active_vbuckets"`
	Replica  int    `json:"replica_vbuckets"`
	Items    int    `json:"items"`
	Lag      uint64 `json:"replica_lag"`
	Unjoined int    `json:"replica_unjoined"`
	Paused   bool   `json:"replication_paused"`
}

// ClusterStatus describes a cluster according to the newest map of any node.
type ClusterStatus struct {
	RevEpoch int64        `json:"rev_epoch"`
	Rev      int64        `json:"rev"`
	Leader   string       `json:"leader"`
	Progress *Progress    `json:"operation,omitempty"`
	Nodes    []NodeStatus `json:"nodes"`
}

// Status queries all nodes. It returns an error if none answers.
func (a *Admin) Status(ctx context.Context) (ClusterStatus, error) {
	s, err := a.answers(ctx)
	if err != nil {
		return ClusterStatus{}, err
	}
	return s.status(), nil
}

// answers queries all nodes. Errors wrap ErrSilent if none answers, and ErrRefused, ErrNeedsTLS or ErrNoTLS if all
// nodes that answer refuse the client.
func (a *Admin) answers(ctx context.Context) (*answers, error) {
	s := &answers{views: map[string]ClusterView{}, failed: map[string]error{}}
	s.ask(ctx, a.remote, a.addresses)
	var members []string
	for _, x := range s.m.Nodes {
		members = append(members, x.Admin)
	}
	s.ask(ctx, a.remote, members)
	if len(s.views) == 0 {
		var all []error
		for _, address := range slices.Sorted(maps.Keys(s.failed)) {
			all = append(all, s.failed[address])
		}
		err, at := errors.Join(all...), strings.Join(a.addresses, ", ")
		if errors.Is(err, ErrRefused) || errors.Is(err, ErrNeedsTLS) || errors.Is(err, ErrNoTLS) { // a node answers
			return nil, fmt.Errorf("no KV node at %s reported its state: %w", at, err)
		}
		return nil, fmt.Errorf("%w at %s: %w", ErrSilent, at, err)
	}
	return s, nil
}

// answers holds the answers of a cluster's nodes by address.
type answers struct {
	views  map[string]ClusterView
	failed map[string]error
	m      clustermap.Map // the newest of any node
}

// ask queries, concurrently, the nodes that were not queried yet: several may hang.
func (s *answers) ask(ctx context.Context, r Remote, addresses []string) {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	var asked []string
	for _, address := range addresses {
		if _, have := s.views[address]; !have && s.failed[address] == nil && address != "" &&
			!slices.Contains(asked, address) {
			asked = append(asked, address)
		}
	}
	views, errs := make([]ClusterView, len(asked)), make([]error, len(asked))
	var all sync.WaitGroup
	for i, address := range asked {
		all.Go(func() { errs[i] = r.Call(ctx, address, http.MethodGet, pathCluster, nil, &views[i]) })
	}
	all.Wait()
	for i, address := range asked {
		if errs[i] != nil {
			s.failed[address] = errs[i]
			continue
		}
		s.views[address] = views[i]
		if views[i].Map.Newer(s.m) || s.m.Leader == "" {
			s.m = views[i].Map
		}
	}
}

// status combines the answers.
func (s *answers) status() (out ClusterStatus) {
	m := s.m
	out.RevEpoch, out.Rev, out.Leader = m.RevEpoch, m.Rev, m.Leader
	highs := map[copyID]uint64{} // high seqnos of the active copies
	for _, v := range s.views {
		for bucket, copies := range v.Copies {
			for _, c := range copies {
				if c.State == store.Active.String() {
					highs[copyID{bucket, c.VBucket}] = max(highs[copyID{bucket, c.VBucket}], c.High)
				}
			}
		}
		if v.Node == m.Leader && m.Operation != nil {
			out.Progress = &Progress{Operation: m.Operation.ID, Left: m.Left(), Total: m.Operation.VBuckets,
				Waiting: v.Progress.Waiting}
		}
	}
	for address, v := range s.views {
		out.Nodes = append(out.Nodes, v.status(address, m, highs))
	}
	for address, err := range s.failed {
		n := NodeStatus{ID: address, Admin: address, State: unreachable, Detail: err.Error(), Buckets: []NodeBucketStatus{}}
		for _, x := range m.Nodes {
			if x.Admin == address {
				n.ID, n.Memcached = x.ID, x.Memcached
			}
		}
		out.Nodes = append(out.Nodes, n)
	}
	slices.SortFunc(out.Nodes, func(x, y NodeStatus) int { return strings.Compare(x.ID, y.ID) })
	return out
}

// status summarizes a node's copies.
func (v ClusterView) status(address string, m clustermap.Map, highs map[copyID]uint64) NodeStatus {
	s := NodeStatus{ID: v.Node, Admin: address, State: "ready", RevEpoch: v.Map.RevEpoch, Rev: v.Map.Rev}
	self, member := m.Node(v.Node)
	switch {
	case !member || m.RevEpoch == 0:
		s.State = "not a member"
	case !v.Ready:
		s.State = "warming up"
	}
	s.Memcached = self.Memcached
	for _, b := range m.Buckets {
		n := NodeBucketStatus{Bucket: b.Name, Paused: slices.Contains(v.Paused, b.Name)}
		for _, c := range v.Copies[b.Name] {
			switch c.State {
			case store.Active.String():
				n.Active++
				n.Items += c.Items
			case store.Replica.String():
				n.Replica++
				if !c.Joined {
					n.Unjoined++
				}
				if high := max(c.Known, highs[copyID{b.Name, c.VBucket}]); high > c.High {
					n.Lag += high - c.High
				}
			}
		}
		s.Buckets = append(s.Buckets, n)
	}
	return s
}

// Failover removes nodes from the cluster and promotes replicas.
func (a *Admin) Failover(ctx context.Context, r FailoverRequest) (answer FailoverAnswer, err error) {
	return answer, a.lead(ctx, pathFailover, r, &answer)
}

// Rebalance begins a rebalance or stops one. Status reports its progress.
func (a *Admin) Rebalance(ctx context.Context, r RebalanceRequest) error {
	return a.lead(ctx, pathRebalance, r, nil)
}

// Pause pauses replication to all nodes at the ends of snapshots, or resumes it.
func (a *Admin) Pause(ctx context.Context, r PauseRequest) error {
	for _, address := range a.addresses {
		if err := a.remote.Call(ctx, address, http.MethodPost, pathPause, r, nil); err != nil {
			return err
		}
	}
	return nil
}

// Flush empties a bucket on all nodes: each vbucket is created anew, as KV engines do. It waits up to warmPatience
// for nodes that are loading their documents.
func (a *Admin) Flush(ctx context.Context, bucket string) error {
	for until := time.Now().Add(warmPatience); ; {
		err := a.lead(ctx, pathFlushAll, FlushRequest{Bucket: bucket}, nil)
		switch {
		case !errors.Is(err, errWarming):
			return err
		case time.Now().After(until):
			return fmt.Errorf("%w; waited for %v", err, warmPatience)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the caller no longer waits: %w", err, context.Cause(ctx))
		case <-time.After(warmPause):
		}
	}
}

// Collections creates or drops a scope or collection, and returns the uid of the resulting manifest.
func (a *Admin) Collections(ctx context.Context, c clustermap.CollectionChange) (uid string, err error) {
	var answer collectionsAnswer
	err = a.lead(ctx, pathCollections, c, &answer)
	return answer.UID, err
}

// Manifest returns the bucket's manifest of collections from the first node that answers.
func (a *Admin) Manifest(ctx context.Context, bucket string) (m *mcbp.Manifest, err error) {
	m = new(mcbp.Manifest)
	return m, a.read(ctx, strings.Replace(pathScopes, "{bucket}", url.PathEscape(bucket), 1), m)
}

// read queries the nodes in turn, each for up to adminTimeout, until one answers.
func (a *Admin) read(ctx context.Context, path string, answer any) (err error) {
	for _, address := range a.order(ctx) {
		one, cancel := context.WithTimeout(ctx, adminTimeout)
		err = a.remote.Call(one, address, http.MethodGet, path, nil, answer)
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return a.silent(err)
}

// silent wraps err in ErrSilent if the last node that was queried did not answer.
func (a *Admin) silent(err error) error {
	if errors.As(err, new(*url.Error)) {
		return fmt.Errorf("%w at %s: %w", ErrSilent, strings.Join(a.addresses, ", "), err)
	}
	return err
}

// order returns the addresses, with nodes that do not answer promptly at the end: a call may take long and should not
// be spent on a node that hangs.
func (a *Admin) order(ctx context.Context) []string {
	if len(a.addresses) < 2 {
		return a.addresses
	}
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	answered := make(chan int, len(a.addresses)) // the index of a node that answered, or -1 for one that is unreachable
	for i, address := range a.addresses {
		go func() {
			// No map has this epoch, so the answer is that there is no newer one.
			path := fmt.Sprintf("%s?rev_epoch=%d&rev=0", pathMap, int64(math.MaxInt64))
			if errors.As(a.remote.Call(ctx, address, http.MethodGet, path, nil, nil), new(*url.Error)) {
				i = -1
			}
			answered <- i
		}()
	}
	lives := make([]bool, len(a.addresses))
	var rest <-chan time.Time
	for n := 0; n < len(a.addresses); n++ {
		select {
		case i := <-answered:
			if i < 0 {
				continue
			}
			if lives[i] = true; rest == nil {
				rest = time.After(orderRest)
			}
		case <-rest:
			n = len(a.addresses)
		}
	}
	var first, last []string
	for i, address := range a.addresses {
		if lives[i] {
			first = append(first, address)
		} else {
			last = append(last, address)
		}
	}
	return append(first, last...)
}

// lead sends a request to the node that leads the cluster.
func (a *Admin) lead(ctx context.Context, path string, body, answer any) error {
	var err error
	silent := map[string]error{} // errors of nodes that did not answer: each is waited for once
	for _, address := range a.order(ctx) {
		for range leaderHops {
			if silent[address] != nil {
				err = silent[address]
				break
			}
			err = a.remote.Call(ctx, address, http.MethodPost, path, body, answer)
			var none *url.Error
			if errors.As(err, &none) {
				silent[address] = fmt.Errorf("leader %s does not answer: %w", address, err)
			}
			var other *NotLeaderError
			if !errors.As(err, &other) || other.Leader == "" {
				break
			}
			address = other.Leader
		}
		if err == nil || errors.Is(err, ErrRefused) {
			return err
		}
	}
	return a.silent(err)
}

// Answered reports whether a node has answered.
func (s ClusterStatus) Answered(id string) bool {
	return slices.ContainsFunc(s.Nodes, func(n NodeStatus) bool { return n.ID == id && n.State != unreachable })
}
