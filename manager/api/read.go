package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	tables "tidemark/internal/rpc/route"
	"tidemark/internal/version"
	"tidemark/liveness"
	"tidemark/manager/api/v1"
	"tidemark/manager/auth"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
)

// consistencyParam is the parameter of reads of the state.
func consistencyParam() param {
	return param{name: "consistency", enum: []string{"linearizable", "stale"},
		means: "linearizable (default): all that was acknowledged before the request. stale: what this manager has, also " +
			"without a leader"}
}

func (g indexes) readRoutes() []route {
	consistency := consistencyParam()
	return []route{
		{method: "GET", path: "/v1/indexes", handle: g.list, role: RoleRead, leader: true,
			limit: v1.ReadTimeout, doc: operation{
				id: "listIndexes", tag: tagReads, summary: "List indexes",
				params: []param{{name: "bucket", means: "only indexes on this bucket"}, consistency,
					{name: "limit", number: true, means: "indexes per page, 1 to 5000; the default is 1000"},
					{name: "after", means: "the field next of the previous page; an index that is created meanwhile comes at the " +
						"end, none comes twice"}},
				answers: []answer{{status: 200, means: "the indexes, by id", body: v1.IndexList{}, headers: readHeaders()}}}},
		{method: "GET", path: "/v1/indexes/{ref:.+}", handle: g.describe, role: RoleRead, leader: true, limit: v1.ReadTimeout,
			doc: operation{
				id: "getIndex", tag: tagReads, summary: "Describe an index", params: []param{consistency},
				headers: []string{headerIfNoneMatch},
				answers: []answer{{status: 200, means: "the index", body: v1.IndexInfo{}, headers: readHeaders(headerETag)},
					{status: 304, means: "the client already has this definition and state (items, disk_bytes, progress, " +
						"waiting_for and faults may differ)", headers: readHeaders(headerETag)}},
				codes: []errcode.Code{errcode.UnknownIndex, errcode.MethodNotAllowed}}},
		{method: "GET", path: "/v1/state", handle: g.state, role: RoleRead, leader: true,
			limit: v1.ReadTimeout, doc: operation{
				id: "getState", tag: tagReads, summary: "The replicated StateContext",
				params:  []param{consistency, {name: "format", means: "text: for people; the default is JSON"}},
				answers: []answer{{status: 200, means: "the state", body: v1.StateView{}, orText: true, headers: readHeaders()}}}},
	}
}

// metricsPath is scraped by Prometheus, with any parameters.
const metricsPath = "/metrics"

// nodeRoutes are the calls about this manager itself.
func (g health) nodeRoutes() []route {
	metrics := tables.Metrics(tables.Anybody(), promhttp.HandlerFor(g.cfg.Registry, promhttp.HandlerOpts{}))
	return []route{
		{method: "GET", path: "/v1/status", handle: g.status, role: RoleRead, limit: v1.ReadTimeout, doc: operation{
			id: "getStatus", tag: tagReads, summary: "The cluster's components and their state, from the leader if there is one",
			params: []param{{name: "consistency", enum: []string{"linearizable", "stale"}, means: "linearizable (default): " +
				"the leader's status if it answers. stale: this manager's. Neither waits for a check of leadership"}},
			answers: []answer{{status: 200, means: "the status", body: v1.Status{}}}}},
		{method: "GET", path: "/healthz", handle: g.healthz, role: RoleNone, limit: v1.ReadTimeout, doc: operation{
			id: "getHealth", tag: tagNode, summary: "Whether the process is running",
			answers: []answer{{status: 200, means: "it lives", body: v1.Health{}}}}},
		{method: "GET", path: "/readyz", handle: g.readyz, role: RoleNone, limit: v1.ReadTimeout, doc: operation{
			id: "getReadiness", tag: tagNode, summary: "Whether this manager can serve: it belongs to a cluster, has a " +
				"leader, has caught up, and its disk works; otherwise reasons has the causes",
			answers: []answer{{status: 200, means: "it can serve", body: v1.Health{}}},
			codes:   []errcode.Code{errcode.NoLeader, errcode.NotReady}}},
		{method: "GET", path: metricsPath, handle: metrics.Handle, role: RoleMetrics, places: metrics.Places,
			limit: metrics.Limit, doc: operation{
				id: "getMetrics", tag: tagNode, summary: "Metrics in the text format of Prometheus",
				answers: []answer{{status: 200, means: "the metrics", media: mediaText}}, codes: []errcode.Code{errcode.Busy}}},
		{method: "GET", path: "/openapi.json", role: RoleNone, limit: v1.ReadTimeout, doc: operation{
			id: "getContract", tag: tagNode, summary: "This document: the contract of all public calls (OpenAPI 3.1)",
			answers: []answer{{status: 200, means: "the document", body: map[string]any{}}}},
			handle: func(w http.ResponseWriter, r *http.Request) error {
				w.Header().Set("Content-Type", rpc.MediaJSON)
				w.Header().Set("Content-Length", strconv.Itoa(len(openAPI)))
				_, _ = w.Write(openAPI) // an error means that the client has gone
				return nil
			}},
	}
}

