package api

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strconv"
	"strings"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
)

// Page sizes of views.
const (
	defaultStreams = 1024
	maxStreams     = 8192
	defaultVectors = 128
	maxHolding     = 16
)

func (g views) viewRoutes() []route {
	consistency := param{name: "consistency", enum: []string{"linearizable", "stale"},
		means: "linearizable (default): from the leader. stale: what this manager has, without what only the leader has"}
	limit := func(means string) param { return param{name: "limit", number: true, means: means} }
	after := param{name: "after", means: "the field next of the previous page"}
	return []route{
		{method: "GET", path: "/v1/topology", handle: g.topology, role: RoleRead, leader: true, limit: v1.ReadTimeout,
			doc: operation{
				id: "listTopology", tag: tagReads, summary: "The placement of each index",
				params: []param{{name: "bucket", means: "only the indexes of this bucket"}, consistency,
					limit("indexes per page, 1 to 5000; the default is 1000"), after},
				answers: []answer{{status: 200, means: "the topology, by index id", body: v1.TopologyList{},
					headers: readHeaders()}}}},
		{method: "GET", path: "/v1/rollbacks", handle: g.rollbacks, role: RoleRead, leader: true, limit: v1.ReadTimeout,
			doc: operation{
				id: "listRollbacks", tag: tagReads, summary: "Rollbacks that are under way or needed", params: []param{consistency},
				answers: []answer{{status: 200, means: "the rollbacks, by bucket", body: v1.RollbackList{},
					headers: readHeaders()}}}},
		{method: "GET", path: "/v1/streams", handle: g.streams, role: RoleRead, leader: true, limit: v1.ReadTimeout,
			doc: operation{
				id: "listStreams", tag: tagReads, summary: "The vbucket ledger: which projector streams which vbucket, and which " +
					"vbuckets wait",
				params: []param{{name: "bucket", means: "only this one"}, consistency,
					limit("vbuckets per page, 1 to 8192; the default is 1024"), after},
				answers: []answer{{status: 200, means: "the streams, by bucket and vbucket", body: v1.StreamList{},
					headers: readHeaders()}}}},
		{method: "GET", path: "/v1/buckets/{bucket}/timestamps", handle: g.timestamps, role: RoleRead, leader: true,
			limit: v1.ReadTimeout, doc: operation{
				id: "getTimestamps", tag: tagReads, summary: "A bucket's timestamps, and what delays its stability timestamp",
				params:  []param{consistency, limit("vbuckets per page, 1 to 4096; the default is 128"), after},
				answers: []answer{{status: 200, means: "the timestamps", body: v1.Timestamps{}, headers: readHeaders()}},
				codes:   []errcode.Code{errcode.UnknownBucket}}},
		{method: "GET", path: "/v1/buckets/{bucket}/settings", handle: g.bucketSettings, role: RoleRead, leader: true,
			limit: v1.ReadTimeout, doc: operation{
				id: "getBucketSettings", tag: tagReads, summary: "A bucket's settings, and the values in force",
				answers: []answer{{status: 200, means: "the settings", body: v1.BucketSettingsReply{}, headers: readHeaders()}},
				codes:   []errcode.Code{errcode.UnknownBucket}}},
		{method: "PUT", path: "/v1/buckets/{bucket}/settings", handle: g.setBucketSettings, role: RoleAdmin, leader: true,
			limit: v1.WriteTimeout, doc: operation{
				id: "setBucketSettings", tag: tagCluster, summary: "Replace a bucket's settings; they take effect at once",
				headers: []string{HeaderKey}, body: v1.BucketSettings{},
				answers: []answer{{status: 200, means: "the settings from now on", body: v1.BucketSettingsReply{}}},
				codes:   []errcode.Code{errcode.UnknownBucket, errcode.InvalidArgument}}},
	}
}

// bucketOf returns the bucket of a request from this manager's state.
func bucketOf(r *http.Request, s *statecontext.State) (*statecontext.Bucket, error) {
	name := r.PathValue("bucket")
	b := s.Bucket(name)
	if b == nil {
		return nil, rpc.Refuse(errcode.UnknownBucket, "there is no index on a bucket %q, and there never was", name)
	}
	return b, nil
}

func (g views) bucketSettings(w http.ResponseWriter, r *http.Request) error {
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	return g.writeSettings(w, r, s)
}

