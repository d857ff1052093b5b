package api

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"

	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

func (g stats) statsRoutes() []route {
	consistency := param{name: "consistency", enum: []string{"linearizable", "stale"},
		means: "linearizable (default): from the leader, with faults. stale: from this manager, also without a leader"}
	bucket := param{name: "bucket", means: "only indexes on this bucket"}
	return []route{
		{method: "GET", path: "/v1/stats", handle: g.stats, role: RoleRead, leader: true,
			limit: v1.ReadTimeout, doc: operation{
				id: "getStats", tag: tagReads, summary: "Figures of indexes and indexers: entries, backlog, sizes, scans, " +
					"memory, errors; asked of all indexers at once",
				params:  []param{bucket, consistency},
				answers: []answer{{status: 200, means: "the figures", body: v1.Stats{}, headers: readHeaders()}}}},
		{method: "GET", path: "/stats", handle: g.flatStats, role: RoleRead, leader: true,
			limit: v1.ReadTimeout, doc: operation{
				id: "getFlatStats", tag: tagReads, summary: "The figures of /v1/stats in the format of existing index tools: one " +
					"object, with names like bucket:index:items_count",
				params:  []param{bucket, consistency},
				answers: []answer{{status: 200, means: "the figures", body: map[string]any{}, headers: readHeaders()}}}},
		{method: "GET", path: "/getIndexStatus", handle: g.indexStatus, role: RoleRead, leader: true, limit: v1.ReadTimeout,
			doc: operation{
				id: "getIndexStatus", tag: tagReads, summary: "Indexes and their states, in the format of existing index tools",
				params:  []param{consistency},
				answers: []answer{{status: 200, means: "the indexes, by id", body: v1.IndexStatusList{}, headers: readHeaders()}}}},
		{method: "GET", path: "/getIndexStatement", handle: g.indexStatements, role: RoleRead, leader: true,
			limit: v1.ReadTimeout, doc: operation{
				id: "getIndexStatement", tag: tagReads, summary: "The statements that create the indexes again",
				params:  []param{bucket, consistency},
				answers: []answer{{status: 200, means: "the statements, by index id", body: []string{}, headers: readHeaders()}}}},
	}
}

func (g stats) stats(w http.ResponseWriter, r *http.Request) error {
	s, err := g.gatherStats(w, r)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, s)
	return nil
}

// gatherStats asks all indexers and sums up their answers.
func (g stats) gatherStats(w http.ResponseWriter, r *http.Request) (*v1.Stats, error) {
	s, err := g.read(w, r)
	if err != nil {
		return nil, err
	}
	st := &v1.Stats{AtMS: g.now().UnixMilli(), Indexes: []v1.IndexStats{}, Indexers: []v1.IndexerStats{}}
	reports := g.askIndexers(r.Context(), s)
	for i := range s.Indexers() {
		st.Indexers = append(st.Indexers, indexerStats(i, reports[i.Node]))
	}
	progress := g.progress()
	bucket := r.URL.Query().Get("bucket")
	copies, scans := copiesOf(reports), scansOf(reports)
	for x := range s.Indexes() {
		if bucket == "" || x.Definition.Bucket == bucket {
			one, sum := indexStats(x, progress[x.Definition.ID], reports, copies), scans[x.Definition.ID]
			addScans(&one, &sum)
			st.Indexes = append(st.Indexes, one)
		}
	}
	return st, nil
}

