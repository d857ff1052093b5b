package kv

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
	"tidemark/kv/store"
	"tidemark/timestamp"
)

// Timeouts of the HTTP interface.
const (
	adminTimeout = 10 * time.Second // for requests that only read
	adminGrace   = time.Second      // at the stop, for requests in progress
)

// Status is the answer of GET /v1/status.
type Status struct {
	Node      StatusNode     `json:"node"`
	Version   string         `json:"version"`
	UptimeMS  int64          `json:"uptime_ms"`
	Memcached string         `json:"memcached"`
	Quota     StatusQuota    `json:"quota"`
	Buckets   []StatusBucket `json:"buckets"`
	Counters  StatusCounters `json:"counters"`
}

// StatusNode identifies the answering process.
type StatusNode struct {
	ID   string `json:"id"`
	Role string `json:"role"`
}

// StatusQuota is the memory used by documents, in bytes.
type StatusQuota struct {
	UsedBytes  int64 `json:"used_bytes"`
	LimitBytes int64 `json:"limit_bytes"`
}

// StatusBucket summarizes a bucket on this node. Seqno sums are over the active vbuckets.
type StatusBucket struct {
	Name           string `json:"name"`
	UUID           string `json:"uuid"`
	VBuckets       int    `json:"vbuckets"`
	ActiveVBuckets int    `json:"active_vbuckets"`
	// ReplicaVBuckets is the number of replicas on this node, ReplicaLag how many seqnos of their active copies they are
	// known to lack, and ReplicaUnjoined how many of them have not joined their active copy.
	ReplicaVBuckets int    `json:"replica_vbuckets"`
	ReplicaLag      uint64 `json:"replica_lag"`
	ReplicaUnjoined int    `json:"replica_unjoined"`
	Items           int    `json:"items"`
	Tombstones      int    `json:"tombstones"`
	HighSeqnoSum    uint64 `json:"high_seqno_sum"`
	HighSeqnoMax    uint64 `json:"high_seqno_max"`
	DiskBytes       int64  `json:"disk_bytes"`
	LiveBytes       int64  `json:"live_bytes"`
	Failing         bool   `json:"failing"`
	OrderlyStart    bool   `json:"orderly_start"`
	RevEpoch        int64  `json:"rev_epoch"`
	Rev             int64  `json:"rev"`
}

// StatusCounters holds totals since the process started; Streams, Connections and DCPConnections are present numbers.
type StatusCounters struct {
	Connections     int64 `json:"connections"`
	Requests        int64 `json:"requests"`
	Mutations       int64 `json:"mutations"`
	DCPConnections  int64 `json:"dcp_connections"`
	DCPOpens        int64 `json:"dcp_opens"`
	StreamRequests  int64 `json:"stream_requests"`
	StreamsAccepted int64 `json:"streams_accepted"`
	Rollbacks       int64 `json:"rollbacks"`
	Streams         int64 `json:"streams"`
	DCPItems        int64 `json:"dcp_items"`
	DCPBytes        int64 `json:"dcp_bytes"`
}

// Status returns the present state of the node.
func (n *Node) Status() Status {
	c := n.server.Counters()
	s := Status{
		Node: StatusNode{ID: n.config.NodeID, Role: "kv"}, Version: Version,
		UptimeMS:  n.config.Now().Sub(n.started).Milliseconds(),
		Memcached: n.MemcachedAddr(), Quota: StatusQuota{UsedBytes: n.quota.Used(), LimitBytes: n.quota.Limit()},
		Counters: StatusCounters{
			Connections: c.Connections.Load(), Requests: c.Requests.Load(), Mutations: c.Mutations.Load(),
			DCPConnections: c.DCPConnections.Load(), DCPOpens: c.DCPOpens.Load(), StreamRequests: c.StreamRequests.Load(),
			StreamsAccepted: c.StreamsAccepted.Load(), Rollbacks: c.Rollbacks.Load(), Streams: c.Streams.Load(),
			DCPItems: c.DCPItems.Load(), DCPBytes: c.DCPBytes.Load(),
		},
	}
	for _, b := range n.loadedBuckets() {
		s.Buckets = append(s.Buckets, n.bucketStatus(b))
	}
	return s
}

func (n *Node) bucketStatus(b *bucket) StatusBucket {
	m := n.cluster.current()
	part := m.BucketOf(b.name, b.uuid)
	s := StatusBucket{
		Name: b.store.Name(), UUID: b.store.UUID(), VBuckets: b.store.VBuckets(), DiskBytes: b.store.DiskBytes(),
		LiveBytes: b.store.LiveBytes(), Failing: b.store.Failing(), OrderlyStart: b.report.Fresh || b.report.Clean,
		RevEpoch: m.RevEpoch, Rev: m.Rev,
	}
	for i := range b.store.VBuckets() {
		info := b.store.VBucket(uint16(i)).Info()
		if info.State == store.Replica && part != nil {
			_, source := part.Role(info.ID, n.config.NodeID)
			seen := n.replicator.look(b.id(), info.ID, source)
			s.ReplicaVBuckets++
			if !seen.joined {
				s.ReplicaUnjoined++
			}
			if seen.known > info.High {
				s.ReplicaLag += seen.known - info.High
			}
		}
		if info.State != store.Active {
			continue
		}
		s.ActiveVBuckets++
		s.Items += info.Items
		s.Tombstones += info.Tombstones
		s.HighSeqnoSum += info.High
		s.HighSeqnoMax = max(s.HighSeqnoMax, info.High)
	}
	return s
}

