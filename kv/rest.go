package kv

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
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
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
	"tidemark/kv/store"
)

// Paths of a Couchbase cluster manager, as far as clients of documents use them; those of collections are in
// collections.go.
const (
	pathPools        = "/pools"
	pathPool         = "/pools/default"
	pathNodeServices = "/pools/default/nodeServices"
	pathBuckets      = "/pools/default/buckets"
	pathBucket       = "/pools/default/buckets/{bucket}"
	pathTerse        = "/pools/default/b/{bucket}"
	pathTerseStream  = "/pools/default/bs/{bucket}"
	pathDoFlush      = "/pools/default/buckets/{bucket}/controller/doFlush"
	pathFailOverNode = "/controller/failOver"
	pathGraceful     = "/controller/startGracefulFailover"
)

const (
	// maxMapStreams bounds the concurrent streams of maps on a node.
	maxMapStreams = 256
	// endOfDocument follows each document in a stream.
	endOfDocument = "\n\n\n\n"
	// otpPrefix precedes a node's id where Couchbase identifies a node by its runtime name.
	otpPrefix = "ns_1@"
	// compatibility is Version in Couchbase's numeric form: major times 65536 plus minor.
	compatibility = 7<<16 + 6
)

// restRoutes returns the routes that SDKs use of a cluster manager. The answers show this node's actual state; errors
// have the texts that SDKs expect.
func (n *Node) restRoutes() []route.Route {
	enter, see, manage := n.may(access.Enter), n.may(access.See), n.may(access.ManageCluster)
	get := func(path string, who route.Role, handle rpc.HandlerFunc) route.Route {
		return route.Route{Method: "GET", Path: path, Role: who, Limit: adminTimeout, Handle: handle}
	}
	return []route.Route{
		{Method: "GET", Path: pathPools, Role: route.Anybody(), Limit: adminTimeout, Handle: n.getPools}, // public
		get(pathPool, enter, n.getPool), get(pathNodeServices, enter, n.getNodeServices),
		get(pathBuckets, enter, n.getBuckets), get(pathBucket, see, n.getBucket), get(pathTerse, see, n.getTerse),
		{Method: "GET", Path: pathTerseStream, Role: see, Stream: true, Places: n.mapStreams, Handle: n.streamTerse},
		{Method: "POST", Path: pathDoFlush, Role: n.may(access.ManageBucket), Limit: relayTimeout, Handle: n.doFlush},
		{Method: "POST", Path: pathFailOverNode, Role: manage, Body: maxForm, Limit: relayTimeout,
			Handle: n.failOverNode(true)},
		{Method: "POST", Path: pathGraceful, Role: manage, Body: maxForm, Limit: relayTimeout,
			Handle: n.failOverNode(false)},
	}
}

func notFound(w http.ResponseWriter) error {
	http.Error(w, "Requested resource not found.", http.StatusNotFound)
	return nil
}

// getPools answers that there is one pool, the cluster.
func (n *Node) getPools(w http.ResponseWriter, r *http.Request) error {
	var may access.Set
	if user, err := n.caller(r); err == nil {
		may = n.permitted(user, "")
	}
	out := map[string]any{"isAdminCreds": may.Has(access.ManageUsers), "isEnterprise": false,
		"implementationVersion": Version,
		"pools":                 []any{}, "settings": map[string]any{}, "componentsVersion": map[string]string{"kv": Version}}
	if may.Has(access.Enter) {
		out["pools"] = []any{map[string]string{"name": "default", "uri": pathPool}}
	}
	return writeJSON(w, out)
}

// getPool describes the cluster.
func (n *Node) getPool(w http.ResponseWriter, r *http.Request) error {
	m := n.cluster.current()
	names := []any{}
	for _, b := range n.seenBy(r, m) {
		names = append(names, map[string]string{"bucketName": b.Name, "uuid": b.UUID})
	}
	status := "none"
	if m.Operation != nil {
		status = "running"
	}
	return writeJSON(w, map[string]any{
		"name": "default", "clusterName": "", "nodes": n.restNodes(m, hostOf(r)), "rebalanceStatus": status,
		"balanced":    m.Operation == nil,
		"buckets":     map[string]any{"uri": pathBuckets, "terseBucketsBase": "/pools/default/b/", "bucketNames": names},
		"memoryQuota": n.quota.Limit() >> 20,
		"controllers": map[string]any{"failOver": map[string]string{"uri": pathFailOverNode},
			"startGracefulFailover": map[string]string{"uri": pathGraceful}},
	})
}

