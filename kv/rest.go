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

// Paths that a cluster manager of Couchbase has, as far as clients of documents use them; those of collections are in
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
	// maxMapStreams bounds the streams of maps that a node has open at a time.
	maxMapStreams = 256
	// endOfDocument follows each document of a stream.
	endOfDocument = "\n\n\n\n"
	// otpPrefix is before a node's id where Couchbase names a node of its runtime.
	otpPrefix = "ns_1@"
	// compatibility is the version of Version as Couchbase counts them: major times 65536 and minor.
	compatibility = 7<<16 + 6
)

// restRoutes are what SDKs ask a cluster manager for, true to what this node knows; the errors are in their words.
func (n *Node) restRoutes() []route.Route {
	enter, see, manage := n.may(access.Enter), n.may(access.See), n.may(access.ManageCluster)
	get := func(path string, who route.Role, handle rpc.HandlerFunc) route.Route {
		return route.Route{Method: "GET", Path: path, Role: who, Limit: adminTimeout, Handle: handle}
	}
	return []route.Route{
		{Method: "GET", Path: pathPools, Role: route.Anybody(), Limit: adminTimeout, Handle: n.getPools}, // as there
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

// getPools says that there is one pool, which is the cluster.
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

// hostOf is the host through which a request has come.
func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return strings.Trim(r.Host, "[]")
}

// restNodes are the members in the form of /pools/default; host stands for a node that does not know its own name.
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
	number, _ := strconv.Atoi(port) // the map is checked
	return number
}

// getNodeServices says which services are where.
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

// restBucket describes a bucket at length; nil when its config cannot be read.
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

// terse is the document of a bucket's map: what CCCP shows, and where it is had.
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

// streamTerse shows the bucket's map now, and each one that replaces it, until the client goes, or may see it no more.
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
			return nil // the bucket is gone, or the user's right to it: the stream ends
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
				return nil //nolint:nilerr // the client has gone: nobody is left to tell
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

// failOverNode takes a node out of the cluster, for good: what Couchbase does in two steps, the second being a
// rebalance. hard accepts what is lost.
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
