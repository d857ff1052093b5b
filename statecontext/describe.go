package statecontext

import (
	"fmt"
	"strings"

	"tidemark/index"
	"tidemark/timestamp"
)

// shownVBuckets is the largest number of vbuckets of a vector that Describe prints in full.
const shownVBuckets = 8

// Describe returns a state as text for people. The format may change; programs use the API.
func Describe(s *State) string {
	var w strings.Builder
	cluster := s.clusterID
	if cluster == "" {
		cluster = "(not bootstrapped)"
	}
	fmt.Fprintf(&w, "cluster %s epoch %d format %d cas %d revision %d time %d\n", cluster, s.epoch, s.formatLevel, s.cas,
		s.revision, s.timeMS)
	if s.term > 0 {
		fmt.Fprintf(&w, "term %d led by %s\n", s.term, s.leader)
	}
	if r := s.restored; r != nil {
		fmt.Fprintf(&w, "restored %s from %s cas %d at cas %d\n", r.Mode, r.FromID, r.FromCAS, r.CAS)
	}
	if g := s.staging; g != nil {
		fmt.Fprintf(&w, "RESTORE %s %s %d of %d bytes\n", g.ID, g.Mode, g.Received, g.Bytes)
	}
	for u := range s.Users() { // without their password hashes
		fmt.Fprintf(&w, "user %s %s @%d\n", u.Name, u.Role, u.ModifiedCAS)
	}
	for x := range s.Tokens() {
		fmt.Fprintf(&w, "token %s user=%s %s ends=%d @%d\n", x.ID, x.User, x.Role, x.ExpiresMS, x.ModifiedCAS)
	}
	for m := range s.Managers() {
		fmt.Fprintf(&w, "manager %s rest=%s raft=%s @%d\n", m.ID, m.REST, m.Raft, m.ModifiedCAS)
	}
	for p := range s.Projectors() {
		fmt.Fprintf(&w, "projector %s admin=%s boot=%s @%d\n", p.ID, p.Admin, p.BootID, p.ModifiedCAS)
	}
	for i := range s.Indexers() {
		describeIndexer(&w, i)
	}
	s.removed.Scan(func(uuid string, cas uint64) bool {
		fmt.Fprintf(&w, "removed indexer uuid=%s @%d\n", uuid, cas)
		return true
	})
	for b := range s.Buckets() {
		describeBucket(&w, b)
		if x := s.BucketSettings(b.Name); x.Bucket != "" {
			fmt.Fprintf(&w, "  settings stability.source=%s @%d\n", x.StabilitySource, x.ModifiedCAS)
		}
	}
	for x := range s.Indexes() {
		describeIndex(&w, x)
	}
	for d := range s.Differences() {
		fmt.Fprintf(&w, "difference index %d copy %d slice %d replica %d node %d (%s): ",
			d.Index, d.Copy, d.Slice, d.Replica, d.Node, d.Indexer)
		fmt.Fprintf(&w, "%d documents, %s, anew %v, since %d @%d\n",
			d.Documents, d.Kind, d.TakenAnew, d.SinceMS, d.ModifiedCAS)
	}
	s.ledger.ages.Scan(func(number uint64, key string) bool {
		e, _ := s.ledger.entries.Get(key)
		fmt.Fprintf(&w, "request %d %q time %d: %s\n", number, key, e.timeMS, describeResult(&e.outcome))
		return true
	})
	return w.String()
}

func describeIndexer(w *strings.Builder, i *Indexer) {
	fmt.Fprintf(w, "indexer %d uuid=%s boot=%s name=%s admin=%s scan=%s @%d", i.Node, i.UUID, i.BootID, i.Name, i.Admin,
		i.Scan, i.ModifiedCAS)
	if i.Evicting {
		w.WriteString(" EVICTING")
	}
	if a := i.Offline; a != nil {
		fmt.Fprintf(w, " OFFLINE since %d, a repair counts from %d", a.StateMS, a.RepairMS)
	}
	w.WriteByte('\n')
}

