package api

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
)

// request returns the ledger key for an Idempotency-Key, nil if there is none; part distinguishes the statements of
// one body. sent is the body, or a substitute. The hash covers what was sent, not its interpretation by this version:
// another version may serve a retry.
func request(r *http.Request, part int, sent []byte) (*statecontext.Request, error) {
	key := r.Header.Get(HeaderKey)
	switch {
	case key == "":
		return nil, nil
	case len(key) > maxKeyBytes:
		return nil, rpc.Refuse(errcode.BadIdempotencyKey, "%s has %d bytes; the limit is %d", HeaderKey, len(key),
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

func (g statements) ddlRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/statements", handle: g.statements, role: RoleDDL, leader: true, limit: v1.WriteTimeout,
			doc: operation{
				id: "runStatements", tag: tagDDL, summary: "Run DDL text: one or more statements separated by semicolons, in order",
				params: []param{{name: paramDryRun, enum: []string{"true", "false"}, means: "true: only report what each would " +
					"do, where its copies would lie and what it would cost, after those before it"}},
				headers: []string{HeaderKey}, body: v1.StatementRequest{},
				answers: []answer{{status: 202, means: "done; builds go on", body: v1.StatementReply{}},
					{status: 200, means: "what would be done (dry_run)", body: v1.StatementReply{}}},
				codes: ddlCodes(errcode.SyntaxError, errcode.Unsupported)}},
		{method: "POST", path: "/v1/indexes:build", handle: g.build, role: RoleDDL, leader: true, limit: v1.WriteTimeout,
			doc: operation{
				id: "buildIndexes", tag: tagDDL, summary: "Start the builds of deferred indexes, all or none",
				headers: []string{HeaderKey}, body: v1.BuildRequest{},
				answers: []answer{{status: 202, means: "the builds have begun", body: v1.StatementReply{}}},
				codes:   ddlCodes()}},
		{method: "POST", path: "/v1/indexes", handle: g.create, role: RoleDDL, leader: true, limit: v1.WriteTimeout,
			doc: operation{
				id: "createIndex", tag: tagDDL, summary: "Create an index",
				headers: []string{HeaderKey}, body: v1.CreateRequest{},
				answers: []answer{
					{status: 202, means: "created; its build goes on unless it is deferred", body: v1.IndexInfo{},
						headers: []string{headerETag}},
					{status: 200, means: "it existed (if_not_exists)", body: v1.IndexInfo{}, headers: []string{headerETag}}},
				codes: ddlCodes(errcode.SyntaxError, errcode.Unsupported)}},
		{method: "DELETE", path: "/v1/indexes/{ref:.+}", handle: g.drop, role: RoleDDL, leader: true, limit: v1.WriteTimeout,
			doc: operation{
				id: "dropIndex", tag: tagDDL, summary: "Drop an index: the name is free at once, the data goes as its hosts are " +
					"told",
				headers: []string{HeaderKey, headerIfMatch},
				answers: []answer{{status: 202, means: "it is being dropped", body: v1.StatementResult{}}},
				codes:   []errcode.Code{errcode.UnknownIndex, errcode.CASMismatch}}},
	}
}

func (g statements) statements(w http.ResponseWriter, r *http.Request) error {
	dry, err := isTrue(r, paramDryRun)
	if err != nil {
		return err
	}
	var body v1.StatementRequest
	if err := rpc.Read(r, &body); err != nil {
		return err
	}
	list, err := expression.Parse(body.Statement)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return rpc.Refuse(errcode.SyntaxError, `no statement: send {"statement": "CREATE INDEX …"}`)
	}
	if dry {
		return g.rehearse(w, r, list)
	}
	reply := v1.StatementReply{Results: []v1.StatementResult{}}
	look := hints{g: g.ground}
	for i, s := range list {
		req, err := bodyRequest(r, i)
		if err != nil {
			return err
		}
		seen := look.beside(r.Context(), s)
		outcomes, err := g.cfg.Coordinator.Execute(r.Context(), s, req)
		if err != nil {
			return g.endedBy(err, i, len(list), req != nil)
		}
		reply.Results = append(reply.Results, results(s, outcomes, seen)...)
	}
	rpc.Write(w, r, http.StatusAccepted, reply)
	return nil
}