// VBucketStatus describes one vbucket of this node in GET /v1/buckets.
type VBucketStatus struct {
	ID         uint16                `json:"id"`
	State      string                `json:"state"`
	Items      int                   `json:"items"`
	Tombstones int                   `json:"tombstones"`
	HighSeqno  uint64                `json:"high_seqno"`
	PurgeSeqno uint64                `json:"purge_seqno"`
	Failover   timestamp.FailoverLog `json:"failover_log"`
}

// BucketStatus describes a bucket in GET /v1/buckets: its map and the vbuckets on this node.
type BucketStatus struct {
	RevEpoch int64             `json:"rev_epoch"`
	Rev      int64             `json:"rev"`
	Nodes    []clustermap.Node `json:"nodes"`
	Map      clustermap.Bucket `json:"map"`
	VBuckets []VBucketStatus   `json:"vbuckets"`
}

func (n *Node) details(b *bucket) BucketStatus {
	m := n.cluster.current()
	out := BucketStatus{RevEpoch: m.RevEpoch, Rev: m.Rev, Nodes: m.Nodes}
	if part := m.BucketOf(b.name, b.uuid); part != nil {
		out.Map = *part
	}
	for i := range b.store.VBuckets() {
		info := b.store.VBucket(uint16(i)).Info()
		if info.State == store.Dead {
			continue
		}
		v := VBucketStatus{ID: info.ID, State: info.State.String(), Items: info.Items, Tombstones: info.Tombstones,
			HighSeqno: info.High, PurgeSeqno: info.Purge, Failover: info.Failover}
		out.VBuckets = append(out.VBuckets, v)
	}
	return out
}

// adminTable returns the routes of the HTTP interface: health and readiness for everybody and, with TLS, the others
// for callers with a certificate or the password.
func (n *Node) adminTable() *route.Table {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{n: n})
	route.RegisterProcess(registry, n.config.TLS)
	known := n.known(access.ReadCluster)
	routes := slices.Concat([]route.Route{
		route.Alive(), route.Ready(n.reasons),
		{Method: "GET", Path: "/v1/status", Role: known, Limit: adminTimeout, Handle: n.getStatus},
		{Method: "GET", Path: "/v1/buckets", Role: known, Limit: adminTimeout, Handle: n.getDetails},
		route.Metrics(known, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})),
	}, n.clusterRoutes(), n.collectionRoutes(), n.bucketRoutes(), n.restRoutes(), n.userRoutes(), n.groupRoutes())
	for i, x := range routes {
		if x.Method != http.MethodGet {
			routes[i] = judged(x)
		}
	}
	return &route.Table{Lacks: "the admin port of a KV node has no call %s", Fail: n.fail, Routes: routes}
}

func (n *Node) getStatus(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, n.Status())
}

func (n *Node) getDetails(w http.ResponseWriter, _ *http.Request) error {
	out := struct {
		Buckets []BucketStatus `json:"buckets"`
	}{}
	for _, b := range n.loadedBuckets() {
		out.Buckets = append(out.Buckets, n.details(b))
	}
	return writeJSON(w, out)
}

// fail answers with an error, with the code by which nodes distinguish errors.
func (n *Node) fail(w http.ResponseWriter, err error) {
	var other *NotLeaderError
	var known *rpc.Problem
	switch {
	case errors.As(err, &known):
		if known.Status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="kv"`)
		}
		rpc.WriteProblem(w, known)
	case errors.As(err, &other):
		refuse(w, http.StatusMisdirectedRequest, problem{Code: codeNotLeader, Detail: err.Error(), Leader: other.Leader})
	case errors.Is(err, store.ErrSealBroken):
		refuse(w, http.StatusPreconditionFailed, problem{Code: codeSealBroken, Detail: err.Error()})
	case errors.Is(err, errOlder):
		refuse(w, http.StatusConflict, problem{Code: codeOlder, Detail: err.Error()})
	default:
		refuse(w, http.StatusConflict, problem{Code: codeOf(err), Detail: err.Error()})
	}
}

func refuse(w http.ResponseWriter, status int, p problem) {
	body, _ := json.Marshal(p) // a problem always marshals
	write(w, status, rpc.MediaProblem, body)
}

func writeJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return rpc.Refuse(errcode.Internal, "encoding the answer: %v", err)
	}
	write(w, http.StatusOK, rpc.MediaJSON, body)
	return nil
}

// write answers with a body that ends in a newline.
func write(w http.ResponseWriter, status int, media string, line []byte) {
	w.Header().Set("Content-Type", media)
	rpc.BeginAnswer(w)
	w.WriteHeader(status)
	_, _ = w.Write(append(line, '\n')) // a failure means that the client is gone
}
