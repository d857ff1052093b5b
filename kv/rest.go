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
	pathWhoAmI       = "/whoami"
	pathUsers        = "/settings/rbac/users"
	pathLocalUsers   = pathUsers + "/local"
	pathUser         = pathLocalUsers + "/{user}"
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

// restHandlers adds what SDKs ask a cluster manager for, true to what this node knows.
func (n *Node) restHandlers(mux *http.ServeMux) {
	for path, handle := range map[string]http.HandlerFunc{
		pathPool: n.getPool, pathNodeServices: n.getNodeServices, pathBuckets: n.getBuckets, pathBucket: n.getBucket,
		pathTerse: n.getTerse, pathTerseStream: n.streamTerse, pathWhoAmI: n.getWhoAmI, pathUsers: n.getUsers,
		pathLocalUsers: n.getUsers, pathUser: n.getUser,
	} {
		mux.HandleFunc("GET "+path, n.forUser(handle))
	}
	mux.HandleFunc("GET "+pathPools, n.getPools) // without a password, as there
	mux.HandleFunc("POST "+pathDoFlush, n.forUser(n.doFlush))
	mux.HandleFunc("POST "+pathFailOverNode, n.forUser(n.failOverNode(true)))
	mux.HandleFunc("POST "+pathGraceful, n.forUser(n.failOverNode(false)))
}

// forUser lets in who knows the KV user's password: a cluster manager knows nobody by the certificates of our roles.
func (n *Node) forUser(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !n.hasPassword(r) {
			n.unauthorized(w, "the KV user and password are needed")
			return
		}
		handle(w, r)
	}
}

func notFound(w http.ResponseWriter) {
	http.Error(w, "Requested resource not found.", http.StatusNotFound)
}

// getPools says that there is one pool, which is the cluster.
func (n *Node) getPools(w http.ResponseWriter, r *http.Request) {
	known := n.hasPassword(r)
	out := map[string]any{"isAdminCreds": known, "isEnterprise": false, "implementationVersion": Version,
		"pools": []any{}, "settings": map[string]any{}, "componentsVersion": map[string]string{"kv": Version}}
	if known {
		out["pools"] = []any{map[string]string{"name": "default", "uri": pathPool}}
	}
	n.writeJSON(w, out)
}

