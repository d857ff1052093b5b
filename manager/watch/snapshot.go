package watch

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/statecontext"
)

// encoded is a snapshot that several watchers may share: the event from its second field on.
type encoded struct {
	kinds      Kinds
	generation uint64
	cas        uint64
	made       time.Time
	data       []byte
	lentTo     map[string]int // number of watchers that have not taken it yet, by address; guarded by the hub's mu
}

// lend gives a watcher a snapshot if the limits allow it. The caller holds h.mu.
func (h *Hub) lend(w *Watcher, e *encoded) error {
	if w.from == gone {
		return nil // a closed watcher would never give it back
	}
	if e.lentTo[w.from] == 0 {
		if err := h.room(w.from, len(e.data)); err != nil {
			return err
		}
		if len(e.lentTo) == 0 {
			h.lent += len(e.data)
		}
		h.lentAt[w.from] += len(e.data)
	}
	e.lentTo[w.from]++
	w.takes = e
	return nil
}

// room returns an error if bytes more of a snapshot would exceed MaxLent or MaxLentPerAddress. The caller holds h.mu.
func (h *Hub) room(from string, bytes int) error {
	if h.lent > 0 && h.lent+bytes > MaxLent {
		return fmt.Errorf("%w: slow watchers have %d MiB of snapshots still to read; the limit is %d MiB", ErrFull,
			h.lent>>20, MaxLent>>20)
	}
	if had := h.lentAt[from]; had > 0 && had+bytes > MaxLentPerAddress {
		return fmt.Errorf("%w: slow watchers at %s have %d MiB of snapshots still to read; the limit is %d MiB",
			ErrAddressFull, from, had>>20, MaxLentPerAddress>>20)
	}
	return nil
}

// takeBack records that a watcher has taken its snapshot, or never will. The caller holds h.mu.
func (h *Hub) takeBack(w *Watcher) {
	e := w.takes
	if e == nil {
		return
	}
	w.takes = nil
	if e.lentTo[w.from]--; e.lentTo[w.from] > 0 {
		return
	}
	delete(e.lentTo, w.from)
	if h.lentAt[w.from] -= len(e.data); h.lentAt[w.from] == 0 {
		delete(h.lentAt, w.from)
	}
	if len(e.lentTo) == 0 {
		h.lent -= len(e.data)
	}
}

// encode returns a snapshot of s, or a slightly older one from which the kept updates lead to s.
func (h *Hub) encode(s *statecontext.State, generation uint64, kinds Kinds) (*encoded, error) {
	h.snapMu.Lock()
	defer h.snapMu.Unlock()
	h.mu.Lock()
	floor := h.floor(kinds)
	h.mu.Unlock()
	now := h.now()
	h.snapshots = slices.DeleteFunc(h.snapshots, func(e *encoded) bool {
		return e.generation != generation || now.Sub(e.made) > snapshotFor
	})
	for _, e := range h.snapshots {
		if e.kinds == kinds && e.cas >= floor && e.cas <= s.CAS() {
			return e, nil
		}
	}
	b, err := json.Marshal(newSnapshot(s, kinds))
	if err != nil {
		return nil, fmt.Errorf("snapshot of cas %d: %w", s.CAS(), err)
	}
	e := &encoded{kinds: kinds, generation: generation, cas: s.CAS(), made: now, data: append(b[1:], "\n\n"...),
		lentTo: map[string]int{}}
	if len(h.snapshots) >= snapshotsKept {
		h.snapshots = h.snapshots[1:]
	}
	h.snapshots = append(h.snapshots, e)
	return e, nil
}

// newSnapshot returns the part of a state that belongs to these kinds; the rest is absent.
func newSnapshot(s *statecontext.State, kinds Kinds) *v1.WatchState {
	v := &v1.WatchState{CAS: s.CAS(), ClusterID: s.ClusterID(), TimeMS: s.WallMS()}
	if kinds.Has(statecontext.EventCluster) {
		v.Cluster = s.Cluster()
	}
	if kinds.Has(statecontext.EventLeader) {
		v.Leader = &v1.WatchLeader{ID: s.LeaderID(), Term: s.Term()}
	}
	if kinds.Has(statecontext.EventManager) {
		v.Managers = slices.AppendSeq([]*statecontext.Manager{}, s.Managers())
	}
	if kinds.Has(statecontext.EventProjector) {
		v.Projectors = slices.AppendSeq([]*statecontext.Projector{}, s.Projectors())
	}
	if kinds.Has(statecontext.EventIndexer) {
		v.Indexers = slices.AppendSeq([]*statecontext.Indexer{}, s.Indexers())
	}
	addBuckets(v, s, kinds)
	if kinds.Has(statecontext.EventIndex) {
		v.Indexes = []*index.Definition{}
		for x := range s.Indexes() {
			v.Indexes = append(v.Indexes, &x.Definition)
		}
	}
	if kinds.Has(statecontext.EventTopology) {
		v.Topologies = []*partition.Topology{}
		for x := range s.Indexes() {
			v.Topologies = append(v.Topologies, &x.Topology)
		}
	}
	if kinds.Has(statecontext.EventRebalance) {
		v.Rebalances = slices.AppendSeq([]*statecontext.RebalanceJob{}, s.Rebalances())
		v.Moves = slices.AppendSeq([]*partition.Rebalance{}, s.RebalanceSteps())
	}
	if kinds.Has(statecontext.EventDifference) {
		v.Differences = slices.AppendSeq([]*statecontext.DifferingCopy{}, s.Differences())
	}
	return v
}

func addBuckets(v *v1.WatchState, s *statecontext.State, kinds Kinds) {
	if kinds.Has(statecontext.EventBucket) {
		v.Buckets = []v1.WatchBucket{}
	}
	if kinds.Has(statecontext.EventStability) {
		v.Stability = []v1.WatchStability{}
	}
	if kinds.Has(statecontext.EventBackfill) {
		v.Backfills = []v1.WatchBackfill{}
	}
	if kinds.Has(statecontext.EventRollback) {
		v.Rollbacks = []v1.WatchRollback{}
	}
	for b := range s.Buckets() {
		if v.Buckets != nil {
			v.Buckets = append(v.Buckets, v1.WatchBucket{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets,
				Generation: b.Generation, Gone: b.Gone,
				StabilitySource: s.BucketSettings(b.Name).StabilitySource})
		}
		if v.Stability != nil {
			t := &b.Stability
			v.Stability = append(v.Stability, v1.WatchStability{Bucket: b.Name, Number: t.Number, RollbackID: t.RollbackID,
				Total: t.Vector.Total(), Hash: strconv.FormatUint(t.Vector.Hash(), 10)})
		}
		if v.Backfills != nil && b.BackfillTimestamp.Len() > 0 {
			v.Backfills = append(v.Backfills, v1.WatchBackfill{Bucket: b.Name, Total: b.BackfillTimestamp.Total(),
				Hash: strconv.FormatUint(b.BackfillTimestamp.Hash(), 10)})
		}
		if r := b.Rollback; v.Rollbacks != nil && r != nil {
			v.Rollbacks = append(v.Rollbacks, v1.WatchRollback{Bucket: b.Name, ID: r.ID, Step: r.Step})
		}
	}
}

// quote returns s as a JSON string.
func quote(s string) []byte {
	b, _ := json.Marshal(s) // a string always marshals
	return b
}
