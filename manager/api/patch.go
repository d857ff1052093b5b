package api

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator"
	"tidemark/statecontext"
)

func (g statements) patchRoutes() []route {
	return []route{
		{method: "PATCH", path: "/v1/indexes/{ref:.+}", handle: g.patch, role: RoleDDL, leader: true, limit: v1.WriteTimeout,
			doc: operation{
				id: "changeIndex", tag: tagDDL, summary: "Change an index: {\"deferred\": false} starts its build. The detail of " +
					"a refusal names what cannot be changed, and what to do instead",
				headers: []string{HeaderKey, headerIfMatch}, body: v1.PatchRequest{},
				answers: []answer{
					{status: 202, means: "changed; its build continues", body: v1.IndexInfo{}, headers: []string{headerETag}},
					{status: 200, means: "it already had this value", body: v1.IndexInfo{}, headers: []string{headerETag}}},
				codes: []errcode.Code{errcode.Unsupported, errcode.UnknownIndex, errcode.CASMismatch,
					errcode.StateMismatch,
					errcode.UnknownBucket, errcode.BucketGone, errcode.GenerationMismatch, errcode.NoProjector,
					errcode.TooManyVBuckets}}},
	}
}

// patch changes the fields of an index that can be changed.
func (g statements) patch(w http.ResponseWriter, r *http.Request) error {
	ifMatch, err := parseETag(r.Header.Get(headerIfMatch))
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := rpc.Read(r, &fields); err != nil {
		return err
	}
	if err := checkPatch(fields); err != nil {
		return err
	}
	req, err := bodyRequest(r, 0)
	if err != nil {
		return err
	}
	ref := r.PathValue("ref")
	build, err := built(ref)
	if err != nil {
		return err
	}
	build.IfMatch, build.Request = ifMatch, req
	outcomes, err := g.cfg.Coordinator.BuildIndexes(r.Context(), build)
	switch {
	case errors.Is(err, errcode.UnknownIndex):
		return rpc.Refuse(errcode.UnknownIndex, "there is no index %s", ref)
	case err != nil:
		return g.withCAS(err, g.presentID(&build))
	}
	o := &outcomes[0]
	x := g.cfg.Raft.State().Index(o.ID)
	if x == nil { // a replay, or a race: built then, and dropped since
		o.Definition.ID, o.Definition.State = o.ID, index.Dropping
		o.Definition.Bucket, o.Definition.Name, _ = strings.Cut(ref, "/")
		x = &statecontext.Index{Definition: o.Definition}
	}
	i := info(x, g.coordination())
	if i.ModifiedCAS != 0 {
		w.Header().Set(headerETag, etag(i.ModifiedCAS))
	}
	status := http.StatusAccepted
	if o.Existed {
		status = http.StatusOK
	}
	rpc.Write(w, r, status, i)
	return nil
}

// built returns a build request for the index that a path names: by id, or by a name, which is looked up when it is
// built.
func built(ref string) (coordinator.BuildRequest, error) {
	if bucket, name, named := strings.Cut(ref, "/"); named {
		return coordinator.BuildRequest{Names: []statecontext.IndexName{atPath(bucket, name)}}, nil
	}
	id, err := index.ParseID(ref)
	if err != nil {
		return coordinator.BuildRequest{}, rpc.Refuse(errcode.UnknownIndex, "index %q: want an id or bucket/name", ref)
	}
	return coordinator.BuildRequest{IDs: []index.ID{id}}, nil
}

// presentID returns the id of the index that a request for one means now, 0 if there is none.
func (g statements) presentID(build *coordinator.BuildRequest) index.ID {
	if len(build.Names) == 0 {
		return build.IDs[0]
	}
	if x := g.cfg.Raft.State().Named(&build.Names[0]); x != nil {
		return x.Definition.ID
	}
	return 0
}

// checkPatch rejects changes that are not possible, with the alternative.
func checkPatch(fields map[string]json.RawMessage) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch name {
		case "deferred", "defer_build":
		case "num_replica", "nodes", "copies", "num_partition", "partition_by":
			return rpc.Refuse(errcode.Unsupported, "%s cannot be changed by this call: use ALTER INDEX (POST /v1/statements), "+
				"or a rebalance to move copies", name)
		case "name", "bucket", "keys", "where", "is_primary", "definition":
			return rpc.Refuse(errcode.Unsupported, "%s cannot be changed, because it defines the entries of the index; create "+
				"another index, then drop this one", name)
		case "id", "state", "reason", "progress", "items", "disk_bytes", "created_ms", "modified_cas":
			return rpc.Refuse(errcode.BadRequest,
				`%s is read-only; {"deferred": false} starts a build, DELETE drops the index`, name)
		default:
			return rpc.Refuse(errcode.BadRequest,
				`unknown field %q; the only possible change is {"deferred": false}, which starts the build`, name)
		}
	}
	deferred, ok := fields["deferred"]
	switch {
	case fields["defer_build"] != nil:
		return rpc.Refuse(errcode.BadRequest, `defer_build belongs to CREATE INDEX; send {"deferred": false}`)
	case !ok:
		return rpc.Refuse(errcode.BadRequest,
			`nothing to change: send {"deferred": false}, which starts the build of a deferred index`)
	case string(deferred) == "true":
		return rpc.Refuse(errcode.Unsupported, "deferred cannot be set to true: the build of an existing index cannot be "+
			"deferred; drop the index, and create it again with defer_build")
	case string(deferred) != "false":
		return rpc.Refuse(errcode.BadRequest, "deferred accepts false, not %s", deferred)
	}
	return nil
}
