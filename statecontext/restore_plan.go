package statecontext

import (
	"fmt"
	"slices"
	"strings"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// RestorePlan describes what a restore does, or would do, with the indexes. Each index is counted once.
type RestorePlan struct {
	Kept      int `json:"kept"`      // also in the running cluster, and stay as they are
	Differing int `json:"differing"` // also stay as they are now, but differ from the backup
	Adopted   int `json:"adopted"`   // come back, and hosts hold a copy of each slice
	Rebuilt   int `json:"rebuilt"`   // come back, and are built from KV: some slice has no copy on any host
	Waiting   int `json:"waiting"`   // come back, and wait for BUILD INDEX
	Failed    int `json:"failed"`    // come back in state error: as before, or because their bucket is gone or another one
	Dropped   int `json:"dropped"`   // in the running cluster, but not in the backup
	Splits    int `json:"splits"`    // splits in progress that end
	Buckets   int `json:"buckets"`   // that the running cluster did not have
	// Named lists the first MaxPlanned indexes of each fate; the counts above are complete.
	Named []PlannedIndex `json:"named,omitempty"`
}

// MaxPlanned bounds how many indexes of one fate a plan lists.
const MaxPlanned = 20

// RestoreFate is what a restore does with an index. Its text is the name of the corresponding count in RestorePlan.
type RestoreFate string

// The fates.
const (
	FateKept      RestoreFate = "kept"
	FateDiffering RestoreFate = "differing"
	FateAdopted   RestoreFate = "adopted"
	FateRebuilt   RestoreFate = "rebuilt"
	FateWaiting   RestoreFate = "waiting"
	FateFailed    RestoreFate = "failed"
	FateDropped   RestoreFate = "dropped"
)

// PlannedIndex is an index listed in a plan.
type PlannedIndex struct {
	ID       index.ID    `json:"id"`
	Keyspace string      `json:"keyspace"`
	Name     string      `json:"name"`
	Fate     RestoreFate `json:"fate"`
	Note     string      `json:"note,omitempty"` // explanation for users
}

// PlanRestore returns what FinishRestore would do to s, without changing it. orphans holds the copies that hosts have
// but s does not place. The error is a *Rejection.
func PlanRestore(s, backup *State, mode RestoreMode, epoch uint64, found []FoundBucket,
	orphans map[index.CopyID]bool) (RestorePlan, error) {
	t := tx{s: *s, cas: s.cas + 1}
	m := merger{t: &t, backup: backup, mode: mode, found: found, epoch: epoch, orphans: orphans}
	if rejection := m.merge(); rejection != nil {
		return RestorePlan{}, rejection
	}
	t.s.cas, t.s.revision, t.s.staging = t.cas, t.cas, nil
	if err := Check(&t.s); err != nil {
		return RestorePlan{}, reject(errcode.BackupUnusable, "%v", err)
	}
	return m.plan, nil
}

// note counts an index, and lists it unless MaxPlanned indexes of its fate are listed.
func (p *RestorePlan) note(f *index.Definition, fate RestoreFate, note string) {
	count := p.count(fate)
	if *count++; *count <= MaxPlanned {
		p.Named = append(p.Named, PlannedIndex{ID: f.ID, Keyspace: f.Keyspace().String(), Name: f.Name, Fate: fate,
			Note: note})
	}
}

// count returns the counter of a fate.
func (p *RestorePlan) count(fate RestoreFate) *int {
	switch fate {
	case FateDiffering:
		return &p.Differing
	case FateAdopted:
		return &p.Adopted
	case FateRebuilt:
		return &p.Rebuilt
	case FateWaiting:
		return &p.Waiting
	case FateFailed:
		return &p.Failed
	case FateDropped:
		return &p.Dropped
	}
	return &p.Kept
}

// Of returns the number of indexes with a fate.
func (p *RestorePlan) Of(fate RestoreFate) int { return *p.count(fate) }

// planKept records an index that stays; b is the same index in the backup.
func (m *merger) planKept(x, b *Index) {
	if other := differences(&x.Definition, &b.Definition); other != "" {
		m.plan.note(&x.Definition, FateDiffering, other)
		return
	}
	m.plan.note(&x.Definition, FateKept, "")
}

// planDropped records an index that is dropped.
func (m *merger) planDropped(f *index.Definition) {
	note := ""
	if m.backup.IndexIn(f.Keyspace(), f.Name) != nil {
		note = "the backup has another index of that name"
	}
	m.plan.note(f, FateDropped, note)
}

// planBrought records an index that comes back as x.
func (m *merger) planBrought(x *Index) {
	made, have := 0, make([]bool, x.Topology.Layout.Partitions)
	for _, c := range x.Topology.Copies {
		if m.isHeld(x.Definition.ID, c) {
			have[c.Slice] = true
		} else {
			made++
		}
	}
	note := fmt.Sprintf("%d of %d copies are rebuilt", made, len(x.Topology.Copies))
	if made == 0 {
		note = ""
	}
	switch f := &x.Definition; {
	case f.State == index.Error:
		m.plan.note(f, FateFailed, f.Reason)
	case x.Waits():
		m.plan.note(f, FateWaiting, "")
	case slices.Contains(have, false):
		m.plan.note(f, FateRebuilt, note)
	default:
		m.plan.note(f, FateAdopted, note)
	}
}

// isHeld reports whether, as far as the leader can tell, the host of a copy that comes back holds it: it serves the
// copy now, or has it as an orphan.
func (m *merger) isHeld(id index.ID, c partition.Copy) bool {
	if m.orphans[c.ID] {
		return true
	}
	x, _ := m.running.Get(id)
	if x == nil {
		return false
	}
	at, is := x.Topology.Place(c.ID)
	return is && x.Topology.Copies[at].Node == c.Node && x.Topology.Copies[at].State == partition.Allocated
}

// differences describes how the running index differs from the one in the backup, which stays so; "" if it does not.
func differences(now, then *index.Definition) string {
	var all []string
	differs := func(what string, now, then any) {
		all = append(all, fmt.Sprintf("%s %v, in the backup %v", what, now, then))
	}
	if now.Replicas != then.Replicas {
		differs("num_replica", now.Replicas, then.Replicas)
	}
	if !slices.Equal(now.Nodes, then.Nodes) {
		differs("nodes", namesOrAny(now.Nodes), namesOrAny(then.Nodes))
	}
	switch {
	case now.Partitions != then.Partitions:
		differs("num_partition", now.Partitions, then.Partitions)
	case !now.PartitionBy.Equal(&then.PartitionBy):
		all = append(all, "its split values differ from the backup's")
	}
	if now.AutoSplitOff != then.AutoSplitOff {
		differs("auto_split", !now.AutoSplitOff, !then.AutoSplitOff)
	}
	return strings.Join(all, "; ")
}

// namesOrAny returns the names of nodes as a text of bounded length, or "any".
func namesOrAny(nodes []string) string {
	const most = 8
	switch more := len(nodes) - most; {
	case len(nodes) == 0:
		return "any"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(nodes[:most], " "), more)
	}
	return strings.Join(nodes, " ")
}
