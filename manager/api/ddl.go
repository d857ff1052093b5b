package api

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gorilla/mux"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/coordinator"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
)

// MaxStatementBody is the most bytes of a body with DDL.
const MaxStatementBody = rpc.MaxUserBody

// request makes the ledger's key of an Idempotency-Key; part tells the statements of one body apart. No key: nil. sent
// is the body, or what stands for it. The hash is of what was sent, not of what this version makes of it: a retry may
// be served by another version.
func request(r *http.Request, part int, sent []byte) (*statecontext.Request, error) {
	key := r.Header.Get(HeaderKey)
	switch {
	case key == "":
		return nil, nil
	case len(key) > maxKeyBytes:
		return nil, rpc.Refuse(errcode.BadIdempotencyKey, "%s has %d bytes, at most %d are taken", HeaderKey, len(key),
			maxKeyBytes)
	}
	return &statecontext.Request{Principal: rpc.Principal(r.Context()), Key: key + ":" + strconv.Itoa(part),
			BodyHash: sha256.Sum256(fmt.Appendf(nil, "%s %s\n%s\n%s", r.Method, r.URL.Path, r.Header.Get(headerIfMatch), sent))},
		nil
}

// bodyRequest is request for the body that rpc.Read has read.
func bodyRequest(r *http.Request, part int) (*statecontext.Request, error) {
	sent, err := rpc.Sent(r)
	if err != nil {
		return nil, fmt.Errorf("hashing the request: %w", err)
	}
	return request(r, part, sent)
}

func (a *API) ddlRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/statements", handle: a.statements, role: RoleDDL, leader: true, limit: WriteTimeout,
			doc: operation{
				id: "runStatements", tag: tagDDL, summary: "Run DDL text: one or more statements separated by semicolons, in order",
				headers: []string{HeaderKey}, body: client.StatementRequest{},
				answers: []answer{{status: 202, means: "done; builds go on", body: client.StatementReply{}}},
				codes:   ddlCodes(errcode.SyntaxError, errcode.Unsupported)}},
		{method: "POST", path: "/v1/indexes:build", handle: a.build, role: RoleDDL, leader: true, limit: WriteTimeout,
			doc: operation{
				id: "buildIndexes", tag: tagDDL, summary: "Start the builds of deferred indexes, all or none",
				headers: []string{HeaderKey}, body: client.BuildRequest{},
				answers: []answer{{status: 202, means: "the builds have begun", body: client.StatementReply{}}},
				codes:   ddlCodes()}},
		{method: "POST", path: "/v1/indexes", handle: a.create, role: RoleDDL, leader: true, limit: WriteTimeout,
			doc: operation{
				id: "createIndex", tag: tagDDL, summary: "Create an index",
				headers: []string{HeaderKey}, body: client.CreateRequest{},
				answers: []answer{
					{status: 202, means: "created; its build goes on unless it is deferred", body: client.IndexInfo{},
						headers: []string{headerETag}},
					{status: 200, means: "it existed (if_not_exists)", body: client.IndexInfo{}, headers: []string{headerETag}}},
				codes: ddlCodes(errcode.SyntaxError, errcode.Unsupported)}},
		{method: "DELETE", path: "/v1/indexes/{ref:.+}", handle: a.drop, role: RoleDDL, leader: true, limit: WriteTimeout,
			doc: operation{
				id: "dropIndex", tag: tagDDL, summary: "Drop an index: the name is free at once, the data goes as its hosts are " +
					"told",
				headers: []string{HeaderKey, headerIfMatch},
				answers: []answer{{status: 202, means: "it is being dropped", body: client.StatementResult{}}},
				codes:   []errcode.Code{errcode.UnknownIndex, errcode.CASMismatch}}},
	}
}

func (a *API) statements(w http.ResponseWriter, r *http.Request) error {
	var body client.StatementRequest
	if err := rpc.Read(w, r, MaxStatementBody, &body); err != nil {
		return err
	}
	list, err := expression.Parse(body.Statement)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return rpc.Refuse(errcode.SyntaxError, `no statement: send {"statement": "CREATE INDEX …"}`)
	}
	reply := client.StatementReply{Results: []client.StatementResult{}}
	for i, s := range list {
		req, err := bodyRequest(r, i)
		if err != nil {
			return err
		}
		results, err := a.run(r, s, req)
		if err != nil {
			if len(list) > 1 { // the ones before it stand
				p := a.problem(err)
				if i > 0 && p.Code == errcode.NoLeader && req == nil { // it says that nothing was done, and may be tried again
					p = rpc.Refuse(errcode.OutcomeUnknown, "%s", p.Detail)
				}
				done := " (those before it are done)"
				switch {
				case i == 0 && p.Code == errcode.OutcomeUnknown:
					done = ""
				case i == 0:
					done = " (nothing was done)"
				}
				p.Detail = fmt.Sprintf("statement %d of %d: %s%s", i+1, len(list), p.Detail, done)
				return p
			}
			return err
		}
		reply.Results = append(reply.Results, results...)
	}
	rpc.Write(w, r, http.StatusAccepted, reply)
	return nil
}