// hostOf returns the host that the request was sent to.
func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return strings.Trim(r.Host, "[]")
}

// restNodes returns the members in the format of /pools/default; host replaces the host of a node that does not know
// its own name.
func (n *Node) restNodes(m clustermap.Map, host string) (out []map[string]any) {
	missing, _ := n.cluster.awaited()
	for _, x := range m.Nodes {
		x = n.cluster.contact(x.ID)
		status := "healthy"
		switch {
		case slices.Contains(missing, x.ID):
			status = "unhealthy"
		case x.ID == n.config.NodeID && !n.serving.Load():
			status = "warmup"
		}
		ports := map[string]int{"direct": portOf(x.Memcached)}
		if x.MemcachedTLS != "" {
			ports["httpsMgmt"] = portOf(x.Admin)
		}
		node := map[string]any{
			"hostname": mcbp.FillHost(x.Admin, host), "status": status, "ports": ports,
			"clusterMembership": "active", "clusterCompatibility": compatibility, "version": Version, "os": "tidemark",
			"services": []string{"kv"}, "otpNode": otpPrefix + x.ID, "nodeUUID": x.ID, "recoveryType": "none",
		}
		if x.ID == n.config.NodeID {
			node["thisNode"] = true
		}
		out = append(out, node)
	}
	return out
}

func portOf(address string) int {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	number, _ := strconv.Atoi(port) // the map is validated
	return number
}

// getNodeServices answers with the services and their ports.
func (n *Node) getNodeServices(w http.ResponseWriter, _ *http.Request) error {
	m := n.cluster.current()
	m.Nodes = n.cluster.present(m.Nodes)
	nodes, err := m.Services(n.config.NodeID)
	if err != nil {
		return rpc.Refuse(errcode.Internal, "the map: %v", err)
	}
	return writeJSON(w, map[string]any{"rev": m.Rev, "revEpoch": m.RevEpoch, "nodesExt": nodes,
		"clusterCapabilitiesVer": []int{1, 0}, "clusterCapabilities": map[string]any{}})
}

func (n *Node) getBuckets(w http.ResponseWriter, r *http.Request) error {
	out := []any{}
	m := n.cluster.current()
	for _, part := range n.seenBy(r, m) {
		if b := n.restBucket(m, part, hostOf(r)); b != nil {
			out = append(out, b)
		}
	}
	return writeJSON(w, out)
}

func (n *Node) getBucket(w http.ResponseWriter, r *http.Request) error {
	m := n.cluster.current()
	part := m.Bucket(r.PathValue("bucket"))
	if part == nil {
		return notFound(w)
	}
	return writeJSON(w, n.restBucket(m, part, hostOf(r)))
}

// restBucket describes a bucket in full; nil if its config cannot be read.
func (n *Node) restBucket(m clustermap.Map, part *clustermap.Bucket, host string) map[string]any {
	var c mcbp.ClusterConfig
	if err := json.Unmarshal(n.cluster.config(part.Name).JSON, &c); err != nil {
		return nil
	}
	items, disk := 0, int64(0)
	for _, b := range n.loadedBuckets() {
		if b.name == part.Name && b.uuid == part.UUID {
			s := n.bucketStatus(b)
			items, disk = s.Items, s.DiskBytes
		}
	}
	uri := strings.Replace(pathBucket, "{bucket}", url.PathEscape(part.Name), 1)
	quota := n.quota.Limit()
	controllers := map[string]string{}
	if !part.NoFlush {
		controllers["flush"] = uri + "/controller/doFlush"
	}
	return map[string]any{
		"name": part.Name, "uuid": part.UUID, "bucketType": "membase", "nodeLocator": "vbucket", "uri": uri,
		"streamingUri":  strings.Replace(pathTerseStream, "{bucket}", url.PathEscape(part.Name), 1),
		"replicaNumber": part.Replicas, "numVBuckets": len(part.Chains), "evictionPolicy": "valueOnly",
		"storageBackend": "couchstore", "compressionMode": "off", "conflictResolutionType": "seqno", "maxTTL": 0,
		"durabilityMinLevel": "none", "replicaIndex": false, "autoCompactionSettings": false,
		"quota": map[string]int64{"ram": quota, "rawRAM": quota}, "nodes": n.restNodes(m, host),
		"basicStats":         map[string]any{"itemCount": items, "diskUsed": disk, "memUsed": n.quota.Used()},
		"bucketCapabilities": c.BucketCapabilities, "vBucketServerMap": c.VBucketServerMap,
		"controllers": controllers,
	}
}

