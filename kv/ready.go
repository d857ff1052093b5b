package kv

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"tidemark/internal/rpc"
	"tidemark/kv/clustermap"
	"tidemark/kv/seglog"
	"tidemark/kv/store"
)

// Codes of the reasons in /readyz.
const (
	reasonWarmup  = "warming_up"  // documents are being loaded
	reasonMembers = "no_majority" // the map has not been compared with a majority of the members
	reasonDisk    = "disk"        // a bucket cannot be written
)

// reasons returns why the node cannot serve or write documents. A node that is not, or no longer, a member of the
// cluster is ready, too: it can be added.
func (n *Node) reasons() (all []rpc.Reason) {
	add := func(code, format string, args ...any) {
		all = append(all, rpc.Reason{Code: code, Detail: fmt.Sprintf(format, args...)})
	}
	if !n.serving.Load() {
		switch missing, learnt := n.cluster.awaited(); {
		case !learnt && len(missing) == 0:
			add(reasonMembers, "warming up: the map is being compared with the other members'")
		case !learnt:
			add(reasonMembers, "warming up: waiting for a majority of the members, one of which may have a newer map; %s did "+
				"not answer. If they are lost permanently, fail them over", strings.Join(missing, ", "))
		default:
			add(reasonWarmup, "warming up: the documents are being read")
		}
	}
	for _, b := range n.buckets() {
		if why := b.openProblem(); why != "" && n.serving.Load() && !b.open.Load() {
			add(reasonDisk, "bucket %s cannot be opened, further attempts follow: %s", b.name, why)
		}
	}
	for _, b := range n.loadedBuckets() {
		if trouble := b.store.DiskTrouble(); trouble != "" {
			add(reasonDisk, "bucket %s %s", b.name, trouble)
		}
	}
	return all
}

// awaited returns the members that have not answered while the node compares maps; learnt reports whether it has
// finished.
func (c *cluster) awaited() (missing []string, learnt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.missing)), c.learnt
}

// waits records the members that the node waits for.
func (c *cluster) waits(missing []string, learnt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missing, c.learnt = missing, learnt
}

// emptied returns an error if this node has no documents of a bucket of which other nodes have replicas: after a lost
// or moved folder, it would otherwise become the active copy of its vbuckets and empty the replicas. It asks only
// members that answer.
func (c *cluster) emptied(ctx context.Context) error {
	for _, b := range c.n.buckets() {
		if seglog.Exists(b.logDir()) {
			continue
		}
		for _, x := range c.others(c.current()) {
			vb, err := c.replicaElsewhere(ctx, x, b.id())
			if err != nil {
				return nil //nolint:nilerr // the node is stopping
			}
			if vb != nil {
				return fmt.Errorf("%w: bucket %q has no documents here, while %s has %d of vbucket %d, whose active copy is this "+
					"node's by the map: %s was lost or moved away, and an empty active copy would empty the replicas. Run tidemark "+
					"kv failover %s, start the node, tidemark kv rebalance --add",
					clustermap.ErrMap, b.name, x.ID, vb.Items, vb.VBucket, b.dir, c.n.config.NodeID)
			}
		}
	}
	return nil
}

// replicaElsewhere returns a replica with documents, on another node, of a vbucket that is active on this node. It
// waits for a node that still loads its documents; it returns an error if ctx has ended.
func (c *cluster) replicaElsewhere(ctx context.Context, x clustermap.Node, id bucketID) (*CopyView, error) {
	for {
		var view ClusterView
		if err := c.peers.Call(ctx, x.Admin, http.MethodGet, pathCluster, nil, &view); err != nil {
			return nil, ctx.Err() // the node does not answer
		}
		if view.Ready || !view.Stored {
			part := c.current().BucketOf(id.name, id.uuid)
			if part == nil || view.Map.BucketOf(id.name, id.uuid) == nil { // dropped meanwhile, on this node or the other
				return nil, nil
			}
			for _, v := range view.Copies[id.name] {
				role, _ := part.Role(v.VBucket, c.n.config.NodeID)
				if role == clustermap.Active && v.State == store.Replica.String() && v.High > 0 {
					return &v, nil
				}
			}
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(learnPause):
		}
	}
}
