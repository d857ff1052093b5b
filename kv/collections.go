package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
)

// pathCollections is where nodes and commands change collections; the paths below /pools are those that Couchbase's
// documentation has for it.
const (
	pathCollections = "/v1/cluster/collections"
	pathScopes      = "/pools/default/buckets/{bucket}/scopes"
	pathScope       = pathScopes + "/{scope}"
	pathMembers     = pathScope + "/collections"
	pathMember      = pathMembers + "/{collection}"

	maxForm = 4 << 10
	// followAgain is between attempts to bring vbuckets to a manifest that somebody waits for.
	followAgain = 100 * time.Millisecond
)

// manifest is a bucket's manifest of collections as this node knows it.
func (c *cluster) manifest(bucket string) *mcbp.Manifest {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.manifests[bucket]; x != nil {
		return x
	}
	return mcbp.DefaultManifest()
}

// changeCollections makes a revision of the map with other collections. When it returns this node's vbuckets have
// them, and all members that could be reached have been told.
func (c *cluster) changeCollections(ctx context.Context, change clustermap.CollectionChange) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	uid, err := c.reviseCollections(ctx, change)
	if err != nil {
		return nil, err
	}
	if err := c.followed(ctx, change.Bucket); err != nil {
		return nil, fmt.Errorf("manifest %x is made, but not all vbuckets have it yet, which follow as soon as they can: %w",
			uid, err)
	}
	return collectionsAnswer{UID: strconv.FormatUint(uid, 16)}, nil
}

// reviseCollections makes the revision, and returns the manifest's uid.
func (c *cluster) reviseCollections(ctx context.Context, change clustermap.CollectionChange) (uint64, error) {
	end, err := c.alone(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	m, err := c.ask(ctx, nil)
	if err != nil {
		return 0, err
	}
	next, err := m.ChangeCollections(change)
	if err != nil {
		return 0, err
	}
	if next, err = c.commit(ctx, next, "", nil); err != nil {
		return 0, err
	}
	return next.Bucket(change.Bucket).Manifest().UID, nil
}

// followed waits until this node's vbuckets have the manifest of a bucket: one may be sealed for a moment, or the disk
// have refused a write.
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

// follow brings this node's vbuckets to the manifest of a bucket, where the documents are there.
func (c *cluster) follow(bucket string) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	if !c.loaded { // they follow before they are served
		return nil
	}
	for _, b := range c.n.buckets {
		if b.name == bucket {
			return b.store.SetManifest(c.manifest(bucket))
		}
	}
	return nil
}

// collectionsAnswer is the uid of the manifest that a change has made, in hexadecimal.
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

// collectionHandlers adds the documented paths. Any member takes them and asks the one that leads.
func (n *Node) collectionHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET "+pathScopes, n.known(n.getScopes))
	mux.HandleFunc("POST "+pathScopes, n.collectionChange(false))
	mux.HandleFunc("DELETE "+pathScope, n.collectionChange(true))
	mux.HandleFunc("POST "+pathMembers, n.collectionChange(false))
	mux.HandleFunc("DELETE "+pathMember, n.collectionChange(true))
}

func (n *Node) getScopes(w http.ResponseWriter, r *http.Request) {
	bucket := r.PathValue("bucket")
	if m := n.cluster.current(); m.Bucket(bucket) == nil {
		http.Error(w, "Requested resource not found.", http.StatusNotFound)
		return
	}
	n.writeJSON(w, n.cluster.manifest(bucket))
}

// collectionChange answers one of the documented calls: what is made is named in a form, what is dropped in the path.
func (n *Node) collectionChange(drop bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !n.hasPassword(r) {
			n.unauthorized(w, "the KV user and password are needed")
			return
		}
		change := clustermap.CollectionChange{Bucket: r.PathValue("bucket"), Scope: r.PathValue("scope"),
			Collection: r.PathValue("collection"), Drop: drop}
		if !drop {
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
			name := r.PostFormValue("name")
			if name == "" {
				n.formError(w, http.StatusBadRequest, "name", "The value must be supplied")
				return
			}
			if change.Scope == "" {
				change.Scope = name
			} else {
				change.Collection = name
			}
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(operationTimeout + adminCallTimeout + adminTimeout))
		answer, err := n.askLeader(r.Context(), change)
		switch {
		case err == nil:
			n.writeJSON(w, answer)
		case n.cluster.current().Bucket(change.Bucket) == nil:
			notFound(w)
		case errors.Is(err, clustermap.ErrNoScope), errors.Is(err, clustermap.ErrNoCollection):
			n.formError(w, http.StatusNotFound, "_", inSDKsWords(err, change))
		case errors.Is(err, clustermap.ErrThere):
			n.formError(w, http.StatusBadRequest, "_", inSDKsWords(err, change))
		case errors.Is(err, clustermap.ErrCollections):
			n.formError(w, http.StatusBadRequest, "_", err.Error())
		default:
			n.formError(w, http.StatusServiceUnavailable, "_", err.Error())
		}
	}
}

// inSDKsWords words a refusal so that SDKs know it, which tell refusals apart by a few words of the text.
func inSDKsWords(err error, c clustermap.CollectionChange) string {
	what := fmt.Sprintf("Scope with name %q", c.Scope)
	if c.Collection != "" && !errors.Is(err, clustermap.ErrNoScope) {
		what = fmt.Sprintf("Collection with name %q in scope %q", c.Collection, c.Scope)
	}
	if errors.Is(err, clustermap.ErrThere) {
		return what + " already exists"
	}
	return what + " is not found"
}

// askLeader makes a change here, or has it made by the node that leads.
func (n *Node) askLeader(ctx context.Context, change clustermap.CollectionChange) (any, error) {
	answer, err := n.cluster.changeCollections(ctx, change)
	var other *NotLeaderError
	if !errors.As(err, &other) {
		return answer, err
	}
	var there collectionsAnswer
	err = n.cluster.peers.orders.Call(ctx, other.Leader, http.MethodPost, pathCollections, change, &there)
	if err != nil {
		return nil, err
	}
	return there, nil
}

func (n *Node) formError(w http.ResponseWriter, status int, field, detail string) {
	body, err := json.Marshal(map[string]map[string]string{"errors": {field: detail}})
	if err != nil {
		body = nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// collectionCodes are the kinds of refusals that another node tells apart.
var collectionCodes = []struct {
	code string
	err  error
}{
	{"NO_SCOPE", clustermap.ErrNoScope}, {"NO_COLLECTION", clustermap.ErrNoCollection},
	{"COLLECTION_EXISTS", clustermap.ErrThere}, {"COLLECTIONS", clustermap.ErrCollections},
}

// codeOf words a refusal for another node.
func codeOf(err error) string {
	for _, c := range collectionCodes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return codeRefused
}

// refusalOf is the opposite of codeOf.
func refusalOf(code, detail string) error {
	for _, c := range collectionCodes {
		if code == c.code {
			return &refusedError{kind: c.err, detail: detail}
		}
	}
	return nil
}

// refusedError is another node's refusal in its own words.
type refusedError struct {
	kind   error
	detail string
}

func (e *refusedError) Error() string { return e.detail }
func (e *refusedError) Is(target error) bool {
	return errors.Is(e.kind, target) || target == ErrRefused
}