// askIndexers asks all indexers in parallel. Those that do not answer in time are left out.
func (g stats) askIndexers(ctx context.Context, s *statecontext.State) map[index.NodeID]*wire.IndexerStats {
	reports := map[index.NodeID]*wire.IndexerStats{}
	var mu sync.Mutex
	var asked sync.WaitGroup
	for i := range s.Indexers() {
		node, addr, uuid := i.Node, i.Admin, i.Name
		asked.Go(func() {
			one, err := g.indexers.Stats(ctx, addr)
			if err != nil {
				g.cfg.Logger.Debug("indexer did not report figures", "indexer", uuid, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			reports[node] = one
		})
	}
	asked.Wait()
	return reports
}

// copiesOf returns the figures of each copy.
func copiesOf(reports map[index.NodeID]*wire.IndexerStats) map[index.CopyID]*wire.CopyStats {
	all := map[index.CopyID]*wire.CopyStats{}
	for _, n := range reports {
		for i := range n.Copies {
			all[n.Copies[i].Copy] = &n.Copies[i]
		}
	}
	return all
}

func indexerStats(i *statecontext.Indexer, report *wire.IndexerStats) v1.IndexerStats {
	one := v1.IndexerStats{ID: i.Name, Node: i.Node, State: "unreachable"}
	if report == nil {
		return one
	}
	one.State, one.Health, one.BootID, one.UptimeMS = report.State, report.Health, report.BootID, report.UptimeMS
	one.MemoryQuota, one.MemoryUsed, one.MemoryRSS, one.Copies = report.MemoryQuota, report.MemoryUsed, report.MemoryRSS,
		len(report.Copies)
	one.MemoryNearQuota = report.MemoryNearQuota
	live := uint64(0)
	for k := range report.Copies {
		c := &report.Copies[k]
		one.ItemsCount, one.DataSize, one.DiskSize = one.ItemsCount+c.ItemsCount, one.DataSize+c.DataSize,
			one.DiskSize+c.DiskSize
		one.NumDocsPending, one.NumDocsQueued = max(one.NumDocsPending, c.NumDocsPending),
			max(one.NumDocsQueued, c.NumDocsQueued)
		live += c.DiskLive
	}
	one.FragPercent = fragPercent(live, one.DiskSize)
	duration := uint64(0)
	for _, sc := range report.Scans {
		one.NumRequests, one.NumRowsReturned = one.NumRequests+sc.NumRequests, one.NumRowsReturned+sc.NumRowsReturned
		one.NumScanErrors, duration = one.NumScanErrors+sc.NumScanErrors, duration+sc.TotalScanDuration
	}
	one.AvgScanLatency = duration / max(one.NumRequests, 1)
	return one
}

// indexStats sums up the figures of an index. Entries are counted of one copy per slice: the one that lacks least.
func indexStats(x *statecontext.Index, p core.Progress, reports map[index.NodeID]*wire.IndexerStats,
	copies map[index.CopyID]*wire.CopyStats) v1.IndexStats {
	d := &x.Definition
	st := v1.IndexStats{ID: d.ID, Name: d.Name, Bucket: d.Bucket, Scope: d.Member.Scope,
		Collection: d.Member.Collection, State: d.State, Reason: d.Reason,
		Availability: availabilityOf(&p), Copies: len(x.Topology.Copies), Faults: faultsOf(&p)}
	build := core.Progress{Copies: len(x.Topology.Copies)}
	best := map[index.SliceID]*wire.CopyStats{}
	live, everywhere := uint64(0), uint64(0)
	for i := range x.Topology.Copies {
		t := &x.Topology.Copies[i]
		c := copies[t.ID]
		if c == nil {
			st.PendingUnknown = joinReason(st.PendingUnknown, fmt.Sprintf("no indexer has reported copy %s", t.ID))
			continue
		}
		st.CopiesReported++
		build.Done, build.Total = build.Done+c.Done, build.Total+c.Total
		if c.Ready {
			build.Ready++
		}
		st.DataSize, st.DiskSize, st.MemoryUsed = st.DataSize+c.DataSize, st.DiskSize+c.DiskSize, st.MemoryUsed+c.MemoryUsed
		live, everywhere = live+c.DiskLive, everywhere+c.ItemsCount
		st.NumDocsPending, st.NumDocsQueued = max(st.NumDocsPending, c.NumDocsPending), max(st.NumDocsQueued, c.NumDocsQueued)
		if c.LastError != "" {
			st.Reason = joinReason(st.Reason, fmt.Sprintf("copy %s on node %d: %s", t.ID, t.Node, c.LastError))
		}
		if b := best[t.Slice]; b == nil || lacks(c) < lacks(b) {
			best[t.Slice] = c
		}
		if n := reports[t.Node]; n != nil && n.Unknown[d.Bucket] != "" {
			st.PendingUnknown = joinReason(st.PendingUnknown, n.Name+": "+n.Unknown[d.Bucket])
		}
	}
	for _, c := range best {
		st.ItemsCount += c.ItemsCount
	}
	st.BuildProgress = build.Percent(d.State)
	st.FragPercent, st.AvgItemSize = fragPercent(live, st.DiskSize), st.DataSize/max(everywhere, 1)
	return st
}

// lacks orders the copies of a slice: exact ones first, then by their backlog.
func lacks(c *wire.CopyStats) uint64 {
	if !c.Ready {
		return math.MaxUint64
	}
	return c.NumDocsPending + c.NumDocsQueued
}

// scanSum sums up the indexers' figures of an index's scans.
type scanSum struct {
	wire.ScanStats
	errorAt int64 // time of the last scan at the indexer that LastScanError is from
}

// scansOf sums up the scans of each index.
func scansOf(reports map[index.NodeID]*wire.IndexerStats) map[index.ID]scanSum {
	all := map[index.ID]scanSum{}
	for _, n := range reports {
		for i := range n.Scans {
			sum := all[n.Scans[i].Index]
			sum.add(&n.Scans[i])
			all[n.Scans[i].Index] = sum
		}
	}
	return all
}

func (s *scanSum) add(sc *wire.ScanStats) {
	s.NumRequests, s.NumRowsReturned = s.NumRequests+sc.NumRequests, s.NumRowsReturned+sc.NumRowsReturned
	s.NumScanErrors, s.NumScanTimeouts = s.NumScanErrors+sc.NumScanErrors, s.NumScanTimeouts+sc.NumScanTimeouts
	s.TotalScanDuration += sc.TotalScanDuration
	if sc.LastScanError != "" && (s.LastScanError == "" || sc.LastKnownScanTime > s.errorAt) {
		s.LastScanError, s.errorAt = sc.LastScanError, sc.LastKnownScanTime
	}
	s.LastKnownScanTime = max(s.LastKnownScanTime, sc.LastKnownScanTime)
}

func addScans(st *v1.IndexStats, sum *scanSum) {
	st.NumRequests, st.NumRowsReturned = sum.NumRequests, sum.NumRowsReturned
	st.NumScanErrors, st.NumScanTimeouts = sum.NumScanErrors, sum.NumScanTimeouts
	st.TotalScanDuration, st.LastScanError = sum.TotalScanDuration, sum.LastScanError
	st.LastKnownScanTime = sum.LastKnownScanTime
	st.AvgScanLatency = st.TotalScanDuration / max(st.NumRequests, 1)
}

// maxReason limits a text about many copies; moreReasons stands for the rest.
const (
	maxReason   = 500
	moreReasons = "; and more"
)

func joinReason(said, more string) string {
	switch {
	case said == "":
		return more
	case strings.Contains(said, more) || strings.HasSuffix(said, moreReasons):
		return said
	case len(said) > maxReason:
		return said + moreReasons
	}
	return said + "; " + more
}

func fragPercent(live, disk uint64) float64 {
	if disk == 0 {
		return 0
	}
	return 100 * float64(disk-min(live, disk)) / float64(disk)
}

// flatStats returns the same figures under flat names.
func (g stats) flatStats(w http.ResponseWriter, r *http.Request) error {
	s, err := g.gatherStats(w, r)
	if err != nil {
		return err
	}
	flat := map[string]any{}
	for i := range s.Indexes {
		x := &s.Indexes[i]
		space := index.KeyspaceOf(x.Bucket, x.Scope, x.Collection).String()
		if err := flatten(flat, space+":"+x.Name+":", x, "id", "name", "bucket", "scope", "collection"); err != nil {
			return err
		}
	}
	for i := range s.Indexers {
		n := &s.Indexers[i]
		if err := flatten(flat, "indexer:"+n.ID+":", n, "id"); err != nil {
			return err
		}
	}
	rpc.Write(w, r, http.StatusOK, flat)
	return nil
}

// flatten adds the fields of v that are numbers or texts, under names with a prefix.
func flatten(to map[string]any, prefix string, v any, without ...string) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding figures: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	for _, name := range without {
		delete(fields, name)
	}
	for name, value := range fields {
		if value[0] != '{' && value[0] != '[' {
			to[prefix+name] = value
		}
	}
	return nil
}

func (g stats) indexStatus(w http.ResponseWriter, r *http.Request) error {
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	progress := g.progress()
	list := v1.IndexStatusList{Code: "success", Status: []v1.IndexStatus{}}
	for x := range s.Indexes() {
		if x.Definition.Replaces != 0 { // it has no name yet
			continue
		}
		d := &x.Definition
		if d.State == index.Dropping {
			continue
		}
		p := progress[d.ID]
		list.Status = append(list.Status, v1.IndexStatus{DefnID: d.ID, Name: d.Name, IndexName: d.Name, Bucket: d.Bucket,
			IsPrimary: d.IsPrimary,
			Status:    statusWord(d), Error: d.Reason, Definition: d.Statement, Hosts: hosts(s, &x.Topology),
			Progress:   p.Percent(d.State),
			NumReplica: d.Replicas, NumPartition: d.Partitions, Partitioned: !d.PartitionBy.IsZero()})
	}
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

// statusWord returns a state in the words of Couchbase's index tools.
func statusWord(d *index.Definition) string {
	switch d.State {
	case index.Maintenance:
		return "Ready"
	case index.Backfill:
		return "Building"
	case index.Error:
		return "Error"
	}
	if d.Deferred {
		return "Created"
	}
	return "Building"
}

// hosts returns the scan addresses of the indexers that hold copies.
func hosts(s *statecontext.State, t *partition.Topology) []string {
	addrs := []string{}
	for _, n := range t.Servers() {
		if i := s.Indexer(n); i != nil {
			addrs = append(addrs, i.Scan)
		}
	}
	return addrs
}

func (g stats) indexStatements(w http.ResponseWriter, r *http.Request) error {
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	bucket := r.URL.Query().Get("bucket")
	statements := []string{}
	for x := range s.Indexes() {
		if x.Definition.Replaces != 0 { // it has no name yet
			continue
		}
		if d := &x.Definition; d.State != index.Dropping && (bucket == "" || d.Bucket == bucket) {
			statements = append(statements, x.Definition.Statement)
		}
	}
	rpc.Write(w, r, http.StatusOK, statements)
	return nil
}