// run does one statement.
func (a *API) run(r *http.Request, s expression.Statement, req *statecontext.Request) ([]client.StatementResult,
	error) {
	switch s := s.(type) {
	case *expression.CreateIndex:
		o, err := a.cfg.Coordinator.CreateIndex(r.Context(), coordinator.CreateRequest{Definition: s.Definition(),
			IfNotExists: s.IfNotExists, Request: req})
		if err != nil {
			return nil, err
		}
		created := result(&o)
		created.Notices = s.Notices()
		return []client.StatementResult{created}, nil
	case *expression.DropIndex:
		o, err := a.dropNamed(r, s.Keyspace, s.Name, 0, req)
		if s.IfExists && errors.Is(err, errcode.UnknownIndex) {
			return []client.StatementResult{{Name: s.Name, Bucket: s.Keyspace.Bucket, Scope: s.Keyspace.Scope,
				Collection: s.Keyspace.Collection, State: index.Dropping, CAS: a.cfg.Raft.State().CAS(), Existed: true}}, nil
		}
		if err != nil {
			return nil, err
		}
		return []client.StatementResult{result(&o)}, nil
	case *expression.BuildIndex:
		return a.buildNamed(r, s.Keyspace, s.Names, req)
	case *expression.AlterIndex:
		return a.alterNamed(r, s, req)
	}
	return nil, rpc.Refuse(errcode.Unsupported, "this statement is not supported: %s", s)
}

// result is an outcome as the API shows it.
func result(o *coordinator.Outcome) client.StatementResult {
	d := &o.Definition
	return client.StatementResult{ID: d.ID, Name: d.Name, Bucket: d.Bucket, Scope: d.Member.Scope,
		Collection: d.Member.Collection, State: d.State, CAS: o.CAS, Deferred: d.Deferred, Existed: o.Existed}
}

// dropNamed drops by name. A name that is not there is proposed all the same, as the index 0 that nobody has: the
// ledger knows whether it was this request that dropped it, and only a leader that can still write knows that it is not
// there.
func (a *API) dropNamed(r *http.Request, k index.Keyspace, name string, ifMatch uint64,
	req *statecontext.Request) (coordinator.Outcome, error) {
	var id index.ID
	if x := a.cfg.Raft.State().IndexIn(k, name); x != nil {
		id = x.Definition.ID
	}
	o, err := a.cfg.Coordinator.DropIndex(r.Context(), coordinator.DropRequest{ID: id, IfMatch: ifMatch, Request: req})
	switch {
	case errors.Is(err, errcode.UnknownIndex), err == nil && o.Existed: // the latter: somebody dropped it meanwhile
		return o, &statecontext.Rejection{Code: errcode.UnknownIndex,
			Message: fmt.Sprintf("there is no index %q on bucket %q", name, k)}
	case err != nil:
		return o, a.withCAS(err, id)
	}
	o.Definition.Bucket, o.Definition.Member, o.Definition.Name = k.Bucket, k.Member(), name
	return o, nil
}

// alterNamed alters by name. Setting what is so already does nothing. A name that is not there is asked for all the
// same, as dropNamed does.
func (a *API) alterNamed(r *http.Request, s *expression.AlterIndex,
	req *statecontext.Request) ([]client.StatementResult, error) {
	if err := a.cfg.Raft.ReadBarrier(r.Context()); err != nil {
		return nil, err
	}
	alter := coordinator.AlterRequest{Request: req}
	if x := a.cfg.Raft.State().IndexIn(s.Keyspace, s.Name); x != nil {
		alter.ID = x.Definition.ID
	}
	switch s.Action {
	case expression.ActionReplicaCount:
		alter.Replicas, alter.Nodes = s.NumReplica, s.Nodes
	case expression.ActionDropReplica:
		alter.Drop = s.ReplicaID
	default:
		alter.Nodes = s.Nodes
	}
	o, err := a.cfg.Coordinator.AlterIndex(r.Context(), alter)
	switch {
	case alter.ID == 0 && errors.Is(err, errcode.UnknownIndex):
		return nil, a.unknownName(s.Keyspace.String(), s.Name)
	case err != nil:
		return nil, err
	}
	if o.Definition.Name == "" { // a replay: altered then, and dropped since
		o.Definition.Bucket, o.Definition.Member, o.Definition.Name = s.Keyspace.Bucket, s.Keyspace.Member(), s.Name
	}
	return []client.StatementResult{result(&o)}, nil
}

// buildNamed starts builds by name: all or none. Names that are not there are proposed all the same, as dropNamed does.
func (a *API) buildNamed(r *http.Request, k index.Keyspace, names []string,
	req *statecontext.Request) ([]client.StatementResult, error) {
	s := a.cfg.Raft.State()
	missing := names[0]
	ids := make([]index.ID, len(names))
	for i, n := range names {
		if x := s.IndexIn(k, n); x != nil {
			ids[i] = x.Definition.ID
		} else {
			missing = n
		}
	}
	outcomes, err := a.cfg.Coordinator.BuildIndexes(r.Context(), coordinator.BuildRequest{IDs: ids, Request: req})
	switch {
	case errors.Is(err, errcode.UnknownIndex):
		return nil, a.unknownName(k.String(), missing)
	case err != nil:
		return nil, err
	}
	results := make([]client.StatementResult, 0, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		if o.Definition.ID == 0 { // a replay: built then, and dropped since
			o.Definition = index.Definition{ID: o.ID, Bucket: k.Bucket, Member: k.Member(), Name: names[i],
				State: index.Dropping}
		}
		o.Existed = false // of IF [NOT] EXISTS only
		results = append(results, result(o))
	}
	return results, nil
}