// terse returns the document with a bucket's map: the config as in CCCP, and the URIs where it is available.
func (n *Node) terse(bucket string) (body []byte, config server.ClusterConfig, ok bool) {
	config = n.cluster.config(bucket)
	if config.JSON == nil {
		return nil, config, false
	}
	head := fmt.Sprintf(`{"uri":%q,"streamingUri":%q,"clusterCapabilitiesVer":[1,0],"clusterCapabilities":{},`,
		strings.Replace(pathTerse, "{bucket}", url.PathEscape(bucket), 1),
		strings.Replace(pathTerseStream, "{bucket}", url.PathEscape(bucket), 1))
	return append([]byte(head), config.JSON[1:]...), config, true
}

func (n *Node) getTerse(w http.ResponseWriter, r *http.Request) error {
	body, _, ok := n.terse(r.PathValue("bucket"))
	if !ok {
		return notFound(w)
	}
	write(w, http.StatusOK, rpc.MediaJSON, body)
	return nil
}

// streamTerse streams the bucket's map and every later one, until the client is gone or may no longer see the bucket.
func (n *Node) streamTerse(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	var shown server.ClusterConfig
	for first := true; ; first = false {
		changed := n.cluster.changes()
		body, config, ok := n.terse(r.PathValue("bucket"))
		switch {
		case !ok && first:
			return notFound(w)
		case !ok, !n.permitted(callerOf(r), r.PathValue("bucket")).Has(access.See):
			return nil // the bucket is gone, or the user's right to see it
		}
		if first || config.RevEpoch != shown.RevEpoch || config.Rev != shown.Rev {
			if first {
				w.Header().Set("Content-Type", "application/json")
			}
			_ = control.SetWriteDeadline(time.Now().Add(adminTimeout))
			_, err := w.Write(append(body, endOfDocument...))
			if err == nil {
				err = control.Flush()
			}
			if err != nil {
				return nil //nolint:nilerr // the client is gone
			}
			shown = config
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		}
	}
}

// failOverNode permanently removes a node from the cluster, which Couchbase does in two steps, the second one a
// rebalance. hard accepts the loss of data.
func (n *Node) failOverNode(hard bool) rpc.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := readForm(r); err != nil {
			return err
		}
		if len(r.Form["otpNode"]) == 0 {
			return formError(w, http.StatusBadRequest, "otpNode", "The value must be supplied")
		}
		request := FailoverRequest{Lose: hard}
		for _, name := range r.Form["otpNode"] {
			id := strings.TrimPrefix(name, otpPrefix)
			if _, ok := n.cluster.current().Node(id); !ok {
				http.Error(w, "Unknown server given.", http.StatusBadRequest)
				return nil
			}
			request.Nodes = append(request.Nodes, id)
		}
		_, err := n.cluster.failover(r.Context(), request)
		switch {
		case err == nil, n.passOn(w, r, err):
			return nil
		case errors.Is(err, ErrRefused), errors.Is(err, clustermap.ErrMap), errors.Is(err, store.ErrSealBroken):
			return formError(w, http.StatusBadRequest, "_", err.Error())
		}
		return formError(w, http.StatusServiceUnavailable, "_", err.Error())
	}
}
