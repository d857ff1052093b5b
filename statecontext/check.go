package statecontext

import (
	"errors"
	"fmt"

	"tidemark/index"
	"tidemark/partition"
)

// ErrInvariant is wrapped by the errors that Check returns.
var ErrInvariant = errors.New("StateContext invariant broken")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvariant, fmt.Sprintf(format, args...))
}

// Check verifies that s is a state that Apply can produce. It examines the whole state and is meant for tests,
// restored snapshots and backups. Its errors wrap ErrInvariant.
func Check(s *State) error {
	if s.revision > s.cas {
		return broken("definitions revision %d above cas %d", s.revision, s.cas)
	}
	for _, check := range [...]func(*State) error{checkHeader, checkRestore, checkManagers, checkProjectors, checkIndexers,
		checkBuckets, checkIndexes, checkNames, checkUsers, checkSettings, checkRebalances, checkDifferences, checkLedger} {
		if err := check(s); err != nil {
			return err
		}
	}
	return nil
}

func checkHeader(s *State) error {
	switch {
	case s.formatLevel < 1 || s.formatLevel > NextLevel:
		return broken("format level %d, known are 1 to %d", s.formatLevel, NextLevel)
	case (s.clusterID != "") != (s.epoch > 0):
		return broken("cluster id %q with epoch %d", s.clusterID, s.epoch)
	case (s.term > 0) != (s.leader != ""):
		return broken("term %d of leader %q", s.term, s.leader)
	case s.nextIndexID < 1 || s.nextCopyID < 1:
		return broken("next index id %d, next copy id %d", s.nextIndexID, s.nextCopyID)
	case s.limits != s.limits.withDefaults() || s.limits.LedgerMaxAgeMS < s.limits.LedgerMinAgeMS ||
		s.limits.LedgerMinAgeMS < 0:
		return broken("limits %+v", s.limits)
	}
	return nil
}

func checkRestore(s *State) error {
	if r := s.restored; r != nil {
		if r.ID == "" || r.CAS > s.revision {
			return broken("restore %q at cas %d, state at %d", r.ID, r.CAS, s.revision)
		}
	}
	if s.staging == nil {
		return nil
	}
	return s.staging.check(s.timeMS)
}

func (g *Staging) check(timeMS int64) error {
	received := uint64(0)
	for _, c := range g.chunks {
		received += uint64(len(c))
	}
	if g.ID == "" || g.Bytes > MaxRestoreBytes || received != g.Received || received > g.Bytes || g.SinceMS > timeMS {
		return broken("restore %q under way with %d of %d bytes since %d, time %d", g.ID, received, g.Bytes, g.SinceMS,
			timeMS)
	}
	return nil
}

func checkManagers(s *State) error {
	for m := range s.Managers() {
		if m.ModifiedCAS > s.cas || m.ID == "" || len(m.ID) > maxIdentityBytes {
			return broken("manager %q modified at %d above cas %d", m.ID, m.ModifiedCAS, s.cas)
		}
	}
	return nil
}

func checkProjectors(s *State) error {
	for p := range s.Projectors() {
		if p.ModifiedCAS > s.revision || p.ID == "" || len(p.ID) > maxIdentityBytes {
			return broken("projector %q modified at %d above revision %d", p.ID, p.ModifiedCAS, s.revision)
		}
	}
	return nil
}