// endedBy returns the error for statement i of several, which includes the fate of those before it. keyed is set if
// the request has an Idempotency-Key.
func (g statements) endedBy(err error, i, of int, keyed bool) error {
	if of == 1 {
		return err
	}
	p := g.problem(err)
	if i > 0 && p.Code == errcode.NoLeader && !keyed { // NO_LEADER would mean that nothing was done, and permit a retry
		p = rpc.Refuse(errcode.OutcomeUnknown, "%s", p.Detail)
	}
	done := " (the statements before it were executed)"
	switch {
	case i == 0 && p.Code == errcode.OutcomeUnknown:
		done = ""
	case i == 0:
		done = " (nothing was changed)"
	}
	p.Detail = fmt.Sprintf("statement %d of %d: %s%s", i+1, of, p.Detail, done)
	return p
}

// rehearse answers what statements would do, each after those before it. The first that would be refused ends it.
func (g statements) rehearse(w http.ResponseWriter, r *http.Request, list []expression.Statement) error {
	c, end, err := g.cfg.Coordinator.Rehearse(r.Context())
	if err != nil {
		return err
	}
	defer end()
	reply := v1.StatementReply{DryRun: true, Results: []v1.StatementResult{}}
	cost := costing{real: c.State(), reported: g.progress()}
	look := hints{g: g.ground}
	for i, s := range list {
		before := c.State()
		seen := look.beside(r.Context(), s)
		outcomes, err := c.Execute(r.Context(), s, nil)
		if err != nil {
			p := g.problem(err)
			if len(list) > 1 {
				p.Detail = fmt.Sprintf("statement %d of %d: %s (a dry run: nothing was changed)", i+1, len(list), p.Detail)
			}
			return p
		}
		would := results(s, outcomes, seen)
		for j := range would {
			x := &would[j]
			x.Places, x.Moves = places(c.State(), x.ID)
			x.Cost = cost.of(before, c.State(), x.ID)
			x.CAS = 0
			if g.cfg.Raft.State().Index(x.ID) == nil {
				x.ID = 0 // a later statement would get another id
			}
		}
		reply.Results = append(reply.Results, would...)
	}
	end() // a slow reader must not hold up the next rehearsal
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

// places returns the placement of an index's copies in a state, by indexer, and how many of them are to move.
func places(s *statecontext.State, id index.ID) (all []v1.Place, moves int) {
	x := s.Index(id)
	if x == nil || x.Definition.State == index.Dropping {
		return nil, 0
	}
	at := map[index.NodeID]int{}
	for _, o := range x.Topology.Copies {
		if o.State == partition.Leaving {
			continue
		}
		i, known := at[o.Node]
		if !known {
			i = len(all)
			at[o.Node], all = i, append(all, v1.Place{Indexer: fmt.Sprintf("node %d", o.Node)})
			if n := s.Indexer(o.Node); n != nil {
				all[i].Indexer = n.Name
			}
		}
		all[i].Copies = append(all[i].Copies, v1.PlacedCopy{Slice: o.Slice, Replica: o.Replica})
	}
	slices.SortFunc(all, func(a, b v1.Place) int { return cmp.Compare(a.Indexer, b.Indexer) })
	return all, len(s.RebalancesOf(id))
}

// results converts the outcomes of a statement to API results, with the hints of seen.
func results(s expression.Statement, outcomes []coordinator.Outcome, seen func() []string) []v1.StatementResult {
	all := make([]v1.StatementResult, len(outcomes))
	for i := range outcomes {
		all[i] = result(&outcomes[i])
	}
	if create, ok := s.(*expression.CreateIndex); ok {
		all[0].Notices = create.Notices()
		if !all[0].Existed {
			all[0].Notices = append(all[0].Notices, seen()...)
		}
	}
	return all
}

// result converts an outcome to an API result.
func result(o *coordinator.Outcome) v1.StatementResult {
	d := &o.Definition
	return v1.StatementResult{ID: d.ID, Name: d.Name, Bucket: d.Bucket, Scope: d.Member.Scope,
		Collection: d.Member.Collection, State: d.State, CAS: o.CAS, Deferred: d.Deferred, Existed: o.Existed}
}

func (g statements) build(w http.ResponseWriter, r *http.Request) error {
	var body v1.BuildRequest
	if err := rpc.Read(r, &body); err != nil {
		return err
	}
	if body.Bucket == "" || len(body.Names) == 0 {
		return rpc.Refuse(errcode.BadRequest, `want {"bucket": "…", "names": ["…"]}`)
	}
	req, err := bodyRequest(r, 0)
	if err != nil {
		return err
	}
	outcomes, err := g.cfg.Coordinator.BuildNamed(r.Context(),
		index.KeyspaceOf(body.Bucket, body.Scope, body.Collection), body.Names, req)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusAccepted, v1.StatementReply{Results: results(nil, outcomes, nil)})
	return nil
}