// read returns the state for answering a GET: on the leader after verifying its leadership, else (stale) the local
// one.
func (g *ground) read(w http.ResponseWriter, r *http.Request) (*statecontext.State, error) {
	if r.URL.Query().Get("consistency") != "stale" {
		if err := g.cfg.Raft.ReadBarrier(r.Context()); err != nil {
			return nil, err
		}
	}
	s := g.cfg.Raft.State()
	w.Header().Set(HeaderCAS, strconv.FormatUint(s.CAS(), 10))
	if stale := r.URL.Query().Get("consistency") == "stale"; stale {
		if age := g.cfg.Raft.Stats().LastContact; age >= 0 {
			w.Header().Set(HeaderAge, strconv.FormatInt(age.Milliseconds(), 10))
		}
	}
	return s, nil
}

// Pages of lists.
const (
	DefaultPage = 1000 // entries without ?limit=
	MaxPage     = 5000
)

// page parses ?limit=.
func page(r *http.Request, preset, most int) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return preset, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, rpc.Refuse(errcode.BadRequest, "limit=%s: want 1 to %d", text, most)
	}
	return n, nil
}

func (g indexes) list(w http.ResponseWriter, r *http.Request) error {
	limit, err := page(r, DefaultPage, MaxPage)
	if err != nil {
		return err
	}
	var after index.ID
	if text := r.URL.Query().Get("after"); text != "" {
		if after, err = index.ParseID(text); err != nil {
			return rpc.Refuse(errcode.BadRequest, "after=%s: want the value of next of the previous page", text)
		}
	}
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	bucket := r.URL.Query().Get("bucket")
	now := g.coordination()
	list := v1.IndexList{CAS: s.CAS(), Indexes: []v1.IndexInfo{}}
	for x := range s.IndexesAfter(after) {
		if bucket != "" && x.Definition.Bucket != bucket {
			continue
		}
		if len(list.Indexes) == limit {
			list.Next = list.Indexes[limit-1].ID.String()
			break
		}
		i := info(x, now)
		i.Split = splitOf(s, &x.Definition, now)
		list.Indexes = append(list.Indexes, i)
	}
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

func (g indexes) describe(w http.ResponseWriter, r *http.Request) error {
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	x, err := g.find(s, r.PathValue("ref"))
	if err != nil {
		return readOfVerb(w, r, err)
	}
	now := g.coordination()
	i := info(x, now)
	i.Split, i.Load = splitOf(s, &x.Definition, now), g.loadOf(r.Context(), x)
	w.Header().Set(headerETag, etag(i.ModifiedCAS))
	if hasETag(r.Header.Get(headerIfNoneMatch), etag(i.ModifiedCAS)) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	rpc.Write(w, r, http.StatusOK, i)
	return nil
}

// verbsOfIndexes lists the actions of POST on an index.
func verbsOfIndexes() []string { return []string{"scan", "count", "verify", "locate", "statistics"} }

// readOfVerb returns the error of a GET that finds no index. A name may contain a colon, but a request for a missing
// "n:scan" most likely has the wrong method.
func readOfVerb(w http.ResponseWriter, r *http.Request, err error) error {
	var p *rpc.Problem
	ref := r.PathValue("ref")
	at := strings.LastIndexByte(ref, ':')
	if !errors.As(err, &p) || p.Code != errcode.UnknownIndex || at < 0 ||
		!slices.Contains(verbsOfIndexes(), ref[at+1:]) ||
		!strings.HasSuffix(r.URL.EscapedPath(), ref[at:]) { // an escaped colon is part of a name
		return err
	}
	w.Header().Set("Allow", http.MethodPost)
	return rpc.Refuse(errcode.MethodNotAllowed, "%s; to %s %q, send POST %s", p.Detail, ref[at+1:], ref[:at], r.URL.Path)
}

func etag(cas uint64) string { return `"` + strconv.FormatUint(cas, 10) + `"` }

// progress returns the coordinator's progress of builds; empty on a follower (a stale read).
func (g *ground) progress() map[index.ID]core.Progress { return g.coordination().Progress }

// coordination returns the coordinator's picture; empty on a follower.
func (g *ground) coordination() *core.Status {
	s, _ := g.cfg.Coordinator.Status()
	return &s
}

// info converts an index to its API form.
func info(x *statecontext.Index, now *core.Status) v1.IndexInfo {
	d := &x.Definition
	i := v1.IndexInfo{ID: d.ID, Name: d.Name, Bucket: d.Bucket, Scope: d.Member.Scope, Collection: d.Member.Collection,
		CollectionID: d.Member.ID, State: d.State, Deferred: d.Deferred, Reason: d.Reason,
		Definition: d.Statement,
		IsPrimary:  d.IsPrimary, Keys: d.Keys, Where: d.Where, PartitionBy: d.PartitionBy, Partitions: d.Partitions,
		Replicas: d.Replicas,
		Copies:   append([]partition.Copy(nil), x.Topology.Copies...), CreatedMS: d.CreatedMS, ModifiedCAS: d.ModifiedCAS,
		ExpressionRules: d.Rules, Outdated: now.ExprRules.Outdated(d), Replaces: d.Replaces, Origin: d.Origin,
		SplitFailed: d.SplitFailed,
		AutoSplit:   !d.AutoSplitOff, RequestedPartitions: d.RequestedPartitions}
	p := now.Progress[d.ID]
	i.Availability, i.WaitingFor = availabilityOf(&p), waitsOf(x, now)
	i.SplitWaits, i.MergeWaits = p.SplitWaits, p.MergeWaits
	i.Items, i.DiskBytes, i.Progress = p.Items, p.Bytes, p.Percent(d.State)
	i.ItemsIncomplete = d.State == index.Maintenance && p.Slices < int(x.Topology.Layout.Partitions)
	i.Faults = faultsOf(&p)
	if len(p.Errors) > 0 && i.Reason == "" {
		i.Reason = strings.Join(p.Errors, "; ")
	}
	return i
}

// loadOf returns the indexers' reports of each copy, if the leader can be asked.
func (g indexes) loadOf(ctx context.Context, x *statecontext.Index) (all []v1.CopyLoad) {
	reports, err := g.cfg.Coordinator.Copies(ctx, x.Topology.Copies)
	if err != nil {
		return nil // a stale read
	}
	for _, c := range x.Topology.Copies {
		if r, ok := reports[c.ID]; ok {
			all = append(all, v1.CopyLoad{Copy: c.ID, Items: r.Items, Bytes: r.Bytes, WriteRate: r.WriteRate,
				ReadRate: r.ReadRate})
		}
	}
	return all
}

// splitOf returns the successor that is being built for an index, nil if there is none.
func splitOf(s *statecontext.State, d *index.Definition, now *core.Status) *v1.SplitInfo {
	x := s.Successor(d)
	if x == nil {
		return nil
	}
	p, n := now.Progress[x.Definition.ID], &x.Definition
	return &v1.SplitInfo{ID: n.ID, State: n.State, Progress: p.Percent(n.State), Partitions: n.Partitions,
		Definition: n.Statement, Cause: n.SplitCause}
}

// find resolves the index of a path: an id, or bucket/name.
func (g *ground) find(s *statecontext.State, ref string) (*statecontext.Index, error) {
	if bucket, name, named := strings.Cut(ref, "/"); named {
		return g.byName(s, bucket, name)
	}
	id, err := index.ParseID(ref)
	if err != nil {
		return nil, rpc.Refuse(errcode.UnknownIndex, "index %q: want an id or bucket/name", ref)
	}
	if x := s.Index(id); x != nil {
		return x, nil
	}
	return nil, rpc.Refuse(errcode.UnknownIndex, "there is no index with the id %s", id)
}

func (g *ground) byName(s *statecontext.State, bucket, name string) (*statecontext.Index, error) {
	if x := s.IndexByPath(bucket, name); x != nil {
		return x, nil
	}
	return nil, g.unknownName(bucket, name)
}

func (g *ground) unknownName(bucket, name string) error {
	return rpc.Refuse(errcode.UnknownIndex, "there is no index %q on bucket %q", name, bucket)
}

// status answers on any node with local data; a follower asks the leader for what only the leader has.
func (g health) status(w http.ResponseWriter, r *http.Request) error {
	s := g.cfg.Raft.State()
	stale := r.URL.Query().Get("consistency") == "stale"
	if leader, ok := g.leaderOf(s); ok && leader.REST != g.cfg.REST && r.Header.Get(HeaderForwarded) == "" && !stale {
		if full, err := g.leaderStatus(r, leader); err == nil {
			full.Node.ID, full.Node.Role = g.cfg.Name, g.role()
			rpc.Write(w, r, http.StatusOK, full)
			return nil
		}
	}
	st := g.localStatus(r.Context(), s)
	judge(&st, stale, g.cfg.Expect == 1)
	rpc.Write(w, r, http.StatusOK, st)
	return nil
}

// role returns this node's role in Raft.
func (g health) role() string {
	if _, serving := g.cfg.Raft.Serving(); serving {
		return "leader"
	}
	if l := g.cfg.Raft.Leader(); !l.Known || l.ID == g.cfg.Raft.ID() { // the latter: elected, but not ready to serve
		return "candidate"
	}
	return "follower"
}

// localStatus returns the status from this node's state, with the coordinator's data if this node leads.
func (g health) localStatus(ctx context.Context, s *statecontext.State) v1.Status {
	st := v1.Status{ClusterID: s.ClusterID(), Version: version.Number, CAS: s.CAS(), Term: g.cfg.Raft.Term()}
	st.FormatLevel, st.Limits, st.Restoring = s.FormatLevel(), s.Limits(), s.Staging() != nil
	if o := s.Restored(); o != nil {
		st.Restored = &v1.Restored{Mode: o.Mode.String(), CAS: o.CAS, TimeMS: o.TimeMS, FromID: o.FromID,
			FromCAS: o.FromCAS}
	}
	st.Node.ID, st.Node.Role = g.cfg.Name, g.role()
	st.Projectors, st.Indexers, st.Buckets = []v1.ProjectorStatus{}, []v1.IndexerStatus{}, []v1.BucketStatus{}
	if leader, known := g.leaderOf(s); known {
		st.Leader.ID, st.Leader.REST = leader.ID, leader.REST
	}
	g.addManagers(ctx, s, &st)
	if c, leads := g.cfg.Coordinator.Status(); leads { // read once: leadership may begin or end meanwhile
		st.Coordinator, st.Indexes = c.Step, summary(s, &c)
		addKnown(s, &c, &st)
	} else {
		addRegistered(s, &st)
	}
	slices.SortStableFunc(st.Indexers, func(a, b v1.IndexerStatus) int { return cmp.Compare(a.ID, b.ID) })
	return st
}

func (g health) addManagers(ctx context.Context, s *statecontext.State, st *v1.Status) {
	st.Managers = []v1.ManagerStatus{}
	servers, _ := g.cfg.Raft.Servers() // if there are none, roles are unknown
	voters := map[string]bool{}
	for _, v := range servers {
		voters[v.ID] = v.Voter
		if s.Manager(v.ID) == nil { // it has never registered, or this one's state is empty
			m := v1.ManagerStatus{ID: v.ID, ServerID: v.ID, Raft: v.Raft, Role: memberRole(v.Voter)}
			if v.ID == g.cfg.Raft.ID() {
				m.ID, m.REST = g.cfg.Name, g.cfg.REST
			}
			st.Managers = append(st.Managers, m)
		}
	}
	for m := range s.Managers() {
		role := memberRole(voters[m.ID])
		if m.REST == st.Leader.REST {
			role = "leader"
		}
		st.Managers = append(st.Managers, v1.ManagerStatus{ID: m.Name, ServerID: m.ID, REST: m.REST, Raft: m.Raft,
			Role: role})
	}
	var asked sync.WaitGroup
	for i := range st.Managers {
		asked.Go(func() {
			m := &st.Managers[i]
			if m.REST != "" {
				m.Alive, m.NotReady = g.look(ctx, m.REST)
			}
		})
	}
	asked.Wait()
	g.addSightings(st)
}

func memberRole(voter bool) string {
	if voter {
		return "voter"
	}
	return roleNonvoter
}

// roleNonvoter is the role of a manager without a vote yet.
const roleNonvoter = "nonvoter"

// addSightings adds the leader's view of the members: their progress, and advice about those that are gone.
func (g health) addSightings(st *v1.Status) {
	seen := g.cfg.Steward.Sightings()
	last := uint64(0)
	for _, m := range seen {
		last = max(last, m.LastIndex)
	}
	for _, m := range seen {
		i := slices.IndexFunc(st.Managers, func(o v1.ManagerStatus) bool { return o.ServerID == m.ID })
		if i < 0 {
			continue
		}
		if o := &st.Managers[i]; m.Alive {
			o.Lag = last - m.LastIndex
		} else {
			o.Alive = false
			o.Problem = fmt.Sprintf("it does not answer as %s (%s); if it will not return: tidemark cluster remove %s, and "+
				"start another manager with an empty folder and --join",
				m.ID, m.Problem, m.ID)
		}
	}
}

// roleWord returns an indexer's role as used in rebalance plans.
func roleWord(life liveness.Life, going bool) string {
	switch {
	case life == liveness.Offline:
		return rebalance.Lost.String()
	case going:
		return rebalance.Going.String()
	}
	return rebalance.Serving.String()
}

// shownPorts limits the unreached data ports that a status lists per projector.
const shownPorts = 16

// addKnown adds the registered components with their state, as the leader's coordinator knows it. It leaves out those
// that were removed since: who has removed one is not told to remove it.
func addKnown(s *statecontext.State, c *core.Status, st *v1.Status) {
	for _, p := range c.Projectors {
		if s.Projector(p.ID) == nil {
			continue
		}
		one := v1.ProjectorStatus{ID: p.ID, Admin: p.Admin, BootID: p.BootID, State: p.Life.String(),
			Streams: p.Streams, Revision: p.Revision, Mutations: p.Counters.Mutations, Deletions: p.Counters.Deletions,
			Errors: p.Counters.Errors, Unreachable: p.Unreachable}
		for _, t := range p.KV {
			one.KV = append(one.KV, v1.KVTrouble(t))
		}
		for i := range min(len(p.Unreached), shownPorts) {
			one.Unreached = append(one.Unreached, unreachedPort(&p.Unreached[i]))
		}
		one.UnreachedOmitted = len(p.Unreached) - len(one.Unreached)
		st.Projectors = append(st.Projectors, one)
	}
	for _, i := range c.Indexers {
		if s.Indexer(i.Node) == nil {
			continue
		}
		one := v1.IndexerStatus{QueueBytes: i.QueueBytes, QueueLimit: i.QueueLimit, ID: i.Name, Node: i.Node,
			UUID: i.UUID, Zone: i.Zone, Capacity: i.Weight, Role: roleWord(i.Seen(), i.Going), Bytes: i.Bytes, Admin: i.Admin,
			Scan:  i.Scan,
			State: i.Seen().String(), Copies: i.Copies, Health: i.Health, Revision: i.Revision, OrphanCount: i.OrphanCount,
			Evicting: i.Evicting, EvictionWaits: i.Waits, OfflineSinceMS: i.OfflineSinceMS, OfflineForMS: i.OfflineForMS,
			RepairInMS: i.RepairInMS, Placed: i.Placed, DifferingCopies: i.Differing, DifferingOmitted: i.DifferingOmitted,
			Unreachable: i.Unreachable}
		for _, o := range i.Orphans {
			one.Orphans = append(one.Orphans, v1.Orphan(o))
		}
		st.Indexers = append(st.Indexers, one)
	}
	for _, b := range c.Buckets {
		st.Buckets = append(st.Buckets, v1.BucketStatus{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets,
			Generation: b.Generation, Wanted: b.Wanted,
			StabilityNumber: b.Number, StabilityHash: strconv.FormatUint(b.Hash, 10), StreamsBegun: b.Streams.Begun,
			StreamsMissing: b.VBuckets - b.Streams.Begun, Stuck: stuck(b.Streams.Stuck), Rollback: b.Rollback,
			RollbackForMS: b.RollbackForMS, StabilityAgeMS: b.AgeMS, Lag: b.Lag, ScansWaiting: b.Waiting})
	}
}

// addRegistered adds the registered components if their state is not known.
func addRegistered(s *statecontext.State, st *v1.Status) {
	for p := range s.Projectors() {
		st.Projectors = append(st.Projectors, v1.ProjectorStatus{ID: p.ID, Admin: p.Admin, BootID: p.BootID,
			State: "unknown"})
	}
	for i := range s.Indexers() {
		one := v1.IndexerStatus{ID: i.Name, Node: i.Node, UUID: i.UUID, Zone: i.Zone, Capacity: max(i.Capacity, 1),
			Role: roleWord(liveness.Active, s.Going(i.Node)), Admin: i.Admin, Scan: i.Scan, State: "unknown",
			Evicting: i.Evicting, Placed: s.Load(i.Node)}
		if i.Offline != nil {
			one.OfflineSinceMS = i.Offline.SinceMS
		}
		st.Indexers = append(st.Indexers, one)
	}
	for b := range s.Buckets() {
		st.Buckets = append(st.Buckets, v1.BucketStatus{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets,
			Generation:      b.Generation,
			StabilityNumber: b.Stability.Number, StabilityHash: strconv.FormatUint(b.Stability.Vector.Hash(), 10)})
	}
}

func (g health) leaderStatus(r *http.Request, leader wire.Leader) (*v1.Status, error) {
	return getJSON[v1.Status](r.Context(), g.ground, g.looks, leader.REST+"/v1/status")
}

func (g indexes) state(w http.ResponseWriter, r *http.Request) error {
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	if r.URL.Query().Get("format") == "text" {
		if id, ok := r.Context().Value(identityKey{}).(*auth.Identity); ok && id.Role < statecontext.UserAdmin {
			s = s.WithoutUsers() // only administrators may see users
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(statecontext.Describe(s))) // a client that has gone needs no answer
		return nil
	}
	rpc.Write(w, r, http.StatusOK, newStateView(s))
	return nil
}

// readIndex lets a follower read its own state linearizably.
func (g components) readIndex(w http.ResponseWriter, r *http.Request) error {
	i, err := g.cfg.Raft.ReadIndex(r.Context())
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, readIndexReply{Index: i, Users: g.cfg.Raft.HasUsers()})
	return nil
}

type readIndexReply struct {
	Index uint64 `json:"index"`
	Users bool   `json:"users,omitempty"` // the cluster has or had users
}

// bootstrap describes this manager to other managers of a new cluster.
func (g components) bootstrap(w http.ResponseWriter, r *http.Request) error {
	answer, err := g.cfg.Raft.Describe(g.cfg.Expect)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, answer)
	return nil
}
