package kv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"tidemark/internal/rpc/route"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
)

// pathCollections is the path that nodes and commands use to change collections; the paths below /pools are the
// documented Couchbase paths for it.
const (
	pathCollections = "/v1/cluster/collections"
	pathScopes      = "/pools/default/buckets/{bucket}/scopes"
	pathScope       = pathScopes + "/{scope}"
	pathMembers     = pathScope + "/collections"
	pathMember      = pathMembers + "/{collection}"
)

// manifest returns a bucket's manifest of collections as known to this node.
func (c *cluster) manifest(bucket string) *mcbp.Manifest {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.manifests[bucket]; x != nil {
		return x
	}
	return mcbp.DefaultManifest()
}

// changeCollections commits a revision of the map with changed collections. When it returns, this node's vbuckets
// have them, and all reachable members have the map.
func (c *cluster) changeCollections(ctx context.Context, change clustermap.CollectionChange) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	m, _, err := c.revise(ctx, func(m clustermap.Map) (clustermap.Map, error) { return m.ChangeCollections(change) })
	if err != nil {
		return nil, err
	}
	uid := m.Bucket(change.Bucket).Manifest().UID
	if err := c.followed(ctx, change.Bucket); err != nil {
		return nil, fmt.Errorf("manifest %x is stored, but some vbuckets do not have it yet and will get it later: %w",
			uid, err)
	}
	return collectionsAnswer{UID: strconv.FormatUint(uid, 16)}, nil
}

// followed waits until this node's vbuckets have the manifest of a bucket: a vbucket may be sealed for a moment, or
// the disk may have failed a write.
func (c *cluster) followed(ctx context.Context, bucket string) error {
	again := time.NewTicker(followAgain)
	defer again.Stop()
	for {
		err := c.follow(bucket)
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}

// follow applies the manifest of a bucket to this node's vbuckets, if the documents are loaded.
func (c *cluster) follow(bucket string) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	if !c.loaded { // the vbuckets get it before they are served
		return nil
	}
	for _, b := range c.n.openBuckets() {
		if b.name == bucket {
			return b.store.SetManifest(c.manifest(bucket))
		}
	}
	return nil
}

// collectionsAnswer is the uid of the manifest after a change, in hexadecimal.
type collectionsAnswer struct {
	UID string `json:"uid"`
}

func (n *Node) postCollections(ctx context.Context, body []byte) (any, error) {
	r, err := decode[clustermap.CollectionChange](body)
	if err != nil {
		return nil, err
	}
	return n.cluster.changeCollections(ctx, r)
}

// collectionRoutes returns the documented routes. Any member accepts them and forwards changes to the leader.
func (n *Node) collectionRoutes() []route.Route {
	user := n.may(access.ManageBucket)
	return []route.Route{
		{Method: "GET", Path: pathScopes, Role: n.known(access.See), Limit: adminTimeout, Handle: n.getScopes},
		{Method: "POST", Path: pathScopes, Role: user, Body: maxForm, Limit: relayTimeout, Handle: n.makeCollection},
		{Method: "DELETE", Path: pathScope, Role: user, Limit: relayTimeout, Handle: n.dropCollection},
		{Method: "POST", Path: pathMembers, Role: user, Body: maxForm, Limit: relayTimeout, Handle: n.makeCollection},
		{Method: "DELETE", Path: pathMember, Role: user, Limit: relayTimeout, Handle: n.dropCollection},
	}
}

func (n *Node) getScopes(w http.ResponseWriter, r *http.Request) error {
	bucket := r.PathValue("bucket")
	if m := n.cluster.current(); m.Bucket(bucket) == nil {
		return notFound(w)
	}
	m := n.cluster.manifest(bucket)
	if user := callerOf(r); user != "" { // others (see known) see everything
		rights := n.rights(user, bucket)
		m = rights.Shown(m)
	}
	return writeJSON(w, m)
}

// makeCollection creates what a form names, in the bucket or scope of the path.
func (n *Node) makeCollection(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(r); err != nil {
		return err
	}
	name := r.PostForm.Get("name")
	if name == "" {
		return formError(w, http.StatusBadRequest, "name", "The value must be supplied")
	}
	change := clustermap.CollectionChange{Bucket: r.PathValue("bucket"), Scope: r.PathValue("scope")}
	if change.Scope == "" {
		change.Scope = name
	} else {
		change.Collection = name
	}
	return n.changeCollections(w, r, change)
}

// dropCollection drops what the path names.
func (n *Node) dropCollection(w http.ResponseWriter, r *http.Request) error {
	return n.changeCollections(w, r, clustermap.CollectionChange{Bucket: r.PathValue("bucket"),
		Scope: r.PathValue("scope"), Collection: r.PathValue("collection"), Drop: true})
}

func (n *Node) changeCollections(w http.ResponseWriter, r *http.Request, change clustermap.CollectionChange) error {
	answer, err := n.cluster.changeCollections(r.Context(), change)
	switch {
	case err == nil:
		return writeJSON(w, answer)
	case n.passOn(w, r, err):
		return nil
	case n.cluster.current().Bucket(change.Bucket) == nil:
		return notFound(w)
	case errors.Is(err, clustermap.ErrNoScope), errors.Is(err, clustermap.ErrNoCollection):
		return formError(w, http.StatusNotFound, "_", sdkErrorText(err, change))
	case errors.Is(err, clustermap.ErrNameExists):
		return formError(w, http.StatusBadRequest, "_", sdkErrorText(err, change))
	case errors.Is(err, clustermap.ErrCollections):
		return formError(w, http.StatusBadRequest, "_", err.Error())
	}
	return formError(w, http.StatusServiceUnavailable, "_", err.Error())
}

// sdkErrorText returns the error text that SDKs expect: they distinguish errors by a few words of the text.
func sdkErrorText(err error, c clustermap.CollectionChange) string {
	what := fmt.Sprintf("Scope with name %q", c.Scope)
	if c.Collection != "" && !errors.Is(err, clustermap.ErrNoScope) {
		what = fmt.Sprintf("Collection with name %q in scope %q", c.Collection, c.Scope)
	}
	if errors.Is(err, clustermap.ErrNameExists) {
		return what + " already exists"
	}
	return what + " is not found"
}