func describeBucket(w *strings.Builder, b *Bucket) {
	fmt.Fprintf(w, "bucket %s uuid=%s vbuckets=%d generation=%d", b.Name, b.UUID, b.VBuckets, b.Generation)
	if b.Gone {
		w.WriteString(" GONE")
	}
	fmt.Fprintf(w, " @%d\n", b.ModifiedCAS)
	fmt.Fprintf(w, "  stability #%d time %d rollback %d %s\n", b.Stability.Number, b.Stability.StateMS,
		b.Stability.RollbackID, describeVector(b.Stability.Vector))
	fmt.Fprintf(w, "  mutation %s\n", describeVector(b.MutationTimestamp))
	if b.BackfillTimestamp.Len() > 0 {
		fmt.Fprintf(w, "  backfill %s\n", describeVector(b.BackfillTimestamp))
	}
	if b.VBuckets <= shownVBuckets {
		for v, l := range b.Stability.Logs {
			if len(l) > 0 {
				fmt.Fprintf(w, "  log of vbucket %d (map %d.%d) %s\n", v, b.Stability.Revisions[v].Epoch,
					b.Stability.Revisions[v].Rev, describeLog(l))
			}
		}
	}
	if r := b.Rollback; r != nil {
		fmt.Fprintf(w, "  ROLLBACK %d step %s", r.ID, r.Step)
		if r.Failover.Len() > 0 {
			fmt.Fprintf(w, " failover %s", describeVector(r.Failover))
		}
		if r.Restart.Len() > 0 {
			fmt.Fprintf(w, " restart %s", describeVector(r.Restart))
		}
		w.WriteByte('\n')
	}
}

// unlessZero prints a value in the given format unless it is the zero value.
func unlessZero[T comparable](w *strings.Builder, form string, value T) {
	var zero T
	if value != zero {
		fmt.Fprintf(w, form, value)
	}
}

func describeIndex(w *strings.Builder, x *Index) {
	f := &x.Definition
	fmt.Fprintf(w, "index %d %s/%s %s", f.ID, f.Bucket, f.Name, f.State)
	if f.Deferred {
		w.WriteString(" deferred")
	}
	unlessZero(w, " (%s)", f.Reason)
	unlessZero(w, " replaces %d", f.Replaces)
	unlessZero(w, " origin %d", f.Origin)
	unlessZero(w, " because %s", f.SplitCause)
	unlessZero(w, " split failed (%s)", f.SplitFailed)
	if f.AutoSplitOff {
		w.WriteString(" auto_split off")
	}
	unlessZero(w, " asked for %d slices", f.RequestedPartitions)
	unlessZero(w, " rules %d", f.Rules)
	fmt.Fprintf(w, " @%d topology @%d\n", f.ModifiedCAS, x.TopologyCAS)
	unlessZero(w, "  %s\n", f.Statement)
	for slice := range index.SliceID(x.Topology.Layout.Partitions) {
		fmt.Fprintf(w, "  slice %d:", slice)
		for _, c := range x.Topology.Copies {
			if c.Slice == slice {
				fmt.Fprintf(w, " r%d=node%d#%d(%s)", c.Replica, c.Node, c.ID, c.State)
			}
		}
		w.WriteByte('\n')
	}
}

// describeVector returns the seqnos of a vector, each with its branch if it has one. Long vectors are shown by total
// and hash.
func describeVector(t timestamp.Vector) string {
	if t.Len() > shownVBuckets {
		return fmt.Sprintf("%d vbuckets total %d hash %016x", t.Len(), t.Total(), t.Hash())
	}
	parts := make([]string, t.Len())
	for v := range parts {
		parts[v] = fmt.Sprint(t.Seqnos[v])
		if u := t.VBUUIDs[v]; u != 0 {
			parts[v] += fmt.Sprintf("/%x", u)
		}
	}
	return "[" + strings.Join(parts, " ") + "]"
}

func describeLog(l timestamp.FailoverLog) string {
	var w strings.Builder
	for _, e := range l {
		fmt.Fprintf(&w, "(%x,%d)", e.VBUUID, e.Seqno)
	}
	return w.String()
}

func describeResult(r *Result) string {
	var w strings.Builder
	switch {
	case r.Rejection != nil:
		fmt.Fprintf(&w, "rejected %v", r.Rejection)
	case r.Changed:
		fmt.Fprintf(&w, "cas %d", r.CAS)
	default:
		fmt.Fprintf(&w, "unchanged at cas %d", r.CAS)
	}
	if r.Index != 0 {
		fmt.Fprintf(&w, " index %d", r.Index)
	}
	if r.Number != 0 {
		fmt.Fprintf(&w, " number %d", r.Number)
	}
	if r.Member != "" {
		fmt.Fprintf(&w, " member %s", r.Member)
	}
	if r.Replayed {
		w.WriteString(" (from the ledger)")
	}
	return w.String()
}