func (g views) setBucketSettings(w http.ResponseWriter, r *http.Request) error {
	if err := g.cfg.Raft.ReadBarrier(r.Context()); err != nil {
		return err
	}
	b, err := bucketOf(r, g.cfg.Raft.State())
	if err != nil {
		return err
	}
	var want v1.BucketSettings
	if err := rpc.Read(r, &want); err != nil {
		return err
	}
	if err := g.write(r, &statecontext.SetBucketSettings{Bucket: b.Name,
		StabilitySource: want.StabilitySource}); err != nil {
		return err
	}
	return g.writeSettings(w, r, g.cfg.Raft.State())
}

func (g views) writeSettings(w http.ResponseWriter, r *http.Request, s *statecontext.State) error {
	b, err := bucketOf(r, s)
	if err != nil {
		return err
	}
	set := v1.BucketSettings{StabilitySource: s.BucketSettings(b.Name).StabilitySource}
	reply := v1.BucketSettingsReply{CAS: s.CAS(), Bucket: b.Name, BucketSettings: set, InForce: set}
	if set.StabilitySource == "" {
		reply.InForce.StabilitySource = g.cfg.Coordinator.DefaultSource().String()
	}
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

func (g views) topology(w http.ResponseWriter, r *http.Request) error {
	limit, err := page(r, DefaultPage, MaxPage)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	var after index.ID
	if text := q.Get("after"); text != "" {
		if after, err = index.ParseID(text); err != nil {
			return badAfter(text)
		}
	}
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	moving := movingSlices(s)
	list := v1.TopologyList{CAS: s.CAS(), Indexes: []v1.IndexTopology{}}
	for x := range s.IndexesAfter(after) {
		d := &x.Definition
		if b := q.Get("bucket"); b != "" && b != d.Bucket {
			continue
		}
		if len(list.Indexes) == limit {
			list.Next = list.Indexes[limit-1].ID.String()
			break
		}
		t := v1.IndexTopology{ID: d.ID, Name: d.Name, Bucket: d.Bucket, State: d.State, TopologyCAS: x.TopologyCAS,
			Layout: x.Topology.Layout, Copies: []v1.CopyPlace{}, Rebalances: moving[d.ID]}
		for _, c := range x.Topology.Copies {
			t.Copies = append(t.Copies, v1.CopyPlace{Copy: c})
		}
		list.Indexes = append(list.Indexes, t)
	}
	g.addReported(r.Context(), list.Indexes)
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

// movingSlices returns the slices of each index that are moving, or are going to: in one pass, as there may be
// thousands.
func movingSlices(s *statecontext.State) map[index.ID][]partition.Rebalance {
	all := map[index.ID][]partition.Rebalance{}
	for y := range s.RebalanceSteps() {
		if !y.State.Over() {
			all[y.Index] = append(all[y.Index], *y)
		}
	}
	return all
}

// addReported adds the indexers' reports of copies, if the leader can be asked.
func (g views) addReported(ctx context.Context, list []v1.IndexTopology) {
	var all []partition.Copy
	for i := range list {
		for _, c := range list[i].Copies {
			all = append(all, c.Copy)
		}
	}
	reports, err := g.cfg.Coordinator.Copies(ctx, all)
	if err != nil {
		return // copies are then shown as not reported
	}
	for i := range list {
		for n := range list[i].Copies {
			c := &list[i].Copies[n]
			if r, ok := reports[c.ID]; ok {
				c.Heard, c.Exact, c.Items, c.Bytes = true, r.Ready, r.Items, r.Bytes
				c.WriteRate, c.ReadRate = r.WriteRate, r.ReadRate
				c.Received, c.Expected, c.Error = r.Received, r.Expected, r.Error
			}
		}
	}
}

func badAfter(text string) error {
	return rpc.Refuse(errcode.BadRequest, "after=%s: want the value of next of the previous page", text)
}

func vectorInfo(v timestamp.Vector, from, to int) *v1.VectorInfo {
	if v.Len() == 0 {
		return nil
	}
	i := &v1.VectorInfo{Total: v.Total(), Hash: strconv.FormatUint(v.Hash(), 10)}
	for at := from; at < min(to, v.Len()); at++ {
		i.Vector = append(i.Vector, v1.VBucketPosition(v.At(at)))
	}
	return i
}

func (g views) rollbacks(w http.ResponseWriter, r *http.Request) error {
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	details := map[string]core.BucketStatus{}
	if c, leads := g.cfg.Coordinator.Status(); leads {
		for _, b := range c.Buckets {
			details[b.Name] = b
		}
	}
	list := v1.RollbackList{CAS: s.CAS(), Rollbacks: []v1.RollbackInfo{}}
	for b := range s.Buckets() {
		x := details[b.Name]
		i := v1.RollbackInfo{Bucket: b.Name, Detail: x.Rollback, SinceMS: x.RollbackSinceMS, Waits: x.RollbackWaits}
		if c := b.Rollback; c != nil {
			i.ID, i.Step, i.Failover, i.Restart = c.ID, c.Step, vectorInfo(c.Failover, 0, 0), vectorInfo(c.Restart, 0, 0)
		} else if i.Detail == "" {
			continue
		}
		list.Rollbacks = append(list.Rollbacks, i)
	}
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

// view returns the leader's view of a bucket; known is false if there is none (a stale read, or the bucket is gone).
func (g views) view(r *http.Request, bucket string) (v core.BucketView, known bool, err error) {
	v, err = g.cfg.Coordinator.View(r.Context(), bucket)
	switch {
	case err == nil:
		return v, true, nil
	case errors.Is(err, core.ErrUnknownBucket), errors.Is(err, coordinator.ErrNotLeading) &&
		r.URL.Query().Get("consistency") == "stale":
		return v, false, nil
	}
	return v, false, err
}

func stuck(all []streams.Stuck) (out []v1.StuckVBucket) {
	for _, s := range all {
		out = append(out, v1.StuckVBucket{VBucket: s.VBucket, State: s.State.String(), Reason: s.Reason, ForMS: s.ForMS})
	}
	return out
}

func streamInfo(bucket string, v int, e *streams.Entry) v1.StreamInfo {
	return v1.StreamInfo{Bucket: bucket, VBucket: v, State: e.State.String(), Owner: e.Owner,
		Incarnation: e.Incarnation.String(),
		SinceMS:     e.SinceMS, Reason: e.Reason}
}

func (g views) streams(w http.ResponseWriter, r *http.Request) error {
	limit, err := page(r, defaultStreams, maxStreams)
	if err != nil {
		return err
	}
	first, from, err := streamsAfter(r.URL.Query().Get("after"))
	if err != nil {
		return err
	}
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	now, leads := g.cfg.Coordinator.Status()
	if !leads && r.URL.Query().Get("consistency") != "stale" {
		return coordinator.ErrNotLeading
	}
	page := streamPage{only: r.URL.Query().Get("bucket"), first: first, from: from, limit: limit}
	list, err := page.list(s.Buckets(), &now, func(bucket string) (core.BucketView, bool, error) {
		return g.view(r, bucket)
	})
	if err != nil {
		return err
	}
	list.CAS = s.CAS()
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

// streamPage selects the streams on a page.
type streamPage struct {
	only  string // only this bucket; "": all
	first string // the bucket that the page begins with, at its vbucket from
	from  int
	limit int
}

// list makes the page. It requests views only of the buckets with streams on it, and of the one after them; the
// counts of others come from the leader's picture.
func (p *streamPage) list(buckets iter.Seq[*statecontext.Bucket], now *core.Status,
	view func(string) (core.BucketView, bool, error)) (*v1.StreamList, error) {
	list := &v1.StreamList{Buckets: []v1.BucketStreams{}, Streams: []v1.StreamInfo{}}
	counted := make(map[string]*core.BucketStatus, len(now.Buckets))
	for i := range now.Buckets {
		counted[now.Buckets[i].Name] = &now.Buckets[i]
	}
	for b := range buckets {
		if p.only != "" && p.only != b.Name {
			continue
		}
		i := v1.BucketStreams{Bucket: b.Name, VBuckets: b.VBuckets}
		if b.Name >= p.first && list.Next == "" {
			v, known, err := view(b.Name)
			if err != nil {
				return nil, err
			}
			if known {
				countStreams(&i, v.Wanted, &v.Summary)
			}
			from := 0
			if b.Name == p.first {
				from = p.from
			}
			addStreams(list, b.Name, &v, from, p.limit)
		} else if c := counted[b.Name]; c != nil {
			countStreams(&i, c.Wanted, &c.Streams)
		}
		list.Buckets = append(list.Buckets, i)
	}
	return list, nil
}

// addStreams adds a bucket's streams from a vbucket on, up to the limit of the list.
func addStreams(list *v1.StreamList, bucket string, v *core.BucketView, from, limit int) {
	for at := from; at < len(v.Entries) && list.Next == ""; at++ {
		if n := len(list.Streams); n == limit {
			list.Next = list.Streams[n-1].Bucket + "/" + strconv.Itoa(list.Streams[n-1].VBucket)
			return
		}
		list.Streams = append(list.Streams, streamInfo(bucket, at, &v.Entries[at]))
	}
}

// countStreams sets the numbers of a bucket's streams by state.
func countStreams(i *v1.BucketStreams, wanted bool, c *streams.Summary) {
	i.Wanted, i.Idle, i.Requested, i.Begun, i.Ended, i.Lost, i.Unknown, i.Repairs = wanted, c.Idle, c.Requested,
		c.Begun, c.Ended, c.Lost, c.Unknown, c.Repairs
	i.Stuck = stuck(c.Stuck)
}

// streamsAfter parses the value of ?after=: the page begins in that bucket, after that vbucket.
func streamsAfter(text string) (bucket string, from int, err error) {
	if text == "" {
		return "", 0, nil
	}
	slash := strings.LastIndexByte(text, '/')
	if slash < 0 {
		return "", 0, badAfter(text)
	}
	n, err := strconv.Atoi(text[slash+1:])
	if err != nil || n < 0 || n >= timestamp.MaxVBuckets {
		return "", 0, badAfter(text)
	}
	return text[:slash], n + 1, nil
}

// firstVBucket returns the vbucket after the one in ?after=, the first one by default.
func firstVBucket(r *http.Request) (int, error) {
	text := r.URL.Query().Get("after")
	if text == "" {
		return 0, nil
	}
	after, err := strconv.Atoi(text)
	if err != nil || after < 0 || after >= timestamp.MaxVBuckets {
		return 0, badAfter(text)
	}
	return after + 1, nil
}

func (g views) timestamps(w http.ResponseWriter, r *http.Request) error {
	limit, err := page(r, defaultVectors, timestamp.MaxVBuckets)
	if err != nil {
		return err
	}
	from, err := firstVBucket(r)
	if err != nil {
		return err
	}
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	b, err := bucketOf(r, s)
	if err != nil {
		return err
	}
	v, known, err := g.view(r, b.Name)
	if err != nil {
		return err
	}
	to := min(from+limit, b.VBuckets)
	t := v1.Timestamps{CAS: s.CAS(), Bucket: b.Name, UUID: b.UUID, Generation: b.Generation, VBuckets: b.VBuckets,
		From:   from,
		Number: b.Stability.Number, RollbackID: b.Stability.RollbackID, Stability: *vectorInfo(b.Stability.Vector, from, to),
		Mutation: *vectorInfo(b.MutationTimestamp, from, to), Backfill: vectorInfo(b.BackfillTimestamp, from, to)}
	if to < b.VBuckets {
		t.Next = strconv.Itoa(to - 1)
	}
	if b.Rollback != nil {
		t.Restart = vectorInfo(b.Rollback.Restart, from, to)
	}
	if known && v.Generation == b.Generation {
		g.addView(s, b, &v, &t, from, to)
	}
	rpc.Write(w, r, http.StatusOK, t)
	return nil
}

// addView adds the leader's view.
func (g views) addView(s *statecontext.State, b *statecontext.Bucket, v *core.BucketView, t *v1.Timestamps,
	from, to int) {
	t.Current, t.Waiting, t.Diverged, t.Source = vectorInfo(v.Current, from, to), v.Waiting, v.Diverged, v.Source.String()
	t.AgeMS = v.AgeMS
	for at, current := range v.Current.Seqnos {
		t.Lag += max(current, b.Stability.Vector.Seqnos[at]) - b.Stability.Vector.Seqnos[at]
	}
	for _, p := range v.Participants {
		x := v1.Participant{Node: p.Node, Acked: p.Acked, Behind: p.Behind, SinceMS: p.SinceMS, Holds: p.Holds,
			Ignored: p.Ignored}
		if i := s.Indexer(p.Node); i != nil {
			x.Name = i.Name
		}
		t.Indexers = append(t.Indexers, x)
	}
	for at := range v.Entries {
		if e := &v.Entries[at]; v.Wanted && e.State != streams.Begun {
			if t.HoldingCount++; len(t.Holding) < maxHolding {
				t.Holding = append(t.Holding, streamInfo(b.Name, at, e))
			}
		}
	}
}