func checkIndexers(s *State) error {
	count := 0
	for i := range s.Indexers() {
		count++
		if err := checkIndexer(s, i); err != nil {
			return err
		}
	}
	if count != s.nodes.Len() {
		return broken("%d indexers, %d uuids", count, s.nodes.Len())
	}
	var err error
	s.removed.Scan(func(uuid string, cas uint64) bool {
		if uuid == "" || cas > s.revision {
			err = broken("indexer %q removed at %d above revision %d", uuid, cas, s.revision)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	if s.nextNodeID > index.MaxNodeID {
		return broken("next node id %d", s.nextNodeID)
	}
	return nil
}

func checkIndexer(s *State, i *Indexer) error {
	switch {
	case i.Node > index.MaxNodeID:
		return broken("indexer %d above %d", i.Node, index.MaxNodeID)
	case len(i.UUID) > maxIdentityBytes:
		return broken("indexer %d has a uuid of %d bytes", i.Node, len(i.UUID))
	case i.ModifiedCAS > s.revision:
		return broken("indexer %d modified at %d above revision %d", i.Node, i.ModifiedCAS, s.revision)
	case s.IndexerByUUID(i.UUID) != i:
		return broken("uuid %s does not lead to indexer %d", i.UUID, i.Node)
	case s.Removed(i.UUID):
		return broken("indexer %d has the uuid %s of a removed one", i.Node, i.UUID)
	case !i.Offline.sound(s):
		return broken("indexer %d is offline since %+v, time %d", i.Node, *i.Offline, s.timeMS)
	}
	return nil
}

func checkBuckets(s *State) error {
	for b := range s.Buckets() {
		n := b.VBuckets
		if b.Name == "" || b.UUID == "" || n < 1 || b.Generation < 1 || b.ModifiedCAS > s.revision {
			return broken("bucket %q: %d vbuckets, generation %d, modified at %d", b.Name, n, b.Generation, b.ModifiedCAS)
		}
		if err := checkTimestamps(s, b); err != nil {
			return err
		}
		if b.Rollback == nil {
			continue
		}
		if err := checkRollback(b); err != nil {
			return err
		}
	}
	return nil
}

// checkTimestamps verifies the sizes of a bucket's timestamps and the time of the newest promotion.
func checkTimestamps(s *State, b *Bucket) error {
	n := b.VBuckets
	if b.Stability.StateMS < 0 || b.Stability.StateMS > s.timeMS {
		return broken("bucket %q: promoted at %d, state time %d", b.Name, b.Stability.StateMS, s.timeMS)
	}
	if b.Stability.Vector.Check(n) != nil || b.MutationTimestamp.Check(n) != nil || len(b.Stability.Logs) != n ||
		len(b.Stability.Revisions) != n {
		return broken("bucket %q: vectors are not of %d vbuckets", b.Name, n)
	}
	if m := b.BackfillTimestamp.Len(); m != 0 && m != n {
		return broken("bucket %q: backfill timestamp of %d vbuckets, want %d or none", b.Name, m, n)
	}
	return nil
}

// checkRollback verifies the rollback context of a bucket that has one.
func checkRollback(b *Bucket) error {
	n, r := b.VBuckets, b.Rollback
	switch {
	case b.Gone:
		return broken("bucket %q is gone and being rolled back", b.Name)
	case r.Step < Started || r.Step > RollingBack:
		return broken("bucket %q: rollback step %d", b.Name, r.Step)
	case r.ID <= b.Stability.RollbackID:
		return broken("bucket %q: rollback %d under way after %d", b.Name, r.ID, b.Stability.RollbackID)
	case len(r.Logs) != n || len(r.Revisions) != n:
		return broken("bucket %q: rollback with %d logs", b.Name, len(r.Logs))
	case r.Step >= Prepare != (r.Failover.Len() == n) || r.Step >= Restart != (r.Restart.Len() == n):
		return broken("bucket %q: step %s with failover of %d and restart of %d vbuckets", b.Name, r.Step, r.Failover.Len(),
			r.Restart.Len())
	}
	return nil
}

func checkIndexes(s *State) error {
	copies := make(map[index.CopyID]bool)
	recount := State{}
	for x := range s.Indexes() {
		recount.count(x, 1)
		if err := checkIndex(s, x, copies); err != nil {
			return err
		}
	}
	if recount.placed != s.placed {
		return broken("copies per node are counted as %v, they are %v", s.placed, recount.placed)
	}
	return nil
}

// checkIndex verifies one index; seen holds the copies of the indexes checked before.
func checkIndex(s *State, x *Index, seen map[index.CopyID]bool) error {
	if err := checkDefinition(s, x); err != nil {
		return err
	}
	if err := checkTopology(s, x); err != nil {
		return err
	}
	if err := checkCopies(s, x, seen); err != nil {
		return err
	}
	return checkBucketOf(s, x)
}

func checkDefinition(s *State, x *Index) error {
	f := &x.Definition
	switch {
	case f.ID >= s.nextIndexID || f.ID == 0:
		return broken("index %d, next is %d", f.ID, s.nextIndexID)
	case f.State < index.Pending || f.State > index.Error:
		return broken("index %d: state %d", f.ID, f.State)
	case f.Name == "":
		return broken("index %d has no name", f.ID)
	case f.Reason != "" && f.State != index.Error:
		return broken("index %d is %s and has the reason %q of an error", f.ID, f.State, f.Reason)
	case f.Origin >= f.ID:
		return broken("index %d comes of index %d, by splits", f.ID, f.Origin)
	case f.SplitCause != "" && f.Replaces == 0:
		return broken("index %d replaces none, and has the cause %q of a split", f.ID, f.SplitCause)
	case f.RequestedPartitions != 0 && f.RequestedPartitions >= f.Partitions:
		return broken("index %d has %d slices, %d were asked for", f.ID, f.Partitions, f.RequestedPartitions)
	case f.IsPrimary != (len(f.Keys) == 0):
		return broken("index %d: primary %v with %d keys", f.ID, f.IsPrimary, len(f.Keys))
	}
	if err := checkValues(f); err != nil { // a snapshot with it could not be read again
		return broken("index %d: %v", f.ID, err)
	}
	return nil
}

func checkTopology(s *State, x *Index) error {
	f, t := &x.Definition, &x.Topology
	switch by, known := t.Layout.Scheme.By(); {
	case !known || by != f.PartitionBy.Scheme:
		return broken("index %d: partitioned by %q, layout %s", f.ID, f.PartitionBy.Scheme, t.Layout.Scheme)
	case t.Index != f.ID || t.Layout.Partitions != f.Partitions:
		return broken("index %d: topology of %d with %d partitions, want %d", f.ID, t.Index, t.Layout.Partitions,
			f.Partitions)
	case max(f.ModifiedCAS, x.TopologyCAS, x.PlacedCAS) > x.newest(s) || x.PlacedCAS > x.TopologyCAS:
		return broken("index %d: modified at %d, topology at %d, placed at %d, revision %d", f.ID, f.ModifiedCAS,
			x.TopologyCAS, x.PlacedCAS, s.revision)
	}
	return nil
}

func checkCopies(s *State, x *Index, seen map[index.CopyID]bool) error {
	f, t := &x.Definition, &x.Topology
	last := index.CopyID(0)
	for _, c := range t.Copies {
		if c.ID <= last || c.ID >= s.nextCopyID || seen[c.ID] {
			return broken("index %d: copy %d after %d, next is %d", f.ID, c.ID, last, s.nextCopyID)
		}
		last, seen[c.ID] = c.ID, true
		if f.State == index.Dropping && c.State != partition.Leaving {
			return broken("index %d is being dropped, copy %d is %s", f.ID, c.ID, c.State)
		}
	}
	if f.State == index.Dropping {
		return nil
	}
	if rejection := s.checkPlacement(t.Layout, f.Replicas, t.Copies); rejection != nil {
		return broken("index %d: %v", f.ID, rejection)
	}
	return nil
}

// checkBucketOf verifies the bucket of an index that is not being dropped.
func checkBucketOf(s *State, x *Index) error {
	f := &x.Definition
	if f.State == index.Dropping {
		return nil
	}
	b := s.Bucket(f.Bucket)
	if b == nil {
		return broken("index %d is of bucket %q, which is not known", f.ID, f.Bucket)
	}
	if f.State != index.Error && (b.Gone || b.UUID != f.BucketUUID) {
		return broken("index %d is %s, its bucket %q is gone or another", f.ID, f.State, f.Bucket)
	}
	return nil
}

func checkNames(s *State) error {
	named := 0
	for x := range s.Indexes() {
		f := &x.Definition
		if f.State == index.Dropping {
			continue
		}
		named++
		if id, _ := s.names.Get(x.key()); id != f.ID {
			return broken("name %q of bucket %q leads to index %d, not to %d", f.Name, f.Bucket, id, f.ID)
		}
		if err := checkSuccessor(s, x); err != nil {
			return err
		}
	}
	if named != s.names.Len() {
		return broken("%d names, %d indexes that are not being dropped", s.names.Len(), named)
	}
	return nil
}

// isFirst reports whether first is ready and may have f as its successor.
func isFirst(first, f *index.Definition) bool {
	return first.State == index.Maintenance && first.Replaces == 0 && first.First() == f.Origin &&
		first.Keyspace() == f.Keyspace() && first.Name == f.Name
}

// checkSuccessor verifies that the index that a successor is to replace is READY.
func checkSuccessor(s *State, x *Index) error {
	f := &x.Definition
	if f.Replaces == 0 {
		return nil
	}
	if first := s.Definition(f.Replaces); first == nil || !isFirst(first, f) {
		return broken("index %d is to replace index %d, which is not there, not ready, or of another name or origin", f.ID,
			f.Replaces)
	}
	if !f.State.ToBeReady() || f.Deferred || f.SplitFailed != "" {
		return broken("index %d, which is to replace index %d, is %s, deferred %v", f.ID, f.Replaces, f.State, f.Deferred)
	}
	return nil
}

func checkLedger(s *State) error {
	shared := 0
	for own := range values(s.ledger.shares) {
		shared += own.Len()
	}
	if s.ledger.len() != s.ledger.ages.Len() || s.ledger.len() != shared {
		return broken("%d requests by key, %d by age, %d by principal", s.ledger.len(), s.ledger.ages.Len(), shared)
	}
	var err error
	last := int64(-1 << 62)
	s.ledger.ages.Scan(func(number uint64, key string) bool {
		e, ok := s.ledger.entries.Get(key)
		switch {
		case !ok || e.number != number || number >= s.ledger.next:
			err = broken("request %d by age is not the one by key", number)
		case e.timeMS < last || e.timeMS > s.timeMS:
			err = broken("request %d of time %d after %d, state time %d", number, e.timeMS, last, s.timeMS)
		case e.outcome.CAS > s.cas:
			err = broken("request %d with cas %d above %d", number, e.outcome.CAS, s.cas)
		}
		if ok {
			last = e.timeMS
		}
		return err == nil
	})
	return err
}

// checkStep verifies what must hold between a state and the one that follows it.
func checkStep(before, after *State) error {
	for _, n := range []struct {
		what          string
		before, after uint64
	}{
		{"cas", before.cas, after.cas},
		{"time", uint64(before.timeMS), uint64(after.timeMS)},
		{"revision", before.revision, after.revision},
		{"epoch", before.epoch, after.epoch},
		{"format level", before.formatLevel, after.formatLevel},
		{"next index", uint64(before.nextIndexID), uint64(after.nextIndexID)},
		{"next copy", uint64(before.nextCopyID), uint64(after.nextCopyID)},
	} {
		if n.after < n.before {
			return broken("%s %d after %d", n.what, n.after, n.before)
		}
	}
	if after.epoch == before.epoch && after.term < before.term || before.clusterID != "" &&
		after.clusterID != before.clusterID {
		return broken("term %d after %d in epoch %d, cluster %q after %q", after.term, before.term, after.epoch,
			after.clusterID, before.clusterID)
	}
	return checkStabilitySteps(before, after)
}

// checkStabilitySteps verifies that a bucket's stability timestamp goes back only in a rollback.
func checkStabilitySteps(before, after *State) error {
	for b := range after.Buckets() {
		old := before.Bucket(b.Name)
		if old == nil || old.Generation != b.Generation || old.lastRollback() != b.lastRollback() || old.Rollback != nil {
			continue
		}
		if !b.Stability.Vector.Covers(old.Stability.Vector) {
			return broken("bucket %q: stability timestamp went back without a rollback", b.Name)
		}
		if b.Stability.Number < old.Stability.Number {
			return broken("bucket %q: promotion %d follows %d", b.Name, b.Stability.Number, old.Stability.Number)
		}
	}
	return nil
}

// newest returns the highest cas at which the index may have been changed: the definitions revision if its hosts
// receive it, else the cas of the state.
func (x *Index) newest(s *State) uint64 {
	if x.Waits() {
		return s.cas
	}
	return s.revision
}