func (g statements) create(w http.ResponseWriter, r *http.Request) error {
	var body v1.CreateRequest
	if err := rpc.Read(r, &body); err != nil {
		return err
	}
	req, err := bodyRequest(r, 0)
	if err != nil {
		return err
	}
	d := index.Definition{Name: body.Name, Bucket: body.Bucket,
		Member: index.Member{Scope: body.Scope, Collection: body.Collection}, IsPrimary: body.IsPrimary, Keys: body.Keys,
		Where: body.Where, Deferred: body.DeferBuild,
		PartitionBy: body.PartitionBy, Partitions: body.Partitions, Replicas: body.Replicas, Nodes: body.Nodes,
		AutoSplitOff: body.AutoSplit != nil && !*body.AutoSplit}
	look := hints{g: g.ground}
	seen := look.begin(r.Context(), &d)
	o, err := g.cfg.Coordinator.CreateIndex(r.Context(), coordinator.CreateRequest{Definition: d,
		IfNotExists: body.IfNotExists, Request: req})
	if err != nil {
		return err
	}
	x := g.cfg.Raft.State().Index(o.Definition.ID)
	if x == nil { // dropped meanwhile
		x = &statecontext.Index{Definition: o.Definition}
	}
	i := info(x, &core.Status{})
	if i.ModifiedCAS != 0 {
		w.Header().Set("ETag", etag(i.ModifiedCAS))
	}
	status := http.StatusAccepted
	if o.Existed {
		status = http.StatusOK
	} else {
		i.Notices = seen()
	}
	rpc.Write(w, r, status, i)
	return nil
}

func (g statements) drop(w http.ResponseWriter, r *http.Request) error {
	ifMatch, err := parseETag(r.Header.Get(headerIfMatch))
	if err != nil {
		return err
	}
	req, err := request(r, 0, nil)
	if err != nil {
		return err
	}
	ref := r.PathValue("ref")
	if bucket, name, named := strings.Cut(ref, "/"); named {
		o, err := g.cfg.Coordinator.DropNamed(r.Context(), atPath(bucket, name), ifMatch, req)
		if err != nil {
			return g.withCAS(err, o.ID)
		}
		rpc.Write(w, r, http.StatusAccepted, result(&o))
		return nil
	}
	id, err := index.ParseID(ref)
	if err != nil {
		return rpc.Refuse(errcode.UnknownIndex, "index %q: want an id or bucket/name", ref)
	}
	o, err := g.cfg.Coordinator.DropIndex(r.Context(), coordinator.DropRequest{ID: id, IfMatch: ifMatch, Request: req})
	if err != nil {
		return g.withCAS(err, id)
	}
	rpc.Write(w, r, http.StatusAccepted, result(&o))
	return nil
}

// atPath returns the index name of a path bucket/name.
func atPath(bucket, name string) statecontext.IndexName {
	return statecontext.IndexName{Keyspace: index.InBucket(bucket), Name: name, Path: true}
}

// withCAS adds the object's present modified_cas to a mismatch.
func (g *ground) withCAS(err error, id index.ID) error {
	if !errors.Is(err, errcode.CASMismatch) {
		return err
	}
	p := g.problem(err)
	if d := g.cfg.Raft.State().Definition(id); d != nil {
		p.CAS = d.ModifiedCAS
	}
	return p
}

// hasETag reports whether If-None-Match contains the tag (weak comparison, RFC 9110).
func hasETag(list, tag string) bool {
	for t := range strings.SplitSeq(list, ",") {
		if t = strings.TrimPrefix(strings.TrimSpace(t), "W/"); t == tag || t == "*" {
			return true
		}
	}
	return false
}

// parseETag parses If-Match: a modified_cas with or without quotes; "*" or nothing means any.
func parseETag(text string) (uint64, error) {
	if text == "" || text == "*" {
		return 0, nil
	}
	cas, err := strconv.ParseUint(strings.Trim(text, `"`), 10, 64)
	if err != nil || cas == 0 { // no index has 0, and it must not mean "any"
		return 0, rpc.Refuse(errcode.BadRequest, "If-Match: %s: want the modified_cas of the index in quotes, as ETag "+
			"gives it", text)
	}
	return cas, nil
}