func (a *API) build(w http.ResponseWriter, r *http.Request) error {
	var body client.BuildRequest
	if err := rpc.Read(w, r, MaxStatementBody, &body); err != nil {
		return err
	}
	if body.Bucket == "" || len(body.Names) == 0 {
		return rpc.Refuse(errcode.BadRequest, `want {"bucket": "…", "names": ["…"]}`)
	}
	req, err := bodyRequest(r, 0)
	if err != nil {
		return err
	}
	results, err := a.buildNamed(r, index.KeyspaceOf(body.Bucket, body.Scope, body.Collection), body.Names, req)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusAccepted, client.StatementReply{Results: results})
	return nil
}

func (a *API) create(w http.ResponseWriter, r *http.Request) error {
	var body client.CreateRequest
	if err := rpc.Read(w, r, MaxStatementBody, &body); err != nil {
		return err
	}
	req, err := bodyRequest(r, 0)
	if err != nil {
		return err
	}
	d := index.Definition{Name: body.Name, Bucket: body.Bucket,
		Member: index.Member{Scope: body.Scope, Collection: body.Collection}, IsPrimary: body.IsPrimary, Keys: body.Keys,
		Where: body.Where, Deferred: body.DeferBuild,
		PartitionBy: body.PartitionBy, Partitions: body.Partitions, Replicas: body.Replicas, Nodes: body.Nodes}
	o, err := a.cfg.Coordinator.CreateIndex(r.Context(), coordinator.CreateRequest{Definition: d,
		IfNotExists: body.IfNotExists, Request: req})
	if err != nil {
		return err
	}
	x := a.cfg.Raft.State().Index(o.Definition.ID)
	if x == nil { // dropped since
		x = &statecontext.Index{Definition: o.Definition}
	}
	i := info(x, &core.Status{})
	if i.ModifiedCAS != 0 {
		w.Header().Set("ETag", etag(i.ModifiedCAS))
	}
	status := http.StatusAccepted
	if o.Existed {
		status = http.StatusOK
	}
	rpc.Write(w, r, status, i)
	return nil
}

func (a *API) drop(w http.ResponseWriter, r *http.Request) error {
	ifMatch, err := parseETag(r.Header.Get(headerIfMatch))
	if err != nil {
		return err
	}
	req, err := request(r, 0, nil)
	if err != nil {
		return err
	}
	ref := mux.Vars(r)["ref"]
	if text, err := url.PathUnescape(ref); err == nil && strings.Contains(text, "/") {
		bucket, name, _ := strings.Cut(text, "/")
		k := index.InBucket(bucket)
		if x := a.cfg.Raft.State().IndexByPath(bucket, name); x != nil {
			k = x.Definition.Keyspace()
		}
		o, err := a.dropNamed(r, k, name, ifMatch, req)
		if err != nil {
			return err
		}
		rpc.Write(w, r, http.StatusAccepted, result(&o))
		return nil
	}
	id, err := index.ParseID(ref)
	if err != nil {
		return rpc.Refuse(errcode.UnknownIndex, "index %q: want an id or bucket/name", ref)
	}
	o, err := a.cfg.Coordinator.DropIndex(r.Context(), coordinator.DropRequest{ID: id, IfMatch: ifMatch, Request: req})
	if err != nil {
		return a.withCAS(err, id)
	}
	rpc.Write(w, r, http.StatusAccepted, result(&o))
	return nil
}

// withCAS adds the object's present modified_cas to a mismatch.
func (a *API) withCAS(err error, id index.ID) error {
	if !errors.Is(err, errcode.CASMismatch) {
		return err
	}
	p := a.problem(err)
	if d := a.cfg.Raft.State().Definition(id); d != nil {
		p.CAS = d.ModifiedCAS
	}
	return p
}

// hasETag reports whether If-None-Match names the tag (weak comparison, as RFC 9110 wants).
func hasETag(list, tag string) bool {
	for t := range strings.SplitSeq(list, ",") {
		if t = strings.TrimPrefix(strings.TrimSpace(t), "W/"); t == tag || t == "*" {
			return true
		}
	}
	return false
}

// parseETag reads If-Match: a modified_cas in quotes or without, "*" or nothing for any.
func parseETag(text string) (uint64, error) {
	if text == "" || text == "*" {
		return 0, nil
	}
	cas, err := strconv.ParseUint(strings.Trim(text, `"`), 10, 64)
	if err != nil || cas == 0 { // 0 is nobody's, and must not become "any"
		return 0, rpc.Refuse(errcode.BadRequest, "If-Match: %s: want the modified_cas of the index in quotes, as ETag "+
			"gives it", text)
	}
	return cas, nil
}