// getPool describes the cluster.
func (n *Node) getPool(w http.ResponseWriter, r *http.Request) {
	m := n.cluster.current()
	names := []any{}
	for _, b := range m.Buckets {
		names = append(names, map[string]string{"bucketName": b.Name, "uuid": b.UUID})
	}
	status := "none"
	if m.Operation != nil {
		status = "running"
	}
	n.writeJSON(w, map[string]any{
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
func (n *Node) getNodeServices(w http.ResponseWriter, _ *http.Request) {
	m := n.cluster.current()
	for _, b := range m.Buckets {
		var c mcbp.ClusterConfig
		if err := json.Unmarshal(n.cluster.config(b.Name).JSON, &c); err == nil {
			n.writeJSON(w, map[string]any{"rev": c.Rev, "revEpoch": c.RevEpoch, "nodesExt": c.NodesExt,
				"clusterCapabilitiesVer": []int{1, 0}, "clusterCapabilities": map[string]any{}})
			return
		}
	}
	notFound(w)
}

func (n *Node) getBuckets(w http.ResponseWriter, r *http.Request) {
	out := []any{}
	m := n.cluster.current()
	for i := range m.Buckets {
		if b := n.restBucket(m, &m.Buckets[i], hostOf(r)); b != nil {
			out = append(out, b)
		}
	}
	n.writeJSON(w, out)
}

func (n *Node) getBucket(w http.ResponseWriter, r *http.Request) {
	m := n.cluster.current()
	part := m.Bucket(r.PathValue("bucket"))
	if part == nil {
		notFound(w)
		return
	}
	n.writeJSON(w, n.restBucket(m, part, hostOf(r)))
}

// restBucket describes a bucket at length; nil when its config cannot be read.
func (n *Node) restBucket(m clustermap.Map, part *clustermap.Bucket, host string) map[string]any {
	var c mcbp.ClusterConfig
	if err := json.Unmarshal(n.cluster.config(part.Name).JSON, &c); err != nil {
		return nil
	}
	items, disk := 0, int64(0)
	for _, b := range n.loadedBuckets() {
		if b.name == part.Name {
			s := n.bucketStatus(b)
			items, disk = s.Items, s.DiskBytes
		}
	}
	uri := strings.Replace(pathBucket, "{bucket}", url.PathEscape(part.Name), 1)
	quota := n.quota.Limit()
	return map[string]any{
		"name": part.Name, "uuid": part.UUID, "bucketType": "membase", "nodeLocator": "vbucket", "uri": uri,
		"streamingUri":  strings.Replace(pathTerseStream, "{bucket}", url.PathEscape(part.Name), 1),
		"replicaNumber": part.Replicas, "numVBuckets": len(part.Chains), "evictionPolicy": "valueOnly",
		"storageBackend": "undefined", "compressionMode": "off", "conflictResolutionType": "seqno", "maxTTL": 0,
		"durabilityMinLevel": "none", "replicaIndex": false, "autoCompactionSettings": false,
		"quota": map[string]int64{"ram": quota, "rawRAM": quota}, "nodes": n.restNodes(m, host),
		"basicStats":         map[string]any{"itemCount": items, "diskUsed": disk, "memUsed": n.quota.Used()},
		"bucketCapabilities": c.BucketCapabilities, "vBucketServerMap": c.VBucketServerMap,
		"controllers": map[string]string{"flush": uri + "/controller/doFlush"},
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

func (n *Node) getTerse(w http.ResponseWriter, r *http.Request) {
	body, _, ok := n.terse(r.PathValue("bucket"))
	if !ok {
		notFound(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n'))
}

// streamTerse shows the bucket's map now, and each one that replaces it, until the client goes.
func (n *Node) streamTerse(w http.ResponseWriter, r *http.Request) {
	select {
	case n.mapStreams <- struct{}{}:
		defer func() { <-n.mapStreams }()
	default:
		http.Error(w, fmt.Sprintf("this node streams maps to %d clients already", maxMapStreams),
			http.StatusServiceUnavailable)
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // nothing more is read, for as long as it takes
	var shown server.ClusterConfig
	for first := true; ; first = false {
		changed := n.cluster.changes()
		body, config, ok := n.terse(r.PathValue("bucket"))
		switch {
		case !ok && first:
			notFound(w)
			return
		case !ok:
			return // the bucket is gone: the stream ends
		}
		if first || config.RevEpoch != shown.RevEpoch || config.Rev != shown.Rev {
			if first {
				w.Header().Set("Content-Type", "application/json")
			}
			_ = control.SetWriteDeadline(time.Now().Add(adminTimeout))
			if _, err := w.Write(append(body, endOfDocument...)); err != nil {
				return
			}
			if err := control.Flush(); err != nil {
				return
			}
			shown = config
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// restUser is the one user, who may do everything.
func (n *Node) restUser() map[string]any {
	return map[string]any{"id": n.config.User, "domain": "local", "name": "", "groups": []any{},
		"external_groups": []any{}, "roles": []any{map[string]any{"role": "admin", "origins": []any{map[string]string{
			"type": "user"}}}}}
}

func (n *Node) getWhoAmI(w http.ResponseWriter, _ *http.Request) { n.writeJSON(w, n.restUser()) }

func (n *Node) getUsers(w http.ResponseWriter, _ *http.Request) { n.writeJSON(w, []any{n.restUser()}) }

func (n *Node) getUser(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("user") != n.config.User {
		notFound(w)
		return
	}
	n.writeJSON(w, n.restUser())
}

// failOverNode takes a node out of the cluster, for good: what Couchbase does in two steps, the second being a
// rebalance. hard accepts what is lost.
func (n *Node) failOverNode(hard bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil || len(r.Form["otpNode"]) == 0 {
			n.formError(w, http.StatusBadRequest, "otpNode", "The value must be supplied")
			return
		}
		request := FailoverRequest{Lose: hard}
		for _, name := range r.Form["otpNode"] {
			id := strings.TrimPrefix(name, otpPrefix)
			if _, ok := n.cluster.current().Node(id); !ok {
				http.Error(w, "Unknown server given.", http.StatusBadRequest)
				return
			}
			request.Nodes = append(request.Nodes, id)
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(operationTimeout + adminCallTimeout + adminTimeout))
		_, err := n.cluster.failover(r.Context(), request)
		var other *NotLeaderError
		if errors.As(err, &other) {
			err = n.cluster.peers.orders.Call(r.Context(), other.Leader, http.MethodPost, pathFailover, request, nil)
		}
		switch {
		case err == nil:
		case errors.Is(err, ErrRefused), errors.Is(err, clustermap.ErrMap), errors.Is(err, store.ErrSealBroken):
			n.formError(w, http.StatusBadRequest, "_", err.Error())
		default:
			n.formError(w, http.StatusServiceUnavailable, "_", err.Error())
		}
	}
}
