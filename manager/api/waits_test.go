package api

import (
	"fmt"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

// TestWaitsOf checks that a build that does not proceed lists the KV node, projector or indexer that it waits for,
// why, and since when, without troubles of other buckets and of indexers without a copy.
func TestWaitsOf(t *testing.T) {
	now := &core.Status{
		Projectors: []core.ProjectorStatus{
			{ID: "p1", Life: liveness.Active, KV: []wire.KVTrouble{
				{Bucket: "b", Node: "kv1:11210", Error: "connection refused", SinceMS: 1_000},
				{Bucket: "other", Node: "kv1:11210", Error: "no access"}},
				Unreached: []core.UnreachedPort{unreachedAt(0), unreachedAt(2), unreachedAt(5)}},
			{ID: "p2", Admin: "http://p2", Life: liveness.Offline, Unreached: []core.UnreachedPort{unreachedAt(0)}}},
		Indexers: []core.IndexerStatus{{Node: 0, Name: "i0", Life: liveness.Active},
			{Node: 1, Name: "i1", Admin: "http://i1", Life: liveness.Offline}, {Node: 2, Name: "i2", Life: liveness.Offline},
			{Node: 3, Name: "i3", Life: liveness.Offline},
			{Node: 4, Name: "i4", Life: liveness.Active, Health: "copies: the disk hangs"},
			{Node: 5, Name: "i5", Life: liveness.Active, Health: "copies: the disk hangs"}},
		Buckets: []core.BucketStatus{
			{Name: "b", Wanted: true, VBuckets: 128, Rollback: "prepare", RollbackForMS: 2_340,
				Streams: streams.Summary{Begun: 64,
					Stuck: []streams.Stuck{{VBucket: 3, ForMS: 18_000, Reason: "nobody hosts it"}}}},
			{Name: "other", Wanted: true, VBuckets: 128}},
	}
	x := &statecontext.Index{Definition: index.Definition{Bucket: "b", State: index.Backfill},
		Topology: partition.Topology{Copies: []partition.Copy{{Node: 0}, {Node: 1}, {Node: 2, State: partition.Leaving},
			{Node: 4}}}}
	want := []string{
		"projector p1 cannot ask KV node kv1:11210 about bucket b, since 1970-01-01T00:00:01Z: connection refused",
		"projector p2 at http://p2 is offline",
		"bucket b: 64 of 128 vbuckets are not streamed; vbucket 3 for 18s: nobody hosts it",
		"bucket b is being rolled back: prepare, for 2.3s",
		"indexer i1 at http://i1 is offline",
		"indexer i4: copies: the disk hangs",
		"projector p1 cannot reach the maintenance port of indexer i0 at i0:9542, since 1970-01-01T00:00:01Z: refused",
	}
	if got := waitsOf(x, now); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("a build waits for\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	ports := &now.Projectors[0].Unreached
	(*ports)[1], (*ports)[2] = unreachedAt(0), unreachedAt(0)
	(*ports)[1].Port, (*ports)[2].Refused = "backfill", true
	if got := waitsOf(x, now); len(got) != len(want)+2 || !strings.Contains(got[len(want)], "the backfill port") ||
		!strings.Contains(got[len(want)+1], "is refused at the maintenance port") {
		t.Errorf("a build waits for %q", got)
	}
	x.Definition.State = index.Maintenance
	if got := waitsOf(x, now); len(got) != 1 || got[0] != want[6] {
		t.Errorf("when it is ready it waits for %q, want %q", got, want[6])
	}
	for _, d := range []index.Definition{{Bucket: "b", State: index.Maintenance}, {Bucket: "b", State: index.Error},
		{Bucket: "b", State: index.Pending, Deferred: true}, {Bucket: "c", State: index.Backfill}} {
		x.Definition = d
		if x.Topology.Copies = nil; d.Bucket == "c" {
			now.Projectors = now.Projectors[:1]
		}
		if got := waitsOf(x, now); len(got) > 0 {
			t.Errorf("%s in state %v waits for %q", d.Bucket, d.State, got)
		}
	}
}

// unreachedAt is the maintenance port of indexer iN.
func unreachedAt(n index.NodeID) core.UnreachedPort {
	return core.UnreachedPort{Port: "maintenance", Indexer: fmt.Sprint("i", n), Unreached: wire.Unreached{Node: n,
		Address: fmt.Sprintf("i%d:9542", n), Error: "refused", SinceMS: 1_000}}
}

// TestShownPortsAreBounded checks that a status lists some of many unreached ports, and counts the others.
func TestShownPortsAreBounded(t *testing.T) {
	for _, n := range []int{0, shownPorts, 3 * shownPorts} {
		var st v1.Status
		w := newWritten(t)
		w.must(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p1"}})
		addKnown(w.s, &core.Status{Projectors: []core.ProjectorStatus{{ID: "p1",
			Unreached: make([]core.UnreachedPort, n)}}}, &st)
		p := &st.Projectors[0]
		if want := min(n, shownPorts); len(p.Unreached) != want || p.UnreachedOmitted != n-want {
			t.Errorf("of %d ports %d are listed, and %d omitted", n, len(p.Unreached), p.UnreachedOmitted)
		}
	}
}

// TestRemovedComponentsAreNotShown checks that a status has no component that was removed after the coordinator's last
// look at it: such a status would ask its reader to remove what was just removed.
func TestRemovedComponentsAreNotShown(t *testing.T) {
	w := newWritten(t)
	w.must(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p1"}})
	node := w.s.IndexerByUUID("u").Node
	var st v1.Status
	addKnown(w.s, &core.Status{Projectors: []core.ProjectorStatus{{ID: "p1"}, {ID: "p2"}},
		Indexers: []core.IndexerStatus{{Node: node, Name: "i1"}, {Node: node + 1, Name: "i2"}}}, &st)
	if len(st.Projectors) != 1 || st.Projectors[0].ID != "p1" || len(st.Indexers) != 1 || st.Indexers[0].ID != "i1" {
		t.Errorf("%+v %+v", st.Projectors, st.Indexers)
	}
}
